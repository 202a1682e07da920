//! The client over mTLS.

use lockd_client::{AcquireOptions, Client, Conditions, Kind};

use crate::common::{MtlsServer, Protocol, over_all_protocols, until_waiters, unused_address};

#[path = "../../../../examples/checkpoint.rs"]
#[allow(dead_code, reason = "its `main`")]
mod checkpoint;

/// The first example of the crate's documentation.
async fn an_address_and_an_identity_file_are_all_it_takes(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let client = Client::connect(&server.url(), server.identity_file()).await.expect("it listens");
    let lease = client.acquire("orders", &AcquireOptions::default()).await.expect("free");
    let committed = lease.update_state(r#"{"cursor": 41}"#, &Conditions::default()).await.expect("held");
    assert!(committed.new_version > 0 && lease.fencing_token() > 0);
    lease.release().await.expect("ours");
    let described = client.describe("orders", None).await.expect("known");
    assert_eq!((described.owner, described.version), (None, committed.new_version));
}

async fn connect_fails_without_a_server_and_without_a_certificate_that_it_accepts(protocol: Protocol) {
    let (server, other) = (MtlsServer::start(protocol).await, MtlsServer::start(protocol).await);
    let nobody = format!("https://{}", unused_address().await);
    let error = Client::connect(&nobody, server.identity_file()).await.err().expect("no server");
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    let error = Client::connect(&server.url(), other.identity_file()).await.err().expect("another CA");
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    let error = Client::connect(&server.url(), "/nowhere/client.pem").await.err().expect("no file");
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

/// The second example of the crate's documentation.
async fn work_under_a_lease_hands_its_checkpoint_to_the_next(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let client = Client::connect(&server.url(), server.identity_file()).await.expect("it listens");
    let options = AcquireOptions { block: std::time::Duration::from_secs(60), ..AcquireOptions::default() };
    for expected in [None, Some(br#"{"step":"done"}"#.as_slice())] {
        let worked = client.with_lease("orders", &options, async |lease| {
            assert_eq!(lease.read_state().await?.document.as_deref(), expected);
            lease.update_state(r#"{"step": "done"}"#, &Conditions::default()).await
        });
        worked.await.expect("not lost").expect("committed");
    }
}

async fn the_example_counts_on_where_the_last_run_stopped(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let identity = server.identity_file();
    for run in 1..=3 {
        let count = checkpoint::count(&server.url(), identity.to_str().expect("UTF-8")).await;
        assert_eq!(count.expect("one worker at a time"), run);
    }
}

/// With HTTP/2 and in frames all requests share one connection; with HTTP/1.1 each request in progress has its own.
async fn the_protocol_is_the_one_that_was_chosen(protocol: Protocol) {
    let server = MtlsServer::start(protocol).await;
    let (client, direct) = (server.client(), server.client());
    client.alive().await.expect("it runs");
    let held = direct.acquire("orders", &AcquireOptions::default()).await.expect("free");
    let options = AcquireOptions { block: std::time::Duration::from_secs(60), ..AcquireOptions::default() };
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (client, options) = (client.clone(), options.clone());
            tokio::spawn(async move { client.acquire("orders", &options).await.map(drop) })
        })
        .collect();
    until_waiters(&direct, "orders", 4).await;
    let metrics = direct.metrics().await.expect("an operator");
    let open = metrics.lines().find_map(|line| line.strip_prefix("lockd_connections ")).expect("a metric");
    let open: u64 = open.parse().expect("a number");
    let is_expected = match protocol {
        Protocol::Http1 => open >= 5,
        Protocol::Http2 => open == 2,
        // Of each client one for frames, and one for health checks and metrics.
        Protocol::Stream => open == 4,
    };
    assert!(is_expected, "{open} connections of two clients");
    held.release().await.expect("ours");
    for waiting in waiting {
        waiting.await.expect("no panic").expect("one after the other");
    }
}

over_all_protocols! {
    the_protocol_is_the_one_that_was_chosen
    an_address_and_an_identity_file_are_all_it_takes
    connect_fails_without_a_server_and_without_a_certificate_that_it_accepts
    work_under_a_lease_hands_its_checkpoint_to_the_next
    the_example_counts_on_where_the_last_run_stopped
}
