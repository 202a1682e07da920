//! Frames to a server that does not own the shard: the owner carries the request out.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use frames::{Field, Message, RequestId};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::super::bucket::{object_server, post, request};
use super::servers;
use crate::lockd::frame_client::{FrameClient, Reply, control};
use crate::running::until;

/// A connection with frames and without TLS.
struct PlainFrames {
    stream: TcpStream,
    client: FrameClient,
}

impl PlainFrames {
    fn connect(address: &str) -> PlainFrames {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("an open socket");
        stream.write_all(frames::PREFACE).expect("it reads");
        PlainFrames { stream, client: FrameClient::default() }
    }

    /// Sends a request, and returns its number.
    fn post(&mut self, target: &str, headers: &str, body: &Value) -> u32 {
        let frame = self.client.request("POST", target, headers, &body.to_string()).expect("it is carried");
        self.stream.write_all(&frame).expect("it reads");
        self.client.last()
    }

    fn receive(&mut self) -> Option<Reply> {
        self.client.receive(&mut self.stream)
    }

    /// Sends a request, and reads the next reply.
    fn call(&mut self, target: &str, body: &Value) -> Reply {
        self.post(target, "", body);
        self.receive().expect("a reply")
    }
}

/// The number, the status and the body of a response.
fn parts(reply: Reply) -> (u32, u16, Value) {
    let Reply::Response { id, status, body, .. } = reply else { panic!("not a response: {reply:?}") };
    (id, status, serde_json::from_str(&body).expect("JSON"))
}

fn waiters(address: &str, key: &str) -> u64 {
    let (_, key) = request(address, &format!("GET /v1/describe?key={key}"), "", "").expect("a response");
    serde_json::from_str::<Value>(&key).expect("JSON")["waiters"].as_u64().expect("a number")
}

#[test]
fn a_request_in_a_frame_reaches_the_owner_and_its_response_names_it() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let servers = servers(&objects, dir.path(), 2, &[]);
    let (owner, other) = (&servers[0].address, &servers[1].address);
    let url = format!("http://{owner}");
    let mut client = PlainFrames::connect(other);
    let reply = client.call("/v1/acquire", &json!({"key": "orders", "ttl_seconds": 60}));
    assert_eq!(reply.field(Field::Server), Some(url.as_str()), "{reply:?}");
    let (_, status, lease) = parts(reply);
    assert_eq!(status, 200, "{lease}");
    // A refusal too.
    let reply = client.call("/v1/acquire", &json!({"key": "orders"}));
    assert_eq!(reply.field(Field::Server), Some(url.as_str()), "{reply:?}");
    let (_, status, refusal) = parts(reply);
    assert_eq!((status, refusal["error"].as_str()), (409, Some("waiting")));
    let own = PlainFrames::connect(owner).call("/v1/acquire", &json!({"key": "orders"}));
    assert_eq!(own.field(Field::Server), None, "it was not forwarded");
    assert_eq!(parts(own).1, 409);
    let header = format!("x-lease-id: {}\r\n", lease["lease_id"].as_str().expect("a credential"));
    client.post("/v1/update_state?key=orders", &header, &json!({"n": 1}));
    let (_, status, updated) = parts(client.receive().expect("a reply"));
    assert_eq!((status, &updated["new_version"]), (200, &json!(1)), "{updated}");
    let (_, status, _) = parts(client.call("/v1/release", &json!({"lease_id": lease["lease_id"]})));
    assert_eq!(status, 200);
}

/// A waiter is forwarded like any other request, and its connection carries others meanwhile. If it is cancelled, it leaves the
/// queue of the owner.
#[test]
fn a_waiter_in_a_frame_is_granted_by_the_owner_and_one_that_is_cancelled_is_not() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let servers = servers(&objects, dir.path(), 2, &[]);
    let (owner, other) = (&servers[0].address, &servers[1].address);
    let (_, held) =
        post(owner, "/v1/acquire", &json!({"key": "queue", "ttl_seconds": 60})).expect("a response");
    let mut client = PlainFrames::connect(other);
    let blocking = json!({"key": "queue", "ttl_seconds": 60, "block_seconds": 30});
    let cancelled = client.post("/v1/acquire", "", &blocking);
    until("the first waits", || waiters(owner, "queue") == 1);
    let waiting = client.post("/v1/acquire", "", &blocking);
    until("both wait", || waiters(owner, "queue") == 2);
    assert_eq!(parts(client.call("/v1/acquire", &json!({"key": "free"}))).1, 200, "behind them");
    client.stream.write_all(&control(&Message::Cancel(RequestId(cancelled)))).expect("it reads");
    assert_eq!(client.receive(), Some(Reply::Aborted(cancelled)));
    until("one waits", || waiters(owner, "queue") == 1);
    post(owner, "/v1/release", &json!({"lease_id": held["lease_id"]})).expect("a response");
    let (id, status, granted) = parts(client.receive().expect("a reply"));
    assert_eq!((id, status), (waiting, 200), "{granted}");
    assert!(granted["fencing_token"].as_u64() > held["fencing_token"].as_u64());
}

#[test]
fn a_server_that_stops_says_so_in_frames_and_one_that_is_killed_breaks_the_connection() {
    let (objects, dir) = (object_server(0), tempfile::tempdir().expect("a directory"));
    let mut servers = servers(&objects, dir.path(), 3, &["--drain-timeout", "1s"]);
    let owner = servers[0].address.clone();
    post(&owner, "/v1/acquire", &json!({"key": "queue", "ttl_seconds": 60})).expect("a response");
    let blocking = json!({"key": "queue", "ttl_seconds": 60, "block_seconds": 30});
    let wait = |address: &str| {
        let mut client = PlainFrames::connect(address);
        let id = client.post("/v1/acquire", "x-idempotency-key: once\r\n", &blocking);
        until("it waits", || waiters(&owner, "queue") == 1);
        (client, id)
    };
    let (mut client, id) = wait(&servers[2].address);
    let mut stopped = servers.remove(2);
    stopped.signal(Signal::TERM);
    let mut replies = Vec::new();
    while let Some(reply) = client.receive() {
        replies.push(reply);
    }
    assert!(replies.contains(&Reply::GoAway(id)), "{replies:?}");
    // The owner has the waiter, and does not stop: the connection may break without a reply, as one of HTTP.
    let others = replies.iter().filter(|reply| !matches!(reply, Reply::GoAway(_))).count();
    assert!(others <= 1, "{replies:?}");
    assert_eq!(stopped.exit_status().code(), Some(0));
    until("the waiter has left the queue", || waiters(&owner, "queue") == 0);

    let (mut client, _) = wait(&servers[1].address);
    // SIGKILL.
    drop(servers.remove(1));
    assert_eq!(client.receive(), None);
    until("the waiter has left the queue", || waiters(&owner, "queue") == 0);
}
