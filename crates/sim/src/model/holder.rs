//! Commands of holders: activate, renew, touch, release, rebind; and the retraction of undelivered grants.

use kernel::{
    Credential, EndReason, Epoch, Event, Identity, LeaseId, Lsn, Phase, Rejection, Renewal, Response,
    Retraction, Span, State, Time, Token,
};

use super::{EffectiveState, Model, ModelResult, NotApplied, cap, granted, set_deadline};

impl Model {
    /// The rejections, in the order in which the rules list them.
    pub(super) fn authority(&self, now: Time, who: &Identity, held: Credential) -> Result<Lsn, Rejection> {
        self.exists(held.lease)?;
        let lsn = held.lease.lsn;
        if let Some(past) = self.history.iter().find(|past| past.lsn == lsn) {
            return Err(match past.end {
                _ if past.identity != *who => Rejection::NotHeld,
                EndReason::Revoked => Rejection::LeaseRevoked,
                EndReason::Expired => Rejection::LeaseExpired,
                EndReason::Released => Rejection::NotHeld,
            });
        }
        let lease = self.live(lsn).expect("a lease that exists and has not ended is live");
        if lease.identity != *who {
            return Err(Rejection::NotHeld);
        }
        match self.effective_state(lease, now) {
            EffectiveState::Revoking => Err(Rejection::LeaseRevoked),
            EffectiveState::Hold { .. } | EffectiveState::Expired => Err(Rejection::LeaseExpired),
            EffectiveState::Reserved | EffectiveState::Active => match held.epoch.cmp(&lease.epoch) {
                std::cmp::Ordering::Less => Err(Rejection::StaleEpoch { current: lease.epoch }),
                std::cmp::Ordering::Equal => Ok(lsn),
                std::cmp::Ordering::Greater => Err(Rejection::NotHeld),
            },
        }
    }

    pub(super) fn exists(&self, lease: LeaseId) -> Result<(), Rejection> {
        if lease.shard != self.id(lease.lsn).shard || lease.lsn > self.last {
            return Err(Rejection::NotFound);
        }
        let live = self.leases.iter().find(|row| row.lsn == lease.lsn).map(|row| &row.namespace);
        let past = self.history.iter().find(|row| row.lsn == lease.lsn).map(|row| &row.namespace);
        self.check_slot(live.or(past).ok_or(Rejection::Retired)?)
    }

    pub(super) fn active(&self, now: Time, who: &Identity, held: Credential) -> Result<Lsn, Rejection> {
        let lsn = self.authority(now, who, held)?;
        match self.live(lsn).expect("it has authority").phase {
            Phase::Reserved => Err(Rejection::InvalidState(State::Reserved)),
            _ => Ok(lsn),
        }
    }

    pub(super) fn activate(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Credential) -> ModelResult {
        let lease = self.authority(now, who, held)?;
        if self.live(lease).expect("it has authority").phase != Phase::Reserved {
            return Err(Rejection::InvalidState(State::Active).into());
        }
        self.pass_time(lsn, now, &[]);
        let row = self.live_mut(lease);
        row.phase = Phase::Active;
        row.used = true;
        self.events.push(Event::Activated(held.lease));
        Ok(Response::Live(self.answer_live(lease)))
    }

    pub(super) fn renew(&mut self, lsn: Lsn, now: Time, who: &Identity, renewals: &[Renewal]) -> ModelResult {
        if renewals.is_empty() || renewals.len() > 256 {
            return Err(Rejection::InvalidBatch.into());
        }
        let max = self.limits().ttl_max;
        let decide = |renewal: &Renewal| {
            if renewal.ttl.is_some_and(|ttl| ttl == Span(0) || ttl > max) {
                return Err(Rejection::InvalidTtl { max });
            }
            let lease = self.active(now, who, renewal.held)?;
            Ok((lease, renewal.ttl.unwrap_or(self.live(lease).expect("it is active").ttl)))
        };
        let decided: Vec<Result<(Lsn, Span), Rejection>> = renewals.iter().map(decide).collect();
        if decided.iter().all(Result::is_err) {
            let refusals = decided.into_iter().map(|result| Err(result.expect_err("all are")));
            return Err(NotApplied::Unchanged(Response::Renewed(refusals.collect())));
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
                self.agent_returned(&namespace, agent.as_ref());
                self.answer_live(lease)
            }));
        }
        Ok(Response::Renewed(results))
    }

    pub(super) fn touch(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Credential) -> ModelResult {
        let lease = self.active(now, who, held)?;
        self.pass_time(lsn, now, &[]);
        self.record_use(lease);
        Ok(Response::Live(self.answer_live(lease)))
    }

    pub(super) fn record_use(&mut self, lease: Lsn) {
        let (quota, now) = (self.quota_of(lease), self.now);
        let row = self.live_mut(lease);
        row.used = true;
        row.active_at = now;
        set_deadline(row, quota);
    }

    pub(super) fn release(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Credential) -> ModelResult {
        match self.exists(held.lease) {
            Err(Rejection::Retired) => return Err(NotApplied::Unchanged(Response::Released)),
            other => other?,
        }
        let issued = |epoch: Epoch| if epoch.0 % 2 == 1 { epoch } else { Epoch(epoch.0 - 1) };
        if let Some(past) = self.history.iter().find(|past| past.lsn == held.lease.lsn) {
            let right = past.identity == *who && held.epoch == issued(past.epoch);
            return Err(if right {
                NotApplied::Unchanged(Response::Released)
            } else {
                Rejection::NotHeld.into()
            });
        }
        let lease = self.live(held.lease.lsn).expect("a lease that has not ended is live");
        if lease.identity != *who {
            return Err(Rejection::NotHeld.into());
        }
        let effective_state = self.effective_state(lease, now);
        let has_authority = matches!(effective_state, EffectiveState::Reserved | EffectiveState::Active);
        if has_authority && held.epoch < lease.epoch {
            return Err(Rejection::StaleEpoch { current: lease.epoch }.into());
        }
        if held.epoch != issued(lease.epoch) {
            return Err(Rejection::NotHeld.into());
        }
        if matches!(effective_state, EffectiveState::Revoking | EffectiveState::Expired) {
            return Err(NotApplied::Unchanged(Response::Released));
        }
        self.pass_time(lsn, now, &[held.lease.lsn]);
        self.end_released(held.lease.lsn);
        Ok(Response::Released)
    }

    pub(super) fn end_released(&mut self, lease: Lsn) {
        self.events.push(Event::Released(self.id(lease)));
        self.end(lease, EndReason::Released);
    }

    pub(super) fn rebind(&mut self, lsn: Lsn, now: Time, who: &Identity, held: Credential) -> ModelResult {
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
        if !matches!(self.effective_state(lease, now), EffectiveState::Hold { rebindable: true, .. }) {
            return Err(Rejection::LeaseExpired.into());
        }
        let settled = matches!(lease.phase, Phase::OnHold { .. });
        let issued = if settled { Epoch(lease.epoch.0 - 1) } else { lease.epoch };
        if held.epoch != issued {
            return Err(Rejection::LeaseExpired.into());
        }
        let agent = self.agents.iter().find(|agent| {
            agent.namespace == lease.namespace && Some(&agent.name) == lease.details.agent.as_ref()
        });
        if agent.is_some_and(|agent| agent.paused) || self.policy_for(&lease.namespace, who).paused {
            return Err(Rejection::Paused.into());
        }
        let quota = self.quota_of(lease.lsn);
        if now > cap(quota, lease.granted_at, lease.active_at) {
            return Err(Rejection::LeaseExpired.into());
        }
        let id = lease.lsn;
        self.pass_time(lsn, now, &[id]);
        let row = self.live_mut(id);
        row.epoch = Epoch(row.epoch.0 + 1);
        row.token = Token(lsn.0);
        row.phase = Phase::Active;
        row.used = true;
        row.ttl_until = Time(now.0 + row.ttl.0);
        row.deadline = now;
        set_deadline(row, quota);
        let (agent, namespace) = (row.details.agent.clone(), row.namespace.clone());
        self.agent_returned(&namespace, agent.as_ref());
        let granted = granted(self.id(id), self.live(id).expect("it was just rebound"));
        self.events.push(Event::Rebound(granted.lease, granted.token));
        Ok(Response::Granted(granted))
    }

    pub(super) fn retract(&mut self, lsn: Lsn, now: Time, retraction: Retraction) -> ModelResult {
        let no = Err(NotApplied::Unchanged(Response::Retracted { undone: false }));
        if self.exists(retraction.lease).is_err() {
            return no;
        }
        let Some(lease) = self.live(retraction.lease.lsn) else { return no };
        if lease.used
            || !matches!(self.effective_state(lease, now), EffectiveState::Reserved | EffectiveState::Active)
        {
            return no;
        }
        let identity = lease.identity.clone();
        self.pass_time(lsn, now, &[]);
        self.requests.retain(|entry| {
            let same = entry.identity == identity && Some(entry.request.key) == retraction.request;
            let its =
                matches!(&entry.answer, Response::Granted(granted) if granted.lease == retraction.lease);
            !(same && its && now <= entry.lapses_at)
        });
        self.end_released(retraction.lease.lsn);
        Ok(Response::Retracted { undone: true })
    }
}
