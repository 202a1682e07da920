//! Which commands a log takes: none once it is closed, and none for slots that it does not own.

use kernel::{Action, Command, Namespace, Party, Pause, Paused, Rejection, Slot};

use super::Model;

impl Model {
    pub(super) fn check_tenure(&self, command: &Command) -> Result<(), Rejection> {
        let Some(tenure) = &self.tenure else { return Ok(()) };
        if matches!(command.action, Action::Open(_)) {
            return Ok(());
        }
        if let Some(close) = tenure.closed {
            return Err(Rejection::Moved { to: close.to });
        }
        match named(&command.action) {
            Some(namespace) => self.check_slot(&namespace),
            None => Ok(()),
        }
    }

    pub(super) fn check_slot(&self, namespace: &Namespace) -> Result<(), Rejection> {
        let slot = Slot::of(namespace);
        let Some(tenure) = &self.tenure else { return Ok(()) };
        let owned = tenure.open.slots.ranges().any(|(first, last)| first <= slot && slot <= last);
        if owned { Ok(()) } else { Err(Rejection::Moved { to: None }) }
    }

    /// The namespace that the idempotency entry of an applied command names.
    pub(super) fn namespace_of(&self, action: &Action) -> Option<Namespace> {
        let lease = match action {
            Action::Activate(held) | Action::Rebind(held) | Action::Touch(held) => held.lease,
            Action::Commit(commit) => commit.write.held.lease,
            Action::Remove(removal) => removal.write.held.lease,
            Action::Revoke(lease) | Action::Reclaim(lease) => *lease,
            Action::Retract(retraction) => retraction.lease,
            other => return named(other),
        };
        let live = self.leases.iter().map(|row| (row.lsn, &row.namespace));
        let past = self.history.iter().map(|row| (row.lsn, &row.namespace));
        live.chain(past).find(|(lsn, _)| *lsn == lease.lsn).map(|(_, namespace)| namespace.clone())
    }
}

fn named(action: &Action) -> Option<Namespace> {
    Some(match action {
        Action::Acquire(grant) | Action::Reserve(grant) => grant.namespace.clone(),
        Action::Relocate(relocation) => relocation.namespace.clone(),
        Action::RevokeAll(Party::Identity(namespace, _) | Party::Agent(namespace, _))
        | Action::DropNamespace(namespace)
        | Action::Pause(Pause { whom: Paused::Agent(namespace, _), .. }) => namespace.clone(),
        Action::Pause(Pause { whom: Paused::Scope(scope), .. }) => return scope.namespace.clone(),
        Action::SetQuota(set) => return set.scope.namespace.clone(),
        Action::Agent(news) => news.namespace.clone(),
        _ => return None,
    })
}
