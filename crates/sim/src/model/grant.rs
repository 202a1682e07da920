//! Acquire and reserve. Conflicts are found by scanning every lease.

use std::collections::BTreeSet;

use kernel::{
    Age, AgentData, BoundedTable, Bundle, Conflict, Epoch, Event, Identity, KeyData, LeaseAttributes,
    LeaseData, LeaseRequest, Lsn, Member, Namespace, NamespaceData, OnExpiry, Phase, Predicate, Quota,
    Rejection, Response, Span, Time, Token,
};

use super::{EffectiveState, Model, ModelResult, cap, granted, mark_returned, timer, weight};

impl Model {
    pub(super) fn acquire(
        &mut self,
        lsn: Lsn,
        now: Time,
        who: &Identity,
        grant: &LeaseRequest,
        phase: Phase,
    ) -> ModelResult {
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
        let known = self.namespaces.iter().any(|namespace| namespace.name == grant.namespace);
        if !known && self.namespaces.len() >= limits.namespaces_max as usize {
            let max = self.limits().namespaces_max;
            return Err(Rejection::Full { table: BoundedTable::Namespaces, max }.into());
        }
        self.may_use_agent(now, who, grant)?;
        let conflicts = self.conflicting(now, &grant.namespace, &grant.bundle);
        let blocked = self.exceeds_step(&conflicts.expired) || !conflicts.live.is_empty();
        let ending: &[Lsn] = if blocked { &[] } else { &conflicts.expired };
        let counts = self.counts_allow(who, grant, ending, policy.quota);
        let behind = self.leases.iter().filter_map(timer).any(|at| at < now);
        counts.map_err(|full| if behind { Rejection::Behind } else { full })?;
        if blocked {
            return Err(self.blocked_by(who, grant, &conflicts).into());
        }
        let expired = conflicts.expired;
        self.pass_time(lsn, now, &expired);
        self.grant(lsn, who, grant, phase, policy.quota);
        let granted = granted(self.id(lsn), self.live(lsn).expect("it was just granted"));
        self.events.push(Event::Granted(granted.lease, granted.token));
        Ok(Response::Granted(granted))
    }

    fn may_use_agent(&self, now: Time, who: &Identity, grant: &LeaseRequest) -> Result<(), Rejection> {
        let Some(name) = &grant.agent else { return Ok(()) };
        let known = self.agents.iter().find(|agent| {
            agent.namespace == grant.namespace
                && agent.name == *name
                && agent.forget_at.is_none_or(|at| now <= at)
        });
        let mine = |agent: &&AgentData| agent.namespace == grant.namespace && agent.identity == *who;
        let (all_max, mine_max) = (self.limits().agents_max, self.limits().agents_per_identity_max);
        let all_full = self.agents.len() >= all_max as usize;
        let full = all_full || self.agents.iter().filter(mine).count() >= mine_max as usize;
        match known {
            None if full && self.agents.iter().any(|agent| agent.forget_at.is_some_and(|at| at < now)) => {
                Err(Rejection::Behind)
            }
            None if all_full => Err(Rejection::Full { table: BoundedTable::Agents, max: all_max }),
            None if full => Err(Rejection::Full { table: BoundedTable::AgentsPerIdentity, max: mine_max }),
            Some(agent) if agent.identity != *who => Err(Rejection::AgentTaken),
            Some(agent) if agent.paused => Err(Rejection::Paused),
            _ => Ok(()),
        }
    }

    fn counts_allow(
        &self,
        who: &Identity,
        grant: &LeaseRequest,
        ending: &[Lsn],
        quota: Quota,
    ) -> Result<(), Rejection> {
        let left = || self.leases.iter().filter(|lease| !ending.contains(&lease.lsn));
        if left().count() >= self.limits().leases_max as usize {
            return Err(Rejection::Full { table: BoundedTable::Leases, max: self.limits().leases_max });
        }
        if self.nodes_count() + weight(grant.bundle.members()) > self.limits().nodes_max as usize {
            return Err(Rejection::Full { table: BoundedTable::Nodes, max: self.limits().nodes_max });
        }
        let max = quota.leases_max.unwrap_or(self.limits().leases_per_identity_max);
        let mine =
            left().filter(|lease| lease.identity == *who && lease.namespace == grant.namespace).count();
        if mine >= max as usize { Err(Rejection::QuotaExceeded { max }) } else { Ok(()) }
    }

    /// Counts keys with a document, leased names, and the directories above them.
    fn nodes_count(&self) -> usize {
        let mut names: BTreeSet<(&Namespace, String)> = BTreeSet::new();
        for key in &self.keys {
            names.insert((&key.namespace, key.key.to_string()));
        }
        for lease in &self.leases {
            for member in &lease.members {
                if member.resource.kind() != "FILE" {
                    names.insert((&lease.namespace, member.resource.to_string()));
                    continue;
                }
                let mut path = String::from("FILE:");
                names.insert((&lease.namespace, path.clone()));
                for part in member.resource.name().split('/').filter(|part| !part.is_empty() && *part != "*")
                {
                    path = format!("{path}/{part}");
                    names.insert((&lease.namespace, path.clone()));
                }
            }
        }
        names.len()
    }

    /// One expired lease may always be ended; several only if together they are no more than one step.
    fn exceeds_step(&self, expired: &[Lsn]) -> bool {
        let weigh = |lsn: &Lsn| weight(&self.live(*lsn).expect("a conflicting lease is live").members);
        expired.len() > 1 && expired.iter().map(weigh).sum::<usize>() > self.limits().step_max as usize
    }

    /// All leases with an incompatible member, split by whether they have expired.
    fn conflicting(&self, now: Time, namespace: &Namespace, bundle: &Bundle) -> ConflictingLeases {
        let has_conflict = |lease: &&LeaseData| {
            lease.namespace == *namespace
                && lease
                    .members
                    .iter()
                    .any(|held| bundle.members().iter().any(|wanted| conflict(held, wanted)))
        };
        let conflicting: Vec<&LeaseData> = self.leases.iter().filter(has_conflict).collect();
        let (expired, live): (Vec<_>, Vec<_>) = conflicting
            .into_iter()
            .partition(|lease| self.effective_state(lease, now) == EffectiveState::Expired);
        let mut expired: Vec<(Option<Time>, Lsn)> =
            expired.iter().map(|lease| (timer(lease), lease.lsn)).collect();
        expired.sort();
        let live = live.iter().map(|lease| (lease.lsn, self.wait_age(lease, now))).collect();
        ConflictingLeases { expired: expired.into_iter().map(|(_, lsn)| lsn).collect(), live }
    }

    fn wait_age(&self, lease: &LeaseData, now: Time) -> Age {
        match self.effective_state(lease, now) {
            EffectiveState::Revoking
            | EffectiveState::Hold { until: Time::NEVER, .. }
            | EffectiveState::Hold { rebindable: false, .. } => Age::YOUNGEST,
            _ => lease.details.age.unwrap_or(Age { at: lease.granted_at, tie: lease.lsn.0 }),
        }
    }

    fn blocked_by(&self, who: &Identity, grant: &LeaseRequest, conflicts: &ConflictingLeases) -> Rejection {
        let own = |lsn: &Lsn| {
            let lease = self.live(*lsn).expect("a conflicting lease is live");
            lease.identity == *who && grant.session.is_some() && lease.details.session == grant.session
        };
        if let Some(lsn) = conflicts.live.iter().map(|(lsn, _)| *lsn).filter(own).min() {
            return Rejection::AlreadyHeld(self.id(lsn));
        }
        let oldest = conflicts.live.iter().map(|(_, age)| *age).min().unwrap_or(Age::YOUNGEST);
        let holders = conflicts.live.iter().map(|(lsn, _)| self.id(*lsn)).collect();
        Rejection::Conflict(Box::new(Conflict { holders, oldest }))
    }

    fn grant(&mut self, lsn: Lsn, who: &Identity, grant: &LeaseRequest, phase: Phase, quota: Quota) {
        let now = self.now;
        let stale = |agent: &AgentData| {
            agent.namespace == grant.namespace
                && Some(&agent.name) == grant.agent.as_ref()
                && agent.forget_at.is_some_and(|at| at < now)
        };
        self.agents.retain(|agent| !stale(agent));
        self.drop_empty_namespaces();
        if !self.namespaces.iter().any(|namespace| namespace.name == grant.namespace) {
            self.namespaces.push(NamespaceData { name: grant.namespace.clone(), floor: self.floor });
        }
        let floor = self.floor(&grant.namespace);
        for member in grant.bundle.members().iter().filter(|member| member.resource.kind() == "KEY") {
            if self.key(&grant.namespace, member).is_none() {
                let (namespace, key) = (grant.namespace.clone(), member.resource.clone());
                self.keys.push(KeyData { namespace, key, version: floor, document: None });
            }
        }
        self.register_agent(lsn, who, grant);
        let young = |age: &Age| age.at <= now && now.0 - age.at.0 <= 3_600_000;
        let ttl_until = Time(now.0 + grant.ttl.0);
        let cap = cap(quota, now, now);
        let deadline = ttl_until.min(cap).max(now);
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
            capped: cap <= ttl_until,
            used: false,
            members: grant.bundle.members().to_vec(),
            details: LeaseAttributes {
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

    fn register_agent(&mut self, lsn: Lsn, who: &Identity, grant: &LeaseRequest) {
        let Some(name) = &grant.agent else { return };
        let now = self.now;
        let matches = |agent: &AgentData| agent.namespace == grant.namespace && agent.name == *name;
        match self.agents.iter_mut().find(|agent| matches(agent)) {
            Some(agent) => {
                agent.forget_at = None;
                mark_returned(agent, now);
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
}

/// The leases that conflict with a bundle.
struct ConflictingLeases {
    expired: Vec<Lsn>,
    live: Vec<(Lsn, Age)>,
}

/// The compatibility table of the specification, with paths split into segments.
fn conflict(a: &Member, b: &Member) -> bool {
    let shared = |predicate| matches!(predicate, Predicate::Consumes | Predicate::DependsOn);
    let exclusive =
        |predicate| matches!(predicate, Predicate::Mutates | Predicate::Deletes | Predicate::Renames);
    let goes_together =
        !exclusive(a.predicate) && !exclusive(b.predicate) && (shared(a.predicate) || shared(b.predicate));
    !goes_together && overlap(a, b)
}

fn overlap(a: &Member, b: &Member) -> bool {
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
