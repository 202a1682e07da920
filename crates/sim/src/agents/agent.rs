//! One agent: what it means to do, what it believes to hold, and when it acts next.

use kernel::{
    Action, Age, AgentName, AgentNews, Bundle, Command, Grant, Granted, Held, Identity, Member, OnExpiry,
    Predicate, Renewal, Request, RequestKey, ResourceName, SessionName, Span,
};

use super::{HOLD, after};
use crate::life::client::namespace;
use crate::life::clock::True;
use crate::rng::Rng;

/// The shortest and the longest time that the server tells an attempt to stay away for: as in its `manifest.rs`.
const BACKOFF: (u64, u64) = (100, 5000);

const FILES: [&str; 6] = ["FILE:/a", "FILE:/b", "FILE:/c", "FILE:/c/d", "FILE:/c/*", "KEY:k"];

/// One agent.
pub(super) struct Agent {
    pub(super) identity: Identity,
    name: AgentName,
    session: SessionName,
    lives: u64,
    /// What it asks for.
    pub(super) attempt: Option<Attempt>,
    /// What it believes to hold.
    pub(super) held: Vec<Holding>,
    /// When it begins something new, if it may.
    pub(super) idle_until: True,
}

/// What it asks for, again and again.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) bundle: Bundle,
    /// As the last answer told.
    pub(super) age: Option<Age>,
    /// When it was first asked for.
    pub(super) since: True,
    pub(super) tries: u64,
    pub(super) request: Option<Request>,
    pub(super) next: Next,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// It asks then.
    AskAt(True),
    /// It waits for the answer to this, and no longer than that.
    Heard { number: u64, by: True },
}

pub(super) struct Holding {
    pub(super) held: Held,
    /// It is given back then.
    pub(super) until: True,
    /// It is renewed then.
    pub(super) renew_at: Option<True>,
    /// It restarts, and takes it back then.
    pub(super) rebind_at: Option<True>,
}

impl Agent {
    pub(super) fn new(number: u64) -> Agent {
        let name = format!("agent-{number}");
        Agent {
            identity: Identity::new(&name).expect("a valid name"),
            name: AgentName::new(&name).expect("a valid name"),
            session: session(&name, 0),
            lives: 0,
            attempt: None,
            held: Vec::new(),
            idle_until: True(0),
        }
    }

    /// It knows nothing any more, and begins anew.
    pub(super) fn crash(&mut self) {
        self.lives += 1;
        self.session = session(self.identity.as_str(), self.lives);
        (self.attempt, self.held) = (None, Vec::new());
    }

    pub(super) fn begin(&mut self, rng: &mut Rng, now: True) {
        let next = Next::AskAt(now);
        self.attempt =
            Some(Attempt { bundle: bundle(rng), age: None, since: now, tries: 0, request: None, next });
    }

    pub(super) fn session(&self) -> &SessionName {
        &self.session
    }

    /// The manifest as the server makes a command of it; `age` is what it is judged by.
    pub(super) fn ask(&self, attempt: &Attempt, age: Option<Age>) -> Command {
        let grant = Grant {
            namespace: namespace(),
            bundle: attempt.bundle.clone(),
            ttl: Span(HOLD),
            on_expiry: OnExpiry::Free,
            owner: None,
            agent: Some(self.name.clone()),
            session: Some(self.session.clone()),
            attempt: age,
            reason: None,
            metadata: None,
        };
        Command { request: attempt.request, ..Command::by(&self.identity, Action::Acquire(grant)) }
    }

    pub(super) fn says(&self, restarting: bool) -> Command {
        let news =
            AgentNews { namespace: namespace(), agent: self.name.clone(), restarting, operator: false };
        Command::by(&self.identity, Action::Agent(news))
    }

    /// It was given a lease, for its attempt or back.
    pub(super) fn granted(&mut self, granted: &Granted, now: True, keeps: u64) {
        let held = Held { lease: granted.lease, epoch: granted.epoch };
        self.held.retain(|known| known.held.lease != granted.lease);
        self.held.push(Holding { held, until: after(now, keeps), renew_at: None, rebind_at: None });
    }

    /// Stays away, the longer the longer it has been at it.
    pub(super) fn back_off(&mut self, rng: &mut Rng, now: True) {
        let Some(attempt) = &mut self.attempt else { return };
        let span = ((now.0 - attempt.since.0) / 2).clamp(BACKOFF.0, BACKOFF.1);
        attempt.next = Next::AskAt(after(now, span / 2 + rng.below(span / 2 + 1)));
    }

    /// When it acts next, if it ever does; new things only where it may begin them.
    pub(super) fn next_at(&self, may_begin: bool) -> Option<True> {
        let asks = self.attempt.as_ref().map(|attempt| match attempt.next {
            Next::AskAt(at) | Next::Heard { by: at, .. } => at,
        });
        let begins = (may_begin && self.attempt.is_none()).then_some(self.idle_until);
        let holds = self.held.iter().flat_map(|held| {
            let rebinds = held.rebind_at.or(Some(held.until));
            rebinds.into_iter().chain(held.renew_at)
        });
        holds.chain(asks).chain(begins).min()
    }

    /// What it sends for what it holds.
    pub(super) fn tend(&mut self, rng: &mut Rng, now: True) -> Vec<Command> {
        let mut sent = Vec::new();
        let identity = &self.identity;
        self.held.retain_mut(|holding| {
            if let Some(at) = holding.rebind_at {
                if at <= now {
                    sent.push(Command::by(identity, Action::Rebind(holding.held)));
                }
                return at > now;
            }
            if holding.until <= now {
                // Or it just runs out.
                if rng.one_in(2) {
                    sent.push(Command::by(identity, Action::Release(holding.held)));
                }
                return false;
            }
            if holding.renew_at.is_some_and(|at| at <= now) {
                holding.renew_at = Some(after(now, HOLD / 3));
                let renewal = Renewal { held: holding.held, ttl: None };
                sent.push(Command::by(identity, Action::Renew(vec![renewal])));
            }
            true
        });
        sent
    }
}

/// A key that tells a try from every other.
pub(super) fn request(number: u64) -> Request {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    Request { key: RequestKey(key), fingerprint: key }
}

fn session(name: &str, life: u64) -> SessionName {
    SessionName::new(&format!("{name}-{life}")).expect("a valid name")
}

fn bundle(rng: &mut Rng) -> Bundle {
    let members = (0..=rng.below(3)).map(|_| {
        let resource = ResourceName::parse(rng.pick::<&str>(&FILES), None).expect("a valid name");
        let predicate = if rng.one_in(3) { *rng.pick(&Predicate::ALL) } else { Predicate::Mutates };
        Member { resource, predicate }
    });
    Bundle::merged(members.collect()).expect("a few members")
}
