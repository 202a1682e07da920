//! Restarts after SIGKILL: they leave nothing behind that takes disk space.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::lockd::serve::Running;

/// Restarts without a long test run.
const USUAL: usize = 12;
/// Restarts with `LOCKD_LONG=1`.
const LONG: usize = 1000;

/// The 498th restart in a row began a second segment beside the first, which it left: a crash loop used more and more disk
/// space, and nothing freed it.
#[test]
fn a_thousand_restarts_by_sigkill_take_no_more_disk_space_than_ten() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let is_long = std::env::var_os("LOCKD_LONG").is_some_and(|value| value == "1");
    let restarts = if is_long { LONG } else { USUAL };
    let mut after_ten = 0;
    for restart in 1..=restarts {
        let server = Running::start(&data, &["--mtls=false"]);
        acquire_and_release(&server.address);
        // SIGKILL.
        drop(server);
        let bytes = disk_bytes(&data.join("store"));
        if restart <= 10 {
            after_ten = bytes;
        }
        if restart == restarts {
            assert!(bytes <= after_ten, "after {restart} restarts: {bytes} bytes; after ten: {after_ten}");
        }
    }
}

fn acquire_and_release(address: &str) {
    let granted = post(address, "/v1/acquire", &json!({"key": "orders", "ttl_seconds": 30}));
    let released = post(address, "/v1/release", &json!({"lease_id": granted["lease_id"]}));
    assert_eq!(released, json!({"released": true}));
}

/// The body of a response with status 200.
fn post(address: &str, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("an open socket");
    stream.write_all(request.as_bytes()).expect("an open socket");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let (_, body) = response.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).expect("JSON")
}

/// The disk space that the files below a directory take, as `du` counts it.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).expect("there").map(|entry| entry.expect("readable"));
    let bytes = entries.map(|entry| {
        let metadata = entry.metadata().expect("the server has ended");
        if metadata.is_dir() { disk_bytes(&entry.path()) } else { metadata.blocks() * 512 }
    });
    bytes.sum()
}
