//! Reads of documents: ranges, conditions, compression, and reads during a commit.

use std::io::Read;

use serde_json::{Value, json};

use crate::support::{Raw, Server, header};

const READ: &str = "/v1/get_state?key=k&public=1";

/// Long enough for several chunks, and for a blob.
fn document() -> String {
    let entries: Vec<String> = (0..80_000).map(|n| format!("\"entry {n}\"")).collect();
    format!("[{}]", entries.join(","))
}

async fn with_document(document: &str) -> (Server, Value) {
    let server = Server::start();
    let lease = server.acquire(json!({"key": "k", "ttl_seconds": 60})).await;
    commit(&server, &lease, document).await;
    (server, lease)
}

async fn commit(server: &Server, lease: &Value, document: &str) {
    let credential = header("x-lease-id", lease["lease_id"].as_str().expect("text"));
    let (status, reply) = server.post("/v1/update_state?key=k", &[credential], document).await;
    assert_eq!(status, 200, "{reply}");
}

async fn get(server: &Server, headers: &[(&str, &str)]) -> Raw {
    server.raw("GET", READ, headers, "").await
}

#[tokio::test]
async fn a_range_returns_its_bytes_and_all_ranges_make_the_whole() {
    let document = document();
    let (server, _) = with_document(&document).await;
    let whole = get(&server, &[]).await;
    assert_eq!((whole.status, whole.header("accept-ranges")), (200, "bytes"));
    assert_eq!(whole.body, document.as_bytes());
    let (mut read, mut from) = (Vec::new(), 0);
    while from < document.len() {
        // Ranges that begin and end anywhere in a chunk.
        let to = (from + 300_001).min(document.len());
        let part = get(&server, &[header("range", &format!("bytes={from}-{}", to - 1))]).await;
        assert_eq!(part.status, 206);
        assert_eq!(part.header("content-range"), format!("bytes {from}-{}/{}", to - 1, document.len()));
        assert_eq!(part.header("content-length"), (to - from).to_string());
        assert_eq!(part.header("etag"), whole.header("etag"));
        read.extend(part.body);
        from = to;
    }
    assert_eq!(read, document.as_bytes());
    let beyond = get(&server, &[header("range", &format!("bytes={}-", document.len()))]).await;
    assert_eq!(
        (beyond.status, beyond.header("content-range")),
        (416, format!("bytes */{}", document.len()).as_str())
    );
    assert!(String::from_utf8_lossy(&beyond.body).contains("invalid_range"));
}

#[tokio::test]
async fn a_range_of_another_version_is_not_returned() {
    let (server, lease) = with_document("{\"old\":1}").await;
    let old = get(&server, &[]).await.header("etag").to_string();
    let range = header("range", "bytes=1-5");
    assert_eq!(get(&server, &[range, header("if-range", &old)]).await.status, 206);
    commit(&server, &lease, "{\"new\":1}").await;
    let all = get(&server, &[range, header("if-range", &old)]).await;
    assert_eq!((all.status, all.body.as_slice()), (200, b"{\"new\":1}".as_slice()));
    let weak = format!("W/{}", all.header("etag"));
    assert_eq!(
        get(&server, &[range, header("if-range", &weak)]).await.status,
        200,
        "a weak tag does not tell bytes"
    );
}

#[tokio::test]
async fn a_version_that_the_client_has_is_not_sent_again() {
    let (server, lease) = with_document("{}").await;
    let first = get(&server, &[]).await;
    let known = get(&server, &[header("if-none-match", first.header("etag"))]).await;
    assert_eq!((known.status, known.body.len(), known.header("x-key-version")), (304, 0, "1"));
    assert_eq!(known.header("etag"), first.header("etag"));
    // A POST always returns the whole document.
    let posted = server
        .raw("POST", READ, &[header("if-none-match", first.header("etag")), header("range", "bytes=0-0")], "")
        .await;
    assert_eq!((posted.status, posted.body.as_slice()), (200, b"{}".as_slice()));
    commit(&server, &lease, "[]").await;
    assert_eq!(get(&server, &[header("if-none-match", first.header("etag"))]).await.status, 200);
}

#[tokio::test]
async fn long_documents_are_compressed_on_request() {
    let document = document();
    let (server, lease) = with_document(&document).await;
    let plain = get(&server, &[]).await.header("etag").to_string();
    let packed =
        async |accepted| server.unchecked("GET", READ, &[header("accept-encoding", accepted)], "").await;
    let gzip = packed("gzip").await;
    assert_eq!((gzip.status, gzip.header("content-encoding")), (200, "gzip"));
    assert!(gzip.body.len() < document.len() / 2);
    let mut text = String::new();
    flate2::read::GzDecoder::new(gzip.body.as_slice()).read_to_string(&mut text).expect("gzip");
    assert_eq!(text, document);
    let zstd = packed("gzip, zstd").await;
    assert_eq!(zstd.header("content-encoding"), "zstd");
    assert_eq!(zstd::decode_all(zstd.body.as_slice()).expect("zstd"), document.as_bytes());
    // A weak etag: valid for conditions, not for ranges.
    assert_eq!(zstd.header("etag"), format!("W/{plain}"));
    assert_eq!(get(&server, &[header("if-none-match", zstd.header("etag"))]).await.status, 304);
    let credential = header("x-lease-id", lease["lease_id"].as_str().expect("text"));
    let seen = header("x-if-state-etag", zstd.header("etag"));
    assert_eq!(server.post("/v1/update_state?key=k", &[credential, seen], "{}").await.0, 200);
    let short = get(&server, &[header("accept-encoding", "gzip")]).await;
    assert_eq!(
        (short.header("content-encoding"), short.body.as_slice()),
        ("", b"{}".as_slice()),
        "not worth it"
    );
    let part = get(&server, &[header("accept-encoding", "gzip"), header("range", "bytes=0-0")]).await;
    assert_eq!((part.status, part.header("content-encoding")), (206, ""));
}

/// The next version was committed in the middle of a read, and the rest of the old one was deleted.
#[tokio::test]
async fn a_superseded_document_is_read_to_its_end() {
    let document = document();
    let (server, lease) = with_document(&document).await;
    let response = server.unread_get(READ).await;
    commit(&server, &lease, "{}").await;
    commit(&server, &lease, "[]").await;
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("to its end");
    assert_eq!(body, document.as_bytes());
    assert_eq!(get(&server, &[]).await.body, b"[]");
}
