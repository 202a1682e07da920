//! `/readyz`: 200 while leases can be granted durably, 503 with the reason otherwise.

use axum::Extension;
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};

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
    server.shutdown().await;
    assert_eq!(log_lines::containing(&full).len(), 1, "each change is logged once");
}
