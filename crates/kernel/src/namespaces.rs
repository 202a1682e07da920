//! Deletes a namespace and everything in it: documents, ended leases, agents, quotas and pauses.
//!
//! **Invariant.** Nothing is deleted while the namespace has a lease, and no deleted version is ever
//! reused. One command deletes a bounded part, in an order that follows from the state alone, so that
//! every replica deletes the same: documents by name, ended leases in the order of their ends, agents in
//! the order of their first grants, policies by identity and last that of the whole namespace. The
//! namespace is paused until it is empty.
//!
//! **What would break it.** A worker that acquires between two parts would find half of its documents
//! gone. A commit conditional on version 7, made before the deletion, would succeed after it if the key
//! were recreated at 7: removing a document increases its version first.

use alloc::vec::Vec;
use core::ops::Bound;

use crate::command::Scope;
use crate::kernel::{CommandResult, KERNEL_VERSION, Kernel, NotApplied, Stamp};
use crate::outcome::{Event, InvalidRecord, Rejection, Response};
use crate::party_rows::Policy;
use crate::resource::ResourceName;
use crate::text::Namespace;
use crate::units::Time;

/// The first kernel version that can delete a namespace.
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
        Ok(Response::Dropped { more })
    }

    fn decide_drop(&self, now: Time, namespace: &Namespace) -> Result<(), NotApplied> {
        if !self.follows_rules_since(SINCE_VERSION) {
            let misplaced = InvalidRecord::KernelVersion { newest: KERNEL_VERSION };
            return Err(Rejection::InvalidRecord(misplaced).into());
        }
        match self.find_namespace(namespace).map_or(0, |ns| self.namespaces[ns].value.leases) {
            0 if self.is_used(namespace) => Ok(()),
            0 => Err(NotApplied::Unchanged(Response::Dropped { more: false })),
            // They may have expired and not been ended yet.
            _ if self.next_due().is_some_and(|due| due <= now) => Err(Rejection::Behind.into()),
            leases => Err(Rejection::InUse { leases }.into()),
        }
    }

    /// Whether any row or policy of the namespace exists.
    fn is_used(&self, namespace: &Namespace) -> bool {
        self.find_namespace(namespace).is_some() || self.next_policy(namespace).is_some()
    }

    fn drop_documents(&mut self, namespace: &Namespace, left: &mut usize) {
        let Some(ns) = self.find_namespace(namespace) else { return };
        let nodes: Vec<_> = self.namespaces[ns].value.documents.values().copied().take(*left).collect();
        for node in &nodes {
            let document = self.take_document(*node).expect("a listed key has a document");
            let key = ResourceName::from_shared(&self.nodes[*node].text);
            let (namespace, superseded) = (namespace.clone(), document.location);
            self.events.push(Event::Dropped { namespace, key, superseded });
            self.hash_document(*node);
            self.drop_if_unused(*node);
        }
        *left -= nodes.len();
    }

    /// From then on, queries for these leases return `Retired`.
    fn drop_history(&mut self, namespace: &Namespace, left: &mut usize) {
        while *left > 0 {
            let Some(ns) = self.find_namespace(namespace) else { return };
            let Some(ended) = self.namespaces[ns].value.ended.head() else { return };
            self.hash.word(self.history.get(ended).lsn.0);
            *left = left.saturating_sub(self.retire_one(ended));
        }
    }

    /// The namespace has no leases, so all its agents are idle or paused.
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

    /// The policy of the whole namespace is dropped last: it may be the pause.
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

    /// Ignores the table limit: the entry is deleted with the namespace.
    fn pause_namespace(&mut self, namespace: &Namespace) {
        let scope = namespace_scope(namespace);
        self.put_policy(&scope, Policy { paused: true, ..self.policy(&scope) });
    }
}

/// The scope of all identities in a namespace.
fn namespace_scope(namespace: &Namespace) -> Scope {
    Scope { namespace: Some(namespace.clone()), identity: None }
}
