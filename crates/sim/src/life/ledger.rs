//! What everybody was told, and what follows from it. It knows nothing of kernels but the words of their answers.
//!
//! **What it holds the engine to.** A lease that was promised until some moment is nobody else's before it, in
//! true time, unless somebody asked for its end. Tokens of a resource only grow. A version that was told is
//! never taken back. An idempotency key has one lease. Whoever is refused because of a lease asked before
//! the end of that lease was told. After a crash the state is the one that was told last, or one batch more.

use std::collections::BTreeMap;

use kernel::{
    Action, Answer, Bundle, Command, Granted, Identity, LeaseId, Live, Outcome, RequestKey, Snapshot, Time,
    Token, Version,
};

use engine::decider::{Blocked, Said};
use engine::waiters::grant_of;

use super::clock::{Machine, True};

/// Everything that was told.
#[derive(Default)]
pub struct Ledger {
    leases: BTreeMap<LeaseId, Promise>,
    tokens: BTreeMap<String, Token>,
    versions: BTreeMap<String, Version>,
    requests: BTreeMap<(Identity, RequestKey), LeaseId>,
    /// When the end of a lease was told.
    ended: BTreeMap<LeaseId, True>,
    durable: Option<Snapshot>,
    perhaps: Option<Snapshot>,
}

struct Promise {
    bundle: Bundle,
    until: True,
    /// Somebody has asked for its end.
    doomed: bool,
}

/// When something was decided: in true time, and in the kernel's.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// In truth.
    pub at: True,
    /// By the kernel's stamps.
    pub now: Time,
}

impl Moment {
    /// The moment that a deadline promises at the least, whatever the clock does that measures it.
    fn promised(self, deadline: Time) -> True {
        let remaining = self.now.until(deadline).0;
        let allowance = remaining * Machine::DRIFT_MAX.unsigned_abs() * 2 / 1_000_000 + 2;
        True(self.at.0 + remaining.saturating_sub(allowance))
    }
}

impl Ledger {
    /// A command has reached a server: whatever it would end may end from now on.
    pub fn arrived(&mut self, command: &Command) {
        let lease = match &command.action {
            Action::Release(held) => held.lease,
            Action::Revoke(lease) | Action::Reclaim(lease) => *lease,
            Action::Commit(commit) if commit.write.release => commit.write.held.lease,
            Action::Remove(removal) if removal.write.release => removal.write.held.lease,
            _ => return,
        };
        self.doom(lease);
    }

    /// The answer that gave this lease reached nobody: it may be undone, and a retry be granted another, which
    /// is told only after a crash.
    pub fn undelivered(&mut self, lease: LeaseId) {
        self.requests.retain(|_, given| *given != lease);
        self.doom(lease);
    }

    /// The lease may end without anybody's fault.
    fn doom(&mut self, lease: LeaseId) {
        if let Some(promise) = self.leases.get_mut(&lease) {
            promise.doomed = true;
        }
    }

    /// A server is about to append a turn that leads to this state.
    pub fn may_become(&mut self, state: Snapshot) {
        self.perhaps = Some(state);
    }

    /// That turn is durable.
    pub fn became(&mut self) {
        self.durable = self.perhaps.take();
    }

    /// A server has recovered this state.
    pub fn recovered(&mut self, state: &Snapshot) -> Result<(), String> {
        let fits = |known: &Option<Snapshot>| known.as_ref() == Some(state);
        if self.durable.is_some() && !fits(&self.durable) && !fits(&self.perhaps) {
            return Err(format!(
                "recovered a state that is neither what was told nor one batch more:\n{state:#?}\nwhat was told:\n{:#?}",
                self.durable
            ));
        }
        self.durable = Some(state.clone());
        self.perhaps = None;
        Ok(())
    }

    /// Somebody is told what came of a command that was sent at some time.
    pub fn told(
        &mut self,
        command: &Command,
        said: &Said,
        sent: True,
        decided: Moment,
    ) -> Result<(), String> {
        match said {
            Said::Blocked(blocked) => self.refused(blocked, sent),
            Said::Outcome(Outcome::Applied(answer, _)) => self.answered(command, answer, true, decided),
            Said::Outcome(Outcome::Unchanged(answer)) => self.answered(command, answer, false, decided),
            Said::Outcome(Outcome::Rejected(_)) => Ok(()),
        }
    }

    fn answered(
        &mut self,
        command: &Command,
        answer: &Answer,
        new: bool,
        decided: Moment,
    ) -> Result<(), String> {
        match (answer, &command.action) {
            (Answer::Granted(granted), _) => self.granted(command, granted, new, decided),
            (Answer::Renewed(results), _) => {
                results.iter().flatten().for_each(|live| self.extended(live, decided));
                Ok(())
            }
            (Answer::Live(live), _) => {
                self.extended(live, decided);
                Ok(())
            }
            (Answer::Released, Action::Release(held)) if new => {
                self.ended.entry(held.lease).or_insert(decided.at);
                Ok(())
            }
            (Answer::Committed(version), Action::Commit(commit)) if new => {
                self.written(commit.write.key.as_str(), *version)
            }
            (Answer::Removed { removed: true, version }, Action::Remove(removal)) if new => {
                self.written(removal.write.key.as_str(), *version)
            }
            _ => Ok(()),
        }
    }

    fn granted(
        &mut self,
        command: &Command,
        granted: &Granted,
        new: bool,
        decided: Moment,
    ) -> Result<(), String> {
        if let Some((identity, request)) = command.identity.clone().zip(command.request) {
            self.same_lease((identity, request.key), granted.lease, new)?;
        }
        let bundle = match grant_of(command) {
            Some(grant) => grant.bundle.clone(),
            None => match self.leases.get(&granted.lease) {
                Some(promise) => promise.bundle.clone(),
                None => return Ok(()),
            },
        };
        if new {
            self.check_alone(granted, &bundle, decided)?;
            self.check_tokens(granted, &bundle)?;
        }
        let until = decided.promised(granted.deadline);
        let promise = self.leases.entry(granted.lease).or_insert(Promise { bundle, until, doomed: false });
        promise.until = promise.until.max(until);
        Ok(())
    }

    fn same_lease(
        &mut self,
        request: (Identity, RequestKey),
        lease: LeaseId,
        new: bool,
    ) -> Result<(), String> {
        match self.requests.get(&request) {
            Some(before) if !new && *before != lease => {
                Err(format!("one request, two leases: {before:?} and {lease:?} for {request:?}"))
            }
            _ => {
                self.requests.insert(request, lease);
                Ok(())
            }
        }
    }

    /// Whoever was promised any of it has been promised it for long enough.
    fn check_alone(&self, granted: &Granted, bundle: &Bundle, decided: Moment) -> Result<(), String> {
        let others = self.leases.iter().filter(|(lease, _)| **lease != granted.lease);
        for (lease, promise) in others {
            if promise.bundle.conflicts_with(bundle) && !promise.doomed && promise.until > decided.at {
                return Err(format!(
                    "two holders: {lease:?} was promised {:?} until {:?}, and {granted:?} was given {bundle:?} at {decided:?}",
                    promise.bundle, promise.until
                ));
            }
        }
        Ok(())
    }

    fn check_tokens(&mut self, granted: &Granted, bundle: &Bundle) -> Result<(), String> {
        for member in bundle.members() {
            let last = self.tokens.insert(member.resource.as_str().to_string(), granted.token);
            if last.is_some_and(|last| last >= granted.token) {
                return Err(format!("a token that does not grow: {last:?}, then {granted:?} for {member:?}"));
            }
        }
        Ok(())
    }

    fn extended(&mut self, live: &Live, decided: Moment) {
        if let Some(promise) = self.leases.get_mut(&live.lease) {
            promise.until = promise.until.max(decided.promised(live.deadline));
        }
    }

    fn written(&mut self, key: &str, version: Version) -> Result<(), String> {
        match self.versions.insert(key.to_string(), version) {
            Some(before) if before >= version => {
                Err(format!("a version that does not grow: {before:?}, then {version:?} of {key}"))
            }
            _ => Ok(()),
        }
    }

    /// A refusal tells of the present, or of a past that is later than the question.
    fn refused(&self, blocked: &Blocked, sent: True) -> Result<(), String> {
        let stale = |lease: &&LeaseId| self.ended.get(lease).is_some_and(|ended| *ended < sent);
        match blocked.holders.iter().find(stale) {
            Some(lease) => Err(format!("refused for {lease:?}, whose end was told before it was asked")),
            None => Ok(()),
        }
    }

    /// A read of a key's version was told.
    pub fn read(&self, key: &str, version: Option<Version>, known: Option<Version>) -> Result<(), String> {
        if version < known {
            return Err(format!("{key} was read at {version:?}, after {known:?} was told"));
        }
        Ok(())
    }

    /// The last version of a key that was told.
    pub fn version(&self, key: &str) -> Option<Version> {
        self.versions.get(key).copied()
    }

    /// Forgets promises that are over: there is no end to them otherwise.
    pub fn tidy(&mut self, now: True) {
        self.leases.retain(|_, promise| promise.until.0 + 120_000 > now.0);
        self.ended.retain(|_, ended| ended.0 + 600_000 > now.0);
    }
}
