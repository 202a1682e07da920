//! Waiting for a lease that survives broken connections and restarts of a real server, over mTLS.

use std::time::Duration;

use api::agents::{Intent, Manifest};
use api::requests::Acquire;
use lockd_client::{
    AcquireOptions, Client, DeclareOutcome, Error, Kind, Lease, Wait, WaitObserver, WaitStatus,
};
use lockd_server::testing::Proxy;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::common::{MtlsServer, Protocol, over_all_protocols, until_waiters};

const KEY: &str = "orders";
const LONG: Duration = Duration::from_secs(120);

/// A lease that does not renew itself and outlasts the test.
async fn hold(client: &Client) -> String {
    let request = Acquire { key: Some(KEY.into()), ttl_ms: Some(300_000), ..Acquire::default() };
    client.grant(request, Duration::ZERO).await.expect("free").lease_id
}

/// A client that retries nothing: only a wait goes on.
fn impatient(server: &MtlsServer) -> Client {
    server.builder().tries(1).endpoint(server.url()).build().expect("valid")
}

fn waiter(
    client: Client,
    block: Duration,
) -> (JoinHandle<Result<Lease, Error>>, mpsc::UnboundedReceiver<WaitStatus>) {
    let (send, statuses) = mpsc::unbounded_channel();
    // Far longer than the test: an orphaned lease would block the next one.
    let ttl = Some(Duration::from_secs(300));
    let on_wait = Some(WaitObserver::new(move |status| drop(send.send(status.clone()))));
    let options = AcquireOptions { block, ttl, on_wait, ..AcquireOptions::default() };
    (tokio::spawn(async move { client.acquire(KEY, &options).await }), statuses)
}

/// The public ids of all leases that are not ended.
async fn live(client: &Client) -> Vec<String> {
    let all = client.leases(None, None).await.expect("an operator").leases;
    all.into_iter().filter(|lease| lease.state == "active").map(|lease| lease.public_id).collect()
}

async fn a_waiter_is_granted_after_the_server_restarts(protocol: Protocol) {
    let mut server = MtlsServer::start(protocol).await;
    let direct = server.client();
    let held = hold(&direct).await;
    let (waiting, mut statuses) = waiter(impatient(&server), LONG);
    until_waiters(&direct, KEY, 1).await;
    assert_eq!(statuses.recv().await.expect("it waits").holder.as_deref(), Some("operator"));
    server.stop().await;
    let status = statuses.recv().await.expect("it still waits");
    assert!(status.unreachable.is_some() && status.holder.is_some(), "{status:?}");
    server.resume().await;
    until_waiters(&direct, KEY, 1).await;
    direct.release(&held).await.expect("ours");
    let lease = waiting.await.expect("no panic").expect("granted");
    assert!(lease.is_live());
    assert_eq!(live(&direct).await, [lease.granted().public_id.clone()]);
}

async fn a_waiter_goes_on_when_its_connection_breaks(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let (direct, proxy) = (server.client(), Proxy::before(server.address).await);
    let held = hold(&direct).await;
    let (waiting, mut statuses) = waiter(server.client_at(proxy.address), LONG);
    until_waiters(&direct, KEY, 1).await;
    assert!(statuses.recv().await.expect("it waits").unreachable.is_none());
    proxy.break_connections();
    assert!(statuses.recv().await.expect("it still waits").unreachable.is_some());
    until_waiters(&direct, KEY, 1).await;
    direct.release(&held).await.expect("ours");
    waiting.await.expect("no panic").expect("granted");
}

/// A new request under another key would be blocked by the lease that the lost response granted, for its whole TTL.
async fn a_grant_whose_response_is_lost_is_returned_and_not_orphaned(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let (direct, proxy) = (server.client(), Proxy::before(server.address).await);
    let held = hold(&direct).await;
    let (waiting, _statuses) = waiter(server.client_at(proxy.address), LONG);
    until_waiters(&direct, KEY, 1).await;
    proxy.swallow(1);
    direct.release(&held).await.expect("ours");
    let lease = tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("before the TTL ends");
    let lease = lease.expect("no panic").expect("granted");
    assert_eq!(proxy.swallowed(), 1, "the response was lost");
    assert_eq!(live(&direct).await, [lease.granted().public_id.clone()], "one lease, which is returned");
}

async fn a_wait_longer_than_the_server_allows_lasts_for_its_block_time(protocol: Protocol) {
    let server = MtlsServer::with_acquire_block(protocol, Duration::from_secs(1)).await;
    let direct = server.client();
    let held = hold(&direct).await;
    let (block, began) = (Duration::from_secs(4), Instant::now());
    let (waiting, _statuses) = waiter(server.client(), block);
    let error = waiting.await.expect("no panic").expect_err("held all the time");
    assert!(began.elapsed() >= block, "{:?}", began.elapsed());
    assert_eq!((error.kind(), error.code()), (Kind::Held, Some(api::Code::Waiting)), "{error}");
    let status = error.timed_out_waiting().expect("it waited");
    assert_eq!((status.holder.as_deref(), status.position), (Some("operator"), Some(0)));
    assert!(status.waited >= block && status.unreachable.is_none(), "{status:?}");
    // And a waiter that is dismissed several times is granted in the end.
    let (waiting, _statuses) = waiter(server.client(), LONG);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    direct.release(&held).await.expect("ours");
    waiting.await.expect("no panic").expect("granted");
}

async fn a_request_that_does_not_wait_did_not_time_out(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let client = server.client();
    hold(&client).await;
    let error = client.acquire(KEY, &AcquireOptions::default()).await.expect_err("held");
    assert_eq!((error.kind(), error.timed_out_waiting()), (Kind::Held, None));
}

async fn a_wait_for_a_server_that_stays_away_ends_with_its_block_time(protocol: Protocol) {
    let mut server = MtlsServer::start(protocol).await;
    let client = server.client();
    server.stop().await;
    let (block, began) = (Duration::from_secs(2), Instant::now());
    let (waiting, _statuses) = waiter(client, block);
    let error = waiting.await.expect("no panic").expect_err("no server");
    assert!(began.elapsed() >= block, "{:?}", began.elapsed());
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    let status = error.timed_out_waiting().expect("it waited");
    assert!(status.unreachable.as_ref().is_some_and(|why| why.contains("refused")), "{status:?}");
}

/// Waiting does not help.
async fn a_certificate_or_protocol_that_is_refused_ends_the_wait_at_once(protocol: Protocol) {
    let (server, other) = (MtlsServer::start(protocol).await, MtlsServer::start(protocol).await);
    let plain = crate::common::Server::start().await;
    let stranger = other.client_at(server.address);
    let no_tls = server.client_at(plain.address);
    let no_http = crate::common::client(&[server.address]);
    for (client, kind) in [(stranger, Kind::Denied), (no_tls, Kind::Invalid), (no_http, Kind::Invalid)] {
        let (waiting, _statuses) = waiter(client, Duration::from_secs(3600));
        let error = tokio::time::timeout(LONG, waiting).await.expect("at once").expect("no panic");
        let error = error.expect_err("refused");
        assert_eq!((error.kind(), error.timed_out_waiting()), (kind, None), "{error}");
    }
}

async fn an_agent_is_granted_after_the_server_restarts(protocol: Protocol) {
    let mut server = MtlsServer::start(protocol).await;
    let direct = server.client();
    let intents = vec![Intent { predicate: "MUTATES".into(), object: format!("KEY:{KEY}") }];
    let manifest =
        Manifest { agent_id: "coder".into(), session_id: "s".into(), intents, ..Manifest::default() };
    // An attempt from before the conflicting lease may wait for it.
    let before = hold(&direct).await;
    let attempt_id = direct.manifest(&manifest).await.expect("a verdict").attempt_id;
    direct.release(&before).await.expect("ours");
    let held = hold(&direct).await;
    let (send, mut statuses) = mpsc::unbounded_channel();
    let on_wait = Some(WaitObserver::new(move |status: &WaitStatus| drop(send.send(status.clone()))));
    let (client, manifest) = (impatient(&server), Manifest { attempt_id, ..manifest });
    let waiting = tokio::spawn(async move { client.declare(&manifest, Wait { block: LONG, on_wait }).await });
    assert_eq!(statuses.recv().await.expect("it waits").holder.as_deref(), Some("operator"));
    server.stop().await;
    while statuses.recv().await.expect("it still waits").unreachable.is_none() {}
    server.resume().await;
    direct.release(&held).await.expect("ours");
    let outcome = waiting.await.expect("no panic").expect("a verdict");
    assert!(matches!(outcome, DeclareOutcome::Granted { .. }), "{outcome:?}");
}

over_all_protocols! {
    a_waiter_is_granted_after_the_server_restarts
    a_waiter_goes_on_when_its_connection_breaks
    a_grant_whose_response_is_lost_is_returned_and_not_orphaned
    a_wait_longer_than_the_server_allows_lasts_for_its_block_time
    a_request_that_does_not_wait_did_not_time_out
    a_wait_for_a_server_that_stays_away_ends_with_its_block_time
    a_certificate_or_protocol_that_is_refused_ends_the_wait_at_once
    an_agent_is_granted_after_the_server_restarts
}
