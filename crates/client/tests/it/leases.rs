//! Leases of a real server, through the client library, over mTLS.

use std::time::Duration;

use lockd_client::{AcquireOptions, Client, Conditions, Kind, LossReason};
use lockd_server::testing::Proxy;

use crate::common::{MtlsServer, Protocol, Server, over_all_protocols, proxy_socket, unused_address};

fn lasting(ttl_ms: u64) -> AcquireOptions {
    AcquireOptions { ttl: Some(Duration::from_millis(ttl_ms)), ..AcquireOptions::default() }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn one_worker_hands_its_checkpoint_to_the_next(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let (first, second) = (server.client(), server.client());
    let lease = first.acquire("orders", &lasting(30_000)).await.expect("free");
    let refused = second.acquire("orders", &AcquireOptions::default()).await.expect_err("held");
    assert_eq!(refused.kind(), Kind::Held);
    assert!(refused.refusal().is_some_and(|refusal| refusal.hints.holder.is_some()));
    assert_eq!(lease.read_state().await.expect("held").document, None);
    let waiting = AcquireOptions { block: Duration::from_secs(20), ..AcquireOptions::default() };
    let next = tokio::spawn(async move { second.acquire("orders", &waiting).await });
    pause(100).await;
    let written = lease.update_state(r#"{ "step": 1 }"#, &Conditions::default()).await.expect("held");
    lease.release().await.expect("it is ours");
    let next = next.await.expect("no panic").expect("granted");
    assert!(next.fencing_token() > 0 && next.is_live());
    let read = next.read_state().await.expect("held");
    assert_eq!(read.document.as_deref(), Some(br#"{"step":1}"#.as_slice()));
    assert_eq!((read.version, read.etag), (written.new_version, written.new_state_etag));
}

async fn a_lease_renews_itself_for_as_long_as_it_is_held(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let lease = server.client().acquire("orders", &lasting(1_500)).await.expect("free");
    for _ in 0..10 {
        pause(450).await;
        assert!(lease.is_live(), "{lease:?}");
    }
    lease.update_state("{}", &Conditions::default()).await.expect("the server agrees");
}

async fn a_wait_longer_than_the_ttl_returns_a_live_lease(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let held = server.client().acquire("orders", &lasting(30_000)).await.expect("free");
    let options = AcquireOptions { block: Duration::from_secs(20), ..lasting(1_200) };
    let (client, second) = (server.client(), server.client());
    let waiting = tokio::spawn(async move { client.acquire("orders", &options).await });
    pause(1500).await;
    held.release().await.expect("it is ours");
    let lease = waiting.await.expect("no panic").expect("granted");
    assert!(lease.is_live());
    drop(lease);
    let options = AcquireOptions { block: Duration::from_secs(20), ..AcquireOptions::default() };
    second.acquire("orders", &options).await.expect("a dropped lease is released");
}

async fn a_lease_is_lost_before_its_deadline_when_the_server_is_gone(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server.client_of(&[proxy.address]).acquire("orders", &lasting(6_000)).await.expect("free");
    proxy.cut();
    assert_eq!(lease.lost().await, LossReason::Unreachable);
    assert!(!lease.is_live() && lease.remaining().is_zero());
    // The server still honours it: the holder stops before another can acquire it.
    let seen = server.client().describe("orders", None).await.expect("the server is there");
    assert_eq!(seen.state.as_deref(), Some("active"), "{seen:?}");
    let error = lease.update_state("{}", &Conditions::default()).await.expect_err("it is over");
    assert_eq!(error.kind(), Kind::Expired);
}

async fn a_revoked_lease_says_so_and_stops_the_work_under_it(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let (worker, operator) = (server.client(), server.client());
    let short = lasting(600);
    let work = worker.with_lease("orders", &short, async |lease| {
        let revoked = operator.revoke(&lease.granted().public_id).await.expect("an operator may");
        assert_eq!(revoked.state, "revoking");
        std::future::pending::<()>().await;
    });
    let lost = work.await.expect_err("it never ends by itself");
    assert_eq!(lost.kind(), Kind::Fenced, "{lost}");
    let page = operator.leases(None, None).await.expect("an operator may");
    let reclaimed = operator.reclaim(&page.leases[0].public_id).await.expect("it is revoking");
    assert_eq!(reclaimed.state, "revoked");
    let done = worker.with_lease("orders", &lasting(600), async |lease| lease.fencing_token()).await;
    assert!(done.expect("free again") > 0);
}

async fn a_commit_whose_response_is_lost_is_applied_once(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let client = server.client_of(&[proxy.address]);
    let lease = client.acquire("orders", &lasting(60_000)).await.expect("free");
    let before = lease.granted().version;
    proxy.swallow(2);
    let committed =
        lease.update_state(r#"{"n":1}"#, &Conditions::default()).await.expect("the third attempt");
    assert_eq!(proxy.swallowed(), 2, "two responses were lost");
    assert_eq!(committed.new_version, before + 1);
    assert_eq!(lease.read_state().await.expect("held").version, before + 1, "and nothing came after it");
}

async fn an_acquire_whose_response_is_lost_creates_one_lease(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let client = server.client_of(&[proxy.address]);
    // The connection is open: it is not the handshake that is lost.
    client.whoami().await.expect("it runs");
    proxy.swallow(1);
    let lease = client.acquire("orders", &lasting(60_000)).await.expect("the second attempt");
    let all = server.client().leases(None, None).await.expect("readable").leases;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].public_id, lease.granted().public_id);
    lease.release().await.expect("ours");
}

/// A second server replayed the grant after the first had hung for half of the TTL: the rest was taken for the full TTL,
/// and a caller that reserved time to stop had no time left to work.
async fn a_grant_with_a_late_response_has_its_full_ttl(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let builder = server.builder().connect_timeout(Duration::from_secs(3));
    let builder = builder.answer_timeout(Duration::from_secs(3)).endpoint(proxy.address.to_string());
    let client = builder.endpoint(server.address.to_string()).build().expect("valid");
    client.whoami().await.expect("it runs");
    proxy.hang();
    let lease = client.acquire("orders", &lasting(12_000)).await.expect("the second answers");
    assert!(lease.granted().remaining_ms < 7_000, "it was granted to the first: {:?}", lease.granted());
    assert!(lease.remaining() > Duration::from_secs(7), "{:?}", lease.remaining());
}

async fn a_revoke_whose_response_is_lost_succeeds(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server.client().acquire("orders", &lasting(60_000)).await.expect("free");
    let client = server.client_of(&[proxy.address]);
    client.whoami().await.expect("it runs");
    proxy.swallow(1);
    let revoked = client.revoke(&lease.granted().public_id).await.expect("it was done");
    assert_eq!(revoked.state, "revoking");
}

async fn calls_that_may_be_applied_are_indeterminate_and_others_unavailable(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let client = server.builder().tries(2).endpoint(proxy.address.to_string()).build().expect("valid");
    client.whoami().await.expect("it runs");
    proxy.swallow(usize::MAX);
    let error = client.acquire("orders", &lasting(500)).await.expect_err("no response");
    assert_eq!(error.kind(), Kind::Indeterminate, "{error}");
    let error = client.describe("orders", None).await.expect_err("no response");
    assert_eq!(error.kind(), Kind::Unavailable, "a read changes nothing: {error}");
    proxy.cut();
    pause(50).await;
    let error = client.acquire("orders", &lasting(500)).await.expect_err("connection refused");
    assert_eq!(error.kind(), Kind::Unavailable, "nothing was sent: {error}");
}

async fn a_dead_server_is_skipped(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let client = server.client_of(&[unused_address().await, server.address]);
    let lease = client.acquire("orders", &lasting(1_500)).await.expect("the second answers");
    pause(2_000).await;
    assert!(lease.is_live());
    lease.release().await.expect("ours");
}

async fn names_with_special_characters_are_encoded(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let client = server.client();
    let key = "a/b?c&d=e f%20+ü#";
    let lease = client.acquire(key, &lasting(5_000)).await.expect("free");
    assert_eq!(lease.granted().key.as_deref(), Some(key));
    lease.update_state("1", &Conditions::default()).await.expect("held");
    assert_eq!(client.describe(key, None).await.expect("known").key, key);
    let gone =
        client.remove_state(key, None, lease.credential(), &Conditions::default()).await.expect("held");
    assert!(gone.removed);
    assert_eq!(client.read_public_state(key, None).await.expect("allowed").document, None);
}

async fn several_resources_are_held_together(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let file =
        |name: &str| api::requests::Resource { kind: "FILE".into(), name: name.into(), predicate: None };
    let both = vec![file("/a"), file("/b")];
    let lease = server.client().acquire_many(both, &lasting(5_000)).await.expect("free");
    let refused = server.client().acquire_many(vec![file("/b")], &lasting(5_000)).await.expect_err("held");
    assert_eq!(refused.kind(), Kind::Held);
    assert_eq!(lease.read_state().await.expect_err("which one?").kind(), Kind::Invalid);
}

async fn a_lease_survives_a_server_that_hangs(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let proxy = Proxy::before(server.address).await;
    let lease = server
        .client_of(&[proxy.address, server.address])
        .acquire("orders", &lasting(3_000))
        .await
        .expect("free");
    proxy.hang();
    pause(5_000).await;
    assert!(lease.is_live(), "the other server renewed it in time: {lease:?}");
}

#[tokio::test]
async fn a_unix_socket_reaches_the_server() {
    let server = Server::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("lockd.sock");
    proxy_socket(&server, &path);
    let client = Client::builder().endpoint(format!("unix:{}", path.display())).build().expect("valid");
    client.acquire("orders", &lasting(5_000)).await.expect("free").release().await.expect("ours");
}

async fn work_that_releases_its_lease_with_a_commit_runs_to_its_end(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let (client, options) = (server.client(), lasting(5_000));
    let last = Conditions { release: true, ..Conditions::default() };
    let work = client.with_lease("orders", &options, async |lease| {
        lease.update_state("1", &last).await.expect("held");
        assert!(!lease.is_live());
        let next = server.client().acquire("orders", &lasting(5_000)).await.expect("it is free at once");
        pause(50).await;
        next.fencing_token() > lease.fencing_token()
    });
    assert!(work.await.expect("it was not lost"), "tokens grow");
}

async fn a_lease_released_by_another_client_is_lost(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let lease = server.client().acquire("orders", &lasting(600)).await.expect("free");
    server.client().release(lease.credential()).await.expect("the credential suffices");
    assert_eq!(lease.lost().await, LossReason::Released);
}

async fn a_revoked_lease_is_lost_for_that_reason(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let lease = server.client().acquire("orders", &lasting(600)).await.expect("free");
    server.client().revoke(&lease.granted().public_id).await.expect("an operator may");
    assert_eq!(lease.lost().await, LossReason::Revoked);
}

over_all_protocols! {
    a_revoked_lease_is_lost_for_that_reason
    one_worker_hands_its_checkpoint_to_the_next
    a_lease_renews_itself_for_as_long_as_it_is_held
    a_wait_longer_than_the_ttl_returns_a_live_lease
    a_lease_is_lost_before_its_deadline_when_the_server_is_gone
    a_revoked_lease_says_so_and_stops_the_work_under_it
    a_commit_whose_response_is_lost_is_applied_once
    an_acquire_whose_response_is_lost_creates_one_lease
    a_grant_with_a_late_response_has_its_full_ttl
    a_revoke_whose_response_is_lost_succeeds
    calls_that_may_be_applied_are_indeterminate_and_others_unavailable
    a_dead_server_is_skipped
    names_with_special_characters_are_encoded
    several_resources_are_held_together
    a_lease_survives_a_server_that_hangs
    work_that_releases_its_lease_with_a_commit_runs_to_its_end
    a_lease_released_by_another_client_is_lost
}
