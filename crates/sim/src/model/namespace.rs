//! Deleting a namespace: each command scans for its remaining contents, and removes at most `step_max` of them.

use kernel::{
    Event, InvalidRecord, KERNEL_VERSION, KeyData, Lsn, Namespace, Policy, Rejection, Response, Scope, Time,
    Version,
};

use super::{Model, ModelResult, NotApplied, timer};

impl Model {
    pub(super) fn drop_namespace(&mut self, lsn: Lsn, now: Time, namespace: &Namespace) -> ModelResult {
        if self.tenure.as_ref().is_none_or(|tenure| tenure.open.kernel_version == 1) {
            return Err(
                Rejection::InvalidRecord(InvalidRecord::KernelVersion { newest: KERNEL_VERSION }).into()
            );
        }
        let leases = self.leases.iter().filter(|lease| lease.namespace == *namespace).count();
        if leases > 0 {
            let behind = self.leases.iter().filter_map(timer).any(|at| at < now);
            let leases = u32::try_from(leases).expect("a few");
            return Err(if behind { Rejection::Behind } else { Rejection::InUse { leases } }.into());
        }
        if !self.is_anything_left(namespace) {
            return Err(NotApplied::Unchanged(Response::Dropped { more: false }));
        }
        self.pass_time(lsn, now, &[]);
        let mut left = self.limits().step_max as usize;
        while left > 0 && self.drop_one_key(namespace) {
            left -= 1;
        }
        while left > 0 {
            let Some(first) = self.history.iter().position(|past| past.namespace == *namespace) else {
                break;
            };
            left = left.saturating_sub(self.history.remove(first).members.len());
        }
        while left > 0 {
            let here = self.agents.iter().filter(|agent| agent.namespace == *namespace);
            let Some(since) = here.map(|agent| agent.since).min() else { break };
            self.agents.retain(|agent| agent.since != since);
            left -= 1;
        }
        self.drop_empty_namespaces();
        while left > 0 && self.drop_one_policy(namespace) {
            left -= 1;
        }
        let more = self.is_anything_left(namespace);
        if more {
            let all = Scope { namespace: Some(namespace.clone()), identity: None };
            let policy = Policy { paused: true, ..self.policy_at(&all) };
            self.policies.retain(|(scope, _)| *scope != all);
            self.policies.push((all, policy));
        }
        Ok(Response::Dropped { more })
    }

    fn is_anything_left(&self, namespace: &Namespace) -> bool {
        self.namespaces.iter().any(|row| row.name == *namespace)
            || self.policies.iter().any(|(scope, _)| scope.namespace.as_ref() == Some(namespace))
    }

    /// Removes the first key by name. Without leases, every key has a document.
    fn drop_one_key(&mut self, namespace: &Namespace) -> bool {
        let here = self.keys.iter().filter(|key| key.namespace == *namespace);
        let Some(KeyData { key: name, version, document, .. }) = here.min_by_key(|key| &key.key).cloned()
        else {
            return false;
        };
        self.keys.retain(|key| key.namespace != *namespace || key.key != name);
        for row in self.namespaces.iter_mut().filter(|row| row.name == *namespace) {
            row.floor = row.floor.max(Version(version.0 + 1));
        }
        let superseded = document.expect("a key without a lease has a document").location;
        self.events.push(Event::Dropped { namespace: namespace.clone(), key: name, superseded });
        true
    }

    /// Removes the first policy: those of identities by name, then the one of the whole namespace.
    fn drop_one_policy(&mut self, namespace: &Namespace) -> bool {
        let here = self.policies.iter().map(|(scope, _)| scope);
        let here = here.filter(|scope| scope.namespace.as_ref() == Some(namespace));
        let first = here.min_by_key(|scope| (scope.identity.is_none(), scope.identity.clone())).cloned();
        self.policies.retain(|(scope, _)| Some(scope) != first.as_ref());
        first.is_some()
    }
}
