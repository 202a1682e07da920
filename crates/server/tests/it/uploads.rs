//! Uploads of long documents to disk that fail: nothing is committed, and no files are left.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::Request;
use axum::{Extension, Router};
use http_body_util::channel::{Channel, Sender};
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::support::within;

/// Far above the limit for documents in the log.
const PART: usize = 1 << 20;

struct OnDisk {
    dir: tempfile::TempDir,
    router: Router,
    _server: Server,
}

impl OnDisk {
    fn start() -> OnDisk {
        let dir = tempfile::tempdir().expect("a directory");
        let store = StoreUrl::disk(dir.path().join("store"));
        let config = Config { mtls: false, store, ..Config::in_directory(dir.path()) };
        let server = Server::new(config).expect("a store");
        let router = server.router().layer(Extension(Peer::anonymous(Role::Operator)));
        OnDisk { dir, router, _server: server }
    }

    async fn ask(&self, request: Request<Body>) -> (u16, Value) {
        send(self.router.clone(), request).await
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask(Request::post(path).body(Body::from(body.to_string())).expect("a request")).await
    }

    async fn acquire(&self, ttl_ms: u64) -> String {
        let (status, reply) = self.post("/v1/acquire", &json!({"key": "k", "ttl_ms": ttl_ms})).await;
        assert_eq!(status, 200, "{reply}");
        reply["lease_id"].as_str().expect("a credential").to_string()
    }

    /// Sends the first part of a document, and returns once it is in a file.
    async fn begin(&self, lease: &str) -> Upload {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let request = Request::post("/v1/update_state?key=k").header("x-lease-id", lease);
        let request = request.body(Body::new(body)).expect("a request");
        let answer = tokio::spawn(send(self.router.clone(), request));
        sender.send_data(format!("[\"{}\"", "x".repeat(PART)).into()).await.expect("it is read");
        within("a file is created", self.until_files(|files| !files.is_empty())).await;
        Upload { sender, answer }
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect(&self.dir.path().join("store").join("blob"), &mut files);
        files
    }

    /// There is no document, and no file once the writer has noticed.
    async fn has_nothing(&self) {
        let read = Request::get("/v1/get_state?key=k&public=1").body(Body::empty()).expect("a request");
        assert_eq!(self.ask(read).await, (204, Value::Null));
        within("all files are removed", self.until_files(<[PathBuf]>::is_empty)).await;
    }

    async fn until_files(&self, condition: impl Fn(&[PathBuf]) -> bool) {
        while !condition(&self.files()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

struct Upload {
    sender: Sender<Bytes>,
    answer: JoinHandle<(u16, Value)>,
}

impl Upload {
    /// Sends the rest of the document.
    async fn end(mut self, rest: &'static str) -> (u16, Value) {
        // The server no longer reads a body that it refused.
        let _ = self.sender.send_data(Bytes::from_static(rest.as_bytes())).await;
        drop(self.sender);
        within("the upload is answered", self.answer).await.expect("a response")
    }
}

async fn send(router: Router, request: Request<Body>) -> (u16, Value) {
    let response = router.oneshot(request).await.expect("no error of its own");
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

pub(crate) fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            collect(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

#[tokio::test]
async fn a_document_that_arrives_completely_is_committed() {
    let server = OnDisk::start();
    let lease = server.acquire(300_000).await;
    let (status, reply) = server.begin(&lease).await.end(",1]").await;
    assert_eq!((status, &reply["bytes"]), (200, &json!(PART + 6)), "{reply}");
    assert_eq!(server.files().len(), 1, "{:?}", server.files());
}

#[tokio::test]
async fn an_upload_whose_lease_is_released_midway_is_refused_at_its_commit() {
    let server = OnDisk::start();
    let lease = server.acquire(300_000).await;
    let upload = server.begin(&lease).await;
    assert_eq!(server.post("/v1/release", &json!({"lease_id": lease})).await.0, 200);
    let (status, reply) = upload.end(",1]").await;
    assert_eq!((status, &reply["error"]), (403, &json!("not_held")), "{reply}");
    server.has_nothing().await;
}

#[tokio::test]
async fn an_upload_whose_lease_expires_midway_is_refused_at_its_commit() {
    let server = OnDisk::start();
    let lease = server.acquire(500).await;
    let upload = server.begin(&lease).await;
    // The next grant proves that the first lease has expired.
    let next = json!({"key": "k", "ttl_ms": 300_000, "block_seconds": 60});
    assert_eq!(server.post("/v1/acquire", &next).await.0, 200);
    let (status, reply) = upload.end(",1]").await;
    assert_eq!((status, &reply["error"]), (403, &json!("lease_expired")), "{reply}");
    server.has_nothing().await;
}

#[tokio::test]
async fn an_upload_whose_client_disconnects_leaves_no_files() {
    let server = OnDisk::start();
    let lease = server.acquire(300_000).await;
    let upload = server.begin(&lease).await;
    upload.answer.abort();
    server.has_nothing().await;
    // The key can still be written.
    assert_eq!(server.begin(&lease).await.end("]").await.0, 200);
}

#[tokio::test]
async fn an_upload_that_is_not_json_is_refused_with_the_position() {
    let server = OnDisk::start();
    let lease = server.acquire(300_000).await;
    let (status, reply) = server.begin(&lease).await.end(",]").await;
    assert_eq!((status, &reply["error"]), (400, &json!("invalid_json")), "{reply}");
    let detail = reply["detail"].as_str().expect("words");
    assert!(detail.contains(&(PART + 4).to_string()), "{detail}");
    server.has_nothing().await;
}
