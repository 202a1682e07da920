//! `lockd serve` with its store on servers of S3 that others have written, in processes of their own. With moto it runs with
//! `LOCKD_LONG=1`, if `moto_server` is in `target/moto-venv/bin`, where `.ci/moto` installs it, or in the `PATH`; with
//! `LOCKD_MOTO=required` it fails where moto is missing. With others it runs at `LOCKD_S3_PORT`, where `.ci/localstack` and
//! `.ci/ceph` start one.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::lockd::bucket::{
    CREDENTIALS, check_documents, document, is_ready, post, request, serve_at, wait_ms, with_workers,
};
use crate::lockd::support::lockd;
use crate::running::until;

/// A running moto with the bucket `locks`. It is killed when it is dropped.
struct Moto {
    process: Child,
    port: u16,
}

impl Moto {
    fn start(program: &Path) -> Moto {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let moto = Moto { process: command.spawn().expect("it starts"), port };
        until("moto serves", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        create_bucket(port);
        moto
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Moto and `LocalStack` accept a request without a signature. Where it is denied, the bucket exists.
fn create_bucket(port: u16) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it serves");
    let head = format!("PUT /locks HTTP/1.1\r\nHost: localhost:{port}\r\n");
    let request = format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response);
    let is_created = ["HTTP/1.1 200", "HTTP/1.1 403"].iter().any(|status| response.starts_with(status));
    assert!(is_created, "{response}");
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program, if the test is to run.
fn program() -> Option<PathBuf> {
    if std::env::var_os("LOCKD_LONG").is_none_or(|value| value != "1") {
        eprintln!("skipped: it runs with LOCKD_LONG=1");
        return None;
    }
    let local = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/moto-venv/bin/moto_server");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|directory| directory.join("moto_server"));
    let found = std::iter::once(local).chain(installed).find(|program| program.is_file());
    if found.is_none() {
        assert!(std::env::var_os("LOCKD_MOTO").is_none(), "moto_server is not installed; run .ci/moto");
        eprintln!("skipped: moto_server is not installed; run .ci/moto");
    }
    found
}

fn check_store(endpoint: &str) {
    let mut args = vec!["store", "check", "--store", "s3://locks/test", "--s3-endpoint", endpoint];
    args.extend(["--s3-region", "us-east-1", "--s3-credential-process", CREDENTIALS]);
    let ran = lockd(&args);
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
}

#[test]
fn a_store_on_a_real_s3_server_survives_kills_under_load_and_is_taken_over() {
    let Some(program) = program() else { return };
    let moto = Moto::start(&program);
    check(&moto.endpoint());
}

#[test]
fn a_store_on_the_s3_server_at_lockd_s3_port_survives_kills_under_load_and_is_taken_over() {
    if let Ok(port) = std::env::var("LOCKD_S3_PORT") {
        create_bucket(port.parse().expect("the port of a server on 127.0.0.1"));
        check(&format!("http://127.0.0.1:{port}"));
    }
}

/// Kills the owner under load, starts another one, and lets a stand-by take over from it.
fn check(endpoint: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(12 << 20));
    let server = serve_at(endpoint, dir.path(), &[]);
    let (status, lease) =
        post(&server.address, "/v1/acquire", &json!({"key": "big", "ttl_seconds": 300})).expect("a response");
    assert_eq!(status, 200);
    let headers = format!("x-lease-id: {}\r\n", lease["lease_id"].as_str().expect("a credential"));
    let put = request(&server.address, "POST /v1/update_state?key=big", &headers, &long);
    assert_eq!(put.expect("a response").0, 200, "a long document is uploaded in parts");

    let (mut counted, mut server) = (BTreeMap::new(), Some(server));
    for _ in 0..2 {
        let running = server.take().expect("it serves");
        let address = running.address.clone();
        check_documents(&address, &counted);
        let before: BTreeMap<String, u64> =
            counted.keys().map(|key: &String| (key.clone(), document(&address, key))).collect();
        counted = with_workers(&address, &before, || {
            wait_ms(3000);
            // SIGKILL.
            drop(running);
        });
        assert!(counted.values().sum::<u64>() > 6, "the workers did something: {counted:?}");
        server = Some(serve_at(endpoint, dir.path(), &[]));
    }
    let first = server.expect("it serves");
    check_documents(&first.address, &counted);
    let read = request(&first.address, "GET /v1/get_state?key=big&public=1", "", "").expect("a response");
    assert!(read == (200, long), "the long document is what was written");
    check_store(endpoint);

    // The owner is stopped, a stand-by takes over, and the old owner follows it.
    let second = serve_at(endpoint, &dir.path().join("two"), &[]);
    first.signal(Signal::STOP);
    let (status, taken) = acquire(&second.address, "meanwhile");
    assert_eq!(status, 200, "{taken}");
    check_documents(&second.address, &counted);
    let renewed = post(&second.address, "/v1/keepalive", &json!({"lease_id": lease["lease_id"]}));
    assert_eq!(renewed.expect("a response").0, 200, "the lease lives on");
    first.signal(Signal::CONT);
    // The old owner believes that the key is free. It reveals nothing, or the new owner answers.
    let (status, refused) = acquire(&first.address, "meanwhile");
    assert!([409, 503].contains(&status), "{status} {refused}");
    until("it follows", || is_ready(&first.address));
    let (status, refused) = acquire(&first.address, "meanwhile");
    assert_eq!(status, 409, "{refused}");
    drop((first, second));
    check_store(endpoint);
}

/// With an idempotency key, so that it is sent again if the owner changes meanwhile.
fn acquire(address: &str, key: &str) -> (u16, Value) {
    let body = json!({"key": key, "ttl_seconds": 300}).to_string();
    let headers = format!("x-idempotency-key: {key}-{address}\r\n");
    let (status, body) = request(address, "POST /v1/acquire", &headers, &body).expect("a response");
    (status, serde_json::from_str(&body).expect("JSON"))
}
