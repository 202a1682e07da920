//! The stream protocol: the calls are those of HTTP, whatever a client does with its connection.

use std::time::Duration;

use frames::{Field, Message, Method, RequestId};
use identity::Role;
use lockd_server::backend::shards::RequestLimits;
use lockd_server::http::listener::ConnectionLimits;
use lockd_server::testing::{Loopback, TestClock, backend_with_clock};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::stream_client::{Reply, StreamClient};
use crate::support::{Server, within};

async fn loopback() -> Loopback {
    Loopback::start(Role::Operator).await
}

/// The same requests over frames and over HTTP, to two servers whose clocks stand still: the same responses, with the same
/// headers where frames have them.
#[tokio::test]
async fn responses_are_those_of_http() {
    let backend = backend_with_clock(RequestLimits::default(), &TestClock::default());
    let served = Loopback::with_backend(Role::Operator, ConnectionLimits::default(), backend).await;
    let http = Server::start_by(&TestClock::default());
    let mut client = StreamClient::connect(&served).await;
    let mut both = async |method: Method, target: &str, fields: &[(Field, &str)], body: &str| -> Value {
        let headers: Vec<(&str, &str)> = fields.iter().map(|(field, value)| (field.name(), *value)).collect();
        let verb = if method == Method::Get { "GET" } else { "POST" };
        let expected = http.raw(verb, target, &headers, body).await;
        client.request(method, target, fields, body).await;
        let Reply::Response { status, fields, body, .. } = client.receive().await else {
            panic!("a response")
        };
        assert_eq!(status, expected.status, "{target}");
        for field in Field::all() {
            let sent = fields.iter().find(|(one, _)| *one == field).map(|(_, value)| value.as_str());
            assert_eq!(sent.unwrap_or_default(), expected.header(field.name()), "{target}: {field:?}");
        }
        assert_eq!(body, serde_json::from_slice::<Value>(&expected.body).unwrap_or_default(), "{target}");
        body
    };
    let post = Method::Post;
    let named = [(Field::IdempotencyKey, "once"), (Field::CorrelationId, "a name")];
    let granted = both(post, "/v1/acquire", &named, r#"{"key":"k"}"#).await;
    assert_eq!(granted, both(post, "/v1/acquire", &named, r#"{"key":"k"}"#).await, "a retry");
    assert_eq!(both(post, "/v1/acquire", &named, r#"{"key":"l"}"#).await["error"], "idempotency_mismatch");
    assert_eq!(both(post, "/v1/acquire", &[], r#"{"key":"k"}"#).await["error"], "waiting");
    assert_eq!(both(post, "/v1/acquire", &[], "{").await["error"], "invalid_body");
    let credential = granted["lease_id"].as_str().expect("a credential").to_string();
    let held = [(Field::LeaseId, credential.as_str())];
    let updated = both(post, "/v1/update_state?key=k", &held, r#"{"a": 1}"#).await;
    assert_eq!(updated["new_version"], 1);
    let stale = [held[0], (Field::IfVersion, "7")];
    assert_eq!(both(post, "/v1/update_state?key=k", &stale, "{}").await["error"], "version_conflict");
    let stale = [held[0], (Field::IfStateEtag, "")];
    assert_eq!(both(post, "/v1/update_state?key=k", &stale, "{}").await["error"], "etag_mismatch");
    assert_eq!(both(Method::Get, "/v1/describe?key=k", &[], "").await["version"], 1);
    assert_eq!(both(Method::Get, "/v1/whoami", &[], "").await["identity"], "anonymous");
    let body = json!({"lease_id": credential}).to_string();
    assert_eq!(both(post, "/v1/keepalive", &[], &body).await["remaining_ms"], 60_000);
    let touched = format!("/v1/leases/{}/touch", granted["public_id"].as_str().expect("an id"));
    assert_eq!(both(post, &touched, &[], &body).await["remaining_ms"], 60_000);
    assert_eq!(both(post, "/v1/release", &[], &body).await["released"], true);
    assert_eq!(both(post, "/v1/keepalive", &[], &body).await["error"], "not_held");
}

#[tokio::test]
async fn a_call_that_waits_does_not_delay_the_calls_behind_it() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    let (_, held) = client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    let waiting = client.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await;
    let free = client.post("/v1/acquire", &json!({"key": "free"})).await;
    assert_eq!(client.receive().await.expect(200).0, free);
    let release = client.post("/v1/release", &json!({"lease_id": held["lease_id"]})).await;
    let mut replies = [client.receive().await.expect(200), client.receive().await.expect(200)];
    replies.sort_by_key(|(id, _)| *id);
    let [(first, granted), (second, _)] = replies;
    assert_eq!((first, second), (waiting, release));
    assert!(granted["fencing_token"].as_u64() > held["fencing_token"].as_u64());
}

/// The client is still there, but no longer waits: the grant would be nobody's until its TTL.
#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue_and_the_connection_stays() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    let (_, held) = client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    let cancelled = client.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await;
    client.control(Message::Cancel(RequestId(cancelled))).await;
    assert_eq!(client.receive().await, Reply::Aborted(cancelled));
    client.control(Message::Cancel(RequestId(cancelled))).await;
    client.control(Message::Cancel(RequestId(77))).await;
    let behind = client.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await;
    let release = client.post("/v1/release", &json!({"lease_id": held["lease_id"]})).await;
    let mut granted = [client.receive().await.expect(200).0, client.receive().await.expect(200).0];
    granted.sort_unstable();
    assert_eq!(granted, [behind, release]);
}

#[tokio::test]
async fn waiters_of_a_client_that_disconnects_are_removed() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    let (_, held) = client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    let mut gone = StreamClient::connect(&server).await;
    for _ in 0..3 {
        gone.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await;
    }
    let waiters = async |client: &mut StreamClient, expected: u64| loop {
        client.request(Method::Get, "/v1/describe?key=k", &[], "").await;
        if client.receive().await.expect(200).1["waiters"] == expected {
            return;
        }
    };
    within("the waiters are queued", waiters(&mut client, 3)).await;
    drop(gone);
    within("no waiter is left", waiters(&mut client, 0)).await;
    client.call("/v1/release", &json!({"lease_id": held["lease_id"]})).await.expect(200);
    client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
}

#[tokio::test]
async fn calls_that_frames_do_not_carry_are_refused_and_not_carried_out() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    for target in ["/v1/acquire?include_state=1", "/v1/reload", "/v1/no_such_call", "/v1/get_state?key=k"] {
        let (_, refusal) = client.call(target, &json!({"key": "k"})).await.expect(405);
        assert_eq!(refusal["error"], "method_not_allowed", "{target}");
    }
    client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
}

/// Also of calls that frames do not carry, which the service does not see.
#[tokio::test]
async fn refusals_in_a_row_are_held_back() {
    let server = loopback().await;
    for (target, status) in [("/v1/release", 400), ("/v1/reload", 405)] {
        let mut client = StreamClient::connect(&server).await;
        for _ in 0..16 {
            client.call(target, &json!({})).await.expect(status);
        }
        let begun = tokio::time::Instant::now();
        for _ in 0..5 {
            client.call(target, &json!({})).await.expect(status);
        }
        assert!(begun.elapsed() >= Duration::from_millis(5 * 20), "{target}: {:?}", begun.elapsed());
    }
}

/// A parser that goes on behind something malformed may take a body for a request.
#[tokio::test]
async fn a_malformed_or_unexpected_frame_closes_the_connection() {
    let server = loopback().await;
    let valid = |id: u32| {
        let mut out = Vec::new();
        frames::encode_request(&mut out, RequestId(id), Method::Get, "/v1/whoami", [], b"").expect("short");
        out
    };
    let mut response = Vec::new();
    frames::encode_response(&mut response, RequestId(1), 200, [], b"").expect("short");
    let cases: [(&str, Vec<u8>); 6] = [
        ("an unknown kind", vec![5, 0, 0, 0, 99, 0, 0, 0, 0]),
        ("an endless frame", vec![255, 255, 255, 255, 1]),
        ("HTTP", b"GET /healthz HTTP/1.1\r\n\r\n".to_vec()),
        ("a response", response),
        ("a number twice", [valid(7), valid(7)].concat()),
        ("a falling number", [valid(7), valid(6)].concat()),
    ];
    for (what, bytes) in cases {
        let mut client = StreamClient::connect(&server).await;
        client.send(&bytes).await;
        let replies = async { while client.receive().await != Reply::Closed {} };
        within(what, replies).await;
    }
    // It says in a go away that nothing was begun.
    let mut client = StreamClient::connect(&server).await;
    client.send(&valid(0)).await;
    assert_eq!(client.receive().await, Reply::Closed, "number 0");
}

/// Each ping costs its sender nine bytes, and the server as many of output that nobody reads.
#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from() {
    const FLOOD_MAX: usize = 64 << 20;
    let limits = ConnectionLimits { stall_timeout: Duration::from_secs(2), ..ConnectionLimits::default() };
    let server = Loopback::with_limits(Role::Operator, limits).await;
    let mut client = StreamClient::connect(&server).await;
    client.control(Message::Ping(5)).await;
    assert_eq!(client.receive().await, Reply::Pong(5));
    let mut pings = Vec::new();
    for number in 0..1000 {
        frames::encode_control(&mut pings, &Message::Ping(number));
    }
    let flood = async {
        let mut sent = 0;
        while client.stream.write_all(&pings).await.is_ok() {
            sent += pings.len();
            assert!(sent < FLOOD_MAX, "the server keeps reading");
        }
    };
    within("the stalled connection is closed", flood).await;
}

#[tokio::test]
async fn calls_beyond_the_maximum_in_flight_wait_for_their_turn() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    let (_, held) = client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    let mut waiting = Vec::new();
    for _ in 0..frames::IN_FLIGHT_MAX {
        waiting.push(client.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await);
    }
    let beyond = client.post("/v1/acquire", &json!({"key": "free"})).await;
    let mut other = StreamClient::connect(&server).await;
    other.call("/v1/acquire", &json!({"key": "free"})).await.expect(200);
    other.call("/v1/release", &json!({"lease_id": held["lease_id"]})).await.expect(200);
    let (first, _) = client.receive().await.expect(200);
    assert_eq!(first, waiting[0]);
    let (second, refusal) = client.receive().await.expect(409);
    assert_eq!((second, &refusal["error"]), (beyond, &json!("waiting")), "begun after the first had ended");
}

#[tokio::test]
async fn a_server_that_stops_says_which_calls_it_has_begun_and_replies_to_them() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    let waiting = client.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await;
    let begun = client.request(Method::Get, "/v1/whoami", &[], "").await;
    assert_eq!(client.receive().await.expect(200).0, begun);
    drop(server);
    let mut replies = vec![client.receive().await, client.receive().await, client.receive().await];
    assert_eq!(replies.pop(), Some(Reply::Closed));
    assert!(replies.contains(&Reply::GoAway(begun)), "{replies:?}");
    let dismissed = replies.into_iter().find(|reply| matches!(reply, Reply::Response { .. }));
    let (id, refusal) = dismissed.expect("the waiter has a reply").expect(503);
    assert_eq!((id, &refusal["error"]), (waiting, &json!("draining")));
}

#[tokio::test]
async fn idle_connections_and_partial_frames_end_and_waiters_stay() {
    let limits = ConnectionLimits { head_timeout: Duration::from_millis(300), ..ConnectionLimits::default() };
    let server = Loopback::with_limits(Role::Operator, limits).await;
    let mut partial_preface = tokio::net::TcpStream::connect(server.address).await.expect("it listens");
    partial_preface.write_all(b"LOCK").await.expect("it reads");
    let mut silent = StreamClient::connect(&server).await;
    let mut idle = StreamClient::connect(&server).await;
    idle.call("/v1/release", &json!({})).await.expect(400);
    let mut partial = StreamClient::connect(&server).await;
    let mut waiting = StreamClient::connect(&server).await;
    partial.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    partial.send(&[40, 0, 0, 0, 1]).await;
    let waiter = waiting.post("/v1/acquire", &json!({"key": "k", "block_seconds": 2})).await;
    assert_eq!(silent.receive().await, Reply::Closed);
    assert_eq!(idle.receive().await, Reply::GoAway(1), "a request that crosses it was not begun");
    assert_eq!(idle.receive().await, Reply::Closed);
    assert_eq!(partial.receive().await, Reply::Closed);
    let mut rest = [0; 1];
    let read = tokio::io::AsyncReadExt::read(&mut partial_preface, &mut rest);
    assert_eq!(within("an end", read).await.unwrap_or(0), 0);
    assert_eq!(waiting.receive().await.expect(409).0, waiter, "after its block time");
}

/// A client with as many requests in flight as it may have could end none of them: what it sent behind them waited, a
/// cancellation and a ping too.
#[tokio::test]
async fn a_request_is_cancelled_while_the_maximum_is_in_flight() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    let mut waiting = Vec::new();
    for _ in 0..frames::IN_FLIGHT_MAX {
        waiting.push(client.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await);
    }
    client.control(Message::Ping(5)).await;
    assert_eq!(client.receive().await, Reply::Pong(5));
    for id in waiting {
        client.control(Message::Cancel(RequestId(id))).await;
        assert_eq!(client.receive().await, Reply::Aborted(id));
    }
    client.call("/v1/acquire", &json!({"key": "free"})).await.expect(200);
}

/// The time of a partial frame was counted from the frame before it. While a request waited that was long ago: a frame that
/// came in two segments just then ended the connection, with all waiters.
#[tokio::test]
async fn a_frame_in_two_segments_does_not_end_a_connection_with_waiters() {
    let limits = ConnectionLimits { head_timeout: Duration::from_secs(1), ..ConnectionLimits::default() };
    let server = Loopback::with_limits(Role::Operator, limits).await;
    let mut client = StreamClient::connect(&server).await;
    client.call("/v1/acquire", &json!({"key": "k"})).await.expect(200);
    let waiter = client.post("/v1/acquire", &json!({"key": "k", "block_seconds": 4})).await;
    let mut ping = Vec::new();
    frames::encode_control(&mut ping, &Message::Ping(5));
    let (first, second) = ping.split_at(4);
    // The timer runs out each second: now too, while a part of the frame is there.
    tokio::time::sleep(Duration::from_millis(1700)).await;
    client.send(first).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    client.send(second).await;
    assert_eq!(client.receive().await, Reply::Pong(5));
    assert_eq!(client.receive().await.expect(409).0, waiter);
}

/// Cancellations race with grants: a request without a response has no lease, or its key were blocked until the TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_waiter_has_its_lease_or_none_is_granted() {
    let server = loopback().await;
    let mut holder = StreamClient::connect(&server).await;
    let mut waiter = StreamClient::connect(&server).await;
    let (mut granted, mut cancelled) = (0, 0);
    for round in 0..400 {
        let (_, held) =
            holder.call("/v1/acquire", &json!({"key": "k", "block_seconds": 5})).await.expect(200);
        let id = waiter.post("/v1/acquire", &json!({"key": "k", "block_seconds": 60})).await;
        waiter.request(Method::Get, "/v1/whoami", &[], "").await;
        waiter.receive().await.expect(200);
        let release = async { holder.call("/v1/release", &json!({"lease_id": held["lease_id"]})).await };
        let cancel = async {
            for _ in 0..round % 40 {
                tokio::task::yield_now().await;
            }
            waiter.control(Message::Cancel(RequestId(id))).await;
            waiter.receive().await
        };
        match tokio::join!(release, cancel).1 {
            Reply::Aborted(aborted) => {
                assert_eq!(aborted, id);
                cancelled += 1;
            }
            reply => {
                let (of, lease) = reply.expect(200);
                assert_eq!(of, id);
                granted += 1;
                waiter.call("/v1/release", &json!({"lease_id": lease["lease_id"]})).await.expect(200);
            }
        }
    }
    println!("{granted} granted, {cancelled} cancelled");
}

/// Frames may be cut anywhere, and many may arrive at once.
#[tokio::test]
async fn frames_are_found_wherever_segments_end() {
    let server = loopback().await;
    let mut client = StreamClient::connect(&server).await;
    let mut bytes = Vec::new();
    for id in 1..=50 {
        frames::encode_request(&mut bytes, RequestId(id), Method::Get, "/v1/whoami", [], b"").expect("short");
    }
    for part in bytes.chunks(7) {
        client.send(part).await;
    }
    let mut seen = Vec::new();
    for _ in 0..50 {
        seen.push(client.receive().await.expect(200).0);
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=50).collect::<Vec<u32>>());
}
