//! One agent: its attempt, the leases it believes to hold, and the time of its next action.

use engine::waiters::{Attempt, WaiterConnection};

use kernel::{
    Action, AgentAnnouncement, AgentName, Bundle, Command, Credential, Granted, IdempotencyKey, Identity,
    LeaseRequest, Member, OnExpiry, Predicate, Renewal, RequestKey, ResourceName, SessionName, Span, Time,
};

use super::{HOLD, after};
use crate::rng::Rng;
use crate::servers::client::namespace;
use crate::servers::clock::TrueTime;

/// The minimum and maximum backoff that the server asks for, in milliseconds: the same as in its `manifest.rs`.
const BACKOFF: (u64, u64) = (100, 5000);

const FILES: [&str; 6] = ["FILE:/a", "FILE:/b", "FILE:/c", "FILE:/c/d", "FILE:/c/*", "KEY:k"];

/// One agent.
pub(super) struct Agent {
    pub(super) identity: Identity,
    name: AgentName,
    session: SessionName,
    sessions: u64,
    /// Its current attempt.
    pub(super) attempt: Option<ManifestAttempt>,
    /// The leases that it believes to hold.
    pub(super) held: Vec<HeldLease>,
    /// The time at which it begins a new attempt, if it may.
    pub(super) idle_until: TrueTime,
}

/// A manifest that it retries until it is granted.
#[derive(Clone, Debug)]
pub(super) struct ManifestAttempt {
    pub(super) bundle: Bundle,
    /// Its token, from the last response.
    pub(super) token: Option<Attempt>,
    /// The time of its first try.
    pub(super) since: TrueTime,
    pub(super) tries: u64,
    pub(super) request: Option<IdempotencyKey>,
    pub(super) next: NextStep,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NextStep {
    /// It sends the next try then.
    RequestAt(TrueTime),
    /// It waits for the response to this request until then.
    AwaitResponse { number: u64, by: TrueTime },
}

pub(super) struct HeldLease {
    pub(super) held: Credential,
    /// The time of its release.
    pub(super) until: TrueTime,
    /// The time of its next renewal.
    pub(super) renew_at: Option<TrueTime>,
    /// The time of its rebind, after a restart.
    pub(super) rebind_at: Option<TrueTime>,
}

/// A request that an agent has sent.
pub(super) struct AgentRequest {
    pub(super) agent: usize,
    pub(super) command: Command,
    pub(super) token: Option<Attempt>,
    /// Set when the client has disconnected and the server can know it.
    pub(super) connection: WaiterConnection,
    pub(super) wait: u64,
    /// The end of its wait, by its server's clock.
    pub(super) until: Option<Time>,
    /// Nothing older held or waited when it arrived, so it must be granted.
    pub(super) must_be_granted: bool,
}

impl Agent {
    pub(super) fn new(number: u64) -> Agent {
        let name = format!("agent-{number}");
        Agent {
            identity: Identity::new(&name).expect("a valid name"),
            name: AgentName::new(&name).expect("a valid name"),
            session: session(&name, 0),
            sessions: 0,
            attempt: None,
            held: Vec::new(),
            idle_until: TrueTime(0),
        }
    }

    /// Loses all memory, and starts a new session.
    pub(super) fn crash(&mut self) {
        self.sessions += 1;
        self.session = session(self.identity.as_str(), self.sessions);
        (self.attempt, self.held) = (None, Vec::new());
    }

    pub(super) fn begin(&mut self, rng: &mut Rng, now: TrueTime) {
        let next = NextStep::RequestAt(now);
        self.attempt = Some(ManifestAttempt {
            bundle: bundle(rng),
            token: None,
            since: now,
            tries: 0,
            request: None,
            next,
        });
    }

    pub(super) fn session(&self) -> &SessionName {
        &self.session
    }

    /// The command that the server makes of the manifest, without an age so far.
    pub(super) fn command(&self, attempt: &ManifestAttempt) -> Command {
        let grant = LeaseRequest {
            namespace: namespace(),
            bundle: attempt.bundle.clone(),
            ttl: Span(HOLD),
            on_expiry: OnExpiry::Free,
            owner: None,
            agent: Some(self.name.clone()),
            session: Some(self.session.clone()),
            attempt: None,
            reason: None,
            metadata: None,
        };
        Command { request: attempt.request, ..Command::by(&self.identity, Action::Acquire(grant)) }
    }

    pub(super) fn announce(&self, restarting: bool) -> Command {
        let news = AgentAnnouncement {
            namespace: namespace(),
            agent: self.name.clone(),
            restarting,
            operator: false,
        };
        Command::by(&self.identity, Action::Agent(news))
    }

    /// It was granted a lease, or rebound one.
    pub(super) fn granted(&mut self, granted: &Granted, now: TrueTime, hold_ms: u64) {
        let held = Credential { lease: granted.lease, epoch: granted.epoch };
        self.held.retain(|known| known.held.lease != granted.lease);
        self.held.push(HeldLease { held, until: after(now, hold_ms), renew_at: None, rebind_at: None });
    }

    /// Schedules the next try, with a backoff that grows with the age of the attempt.
    pub(super) fn back_off(&mut self, rng: &mut Rng, now: TrueTime) {
        let Some(attempt) = &mut self.attempt else { return };
        let span = ((now.0 - attempt.since.0) / 2).clamp(BACKOFF.0, BACKOFF.1);
        attempt.next = NextStep::RequestAt(after(now, span / 2 + rng.below(span / 2 + 1)));
    }

    /// The time of its next action, if any; new attempts count only if `may_begin`.
    pub(super) fn next_at(&self, may_begin: bool) -> Option<TrueTime> {
        let awaits = self.attempt.as_ref().map(|attempt| match attempt.next {
            NextStep::RequestAt(at) | NextStep::AwaitResponse { by: at, .. } => at,
        });
        let begins = (may_begin && self.attempt.is_none()).then_some(self.idle_until);
        let holds = self.held.iter().flat_map(|held| {
            let rebinds = held.rebind_at.or(Some(held.until));
            rebinds.into_iter().chain(held.renew_at)
        });
        holds.chain(awaits).chain(begins).min()
    }

    /// The commands for its leases that are due: rebind, release, renew.
    pub(super) fn maintain_leases(&mut self, rng: &mut Rng, now: TrueTime) -> Vec<Command> {
        let mut commands = Vec::new();
        let identity = &self.identity;
        self.held.retain_mut(|lease| {
            if let Some(at) = lease.rebind_at {
                if at <= now {
                    commands.push(Command::by(identity, Action::Rebind(lease.held)));
                }
                return at > now;
            }
            if lease.until <= now {
                // Otherwise it expires.
                if rng.one_in(2) {
                    commands.push(Command::by(identity, Action::Release(lease.held)));
                }
                return false;
            }
            if lease.renew_at.is_some_and(|at| at <= now) {
                lease.renew_at = Some(after(now, HOLD / 3));
                let renewal = Renewal { held: lease.held, ttl: None };
                commands.push(Command::by(identity, Action::Renew(vec![renewal])));
            }
            true
        });
        commands
    }
}

/// A unique idempotency key.
pub(super) fn request(number: u64) -> IdempotencyKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    IdempotencyKey { key: RequestKey(key), fingerprint: key }
}

fn session(name: &str, number: u64) -> SessionName {
    SessionName::new(&format!("{name}-{number}")).expect("a valid name")
}

fn bundle(rng: &mut Rng) -> Bundle {
    let members = (0..=rng.below(3)).map(|_| {
        let resource = ResourceName::parse(rng.pick::<&str>(&FILES), None).expect("a valid name");
        let predicate = if rng.one_in(3) { *rng.pick(&Predicate::ALL) } else { Predicate::Mutates };
        Member { resource, predicate }
    });
    Bundle::merged(members.collect()).expect("a few members")
}
