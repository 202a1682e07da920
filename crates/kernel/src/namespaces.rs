//! Deleting a namespace with all that is in it: documents, ended leases, agents, quotas and pauses.
//!
//! **Invariant.** Nothing goes while a lease stands in the namespace, and no version of what went is
//! ever used again. One command takes a bounded part, in an order that follows from the state alone, so
//! that every replica takes the same: documents by name, ended leases as they ended, agents as they
//! came, policies by identity and then those of the whole namespace. Until nothing is left, the namespace is paused.
//!
//! **What would break it.** A worker that acquires between two parts would find half of its documents
//! gone. A commit on the condition that version 7 is current, made before the deletion, would succeed
//! after it, if the key were made anew at 7: a document that goes raises its version first.

use alloc::vec::Vec;
use core::ops::Bound;

use crate::command::Scope;
use crate::kernel::{CommandResult, KERNEL_VERSION, Kernel, NotApplied, Stamp};
use crate::outcome::{Answer, Event, Misplaced, Rejection};
use crate::party_rows::Policy;
use crate::resource::ResourceName;
use crate::text::Namespace;
use crate::units::Time;

/// The rules that first knew how to delete a namespace.
const SINCE_VERSION: u32 = 2;

impl Kernel {
    pub(crate) fn drop_namespace(&mut self, stamp: Stamp, namespace: &Namespace) -> CommandResult {
        self.decide_drop(stamp.now, namespace)?;
        self.begin(stamp, &[]);
        let mut left = self.limits().step_max as usize;
        self.drop_documents(namespace, &mut left);
        self.drop_history(namespace, &mut left);
        self.drop_agents(namespace, &mut left);
        self.drop_policies(namespace, &mut left);
        let more = self.is_used(namespace);
        if more {
            self.pause_namespace(namespace);
        }
        Ok(Answer::Dropped { more })
    }

    fn decide_drop(&self, now: Time, namespace: &Namespace) -> Result<(), NotApplied> {
        if self.tenure.as_ref().is_none_or(|tenure| tenure.open.kernel_version < SINCE_VERSION) {
            let misplaced = Misplaced::KernelVersion { newest: KERNEL_VERSION };
            return Err(Rejection::Misplaced(misplaced).into());
        }
        match self.find_namespace(namespace).map_or(0, |ns| self.namespaces[ns].value.leases) {
            0 if self.is_used(namespace) => Ok(()),
            0 => Err(NotApplied::Unchanged(Answer::Dropped { more: false })),
            // They may be over, and not yet ended.
            _ if self.next_due().is_some_and(|due| due <= now) => Err(Rejection::Behind.into()),
            leases => Err(Rejection::InUse { leases }.into()),
        }
    }

    /// Is anything kept for it?
    fn is_used(&self, namespace: &Namespace) -> bool {
        self.find_namespace(namespace).is_some() || self.next_policy(namespace).is_some()
    }

    fn drop_documents(&mut self, namespace: &Namespace, left: &mut usize) {
        let Some(ns) = self.find_namespace(namespace) else { return };
        let nodes: Vec<_> = self.namespaces[ns].value.documents.values().copied().take(*left).collect();
        for node in &nodes {
            let document = self.take_document(*node).expect("the namespace lists it");
            let key = ResourceName::from_shared(&self.nodes[*node].text);
            let (namespace, superseded) = (namespace.clone(), document.location);
            self.events.push(Event::Dropped { namespace, key, superseded });
            self.hash_document(*node);
            self.drop_if_unused(*node);
        }
        *left -= nodes.len();
    }

    /// What is read of them later is that they are retired.
    fn drop_history(&mut self, namespace: &Namespace, left: &mut usize) {
        while *left > 0 {
            let Some(ns) = self.find_namespace(namespace) else { return };
            let Some(ended) = self.namespaces[ns].value.ended.head() else { return };
            self.hash.word(self.history.get(ended).lsn.0);
            *left = left.saturating_sub(self.retire_one(ended));
        }
    }

    /// Without leases, all of them are idle or paused.
    fn drop_agents(&mut self, namespace: &Namespace, left: &mut usize) {
        while *left > 0 {
            let Some(ns) = self.find_namespace(namespace) else { return };
            let Some((since, agent)) = self.namespaces[ns].value.agents.first_key_value() else { return };
            let (since, agent) = (*since, *agent);
            self.forget(agent);
            self.hash.word(since.0);
            *left -= 1;
        }
    }

    /// That of the whole namespace goes last: it may be what pauses it.
    fn drop_policies(&mut self, namespace: &Namespace, left: &mut usize) {
        while *left > 0 {
            let Some(scope) = self.next_policy(namespace) else { return };
            self.put_policy(&scope, Policy::default());
            *left -= 1;
        }
    }

    fn next_policy(&self, namespace: &Namespace) -> Option<Scope> {
        let all = namespace_scope(namespace);
        let mut narrower = self.policies.0.range((Bound::Excluded(&all), Bound::Unbounded));
        let first = narrower.next().filter(|(scope, _)| scope.namespace.as_ref() == Some(namespace));
        first.or_else(|| self.policies.0.get_key_value(&all)).map(|(scope, _)| scope.clone())
    }

    /// A full table does not stand against it: the entry goes with the namespace.
    fn pause_namespace(&mut self, namespace: &Namespace) {
        let scope = namespace_scope(namespace);
        self.put_policy(&scope, Policy { paused: true, ..self.policy(&scope) });
    }
}

/// All identities in it.
fn namespace_scope(namespace: &Namespace) -> Scope {
    Scope { namespace: Some(namespace.clone()), identity: None }
}
