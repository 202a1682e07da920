//! Stores of format 1 are converted when they are opened: every lease, document, holder and idempotency entry is found,
//! and found again after the next start.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::{Extension, Router};
use identity::Role;
use lockd_server::backend::store::StoreUrl;
use lockd_server::peer::Peer;
use lockd_server::{Config, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/format-1");

/// A copy of a fixture as the build of format 1 left it.
fn unpack(name: &str) -> (TempDir, Value) {
    let dir = tempfile::tempdir().expect("a directory");
    let from = Path::new(FIXTURES).join(name);
    copy(&from, &dir.path().join("store"));
    let expected = fs::read(from.join("expected.json")).expect("a list of what is in it");
    (dir, serde_json::from_slice(&expected).expect("JSON"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    // The test's temporary directory, the store and what is in it.
    for dir in to.ancestors().take(2) {
        let _ = fs::set_permissions(dir, Permissions::from_mode(0o700));
    }
    for entry in fs::read_dir(from).expect("readable") {
        let (from, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("readable");
        let to = to.join(name);
        if from.is_dir() {
            copy(&from, &to);
            continue;
        }
        fs::copy(&from, &to).expect("writable");
        fs::set_permissions(&to, Permissions::from_mode(0o600)).expect("ours");
        if from.extension().is_some_and(|extension| extension == "seg") {
            // Without the zeros at its end.
            let file = fs::OpenOptions::new().write(true).open(&to).expect("writable");
            file.set_len(64 << 20).expect("sparse");
        }
    }
}

/// A started store, called without a socket.
struct Started {
    _server: Server,
    router: Router,
}

impl Started {
    fn open(dir: &Path) -> Result<Started, String> {
        let store = StoreUrl::disk(dir.join("store"));
        // As they were made: with leases that outlast the test.
        let max_ttl = Duration::from_secs(1100 * 3600);
        let config = Config { mtls: false, store, max_ttl, ..Config::in_directory(dir) };
        let server = Server::new(config).map_err(|error| error.to_string())?;
        let router = server.router().layer(Extension(Peer::anonymous(Role::Operator)));
        Ok(Started { _server: server, router })
    }

    async fn call(&self, method: &str, path: &str, header: (&str, &str), body: &str) -> (u16, Value) {
        let body = Body::from(body.to_string());
        let request = Request::builder().method(method).uri(path).header(header.0, header.1).body(body);
        let response = self.router.clone().oneshot(request.expect("a request")).await.expect("infallible");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, ("x-none", ""), "").await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    async fn post(&self, path: &str, header: (&str, &str), body: &Value) -> Value {
        self.post_text(path, header, &body.to_string()).await
    }

    async fn post_text(&self, path: &str, header: (&str, &str), body: &str) -> Value {
        let (status, reply) = self.call("POST", path, header, body).await;
        assert_eq!(status, 200, "{path} {body}: {reply}");
        reply
    }

    async fn check(&self, expected: &Value) {
        for lease in list(&expected["leases"]) {
            self.check_lease(lease).await;
        }
        for document in list(&expected["documents"]) {
            self.check_document(document).await;
        }
        let idempotent = &expected["idempotent"];
        let header = ("x-idempotency-key", text(&idempotent["header"]));
        // A retry has the same bytes.
        let replayed = self.post_text("/v1/acquire", header, text(&idempotent["body"])).await;
        assert_eq!(replayed["lease_id"], idempotent["lease_id"], "the retry finds its lease");
    }

    /// The lease, its holder's credential, and its resources.
    async fn check_lease(&self, lease: &Value) {
        let path = format!("/v1/leases/{}", text(&lease["public_id"]));
        let view = self.get(&path).await;
        for (shown, expected) in [
            (&view["state"], &lease["state"]),
            (&view["namespace"], &lease["namespace"]),
            (&view["owner"], &lease["owner"]),
            (&view["fencing_token"], &lease["fencing_token"]),
            (&view["on_expiry"], &lease["on_expiry"]),
        ] {
            assert_eq!(shown, expected, "{view}");
        }
        let mut resources: Vec<Value> = list(&view["resources"])
            .iter()
            .map(|resource| json!([resource["kind"], resource["name"], resource["predicate"]]))
            .collect();
        let mut expected = list(&lease["resources"]).to_vec();
        resources.sort_by_key(Value::to_string);
        expected.sort_by_key(Value::to_string);
        assert_eq!(resources, expected);
        if lease["state"] == "active" {
            let credential = json!({"lease_id": lease["lease_id"]});
            self.post(&format!("{path}/touch"), ("x-none", ""), &credential).await;
        }
    }

    async fn check_document(&self, document: &Value) {
        let namespace = text(&document["namespace"]).replace('/', "%2F");
        let key = text(&document["key"]);
        let found = self.get(&format!("/v1/get_state?key={key}&namespace={namespace}&public=1")).await;
        match document["rows"].as_u64() {
            Some(rows) => assert_eq!(list(&found["rows"]).len() as u64, rows, "the document in a blob"),
            None => assert_eq!(found, document["json"]),
        }
        let described = self.get(&format!("/v1/describe?key={key}&namespace={namespace}")).await;
        assert_eq!(described["version"], document["version"]);
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Opens a fixture, changes something in every namespace, and opens it again.
async fn convert(name: &str) {
    let (dir, expected) = unpack(name);
    let started = Started::open(dir.path()).expect("it is converted");
    started.check(&expected).await;
    let mut added = Vec::new();
    for document in list(&expected["documents"]) {
        let namespace = text(&document["namespace"]);
        let body = json!({"namespace": namespace, "key": format!("new-{}", added.len()), "ttl_ms": 300_000});
        let lease = started.post("/v1/acquire", ("x-none", ""), &body).await;
        let path =
            format!("/v1/update_state?key=new-{}&namespace={}", added.len(), namespace.replace('/', "%2F"));
        let content = json!({"in": "format 2", "n": added.len()});
        started.post(&path, ("x-lease-id", text(&lease["lease_id"])), &content).await;
        added.push(json!({"namespace": namespace, "key": body["key"], "json": content, "version": 1}));
    }
    drop(started);
    for start in ["second", "third"] {
        let again = Started::open(dir.path()).unwrap_or_else(|error| panic!("{start} start: {error}"));
        again.check(&expected).await;
        for document in &added {
            again.check_document(document).await;
        }
    }
}

#[tokio::test]
async fn a_store_of_format_1_with_one_shard_is_converted() {
    convert("one-shards").await;
}

#[tokio::test]
async fn a_store_of_format_1_with_four_shards_and_snapshots_is_converted() {
    convert("four-shards").await;
}

/// The process was killed during the conversion. Every state in which it can leave the directory opens, and nothing is
/// missing.
#[tokio::test]
async fn a_conversion_that_was_interrupted_at_any_step_is_repeated() {
    let (converted, _) = unpack("four-shards");
    drop(Started::open(converted.path()).expect("it is converted"));
    let file = |name: &str| fs::read(converted.path().join("store").join(name)).expect("it was created");
    let (map, store) = (file("map/1"), file("store"));
    for (step, files) in [
        ("the directory of maps", vec![]),
        ("half a map", vec![("map/1.tmp", &map[..100])]),
        ("a map under its temporary name", vec![("map/1.tmp", &map[..])]),
        ("the map", vec![("map/1", &map[..])]),
        ("half a store file", vec![("map/1", &map[..]), ("store.tmp", &store[..20])]),
        ("a store file under its temporary name", vec![("map/1", &map[..]), ("store.tmp", &store[..])]),
    ] {
        let (dir, expected) = unpack("four-shards");
        fs::create_dir(dir.path().join("store/map")).expect("writable");
        for (name, bytes) in files {
            fs::write(dir.path().join("store").join(name), bytes).expect("writable");
        }
        let started = Started::open(dir.path()).unwrap_or_else(|error| panic!("{step}: {error}"));
        started.check(&expected).await;
    }
}

/// An operator restored a store with the key of another one: every holder's credential would have been refused.
#[tokio::test]
async fn a_store_with_the_key_of_another_store_is_refused() {
    let (dir, _) = unpack("one-shards");
    drop(Started::open(dir.path()).expect("it is converted"));
    let key = dir.path().join("store/store.key");
    let right = fs::read(&key).expect("a key");
    fs::write(&key, [9; 32]).expect("writable");
    let error = Started::open(dir.path()).err().expect("refused");
    assert!(error.starts_with("the store key is not the one that this store was created with"), "{error}");
    fs::write(&key, right).expect("writable");
    Started::open(dir.path()).expect("with its own key");
}
