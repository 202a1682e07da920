//! A connection against a server in the test, which decides what is sent and when.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use frames::{
    Field, Method, PREFACE, RESPONSE_MAX, RequestId, Settings, encode_control, encode_request,
    encode_response, parse,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::task::JoinHandle;

use super::connection::{Connection, KeepAlive, greet};
use super::*;

type Outcome = Result<Option<Reply>, StreamFailure>;

/// No test waits longer.
const DEADLINE: Duration = Duration::from_secs(20);
const PATIENT: KeepAlive = KeepAlive {
    interval: Duration::from_secs(60),
    timeout: Duration::from_secs(60),
    idle: Duration::from_secs(60),
};

/// A message, as the server received it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Received {
    Request(u32, String),
    Cancel(u32),
    Ping(u32),
    Pong(u32),
}

struct FakeServer {
    stream: DuplexStream,
    input: Vec<u8>,
}

impl FakeServer {
    /// The next message; `None` if the client has closed the connection.
    async fn next(&mut self) -> Option<Received> {
        loop {
            let found = parse(&self.input).expect("the client's frames are well-formed");
            if let Some((message, length)) = found {
                let received = match message {
                    frames::Message::Request(request) => {
                        Received::Request(request.id.0, request.target.into())
                    }
                    frames::Message::Cancel(id) => Received::Cancel(id.0),
                    frames::Message::Ping(number) => Received::Ping(number),
                    frames::Message::Pong(number) => Received::Pong(number),
                    other => panic!("a client does not send this: {other:?}"),
                };
                self.input.drain(..length);
                return Some(received);
            }
            let read = tokio::time::timeout(DEADLINE, self.stream.read_buf(&mut self.input));
            if read.await.expect("a message within the deadline").unwrap_or_default() == 0 {
                return None;
            }
        }
    }

    /// The next message, which is a request with this number.
    async fn request(&mut self, id: u32) -> String {
        match self.next().await {
            Some(Received::Request(number, target)) if number == id => target,
            other => panic!("not request {id}: {other:?}"),
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the client reads");
    }

    async fn respond(&mut self, id: u32, body: &str) {
        let mut out = Vec::new();
        let fields = [(Field::Server, b"https://a".as_slice())];
        encode_response(&mut out, RequestId(id), 200, fields, body.as_bytes()).expect("short");
        self.send(&out).await;
    }

    async fn control(&mut self, message: frames::Message<'_>) {
        let mut out = Vec::new();
        encode_control(&mut out, &message);
        self.send(&out).await;
    }
}

/// A connection whose greeting is over.
async fn connect(in_flight_max: u32, keep_alive: KeepAlive) -> (Connection, FakeServer) {
    let (mut near, far) = tokio::io::duplex(1 << 20);
    let mut server = FakeServer { stream: far, input: Vec::new() };
    server.send(PREFACE).await;
    server.control(frames::Message::Settings(Settings { in_flight_max, ..Settings::DEFAULT })).await;
    let greeting = greet(&mut near).await.expect("open").expect("the protocol");
    server.stream.read_exact(&mut [0; 8]).await.expect("the client's preface");
    (Connection::start(Box::pin(near), greeting, keep_alive), server)
}

fn frame(target: &str) -> Bytes {
    let mut out = Vec::new();
    encode_request(&mut out, RequestId(0), Method::Post, target, [], b"{}").expect("short");
    out.into()
}

fn send(connection: &Connection, target: &str) -> JoinHandle<Outcome> {
    let (connection, frame) = (connection.clone(), frame(target));
    tokio::spawn(async move { connection.exchange(&frame).await })
}

/// The body of a response.
async fn body(sent: JoinHandle<Outcome>) -> String {
    let reply = within(sent).await.expect("a reply").expect("over frames");
    assert_eq!((reply.status, reply.server.as_deref()), (200, Some("https://a")));
    String::from_utf8(reply.body.to_vec()).expect("text")
}

async fn within(sent: JoinHandle<Outcome>) -> Outcome {
    tokio::time::timeout(DEADLINE, sent).await.expect("an outcome within the deadline").expect("no panic")
}

/// The error of a request that may have been carried out.
async fn unknown(sent: JoinHandle<Outcome>) -> String {
    match within(sent).await {
        Err(StreamFailure::Unknown(error)) => error.to_string(),
        other => panic!("not unknown: {other:?}"),
    }
}

#[tokio::test]
async fn many_requests_are_in_flight_and_replies_come_in_any_order() {
    let (connection, mut server) = connect(200, PATIENT).await;
    let sent: Vec<_> = (0..100).map(|n| (format!("/{n}"), send(&connection, &format!("/{n}")))).collect();
    let mut received = Vec::new();
    for id in 1..=100 {
        received.push((id, server.request(id).await));
    }
    for (id, target) in received.iter().rev() {
        server.respond(*id, target).await;
    }
    for (target, sent) in sent {
        assert_eq!(body(sent).await, target);
    }
}

#[tokio::test]
async fn a_request_beyond_the_maximum_or_too_long_is_left_to_http() {
    let (connection, mut server) = connect(3, PATIENT).await;
    let first = send(&connection, "/a");
    server.request(1).await;
    let _second = send(&connection, "/b");
    server.request(2).await;
    assert!(connection.exchange(&frame("/c")).await.expect("no failure").is_none());
    server.respond(1, "a").await;
    assert_eq!(body(first).await, "a");
    let third = send(&connection, "/d");
    assert_eq!(server.request(3).await, "/d");
    server.respond(3, "d").await;
    assert_eq!(body(third).await, "d");
    let long = Bytes::from(vec![0; Settings::DEFAULT.request_max as usize + 1]);
    assert!(connection.exchange(&long).await.expect("no failure").is_none());
}

/// A waiter whose caller is gone would be granted a lease that nothing releases.
#[tokio::test]
async fn a_dropped_request_is_cancelled_once_and_counts_until_its_reply() {
    let (connection, mut server) = connect(2, PATIENT).await;
    let waiting = send(&connection, "/waits");
    server.request(1).await;
    waiting.abort();
    assert_eq!(server.next().await, Some(Received::Cancel(1)));
    assert!(connection.exchange(&frame("/b")).await.expect("no failure").is_none(), "it is still in flight");
    server.control(frames::Message::Aborted(RequestId(1))).await;
    // The permit is free as soon as the reply was read.
    let next = loop {
        let next = send(&connection, "/c");
        tokio::select! {
            received = server.next() => {
                assert_eq!(received, Some(Received::Request(2, "/c".into())));
                break next;
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => next.abort(),
        }
    };
    server.respond(2, "c").await;
    assert_eq!(body(next).await, "c");
}

#[tokio::test]
async fn an_aborted_request_may_have_been_carried_out_and_the_others_go_on() {
    let (connection, mut server) = connect(200, PATIENT).await;
    let first = send(&connection, "/a");
    server.request(1).await;
    let second = send(&connection, "/b");
    server.request(2).await;
    server.control(frames::Message::Aborted(RequestId(1))).await;
    assert_eq!(unknown(first).await, "the server ended the request without a response");
    server.respond(2, "b").await;
    assert_eq!(body(second).await, "b");
    assert!(connection.is_usable());
}

#[tokio::test]
async fn all_requests_of_a_broken_connection_may_have_been_carried_out() {
    let (connection, mut server) = connect(200, PATIENT).await;
    let sent = [send(&connection, "/a"), send(&connection, "/b")];
    for id in 1..=2 {
        server.request(id).await;
    }
    drop(server);
    for sent in sent {
        assert!(unknown(sent).await.contains("closed"), "the reason");
    }
    assert!(!connection.is_usable());
    assert!(matches!(connection.exchange(&frame("/c")).await, Err(StreamFailure::NotBegun)));
}

#[tokio::test]
async fn requests_after_the_last_of_a_going_server_were_not_begun() {
    let (connection, mut server) = connect(200, PATIENT).await;
    let first = send(&connection, "/a");
    server.request(1).await;
    let second = send(&connection, "/b");
    server.request(2).await;
    server.control(frames::Message::GoAway(RequestId(1))).await;
    assert!(matches!(within(second).await, Err(StreamFailure::NotBegun)));
    assert!(!connection.is_usable());
    let third = send(&connection, "/c");
    assert!(matches!(within(third).await, Err(StreamFailure::NotBegun)));
    server.respond(1, "a").await;
    assert_eq!(body(first).await, "a");
    assert_eq!(server.next().await, None, "the client closes the connection");
}

/// A request of a server that goes away can still be cancelled.
#[tokio::test]
async fn a_waiter_on_a_going_server_is_cancelled() {
    let (connection, mut server) = connect(200, PATIENT).await;
    let first = send(&connection, "/a");
    server.request(1).await;
    server.control(frames::Message::GoAway(RequestId(1))).await;
    while connection.is_usable() {
        tokio::task::yield_now().await;
    }
    first.abort();
    assert_eq!(server.next().await, Some(Received::Cancel(1)));
}

#[tokio::test]
async fn malformed_replies_end_the_connection() {
    let mut too_long = u32::try_from(RESPONSE_MAX - 3).expect("short").to_le_bytes().to_vec();
    too_long.push(2);
    let mut unasked = Vec::new();
    encode_response(&mut unasked, RequestId(2), 200, [], b"").expect("short");
    let mut request = Vec::new();
    encode_request(&mut request, RequestId(1), Method::Get, "/", [], b"").expect("short");
    let mut settings = Vec::new();
    encode_control(&mut settings, &frames::Message::Settings(Settings::DEFAULT));
    for (bytes, why) in [
        (b"HTTP/1.1 200 OK\r\n".to_vec(), "malformed frame: unknown kind"),
        (too_long, "malformed frame: length out of range"),
        (unasked, "a reply without a request"),
        (request, "a frame that a server does not send at this point"),
        (settings, "a frame that a server does not send at this point"),
    ] {
        let (connection, mut server) = connect(200, PATIENT).await;
        let sent = send(&connection, "/a");
        server.request(1).await;
        server.send(&bytes).await;
        assert_eq!(unknown(sent).await, why);
        assert!(!connection.is_usable());
    }
}

#[tokio::test]
async fn a_response_of_the_greatest_length_is_read() {
    let (connection, mut server) = connect(200, PATIENT).await;
    let sent = send(&connection, "/a");
    server.request(1).await;
    let text = "x".repeat(RESPONSE_MAX - 100);
    server.respond(1, &text).await;
    assert!(body(sent).await == text);
}

const IMPATIENT: KeepAlive = KeepAlive {
    interval: Duration::from_millis(60),
    timeout: Duration::from_millis(100),
    idle: Duration::from_millis(200),
};

#[tokio::test]
async fn a_server_that_does_not_answer_a_ping_is_dead() {
    let (connection, mut server) = connect(200, IMPATIENT).await;
    let sent = send(&connection, "/a");
    server.request(1).await;
    assert_eq!(server.next().await, Some(Received::Ping(0)));
    assert_eq!(unknown(sent).await, "no reply to a ping");
    assert_eq!(server.next().await, None);
}

#[tokio::test]
async fn a_waiter_of_a_server_that_answers_pings_waits_on() {
    let (connection, mut server) = connect(200, IMPATIENT).await;
    let sent = send(&connection, "/a");
    server.request(1).await;
    for _ in 0..4 {
        assert_eq!(server.next().await, Some(Received::Ping(0)));
        server.control(frames::Message::Pong(0)).await;
    }
    server.respond(1, "granted").await;
    assert_eq!(body(sent).await, "granted");
    assert_eq!(server.next().await, None, "an unused connection is closed");
    assert!(!connection.is_usable());
}

#[tokio::test]
async fn pings_are_answered_and_too_many_end_the_connection() {
    let (connection, mut server) = connect(200, PATIENT).await;
    server.control(frames::Message::Ping(7)).await;
    assert_eq!(server.next().await, Some(Received::Pong(7)));
    let sent = send(&connection, "/a");
    server.request(1).await;
    let mut flood = Vec::new();
    (0..1000).for_each(|number| encode_control(&mut flood, &frames::Message::Ping(number)));
    server.send(&flood).await;
    assert_eq!(unknown(sent).await, "too many pings");
}

#[tokio::test]
async fn a_connection_without_callers_is_closed() {
    let (connection, mut server) = connect(200, PATIENT).await;
    let copy = connection.clone();
    drop(connection);
    let sent = send(&copy, "/a");
    server.request(1).await;
    server.respond(1, "a").await;
    body(sent).await;
    drop(copy);
    assert_eq!(server.next().await, None);
}

#[tokio::test]
async fn another_protocol_is_recognised_before_anything_is_sent() {
    for reply in ["HTTP/1.1 400 Bad Request\r\n\r\n", "L-1", "LOCKD/1\nHTTP/1.1"] {
        let (mut near, mut far) = tokio::io::duplex(1 << 10);
        far.write_all(reply.as_bytes()).await.expect("read");
        assert!(greet(&mut near).await.expect("open").is_none(), "{reply}");
        drop(near);
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).await.expect("open");
        assert_eq!(sent, PREFACE);
    }
    let (mut near, mut far) = tokio::io::duplex(1 << 10);
    far.write_all(b"LOCKD").await.expect("read");
    drop(far);
    assert!(greet(&mut near).await.is_err());
}

/// Counts the writes of the client.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn requests_submitted_together_leave_in_one_write() {
    let (near, far) = tokio::io::duplex(1 << 20);
    let writes = Arc::new(AtomicUsize::new(0));
    let greeting = super::connection::Greeting { settings: Settings::DEFAULT, rest: Vec::new() };
    let counted = Counted(near, Arc::clone(&writes));
    let connection = Connection::start(Box::pin(counted), greeting, PATIENT);
    let mut server = FakeServer { stream: far, input: Vec::new() };
    let sent: Vec<_> = (0..100).map(|_| send(&connection, "/a")).collect();
    for id in 1..=100 {
        server.request(id).await;
    }
    assert!(writes.load(Ordering::Relaxed) <= 3, "{writes:?} writes");
    drop(server);
    for sent in sent {
        unknown(sent).await;
    }
}
