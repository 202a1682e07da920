//! Plain short calls over HTTP/1.1 are read and written without hyper. Clients must not see a difference, whatever they do
//! with their connection.

use std::time::Duration;

use identity::Role;
use lockd_server::http::listener::ConnectionLimits;
use lockd_server::testing::Loopback;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::within;

/// A header that only hyper accepts: it changes nothing else.
const BY_HYPER: &str = "x-unknown: 1\r\n";

struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

/// Head and body of a response.
#[derive(Debug)]
struct Reply {
    head: String,
    body: Value,
}

impl Reply {
    fn status(&self) -> &str {
        self.head.split(' ').nth(1).expect("a status line")
    }

    /// The status line and the headers, without the values that differ between two responses.
    fn shape(&self) -> Vec<String> {
        let lines = self.head.lines().map(|line| match line.split_once(':') {
            Some((name @ ("date" | "content-length"), _)) => name.to_string(),
            _ => line.to_string(),
        });
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines
    }
}

impl Client {
    async fn connect(server: &Loopback) -> Client {
        let stream = TcpStream::connect(server.address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket");
        Client { stream, received: Vec::new() }
    }

    async fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.expect("the server reads");
    }

    /// The next response; `None` if the connection is closed.
    async fn receive(&mut self) -> Option<Reply> {
        let reading = async {
            loop {
                if let Some(reply) = self.take() {
                    return Some(reply);
                }
                if self.stream.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
        };
        within("a response", reading).await
    }

    fn take(&mut self) -> Option<Reply> {
        let text = String::from_utf8_lossy(&self.received).into_owned();
        let (head, rest) = text.split_once("\r\n\r\n")?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
        if rest.len() < length {
            return None;
        }
        self.received.drain(..head.len() + 4 + length);
        let body = serde_json::from_str(&rest[..length]).unwrap_or(Value::Null);
        Some(Reply { head: head.to_string(), body })
    }

    async fn call(&mut self, request: &str) -> Reply {
        self.send(request).await;
        self.receive().await.expect("a response")
    }
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    )
}

fn acquire(body: &Value) -> String {
    post("/v1/acquire", "", &body.to_string())
}

async fn waiters(server: &Loopback, key: &str) -> Value {
    let mut client = Client::connect(server).await;
    let request = format!("GET /v1/describe?key={key} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    client.call(&request).await.body["waiters"].clone()
}

async fn until_waiters(server: &Loopback, key: &str, count: u64) {
    let counted = async {
        while waiters(server, key).await != json!(count) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the waiters", counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_those_of_hyper() {
    let server = Loopback::start(Role::Operator).await;
    let (mut direct, mut hyper) = (Client::connect(&server).await, Client::connect(&server).await);
    let bodies = [
        ("/v1/acquire", "", r#"{"key":"KEY"}"#),
        ("/v1/acquire", "x-correlation-id: c\r\nx-idempotency-key: KEY\r\n", r#"{"key":"KEY2"}"#),
        ("/v1/acquire", "", r#"{"key":"KEY"}"#),
        ("/v1/acquire", "", ""),
        ("/v1/acquire", "", "{"),
        ("/v1/acquire", "", r#"{"key":"KEY","unknown":1}"#),
        ("/v1/acquire", "x-correlation-id: \r\n", r#"{"key":"KEY"}"#),
        ("/v1/keepalive", "", r#"{"lease_id":"L-0.1.x"}"#),
        ("/v1/release", "", r#"{"lease_id":"L-0.1.x"}"#),
        ("/v1/update_state?key=KEY", "", "{}"),
        ("/v1/update_state", "x-lease-id: L-0.1.x\r\n", "{}"),
        ("/v1/update_state?key=KEY&key=KEY", "x-lease-id: L-0.1.x\r\n", "{}"),
    ];
    for (path, headers, body) in bodies {
        let request = |key: &str, more: &str| {
            let fill = |text: &str| text.replace("KEY", key);
            post(&fill(path), &format!("{}{more}", fill(headers)), &fill(body))
        };
        let one = direct.call(&request("a", "")).await;
        let other = hyper.call(&request("b", BY_HYPER)).await;
        assert_eq!(one.shape(), other.shape(), "{path} {headers} {body}");
        let names =
            |reply: &Reply| reply.body.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&one), names(&other), "{path} {headers} {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_sent_together_are_answered_in_order_also_where_hyper_goes_on() {
    let server = Loopback::start(Role::Operator).await;
    let mut client = Client::connect(&server).await;
    let requests: String = (0..40).map(|key| acquire(&json!({"key": format!("k{key}")}))).collect();
    client.send(&requests).await;
    client.send("GET /v1/describe?key=k7 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    client.send(&acquire(&json!({"key": "last"}))).await;
    for key in 0..40 {
        assert_eq!(client.receive().await.expect("a response").body["key"], json!(format!("k{key}")));
    }
    assert_eq!(client.receive().await.expect("a response").body["state"], "active");
    assert_eq!(client.receive().await.expect("a response").body["key"], "last");
}

/// Python's standard client sends head and body in two segments.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_arrive_in_parts_are_complete() {
    let server = Loopback::start(Role::Operator).await;
    let request = acquire(&json!({"key": "parts"}));
    let body_at = request.find("\r\n\r\n").expect("a head") + 4;
    for (number, pause_ms) in [(0, 5), (1, 400)] {
        for cut in [1, 10, 40, body_at - 2, body_at, body_at + 3] {
            let request = request.replace("parts", &format!("p{number:02}{}", cut % 90 + 10));
            let mut client = Client::connect(&server).await;
            client.send(&request[..cut]).await;
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            client.send(&request[cut..]).await;
            assert_eq!(client.receive().await.expect("a response").status(), "200", "cut={cut}");
            assert_eq!(client.call(&acquire(&json!({"key": "again"}))).await.status().len(), 3);
        }
    }
}

/// A request that is granted after its client has gone would block the key for a TTL.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_client_disconnects_leaves_the_queue() {
    let server = Loopback::start(Role::Operator).await;
    let (mut holder, mut waiter) = (Client::connect(&server).await, Client::connect(&server).await);
    let held = holder.call(&acquire(&json!({"key": "k", "ttl_ms": 60_000}))).await;
    let wait = acquire(&json!({"key": "k", "block_seconds": 60}));
    waiter.send(&wait).await;
    until_waiters(&server, "k", 1).await;
    drop(waiter);
    until_waiters(&server, "k", 0).await;
    let mut next = Client::connect(&server).await;
    next.send(&wait).await;
    until_waiters(&server, "k", 1).await;
    let release = post("/v1/release", "", &json!({"lease_id": held.body["lease_id"]}).to_string());
    assert_eq!(holder.call(&release).await.status(), "200");
    assert_eq!(next.receive().await.expect("a response").status(), "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answers_its_waiters_and_closes() {
    let server = Loopback::start(Role::Operator).await;
    let (mut holder, mut waiter) = (Client::connect(&server).await, Client::connect(&server).await);
    holder.call(&acquire(&json!({"key": "k"}))).await;
    waiter.send(&acquire(&json!({"key": "k", "block_seconds": 60}))).await;
    until_waiters(&server, "k", 1).await;
    drop(server);
    let dismissed = waiter.receive().await.expect("a response");
    assert_eq!((dismissed.status(), &dismissed.body["error"]), ("503", &json!("draining")));
    assert!(waiter.receive().await.is_none() && holder.receive().await.is_none(), "both are closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_and_a_waiting_one_is_not() {
    let limits = ConnectionLimits { head_timeout: Duration::from_millis(300), ..ConnectionLimits::default() };
    let server = Loopback::with_limits(Role::Operator, limits).await;
    let (mut holder, mut waiter) = (Client::connect(&server).await, Client::connect(&server).await);
    holder.call(&acquire(&json!({"key": "k", "ttl_ms": 1500}))).await;
    waiter.send(&acquire(&json!({"key": "k", "block_seconds": 60}))).await;
    assert!(holder.receive().await.is_none(), "idle for longer than the timeout");
    assert_eq!(waiter.receive().await.expect("a response").status(), "200");
}

/// A head and a body of their greatest lengths were two bytes longer than the input that is kept: the rest of the request was
/// never read, no timeout ran, and not even the end of the connection was noticed.
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_head_and_body_are_complete_also_in_parts() {
    let limits = ConnectionLimits {
        head_timeout: Duration::from_millis(300),
        stall_timeout: Duration::from_millis(300),
        ..ConnectionLimits::default()
    };
    let server = Loopback::with_limits(Role::Operator, limits).await;
    let body = format!("{:16384}", json!({"key": "long"}).to_string());
    let shortest = post("/v1/acquire", "user-agent: \r\n", &body).len() - body.len();
    let with_head = |length: usize| {
        post("/v1/acquire", &format!("user-agent: {}\r\n", "x".repeat(length - shortest)), &body)
    };
    for length in 4094..=4100 {
        let request = with_head(length);
        let mut client = Client::connect(&server).await;
        let (first, rest) = request.split_at(request.len().min(20_480));
        client.send(first).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        client.send(rest).await;
        assert!(client.receive().await.is_some(), "{length}");
    }
    let request = with_head(4098);
    let mut client = Client::connect(&server).await;
    client.send(&request[..20_480]).await;
    let refused = client.receive().await.expect("the timeout of the body");
    assert!(refused.status() == "400" && client.receive().await.is_none(), "{refused:?}");
}

/// Responses that a client does not take fill the buffers of its connection, and then the timeout of writes runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_responses_loses_its_connection() {
    let limits =
        ConnectionLimits { stall_timeout: Duration::from_millis(300), ..ConnectionLimits::default() };
    let server = Loopback::with_limits(Role::Operator, limits).await;
    let mut client = Client::connect(&server).await;
    let held = acquire(&json!({"key": "held"}));
    assert_eq!(client.call(&held).await.status(), "200");
    // Refused at once, and not held back as those of a wrong request are: that fills the buffers soonest.
    let requests = held.repeat(100);
    let endless = async { while client.stream.write_all(requests.as_bytes()).await.is_ok() {} };
    within("the connection is closed", endless).await;
    let mut other = Client::connect(&server).await;
    assert_eq!(other.call(&acquire(&json!({"key": "other"}))).await.status(), "200");
}

/// A client beyond a limit sent as many requests as the server refused. A lower bound of the time holds on any machine.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_in_a_row_are_held_back() {
    let server = Loopback::start(Role::Operator).await;
    for headers in ["", BY_HYPER] {
        let mut client = Client::connect(&server).await;
        let refused = post("/v1/release", headers, "{}");
        for _ in 0..16 {
            assert_eq!(client.call(&refused).await.status(), "400");
        }
        let begun = tokio::time::Instant::now();
        for _ in 0..5 {
            assert_eq!(client.call(&refused).await.status(), "400");
        }
        assert!(begun.elapsed() >= Duration::from_millis(5 * 20), "{headers}{:?}", begun.elapsed());
    }
}

/// The connection was closed under a request whose body was on its way when the server began to stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_body_arrives_while_the_server_stops_is_answered() {
    let request = acquire(&json!({"key": "k"}));
    // The rest is awaited for a quarter of a second; on a busy machine it may come later.
    for _ in 0..20 {
        let server = Loopback::start(Role::Operator).await;
        let mut client = Client::connect(&server).await;
        assert_eq!(client.call(&acquire(&json!({"key": "before"}))).await.status(), "200", "it serves");
        client.send(&request[..request.len() - 3]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(server);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let _ = client.stream.write_all(&request.as_bytes()[request.len() - 3..]).await;
        if let Some(reply) = client.receive().await {
            assert!(["200", "503"].contains(&reply.status()), "{reply:?}");
            assert!(reply.head.contains("connection: close"), "{reply:?}");
            assert!(client.receive().await.is_none());
            return;
        }
    }
    panic!("no request was answered");
}
