//! Properties of lockd as its clients observe it: requests, responses and their times, never the server's state.
//!
//! The model of the kernel repeats the kernel's rules, and a wrong rule would be in both. These properties are stated
//! from the promises instead: each holds for any implementation that keeps them.
//!
//! | rule | check | planted faults that it catches |
//! |---|---|---|
//! | live leases on one resource are pairwise compatible; holds and revoked leases keep their resources | `check_exclusive`: nothing is live while a conflicting lease covers its resources, unless a request could have freed them | `hold-ignored`, `manual-ends`, `revoke-frees`, `wall-clock` |
//! | a delivered grant is not undone; none ends early | `check_refusal`: a credential is honoured until its reported expiry | a unit test; the faults of this rule are caught by `check_exclusive` first |
//! | a response is sent when its change is durable; versions only increase | `check_version`: an acknowledged version is never issued again | `version-reused`, `removal-keeps-version` |
//! | an accepted request is applied once; a replay never gives a second lease | `check_same_lease`: within the window, an idempotency key has one lease | `request-forgotten` |
//! | an undo deletes the idempotency entry | `check_fresh_start`: a retry is not told that a lease has expired which no client has seen | `retract-keeps-request` |
//! | authority ends with the deadline, a release or a revoke, and never revives | `check_honoured`: no success under a credential that has ended, or after its reported expiry | none: a simulated server ends what is due before it decides a batch; the unit tests show what it rejects |
//! | fencing tokens strictly increase for each resource, in the order of grants | `check_token` | `token-reused`, `token-kept`; the kernel's own assertion stops both first |
//! | reported remaining time is never more than the real one; a replay shows the time that remains now | `check_remaining` | `replay-restarts-ttl`, `replay-stored` |
//! | wait queues are FIFO; no request barges; a waiter that returns in time is not overtaken; a token that has lapsed, or whose grant was used, gives no place | `check_order`: nothing is granted past a conflicting waiter whose first try was earlier, in the same batch or in a later one | `barge`, `lifo`, `attempt-age-reset`, `granted-attempt-counts` |
//!
//! **Time.** Requests count from their arrival, which a client does not know, and the simulated network does. Reported
//! times are compared with true time, with an allowance for the drift of clocks. A restart may lengthen a lease, because
//! kernel time stands still across a reboot: from then on its latest end is unknown until the next response.
//!
//! **What is absent.** Attempts under wait-die have an order of their own, which `cycles` and `agents` check; they are
//! left out of `check_order`. Nothing here knows quotas: the simulated clients set none.

mod lease;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use engine::internals::waiting::lease_request_of;
use engine::waiters::WaiterConnection;
use engine::{Decision, Reply};
use kernel::{
    Action, Bundle, Command, Credential, Granted, Identity, LeaseId, LeaseRequest, Limits, Live, OnExpiry,
    Outcome, Rejection, RequestKey, Response, Span, Time, Token, Version,
};

use crate::servers::clock::TrueTime;
use crate::servers::server::RequestNumber;

use self::lease::{KnownLease, ReportedTime};

/// Everything that clients have sent and received.
pub struct ClientProperties {
    /// The longest TTL.
    ttl_max: Span,
    /// How long an idempotency key is remembered.
    request_window: Span,
    /// Requests that have arrived at a server, without a response so far.
    pending: BTreeMap<RequestNumber, PendingRequest>,
    leases: BTreeMap<LeaseId, KnownLease>,
    /// For each resource the delivered tokens, with the times of their delivery.
    tokens: BTreeMap<String, BTreeMap<Token, TrueTime>>,
    /// For each key the acknowledged versions, with the times of their acknowledgement.
    versions: BTreeMap<String, BTreeMap<Version, TrueTime>>,
    requests: BTreeMap<(Identity, RequestKey), KeyedRequest>,
    /// Requests that were granted a lease since the last [`ClientProperties::check_order`].
    granted: Vec<GrantedRequest>,
}

/// A request that was granted a lease.
struct GrantedRequest {
    number: RequestNumber,
    /// The number of the first request that can have been its first try.
    earliest: RequestNumber,
    wanted: LeaseRequest,
}

/// The tries of one request under an idempotency key.
struct KeyedRequest {
    /// The first try to arrive.
    first: RequestNumber,
    first_at: TrueTime,
    /// The lease that a delivered response showed.
    lease: Option<LeaseId>,
}

#[derive(Clone)]
struct PendingRequest {
    command: Command,
    /// The connection of a request that may wait.
    waits: Option<WaiterConnection>,
    /// The arrival of this try.
    tried: TrueTime,
    /// The arrival of its first try.
    arrived: TrueTime,
    /// The number of the first request that can have been its first try.
    earliest: RequestNumber,
    /// The number of the request at whose place it certainly stands, or before it.
    latest: RequestNumber,
}

/// When a response was written: the true time, and the server's kernel time, from which it computed remaining times.
#[derive(Clone, Copy, Debug)]
pub struct ResponseTime {
    /// True time.
    pub at: TrueTime,
    /// Kernel time.
    pub now: Time,
}

impl ClientProperties {
    /// Before the first request, with the limits that clients may rely on.
    pub fn new(limits: &Limits) -> ClientProperties {
        ClientProperties {
            ttl_max: limits.ttl_max,
            request_window: limits.request_window,
            pending: BTreeMap::new(),
            leases: BTreeMap::new(),
            tokens: BTreeMap::new(),
            versions: BTreeMap::new(),
            requests: BTreeMap::new(),
            granted: Vec::new(),
        }
    }

    /// A request arrives at a server. Requests arrive in the order of their numbers.
    pub fn arrived(
        &mut self,
        number: RequestNumber,
        command: &Command,
        waits: Option<WaiterConnection>,
        now: TrueTime,
    ) {
        let (mut first, mut arrived) = (number, now);
        if let Some(key) = key_of(command) {
            let new = KeyedRequest { first: number, first_at: now, lease: None };
            let keyed = self.requests.entry(key).or_insert(new);
            (first, arrived) = (keyed.first, keyed.first_at);
        }
        if let Some(lease) = ended_by(command).and_then(|lease| self.leases.get_mut(&lease)) {
            lease.may_end = true;
            lease.may_free |= !matches!(command.action, Action::Revoke(_));
        }
        for (held, ttl) in extended_by(command) {
            if let Some(lease) = self.leases.get_mut(&held.lease) {
                lease.extending.insert(number);
                lease.ttl_max = lease.ttl_max.max(ttl.unwrap_or(lease.ttl));
            }
        }
        let command = command.clone();
        self.pending.insert(
            number,
            PendingRequest { command, waits, tried: now, arrived, earliest: first, latest: number },
        );
    }

    /// A request that has arrived presents the token of an attempt whose first try was this request. If the token
    /// certainly counts, no later request may overtake it.
    pub fn presented(&mut self, number: RequestNumber, first_try: RequestNumber, is_certain: bool) {
        let Some(request) = self.pending.get_mut(&number) else { return };
        request.earliest = request.earliest.min(first_try);
        if is_certain {
            request.latest = request.latest.min(first_try);
        }
    }

    /// A request got a response, which reached its client or was lost on its way.
    pub fn responded(
        &mut self,
        number: RequestNumber,
        reply: &Reply,
        reached: bool,
        at: ResponseTime,
    ) -> Result<(), String> {
        let Some(request) = self.pending.remove(&number) else { return Ok(()) };
        for (held, _) in extended_by(&request.command) {
            if let Some(lease) = self.leases.get_mut(&held.lease) {
                lease.extending.remove(&number);
            }
        }
        let Ok(Decision::Outcome(outcome)) = reply else { return Ok(()) };
        if let (Some(wanted), Outcome::Applied(Response::Granted(_), _)) =
            (lease_request_of(&request.command), outcome)
        {
            self.granted.push(GrantedRequest { number, earliest: request.earliest, wanted: wanted.clone() });
        }
        if reached {
            return self.check_outcome(&request, outcome, at);
        }
        self.lost(&request, at.at);
        Ok(())
    }

    /// The server ended or was replaced: the outcome of pending requests is unknown, and kernel time may have stood
    /// still since.
    pub fn disconnected(&mut self) {
        self.pending.clear();
        self.granted.clear();
        for lease in self.leases.values_mut() {
            lease.latest = None;
            lease.extending.clear();
        }
    }

    /// Forgets what can no longer be violated, to bound memory.
    pub fn prune(&mut self, now: TrueTime) {
        let recent = |at: TrueTime| at.0 + 600_000 > now.0;
        self.leases.retain(|_, lease| recent(lease.until));
        self.requests.retain(|_, request| recent(request.first_at));
        for delivered in self.tokens.values_mut() {
            let last = delivered.keys().next_back().copied();
            delivered.retain(|token, at| recent(*at) || Some(*token) == last);
        }
        for acknowledged in self.versions.values_mut() {
            let last = acknowledged.keys().next_back().copied();
            acknowledged.retain(|version, at| recent(*at) || Some(*version) == last);
        }
    }

    /// The response to a renewal was lost: it may have extended the lease.
    fn lost(&mut self, request: &PendingRequest, now: TrueTime) {
        for (held, _) in extended_by(&request.command) {
            let Some(lease) = self.leases.get_mut(&held.lease) else { continue };
            lease.latest = lease.latest.map(|latest| latest.max(later(now, self.ttl_max)));
        }
    }

    fn check_outcome(
        &mut self,
        request: &PendingRequest,
        outcome: &Outcome,
        at: ResponseTime,
    ) -> Result<(), String> {
        let response = match outcome {
            Outcome::Rejected(rejection) => {
                self.check_fresh_start(request, rejection, at.at)?;
                return self.check_refusal(request, None, rejection, at);
            }
            Outcome::Applied(response, _) | Outcome::Unchanged(response) => response,
        };
        match (response, &request.command.action) {
            (Response::Granted(granted), _) => self.check_granted(request, granted, at),
            (Response::Renewed(results), Action::Renew(renewals)) => {
                for (renewal, result) in renewals.iter().zip(results) {
                    match result {
                        Ok(live) => self.check_live(request, renewal.held, live, at)?,
                        Err(why) => self.check_refusal(request, Some(renewal.held), why, at)?,
                    }
                }
                Ok(())
            }
            (Response::Live(live), Action::Touch(held) | Action::Activate(held)) => {
                self.check_live(request, *held, live, at)
            }
            (Response::Committed(version), Action::Commit(commit)) => {
                self.check_honoured(request, commit.write.held)?;
                self.check_version(commit.write.key.as_str(), *version, request, at.at)
            }
            (Response::Removed { removed, version }, Action::Remove(removal)) => {
                self.check_honoured(request, removal.write.held)?;
                if !removed {
                    return Ok(());
                }
                self.check_version(removal.write.key.as_str(), *version, request, at.at)
            }
            (Response::Released, Action::Release(held)) => {
                self.has_ended(*held, at.at);
                Ok(())
            }
            (Response::Revoking(lease), _) => {
                if let Some(known) = self.leases.get_mut(lease) {
                    known.revoked = true;
                    known.ended.get_or_insert(at.at);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A grant, a rebind, or a replay of either.
    fn check_granted(
        &mut self,
        request: &PendingRequest,
        granted: &Granted,
        at: ResponseTime,
    ) -> Result<(), String> {
        self.check_same_lease(request, granted.lease, at.at)?;
        let wanted = lease_request_of(&request.command);
        let known = self.leases.get(&granted.lease).map(|known| known.bundle.clone());
        let Some(bundle) = wanted.map(|wanted| wanted.bundle.clone()).or(known) else { return Ok(()) };
        self.check_exclusive(granted.lease, &bundle, at.at)?;
        self.check_token(request, granted, &bundle, at.at)?;
        let reported = ReportedTime::new(at, granted.deadline);
        let owner = request.command.identity.clone();
        let new = KnownLease::new(owner, bundle, granted.epoch, granted.ttl, reported);
        let lease = self.leases.entry(granted.lease).or_insert(new);
        if let Action::Acquire(wanted) = &request.command.action {
            lease.hold = hold_of(wanted);
        }
        let is_over = lease.ended.is_some_and(|ended| request.tried > ended);
        if is_over && granted.epoch == lease.epoch {
            return Err(format!("replayed as live after its end at {:?}: {granted:?}", lease.ended));
        }
        if granted.epoch > lease.epoch {
            // A rebind: a new credential, from now on.
            (lease.epoch, lease.ended, lease.latest) = (granted.epoch, None, None);
        }
        self.check_remaining(granted.lease, None, reported)
    }

    fn check_live(
        &mut self,
        request: &PendingRequest,
        held: Credential,
        live: &Live,
        at: ResponseTime,
    ) -> Result<(), String> {
        self.check_honoured(request, held)?;
        let Some(bundle) = self.leases.get(&held.lease).map(|lease| lease.bundle.clone()) else {
            return Ok(());
        };
        self.check_exclusive(held.lease, &bundle, at.at)?;
        let ttl = match &request.command.action {
            Action::Renew(renewals) => {
                let mine = renewals.iter().filter(|renewal| renewal.held == held);
                Some(mine.filter_map(|renewal| renewal.ttl).max().unwrap_or(self.leases[&held.lease].ttl))
            }
            _ => None,
        };
        self.check_remaining(held.lease, ttl, ReportedTime::new(at, live.deadline))
    }

    /// No lease is live while a conflicting one covers its resources: is live, on hold, or revoked and not reclaimed.
    fn check_exclusive(&self, shown: LeaseId, bundle: &Bundle, now: TrueTime) -> Result<(), String> {
        let may_end = self.leases.get(&shown).is_some_and(|lease| lease.may_end);
        let covers = |other: &KnownLease| other.covers_until() > now && !other.may_free;
        let mut others = self.leases.iter().filter(|(id, other)| **id != shown && covers(other));
        match others.find(|(_, other)| other.bundle.conflicts_with(bundle) && !may_end) {
            Some((id, other)) => Err(format!(
                "two holders: {shown:?} was reported as live at {now:?}, and {id:?} covers its resources until {:?}",
                other.covers_until()
            )),
            None => Ok(()),
        }
    }

    /// A delivered response stays true: a credential is honoured until its reported expiry.
    fn check_refusal(
        &mut self,
        request: &PendingRequest,
        renewed: Option<Credential>,
        rejection: &Rejection,
        at: ResponseTime,
    ) -> Result<(), String> {
        let ended = matches!(
            rejection,
            Rejection::NotHeld
                | Rejection::LeaseExpired
                | Rejection::LeaseRevoked
                | Rejection::StaleEpoch { .. }
                | Rejection::Retired
                | Rejection::NotFound
        );
        let Some(held) = renewed.or(used_by(&request.command)).filter(|_| ended) else { return Ok(()) };
        let Some(lease) = self.leases.get(&held.lease) else { return Ok(()) };
        let may_end = lease.may_end || lease.ended.is_some() || lease.epoch != held.epoch;
        if lease.owner == request.command.identity && !may_end && lease.until > at.at {
            return Err(format!(
                "a delivered lease was undone: {held:?} was reported as live until {:?}, and refused at {:?}: {rejection:?}",
                lease.until, at.at
            ));
        }
        self.has_ended(held, at.at);
        Ok(())
    }

    /// The authority of a credential is known to have ended.
    fn has_ended(&mut self, held: Credential, now: TrueTime) {
        if let Some(lease) = self.leases.get_mut(&held.lease).filter(|lease| lease.epoch == held.epoch) {
            lease.ended.get_or_insert(now);
        }
    }

    /// Nothing succeeds under a credential that has ended, or after its reported expiry.
    fn check_honoured(&self, request: &PendingRequest, held: Credential) -> Result<(), String> {
        let Some(lease) = self.leases.get(&held.lease).filter(|lease| lease.epoch == held.epoch) else {
            return Ok(());
        };
        if lease.ended.is_some_and(|ended| request.arrived > ended) {
            return Err(format!("honoured after its end at {:?}: {:?}", lease.ended, request.command));
        }
        if lease.extending.is_empty() && lease.latest.is_some_and(|latest| request.arrived > latest) {
            return Err(format!("honoured after its deadline at {:?}: {:?}", lease.latest, request.command));
        }
        Ok(())
    }

    /// The reported time is at most what the TTL allows, and without a renewal it does not grow.
    fn check_remaining(
        &mut self,
        id: LeaseId,
        renewed: Option<Span>,
        reported: ReportedTime,
    ) -> Result<(), String> {
        let Some(lease) = self.leases.get_mut(&id) else { return Ok(()) };
        if reported.remaining > lease.ttl_max {
            return Err(format!(
                "{id:?} has {:?} left, with a TTL of {:?}",
                reported.remaining, lease.ttl_max
            ));
        }
        if reported.remaining == Span(0) {
            // The response was written after the deadline, and claims nothing but that there was a renewal.
            let over = renewed.map(|_| reported.latest());
            lease.latest = lease.latest.map(|latest| over.map_or(latest, |over| latest.max(over)));
            return Ok(());
        }
        let settled = lease.extending.is_empty();
        let allowed = renewed.map_or(TrueTime(0), |ttl| later(reported.at, ttl));
        let bound = lease.latest.filter(|_| settled).map(|latest| latest.max(allowed));
        if bound.is_some_and(|bound| reported.earliest() > bound) {
            return Err(format!(
                "{id:?} has {:?} left, and could last until {bound:?} only",
                reported.remaining
            ));
        }
        lease.until = lease.until.max(reported.earliest());
        let latest = reported.latest();
        lease.latest = if settled { Some(latest) } else { lease.latest.map(|before| before.max(latest)) };
        Ok(())
    }

    /// Within the window, all responses to an idempotency key show the same lease.
    fn check_same_lease(
        &mut self,
        request: &PendingRequest,
        lease: LeaseId,
        now: TrueTime,
    ) -> Result<(), String> {
        let keyed = key_of(&request.command).and_then(|key| self.requests.get_mut(&key));
        let Some(keyed) = keyed else { return Ok(()) };
        let window = ReportedTime::remaining(keyed.first_at, self.request_window);
        let before = keyed.lease.replace(lease).filter(|before| *before != lease);
        match before.filter(|_| now < window.earliest()) {
            Some(before) => Err(format!("two leases for one idempotency key: {before:?} and {lease:?}")),
            None => Ok(()),
        }
    }

    /// A grant that reached no client is undone with its idempotency entry: a retry starts afresh, and is not told that
    /// a lease has expired which could still be live.
    fn check_fresh_start(
        &self,
        request: &PendingRequest,
        rejection: &Rejection,
        now: TrueTime,
    ) -> Result<(), String> {
        let keyed = key_of(&request.command).and_then(|key| self.requests.get(&key));
        let Some((keyed, wanted)) = keyed.zip(lease_request_of(&request.command)) else { return Ok(()) };
        let expires = ReportedTime::remaining(keyed.first_at, wanted.ttl).earliest();
        if *rejection == Rejection::LeaseExpired && keyed.lease.is_none() && now < expires {
            return Err(format!(
                "a retry was refused at {now:?} because of a lease that reached no client: {:?}",
                request.command
            ));
        }
        Ok(())
    }

    /// A grant that was decided after another was delivered has a higher token.
    fn check_token(
        &mut self,
        request: &PendingRequest,
        granted: &Granted,
        bundle: &Bundle,
        now: TrueTime,
    ) -> Result<(), String> {
        let replayed = self.leases.get(&granted.lease).is_some_and(|known| known.epoch >= granted.epoch);
        for member in bundle.members().iter().filter(|_| !replayed) {
            let delivered = self.tokens.entry(member.resource.as_str().to_string()).or_default();
            let earlier = delivered.range(granted.token..).find(|(_, at)| **at < request.arrived);
            if let Some((token, _)) = earlier {
                return Err(format!("tokens do not increase: {token:?}, then {granted:?} for {member:?}"));
            }
            if delivered.insert(granted.token, now).is_some() {
                return Err(format!("a token was issued twice: {granted:?} for {member:?}"));
            }
        }
        Ok(())
    }

    /// A write that was decided after another was acknowledged has a higher version.
    fn check_version(
        &mut self,
        key: &str,
        version: Version,
        request: &PendingRequest,
        now: TrueTime,
    ) -> Result<(), String> {
        let acknowledged = self.versions.entry(key.to_string()).or_default();
        let earlier = acknowledged.range(version..).find(|(_, at)| **at < request.arrived);
        if let Some((before, _)) = earlier {
            return Err(format!("an acknowledged version was undone: {before:?}, then {version:?} of {key}"));
        }
        acknowledged.entry(version).or_insert(now);
        Ok(())
    }

    /// After a batch: nothing that was granted has overtaken an earlier waiter that conflicts with it and still waits.
    pub fn check_order(&mut self) -> Result<(), String> {
        for GrantedRequest { number, earliest, wanted } in std::mem::take(&mut self.granted) {
            if wanted.is_wait_die() {
                continue;
            }
            // A waiter that returned after the other had arrived may have come too late.
            let mut earlier = self.pending.range(..number).filter(|(_, waiter)| {
                waiter.latest < earliest
                    && waiter.waits.as_ref().is_some_and(|connection| !connection.is_closed())
            });
            let overtaken = earlier.find(|(_, waiter)| {
                lease_request_of(&waiter.command).is_some_and(|waiting| {
                    waiting.namespace == wanted.namespace && waiting.bundle.conflicts_with(&wanted.bundle)
                })
            });
            if let Some((waiter, request)) = overtaken {
                return Err(format!(
                    "request {number} was granted {:?} past the waiter {waiter}: {:?}",
                    wanted.bundle, request.command
                ));
            }
        }
        Ok(())
    }
}

fn later(time: TrueTime, span: Span) -> TrueTime {
    TrueTime(time.0 + span.0)
}

fn key_of(command: &Command) -> Option<(Identity, RequestKey)> {
    match command.action {
        // Safe to repeat, and not stored.
        Action::Renew(_) | Action::Release(_) => None,
        _ => command.identity.clone().zip(command.request.map(|request| request.key)),
    }
}

/// The hold that a request asks for; a manual one lasts until a reclaim.
fn hold_of(wanted: &LeaseRequest) -> Span {
    match wanted.on_expiry {
        OnExpiry::Free => Span(0),
        OnExpiry::Hold(span) => span,
        OnExpiry::Manual => Span(u64::MAX),
    }
}

/// The lease that a command may end before its deadline.
fn ended_by(command: &Command) -> Option<LeaseId> {
    match &command.action {
        Action::Release(held) => Some(held.lease),
        Action::Revoke(lease) | Action::Reclaim(lease) => Some(*lease),
        Action::Commit(commit) => commit.write.release.then_some(commit.write.held.lease),
        Action::Remove(removal) => removal.write.release.then_some(removal.write.held.lease),
        _ => None,
    }
}

/// The credentials whose leases a command may extend, each with the requested TTL, if it names one.
fn extended_by(command: &Command) -> Vec<(Credential, Option<Span>)> {
    match &command.action {
        Action::Renew(renewals) => renewals.iter().map(|renewal| (renewal.held, renewal.ttl)).collect(),
        Action::Rebind(held) => vec![(*held, None)],
        _ => Vec::new(),
    }
}

/// The credential that a command uses, apart from renewals, releases and rebinds.
fn used_by(command: &Command) -> Option<Credential> {
    match &command.action {
        Action::Touch(held) | Action::Activate(held) => Some(*held),
        Action::Commit(commit) => Some(commit.write.held),
        Action::Remove(removal) => Some(removal.write.held),
        _ => None,
    }
}
