//! Clients that acquire leases, use them, release them or not, and retry requests without a response.

use kernel::{
    Action, Age, AgentAnnouncement, AgentName, Bundle, Command, Commit, Credential, Etag, Granted,
    IdempotencyKey, Identity, LeaseId, LeaseRequest, Location, Member, Namespace, OnExpiry, Predicate,
    Removal, Renewal, RequestKey, ResourceName, SessionName, Span, Time, Version, Write,
};

use crate::rng::Rng;

/// One client.
pub struct Client {
    /// Its identity.
    pub identity: Identity,
    session: SessionName,
    agent: AgentName,
    /// Leases that it holds or has held, as far as it knows, the newest last.
    known: Vec<KnownLease>,
    /// A request without a response so far, which it may retry.
    unanswered: Option<Command>,
    /// The age of an attempt that died under wait-die, for the retry.
    attempt: Option<Age>,
}

struct KnownLease {
    held: Credential,
    key: Option<ResourceName>,
}

/// A unique document, which can be generated again from its etag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Unique among all documents.
    pub id: u64,
    /// Its length in bytes.
    pub length: usize,
}

impl Content {
    /// An etag that encodes id and length.
    pub fn etag(self) -> Etag {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.length as u64).to_le_bytes());
        Etag(bytes)
    }

    /// The document of an etag.
    pub fn of(etag: Etag) -> Content {
        let word = |at: usize| u64::from_le_bytes(etag.0[at..at + 8].try_into().expect("eight bytes"));
        Content { id: word(0), length: usize::try_from(word(8)).expect("short") }
    }

    /// Its bytes.
    pub fn bytes(self) -> Vec<u8> {
        let mut rng = Rng::new(self.id);
        (0..self.length).map(|_| rng.small(255)).collect()
    }
}

/// The namespace of all clients.
pub fn namespace() -> Namespace {
    Namespace::new("main").expect("a valid name")
}

const KEYS: [&str; 8] = ["KEY:a", "KEY:b", "KEY:c", "KEY:d", "KEY:e", "KEY:f", "KEY:g", "KEY:h"];
const FILES: [&str; 5] = ["FILE:/x", "FILE:/x/y", "FILE:/x/*", "FILE:/z", "FILE:/*"];

impl Client {
    /// The client of this number.
    pub fn new(number: usize) -> Client {
        let name = format!("client-{number}");
        Client {
            identity: Identity::new(&name).expect("a valid name"),
            session: SessionName::new(&name).expect("a valid name"),
            agent: AgentName::new(&name).expect("a valid name"),
            known: Vec::new(),
            unanswered: None,
            attempt: None,
        }
    }

    /// Its next request. `id` is the id of a new document, and the idempotency key.
    pub fn next(&mut self, rng: &mut Rng, now: Time, id: u64) -> (Command, Option<Content>) {
        if let Some(command) = self.unanswered.clone().filter(|_| rng.one_in(2)) {
            return (command, None);
        }
        let (action, content) = self.action(rng, now, id);
        let operator = matches!(action, Action::Revoke(_) | Action::Reclaim(_));
        let identity =
            if operator { Identity::new("operator").expect("a valid name") } else { self.identity.clone() };
        let mut command = Command::by(&identity, action);
        if rng.one_in(2) {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&id.to_le_bytes());
            command = command.with_request(IdempotencyKey { key: RequestKey(key), fingerprint: key });
            // A retry of a commit would have to send the document again.
            self.unanswered = content.is_none().then(|| command.clone());
        }
        (command, content)
    }

    /// The command got a response.
    pub fn responded(&mut self, command: &Command) {
        if self.unanswered.as_ref() == Some(command) {
            self.unanswered = None;
        }
    }

    /// It was granted a lease.
    pub fn granted(&mut self, granted: &Granted, bundle: Option<&Bundle>) {
        let writable = |member: &&Member| member.resource.is_key() && member.predicate.may_write();
        let key = bundle.and_then(|bundle| bundle.members().iter().find(writable));
        let before = self.known.iter().find(|known| known.held.lease == granted.lease);
        let key =
            key.map(|member| member.resource.clone()).or_else(|| before.and_then(|known| known.key.clone()));
        self.known.push(KnownLease { held: Credential { lease: granted.lease, epoch: granted.epoch }, key });
        if self.known.len() > 6 {
            self.known.remove(0);
        }
        self.attempt = None;
    }

    /// Its attempt died under wait-die; the retry keeps this age.
    pub fn died(&mut self, attempt: Option<Age>) {
        self.attempt = attempt;
    }

    /// Its release of a lease succeeded.
    pub fn released(&mut self, lease: LeaseId) {
        self.known.retain(|known| known.held.lease != lease);
    }

    fn action(&mut self, rng: &mut Rng, now: Time, id: u64) -> (Action, Option<Content>) {
        if self.known.is_empty() || rng.below(100) < 20 {
            return (self.lease_request(rng, now, id), None);
        }
        let known = rng.pick(&self.known);
        let (held, key) = (known.held, known.key.clone());
        let action = match rng.below(100) {
            0..25 => Action::Renew(vec![Renewal { held, ttl: rng.one_in(2).then(|| ttl(rng)) }]),
            25..42 => Action::Release(held),
            42..46 => Action::Rebind(held),
            46..48 => Action::Touch(held),
            48..50 => Action::Activate(held),
            50..53 => Action::Revoke(held.lease),
            53..58 => Action::Reclaim(held.lease),
            58..60 => Action::Agent(AgentAnnouncement {
                namespace: namespace(),
                agent: self.agent.clone(),
                restarting: rng.one_in(2),
                operator: false,
            }),
            n => match key {
                Some(key) => return write(rng, held, key, id, n < 65),
                None => Action::Release(held),
            },
        };
        (action, None)
    }

    fn lease_request(&self, rng: &mut Rng, now: Time, id: u64) -> Action {
        let attempt = match self.attempt.filter(|_| rng.one_in(2)) {
            Some(age) => Some(age),
            None => rng.one_in(4).then(|| Age { at: Time(now.0.saturating_sub(rng.below(100))), tie: id }),
        };
        let grant = LeaseRequest {
            namespace: namespace(),
            bundle: bundle(rng),
            ttl: ttl(rng),
            on_expiry: match rng.below(12) {
                0 => OnExpiry::Hold(Span(rng.below(3000))),
                1 => OnExpiry::Manual,
                _ => OnExpiry::Free,
            },
            owner: None,
            agent: (attempt.is_some() && rng.one_in(2)).then(|| self.agent.clone()),
            session: (attempt.is_some() || rng.one_in(2)).then(|| self.session.clone()),
            attempt,
            reason: None,
            metadata: None,
        };
        if rng.one_in(8) { Action::Reserve(grant) } else { Action::Acquire(grant) }
    }
}

fn ttl(rng: &mut Rng) -> Span {
    Span(if rng.one_in(20) { 60_000 } else { 50 + rng.below(5000) })
}

fn bundle(rng: &mut Rng) -> Bundle {
    let members = (0..=rng.below(2)).map(|_| {
        let name = if rng.one_in(6) { *rng.pick(&FILES) } else { *rng.pick(&KEYS) };
        let predicate = if rng.one_in(4) { *rng.pick(&Predicate::ALL) } else { Predicate::Mutates };
        Member { resource: ResourceName::parse(name, None).expect("a valid name"), predicate }
    });
    Bundle::merged(members.collect()).expect("one or two members")
}

fn write(
    rng: &mut Rng,
    held: Credential,
    key: ResourceName,
    id: u64,
    remove: bool,
) -> (Action, Option<Content>) {
    let write = Write {
        held,
        key,
        token: None,
        if_version: rng.one_in(6).then(|| Version(rng.below(20))),
        if_etag: rng.one_in(20).then_some(None),
        release: rng.one_in(5),
    };
    if remove {
        return (Action::Remove(Removal { write }), None);
    }
    let longest = if rng.one_in(4) { 3000 } else { 300 };
    let content = Content { id, length: usize::try_from(rng.below(longest)).expect("short") };
    let commit =
        Commit { write, etag: content.etag(), bytes: content.length as u64, location: Location::default() };
    (Action::Commit(commit), Some(content))
}
