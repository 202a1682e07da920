//! Slow, endless, disconnecting and malformed clients: each costs its own connection, and never a lease.

use std::time::Duration;

use identity::Role;
use lockd_server::http::listener::ConnectionLimits;
use lockd_server::testing::Loopback;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::within;

/// The server's timeouts: short, because the tests wait for them.
const SHORT: Duration = Duration::from_millis(200);

async fn server() -> Loopback {
    let limits =
        ConnectionLimits { head_timeout: SHORT, stall_timeout: SHORT, ..ConnectionLimits::default() };
    Loopback::with_limits(Role::Operator, limits).await
}

async fn connect(server: &Loopback) -> TcpStream {
    TcpStream::connect(server.address).await.expect("it listens")
}

/// Everything until the server closes the connection, which it must.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset connection is closed as well.
    let _ = within("the connection is closed", stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One well-formed request on a connection of its own.
async fn ask(server: &Loopback, line: &str, body: &str) -> String {
    let mut stream = connect(server).await;
    let length = body.len();
    let text =
        format!("{line} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.expect("it reads");
    rest(stream).await
}

async fn nobody_holds(server: &Loopback, key: &str) {
    let reply = ask(server, "POST /v1/acquire", &format!(r#"{{"key":"{key}","ttl_seconds":60}}"#)).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
}

const HALF: &str = "POST /v1/acquire HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\n{\"key\":\"k\"";

#[tokio::test]
async fn a_stalled_head_or_body_closes_its_connection() {
    let server = server().await;
    for begun in ["", "PRI * HTTP/2", "POST /v1/acq", "POST /v1/acquire HTTP/1.1\r\nhost: h\r\n", HALF] {
        let mut stream = connect(&server).await;
        stream.write_all(begun.as_bytes()).await.expect("it reads");
        let reply = rest(stream).await;
        assert!(!reply.contains("200 OK"), "{begun:?}: {reply}");
    }
    // A connection that stays idle after a response is closed as well.
    let mut stream = connect(&server).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n").await.expect("it reads");
    assert!(rest(stream).await.contains("200 OK"));
    nobody_holds(&server, "k").await;
}

#[tokio::test]
async fn a_client_that_disconnects_midway_leaves_no_lease() {
    let server = server().await;
    for begun in ["POST /v1/acquire HTTP/1.1\r\nhost: h\r\n", HALF] {
        let mut stream = connect(&server).await;
        stream.write_all(begun.as_bytes()).await.expect("it reads");
        drop(stream);
    }
    nobody_holds(&server, "k").await;
}

#[tokio::test]
async fn malformed_and_endless_heads_are_refused() {
    let server = server().await;
    for nonsense in [
        "hello\r\n\r\n".to_string(),
        "\u{16}\u{3}\u{1}\u{2}\u{0}".to_string(),
        "POST /v1/acquire HTTP/1.1\r\ncontent-length: -1\r\n\r\n".to_string(),
        "POST /v1/acquire HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n".to_string(),
        "POST /v1/acquire HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n".to_string(),
        format!("GET /v1/leases HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)),
        format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", "z".repeat(1 << 20)),
    ] {
        let mut stream = connect(&server).await;
        // The server may close the connection before all of it is sent.
        let _ = stream.write_all(nonsense.as_bytes()).await;
        let reply = rest(stream).await;
        let shown: String = nonsense.chars().take(60).collect();
        assert!(!reply.contains("200 OK"), "{shown:?}: {reply}");
    }
    nobody_holds(&server, "k").await;
}

#[tokio::test]
async fn a_body_without_end_is_refused_as_soon_as_it_is_too_long() {
    let server = server().await;
    let mut stream = connect(&server).await;
    let head = "POST /v1/acquire HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let part = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let (mut reading, mut writing) = stream.into_split();
    let endless = tokio::spawn(async move { while writing.write_all(part.as_bytes()).await.is_ok() {} });
    let mut reply = Vec::new();
    let _ = within("the response", reading.read_to_end(&mut reply)).await;
    assert!(reply.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&reply));
    within("the upload is stopped", endless).await.expect("it cannot go on");
    nobody_holds(&server, "k").await;
}

/// A write that is refused by its head (a missing right, another namespace) closed the connection under a client that was
/// still sending its document: it got a broken pipe instead of the refusal.
#[tokio::test]
async fn a_long_document_that_its_head_refuses_gets_the_refusal() {
    let server = server().await;
    let reply = ask(&server, "POST /v1/acquire", r#"{"key":"k","ttl_seconds":60}"#).await;
    let lease =
        reply.split(r#""lease_id":""#).nth(1).and_then(|rest| rest.split('"').next()).expect("a lease");
    let document = format!(r#""{}""#, "x".repeat(16 << 20));
    let head = format!(
        "POST /v1/update_state?key=k&namespace=other HTTP/1.1\r\nx-lease-id: {lease}\r\nhost: h\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        document.len()
    );
    let mut stream = connect(&server).await;
    within("it reads", stream.write_all((head + &document).as_bytes())).await.expect("it reads to the end");
    assert!(rest(stream).await.contains(r#""error":"not_held""#));
}

/// It requests a long document repeatedly, and reads nothing: the buffers fill, and the idle timeout runs.
#[tokio::test]
async fn a_client_that_does_not_read_loses_its_connection() {
    let server = server().await;
    store_document(&server).await;
    let mut stream = connect(&server).await;
    let request = "GET /v1/get_state?key=k&public=1 HTTP/1.1\r\nhost: h\r\n\r\n";
    // Until a write fails: the server has closed the connection.
    within("the connection is closed", async {
        while stream.write_all(request.as_bytes()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(
        ask(&server, "GET /v1/describe?key=k", "").await.starts_with("HTTP/1.1 200"),
        "others are served"
    );
}

/// Waiting for a lease does not count as idle.
#[tokio::test]
async fn a_client_that_waits_for_a_lease_may_be_idle() {
    let server = server().await;
    nobody_holds(&server, "k").await;
    let began = tokio::time::Instant::now();
    let reply = ask(&server, "POST /v1/acquire", r#"{"key":"k","block_seconds":1}"#).await;
    assert!(reply.starts_with("HTTP/1.1 409") && reply.contains("waiting"), "{reply}");
    assert!(began.elapsed() > 2 * SHORT);
}

/// Connections above the limit waited to be accepted, and probes with them: the supervisor restarted the server.
#[tokio::test]
async fn a_connection_above_the_limit_may_only_probe_and_further_ones_are_closed() {
    let limits = ConnectionLimits { connections_max: 2, ..ConnectionLimits::default() };
    let server = Loopback::with_limits(Role::Operator, limits).await;
    let mut held = [connect(&server).await, connect(&server).await];
    for stream in &mut held {
        // It has its place once it is served.
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n").await.expect("it reads");
        within("a response", stream.read_exact(&mut [0; 12])).await.expect("a response");
    }
    assert!(ask(&server, "GET /healthz", "").await.starts_with("HTTP/1.1 200"));
    assert!(ask(&server, "GET /readyz", "").await.starts_with("HTTP/1.1 200"));
    let refused = ask(&server, "POST /v1/acquire", r#"{"key":"k"}"#).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too many connections"), "{refused}");
    assert!(refused.contains("limit=max-connections max=2"), "{refused}");
    let mut probing = Vec::new();
    for _ in 0..17 {
        probing.push(connect(&server).await);
    }
    let last = probing.pop().expect("one of them");
    assert_eq!(rest(last).await, "", "closed at once");
    drop((held, probing));
    let poll = async { while !ask(&server, "GET /v1/leases", "").await.starts_with("HTTP/1.1 200") {} };
    within("there are connections again", poll).await;
}

/// A client sent a byte just before each idle timeout, and kept an upload with its file for days.
#[tokio::test]
async fn a_body_below_the_minimum_rate_is_cut_off() {
    let server = server().await;
    let mut stream = connect(&server).await;
    stream.write_all(HALF.as_bytes()).await.expect("it reads");
    let began = tokio::time::Instant::now();
    let (mut reading, mut writing) = stream.into_split();
    let slow = tokio::spawn(async move {
        while writing.write_all(b" ").await.is_ok() {
            tokio::time::sleep(SHORT / 4).await;
        }
    });
    let mut reply = String::new();
    let _ = within("the connection is closed", reading.read_to_string(&mut reply)).await;
    assert!(reply.starts_with("HTTP/1.1 400") && reply.contains("minimum rate"), "{reply}");
    assert!(began.elapsed() >= SHORT, "the first bytes have time");
    within("the upload is stopped", slow).await.expect("it cannot go on");
    nobody_holds(&server, "k").await;
}

/// A long document in the store, over plain HTTP/1.1.
async fn store_document(server: &Loopback) {
    let reply = ask(server, "POST /v1/acquire", r#"{"key":"k","ttl_seconds":60}"#).await;
    let lease =
        reply.split(r#""lease_id":""#).nth(1).and_then(|rest| rest.split('"').next()).expect("a lease");
    let document = format!(r#""{}""#, "x".repeat(1 << 20));
    let head = format!(
        "POST /v1/update_state?key=k HTTP/1.1\r\nx-lease-id: {lease}\r\nhost: h\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        document.len()
    );
    let mut stream = connect(server).await;
    stream.write_all((head + &document).as_bytes()).await.expect("it reads");
    assert!(rest(stream).await.starts_with("HTTP/1.1 200"));
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a GET request, in literal header fields.
fn get_head(path: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x86];
    for (name, value) in [(":path", path), (":authority", "h")] {
        head.push(0);
        for text in [name, value] {
            head.push(u8::try_from(text.len()).expect("shorter than 127"));
            head.extend_from_slice(text.as_bytes());
        }
    }
    head
}

/// The types of the frames in a stream of bytes, and whether a frame of headers has come.
fn frame_types(mut bytes: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let [a, b, c, kind, rest @ ..] = bytes {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let Some(next) = rest.get(5 + length..) else { break };
        types.push(*kind);
        bytes = next;
    }
    types
}

/// A request was refused before its short body had arrived, and its stream was reset behind the response. Curl, which was
/// still sending, lost the response: one request in six failed with "stream error in the HTTP/2 framing layer".
#[tokio::test]
async fn a_refused_request_on_http2_is_not_reset_while_its_short_body_is_sent() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    let server = server().await;
    for path in ["/v1/acquire?x=1", "/v1/nosuch", "/v1/update_state?key=k"] {
        let mut stream = connect(&server).await;
        // Neither indexed nor with Huffman codes: a length, the name, a length, the value.
        let mut block = Vec::new();
        for (name, value) in [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "h"),
            ("content-length", "2"),
        ] {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("shorter than 127"));
                block.extend_from_slice(text.as_bytes());
            }
        }
        let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[]), &frame(1, 4, 1, &block)]
            .concat();
        stream.write_all(&begin).await.expect("it reads");
        tokio::time::sleep(SHORT / 4).await;
        stream.write_all(&frame(0, 1, 1, b"{}")).await.expect("it reads");
        let mut received = Vec::new();
        let response = async {
            while !frame_types(&received).contains(&HEADERS) {
                assert!(stream.read_buf(&mut received).await.expect("open") > 0, "closed without a response");
            }
        };
        within("a response", response).await;
        // A reset would be right behind it.
        let _ = tokio::time::timeout(SHORT / 2, stream.read_buf(&mut received)).await;
        assert!(!frame_types(&received).contains(&RST_STREAM), "{path}: {:?}", frame_types(&received));
    }
}

/// A client with a flow-control window of 0 asked for a long document on many streams, and answered pings: nothing was
/// ever written, so no timeout ran, and each stream kept its buffers.
#[tokio::test]
async fn an_http2_client_with_a_window_of_zero_loses_its_connection() {
    let server = server().await;
    store_document(&server).await;
    for path in ["/v1/get_state?key=k&public=1", "/v1/describe?key=k"] {
        let mut stream = connect(&server).await;
        let window = [0, 4, 0, 0, 0, 0];
        let head = frame(1, 5, 1, &get_head(path));
        let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &window), &head].concat();
        stream.write_all(&begin).await.expect("it reads");
        let (mut reading, mut writing) = stream.into_split();
        // It looks alive: it sends pings, and reads everything.
        let pings = tokio::spawn(async move {
            while writing.write_all(&frame(6, 0, 0, &[0; 8])).await.is_ok() {
                tokio::time::sleep(SHORT / 4).await;
            }
        });
        let mut received = Vec::new();
        // Sooner than the server gives up on its own pings, which this client does not answer.
        let closed = tokio::time::timeout(Duration::from_secs(15), reading.read_to_end(&mut received)).await;
        assert!(closed.is_ok(), "the connection is closed");
        assert!(received.len() < 100_000, "no body was sent: {}", received.len());
        within("it is closed", pings).await.expect("it cannot go on");
    }
}

/// Waiting for events is not slow: there is nothing to take.
#[tokio::test]
async fn an_idle_event_stream_over_http2_stays_open() {
    let server = server().await;
    let mut stream = connect(&server).await;
    let head = frame(1, 5, 1, &get_head("/v1/events"));
    let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[]), &head].concat();
    stream.write_all(&begin).await.expect("it reads");
    let mut received = Vec::new();
    let reading = async { while stream.read_buf(&mut received).await.is_ok_and(|read| read > 0) {} };
    let ended = tokio::time::timeout(3 * SHORT, reading).await;
    assert!(ended.is_err(), "it was closed: {received:?}");
}
