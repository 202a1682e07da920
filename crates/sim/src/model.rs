//! The kernel once more, written to be obviously right: lists of plain rows, linear scans, and a copy
//! of everything that is thrown away when a command is refused.
//!
//! It shares the kernel's vocabulary (names, commands, outcomes, rows of a snapshot) and none of its
//! code: how long a lease stands, who is in the way and what is due are worked out here again, from
//! the rules, by looking at every row.

use kernel::{
    Action, Age, AgentData, AgentNews, Answer, Bundle, Command, Commit, Conflict, Details, Document,
    DocumentTag, End, Entry, Epoch, Event, Grant, Granted, Held, Identity, Kernel, KeyData, LeaseData,
    LeaseId, Live, Location, Lsn, Member, Misplaced, Namespace, NamespaceData, OnExpiry, Open, Outcome,
    Party, PastData, Pause, Paused, Phase, Policy, Predicate, Quota, Rejection, Relocation, Removal, Renewal,
    Restart, Retraction, Scope, SetQuota, Snapshot, Span, State, Table, Tenure, Time, Token, Version, Write,
};

/// The reference.
#[derive(Clone, Default)]
pub struct Model {
    tenure: Option<Tenure>,
    last: Lsn,
    now: Time,
    namespaces: Vec<NamespaceData>,
    policies: Vec<(Scope, Policy)>,
    agents: Vec<AgentData>,
    keys: Vec<KeyData>,
    leases: Vec<LeaseData>,
    history: Vec<PastData>,
    requests: Vec<Entry>,
    events: Vec<Event>,
}

/// How a lease stands at a moment, by the rules of time alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    Reserved,
    Active,
    Hold { until: Time, rebindable: bool },
    Revoking,
    Over,
}

/// Why a command comes to nothing.
enum No {
    Same(Answer),
    Refused(Rejection),
}

impl From<Rejection> for No {
    fn from(rejection: Rejection) -> No {
        No::Refused(rejection)
    }
}

type Did = Result<Answer, No>;

impl Model {
    /// Before the first record.
    pub fn new() -> Model {
        Model::default()
    }

    /// Tries a command on a copy; the copy is kept only if it was accepted and changed something.
    ///
    /// A conflict lists *every* lease in the way, not just some.
    pub fn apply(&mut self, lsn: Lsn, now: Time, command: &Command) -> Outcome {
        let mut copy = self.clone();
        copy.events.clear();
        match copy.attempt(lsn, now, command) {
            Ok(answer) => {
                let events = std::mem::take(&mut copy.events);
                *self = copy;
                Outcome::Applied(answer, events)
            }
            Err(No::Same(answer)) => Outcome::Unchanged(answer),
            Err(No::Refused(rejection)) => Outcome::Rejected(rejection),
        }
    }

    /// The state, as the kernel would write it down.
    pub fn snapshot(&self, state_hash: u64) -> Snapshot {
        let mut snapshot = Snapshot {
            tenure: self.tenure.clone(),
            last: self.last,
            now: self.now,
            state_hash,
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

    fn attempt(&mut self, lsn: Lsn, now: Time, command: &Command) -> Did {
        let misplaced = |why| Err(No::Refused(Rejection::Misplaced(why)));
        if lsn <= self.last || lsn > Lsn::MAX {
            return misplaced(Misplaced::Lsn { last: self.last });
        }
        if now < self.now || now > Time::MAX {
            return misplaced(Misplaced::Time { last: self.now });
        }
        if self.tenure.is_none() && !matches!(command.action, Action::Open(_)) {
            return misplaced(Misplaced::NotOpen);
        }
        let repeatable = matches!(command.action, Action::Renew(_) | Action::Release(_));
        let kept = command.identity.as_ref().zip(command.request.as_ref()).filter(|_| !repeatable);
        if let Some((identity, request)) = kept {
            let same = |entry: &&Entry| entry.identity == *identity && entry.request.key == request.key;
            if let Some(entry) = self.requests.iter().find(same).filter(|entry| now <= entry.lapses_at) {
                if entry.request.fingerprint != request.fingerprint {
                    return Err(Rejection::RequestMismatch.into());
                }
                return Err(No::Same(self.again(now, identity, &entry.answer.clone())?));
            }
            self.room_for_request(now, identity)?;
        }
        let answer = self.act(lsn, now, command)?;
        if let Some((identity, request)) = kept {
            let (identity, answer) = (identity.clone(), answer.clone());
            self.requests.retain(|entry| !(entry.identity == identity && entry.request.key == request.key));
            let lapses_at = now.after(self.limits().request_window);
            self.requests.push(Entry { identity, request: *request, lapses_at, answer });
        }
        Ok(answer)
    }

    /// Up to 256 of the oldest entries lapse with the command, if they are due.
    fn room_for_request(&self, now: Time, identity: &Identity) -> Result<(), Rejection> {
        let lapsing = self.requests.iter().take(256).take_while(|entry| entry.lapses_at < now).count();
        let left = &self.requests[lapsing..];
        let mine = left.iter().filter(|entry| entry.identity == *identity).count();
        let limits = self.limits();
        if left.len() >= limits.requests_max as usize || mine >= limits.requests_per_identity_max as usize {
            return Err(Rejection::Full(Table::Requests));
        }
        Ok(())
    }

    fn act(&mut self, lsn: Lsn, now: Time, command: &Command) -> Did {
        let by = || command.identity.as_ref().ok_or(Rejection::Misplaced(Misplaced::NoIdentity));
        match &command.action {
            Action::Open(open) => self.open(lsn, now, open),
            Action::Tick => self.tick(lsn, now),
            Action::Acquire(grant) => self.acquire(lsn, now, by()?, grant, Phase::Active),
            Action::Reserve(grant) => self.acquire(lsn, now, by()?, grant, Phase::Reserved),
            Action::Activate(held) => self.activate(lsn, now, by()?, *held),
            Action::Renew(renewals) => self.renew(lsn, now, by()?, renewals),
            Action::Release(held) => self.release(lsn, now, by()?, *held),
            Action::Rebind(held) => self.rebind(lsn, now, by()?, *held),
            Action::Touch(held) => self.touch(lsn, now, by()?, *held),
            Action::Commit(commit) => self.commit(lsn, now, by()?, commit),
            Action::Remove(removal) => self.remove(lsn, now, by()?, removal),
            Action::Relocate(relocation) => self.relocate(lsn, now, relocation),
            Action::Revoke(lease) => self.revoke(lsn, now, *lease),
            Action::RevokeAll(party) => self.revoke_all(lsn, now, party),
            Action::Reclaim(lease) => self.reclaim(lsn, now, *lease),
            Action::Pause(pause) => self.pause(lsn, now, pause),
            Action::SetQuota(set) => self.set_quota(lsn, now, set),
            Action::Agent(news) => self.agent_news(lsn, now, by()?, news),
            Action::Retract(retraction) => self.retract(lsn, now, *retraction),
        }
    }

    fn open(&mut self, lsn: Lsn, now: Time, open: &Open) -> Did {
        let misplaced = |why| Err(No::Refused(Rejection::Misplaced(why)));
        if lsn > Lsn::MAX_OPEN {
            return misplaced(Misplaced::Lsn { last: self.last });
        }
        let limits = &open.limits;
        let spans = [limits.ttl_max, limits.hold_max, limits.history_window, limits.request_window];
        if limits.ttl_max == Span(0) || spans.iter().any(|span| span.0 > u64::from(u32::MAX)) {
            return misplaced(Misplaced::Limits);
        }
        let known = self.tenure.as_ref().map_or(1, |tenure| tenure.open.kernel_version);
        if open.kernel_version < known || open.kernel_version > kernel::KERNEL_VERSION {
            return misplaced(Misplaced::KernelVersion { newest: kernel::KERNEL_VERSION });
        }
        match &self.tenure {
            Some(tenure) if tenure.open.store != open.store => return misplaced(Misplaced::Store),
            Some(tenure) if open.term <= tenure.open.term => {
                return misplaced(Misplaced::Term { last: tenure.open.term });
            }
            None if open.store.shard.0 >= open.store.shards => return misplaced(Misplaced::Store),
            _ => {}
        }
        self.tenure = Some(Tenure { open: open.clone(), opened_lsn: lsn, opened_at: now });
        self.pass_time(lsn, now, &[]);
        Ok(Answer::Opened)
    }

    fn tick(&mut self, lsn: Lsn, now: Time) -> Did {
        let limits = *self.limits();
        let due = self.leases.iter().any(|lease| timer(lease).is_some_and(|at| at < now));
        let stale = self.history.len() > limits.history_max as usize
            || self.history.first().is_some_and(|past| past.ended_at.after(limits.history_window) < now)
            || self.requests.first().is_some_and(|entry| entry.lapses_at < now)
            || self.agents.iter().any(|agent| agent.forget_at.is_some_and(|at| at < now));
        if !due && !stale {
            return Err(No::Same(Answer::Ticked));
        }
        self.pass_time(lsn, now, &[]);
        Ok(Answer::Ticked)
    }

    /// What every accepted command does first: forget, end what is touched and over, end what is due.
    fn pass_time(&mut self, lsn: Lsn, now: Time, touched: &[Lsn]) {
        (self.last, self.now) = (lsn, now);
        let limits = *self.limits();
        for _ in 0..Kernel::RETIRE_MAX {
            let over = self.history.len() > limits.history_max as usize;
            let Some(oldest) = self.history.first() else { break };
            if !over && now <= oldest.ended_at.after(limits.history_window) {
                break;
            }
            self.history.remove(0);
        }
        let lapsing = self.requests.iter().take(256).take_while(|entry| entry.lapses_at < now).count();
        self.requests.drain(..lapsing);
        self.forget_agents();
        for lease in touched {
            while self.live(*lease).and_then(timer).is_some_and(|at| at < now) {
                self.time_step(*lease);
            }
        }
        for _ in 0..Kernel::EXPIRE_MAX {
            let due = self.leases.iter().filter_map(|lease| Some((timer(lease)?, lease.lsn)));
            match due.filter(|(at, _)| *at < now).min() {
                Some((_, lease)) => self.time_step(lease),
                None => break,
            }
        }
    }

    fn forget_agents(&mut self) {
        for _ in 0..Kernel::FORGET_MAX {
            let due = self.agents.iter().filter_map(|agent| Some((agent.forget_at?, agent.since)));
            let Some((_, since)) = due.filter(|(at, _)| *at < self.now).min() else { break };
            self.agents.retain(|agent| agent.since != since || agent.forget_at.is_none());
        }
    }

    /// One thing that happens to a lease by itself.
    fn time_step(&mut self, lsn: Lsn) {
        let id = self.id(lsn);
        let lease = self.live(lsn).expect("it was found").clone();
        match (lease.phase, self.hold_until(&lease)) {
            (Phase::Active, Some(until)) => {
                self.events.push(Event::Expired { lease: id, held_until: Some(until) });
                let row = self.live_mut(lsn);
                row.epoch = Epoch(row.epoch.0 + 1);
                row.phase = Phase::Held { until, rebindable: !row.capped };
            }
            (Phase::Held { .. }, _) => {
                self.events.push(Event::Reclaimed(id));
                self.end(lsn, End::Expired);
            }
            (Phase::Reserved | Phase::Active, _) => {
                self.events.push(Event::Expired { lease: id, held_until: None });
                self.end(lsn, End::Expired);
            }
            (Phase::Revoking, _) => unreachable!("nothing happens to a revoked lease by itself"),
        }
    }

    /// Until when a lease is held for its holder after it ran out while active.
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

    fn stand(&self, lease: &LeaseData, now: Time) -> Stand {
        match lease.phase {
            Phase::Revoking => Stand::Revoking,
            Phase::Held { until, .. } if now > until => Stand::Over,
            Phase::Held { until, rebindable } => Stand::Hold { until, rebindable },
            Phase::Reserved if now <= lease.deadline => Stand::Reserved,
            Phase::Active if now <= lease.deadline => Stand::Active,
            Phase::Reserved => Stand::Over,
            Phase::Active => match self.hold_until(lease) {
                Some(until) if now <= until => Stand::Hold { until, rebindable: !lease.capped },
                _ => Stand::Over,
            },
        }
    }

    fn acquire(&mut self, lsn: Lsn, now: Time, who: &Identity, grant: &Grant, phase: Phase) -> Did {
        let limits = *self.limits();
        if grant.ttl == Span(0) || grant.ttl > limits.ttl_max {
            return Err(Rejection::InvalidTtl { max: limits.ttl_max }.into());
        }
        if let OnExpiry::Hold(span) = grant.on_expiry
            && span > limits.hold_max
        {
            return Err(Rejection::InvalidHold { max: limits.hold_max }.into());
        }
        let policy = self.policy_for(&grant.namespace, who);
        if policy.paused {
            return Err(Rejection::Paused.into());
        }
        let known = self.namespaces.iter().any(|space| space.name == grant.namespace);
        if !known && self.namespaces.len() >= limits.namespaces_max as usize {
            return Err(Rejection::Full(Table::Namespaces).into());
        }
        self.may_use_agent(now, who, grant)?;
        let way = self.in_the_way(now, &grant.namespace, &grant.bundle);
        let blocked = way.over.len() > Kernel::EXPIRE_MAX || !way.standing.is_empty();
        let ending: &[Lsn] = if blocked { &[] } else { &way.over };
        self.counts_allow(who, &grant.namespace, ending, policy.quota)?;
        if blocked {
            return Err(self.blocked_by(who, grant, &way).into());
        }
        let over = way.over;
        self.pass_time(lsn, now, &over);
        self.grant(lsn, who, grant, phase, policy.quota);
        let granted = granted(self.id(lsn), self.live(lsn).expect("it was just granted"));
        self.events.push(Event::Granted(granted.lease, granted.token));
        Ok(Answer::Granted(granted))
    }

    fn may_use_agent(&self, now: Time, who: &Identity, grant: &Grant) -> Result<(), Rejection> {
        let Some(name) = &grant.agent else { return Ok(()) };
        let known = self.agents.iter().find(|agent| {
            agent.namespace == grant.namespace
                && agent.name == *name
                && agent.forget_at.is_none_or(|at| now <= at)
        });
        match known {
            None if self.agents.len() >= self.limits().agents_max as usize => {
                Err(Rejection::Full(Table::Agents))
            }
            Some(agent) if agent.identity != *who => Err(Rejection::AgentTaken),
            Some(agent) if agent.paused => Err(Rejection::Paused),
            _ => Ok(()),
        }
    }

    fn counts_allow(
        &self,
        who: &Identity,
        space: &Namespace,
        ending: &[Lsn],
        quota: Quota,
    ) -> Result<(), Rejection> {
        let left = || self.leases.iter().filter(|lease| !ending.contains(&lease.lsn));
        if left().count() >= self.limits().leases_max as usize {
            return Err(Rejection::Full(Table::Leases));
        }
        let max = quota.leases_max.unwrap_or(self.limits().leases_per_identity_max);
        let mine = left().filter(|lease| lease.identity == *who && lease.namespace == *space).count();
        if mine >= max as usize { Err(Rejection::QuotaExceeded { max }) } else { Ok(()) }
    }

    /// Everyone with an incompatible member, told apart by whether they are over.
    fn in_the_way(&self, now: Time, space: &Namespace, bundle: &Bundle) -> Way {
        let clash = |lease: &&LeaseData| {
            lease.namespace == *space
                && lease
                    .members
                    .iter()
                    .any(|held| bundle.members().iter().any(|wanted| clashes(held, wanted)))
        };
        let clashing: Vec<&LeaseData> = self.leases.iter().filter(clash).collect();
        let (over, standing): (Vec<_>, Vec<_>) =
            clashing.into_iter().partition(|lease| self.stand(lease, now) == Stand::Over);
        let mut over: Vec<(Option<Time>, Lsn)> = over.iter().map(|lease| (timer(lease), lease.lsn)).collect();
        over.sort();
        let standing = standing.iter().map(|lease| (lease.lsn, self.wait_age(lease, now))).collect();
        Way { over: over.into_iter().map(|(_, lsn)| lsn).collect(), standing }
    }

    fn wait_age(&self, lease: &LeaseData, now: Time) -> Age {
        match self.stand(lease, now) {
            Stand::Revoking | Stand::Hold { until: Time::NEVER, .. } => Age::YOUNGEST,
            _ => lease.details.age.unwrap_or(Age { at: lease.granted_at, tie: lease.lsn.0 }),
        }
    }

    fn blocked_by(&self, who: &Identity, grant: &Grant, way: &Way) -> Rejection {
        let own = |lsn: &Lsn| {
            let lease = self.live(*lsn).expect("it is in the way");
            lease.identity == *who && grant.session.is_some() && lease.details.session == grant.session
        };
        if let Some(lsn) = way.standing.iter().map(|(lsn, _)| *lsn).filter(own).min() {
            return Rejection::AlreadyHeld(self.id(lsn));
        }
        let oldest = way.standing.iter().map(|(_, age)| *age).min().unwrap_or(Age::YOUNGEST);
        let holders = way.standing.iter().map(|(lsn, _)| self.id(*lsn)).collect();
        Rejection::Conflict(Box::new(Conflict { holders, oldest }))
    }

    fn grant(&mut self, lsn: Lsn, who: &Identity, grant: &Grant, phase: Phase, quota: Quota) {
        let now = self.now;
        if !self.namespaces.iter().any(|space| space.name == grant.namespace) {
            self.namespaces.push(NamespaceData { name: grant.namespace.clone(), floor: Version(0) });
        }
        let floor = self.floor(&grant.namespace);
        for member in grant.bundle.members().iter().filter(|member| member.resource.kind() == "KEY") {
            if self.key(&grant.namespace, member).is_none() {
                let (namespace, key) = (grant.namespace.clone(), member.resource.clone());
                self.keys.push(KeyData { namespace, key, version: floor, document: None });
            }
        }
        self.meet_agent(lsn, who, grant);
        let young = |age: &Age| age.at <= now && now.0 - age.at.0 <= 3_600_000;
        let ttl_until = Time(now.0 + grant.ttl.0);
        let deadline = ttl_until.min(cap(quota, now, now)).max(now);
        self.leases.push(LeaseData {
            lsn,
            namespace: grant.namespace.clone(),
            identity: who.clone(),
            phase,
            epoch: Epoch(1),
            token: Token(lsn.0),
            granted_at: now,
            ttl: grant.ttl,
            ttl_until,
            active_at: now,
            deadline,
            capped: deadline < ttl_until,
            used: false,
            members: grant.bundle.members().to_vec(),
            details: Details {
                on_expiry: grant.on_expiry,
                age: grant.attempt.filter(young),
                agent: grant.agent.clone(),
                session: grant.session.clone(),
                owner: grant.owner.clone(),
                reason: grant.reason.clone(),
                metadata: grant.metadata.clone(),
            },
        });
    }

    fn meet_agent(&mut self, lsn: Lsn, who: &Identity, grant: &Grant) {
        let Some(name) = &grant.agent else { return };
        let now = self.now;
        let is_it = |agent: &AgentData| agent.namespace == grant.namespace && agent.name == *name;
        self.agents.retain(|agent| !(is_it(agent) && agent.forget_at.is_some_and(|at| at < now)));
        match self.agents.iter_mut().find(|agent| is_it(agent)) {
            Some(agent) => {
                agent.forget_at = None;
                come_back(agent, now);
            }
            None => self.agents.push(AgentData {
                namespace: grant.namespace.clone(),
                name: name.clone(),
                identity: who.clone(),
                since: lsn,
                paused: false,
                restart: None,
                forget_at: None,
            }),
        }
    }

    /// The refusals, in the order in which the rules list them.
    fn authority(&self, now: Time, who: &Identity, held: Held) -> Result<Lsn, Rejection> {
        self.exists(held.lease)?;
        let lsn = held.lease.lsn;
        if let Some(past) = self.history.iter().find(|past| past.lsn == lsn) {
            return Err(match past.end {
                _ if past.identity != *who => Rejection::NotHeld,
                End::Revoked => Rejection::LeaseRevoked,
                End::Expired => Rejection::LeaseExpired,
                End::Released => Rejection::NotHeld,
            });
        }
        let lease = self.live(lsn).expect("what exists and is not history is live");
        if lease.identity != *who {
            return Err(Rejection::NotHeld);
        }
        match self.stand(lease, now) {
            Stand::Revoking => Err(Rejection::LeaseRevoked),
            Stand::Hold { .. } | Stand::Over => Err(Rejection::LeaseExpired),
            Stand::Reserved | Stand::Active => match held.epoch.cmp(&lease.epoch) {
                std::cmp::Ordering::Less => Err(Rejection::StaleEpoch { current: lease.epoch }),
                std::cmp::Ordering::Equal => Ok(lsn),
                std::cmp::Ordering::Greater => Err(Rejection::NotHeld),
            },
        }
    }

    fn exists(&self, lease: LeaseId) -> Result<(), Rejection> {
        if lease.shard != self.id(lease.lsn).shard || lease.lsn > self.last {
            return Err(Rejection::NotFound);
        }
        let live = self.leases.iter().any(|row| row.lsn == lease.lsn);
        let past = self.history.iter().any(|row| row.lsn == lease.lsn);
        if live || past { Ok(()) } else { Err(Rejection::Retired) }
    }

    fn active(&self, now: Time, who: &Identity, held: Held) -> Result<Lsn, Rejection> {
        let lsn = self.authority(now, who, held)?;
        match self.live(lsn).expect("it has authority").phase {
            Phase::Reserved => Err(Rejection::InvalidState(State::Reserved)),
            _ => Ok(lsn),
        }
    }

    fn activate(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Held) -> Did {
        let lease = self.authority(now, who, held)?;
        if self.live(lease).expect("it has authority").phase != Phase::Reserved {
            return Err(Rejection::InvalidState(State::Active).into());
        }
        self.pass_time(lsn, now, &[]);
        let row = self.live_mut(lease);
        row.phase = Phase::Active;
        row.used = true;
        self.events.push(Event::Activated(held.lease));
        Ok(Answer::Live(self.answer_live(lease)))
    }

    fn renew(&mut self, lsn: Lsn, now: Time, who: &Identity, renewals: &[Renewal]) -> Did {
        if renewals.is_empty() || renewals.len() > 256 {
            return Err(Rejection::InvalidBatch.into());
        }
        let max = self.limits().ttl_max;
        let decide = |renewal: &Renewal| {
            let lease = self.active(now, who, renewal.held)?;
            match renewal.ttl {
                Some(ttl) if ttl == Span(0) || ttl > max => Err(Rejection::InvalidTtl { max }),
                ttl => Ok((lease, ttl.unwrap_or(self.live(lease).expect("it is active").ttl))),
            }
        };
        let decided: Vec<Result<(Lsn, Span), Rejection>> = renewals.iter().map(decide).collect();
        if decided.iter().all(Result::is_err) {
            let refusals = decided.into_iter().map(|result| Err(result.expect_err("all are")));
            return Err(No::Same(Answer::Renewed(refusals.collect())));
        }
        self.pass_time(lsn, now, &[]);
        let mut results = Vec::new();
        for result in decided {
            results.push(result.map(|(lease, ttl)| {
                let quota = self.quota_of(lease);
                let row = self.live_mut(lease);
                row.used = true;
                row.ttl_until = row.ttl_until.max(Time(now.0 + ttl.0));
                set_deadline(row, quota);
                let (agent, namespace) = (row.details.agent.clone(), row.namespace.clone());
                self.agent_back(&namespace, agent.as_ref());
                self.answer_live(lease)
            }));
        }
        Ok(Answer::Renewed(results))
    }

    fn touch(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Held) -> Did {
        let lease = self.active(now, who, held)?;
        self.pass_time(lsn, now, &[]);
        self.use_it(lease);
        Ok(Answer::Live(self.answer_live(lease)))
    }

    fn use_it(&mut self, lease: Lsn) {
        let (quota, now) = (self.quota_of(lease), self.now);
        let row = self.live_mut(lease);
        row.used = true;
        row.active_at = now;
        set_deadline(row, quota);
    }

    fn release(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Held) -> Did {
        match self.exists(held.lease) {
            Err(Rejection::Retired) => return Err(No::Same(Answer::Released)),
            other => other?,
        }
        let issued = |epoch: Epoch| if epoch.0 % 2 == 1 { epoch } else { Epoch(epoch.0 - 1) };
        if let Some(past) = self.history.iter().find(|past| past.lsn == held.lease.lsn) {
            let right = past.identity == *who && held.epoch == issued(past.epoch);
            return Err(if right { No::Same(Answer::Released) } else { Rejection::NotHeld.into() });
        }
        let lease = self.live(held.lease.lsn).expect("what is not history is live");
        if lease.identity != *who {
            return Err(Rejection::NotHeld.into());
        }
        let stand = self.stand(lease, now);
        let has_authority = matches!(stand, Stand::Reserved | Stand::Active);
        if has_authority && held.epoch < lease.epoch {
            return Err(Rejection::StaleEpoch { current: lease.epoch }.into());
        }
        if held.epoch != issued(lease.epoch) {
            return Err(Rejection::NotHeld.into());
        }
        if matches!(stand, Stand::Revoking | Stand::Over) {
            return Err(No::Same(Answer::Released));
        }
        self.pass_time(lsn, now, &[held.lease.lsn]);
        self.give_back(held.lease.lsn);
        Ok(Answer::Released)
    }

    fn give_back(&mut self, lease: Lsn) {
        self.events.push(Event::Released(self.id(lease)));
        self.end(lease, End::Released);
    }

    fn rebind(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Held) -> Did {
        match self.authority(now, who, held) {
            Ok(lease) => {
                let reserved = self.live(lease).expect("it has authority").phase == Phase::Reserved;
                let state = if reserved { State::Reserved } else { State::Active };
                return Err(Rejection::InvalidState(state).into());
            }
            Err(Rejection::LeaseExpired) => {}
            Err(rejection) => return Err(rejection.into()),
        }
        let Some(lease) = self.live(held.lease.lsn) else { return Err(Rejection::LeaseExpired.into()) };
        if !matches!(self.stand(lease, now), Stand::Hold { rebindable: true, .. }) {
            return Err(Rejection::LeaseExpired.into());
        }
        let settled = matches!(lease.phase, Phase::Held { .. });
        let issued = if settled { Epoch(lease.epoch.0 - 1) } else { lease.epoch };
        if held.epoch != issued {
            return Err(Rejection::NotHeld.into());
        }
        let agent = self.agents.iter().find(|agent| {
            agent.namespace == lease.namespace && Some(&agent.name) == lease.details.agent.as_ref()
        });
        if agent.is_some_and(|agent| agent.paused) || self.policy_for(&lease.namespace, who).paused {
            return Err(Rejection::Paused.into());
        }
        let quota = self.quota_of(lease.lsn);
        if quota.total_max.is_some_and(|total| now > lease.granted_at.after(total)) {
            return Err(Rejection::LeaseExpired.into());
        }
        let id = lease.lsn;
        self.pass_time(lsn, now, &[id]);
        let row = self.live_mut(id);
        row.epoch = Epoch(row.epoch.0 + 1);
        row.token = Token(lsn.0);
        row.phase = Phase::Active;
        row.active_at = now;
        row.used = true;
        row.ttl_until = Time(now.0 + row.ttl.0);
        row.deadline = now;
        set_deadline(row, quota);
        let (agent, namespace) = (row.details.agent.clone(), row.namespace.clone());
        self.agent_back(&namespace, agent.as_ref());
        let granted = granted(self.id(id), self.live(id).expect("it was just rebound"));
        self.events.push(Event::Rebound(granted.lease, granted.token));
        Ok(Answer::Granted(granted))
    }

    fn retract(&mut self, lsn: Lsn, now: Time, retraction: Retraction) -> Did {
        let no = Err(No::Same(Answer::Retracted { undone: false }));
        if self.exists(retraction.lease).is_err() {
            return no;
        }
        let Some(lease) = self.live(retraction.lease.lsn) else { return no };
        if lease.used || !matches!(self.stand(lease, now), Stand::Reserved | Stand::Active) {
            return no;
        }
        let identity = lease.identity.clone();
        self.pass_time(lsn, now, &[]);
        self.requests.retain(|entry| {
            let same = entry.identity == identity && Some(entry.request.key) == retraction.request;
            let its = matches!(&entry.answer, Answer::Granted(granted) if granted.lease == retraction.lease);
            !(same && its && now <= entry.lapses_at)
        });
        self.give_back(retraction.lease.lsn);
        Ok(Answer::Retracted { undone: true })
    }

    fn may_write(&self, now: Time, who: &Identity, write: &Write) -> Result<(Lsn, usize), Rejection> {
        let lsn = self.authority(now, who, write.held)?;
        let lease = self.live(lsn).expect("it has authority");
        if write.token.is_some_and(|token| token != lease.token) {
            return Err(Rejection::FencingMismatch { current: lease.token });
        }
        let covers = |member: &Member| {
            member.resource == write.key
                && matches!(member.predicate, Predicate::Mutates | Predicate::Deletes)
        };
        if write.key.kind() != "KEY" || !lease.members.iter().any(covers) {
            return Err(Rejection::NotHeld);
        }
        if lease.phase == Phase::Reserved {
            return Err(Rejection::InvalidState(State::Reserved));
        }
        let is_it = |key: &KeyData| key.namespace == lease.namespace && key.key == write.key;
        let place = self.keys.iter().position(is_it).expect("a leased key is known");
        let key = &self.keys[place];
        let tag = DocumentTag { version: key.version, etag: key.document.map(|document| document.etag) };
        if write.if_version.is_some_and(|version| version != tag.version) {
            return Err(Rejection::VersionConflict(tag));
        }
        if write.if_etag.is_some_and(|etag| etag != tag.etag) {
            return Err(Rejection::EtagMismatch(tag));
        }
        Ok((lsn, place))
    }

    fn commit(&mut self, lsn: Lsn, now: Time, who: &Identity, commit: &Commit) -> Did {
        let (lease, place) = self.may_write(now, who, &commit.write)?;
        let documents = self.keys.iter().filter(|key| key.document.is_some()).count();
        if self.keys[place].document.is_none() && documents >= self.limits().documents_max as usize {
            return Err(Rejection::Full(Table::Documents).into());
        }
        let (namespace, name) = (self.keys[place].namespace.clone(), commit.write.key.clone());
        self.pass_time(lsn, now, &[]);
        let is_it = |key: &&mut KeyData| key.namespace == namespace && key.key == name;
        let key = self.keys.iter_mut().find(is_it).expect("a leased key stays");
        let superseded = key.document.map(|document| document.location);
        key.version = Version(key.version.0 + 1);
        let Commit { etag, bytes, location, .. } = *commit;
        key.document = Some(Document { etag, bytes, location, committed_at: now });
        let version = key.version;
        self.events.push(Event::Committed { lease: commit.write.held.lease, key: name, version, superseded });
        self.use_it(lease);
        if commit.write.release {
            self.give_back(lease);
        }
        Ok(Answer::Committed(version))
    }

    fn remove(&mut self, lsn: Lsn, now: Time, who: &Identity, removal: &Removal) -> Did {
        let write = &removal.write;
        let (lease, place) = self.may_write(now, who, write)?;
        let KeyData { namespace, key: name, version, document } = self.keys[place].clone();
        if document.is_none() && !write.release {
            return Err(No::Same(Answer::Removed { removed: false, version }));
        }
        self.pass_time(lsn, now, &[]);
        let is_it = |key: &&mut KeyData| key.namespace == namespace && key.key == name;
        let key = self.keys.iter_mut().find(is_it).expect("a leased key stays");
        let mut version = key.version;
        if let Some(Document { location: superseded, .. }) = key.document.take() {
            key.version = Version(key.version.0 + 1);
            version = key.version;
            self.events.push(Event::Removed { lease: write.held.lease, key: name, version, superseded });
        }
        self.use_it(lease);
        if write.release {
            self.give_back(lease);
        }
        Ok(Answer::Removed { removed: document.is_some(), version })
    }

    fn relocate(&mut self, lsn: Lsn, now: Time, relocation: &Relocation) -> Did {
        let is_it = |key: &KeyData| {
            key.namespace == relocation.namespace
                && key.key == relocation.key
                && key.document.is_some()
                && key.version == relocation.version
        };
        if !self.keys.iter().any(is_it) {
            return Err(No::Same(Answer::Relocated { moved: false }));
        }
        self.pass_time(lsn, now, &[]);
        let key = self.keys.iter_mut().find(|key| is_it(key)).expect("a document stays");
        let to: Location = relocation.location;
        key.document.as_mut().expect("it has a document").location = to;
        Ok(Answer::Relocated { moved: true })
    }

    fn revoke(&mut self, lsn: Lsn, now: Time, id: LeaseId) -> Did {
        match self.stand_of(now, id)? {
            Stand::Reserved | Stand::Active | Stand::Hold { .. } => {}
            Stand::Revoking => return Err(Rejection::InvalidState(State::Revoking).into()),
            Stand::Over => return Err(Rejection::InvalidState(State::Expired).into()),
        }
        self.pass_time(lsn, now, &[id.lsn]);
        self.withdraw(id.lsn);
        Ok(Answer::Revoking(id))
    }

    fn withdraw(&mut self, lsn: Lsn) {
        let row = self.live_mut(lsn);
        row.epoch = Epoch(row.epoch.0 + row.epoch.0 % 2);
        row.phase = Phase::Revoking;
        self.events.push(Event::Revoked(self.id(lsn)));
    }

    fn revoke_all(&mut self, lsn: Lsn, now: Time, party: &Party) -> Did {
        let of = |lease: &&LeaseData| {
            lease.phase != Phase::Revoking
                && match party {
                    Party::Identity(space, who) => lease.namespace == *space && lease.identity == *who,
                    Party::Agent(space, agent) => {
                        lease.namespace == *space && lease.details.agent.as_ref() == Some(agent)
                    }
                }
        };
        let mut leases: Vec<Lsn> = self.leases.iter().filter(of).map(|lease| lease.lsn).collect();
        leases.sort();
        leases.truncate(256);
        if leases.is_empty() {
            return Err(No::Same(Answer::RevokedAll { revoked: 0, more: false }));
        }
        self.pass_time(lsn, now, &leases);
        leases.retain(|lease| self.live(*lease).is_some());
        for lease in &leases {
            self.withdraw(*lease);
        }
        let more = self.leases.iter().any(|lease| of(&lease));
        Ok(Answer::RevokedAll { revoked: u32::try_from(leases.len()).expect("at most 256"), more })
    }

    fn reclaim(&mut self, lsn: Lsn, now: Time, id: LeaseId) -> Did {
        let end = match self.stand_of(now, id)? {
            Stand::Revoking => End::Revoked,
            Stand::Hold { .. } => End::Expired,
            Stand::Reserved => return Err(Rejection::InvalidState(State::Reserved).into()),
            Stand::Active => return Err(Rejection::InvalidState(State::Active).into()),
            Stand::Over => return Err(Rejection::InvalidState(State::Expired).into()),
        };
        self.pass_time(lsn, now, &[id.lsn]);
        self.events.push(Event::Reclaimed(id));
        self.end(id.lsn, end);
        Ok(Answer::Reclaimed(id))
    }

    fn stand_of(&self, now: Time, id: LeaseId) -> Result<Stand, Rejection> {
        self.exists(id)?;
        if let Some(lease) = self.live(id.lsn) {
            return Ok(self.stand(lease, now));
        }
        let past = self.history.iter().find(|past| past.lsn == id.lsn).expect("it exists");
        Err(Rejection::InvalidState(past.end.into()))
    }

    fn pause(&mut self, lsn: Lsn, now: Time, pause: &Pause) -> Did {
        match &pause.whom {
            Paused::Scope(scope) => {
                let policy = Policy { paused: pause.paused, ..self.policy_at(scope) };
                self.set_policy(lsn, now, scope, policy)
            }
            Paused::Agent(space, name) => {
                let agent = self.known_agent(now, space, name)?;
                if agent.paused == pause.paused {
                    return Err(No::Same(Answer::Done));
                }
                let since = agent.since;
                self.pass_time(lsn, now, &[]);
                self.agents.iter_mut().filter(|agent| agent.since == since).for_each(|agent| {
                    agent.paused = pause.paused;
                });
                self.tend_agent(since);
                Ok(Answer::Done)
            }
        }
    }

    fn set_quota(&mut self, lsn: Lsn, now: Time, set: &SetQuota) -> Did {
        let policy = Policy { quota: set.quota, ..self.policy_at(&set.scope) };
        self.set_policy(lsn, now, &set.scope, policy)
    }

    fn set_policy(&mut self, lsn: Lsn, now: Time, scope: &Scope, policy: Policy) -> Did {
        if self.policy_at(scope) == policy {
            return Err(No::Same(Answer::Done));
        }
        let is_new = !self.policies.iter().any(|(at, _)| at == scope);
        if is_new && self.policies.len() >= self.limits().policies_max as usize {
            return Err(Rejection::Full(Table::Policies).into());
        }
        self.pass_time(lsn, now, &[]);
        self.policies.retain(|(at, _)| at != scope);
        if policy != Policy::default() {
            self.policies.push((scope.clone(), policy));
        }
        Ok(Answer::Done)
    }

    fn agent_news(&mut self, lsn: Lsn, now: Time, who: &Identity, news: &AgentNews) -> Did {
        let agent = self.known_agent(now, &news.namespace, &news.agent)?.clone();
        if !news.operator && agent.identity != *who {
            return Err(Rejection::AgentTaken.into());
        }
        let restarting = agent.restart.is_some_and(|restart| restart.until.is_none());
        if restarting == news.restarting {
            return Err(No::Same(Answer::Done));
        }
        let behind = self.leases.iter().filter_map(timer).min();
        let back = agent.restart.and_then(|restart| restart.until);
        if news.restarting && behind.zip(back).is_some_and(|(at, back)| at < back) {
            return Err(Rejection::Behind.into());
        }
        self.pass_time(lsn, now, &[]);
        for agent in self.agents.iter_mut().filter(|row| row.since == agent.since) {
            if news.restarting {
                agent.restart = Some(Restart { since: now, until: None });
            } else {
                come_back(agent, now);
            }
        }
        self.tend_agent(agent.since);
        Ok(Answer::Done)
    }

    fn known_agent(
        &self,
        now: Time,
        space: &Namespace,
        name: &kernel::AgentName,
    ) -> Result<&AgentData, Rejection> {
        let is_it = |agent: &&AgentData| {
            agent.namespace == *space && agent.name == *name && agent.forget_at.is_none_or(|at| now <= at)
        };
        self.agents.iter().find(is_it).ok_or(Rejection::NotFound)
    }

    fn agent_back(&mut self, space: &Namespace, name: Option<&kernel::AgentName>) {
        let now = self.now;
        let is_it = |agent: &&mut AgentData| agent.namespace == *space && Some(&agent.name) == name;
        if let Some(agent) = self.agents.iter_mut().find(is_it) {
            come_back(agent, now);
        }
    }

    /// Sets when an agent is forgotten: five minutes from now, unless it has leases or is paused.
    fn tend_agent(&mut self, since: Lsn) {
        let now = self.now;
        for agent in self.agents.iter_mut().filter(|agent| agent.since == since) {
            let has_lease = self.leases.iter().any(|lease| {
                lease.namespace == agent.namespace && lease.details.agent.as_ref() == Some(&agent.name)
            });
            agent.forget_at = (!has_lease && !agent.paused).then(|| now.after(Span(300_000)));
        }
    }

    /// The lease goes to history; keys that nothing needs go, and leave their version to the floor.
    fn end(&mut self, lsn: Lsn, end: End) {
        let place = self.leases.iter().position(|lease| lease.lsn == lsn).expect("it is live");
        let lease = self.leases.remove(place);
        let covered = |key: &KeyData| {
            let by = |lease: &LeaseData| {
                lease.namespace == key.namespace
                    && lease.members.iter().any(|member| member.resource == key.key)
            };
            self.leases.iter().any(by)
        };
        for key in self.keys.iter().filter(|key| key.document.is_none() && !covered(key)) {
            for space in self.namespaces.iter_mut().filter(|space| space.name == key.namespace) {
                space.floor = space.floor.max(key.version);
            }
        }
        let kept = self.keys.iter().filter(|key| key.document.is_some() || covered(key)).cloned().collect();
        self.keys = kept;
        let mine = |agent: &&AgentData| {
            agent.namespace == lease.namespace && Some(&agent.name) == lease.details.agent.as_ref()
        };
        if let Some(since) = self.agents.iter().find(mine).map(|agent| agent.since) {
            self.tend_agent(since);
        }
        self.history.push(PastData {
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

    fn again(&self, now: Time, who: &Identity, answer: &Answer) -> Result<Answer, Rejection> {
        let (lease, epoch) = match answer {
            Answer::Granted(Granted { lease, epoch, .. }) | Answer::Live(Live { lease, epoch, .. }) => {
                (*lease, *epoch)
            }
            other => return Ok(other.clone()),
        };
        match (self.authority(now, who, Held { lease, epoch }), answer) {
            (Err(Rejection::Retired), _) => Err(Rejection::LeaseExpired),
            (Err(rejection), _) => Err(rejection),
            (Ok(lsn), Answer::Live(_)) => Ok(Answer::Live(self.answer_live(lsn))),
            (Ok(lsn), _) => Ok(Answer::Granted(granted(lease, self.live(lsn).expect("it has authority")))),
        }
    }

    fn answer_live(&self, lsn: Lsn) -> Live {
        let lease = self.live(lsn).expect("the caller looked");
        Live { lease: self.id(lsn), epoch: lease.epoch, deadline: lease.deadline }
    }

    fn policy_at(&self, scope: &Scope) -> Policy {
        self.policies.iter().find(|(at, _)| at == scope).map(|(_, policy)| *policy).unwrap_or_default()
    }

    fn policy_for(&self, space: &Namespace, who: &Identity) -> Policy {
        let at = |namespace: Option<&Namespace>, identity: Option<&Identity>| {
            self.policy_at(&Scope { namespace: namespace.cloned(), identity: identity.cloned() })
        };
        let scopes = [at(Some(space), Some(who)), at(Some(space), None), at(None, Some(who)), at(None, None)];
        let first = |field: fn(&Quota) -> Option<u64>| scopes.iter().find_map(|policy| field(&policy.quota));
        let small = |n: u64| u32::try_from(n).expect("it was one");
        Policy {
            paused: scopes.iter().any(|policy| policy.paused),
            quota: Quota {
                leases_max: first(|quota| quota.leases_max.map(u64::from)).map(small),
                total_max: first(|quota| quota.total_max.map(|span| span.0)).map(Span),
                idle_max: first(|quota| quota.idle_max.map(|span| span.0)).map(Span),
                acquires_per_second: first(|quota| quota.acquires_per_second.map(u64::from)).map(small),
            },
        }
    }

    fn quota_of(&self, lsn: Lsn) -> Quota {
        let lease = self.live(lsn).expect("the caller looked");
        self.policy_for(&lease.namespace, &lease.identity).quota
    }

    fn key(&self, space: &Namespace, member: &Member) -> Option<&KeyData> {
        self.keys.iter().find(|key| key.namespace == *space && key.key == member.resource)
    }

    fn floor(&self, space: &Namespace) -> Version {
        self.namespaces.iter().find(|row| row.name == *space).map(|row| row.floor).unwrap_or_default()
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

/// Who is in the way of a bundle.
struct Way {
    over: Vec<Lsn>,
    standing: Vec<(Lsn, Age)>,
}

/// When something happens to a lease by itself.
fn timer(lease: &LeaseData) -> Option<Time> {
    match lease.phase {
        Phase::Reserved | Phase::Active => Some(lease.deadline),
        Phase::Held { until, .. } => Some(until).filter(|until| *until != Time::NEVER),
        Phase::Revoking => None,
    }
}

fn cap(quota: Quota, granted_at: Time, active_at: Time) -> Time {
    let total = quota.total_max.map_or(u64::MAX, |span| granted_at.0.saturating_add(span.0));
    let idle = quota.idle_max.map_or(u64::MAX, |span| active_at.0.saturating_add(span.0));
    Time(total.min(idle))
}

/// As far as the TTL and the quota let it, and never back.
fn set_deadline(row: &mut LeaseData, quota: Quota) {
    let reach = row.ttl_until.min(cap(quota, row.granted_at, row.active_at));
    row.deadline = row.deadline.max(reach);
    row.capped = row.deadline < row.ttl_until;
}

fn come_back(agent: &mut AgentData, now: Time) {
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

/// The table of the specification, and paths taken apart into segments.
fn clashes(a: &Member, b: &Member) -> bool {
    let shared = |predicate| matches!(predicate, Predicate::Consumes | Predicate::DependsOn);
    let exclusive =
        |predicate| matches!(predicate, Predicate::Mutates | Predicate::Deletes | Predicate::Renames);
    let goes_together =
        !exclusive(a.predicate) && !exclusive(b.predicate) && (shared(a.predicate) || shared(b.predicate));
    !goes_together && share_something(a, b)
}

fn share_something(a: &Member, b: &Member) -> bool {
    if a.resource.kind() != "FILE" || b.resource.kind() != "FILE" {
        return a.resource == b.resource;
    }
    let segments = |member: &Member| -> Vec<String> {
        member.resource.name().split('/').filter(|part| !part.is_empty()).map(String::from).collect()
    };
    let (a, b) = (segments(a), segments(b));
    let reaches = |tree: &[String], other: &[String]| match tree.split_last() {
        Some((last, dir)) if last == "*" => {
            let other = other.strip_suffix(&["*".to_string()]).unwrap_or(other);
            other.starts_with(dir)
        }
        _ => false,
    };
    a == b || reaches(&a, &b) || reaches(&b, &a)
}
