//! One client of the linearizability test: sends requests to any server, and retries each under its idempotency key until
//! there is a decision.
//!
//! A try whose connection breaks or times out, or that gets a 503, may have been decided, or may be decided later: by a
//! server that was paused. A grant that reaches no client is undone, and until then it blocks other requests. So a conflict
//! is judged only if no conflicting acquire was unsettled at that time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kernel::{Epoch, Etag, LeaseId, Predicate, Time, Token, Version};
use serde_json::{Value, json};
use sim::linearizability::Call;
use sim::linearizability::operation::{CallResult, CredentialRefusal, Held, Members, Op, WriteCall};
use sim::rng::Rng;

use super::super::bucket::wait_ms;

/// The keys of a history.
pub(super) const KEYS: usize = 2;
/// A try without a response ends after this time.
const TRY_TIMEOUT: Duration = Duration::from_millis(1500);
/// The most tries of a request: with the pause between two, over a minute.
const TRIES_MAX: u32 = 600;

/// All calls of some clients on keys of their own, each from its first try to its response.
#[derive(Default)]
pub(super) struct History {
    name: String,
    counter: AtomicU64,
    failed_tries: AtomicU64,
    calls: Mutex<Vec<Call<Op>>>,
    unsettled: Mutex<Vec<UnsettledAcquire>>,
}

/// An acquire that may have held its resources without a response that shows it.
struct UnsettledAcquire {
    members: Members,
    invoked: u64,
    settled: u64,
}

impl History {
    pub(super) fn new(name: &str) -> History {
        History { name: name.to_string(), ..History::default() }
    }

    fn key(&self, resource: usize) -> String {
        format!("{}-{resource}", self.name)
    }

    fn count(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    /// The number of tries without a decision.
    pub(super) fn failed_tries(&self) -> u64 {
        self.failed_tries.load(Ordering::Relaxed)
    }

    fn record(&self, invoked: u64, request: Option<u64>, result: CallResult) {
        let call = Call { op: Op { request, result }, invoked, returned: self.count() };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// All calls that can be judged.
    pub(super) fn calls(&self) -> Vec<Call<Op>> {
        let unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |call: &Call<Op>, members: &Members, other: &UnsettledAcquire| {
            let shares = |resource: usize| other.members.iter().any(|(theirs, _)| *theirs == resource);
            let at_once = call.invoked < other.settled && other.invoked < call.returned;
            call.invoked != other.invoked && at_once && members.iter().any(|(resource, _)| shares(*resource))
        };
        let is_judged = |call: &&Call<Op>| match &call.op.result {
            CallResult::Blocked { members, .. } => {
                !unsettled.iter().any(|other| overlaps(call, members, other))
            }
            _ => true,
        };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(is_judged).cloned().collect()
    }
}

/// A client.
pub(super) struct Client<'a> {
    addresses: &'a [String],
    history: &'a History,
    rng: Rng,
    next_key: u64,
    lease: Option<HeldLease>,
}

struct HeldLease {
    credential: String,
    held: Held,
    members: Members,
}

/// A response, with the time of the first try and the number of tries without a decision.
struct Settled {
    status: u16,
    body: Value,
    invoked: u64,
    failed: u32,
}

impl<'a> Client<'a> {
    pub(super) fn new(addresses: &'a [String], history: &'a History, seed: u64) -> Client<'a> {
        Client { addresses, history, rng: Rng::new(seed), next_key: seed << 20, lease: None }
    }

    /// Sends requests until `is_over`.
    pub(super) fn run(mut self, is_over: impl Fn() -> bool) {
        while !is_over() {
            match (self.rng.below(8), self.lease.is_some()) {
                (0..=4, false) => self.acquire(),
                (0..=2, true) => self.write("update_state"),
                (3, true) => self.write("remove_state"),
                (4..=5, true) => self.release(),
                _ => self.describe(),
            }
            wait_ms(self.rng.below(5));
        }
        self.release();
        self.describe();
    }

    fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.rng.below(below as u64)).expect("below a length")
    }

    fn acquire(&mut self) {
        let (first, count) = (self.number(KEYS), 1 + self.number(KEYS));
        let predicate = if self.rng.one_in(4) { Predicate::Consumes } else { Predicate::Mutates };
        let members: Members = (first..first + count).map(|key| (key % KEYS, predicate)).collect();
        let resources = members.iter().map(|(key, predicate)| {
            json!({"kind": "KEY", "name": self.history.key(*key), "predicate": predicate.as_str()})
        });
        let body = json!({"resources": resources.collect::<Vec<_>>(), "ttl_seconds": 300}).to_string();
        let (number, settled) = self.settle("POST /v1/acquire", "", &body);
        let Settled { status, body, invoked, failed } = settled;
        let result = acquired(status, &body, &members);
        let is_granted = matches!(result, CallResult::Granted { .. });
        if failed > 0 {
            let settled = if is_granted { self.history.count() } else { u64::MAX };
            let acquire = UnsettledAcquire { members: members.clone(), invoked, settled };
            self.history.unsettled.lock().unwrap_or_else(PoisonError::into_inner).push(acquire);
        }
        self.history.record(invoked, Some(number), result);
        if is_granted {
            let held = Held { lease: lease_id(&body).lsn, epoch: epoch_of(&body) };
            let credential = body["lease_id"].as_str().expect("a credential").to_string();
            self.lease = Some(HeldLease { credential, held, members });
        }
    }

    fn write(&mut self, call: &str) {
        let lease = self.lease.as_ref().expect("it holds a lease");
        let (held, headers) = (lease.held, format!("x-lease-id: {}\r\n", lease.credential));
        let resource = self.rng.pick(&lease.members).0;
        let content =
            if call == "update_state" { json!({"by": self.next_key}).to_string() } else { String::new() };
        let line = format!("POST /v1/{call}?key={}", self.history.key(resource));
        let (number, settled) = self.settle(&line, &headers, &content);
        let result = written(&settled, WriteCall { held, resource, if_version: None, release: false });
        let is_applied =
            matches!(result, CallResult::Committed { .. } | CallResult::Removed { removed: true, .. });
        self.history.record(settled.invoked, Some(number), result);
        if settled.failed > 0 && !is_applied {
            // A lost try may still be on its way, and nothing is stored under its key: end its authority.
            self.release();
        }
    }

    fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let body = json!({"lease_id": lease.credential}).to_string();
        let (_, settled) = self.settle("POST /v1/release", "", &body);
        assert_eq!(settled.status, 200, "{}", settled.body);
        self.history.record(settled.invoked, None, CallResult::ReleasedOrEnded(lease.held));
    }

    fn describe(&mut self) {
        let resource = self.number(KEYS);
        let head = format!("GET /v1/describe?key={}", self.history.key(resource));
        let (_, Settled { status, body, invoked, .. }) = self.settle(&head, "", "");
        let found = match status {
            200 => Some((version_of(&body["version"]), etag_of(&body["state_etag"]))),
            404 => None,
            other => panic!("describe: {other} {body}"),
        };
        self.history.record(invoked, None, CallResult::Read { at: None, resource, found, holders: None });
    }

    /// Sends a request to one server after the other until there is a decision; its idempotency key.
    fn settle(&mut self, head: &str, headers: &str, body: &str) -> (u64, Settled) {
        self.next_key += 1;
        let headers = format!("{headers}x-idempotency-key: key-{}\r\n", self.next_key);
        let (invoked, first) = (self.history.count(), self.number(self.addresses.len()));
        for failed in 0..TRIES_MAX {
            let address = &self.addresses[(first + failed as usize) % self.addresses.len()];
            match send(address, head, &headers, body) {
                Some((status, body)) if status < 500 && status != 421 => {
                    return (self.next_key, Settled { status, body, invoked, failed });
                }
                _ => {
                    self.history.failed_tries.fetch_add(1, Ordering::Relaxed);
                    wait_ms(100);
                }
            }
        }
        panic!("no decision after {TRIES_MAX} tries: {head} {body}");
    }
}

fn send(address: &str, head: &str, headers: &str, body: &str) -> Option<(u16, Value)> {
    let address: SocketAddr = address.parse().expect("an address");
    let mut stream = TcpStream::connect_timeout(&address, TRY_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TRY_TIMEOUT)).ok()?;
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    if length.is_some_and(|length: usize| length != body.len()) {
        return None;
    }
    Some((head.get(9..12)?.parse().ok()?, serde_json::from_str(body).unwrap_or(Value::Null)))
}

fn acquired(status: u16, body: &Value, members: &Members) -> CallResult {
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

fn written(settled: &Settled, write: WriteCall) -> CallResult {
    let Settled { status, body, .. } = settled;
    match status {
        200 if body["removed"].is_boolean() => CallResult::Removed {
            write,
            removed: body["removed"] == json!(true),
            version: version_of(&body["new_version"]),
        },
        200 => CallResult::Committed {
            write,
            etag: etag_of(&body["new_state_etag"]).expect("a document"),
            version: version_of(&body["new_version"]),
        },
        403 if body["error"] == "not_held" => CallResult::Refused {
            held: write.held,
            written: Some(write.resource),
            why: CredentialRefusal::NotHeld,
        },
        other => panic!("write: {other} {body}"),
    }
}

fn lease_id(body: &Value) -> LeaseId {
    body["public_id"].as_str().and_then(LeaseId::parse).expect("a public id")
}

fn epoch_of(body: &Value) -> Epoch {
    Epoch(body["lease_epoch"].as_u64().expect("an epoch"))
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
