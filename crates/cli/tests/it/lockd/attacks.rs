//! Attacks by a client with a valid certificate, over mTLS against the real binary: an operator beyond its namespaces, a
//! reader without the right, a second certificate of the same name, credentials in the wrong namespace, ambiguous headers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::lockd::serve::{Connection, Running};

/// A server with a store in memory, and clients of it.
pub(crate) struct World {
    pub(crate) server: Running,
    dir: TempDir,
}

/// A client with a connection of its own.
pub(crate) struct Client(Connection);

impl World {
    pub(crate) fn start() -> World {
        World::start_with(&["--store", "mem://"])
    }

    pub(crate) fn start_with(args: &[&str]) -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let server = Running::start(&dir.path().join("data"), args);
        World { server, dir }
    }

    /// The identity file of a new client. `file` is its name, `name` that of the identity.
    pub(crate) fn issue(&self, file: &str, name: &str, args: &[&str]) -> PathBuf {
        let (out, server) = (self.dir.path().join(file), self.data().join("server.pem"));
        let mut auth = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        auth.args(["auth", "new", "client", "--cn", name, "--server-in"]).arg(server);
        let made = auth.arg("--out").arg(&out).args(args).output().expect("the binary runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        out
    }

    pub(crate) fn client(&self, name: &str, args: &[&str]) -> Client {
        self.connect(&self.issue(&format!("{name}.pem"), name, args))
    }

    /// The client that the first start created: an operator of all namespaces.
    fn operator(&self) -> Client {
        self.connect(&self.data().join("client.pem"))
    }

    pub(crate) fn connect(&self, file: &Path) -> Client {
        Client(self.server.connect(file))
    }

    /// A directory for files of a test.
    pub(crate) fn directory(&self) -> &Path {
        self.dir.path()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

impl Client {
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        self.0.send(method, path, headers, body).expect("a response")
    }

    fn get(&mut self, path: &str) -> (u16, String) {
        self.send("GET", path, "", "")
    }

    fn post(&mut self, path: &str, body: &Value) -> (u16, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send("POST", path, "", &body)
    }

    fn acquire(&mut self, body: &Value) -> Value {
        let (status, text) = self.post("/v1/acquire", body);
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Commits a document under a lease.
    fn write(&mut self, query: &str, lease: &Value, document: &str) -> (u16, String) {
        self.send("POST", &format!("/v1/update_state?{query}"), &credential(lease), document)
    }

    fn read(&mut self, query: &str, lease: &Value) -> (u16, String) {
        self.send("GET", &format!("/v1/get_state?{query}"), &credential(lease), "")
    }
}

fn credential(lease: &Value) -> String {
    format!("x-lease-id: {}\r\n", lease["lease_id"].as_str().expect("a credential"))
}

fn public_id(lease: &Value) -> &str {
    lease["public_id"].as_str().expect("a public id")
}

/// The public id in the same shard that was never issued, and is not above the last LSN.
fn never_issued(lease: &Value) -> String {
    format!("{}{:016x}", &public_id(lease)[..18], 1)
}

fn code(response: &(u16, String)) -> (u16, String) {
    let body: Value = serde_json::from_str(&response.1).unwrap_or_default();
    (response.0, body["error"].as_str().unwrap_or_default().to_string())
}

/// An expired credential of another identity was enough to store 100 MB, and to keep them with a byte now and then: only
/// the secret in it was checked before the first byte.
#[test]
fn an_upload_without_a_live_lease_of_its_own_stores_nothing() {
    let world = World::start_with(&[]);
    let mut ada = world.client("ada", &["--namespace", "default:rw"]);
    let eve = world.issue("eve.pem", "eve", &["--namespace", "default:rw"]);
    let live = ada.acquire(&json!({"key": "k", "ttl_seconds": 60}));
    let released = ada.acquire(&json!({"key": "other", "ttl_seconds": 60}));
    assert_eq!(ada.post("/v1/release", &json!({"lease_id": released["lease_id"]})).0, 200);
    for (key, lease) in [("k", &live), ("other", &released)] {
        let mut connection = world.server.connect(&eve);
        let headers = format!("{}content-length: 90000000\r\n", credential(lease));
        let path = format!("/v1/update_state?key={key}");
        connection.begin_body("POST", &path, &headers, &format!("[\"{}", "x".repeat(1 << 20)));
        let refused =
            connection.response_within(Duration::from_secs(30)).expect("before the body is complete");
        assert_eq!(code(&refused), (403, "not_held".into()), "{key}");
    }
    let blobs = world.data().join("store/blob/tmp");
    let stored = std::fs::read_dir(&blobs).expect("the store made it").count();
    assert_eq!(stored, 0, "files in {}", blobs.display());
}

/// Each shard had the tables of a whole server: with sixteen shards the idempotency keys alone could take two thirds of
/// the memory, and one identity sixteen times its part.
#[test]
fn shards_share_the_limits_of_tables() {
    let world = World::start_with(&["--shards", "16", "--memory-max", "64MiB", "--store", "mem://"]);
    let mut ada = world.client("ada", &["--namespace", "default:rw"]);
    // A 24th of the memory at 384 bytes, in sixteen shards, an eighth of it for one identity.
    let max = (64 << 20) / 24 / 384 / 16 / 8;
    for n in 0..=max {
        let key = format!("x-idempotency-key: {n}\r\n");
        let response = ada.send("POST", "/v1/acquire", &key, &json!({"key": n.to_string()}).to_string());
        assert_eq!(response.0, if n < max { 200 } else { 429 }, "{n}: {}", response.1);
        if n == max {
            assert!(
                response.1.contains(&format!("limit=requests_per_identity_max max={max}")),
                "{}",
                response.1
            );
        }
    }
    let mut bob = world.client("bob", &["--namespace", "default:rw"]);
    let response = bob.send("POST", "/v1/acquire", "x-idempotency-key: b\r\n", r#"{"key":"b"}"#);
    assert_eq!(response.0, 200, "{}", response.1);
}

/// An operator's certificate for one namespace revoked leases of another, was shown their holder and metadata, paused
/// identities, set quotas and deleted the documents of every namespace: the role was checked, and the namespaces were not.
#[test]
fn an_operator_has_no_power_beyond_the_namespaces_of_its_certificate() {
    let world = World::start();
    let mut ada = world.client("ada", &["--namespace", "default:rw"]);
    let mut eve = world.client("eve", &["--role", "operator", "--namespace", "teamb:rw"]);
    let lease =
        ada.acquire(&json!({"key": "k", "owner": "alice", "metadata": "meta-secret", "ttl_seconds": 300}));
    assert_eq!(ada.write("key=k", &lease, r#"{"secret":1}"#).0, 200);
    let manifest = json!({"agent_id": "coder", "session_id": "s",
        "intents": [{"predicate": "MUTATES", "object": "FILE:/plan"}]});
    assert_eq!(ada.post("/v1/manifest", &manifest).0, 200);
    let mut star = world.operator();
    let quota = json!({"namespace": "default", "max_leases": 7});
    assert_eq!(star.send("PUT", "/v1/quotas", "", &quota.to_string()).0, 200);
    assert_eq!(star.send("PUT", "/v1/quotas", "", r#"{"identity":"ada","max_leases":8}"#).0, 200);

    let forbidden = (403, "forbidden".to_string());
    for (method, path, body) in [
        ("POST", "/v1/revoke", json!({"identity": "ada"})),
        ("POST", "/v1/revoke", json!({"namespace": "default", "identity": "ada"})),
        ("POST", "/v1/revoke", json!({"agent_id": "coder"})),
        ("POST", "/v1/pause", json!({"identity": "ada", "paused": true})),
        ("POST", "/v1/pause", json!({"namespace": "default", "identity": "ada", "paused": true})),
        ("POST", "/v1/pause", json!({"agent_id": "coder", "paused": true})),
        ("PUT", "/v1/quotas", json!({"max_leases": 0})),
        ("PUT", "/v1/quotas", json!({"identity": "ada", "max_leases": 0})),
        ("PUT", "/v1/quotas", json!({"namespace": "default", "max_leases": 0})),
        ("PUT", "/v1/quotas", json!({"namespace": "default", "paused": true})),
        ("POST", "/v1/agents/coder/state", json!({"state": "PAUSED"})),
        ("POST", "/v1/agents/coder/state", json!({"state": "DIE_RESTART"})),
        ("POST", "/v1/agents/nobody/state", json!({"state": "DIE_RESTART"})),
        ("DELETE", "/v1/namespaces/default", Value::Null),
        ("DELETE", "/v1/namespaces/never-used", Value::Null),
        ("GET", "/v1/leases?namespace=default", Value::Null),
        ("GET", "/v1/agents", Value::Null),
        ("GET", "/v1/keys", Value::Null),
        ("GET", "/v1/contention?namespace=default", Value::Null),
        ("GET", "/v1/events?namespace=default", Value::Null),
        ("GET", "/v1/resource/KEY:k/state", Value::Null),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        assert_eq!(code(&eve.send(method, path, "", &body)), forbidden, "{method} {path} {body}");
    }
    for path in ["/v1/leases", "/v1/quotas", "/v1/namespaces", "/v1/contention"] {
        let (status, text) = eve.get(path);
        let shown = ["ada", "default", "alice", "coder"].iter().find(|word| text.contains(**word));
        assert_eq!((status, shown), (200, None), "{path}: {text}");
    }
    // Nothing has changed: the lease is live, no identity is paused, the document is there.
    assert_eq!(ada.post("/v1/keepalive", &json!({"lease_id": lease["lease_id"]})).0, 200);
    ada.acquire(&json!({"key": "another"}));
    assert_eq!(ada.read("key=k", &lease), (200, r#"{"secret":1}"#.to_string()));
    // The operator of `*` is one everywhere.
    assert!(star.get("/v1/quotas").1.contains("\"max_leases\":8"));
    assert_eq!(star.post(&format!("/v1/leases/{}/revoke", public_id(&lease)), &Value::Null).0, 200);
}

#[test]
fn an_operator_of_one_namespace_is_an_operator_there() {
    let world = World::start();
    let mut eve = world.client("eve", &["--role", "operator", "--namespace", "teamb:rw"]);
    let quota = r#"{"namespace":"default","max_leases":7}"#;
    assert_eq!(world.operator().send("PUT", "/v1/quotas", "", quota).0, 200);
    let mut bob = world.client("bob", &["--namespace", "teamb:rw"]);
    let theirs = bob.acquire(&json!({"namespace": "teamb", "key": "k"}));
    for (call, state) in [("revoke", "revoking"), ("reclaim", "revoked")] {
        let (status, text) = eve.post(&format!("/v1/leases/{}/{call}", public_id(&theirs)), &Value::Null);
        assert!(status == 200 && text.contains(&format!("\"state\":\"{state}\"")), "{call}: {text}");
    }
    let pause = json!({"namespace": "teamb", "identity": "bob", "paused": true});
    assert_eq!(eve.post("/v1/pause", &pause).0, 200);
    assert_eq!(eve.send("PUT", "/v1/quotas", "", r#"{"namespace":"teamb","max_leases":3}"#).0, 200);
    let (_, quotas) = eve.get("/v1/quotas");
    assert!(quotas.contains("\"max_leases\":3") && !quotas.contains("\"max_leases\":7"), "{quotas}");
    assert_eq!(eve.send("DELETE", "/v1/namespaces/teamb", "", "").0, 200);
}

/// `GET /v1/leases/ID` answered 404 for a lease that the caller may not see and 410 for an LSN that is no lease: whoever
/// counted through the LSNs found every lease of the store. An operator of another namespace could even revoke it.
#[test]
fn a_lease_in_another_namespace_answers_like_one_that_was_never_issued() {
    let world = World::start();
    let mut ada = world.client("ada", &["--namespace", "default:rw"]);
    let live = ada.acquire(&json!({"key": "live"}));
    let ended = ada.acquire(&json!({"key": "ended"}));
    assert_eq!(ada.post("/v1/release", &json!({"lease_id": ended["lease_id"]})).0, 200);
    let mut eve = world.client("eve", &["--role", "operator", "--namespace", "teamb:rw"]);
    let mut none = world.client("none", &["--namespace", "none:r"]);
    for lease in [&live, &ended] {
        let (real, unreal) = (public_id(lease).to_string(), never_issued(lease));
        assert_eq!(ada.get(&format!("/v1/leases/{real}")).0, 200);
        for client in [&mut eve, &mut none] {
            let unknown = client.get(&format!("/v1/leases/{unreal}"));
            assert_eq!(code(&unknown), (410, "retired".to_string()));
            assert_eq!(client.get(&format!("/v1/leases/{real}")), unknown);
        }
        for call in ["revoke", "reclaim"] {
            for headers in ["", "x-idempotency-key: once\r\n"] {
                let mut post = |id: &str| eve.send("POST", &format!("/v1/leases/{id}/{call}"), headers, "");
                assert_eq!(post(&real), post(&unreal), "{call} {headers}");
            }
            let (status, text) = none.post(&format!("/v1/leases/{real}/{call}"), &Value::Null);
            assert_eq!(
                code(&(status, text)),
                (403, "forbidden".to_string()),
                "a worker learns nothing either"
            );
        }
    }
    assert_eq!(
        ada.post("/v1/keepalive", &json!({"lease_id": live["lease_id"]})).0,
        200,
        "nothing was revoked"
    );
}

/// A certificate with `w` alone read documents, by `include_state` and under its lease. A second certificate of the same
/// name, without any right in the namespace, read and wrote under the lease of the first.
#[test]
fn documents_need_their_right_under_a_lease_too() {
    let world = World::start();
    let mut ada = world.client("ada", &["--namespace", "default:rw"]);
    let lease = ada.acquire(&json!({"key": "k"}));
    assert_eq!(ada.write("key=k", &lease, r#"{"password":"hunter2"}"#).0, 200);
    let forbidden = (403, "forbidden".to_string());
    // The same identity, other certificates.
    let twin = |rights: &str, file: &str| {
        let file = world.issue(file, "ada", &["--namespace", rights]);
        world.connect(&file)
    };
    let (mut bare, mut reader, mut writer) =
        (twin("none:r", "bare.pem"), twin("default:r", "reader.pem"), twin("default:w", "writer.pem"));
    for query in ["key=k", "key=k&release=1"] {
        for client in [&mut bare, &mut reader] {
            assert_eq!(code(&client.write(query, &lease, "{}")), forbidden);
            let path = format!("/v1/remove_state?{query}");
            assert_eq!(code(&client.send("POST", &path, &credential(&lease), "")), forbidden);
        }
    }
    for method in ["GET", "POST"] {
        for path in ["/v1/get_state?key=k", "/v1/get-state?key=k"] {
            for client in [&mut bare, &mut writer] {
                let response = client.send(method, path, &credential(&lease), "");
                assert_eq!(code(&response), forbidden, "{method} {path}");
            }
        }
    }
    assert_eq!(reader.read("key=k", &lease), (200, r#"{"password":"hunter2"}"#.to_string()));
    assert_eq!(writer.write("key=k", &lease, r#"{"password":"hunter3"}"#).0, 200);
    assert_eq!(ada.read("key=k", &lease).1, r#"{"password":"hunter3"}"#);
    assert_eq!(ada.post("/v1/release", &json!({"lease_id": lease["lease_id"]})).0, 200);
    // Acquiring needs `w`, and a document in the response `r` as well. A refusal grants nothing.
    for query in ["?include_state=1", ""] {
        let response = reader.post(&format!("/v1/acquire{query}"), &json!({"key": "k"}));
        assert_eq!(code(&response), forbidden);
    }
    assert_eq!(code(&writer.post("/v1/acquire?include_state=1", &json!({"key": "k"}))), forbidden);
    let (status, text) = ada.post("/v1/acquire?include_state=1", &json!({"key": "k"}));
    assert!(status == 200 && text.contains("hunter3"), "{text}");
}

/// `namespace=` was ignored under a lease: a write addressed to team-b replaced the document of team-a, and so did one
/// addressed to a namespace that does not exist, or to none.
#[test]
fn a_credential_is_of_no_use_in_another_namespace() {
    let world = World::start();
    let mut ada = world.client(
        "ada",
        &["--namespace", "team-a:rw", "--namespace", "team-b:rw", "--namespace", "default:rw"],
    );
    let lease = ada.acquire(&json!({"namespace": "team-a", "key": "k"}));
    assert_eq!(ada.write("key=k&namespace=team-a", &lease, "1").0, 200);
    let other = ada.acquire(&json!({"namespace": "team-b", "key": "k"}));
    let not_held = (403, "not_held".to_string());
    for namespace in ["&namespace=team-b", "&namespace=default", ""] {
        let query = format!("key=k{namespace}");
        assert_eq!(code(&ada.write(&query, &lease, "2")), not_held, "{query}");
        assert_eq!(code(&ada.read(&query, &lease)), not_held, "{query}");
        let removed = ada.send("POST", &format!("/v1/remove_state?{query}"), &credential(&lease), "");
        assert_eq!(code(&removed), not_held, "{query}");
    }
    assert_eq!(code(&ada.write("key=k&namespace=", &lease, "2")), (400, "invalid_key".to_string()));
    assert_eq!(code(&ada.write("key=k&namespace=elsewhere", &lease, "2")), (403, "forbidden".to_string()));
    assert_eq!(ada.read("key=k&namespace=team-a", &lease), (200, "1".to_string()), "nothing was written");
    // The calls over many leases.
    for call in ["heartbeat", "reconcile", "release"] {
        let ids = json!([lease["lease_id"], other["lease_id"]]);
        let body = json!({"namespace": "team-b", "lease_ids": ids});
        let (status, text) = ada.post(&format!("/v1/leases/{call}"), &body);
        let results: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(status, 200, "{text}");
        assert_eq!(results["results"][0]["error"], json!("not_held"), "{call}: {text}");
        assert_eq!(results["results"][1]["ok"], json!(true), "{call}: {text}");
    }
    assert_eq!(ada.write("key=k&namespace=team-a", &lease, "3").0, 200, "it was not released");
    let (_, text) = ada.post("/v1/leases/heartbeat", &json!({"lease_ids": [lease["lease_id"]]}));
    assert!(text.contains("\"ok\":true"), "without a namespace, leases of any: {text}");
}

/// Of two `X-Idempotency-Key`, `X-Lease-ID` and other headers the first was used, silently. A proxy may use the last.
#[test]
fn a_header_that_decides_something_is_sent_once() {
    let world = World::start();
    let mut ada = world.client("ada", &["--namespace", "default:rw"]);
    let lease = ada.acquire(&json!({"key": "k"}));
    let held = json!({"lease_id": lease["lease_id"]}).to_string();
    let own = credential(&lease);
    // The first three bypass the router.
    for (path, body) in [
        ("/v1/acquire", r#"{"key":"x"}"#),
        ("/v1/keepalive", held.as_str()),
        ("/v1/release", &held),
        ("/v1/update_state?key=k", "1"),
        ("/v1/remove_state?key=k", ""),
        ("/v1/get_state?key=k", ""),
        ("/v1/leases/heartbeat", &format!(r#"{{"lease_ids":[{}]}}"#, lease["lease_id"])),
    ] {
        for name in [
            "X-Lease-ID",
            "X-Idempotency-Key",
            "X-Fencing-Token",
            "X-If-Version",
            "X-If-State-ETag",
            "X-Correlation-Id",
            "Last-Event-ID",
            "Range",
        ] {
            let value = lease["lease_id"].as_str().expect("text");
            let extra = if name == "X-Lease-ID" { "" } else { own.as_str() };
            let headers = format!("{extra}{name}: {value}\r\n{}: {value}\r\n", name.to_lowercase());
            let (status, text) = ada.send("POST", path, &headers, body);
            assert_eq!(
                code(&(status, text.clone())),
                (400, "invalid_body".to_string()),
                "{path} {name}: {text}"
            );
            assert!(text.contains(&format!("more than once: header={}", name.to_lowercase())), "{text}");
        }
    }
    assert_eq!(ada.get("/v1/describe?key=x").0, 404, "nothing was granted");
    assert_eq!(
        ada.send("POST", "/v1/release", "accept: a\r\naccept: b\r\n", &held).0,
        200,
        "lists may repeat"
    );
}
