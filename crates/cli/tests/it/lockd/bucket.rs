//! `lockd serve` with a store in a bucket, against an object store on loopback that fails on purpose.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use objectserver::{Dialect, Fault, ObjectServer, Operation, ServerOptions};
use serde_json::{Value, json};
use worktree::clock::{Clock, SystemClock};

use crate::lockd::serve::Running;
use crate::lockd::support::lockd;
use crate::running::until;

pub(super) const CREDENTIALS: &str = r#"echo '{"Version":1,"AccessKeyId":"id","SecretAccessKey":"secret","SessionToken":null,"Expiration":null}'"#;

/// An object store with one bucket.
pub(super) fn object_server(latency_ms: u64) -> ObjectServer {
    let options = ServerOptions {
        latency: Duration::from_millis(latency_ms),
        ..ServerOptions::new(Dialect::S3, "locks")
    };
    ObjectServer::start(options).expect("a port on loopback")
}

/// Starts a server whose store is in the bucket.
pub(super) fn serve(objects: &ObjectServer, data: &Path, flags: &[&str]) -> Running {
    serve_at(&objects.endpoint(), data, flags)
}

/// The same for the object store at an endpoint.
pub(super) fn serve_at(endpoint: &str, data: &Path, flags: &[&str]) -> Running {
    let mut args = vec!["--mtls=false", "--store", "s3://locks/test", "--s3-region", "us-east-1"];
    args.extend(["--s3-endpoint", endpoint, "--s3-credential-process", CREDENTIALS]);
    args.extend(flags);
    Running::start(data, &args)
}

/// The response to a request; `None` if the server is gone, or closes the connection.
pub(super) fn request(address: &str, head: &str, headers: &str, body: &str) -> Option<(u16, String)> {
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let status = response.get(9..12)?.parse().ok()?;
    let (_, body) = response.split_once("\r\n\r\n")?;
    Some((status, body.to_string()))
}

pub(super) fn post(address: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let (status, body) = request(address, &format!("POST {path}"), "", &body.to_string())?;
    Some((status, serde_json::from_str(&body).ok()?))
}

pub(super) fn is_ready(address: &str) -> bool {
    request(address, "GET /readyz", "", "").is_some_and(|(status, _)| status == 200)
}

/// One worker: counts in the document of its key. Returns the number that was acknowledged last, and the last token.
fn count_in_document(address: &str, key: &str, first: u64, stop: &AtomicBool) -> (u64, u64) {
    let (mut acknowledged, mut token) = (first, 0);
    while !stop.load(Ordering::Relaxed) {
        let acquire = json!({"key": key, "ttl_seconds": 30, "block_seconds": 5});
        let Some((200, lease)) = post(address, "/v1/acquire", &acquire) else { continue };
        let id = lease["lease_id"].as_str().expect("a credential").to_string();
        let newer = lease["fencing_token"].as_u64().expect("a token");
        assert!(newer > token, "tokens grow: {newer} after {token}");
        token = newer;
        let (path, next) = (format!("POST /v1/update_state?key={key}"), acknowledged + 1);
        let body = json!({"n": next, "padding": "x".repeat(500)}).to_string();
        if let Some((200, _)) = request(address, &path, &format!("x-lease-id: {id}\r\n"), &body) {
            acknowledged = next;
        }
        let _ = post(address, "/v1/release", &json!({"lease_id": id}));
    }
    (acknowledged, token)
}

pub(super) fn document(address: &str, key: &str) -> u64 {
    let path = format!("GET /v1/get_state?key={key}&public=1");
    match request(address, &path, "", "") {
        Some((200, body)) => {
            serde_json::from_str::<Value>(&body).expect("JSON")["n"].as_u64().expect("a number")
        }
        Some((204, _)) => 0,
        other => panic!("{other:?}"),
    }
}

/// Runs workers until `during` returns. What each was acknowledged last, by key.
pub(super) fn with_workers<T>(
    address: &str,
    before: &BTreeMap<String, u64>,
    during: impl FnOnce() -> T,
) -> BTreeMap<String, u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let counted = Arc::new(Mutex::new(BTreeMap::new()));
    let workers: Vec<_> = (0..6)
        .map(|worker| {
            let (address, key, stop) = (address.to_string(), format!("job-{worker}"), Arc::clone(&stop));
            let (counted, first) = (Arc::clone(&counted), before.get(&key).copied().unwrap_or(0));
            std::thread::spawn(move || {
                let (acknowledged, _) = count_in_document(&address, &key, first, &stop);
                counted.lock().expect("not poisoned").insert(key, acknowledged);
            })
        })
        .collect();
    during();
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().expect("no worker panics");
    }
    Arc::try_unwrap(counted).expect("all have ended").into_inner().expect("not poisoned")
}

/// Nothing that was acknowledged is lost, and at most one write without a response was applied.
pub(super) fn check_documents(address: &str, counted: &BTreeMap<String, u64>) {
    for (key, acknowledged) in counted {
        let found = document(address, key);
        assert!(
            (*acknowledged..=acknowledged + 1).contains(&found),
            "{key}: acknowledged {acknowledged}, found {found}"
        );
    }
}

pub(super) fn wait_ms(ms: u64) {
    SystemClock::new().wait(ms);
}

#[test]
fn a_store_in_a_bucket_loses_nothing_that_was_acknowledged_when_it_is_killed_under_load() {
    let (objects, dir) = (object_server(3), tempfile::tempdir().expect("a directory"));
    let mut counted = BTreeMap::new();
    for _ in 0..3 {
        let server = serve(&objects, dir.path(), &[]);
        check_documents(&server.address, &counted);
        let address = server.address.clone();
        let before: BTreeMap<String, u64> =
            counted.keys().map(|key: &String| (key.clone(), document(&address, key))).collect();
        let mut server = Some(server);
        counted = with_workers(&address, &before, || {
            wait_ms(700);
            // SIGKILL.
            drop(server.take());
        });
        assert!(counted.values().sum::<u64>() > 6, "the workers did something: {counted:?}");
    }
    let server = serve(&objects, dir.path(), &[]);
    check_documents(&server.address, &counted);
    assert!(objects.double_wins().is_empty(), "an object was created twice");
}

#[test]
fn a_bucket_that_fails_loses_and_delays_requests_fails_none_of_lockds() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let server = serve(&objects, dir.path(), &["--s3-timeout", "500ms"]);
    for fault in [
        Fault::error_before(503).with_probability(0.1),
        Fault::error_before(429).with_probability(0.05),
        Fault::error_after(500).with_probability(0.05),
        Fault::response_lost().with_probability(0.1),
        Fault::spurious_conflict().with_probability(0.05),
        Fault::late(Duration::from_millis(200)).on(&[Operation::Put]).with_probability(0.02),
    ] {
        objects.add_fault(fault);
    }
    let counted = with_workers(&server.address, &BTreeMap::new(), || wait_ms(3000));
    objects.clear_faults();
    until("the last append is decided", || is_ready(&server.address));
    for (key, acknowledged) in &counted {
        assert_eq!(document(&server.address, key), *acknowledged, "every write had its response");
    }
    assert!(counted.values().sum::<u64>() > 12, "{counted:?}");
    assert!(objects.double_wins().is_empty());
}

#[test]
fn a_server_without_its_bucket_is_not_ready_and_answers_when_it_is_back() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut server = serve(&objects, dir.path(), &[]);
    assert!(is_ready(&server.address));
    objects.refuse_connections();
    let address = server.address.clone();
    let acquire = std::thread::spawn(move || {
        post(&address, "/v1/acquire", &json!({"key": "orders", "ttl_seconds": 60}))
    });
    until("it is not ready", || !is_ready(&server.address));
    let (_, body) = request(&server.address, "GET /readyz", "", "").expect("a response");
    assert!(body.contains("append the same bytes again"), "{body}");
    // Operators who read only the log learn it too.
    let line = server.log.wait_for("not ready");
    assert!(line.contains("WARN") && line.contains("reason="), "{line}");
    objects.accept_connections().expect("the port is free");
    let (status, lease) = acquire.join().expect("no panic").expect("a response");
    assert_eq!((status, lease["key"].as_str()), (200, Some("orders")));
    until("it is ready", || is_ready(&server.address));
    server.log.wait_for("ready again");
}

#[test]
fn long_documents_are_uploaded_in_parts_and_requests_are_counted_by_operation() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let server = serve(&objects, dir.path(), &[]);
    let (_, lease) =
        post(&server.address, "/v1/acquire", &json!({"key": "big", "ttl_seconds": 60})).expect("a response");
    let id = lease["lease_id"].as_str().expect("a credential");
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(11 << 20));
    let headers = format!("x-lease-id: {id}\r\n");
    // Without those of the probe.
    objects.reset_counts();
    let (status, _) =
        request(&server.address, "POST /v1/update_state?key=big", &headers, &body).expect("a response");
    assert_eq!(status, 200);
    assert_eq!(objects.counts().of(Operation::UploadPart), 3, "two parts of 5 MiB and the rest");
    assert_eq!(objects.open_uploads().len(), 0);
    drop(server);
    let server = serve(&objects, dir.path(), &[]);
    let (status, read) =
        request(&server.address, "GET /v1/get_state?key=big&public=1", "", "").expect("a response");
    assert_eq!((status, read.len()), (200, body.len()));
    let (_, metrics) = request(&server.address, "GET /metrics", "", "").expect("a response");
    assert!(metrics.contains("lockd_object_requests_total{op=\"put\"}"), "{metrics}");
}

#[test]
fn what_is_wrong_with_a_bucket_is_said_with_what_to_do() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let (endpoint, data) = (objects.endpoint(), dir.path().join("data"));
    let key = dir.path().join("store.key");
    let serve_in = |data: &Path, store: &str, flags: &[&str]| {
        let mut args = vec!["serve", "--mtls=false", "--listen", "127.0.0.1:0", "--store", store];
        let data = data.to_str().expect("text");
        args.extend(["--data-dir", data, "--s3-region", "us-east-1", "--s3-credential-process", CREDENTIALS]);
        args.extend(flags);
        let ran = lockd(&args);
        (ran.code, ran.stderr)
    };
    let serve = |store: &str, flags: &[&str]| serve_in(&data, store, flags);
    let key_flag = key.to_str().expect("text");
    for (store, flags, expected) in [
        ("s3://none/x", vec!["--s3-endpoint", &endpoint], "there is no such bucket; create it"),
        ("s3://locks/x", vec!["--s3-endpoint", "http://127.0.0.1:1"], "the object store cannot be reached"),
        ("s3://locks/x", vec!["--s3-endpoint", "https://storage.googleapis.com"], "use gs://locks/x instead"),
        (
            "s3://locks/x",
            vec!["--s3-endpoint", &endpoint, "--store-key-file", key_flag],
            "head -c 32 /dev/urandom",
        ),
        ("s3://locks//x", vec![], "not a store URL"),
        ("s3://locks/x", vec!["--s3-kms-key-id", "k"], "--s3-sse aws:kms"),
        ("s3://locks--use1-az4--x-s3/x", vec![], "directory buckets"),
    ] {
        let (code, stderr) = serve(store, &flags);
        assert!(code != 0 && stderr.contains(expected), "{store} {flags:?}: {code} {stderr}");
    }
    let too_little = ["--s3-endpoint", &endpoint, "--memory-max", "96MiB"];
    let (code, stderr) = serve_in(Path::new("/proc/none"), "s3://locks/x", &too_little);
    assert!(code != 0 && stderr.contains("make the data directory writable"), "{code} {stderr}");
    objects.add_fault(Fault::denied());
    let (_, stderr) = serve("s3://locks/x", &["--s3-endpoint", &endpoint]);
    assert!(stderr.contains("denies access") && stderr.contains("s3:ListBucket"), "{stderr}");
}
