//! A server embedded in another program: configured, started, mounted, stopped.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::{Extension, Router};
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server, StartError};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::slow_store::SlowStore;
use crate::support::within;

pub(crate) async fn ask(router: &Router, method: &str, path: &str, body: &Value) -> (u16, Value) {
    ask_with(router, method, path, &[], body).await
}

pub(crate) async fn ask_with(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> (u16, Value) {
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body).expect("a request");
    let response = router.clone().oneshot(request).await.expect("no error of its own");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn on_disk(dir: &std::path::Path) -> Config {
    Config {
        listen: "127.0.0.1:0".into(),
        mtls: false,
        unix: Some(dir.join("socket")),
        store: StoreUrl::disk(dir.join("store")),
        ..Config::in_directory(dir)
    }
}

#[tokio::test]
async fn a_store_is_unlocked_when_the_server_and_its_routers_are_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut server = Server::new(on_disk(dir.path())).expect("a store");
    let address = server.start().await.expect("a port");
    assert!(matches!(server.start().await, Err(StartError::Started)));
    assert!(tokio::net::TcpStream::connect(address).await.is_ok());
    assert!(tokio::net::UnixStream::connect(dir.path().join("socket")).await.is_ok());
    let router = server.router().layer(Extension(Peer::anonymous(Role::Worker)));
    let (status, lease) = ask(&router, "POST", "/v1/acquire", &json!({"key": "k", "ttl_seconds": 300})).await;
    assert_eq!(status, 200, "{lease}");

    server.shutdown().await.expect("the store closes");
    assert!(!dir.path().join("socket").exists());
    // A router that still exists keeps the store locked, and grants nothing.
    assert!(matches!(Server::new(on_disk(dir.path())), Err(StartError::Store(_))));
    let (status, reply) =
        ask(&router, "POST", "/v1/acquire", &json!({"key": "other", "ttl_seconds": 1})).await;
    assert_eq!((status, &reply["error"]), (503, &json!("draining")));
    drop(router);

    let again = Server::new(on_disk(dir.path())).expect("nobody has it any more");
    let router = again.router().layer(Extension(Peer::anonymous(Role::Worker)));
    let (status, reply) = ask(&router, "GET", "/v1/describe?key=k", &Value::Null).await;
    assert_eq!((status, &reply["lease_id"]), (200, &lease["public_id"]));
}

/// `--unix PATH` deleted whatever was at that path: a mistyped path cost a file.
#[tokio::test]
async fn a_unix_socket_replaces_the_socket_of_a_dead_server_and_no_other_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("precious");
    let config = || Config { unix: Some(path.clone()), ..Config::in_memory() };
    std::fs::write(&path, "data").expect("writable");
    let mut server = Server::new(config()).expect("memory");
    let error = server.start().await.expect_err("a file is in its place");
    assert!(matches!(&error, StartError::Listen(at, _) if at.ends_with("precious")), "{error}");
    server.shutdown().await.expect("the store closes");
    assert_eq!(std::fs::read_to_string(&path).expect("it is still there"), "data");
    std::fs::remove_file(&path).expect("ours");

    drop(std::os::unix::net::UnixListener::bind(&path).expect("the socket of a server that died"));
    let mut server = Server::new(config()).expect("memory");
    server.start().await.expect("it is replaced");
    assert!(tokio::net::UnixStream::connect(&path).await.is_ok());
    server.shutdown().await.expect("the store closes");
    assert!(!path.exists(), "it is removed");
}

#[test]
fn an_invalid_config_does_not_start() {
    let config = Config { default_ttl: Duration::ZERO, ..Config::in_memory() };
    assert!(matches!(Server::new(config), Err(StartError::Config(error)) if error.setting == "default-ttl"));
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config { bundle: Some(dir.path().join("none.pem")), ..Config::in_directory(dir.path()) };
    assert!(matches!(Server::new(config), Err(StartError::Identity(_))));
}

/// Every setting takes effect.
#[tokio::test]
async fn settings_are_in_force() {
    let config = Config {
        default_ttl: Duration::from_secs(7),
        max_ttl: Duration::from_secs(9),
        json_max: 10,
        max_leases_per_identity: 1,
        ..Config::in_memory()
    };
    let server = Server::new(config).expect("memory");
    let router = server.router().layer(Extension(Peer::anonymous(Role::Worker)));
    let (_, lease) = ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await;
    assert_eq!(lease["ttl_ms"], 7000, "{lease}");
    let (_, reply) = ask(&router, "POST", "/v1/acquire", &json!({"key": "k", "ttl_seconds": 10})).await;
    assert_eq!(reply["error"], "invalid_ttl");
    let (_, reply) = ask(&router, "POST", "/v1/acquire", &json!({"key": "l"})).await;
    assert_eq!(reply["error"], "quota_exceeded");
    let long = Request::post("/v1/update_state?key=k")
        .header("x-lease-id", lease["lease_id"].as_str().expect("text"));
    let response =
        router.clone().oneshot(long.body(Body::from(r#"{"longer":true}"#)).expect("a request")).await;
    assert_eq!(response.expect("an answer").status(), 413);
}

/// The last append of a store hung. The server waited for it for ever, and only SIGKILL ended it.
#[tokio::test]
async fn a_store_that_does_not_close_ends_the_shutdown_with_an_error() {
    let store = SlowStore::default();
    let config =
        Config { store: StoreUrl::new(store.clone()), drain_timeout: Duration::ZERO, ..Config::in_memory() };
    let mut server = Server::new(config).expect("a store in memory");
    server.start().await.expect("a port");
    let router = server.router().layer(Extension(Peer::anonymous(Role::Worker)));
    store.delay(Duration::from_secs(3600));
    let request =
        tokio::spawn(async move { ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await });
    within("the append hangs", async {
        while store.appending() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    request.abort();
    let timeout = within("it gives up", server.shutdown()).await.expect_err("the store is still open");
    assert!(timeout.to_string().contains("did not complete its last append"), "{timeout}");
    store.delay(Duration::ZERO);
}
