//! Requests whose futures are dropped, or that must be answered without waiting for the client.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::{Extension, Router};
use http_body_util::channel::Channel;
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::embedding::ask;
use crate::support::slow_store::SlowStore;
use crate::support::within;

fn mounted(server: &Server) -> Router {
    server.router().layer(Extension(Peer::anonymous(Role::Operator)))
}

/// A reply was in its channel, and counted as delivered, when the request's future was dropped before it was polled
/// again: no response carried the lease, and its key was blocked for a TTL.
#[tokio::test]
async fn a_grant_whose_reply_arrived_and_was_not_read_is_undone() {
    let store = SlowStore::default();
    let config = Config { store: StoreUrl::new(store.clone()), ..Config::in_memory() };
    let server = Server::new(config).expect("a store in memory");
    let router = mounted(&server);
    store.delay(Duration::from_millis(100));
    let opened_at = store.appended_at_unix_ms();
    let body = Body::from(json!({"key": "k", "ttl_seconds": 300}).to_string());
    let request = Request::post("/v1/acquire").body(body).expect("a request");
    let mut abandoned: Pin<Box<_>> = Box::pin(router.clone().oneshot(request));
    let submit = async {
        while store.appended_at_unix_ms() == opened_at {
            assert!(abandoned.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    within("the grant is decided", submit).await;
    // Queries are answered after the replies that were decided before them.
    let (_, leases) = ask(&router, "GET", "/v1/leases", &Value::Null).await;
    assert_eq!(leases["leases"][0]["state"], json!("active"), "the reply is in its channel");
    drop(abandoned);
    let freed = async {
        while ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the key is free again", freed).await;
}

/// A document that was declared too long was answered only after a second of reading on. The future is polled without its
/// runtime, so that no timer can fire: the response depends on nothing but the head.
#[tokio::test]
async fn a_document_that_is_declared_too_long_is_refused_at_once() {
    let router = mounted(&Server::new(Config { json_max: 10, ..Config::in_memory() }).expect("memory"));
    let (_, lease) = ask(&router, "POST", "/v1/acquire", &json!({"key": "k"})).await;
    let (_sender, body) = Channel::<Bytes>::new(1);
    let request = Request::post("/v1/update_state?key=k")
        .header("x-lease-id", lease["lease_id"].as_str().expect("text"))
        .header("content-length", "11")
        .body(Body::new(body));
    let mut upload = Box::pin(router.oneshot(request.expect("a request")));
    let mut context = Context::from_waker(Waker::noop());
    let found = (0..100).find_map(|_| match upload.as_mut().poll(&mut context) {
        Poll::Ready(response) => Some(response.expect("it always answers").status().as_u16()),
        Poll::Pending => None,
    });
    assert_eq!(found, Some(413));
}
