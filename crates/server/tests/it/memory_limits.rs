//! Limits in bytes over HTTP: a client that asks for too much is refused with the limit's name, others are served, and
//! no response is built longer than its bound.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, request};
use axum::{Extension, Router};
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use identity::{Rights, Role};
use kernel::Identity;
use lockd_server::backend::memory_plan::Share;
use lockd_server::backend::shards::RequestLimits;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{self, within};

/// The names of a large bundle, each 500 bytes long.
fn long_names(prefix: &str, predicate: &str) -> Value {
    let member = |n: usize| json!({"kind": "KEY", "name": format!("{prefix}-{n:03}-{}", "x".repeat(490)), "predicate": predicate});
    (0..128).map(member).collect()
}

fn large(prefix: &str) -> Value {
    json!({"resources": long_names(prefix, "MUTATES"), "ttl_seconds": 300})
}

/// A server with little memory, for several clients.
struct SmallServer {
    server: Server,
    dir: tempfile::TempDir,
}

impl SmallServer {
    fn start() -> SmallServer {
        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreUrl::disk(dir.path().join("store"));
        let config = Config { mtls: false, store, memory_max: 64 << 20, ..Config::in_directory(dir.path()) };
        SmallServer { server: Server::new(config).expect("a store"), dir }
    }

    fn router_of(&self, name: &str) -> Router {
        let rights = Rights::new(["*:rw".parse().expect("rights")]).expect("rights");
        let identity = Identity::new(name).expect("a name");
        let peer = Peer { identity, rights: rights.into(), ..Peer::anonymous(Role::Worker) };
        self.server.router().layer(Extension(peer))
    }

    async fn post(&self, name: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = Request::post(path).body(Body::from(body.to_string())).expect("a request");
        send(self.router_of(name), request).await
    }

    async fn acquire(&self, name: &str, key: &str) -> String {
        let (status, lease) = self.post(name, "/v1/acquire", &json!({"key": key, "ttl_seconds": 300})).await;
        assert_eq!(status, 200, "{lease}");
        lease["lease_id"].as_str().expect("a credential").to_string()
    }

    fn blobs(&self) -> usize {
        let mut found = Vec::new();
        crate::uploads::collect(&self.dir.path().join("store/blob"), &mut found);
        found.len()
    }

    /// Begins an upload of a long document, and never ends it.
    fn begin_upload(&self, name: &str, key: &str, lease: &str) -> tokio::task::JoinHandle<(u16, Value)> {
        let request = Request::post(format!("/v1/update_state?key={key}")).header("x-lease-id", lease);
        self.begin(name, request)
    }

    /// Sends a megabyte of a body, and never the rest.
    fn begin(&self, name: &str, request: request::Builder) -> tokio::task::JoinHandle<(u16, Value)> {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let request = request.body(Body::new(body)).expect("a request");
        let router = self.router_of(name);
        tokio::spawn(async move {
            let sending = async {
                // Refused uploads are not read to their end.
                let _ = sender.send_data(format!("[\"{}\"", "x".repeat(1 << 20)).into()).await;
                std::future::pending::<()>().await;
            };
            tokio::select! { reply = send(router, request) => reply, () = sending => unreachable!() }
        })
    }
}

async fn send(router: Router, request: Request<Body>) -> (u16, Value) {
    let response = router.oneshot(request).await.expect("no error of its own");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 8 << 20).await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn is_limit(reply: &(u16, Value), status: u16, code: &str, name: &str) -> bool {
    let detail = reply.1["detail"].as_str().unwrap_or_default();
    reply.0 == status && reply.1["error"] == code && detail.contains(&format!("limit={name} max="))
}

/// One worker acquired bundles of 128 long names until the process was killed for lack of memory.
#[tokio::test]
async fn leases_of_one_identity_have_a_limit_of_bytes() {
    let server = SmallServer::start();
    let mut refused = None;
    for n in 0..200 {
        let reply = server.post("ada", "/v1/acquire", &large(&format!("a{n}"))).await;
        if reply.0 != 200 {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("a limit");
    assert!(is_limit(&refused, 429, "quota_exceeded", "lease_bytes_per_identity_max"), "{refused:?}");
    server.acquire("bob", "k").await;
}

#[tokio::test]
async fn leases_of_all_identities_have_a_limit_of_bytes() {
    let server = SmallServer::start();
    let mut refused = None;
    'all: for identity in ["a", "b", "c", "d"] {
        for n in 0..200 {
            let reply = server.post(identity, "/v1/acquire", &large(&format!("{identity}{n}"))).await;
            match reply.0 {
                200 => {}
                429 => break,
                _ => {
                    refused = Some(reply);
                    break 'all;
                }
            }
        }
    }
    let refused = refused.expect("a limit");
    assert!(is_limit(&refused, 503, "unavailable", "lease_bytes_max"), "{refused:?}");
}

/// A credential of another identity was enough to store 100 MB, and to keep them.
#[tokio::test]
async fn an_upload_under_the_lease_of_another_identity_stores_nothing() {
    let server = SmallServer::start();
    let lease = server.acquire("ada", "k").await;
    let reply = within("it is refused", server.begin_upload("mallory", "k", &lease)).await.expect("a reply");
    assert_eq!((reply.0, &reply.1["error"]), (403, &json!("not_held")), "{reply:?}");
    assert_eq!(server.blobs(), 0);
    let reply = within("it is refused", server.begin_upload("ada", "other", &lease)).await.expect("a reply");
    assert_eq!((reply.0, &reply.1["error"]), (403, &json!("not_held")), "{reply:?}");
    server.post("ada", "/v1/release", &json!({"lease_id": lease})).await;
    let reply = within("it is refused", server.begin_upload("ada", "k", &lease)).await.expect("a reply");
    assert_eq!((reply.0, &reply.1["error"]), (403, &json!("not_held")), "{reply:?}");
    assert_eq!(server.blobs(), 0);
}

/// Only the bodies of documents were counted: hundreds of requests that sent two megabytes of JSON each, and never the
/// rest, occupied hundreds of megabytes.
#[tokio::test]
async fn bodies_that_never_end_have_a_limit_of_bytes() {
    let server = SmallServer::start();
    for path in ["/v1/leases/heartbeat", "/v1/manifest", "/v1/acquire"] {
        let first = server.begin("ada", Request::post(path));
        let second = server.begin("ada", Request::post(path));
        let refused = within("one of them is refused", async {
            tokio::select! { reply = first => reply, reply = second => reply }
        });
        let refused = refused.await.expect("a reply");
        let name = "request_body_bytes_per_identity_max";
        assert!(is_limit(&refused, 429, "quota_exceeded", name), "{path}: {refused:?}");
        server.acquire("bob", path).await;
    }
}

/// 150 uploads at once on one connection occupied 120 MB, and as many files.
#[tokio::test]
async fn uploads_of_one_identity_have_a_limit_of_bytes() {
    let server = SmallServer::start();
    let lease = server.acquire("ada", "k").await;
    let mut uploads = Vec::new();
    let refused = loop {
        let before = server.blobs();
        let mut upload = server.begin_upload("ada", "k", &lease);
        let begun = async {
            while server.blobs() == before {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            reply = &mut upload => break reply.expect("a reply"),
            () = within("it begins or is refused", begun) => uploads.push(upload),
        }
        assert!(uploads.len() < 50, "no limit");
    };
    assert!(is_limit(&refused, 429, "quota_exceeded", "request_body_bytes_per_identity_max"), "{refused:?}");
    let lease = server.acquire("bob", "b").await;
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let request = Request::post("/v1/update_state?key=b").header("x-lease-id", lease);
    let other =
        tokio::spawn(send(server.router_of("bob"), request.body(Body::new(body)).expect("a request")));
    sender.send_data(format!("[\"{}\"]", "x".repeat(1 << 20)).into()).await.expect("it is read");
    drop(sender);
    assert_eq!(within("another identity writes", other).await.expect("a reply").0, 200);
    for upload in uploads {
        upload.abort();
    }
}

/// Responses that a client did not read occupied memory without a limit: 10 requests, a gigabyte.
#[tokio::test]
async fn responses_of_one_identity_have_a_limit_of_bytes() {
    let share = Share { all: 4 << 20, per_identity: 2 << 20 };
    let limits = RequestLimits { responses: share, ..RequestLimits::default() };
    let server = support::Server::with_limits(limits);
    let (ada, bob) = (server.worker("ada", "default:rwp"), server.worker("bob", "default:rwp"));
    let lease = ada.acquire(json!({"key": "k", "ttl_seconds": 300})).await;
    let document = format!("[\"{}\"]", "x".repeat(1 << 20));
    let headers = [support::header("x-lease-id", lease["lease_id"].as_str().expect("a credential"))];
    assert_eq!(ada.post("/v1/update_state?key=k", &headers, &document).await.0, 200);
    let mut unread = Vec::new();
    let refused = loop {
        let response = ada.unread_get("/v1/get_state?key=k&public=1").await;
        if response.status() != 200 {
            break response;
        }
        unread.push(response);
        assert!(unread.len() < 10, "no limit");
    };
    assert_eq!((refused.status().as_u16(), unread.len()), (429, 2));
    assert_eq!(bob.unread_get("/v1/get_state?key=k&public=1").await.status(), 200);
    unread.clear();
    assert_eq!(ada.unread_get("/v1/get_state?key=k&public=1").await.status(), 200);
}

/// A reconcile of one credential a thousand times, over a lease with long names, was a response of 73 MB.
#[tokio::test]
async fn a_reconcile_is_cut_by_bytes() {
    let server = support::Server::start();
    let lease = server.acquire(large("r")).await;
    let ids: Vec<&Value> = std::iter::repeat_n(&lease["lease_id"], 1000).collect();
    let body = json!({"lease_ids": ids}).to_string();
    let response = server.unread("/v1/leases/reconcile", &body).await;
    let body = to_bytes(response.into_body(), 13 << 20).await.expect("a bounded body");
    let results: Value = serde_json::from_slice(&body).expect("JSON");
    let results = results["results"].as_array().expect("results");
    let shown = results.iter().filter(|result| result["ok"] == true).count();
    assert!((10..200).contains(&shown), "{shown} leases in {} bytes", body.len());
    assert_eq!(results[999]["error"], "throttled", "the rest is left out, and says so");
}

/// The response was built whole: twelve megabytes in memory, and a thread of the server busy with nothing else.
#[tokio::test]
async fn a_reconcile_is_sent_in_parts_and_counts_until_it_is_read() {
    let share = Share { all: 4 << 20, per_identity: 3 << 19 };
    let limits = RequestLimits { responses: share, ..RequestLimits::default() };
    let server = support::Server::with_limits(limits);
    let lease = server.acquire(large("p")).await;
    let ids: Vec<&Value> = std::iter::repeat_n(&lease["lease_id"], 100).collect();
    let body = json!({"lease_ids": ids}).to_string();
    let first = server.unread("/v1/leases/reconcile", &body).await;
    let second = server.unread("/v1/leases/reconcile", &body).await;
    let refused = server.unread("/v1/leases/reconcile", &body).await;
    assert_eq!(
        (first.status().as_u16(), second.status().as_u16(), refused.status().as_u16()),
        (200, 200, 429)
    );
    drop((second, refused));
    let (mut body, mut longest, mut frames, mut json) = (first.into_body(), 0, 0, Vec::new());
    while let Some(frame) = within("the next part", body.frame()).await {
        let data = frame.expect("a body").into_data().expect("data");
        (longest, frames) = (longest.max(data.len()), frames + 1);
        json.extend_from_slice(&data);
    }
    let results: Value = serde_json::from_slice(&json).expect("JSON");
    let results = results["results"].as_array().expect("results");
    assert!(results.len() == 100 && results.iter().all(|result| result["valid"] == true));
    assert!(longest < 256 << 10 && frames > 20, "{frames} parts of up to {longest} bytes");
}

/// A page of leases with long names was 73 MB.
#[tokio::test]
async fn a_list_of_leases_is_paged_by_bytes() {
    let server = support::Server::start();
    for n in 0..40 {
        server.acquire(large(&format!("l{n}"))).await;
    }
    let (mut cursor, mut seen, mut pages) = (String::new(), 0, 0);
    loop {
        let path = format!("/v1/leases?limit=1000{cursor}");
        let body =
            to_bytes(server.unread_get(&path).await.into_body(), 2 << 20).await.expect("a bounded page");
        let page: Value = serde_json::from_slice(&body).expect("JSON");
        seen += page["leases"].as_array().map_or(0, Vec::len);
        pages += 1;
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, 40, "every lease is on one page");
    assert!(pages > 1, "one page");
}

#[tokio::test]
async fn contention_is_cut_by_bytes() {
    let server = support::Server::start();
    let _held = server.acquire(large("c")).await;
    let mut waiting = Vec::new();
    for n in 0..40 {
        let (waiter, body) = (server.worker(&format!("w{n}"), "default:rw"), large("c"));
        let mut body = body;
        body["block_seconds"] = json!(60);
        waiting.push(tokio::spawn(async move { waiter.unread("/v1/acquire", &body.to_string()).await }));
    }
    let described = server.until("/v1/contention", |body| body["more"] == true).await;
    let shown = described["waiting"].as_array().map_or(0, Vec::len);
    assert!((5..40).contains(&shown) && described.to_string().len() < 2 << 20, "{shown}");
    for waiter in waiting {
        waiter.abort();
    }
}
