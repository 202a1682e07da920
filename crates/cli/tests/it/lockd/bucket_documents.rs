//! Long documents in a bucket: what uploads have in memory, and how many requests a read sends.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use objectserver::Operation;
use serde_json::json;

use crate::lockd::bucket::{object_server, post, request, serve};
use crate::lockd::serve::Running;
use crate::running::until;

const MIB: usize = 1 << 20;
/// Uploads at once.
const UPLOADS: usize = 10;
/// The bytes of a document that are sent before all uploads wait: less than a part.
const SENT: usize = 4 * MIB;

/// The memory of the process that is not that of files, in bytes.
fn anonymous_bytes(server: &Running) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux");
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") << 10
}

fn lease(address: &str, key: &str) -> String {
    let (status, lease) =
        post(address, "/v1/acquire", &json!({"key": key, "ttl_seconds": 300})).expect("a response");
    assert_eq!(status, 200, "{lease}");
    lease["lease_id"].as_str().expect("a credential").to_string()
}

fn text(length: usize) -> String {
    format!("{{\"text\":\"{}\"}}", "x".repeat(length))
}

/// Each upload had a part of 5 MiB in memory, and the fourth of one identity was refused with `--memory-max 1GiB`. On disk an
/// upload has 1 MiB.
#[test]
fn uploads_to_a_bucket_have_about_a_megabyte_in_memory_each() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let server = serve(&objects, dir.path(), &["--memory-max", "1GiB"]);
    let body = text(6 * MIB);
    let begin = |upload: usize| {
        let (key, mut stream) =
            (format!("doc-{upload}"), TcpStream::connect(&server.address).expect("it serves"));
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let head = format!(
            "POST /v1/update_state?key={key} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             connection: close\r\nx-lease-id: {}\r\ncontent-length: {}\r\n\r\n",
            lease(&server.address, &key),
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(&body.as_bytes()[..SENT]).expect("sent");
        stream
    };
    // The first one alone: threads, buffers and connections that the others share.
    let finish = |mut stream: TcpStream| {
        stream.write_all(&body.as_bytes()[SENT..]).expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    };
    finish(begin(UPLOADS));
    let before = anonymous_bytes(&server);
    let streams: Vec<TcpStream> = (0..UPLOADS).map(begin).collect();
    // Received, but for what is in the buffers of connections.
    let spooled = || spooled_bytes(&server);
    until("the server has received most of it", || spooled() >= UPLOADS * (SENT - MIB));
    let growth = anonymous_bytes(&server).saturating_sub(before);
    streams.into_iter().for_each(finish);
    assert!(growth < UPLOADS * 2 * MIB, "growth={growth} spooled={}", spooled());
    assert_eq!(objects.open_uploads().len(), 0);
    for upload in 0..UPLOADS {
        let path = format!("GET /v1/get_state?key=doc-{upload}&public=1");
        let (status, read) = request(&server.address, &path, "", "").expect("a response");
        assert!(status == 200 && read == body, "upload={upload} status={status} bytes={}", read.len());
    }
}

/// The bytes in files without a name that the server has open.
pub(super) fn spooled_bytes(server: &Running) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).expect("it runs");
    let lengths = open.filter_map(|entry| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        let is_nameless = target.to_str()?.ends_with("(deleted)") && target.to_str()?.contains('/');
        is_nameless.then(|| std::fs::metadata(&path).map_or(0, |file| file.len()))
    });
    usize::try_from(lengths.sum::<u64>()).expect("a few megabytes")
}

/// A read sent one request for each 256 KiB.
#[test]
fn a_long_document_is_read_by_one_request() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let server = serve(&objects, dir.path(), &[]);
    let (body, id) = (text(3 * MIB), lease(&server.address, "big"));
    let headers = format!("x-lease-id: {id}\r\n");
    let written = request(&server.address, "POST /v1/update_state?key=big", &headers, &body);
    assert_eq!(written.expect("a response").0, 200);
    let before = objects.counts().of(Operation::Get);
    let (status, read) =
        request(&server.address, "GET /v1/get_state?key=big&public=1", "", "").expect("a response");
    assert!(status == 200 && read == body, "{status} {}", read.len());
    let requests = objects.counts().of(Operation::Get) - before;
    // Others are those of the server's own record and log, a few a second.
    assert!(requests < 6, "requests={requests}");
}
