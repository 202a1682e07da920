//! A reference model of the kernel, written to be obviously correct: lists of plain rows, linear scans, and a
//! copy of the whole state that is discarded when a command is rejected.
//!
//! It shares the kernel's vocabulary (names, commands, outcomes, rows of a snapshot) and none of its code: lease
//! states, conflicts and due timers are derived here again, from the rules, by scanning every row.

mod documents;
mod grant;
mod holder;
mod namespace;
mod operator;
mod slots;

use kernel::{
    Action, AgentData, BoundedTable, Close, Command, Credential, EndReason, EndedLeaseData, Epoch, Event,
    Granted, IdempotencyEntry, Identity, InvalidRecord, KeyData, LeaseData, LeaseId, Live, Lsn, Member,
    Namespace, NamespaceData, OnExpiry, Open, Outcome, Phase, Policy, Quota, Rejection, Response, Restart,
    Scope, Snapshot, Span, Tenure, Time, Version,
};

/// The reference model.
#[derive(Clone, Default)]
pub struct Model {
    tenure: Option<Tenure>,
    last: Lsn,
    now: Time,
    floor: Version,
    namespaces: Vec<NamespaceData>,
    policies: Vec<(Scope, Policy)>,
    agents: Vec<AgentData>,
    keys: Vec<KeyData>,
    leases: Vec<LeaseData>,
    history: Vec<EndedLeaseData>,
    requests: Vec<IdempotencyEntry>,
    events: Vec<Event>,
}

/// The state of a lease at a given time, including transitions that are due but not yet logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EffectiveState {
    Reserved,
    Active,
    Hold { until: Time, rebindable: bool },
    Revoking,
    Expired,
}

/// Why a command leaves the state as it is.
enum NotApplied {
    Unchanged(Response),
    Rejected(Rejection),
}

impl From<Rejection> for NotApplied {
    fn from(rejection: Rejection) -> NotApplied {
        NotApplied::Rejected(rejection)
    }
}

type ModelResult = Result<Response, NotApplied>;

impl Model {
    /// The state before the first record.
    pub fn new() -> Model {
        Model::default()
    }

    /// Applies a command to a copy, which becomes the state only if the command was applied.
    ///
    /// A conflict lists *every* conflicting lease, not just some.
    pub fn apply(&mut self, lsn: Lsn, now: Time, command: &Command) -> Outcome {
        let mut copy = self.clone();
        copy.events.clear();
        match copy.attempt(lsn, now, command) {
            Ok(answer) => {
                let events = std::mem::take(&mut copy.events);
                *self = copy;
                Outcome::Applied(answer, events)
            }
            Err(NotApplied::Unchanged(answer)) => Outcome::Unchanged(answer),
            Err(NotApplied::Rejected(rejection)) => Outcome::Rejected(rejection),
        }
    }

    /// The state in the form of the kernel's snapshot.
    pub fn snapshot(&self, state_hash: u64) -> Snapshot {
        let mut snapshot = Snapshot {
            tenure: self.tenure.clone(),
            last: self.last,
            now: self.now,
            clocks: None,
            state_hash,
            floor: self.floor,
            namespaces: self.namespaces.clone(),
            policies: self.policies.clone(),
            agents: self.agents.clone(),
            keys: self.keys.clone(),
            leases: self.leases.clone(),
            history: self.history.clone(),
            requests: self.requests.clone(),
        };
        snapshot.namespaces.sort();
        snapshot.policies.sort_by(|a, b| a.0.cmp(&b.0));
        snapshot.agents.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        snapshot.keys.sort_by(|a, b| (&a.namespace, &a.key).cmp(&(&b.namespace, &b.key)));
        snapshot.leases.sort_by_key(|lease| lease.lsn);
        snapshot
    }

    fn attempt(&mut self, lsn: Lsn, now: Time, command: &Command) -> ModelResult {
        let misplaced = |why| Err(NotApplied::Rejected(Rejection::InvalidRecord(why)));
        if lsn <= self.last || lsn > Lsn::MAX {
            return misplaced(InvalidRecord::Lsn { last: self.last });
        }
        if now < self.now || now > Time::MAX {
            return misplaced(InvalidRecord::Time { last: self.now });
        }
        if self.tenure.is_none() && !matches!(command.action, Action::Open(_)) {
            return misplaced(InvalidRecord::NotOpen);
        }
        let engine = matches!(
            command.action,
            Action::Open(_) | Action::Close(_) | Action::Tick | Action::Relocate(_) | Action::Retract(_)
        );
        if command.identity.is_none() && !engine {
            return misplaced(InvalidRecord::NoIdentity);
        }
        self.check_tenure(command)?;
        let repeatable = matches!(command.action, Action::Renew(_) | Action::Release(_));
        let keyed = command.identity.as_ref().zip(command.request.as_ref()).filter(|_| !repeatable);
        if let Some((identity, request)) = keyed {
            let same =
                |entry: &&IdempotencyEntry| entry.identity == *identity && entry.request.key == request.key;
            if let Some(entry) = self.requests.iter().find(same).filter(|entry| now <= entry.lapses_at) {
                if entry.request.fingerprint != request.fingerprint {
                    return Err(Rejection::RequestMismatch.into());
                }
                return Err(NotApplied::Unchanged(self.replay(now, identity, &entry.answer.clone())?));
            }
            self.check_request_capacity(now, identity)?;
        }
        let answer = self.act(lsn, now, command)?;
        let unfinished = matches!(answer, Response::Dropped { more: true });
        if let Some((identity, request)) = keyed.filter(|_| !unfinished) {
            let (identity, answer) = (identity.clone(), answer.clone());
            self.requests.retain(|entry| !(entry.identity == identity && entry.request.key == request.key));
            let lapses_at = now.after(self.limits().request_window);
            let (namespace, request) = (self.namespace_of(&command.action), *request);
            self.requests.push(IdempotencyEntry { identity, namespace, request, lapses_at, answer });
            self.requests.sort_by_key(|entry| entry.lapses_at);
        }
        Ok(answer)
    }

    /// Up to `step_max` entries lapse with this command; the rest counts against the limits.
    fn check_request_capacity(&self, now: Time, identity: &Identity) -> Result<(), Rejection> {
        let lapsing = self.lapsing(now);
        let left = &self.requests[lapsing..];
        let mine = left.iter().filter(|entry| entry.identity == *identity).count();
        let limits = self.limits();
        if left.len() >= limits.requests_max as usize {
            return Err(Rejection::Full { table: BoundedTable::Requests, max: limits.requests_max });
        }
        if mine >= limits.requests_per_identity_max as usize {
            let max = limits.requests_per_identity_max;
            return Err(Rejection::Full { table: BoundedTable::RequestsPerIdentity, max });
        }
        Ok(())
    }

    fn act(&mut self, lsn: Lsn, now: Time, command: &Command) -> ModelResult {
        let by = || command.identity.as_ref().ok_or(Rejection::InvalidRecord(InvalidRecord::NoIdentity));
        match &command.action {
            Action::Open(open) => self.open(lsn, now, open),
            Action::Close(close) => self.close(lsn, now, *close),
            Action::Tick => self.tick(lsn, now),
            Action::Acquire(grant) => self.acquire(lsn, now, by()?, grant, Phase::Active),
            Action::Reserve(grant) => self.acquire(lsn, now, by()?, grant, Phase::Reserved),
            Action::Activate(held) => self.activate(lsn, now, by()?, *held),
            Action::Renew(renewals) => self.renew(lsn, now, by()?, renewals),
            Action::Release(held) => self.release(lsn, now, by()?, *held),
            Action::Rebind(held) => self.rebind(lsn, now, by()?, *held),
            Action::Touch(held) => self.touch(lsn, now, by()?, *held),
            Action::Commit(commit) => self.commit(lsn, now, by()?, commit),
            Action::Remove(removal) => self.remove(lsn, now, by()?, removal, command.request.is_some()),
            Action::Relocate(relocation) => self.relocate(lsn, now, relocation),
            Action::Revoke(lease) => self.revoke(lsn, now, *lease),
            Action::RevokeAll(party) => self.revoke_all(lsn, now, party),
            Action::Reclaim(lease) => self.reclaim(lsn, now, *lease),
            Action::Pause(pause) => self.pause(lsn, now, pause),
            Action::SetQuota(set) => self.set_quota(lsn, now, set),
            Action::DropNamespace(namespace) => self.drop_namespace(lsn, now, namespace),
            Action::Agent(news) => self.agent_news(lsn, now, by()?, news),
            Action::Retract(retraction) => self.retract(lsn, now, *retraction),
        }
    }

    fn open(&mut self, lsn: Lsn, now: Time, open: &Open) -> ModelResult {
        let misplaced = |why| Err(NotApplied::Rejected(Rejection::InvalidRecord(why)));
        if lsn > Lsn::MAX_OPEN {
            return misplaced(InvalidRecord::Lsn { last: self.last });
        }
        let limits = &open.limits;
        let spans = [limits.ttl_max, limits.hold_max, limits.history_window, limits.request_window];
        if limits.ttl_max == Span(0)
            || limits.step_max == 0
            || spans.iter().any(|span| span.0 > u64::from(u32::MAX))
        {
            return misplaced(InvalidRecord::Limits);
        }
        let known = self.tenure.as_ref().map_or(1, |tenure| tenure.open.kernel_version);
        if open.kernel_version < known || open.kernel_version > kernel::KERNEL_VERSION {
            return misplaced(InvalidRecord::KernelVersion { newest: kernel::KERNEL_VERSION });
        }
        match &self.tenure {
            Some(tenure) if tenure.open.store != open.store => return misplaced(InvalidRecord::Store),
            Some(tenure) if open.term <= tenure.open.term => {
                return misplaced(InvalidRecord::Term { last: tenure.open.term });
            }
            None if open.store.shard.0 >= open.store.shards => return misplaced(InvalidRecord::Store),
            _ => {}
        }
        self.tenure = Some(Tenure { open: open.clone(), opened_lsn: lsn, opened_at: now, closed: None });
        self.pass_time(lsn, now, &[]);
        Ok(Response::Opened)
    }

    fn close(&mut self, lsn: Lsn, now: Time, close: Close) -> ModelResult {
        if self.tenure.as_ref().is_none_or(|tenure| tenure.open.kernel_version < 3) {
            let newest = kernel::KERNEL_VERSION;
            return Err(Rejection::InvalidRecord(InvalidRecord::KernelVersion { newest }).into());
        }
        self.pass_time(lsn, now, &[]);
        if let Some(tenure) = &mut self.tenure {
            tenure.closed = Some(close);
        }
        Ok(Response::Closed)
    }

    fn tick(&mut self, lsn: Lsn, now: Time) -> ModelResult {
        let limits = *self.limits();
        let due = self.leases.iter().any(|lease| timer(lease).is_some_and(|at| at < now));
        let stale = self.history_is_overfull()
            || self.history.first().is_some_and(|past| past.ended_at.after(limits.history_window) < now)
            || self.requests.first().is_some_and(|entry| entry.lapses_at < now)
            || self.agents.iter().any(|agent| agent.forget_at.is_some_and(|at| at < now));
        if !due && !stale {
            return Err(NotApplied::Unchanged(Response::Ticked));
        }
        self.pass_time(lsn, now, &[]);
        Ok(Response::Ticked)
    }

    /// The first part of every applied command: forget old entries, end expired leases that the command touches, and
    /// end leases that are due, up to `step_max`.
    fn pass_time(&mut self, lsn: Lsn, now: Time, touched: &[Lsn]) {
        (self.last, self.now) = (lsn, now);
        let limits = *self.limits();
        let mut work = 0;
        while work < 4 * limits.step_max as usize {
            let Some(oldest) = self.history.first() else { break };
            if !self.history_is_overfull() && now <= oldest.ended_at.after(limits.history_window) {
                break;
            }
            work += oldest.members.len();
            self.history.remove(0);
            self.drop_empty_namespaces();
        }
        self.requests.drain(..self.lapsing(now));
        self.forget_agents();
        for lease in touched {
            while self.live(*lease).and_then(timer).is_some_and(|at| at < now) {
                self.time_step(*lease);
            }
        }
        let mut work = 0;
        while work < limits.step_max as usize {
            let due = self.leases.iter().filter_map(|lease| Some((timer(lease)?, lease.lsn)));
            let Some((_, lease)) = due.filter(|(at, _)| *at < now).min() else { break };
            work += weight(&self.live(lease).expect("a due lease is live").members);
            self.time_step(lease);
        }
    }

    fn lapsing(&self, now: Time) -> usize {
        let step = self.limits().step_max as usize;
        self.requests.iter().take(step).take_while(|entry| entry.lapses_at < now).count()
    }

    fn history_is_overfull(&self) -> bool {
        let members: usize = self.history.iter().map(|past| past.members.len()).sum();
        self.history.len() > self.limits().history_max as usize
            || members > self.limits().history_members_max as usize
    }

    fn forget_agents(&mut self) {
        for _ in 0..self.limits().step_max {
            let due = self.agents.iter().filter_map(|agent| Some((agent.forget_at?, agent.since)));
            let Some((_, since)) = due.filter(|(at, _)| *at < self.now).min() else { break };
            self.agents.retain(|agent| agent.since != since || agent.forget_at.is_none());
            self.drop_empty_namespaces();
        }
    }

    /// Removes empty namespaces; a namespace created later starts above their versions.
    fn drop_empty_namespaces(&mut self) {
        let is_used = |name: &Namespace| {
            self.leases.iter().any(|lease| lease.namespace == *name)
                || self.history.iter().any(|past| past.namespace == *name)
                || self.agents.iter().any(|agent| agent.namespace == *name)
                || self.keys.iter().any(|key| key.namespace == *name)
        };
        let (used, empty): (Vec<_>, Vec<_>) =
            self.namespaces.iter().cloned().partition(|namespace| is_used(&namespace.name));
        self.floor = empty.iter().map(|namespace| namespace.floor).fold(self.floor, Version::max);
        self.namespaces = used;
    }

    /// The next time-driven transition of a lease.
    fn time_step(&mut self, lsn: Lsn) {
        let id = self.id(lsn);
        let lease = self.live(lsn).expect("the caller found it").clone();
        match (lease.phase, self.hold_until(&lease)) {
            (Phase::Active, Some(until)) => {
                self.events.push(Event::Expired { lease: id, held_until: Some(until) });
                let row = self.live_mut(lsn);
                row.epoch = Epoch(row.epoch.0 + 1);
                row.phase = Phase::OnHold { until, rebindable: !row.capped };
            }
            (Phase::OnHold { .. }, _) => {
                self.events.push(Event::Reclaimed(id));
                self.end(lsn, EndReason::Expired);
            }
            (Phase::Reserved | Phase::Active, _) => {
                self.events.push(Event::Expired { lease: id, held_until: None });
                self.end(lsn, EndReason::Expired);
            }
            (Phase::Revoking, _) => unreachable!("a revoked lease has no timer"),
        }
    }

    /// The end of the hold that follows the expiry of an active lease, if there is one.
    fn hold_until(&self, lease: &LeaseData) -> Option<Time> {
        let agent = self.agents.iter().find(|agent| {
            agent.namespace == lease.namespace && Some(&agent.name) == lease.details.agent.as_ref()
        });
        let restarting_then = agent.and_then(|agent| agent.restart).is_some_and(|restart| {
            lease.deadline >= restart.since && restart.until.is_none_or(|back| lease.deadline < back)
        });
        let grace = if restarting_then { 15_000 } else { 0 };
        match lease.details.on_expiry {
            OnExpiry::Manual => Some(Time::NEVER),
            OnExpiry::Hold(span) => Some(lease.deadline.after(Span(span.0.max(grace)))),
            OnExpiry::Free if restarting_then => Some(lease.deadline.after(Span(grace))),
            OnExpiry::Free => None,
        }
    }

    fn effective_state(&self, lease: &LeaseData, now: Time) -> EffectiveState {
        match lease.phase {
            Phase::Revoking => EffectiveState::Revoking,
            Phase::OnHold { until, .. } if now > until => EffectiveState::Expired,
            Phase::OnHold { until, rebindable } => EffectiveState::Hold { until, rebindable },
            Phase::Reserved if now <= lease.deadline => EffectiveState::Reserved,
            Phase::Active if now <= lease.deadline => EffectiveState::Active,
            Phase::Reserved => EffectiveState::Expired,
            Phase::Active => match self.hold_until(lease) {
                Some(until) if now <= until => EffectiveState::Hold { until, rebindable: !lease.capped },
                _ => EffectiveState::Expired,
            },
        }
    }

    /// Moves the lease to history; removes keys without document or lease, and raises the floor to their versions.
    fn end(&mut self, lsn: Lsn, end: EndReason) {
        let index = self.leases.iter().position(|lease| lease.lsn == lsn).expect("it is live");
        let lease = self.leases.remove(index);
        let covered = |key: &KeyData| {
            let by = |lease: &LeaseData| {
                lease.namespace == key.namespace
                    && lease.members.iter().any(|member| member.resource == key.key)
            };
            self.leases.iter().any(by)
        };
        for key in self.keys.iter().filter(|key| key.document.is_none() && !covered(key)) {
            for namespace in self.namespaces.iter_mut().filter(|namespace| namespace.name == key.namespace) {
                namespace.floor = namespace.floor.max(key.version);
            }
        }
        let remaining =
            self.keys.iter().filter(|key| key.document.is_some() || covered(key)).cloned().collect();
        self.keys = remaining;
        let mine = |agent: &&AgentData| {
            agent.namespace == lease.namespace && Some(&agent.name) == lease.details.agent.as_ref()
        };
        if let Some(since) = self.agents.iter().find(mine).map(|agent| agent.since) {
            self.schedule_forget(since);
        }
        self.history.push(EndedLeaseData {
            lsn,
            namespace: lease.namespace,
            identity: lease.identity,
            end,
            ended_at: self.now,
            ended_lsn: self.last,
            epoch: Epoch(lease.epoch.0 + lease.epoch.0 % 2),
            token: lease.token,
            granted_at: lease.granted_at,
            deadline: lease.deadline,
            ttl: lease.ttl,
            members: lease.members,
            details: lease.details,
        });
    }

    fn replay(&self, now: Time, who: &Identity, answer: &Response) -> Result<Response, Rejection> {
        let (lease, epoch) = match answer {
            Response::Granted(Granted { lease, epoch, .. }) | Response::Live(Live { lease, epoch, .. }) => {
                (*lease, *epoch)
            }
            other => return Ok(other.clone()),
        };
        match (self.authority(now, who, Credential { lease, epoch }), answer) {
            (Err(refusal @ (Rejection::LeaseRevoked | Rejection::Moved { .. })), _) => Err(refusal),
            (Err(_), _) => Err(Rejection::LeaseExpired),
            (Ok(lsn), Response::Live(_)) => Ok(Response::Live(self.answer_live(lsn))),
            (Ok(lsn), _) => Ok(Response::Granted(granted(lease, self.live(lsn).expect("it has authority")))),
        }
    }

    fn answer_live(&self, lsn: Lsn) -> Live {
        let lease = self.live(lsn).expect("the caller looked");
        Live { lease: self.id(lsn), epoch: lease.epoch, deadline: lease.deadline }
    }

    fn key(&self, namespace: &Namespace, member: &Member) -> Option<&KeyData> {
        self.keys.iter().find(|key| key.namespace == *namespace && key.key == member.resource)
    }

    fn floor(&self, namespace: &Namespace) -> Version {
        self.namespaces.iter().find(|row| row.name == *namespace).map(|row| row.floor).unwrap_or_default()
    }

    fn live(&self, lsn: Lsn) -> Option<&LeaseData> {
        self.leases.iter().find(|lease| lease.lsn == lsn)
    }

    fn live_mut(&mut self, lsn: Lsn) -> &mut LeaseData {
        self.leases.iter_mut().find(|lease| lease.lsn == lsn).expect("the caller looked")
    }

    fn id(&self, lsn: Lsn) -> LeaseId {
        let shard = self.tenure.as_ref().map(|tenure| tenure.open.store.shard).unwrap_or_default();
        LeaseId { shard, lsn }
    }

    fn limits(&self) -> &kernel::Limits {
        &self.tenure.as_ref().expect("only an open comes before the first open").open.limits
    }
}

/// The time of a lease's next time-driven transition.
fn timer(lease: &LeaseData) -> Option<Time> {
    match lease.phase {
        Phase::Reserved | Phase::Active => Some(lease.deadline),
        Phase::OnHold { until, .. } => Some(until).filter(|until| *until != Time::NEVER),
        Phase::Revoking => None,
    }
}

fn cap(quota: Quota, granted_at: Time, active_at: Time) -> Time {
    let total = quota.total_max.map_or(u64::MAX, |span| granted_at.0.saturating_add(span.0));
    let idle = quota.idle_max.map_or(u64::MAX, |span| active_at.0.saturating_add(span.0));
    Time(total.min(idle))
}

/// Extends the deadline as far as TTL and quota allow; never shortens it.
fn set_deadline(row: &mut LeaseData, quota: Quota) {
    let cap = cap(quota, row.granted_at, row.active_at);
    row.deadline = row.deadline.max(row.ttl_until.min(cap));
    row.capped = cap <= row.ttl_until;
}

/// The number of nodes that the members claim: one for the resource, and one for each directory above it.
fn weight(members: &[Member]) -> usize {
    let of = |member: &Member| {
        let segments = member.resource.name().split('/').filter(|part| !part.is_empty()).count();
        let subtree = member.resource.name().ends_with("/*");
        match member.resource.kind() {
            "FILE" if subtree => segments,
            "FILE" => segments + 2,
            _ => 1,
        }
    };
    members.iter().map(of).sum()
}

fn mark_returned(agent: &mut AgentData, now: Time) {
    if let Some(Restart { until, .. }) = &mut agent.restart
        && until.is_none()
    {
        *until = Some(now);
    }
}

fn granted(lease: LeaseId, row: &LeaseData) -> Granted {
    let LeaseData { epoch, token, granted_at, deadline, ttl, .. } = *row;
    Granted { lease, epoch, token, granted_at, deadline, ttl }
}
