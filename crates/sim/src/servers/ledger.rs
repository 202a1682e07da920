//! Records all responses, and checks that they stay true. It knows the kernel's response types and nothing else of it.
//!
//! **Checks.** Until its deadline, in true time, no conflicting lease is granted, unless a request could have ended the
//! first one. Tokens of a resource only grow. Versions never go back. An idempotency key has one lease. A conflict names
//! no lease whose release was acknowledged before the request was sent. After a crash the recovered state is the one
//! after the last durable batch, or after a batch that was in flight.

use std::collections::BTreeMap;

use kernel::{
    Action, Bundle, Command, Granted, Identity, Kernel, LeaseId, Live, Lsn, Outcome, RequestKey, Response,
    Snapshot, Time, Token, Version,
};

use engine::Decision;
use engine::internals::shard::StateDigest;
use engine::internals::waiting::lease_request_of;
use engine::waiters::Blocked;

use super::clock::{Machine, TrueTime};

/// All responses so far.
#[derive(Default)]
pub struct Ledger {
    leases: BTreeMap<LeaseId, Promise>,
    tokens: BTreeMap<String, Token>,
    versions: BTreeMap<String, Version>,
    requests: BTreeMap<(Identity, RequestKey), LeaseId>,
    /// The time at which a release was acknowledged.
    ended: BTreeMap<LeaseId, TrueTime>,
    /// The last record of the last durable batch.
    durable: Option<Lsn>,
    /// The last records of batches that may become durable instead of each other, each with the number of its server.
    in_flight: Vec<(u64, Lsn)>,
    /// The number of servers that have recovered the log.
    servers: u64,
    /// States of servers from `durable` on. Two servers may have used the same LSN.
    states: Vec<KnownState>,
}

struct KnownState {
    /// The number of the server that was in it.
    server: u64,
    digest: StateDigest,
    snapshot: Option<Snapshot>,
}

impl KnownState {
    fn is(&self, kernel: &Kernel) -> bool {
        self.digest.hash == kernel.state_hash()
            && self.snapshot.as_ref().is_none_or(|snapshot| *snapshot == kernel.snapshot())
    }
}

struct Promise {
    bundle: Bundle,
    until: TrueTime,
    /// A request could have ended it before its deadline.
    may_end: bool,
}

/// The time of a decision, in true time and in kernel time.
#[derive(Clone, Copy, Debug)]
pub struct DecisionTime {
    /// True time.
    pub at: TrueTime,
    /// Kernel time.
    pub now: Time,
}

impl DecisionTime {
    /// The earliest true time of a deadline, for any drift of the clock that measures it.
    fn earliest(self, deadline: Time) -> TrueTime {
        let remaining = self.now.until(deadline).0;
        let allowance = remaining * Machine::DRIFT_MAX.unsigned_abs() * 2 / 1_000_000 + 2;
        TrueTime(self.at.0 + remaining.saturating_sub(allowance))
    }
}

impl Ledger {
    /// A request has reached a server: the lease that it ends may end from now on.
    pub fn request_arrived(&mut self, command: &Command) {
        let lease = match &command.action {
            Action::Release(held) => held.lease,
            Action::Revoke(lease) | Action::Reclaim(lease) => *lease,
            Action::Commit(commit) if commit.write.release => commit.write.held.lease,
            Action::Remove(removal) if removal.write.release => removal.write.held.lease,
            _ => return,
        };
        self.mark_may_end(lease);
    }

    /// The response with this lease was not delivered: the grant may be retracted, and a retry get another lease.
    pub fn undelivered(&mut self, lease: LeaseId) {
        self.requests.retain(|_, given| *given != lease);
        self.mark_may_end(lease);
    }

    /// The lease may end before its deadline.
    fn mark_may_end(&mut self, lease: LeaseId) {
        if let Some(promise) = self.leases.get_mut(&lease) {
            promise.may_end = true;
        }
    }

    /// A server has been in this state.
    pub fn state_seen(&mut self, digest: StateDigest, snapshot: Option<Snapshot>) {
        let server = self.servers;
        match self.states.iter_mut().find(|known| known.server == server && known.digest == digest) {
            Some(known) => known.snapshot = snapshot.or(known.snapshot.take()),
            None => self.states.push(KnownState { server, digest, snapshot }),
        }
    }

    /// The append of a batch up to this record begins, or is repeated.
    pub fn appending(&mut self, last: Lsn) {
        if !self.in_flight.contains(&(self.servers, last)) {
            self.in_flight.push((self.servers, last));
        }
    }

    /// That batch is durable: nothing else can have its place in the log.
    pub fn appended(&mut self, last: Lsn) {
        self.durable = Some(last);
        self.in_flight.clear();
        self.states.retain(|known| known.digest.lsn >= last);
    }

    /// A server has recovered this state; fails if it is neither the durable one nor one in flight. If the server has
    /// the log for itself, nothing that was in flight can become durable any more.
    pub fn recovered(&mut self, kernel: &Kernel, is_exclusive: bool) -> Result<(), String> {
        let found = kernel.last_lsn();
        self.servers += 1;
        let in_flight: Vec<u64> =
            self.in_flight.iter().filter(|(_, last)| *last == found).map(|(server, _)| *server).collect();
        if let Some(durable) = self.durable {
            let known: Vec<_> = self.states.iter().filter(|known| known.digest.lsn == found).collect();
            // The state after a batch in flight may have passed unseen: more was decided during its append.
            let is_unseen = |server: &u64| !known.iter().any(|known| known.server == *server);
            let is_known = known.is_empty()
                || known.iter().any(|known| known.is(kernel))
                || in_flight.iter().any(is_unseen);
            if !is_known || found != durable && in_flight.is_empty() {
                return Err(format!(
                    "the recovered state is neither the durable one nor one in flight: found={found:?} \
                     durable={durable:?} in_flight={:?} is_known={is_known}",
                    self.in_flight
                ));
            }
        }
        if is_exclusive || self.durable != Some(found) {
            self.in_flight.clear();
        }
        self.durable = Some(found);
        self.states.retain(|known| known.digest.lsn >= found);
        Ok(())
    }

    /// A response was sent to a command of the time `sent`.
    pub fn response_sent(
        &mut self,
        command: &Command,
        decision: &Decision,
        sent: TrueTime,
        decided: DecisionTime,
    ) -> Result<(), String> {
        match decision {
            Decision::Blocked(blocked) => self.check_conflict(blocked, sent),
            Decision::Outcome(Outcome::Applied(answer, _)) => {
                self.check_response(command, answer, true, decided)
            }
            Decision::Outcome(Outcome::Unchanged(answer)) => {
                self.check_response(command, answer, false, decided)
            }
            Decision::Outcome(Outcome::Rejected(_)) => Ok(()),
        }
    }

    fn check_response(
        &mut self,
        command: &Command,
        answer: &Response,
        applied: bool,
        decided: DecisionTime,
    ) -> Result<(), String> {
        match (answer, &command.action) {
            (Response::Granted(granted), _) => self.granted(command, granted, applied, decided),
            (Response::Renewed(results), _) => {
                results.iter().flatten().for_each(|live| self.extend(live, decided));
                Ok(())
            }
            (Response::Live(live), _) => {
                self.extend(live, decided);
                Ok(())
            }
            (Response::Released, Action::Release(held)) if applied => {
                self.ended.entry(held.lease).or_insert(decided.at);
                Ok(())
            }
            (Response::Committed(version), Action::Commit(commit)) if applied => {
                self.check_version(commit.write.key.as_str(), *version)
            }
            (Response::Removed { removed: true, version }, Action::Remove(removal)) if applied => {
                self.check_version(removal.write.key.as_str(), *version)
            }
            _ => Ok(()),
        }
    }

    fn granted(
        &mut self,
        command: &Command,
        granted: &Granted,
        applied: bool,
        decided: DecisionTime,
    ) -> Result<(), String> {
        if let Some((identity, request)) = command.identity.clone().zip(command.request) {
            self.check_same_lease((identity, request.key), granted.lease, applied)?;
        }
        let bundle = match lease_request_of(command) {
            Some(grant) => grant.bundle.clone(),
            None => match self.leases.get(&granted.lease) {
                Some(promise) => promise.bundle.clone(),
                None => return Ok(()),
            },
        };
        if applied {
            self.check_exclusive(granted, &bundle, decided)?;
            self.check_tokens(granted, &bundle)?;
        }
        let until = decided.earliest(granted.deadline);
        let promise = self.leases.entry(granted.lease).or_insert(Promise { bundle, until, may_end: false });
        promise.until = promise.until.max(until);
        Ok(())
    }

    fn check_same_lease(
        &mut self,
        request: (Identity, RequestKey),
        lease: LeaseId,
        applied: bool,
    ) -> Result<(), String> {
        match self.requests.get(&request) {
            Some(before) if !applied && *before != lease => {
                Err(format!("two leases for one idempotency key: {before:?} and {lease:?} for {request:?}"))
            }
            _ => {
                self.requests.insert(request, lease);
                Ok(())
            }
        }
    }

    /// No conflicting lease may still be live.
    fn check_exclusive(
        &self,
        granted: &Granted,
        bundle: &Bundle,
        decided: DecisionTime,
    ) -> Result<(), String> {
        let others = self.leases.iter().filter(|(lease, _)| **lease != granted.lease);
        for (lease, promise) in others {
            if promise.bundle.conflicts_with(bundle) && !promise.may_end && promise.until > decided.at {
                return Err(format!(
                    "two holders: {lease:?} holds {:?} until {:?}, and {granted:?} was granted {bundle:?} at {decided:?}",
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
                return Err(format!("tokens do not grow: {last:?}, then {granted:?} for {member:?}"));
            }
        }
        Ok(())
    }

    fn extend(&mut self, live: &Live, decided: DecisionTime) {
        if let Some(promise) = self.leases.get_mut(&live.lease) {
            promise.until = promise.until.max(decided.earliest(live.deadline));
        }
    }

    fn check_version(&mut self, key: &str, version: Version) -> Result<(), String> {
        match self.versions.insert(key.to_string(), version) {
            Some(before) if before >= version => {
                Err(format!("versions do not grow: {before:?}, then {version:?} of {key}"))
            }
            _ => Ok(()),
        }
    }

    /// A conflict must not name a lease that ended before the request was sent.
    fn check_conflict(&self, blocked: &Blocked, sent: TrueTime) -> Result<(), String> {
        let stale = |lease: &&LeaseId| self.ended.get(lease).is_some_and(|ended| *ended < sent);
        match blocked.holders.iter().find(stale) {
            Some(lease) => Err(format!(
                "rejected because of {lease:?}, whose release was acknowledged before the request was sent"
            )),
            None => Ok(()),
        }
    }

    /// A read of a key returned `version`, after a response with the version `known`.
    pub fn check_read(
        &self,
        key: &str,
        version: Option<Version>,
        known: Option<Version>,
    ) -> Result<(), String> {
        if version < known {
            return Err(format!("stale read of {key}: {version:?} after {known:?}"));
        }
        Ok(())
    }

    /// The last acknowledged version of a key.
    pub fn version(&self, key: &str) -> Option<Version> {
        self.versions.get(key).copied()
    }

    /// Forgets old promises, to bound memory.
    pub fn prune(&mut self, now: TrueTime) {
        self.leases.retain(|_, promise| promise.until.0 + 120_000 > now.0);
        self.ended.retain(|_, ended| ended.0 + 600_000 > now.0);
    }
}
