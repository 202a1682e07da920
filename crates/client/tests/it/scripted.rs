//! Waiting for a lease, against a server that follows a script: which requests share a key, and which `attempt_id` they carry.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::requests::Acquire;
use lockd_client::{Client, Error, Kind};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use Reply::{Break, Grant, Refuse};

/// What the server does with one request.
#[derive(Clone)]
enum Reply {
    /// Closes the connection without a response.
    Break,
    /// Refuses with a status, a code and an `attempt_id`.
    Refuse(u16, &'static str, Option<&'static str>),
    Grant,
}

/// One request, as the server received it.
#[derive(Clone, Debug)]
struct Received {
    key: String,
    body: String,
}

impl Received {
    fn field(&self, name: &str) -> Value {
        serde_json::from_str::<Value>(&self.body).expect("JSON")[name].clone()
    }

    fn attempt_id(&self) -> String {
        self.field("attempt_id").as_str().unwrap_or_default().to_string()
    }

    fn waits(&self) -> bool {
        self.field("block_seconds").as_i64().is_some_and(|seconds| seconds > 0)
    }

    fn is_copy_of(&self, other: &Received) -> bool {
        self.key == other.key && self.body == other.body
    }
}

/// Waits for a lease while the server follows the script, and returns all requests.
async fn follow(script: &[Reply]) -> (Result<(), Error>, Vec<Received>) {
    follow_with(script, None).await
}

async fn follow_with(script: &[Reply], attempt_id: Option<&str>) -> (Result<(), Error>, Vec<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let script = Arc::new(Mutex::new(VecDeque::from(script.to_vec())));
    let received = Arc::new(Mutex::new(Vec::new()));
    let (left, seen) = (Arc::clone(&script), Arc::clone(&received));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            serve_one(socket, &left, &seen).await;
        }
    });
    let client = Client::builder().plain().endpoint(address.to_string()).build().expect("valid");
    let attempt_id = attempt_id.map(ToString::to_string);
    let request = Acquire { key: Some("orders".into()), attempt_id, ..Acquire::default() };
    let outcome = client.grant(request, Duration::from_secs(3600)).await.map(drop);
    assert!(script.lock().expect("no panic").is_empty(), "the script was followed to its end");
    let received = received.lock().expect("no panic").clone();
    (outcome, received)
}

async fn serve_one(
    mut socket: TcpStream,
    script: &Mutex<VecDeque<Reply>>,
    seen: &Mutex<Vec<Received>>,
) -> Option<()> {
    let received = read_request(&mut socket).await?;
    seen.lock().expect("no panic").push(received);
    let reply = script.lock().expect("no panic").pop_front().expect("the script has a reply");
    let (status, body) = match reply {
        Break => return None,
        Refuse(status, code, attempt_id) => {
            (status, json!({"error": code, "detail": "", "attempt_id": attempt_id, "retry_after_seconds": 0}))
        }
        Grant => (200, granted()),
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).await.ok()
}

fn granted() -> Value {
    let lease = api::responses::Granted { remaining_ms: 60_000, ttl_ms: 60_000, ..Default::default() };
    serde_json::to_value(lease).expect("plain data")
}

async fn read_request(socket: &mut TcpStream) -> Option<Received> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let length = socket.read(&mut chunk).await.ok().filter(|length| *length > 0)?;
        bytes.extend(&chunk[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let expected: usize = header("content-length:").expect("a length").parse().expect("a number");
        if body.len() >= expected {
            let key = header("x-idempotency-key:").expect("a key").to_string();
            return Some(Received { key, body: body.to_string() });
        }
    }
}

/// The `attempt_id` of each request; empty if there is none.
fn attempt_ids(received: &[Received]) -> Vec<String> {
    received.iter().map(Received::attempt_id).collect()
}

const WAITING: Reply = Refuse(409, "waiting", None);
const fn waiting(attempt_id: &'static str) -> Reply {
    Refuse(409, "waiting", Some(attempt_id))
}

#[tokio::test]
async fn the_first_request_does_not_wait_and_each_later_one_carries_the_last_attempt_id() {
    let script = [waiting("A-1"), waiting("A-2"), Refuse(503, "draining", Some("A-3")), Grant];
    let (outcome, received) = follow(&script).await;
    outcome.expect("granted");
    assert_eq!(attempt_ids(&received), ["", "A-1", "A-2", "A-3"]);
    assert_eq!(received.iter().map(Received::waits).collect::<Vec<_>>(), [false, true, true, true]);
    for (n, one) in received.iter().enumerate() {
        assert!(received[..n].iter().all(|earlier| earlier.key != one.key), "each has a key of its own");
    }
}

/// The second request was granted: only its own key finds the lease. The refusals in between come before the server looks up
/// the key, so that they do not settle it.
#[tokio::test]
async fn a_request_without_a_reply_is_repeated_unchanged_until_a_reply_settles_it() {
    let unsettling =
        [Break, Refuse(503, "draining", Some("A-8")), Break, Refuse(429, "throttled", None), Break];
    let script = [vec![waiting("A-1")], unsettling.to_vec(), vec![waiting("A-9"), Grant]].concat();
    let (outcome, received) = follow(&script).await;
    outcome.expect("granted");
    let copies = &received[1..7];
    assert!(copies.iter().all(|copy| copy.is_copy_of(&copies[0])), "{copies:#?}");
    assert_eq!(copies[0].attempt_id(), "A-1");
    assert_ne!(received[7].key, copies[0].key);
    assert_eq!(received[7].attempt_id(), "A-9");
}

#[tokio::test]
async fn the_first_request_is_repeated_unchanged_too() {
    let (outcome, received) = follow(&[Break, Break, Grant]).await;
    outcome.expect("granted");
    assert!(received.iter().all(|copy| copy.is_copy_of(&received[0]) && !copy.waits()), "{received:#?}");
}

#[tokio::test]
async fn a_grant_that_expired_before_its_response_arrived_is_followed_by_a_new_request() {
    let script = [WAITING, Break, Refuse(403, "lease_expired", None), Grant];
    let (outcome, received) = follow(&script).await;
    outcome.expect("granted");
    assert!(received[2].is_copy_of(&received[1]));
    assert_ne!(received[3].key, received[1].key);
    // Without a lost response it is no grant of this request.
    let (outcome, _) = follow(&[WAITING, Refuse(403, "lease_expired", None)]).await;
    assert_eq!(outcome.expect_err("refused").kind(), Kind::Expired);
}

#[tokio::test]
async fn a_server_without_attempt_ids_is_waited_for_too() {
    let (outcome, received) = follow(&[WAITING, WAITING, WAITING, Grant]).await;
    outcome.expect("granted");
    assert_eq!(attempt_ids(&received), ["", "", "", ""]);
}

#[tokio::test]
async fn a_refused_attempt_id_is_dropped_once() {
    let refused = Refuse(400, "invalid_body", None);
    let script = [waiting("A-1"), refused.clone(), WAITING, Grant];
    let (outcome, received) = follow(&script).await;
    outcome.expect("granted");
    assert_eq!(attempt_ids(&received), ["", "A-1", "", ""]);
    let script = [waiting("A-1"), refused.clone(), waiting("A-2"), refused.clone()];
    let (outcome, _) = follow(&script).await;
    assert_eq!(outcome.expect_err("refused again").kind(), Kind::Invalid);
    let (outcome, _) = follow(std::slice::from_ref(&refused)).await;
    assert_eq!(outcome.expect_err("there was none to drop").kind(), Kind::Invalid);
    let (outcome, received) = follow_with(&[refused], Some("A-0")).await;
    assert_eq!(outcome.expect_err("the caller's own").kind(), Kind::Invalid);
    assert_eq!(attempt_ids(&received), ["A-0"]);
}

#[tokio::test]
async fn a_final_refusal_ends_the_wait() {
    for (status, code, kind) in [
        (403, "forbidden", Kind::Denied),
        (409, "deadlock", Kind::Held),
        (409, "already_held", Kind::Held),
        (429, "quota_exceeded", Kind::Denied),
        (400, "invalid_ttl", Kind::Invalid),
    ] {
        let (outcome, _) = follow(&[WAITING, Refuse(status, code, None)]).await;
        let error = outcome.expect_err(code);
        assert_eq!((error.kind(), error.timed_out_waiting()), (kind, None), "{error}");
    }
}
