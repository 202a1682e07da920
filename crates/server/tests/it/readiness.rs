//! `/readyz`: 200 while leases can be granted durably, 503 with the reason otherwise.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use axum::{Extension, Router};
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};
use store::disk::{DiskDir, LogOptions, StoreFile};
use store::frame::SEGMENT_HEADER;
use store::{LogStore, LsnRange};

use crate::embedding::ask;
use crate::support;
use crate::support::slow_store::SlowStore;
use crate::support::{log_lines, within};

/// `/readyz` could answer 200 at all times, and no test failed.
#[tokio::test]
async fn a_server_is_ready_until_it_drains() {
    let server = support::Server::start();
    assert_eq!(server.get("/readyz").await, (200, json!({"ready": true})));
    server.drain();
    assert_eq!(server.get("/readyz").await, (503, json!({"ready": false, "reason": "draining"})));
}

#[tokio::test]
async fn a_server_whose_disk_is_full_is_not_ready_until_there_is_space_again() {
    let store = SlowStore::default();
    let config = Config { store: StoreUrl::new(store.clone()), ..Config::in_memory() };
    let server = Server::new(config).expect("a store in memory");
    let router = server.router().layer(Extension(Peer::anonymous(Role::Operator)));
    store.set_full(true);
    // Space is reserved after an append.
    ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await;
    let until = async |expected: u16| loop {
        let (status, reply) = ask(&router, "GET", "/readyz", &Value::Null).await;
        if status == expected {
            return reply;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    let reply = within("it is not ready", until(503)).await;
    assert_eq!(reply["ready"], json!(false));
    assert!(reply["reason"].as_str().is_some_and(|reason| reason.starts_with("shard 0: ")), "{reply}");
    store.set_full(false);
    within("it is ready again", until(200)).await;
}

/// On a disk that was too small or full the server logged nothing: only `/readyz` told.
#[tokio::test]
async fn a_change_of_log_space_is_logged() {
    log_lines::collect();
    let store = SlowStore::default();
    let config = Config { store: StoreUrl::new(store.clone()), ..Config::in_memory() };
    let mut server = Server::new(config).expect("a store in memory");
    server.start().await.expect("a port");
    let router = server.router().layer(Extension(Peer::anonymous(Role::Operator)));
    let logged = async |texts: &[&str]| {
        while log_lines::containing(texts).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    store.set_full(true);
    ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await;
    let full = ["WARN", "log space", "space=Reserve", "shard=0", "planned to fail before Reserve"];
    within("the shortage is logged", logged(&full)).await;
    store.set_full(false);
    within("its end is logged", logged(&["WARN", "log space", "space=Plenty", "shard=0"])).await;
    drop(router);
    server.shutdown().await.expect("the store closes");
    assert_eq!(log_lines::containing(&full).len(), 1, "each change is logged once");
}

/// A server over the store in a directory, and its router for an operator.
fn on_disk(dir: &Path) -> (Server, Router) {
    let server = Server::new(Config { mtls: false, ..Config::in_directory(dir) }).expect("a store");
    let router = server.router().layer(Extension(Peer::anonymous(Role::Operator)));
    (server, router)
}

async fn readiness(router: &Router) -> Value {
    ask(router, "GET", "/readyz", &Value::Null).await.1
}

/// The value of the counter of torn tails.
async fn torn_total(router: &Router) -> String {
    let request = axum::http::Request::get("/metrics").body(axum::body::Body::empty()).expect("valid");
    let response = tower::ServiceExt::oneshot(router.clone(), request).await.expect("infallible");
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    let text = String::from_utf8(body.to_vec()).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix("lockd_log_torn_total "));
    line.expect("the counter").to_string()
}

/// Appends a batch, and erases a sector of it: as a power failure in the middle of the append leaves it.
fn tear(dir: &Path) -> PathBuf {
    let key = std::fs::read(dir.join("store/store.key")).expect("a key").try_into().expect("32 bytes");
    let unused = StoreFile { store_id: 0, shards: 1 };
    let store = DiskDir::open(&dir.join("store"), unused, &key, true).expect("a sound store");
    let (mut log, _) = store.log(0, LogOptions::SEGMENT_BYTES).expect("a sound log");
    log.append(log.bounds().next, LsnRange::new(u64::MAX - 2, u64::MAX - 1), &[7; 2000]).expect("space");
    let segment = dir.join("store/log/0/0000000000000000.seg");
    let bytes = std::fs::read(&segment).expect("readable");
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("a frame");
    let file = std::fs::File::options().write(true).open(&segment).expect("writable");
    file.write_all_at(&[0; 512], (last as u64 - 600).next_multiple_of(512) - 512).expect("writable");
    segment
}

/// What a start cut off a log was a line of its log and no more: an operator who came later had no place to look, and the
/// counter could have been 0 without a test that noticed.
#[tokio::test]
async fn a_torn_tail_that_the_start_cut_is_shown_and_counted_until_the_next_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let (server, router) = on_disk(dir.path());
    ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await;
    assert_eq!(readiness(&router).await, json!({"ready": true}));
    assert_eq!(torn_total(&router).await, "0");
    drop(router);
    server.shutdown().await.expect("the store closes");
    let segment = tear(dir.path());

    let (server, router) = on_disk(dir.path());
    let body = readiness(&router).await;
    let [torn] = body["torn_tails"].as_array().expect("torn tails").as_slice() else { panic!("{body}") };
    assert_eq!((&body["ready"], &torn["shard"]), (&json!(true), &json!(0)));
    assert_eq!(torn["file"], json!(segment));
    assert!(torn["offset"].as_u64().is_some_and(|offset| offset > SEGMENT_HEADER as u64), "{torn}");
    assert!(torn["batch"].as_u64().is_some_and(|batch| batch > 0), "{torn}");
    assert_eq!((&torn["first_lsn"], &torn["last_lsn"]), (&json!(u64::MAX - 2), &json!(u64::MAX - 1)));
    assert_eq!(torn_total(&router).await, "1");
    drop(router);
    server.shutdown().await.expect("the store closes");
    let (_server, router) = on_disk(dir.path());
    assert_eq!(readiness(&router).await, json!({"ready": true}), "it was cut by the start before");
    assert_eq!(torn_total(&router).await, "0");
}
