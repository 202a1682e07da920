//! One client: a connection for each try, some of which it resets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kernel::{Epoch, Etag, LeaseId, Predicate, Time, Token, Version};
use serde_json::{Value, json};
use sim::linearizability::operation::{CallResult, CredentialRefusal, Held, Members, Op, WriteCall};
use sim::rng::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::history::{History, KEYS};

/// The last try of a request is never reset.
const TRIES_MAX: u32 = 6;
/// The longest delay before a reset, in microseconds.
const DELAY_MAX: u64 = 1500;

pub(super) struct Client {
    address: SocketAddr,
    history: Arc<History>,
    rng: Rng,
    next_key: u64,
    lease: Option<HeldLease>,
    /// The last acquire that was granted, to be retried later.
    granted: Option<(HttpRequest, u64, Members)>,
}

struct HeldLease {
    credential: String,
    held: Held,
    members: Members,
}

#[derive(Clone)]
struct HttpRequest {
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
}

struct HttpResponse {
    status: u16,
    body: Value,
}

/// A response, with the time of the first try and the number of tries that were reset.
struct Settled {
    response: HttpResponse,
    invoked: u64,
    resets: u32,
}

impl Client {
    pub(super) fn new(address: SocketAddr, history: Arc<History>, seed: u64) -> Client {
        Client { address, history, rng: Rng::new(seed), next_key: seed << 16, lease: None, granted: None }
    }

    pub(super) async fn run(&mut self, calls: u32) {
        for _ in 0..calls {
            self.one_call().await;
        }
        self.release().await;
        for resource in 0..KEYS {
            self.describe(resource).await;
        }
    }

    async fn one_call(&mut self) {
        match (self.rng.below(10), self.lease.is_some()) {
            (0..=3, false) => self.acquire().await,
            (0..=2, true) => self.update().await,
            (3..=4, true) => self.remove().await,
            (5..=6, true) => self.release().await,
            (7, _) => self.retry_granted().await,
            _ => {
                let resource = self.number(KEYS);
                self.describe(resource).await;
            }
        }
    }

    fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.rng.below(below as u64)).expect("below a length")
    }

    async fn acquire(&mut self) {
        let (first, count) = (self.number(KEYS), 1 + self.number(KEYS));
        let predicate = if self.rng.one_in(4) { Predicate::Consumes } else { Predicate::Mutates };
        let members: Members = (first..first + count).map(|key| (key % KEYS, predicate)).collect();
        let resource = |(key, predicate): &(usize, Predicate)| json!({"kind": "KEY", "name": self.history.key(*key), "predicate": predicate.as_str()});
        let resources: Vec<Value> = members.iter().map(resource).collect();
        let waits = self.rng.one_in(5);
        let body = json!({"resources": resources, "ttl_seconds": 300, "block_seconds": i32::from(waits)});
        let (request, number) = self.request("/v1/acquire".into(), Vec::new(), &body.to_string());
        let settled = self.settle(&request).await;
        let result = acquired(&settled.response, &members);
        let (invoked, returned) = (settled.invoked, self.history.count());
        let stored = matches!(result, CallResult::Granted { .. });
        if settled.resets > 0 || waits {
            let settled = (stored || settled.resets == 0).then_some(returned);
            self.history.unsettled(members.clone(), invoked, settled);
        }
        self.history.record(invoked, returned, Op { request: Some(number), result });
        if stored {
            self.lease = Some(lease_of(&settled.response, members.clone()));
            self.granted = Some((request, number, members));
        }
    }

    /// Repeats an acquire that was granted: the same lease, or its end.
    async fn retry_granted(&mut self) {
        let Some((request, number, members)) = self.granted.clone() else { return };
        let settled = self.settle(&request).await;
        let result = acquired(&settled.response, &members);
        self.history.record(settled.invoked, self.history.count(), Op { request: Some(number), result });
    }

    async fn update(&mut self) {
        let content = json!({"by": self.next_key}).to_string();
        self.write("update_state", &content).await;
    }

    async fn remove(&mut self) {
        self.write("remove_state", "").await;
    }

    async fn write(&mut self, call: &str, body: &str) {
        let lease = self.lease.as_ref().expect("it holds a lease");
        let (credential, held) = (lease.credential.clone(), lease.held);
        let resource = self.rng.pick(&lease.members).0;
        let if_version = self.rng.one_in(3).then(|| Version(self.rng.below(12)));
        let release = self.rng.one_in(6);
        let mut headers = vec![("x-lease-id", credential)];
        headers.extend(if_version.map(|version| ("x-if-version", version.0.to_string())));
        let path = format!(
            "/v1/{call}?key={}{}",
            self.history.key(resource),
            if release { "&release=1" } else { "" }
        );
        let (request, number) = self.request(path, headers, body);
        let settled = self.settle(&request).await;
        let write = WriteCall { held, resource, if_version, release };
        let result = written(&settled.response, write);
        let applied = match result {
            CallResult::Committed { .. } | CallResult::Removed { removed: true, .. } => true,
            CallResult::Removed { .. } => release,
            _ => false,
        };
        let op = Op { request: Some(number), result };
        self.history.record(settled.invoked, self.history.count(), op);
        if release && applied {
            self.lease = None;
        } else if settled.resets > 0 && !applied {
            // A lost try may still be on its way, and nothing is stored under its key: end its authority.
            self.release().await;
        }
    }

    async fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let body = json!({"lease_id": lease.credential}).to_string();
        let (request, _) = self.request("/v1/release".into(), Vec::new(), &body);
        let settled = self.settle(&request).await;
        let HttpResponse { status, body } = &settled.response;
        assert_eq!(*status, 200, "{body}");
        let result = CallResult::ReleasedOrEnded(lease.held);
        self.history.record(settled.invoked, self.history.count(), Op { request: None, result });
    }

    async fn describe(&mut self, resource: usize) {
        let path = format!("/v1/describe?key={}", self.history.key(resource));
        let request = HttpRequest { path, headers: Vec::new(), body: String::new() };
        let invoked = self.history.count();
        let HttpResponse { status, body } = self.complete("GET", &request).await;
        let found = match status {
            200 => Some((version_of(&body["version"]), etag_of(&body["state_etag"]))),
            404 => None,
            other => panic!("describe: {other} {body}"),
        };
        let result = CallResult::Read { at: None, resource, found, holders: None };
        self.history.record(invoked, self.history.count(), Op { request: None, result });
    }

    /// A request under a new idempotency key.
    fn request(
        &mut self,
        path: String,
        mut headers: Vec<(&'static str, String)>,
        body: &str,
    ) -> (HttpRequest, u64) {
        self.next_key += 1;
        headers.push(("x-idempotency-key", format!("key-{}", self.next_key)));
        (HttpRequest { path, headers, body: body.into() }, self.next_key)
    }

    /// Sends a request until there is a response. Each try but the last may be reset.
    async fn settle(&mut self, request: &HttpRequest) -> Settled {
        let (invoked, mut resets) = (self.history.count(), 0);
        let unreliable = self.rng.one_in(2);
        while unreliable && resets < TRIES_MAX && !self.rng.one_in(3) {
            self.reset_midway(request).await;
            self.history.count_reset();
            resets += 1;
        }
        let mut response = self.complete("POST", request).await;
        // A lost try was decided after this one, and took its place in the queue.
        while response.status == 503 {
            resets += 1;
            response = self.complete("POST", request).await;
        }
        Settled { response, invoked, resets }
    }

    /// Sends a part of a request or all of it, waits or reads the first byte of the response, and resets the
    /// connection.
    async fn reset_midway(&mut self, request: &HttpRequest) {
        let (text, mut stream) = (request.text("POST"), self.connect().await);
        let sent = if self.rng.one_in(6) { self.number(text.len()) } else { text.len() };
        stream.write_all(&text.as_bytes()[..sent]).await.expect("the server reads");
        match self.rng.below(3) {
            0 => {}
            1 => tokio::time::sleep(Duration::from_micros(self.rng.below(DELAY_MAX))).await,
            // A waiting acquire has no response for a while.
            _ if sent == text.len() => {
                let first = stream.read_u8();
                let _ = tokio::time::timeout(Duration::from_millis(20), first).await;
            }
            _ => {}
        }
        stream.set_zero_linger().expect("a socket");
    }

    async fn complete(&self, method: &str, request: &HttpRequest) -> HttpResponse {
        let mut stream = self.connect().await;
        stream.write_all(request.text(method).as_bytes()).await.expect("the server reads");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.expect("the server responds");
        let text = String::from_utf8(response).expect("JSON is UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole response");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        HttpResponse {
            status: status.expect("a status"),
            body: serde_json::from_str(body).unwrap_or(Value::Null),
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the server listens")
    }
}

impl HttpRequest {
    fn text(&self, method: &str) -> String {
        let HttpRequest { path, headers, body } = self;
        let headers: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let headers = headers.concat();
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
        )
    }
}

fn acquired(response: &HttpResponse, members: &Members) -> CallResult {
    let HttpResponse { status, body } = response;
    match (status, body["error"].as_str()) {
        (200, _) => CallResult::Granted {
            lease: lease_id(body).lsn,
            token: Token(body["fencing_token"].as_u64().expect("a token")),
            at: None,
            deadline: Time::NEVER,
            hold: None,
            members: members.clone(),
        },
        (409, Some("waiting")) => CallResult::Blocked { members: members.clone(), by: None },
        (403, Some("lease_expired")) => CallResult::ReplayRefused(CredentialRefusal::Expired),
        other => panic!("acquire: {other:?} {body}"),
    }
}

fn written(response: &HttpResponse, write: WriteCall) -> CallResult {
    let HttpResponse { status, body } = response;
    match (status, body["error"].as_str()) {
        (200, _) if body["removed"].is_boolean() => CallResult::Removed {
            write,
            removed: body["removed"] == json!(true),
            version: version_of(&body["new_version"]),
        },
        (200, _) => CallResult::Committed {
            write,
            etag: etag_of(&body["new_state_etag"]).expect("a document"),
            version: version_of(&body["new_version"]),
        },
        (409, Some("version_conflict")) => CallResult::VersionConflict {
            write,
            found: (version_of(&body["current_version"]), etag_of(&body["current_etag"])),
        },
        (403, Some("not_held")) => CallResult::Refused {
            held: write.held,
            written: Some(write.resource),
            why: CredentialRefusal::NotHeld,
        },
        other => panic!("write: {other:?} {body}"),
    }
}

fn lease_of(response: &HttpResponse, members: Members) -> HeldLease {
    let body = &response.body;
    let epoch = Epoch(body["lease_epoch"].as_u64().expect("an epoch"));
    let credential = body["lease_id"].as_str().expect("a credential").to_string();
    HeldLease { credential, held: Held { lease: lease_id(body).lsn, epoch }, members }
}

fn lease_id(body: &Value) -> LeaseId {
    body["public_id"].as_str().and_then(LeaseId::parse).expect("a public id")
}

fn version_of(value: &Value) -> Version {
    Version(value.as_u64().expect("a version"))
}

/// An empty text, or none, means that there is no document.
fn etag_of(value: &Value) -> Option<Etag> {
    let text = value.as_str().filter(|text| !text.is_empty())?;
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hexadecimal");
    Some(Etag(std::array::from_fn(byte)))
}
