//! Clients that acquire leases, use them, release them or not, and retry requests without a response.

use kernel::{
    Action, Age, AgentAnnouncement, AgentName, Bundle, Command, Commit, Credential, Etag, Granted,
    IdempotencyKey, Identity, LeaseId, LeaseRequest, Location, Member, Namespace, OnExpiry, Predicate,
    Removal, Renewal, RequestKey, ResourceName, SessionName, Span, Time, Version, Write,
};

use engine::waiters::Attempt;

use crate::rng::Rng;
use crate::servers::clock::TrueTime;

/// One client.
pub struct Client {
    /// Its identity.
    pub identity: Identity,
    session: SessionName,
    agent: AgentName,
    /// Leases that it holds or has held, as far as it knows, the newest last.
    known: Vec<KnownLease>,
    /// A request without a response so far, which it may retry.
    unanswered: Option<(Command, Option<PresentedAttempt>)>,
    /// A request for a lease that was blocked, for its retries.
    blocked: Option<BlockedRequest>,
    /// A request whose token was used for a grant. It is presented again, in vain.
    used: Option<(Action, Attempt)>,
}

/// A request for a lease that was blocked, as its client remembers it.
struct BlockedRequest {
    action: Action,
    attempt: Attempt,
    /// The number of its first try; 0 if unknown.
    first: u64,
    /// When its last response arrived.
    at: TrueTime,
    /// Tries without a response.
    unanswered: usize,
    /// Its client was granted a lease since, perhaps by this attempt.
    was_granted: bool,
    /// It was certainly granted a lease, by the server that runs: its token does not count any more.
    is_used: bool,
    /// No server has started since its last response.
    is_of_this_server: bool,
}

/// A token that a request presents.
#[derive(Clone, Copy, Debug)]
pub struct PresentedAttempt {
    /// The token.
    pub attempt: Attempt,
    /// The number of the first try; 0 if unknown.
    pub first: u64,
    /// Whether it certainly counts, and the request stands at the place of its first try.
    pub is_certain: bool,
    /// Whether it certainly does not count: its grant was used, or it has lapsed. The request stands at the end.
    pub is_void: bool,
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
            blocked: None,
            used: None,
        }
    }

    /// Its next request. `id` is the id of a new document, and the idempotency key.
    pub fn next(
        &mut self,
        rng: &mut Rng,
        now: (Time, TrueTime),
        id: u64,
    ) -> (Command, Option<Content>, Option<PresentedAttempt>) {
        if let Some((command, presented)) = self.unanswered.clone().filter(|_| rng.one_in(2)) {
            // The first try may be granted its lease before this one arrives.
            self.distrust();
            let presented = presented.map(|presented| PresentedAttempt { is_certain: false, ..presented });
            return (command, None, presented);
        }
        let used = self.used.clone().filter(|_| rng.one_in(3)).map(|(action, attempt)| {
            (action, PresentedAttempt { attempt, first: 0, is_certain: false, is_void: true })
        });
        let retry = used.or_else(|| rng.one_in(4).then(|| self.retry(now.1)).flatten());
        let (action, content, presented) = if let Some((action, presented)) = retry {
            (action, None, Some(presented))
        } else {
            let (action, content) = self.action(rng, now.0, id);
            (action, content, None)
        };
        let operator = matches!(action, Action::Revoke(_) | Action::Reclaim(_));
        let identity =
            if operator { Identity::new("operator").expect("a valid name") } else { self.identity.clone() };
        let mut command = Command::by(&identity, action);
        if rng.one_in(2) {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&id.to_le_bytes());
            command = command.with_request(IdempotencyKey { key: RequestKey(key), fingerprint: key });
            // A retry of a commit would have to send the document again.
            self.unanswered = content.is_none().then(|| (command.clone(), presented));
        }
        (command, content, presented)
    }

    /// The next try of a request that was blocked.
    fn retry(&mut self, now: TrueTime) -> Option<(Action, PresentedAttempt)> {
        let blocked = self.blocked.as_mut()?;
        let is_recent = now.0 - blocked.at.0 < RETRY_MAX_MS;
        let is_certain = is_recent
            && blocked.first > 0
            && blocked.unanswered == 0
            && !blocked.was_granted
            && keeps_place(&blocked.action);
        let is_lapsed = blocked.is_of_this_server && now.0 - blocked.at.0 > LAPSED_MS;
        let is_void = blocked.is_used || is_lapsed;
        blocked.unanswered += 1;
        let presented =
            PresentedAttempt { attempt: blocked.attempt, first: blocked.first, is_certain, is_void };
        Some((blocked.action.clone(), presented))
    }

    /// Copies of one try are on their way, and more than one may get a response: whether the token counts is unknown
    /// from now on.
    pub fn distrust(&mut self) {
        if let Some(blocked) = &mut self.blocked {
            blocked.first = 0;
        }
    }

    /// The command got a response.
    pub fn responded(&mut self, command: &Command) {
        if self.unanswered.as_ref().is_some_and(|(unanswered, _)| unanswered.request == command.request) {
            self.unanswered = None;
        }
    }

    /// A server has started: it may not know what the one before has granted, and its time may be behind.
    pub fn server_started(&mut self) {
        if let Some(blocked) = &mut self.blocked {
            (blocked.is_used, blocked.is_of_this_server) = (false, false);
        }
        self.used = None;
    }

    /// It was granted a lease, by a request that may have presented a token.
    pub fn granted(
        &mut self,
        granted: &Granted,
        bundle: Option<&Bundle>,
        presented: Option<PresentedAttempt>,
    ) {
        let writable = |member: &&Member| member.resource.is_key() && member.predicate.may_write();
        let key = bundle.and_then(|bundle| bundle.members().iter().find(writable));
        let before = self.known.iter().find(|known| known.held.lease == granted.lease);
        let key =
            key.map(|member| member.resource.clone()).or_else(|| before.and_then(|known| known.key.clone()));
        self.known.push(KnownLease { held: Credential { lease: granted.lease, epoch: granted.epoch }, key });
        if self.known.len() > 6 {
            self.known.remove(0);
        }
        if let Some(blocked) = &mut self.blocked {
            blocked.was_granted = true;
            let is_its_grant = |presented: PresentedAttempt| {
                presented.is_certain && presented.attempt.arrival == blocked.attempt.arrival
            };
            if blocked.is_of_this_server && presented.is_some_and(is_its_grant) {
                blocked.is_used = true;
                self.used = Some((blocked.action.clone(), blocked.attempt));
            }
        }
    }

    /// Its request was blocked, or dismissed while it waited; a retry may present this attempt. The time is that of the
    /// response, with whether the server that wrote it runs.
    pub fn blocked(
        &mut self,
        number: u64,
        command: &Command,
        presented: Option<PresentedAttempt>,
        attempt: Attempt,
        (at, is_current): (TrueTime, bool),
    ) {
        let same = presented.filter(|presented| presented.attempt.arrival == attempt.arrival);
        if let Some(blocked) =
            self.blocked.as_mut().filter(|blocked| same.is_some_and(|same| same.first == blocked.first))
        {
            blocked.unanswered = blocked.unanswered.saturating_sub(1);
            (blocked.attempt, blocked.at) = (attempt, at);
            blocked.is_of_this_server = is_current;
            return;
        }
        // A request with an idempotency key may have taken the place of an earlier one: its first try is unknown.
        let first = same.map_or(if command.request.is_some() { 0 } else { number }, |same| same.first);
        let action = command.action.clone();
        let unanswered = usize::from(same.is_some());
        self.blocked = Some(BlockedRequest {
            action,
            attempt,
            first,
            at,
            unanswered,
            was_granted: false,
            is_used: false,
            is_of_this_server: is_current,
        });
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
        let attempt = rng.one_in(4).then(|| Age { at: Time(now.0.saturating_sub(rng.below(100))), tie: id });
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
            agent: attempt.is_some().then(|| self.agent.clone()),
            session: (attempt.is_some() || rng.one_in(2)).then(|| self.session.clone()),
            attempt,
            reason: None,
            metadata: None,
        };
        if rng.one_in(8) { Action::Reserve(grant) } else { Action::Acquire(grant) }
    }
}

/// A retry within this time of the last response certainly counts, in milliseconds.
const RETRY_MAX_MS: u64 = 60_000;
/// A retry later than this after the last response certainly does not count: the time after which tokens lapse, and the
/// drift of clocks.
const LAPSED_MS: u64 = Attempt::IDLE_MAX.0 + 5_000;

/// Whether a retry of this request returns to the place of its first try: for one exclusive name, without a session, no deadlock
/// cycle can keep it behind another waiter.
fn keeps_place(action: &Action) -> bool {
    let (Action::Acquire(request) | Action::Reserve(request)) = action else { return false };
    let [only] = request.bundle.members() else { return false };
    only.predicate.is_exclusive() && only.resource.is_key() && request.session.is_none()
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
