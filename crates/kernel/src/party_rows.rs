//! Those who hold leases: accounts, agents, sessions; and what they may use.
//!
//! An account is an identity within one namespace. It is there while something refers to it. An agent
//! is remembered for a while after its last lease; a session only while it has one.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::chain::Chain;
use crate::command::Scope;
use crate::history::EndedLease;
use crate::lease::Lease;
use crate::limits::Quota;
use crate::node::Node;
use crate::table::RowId;
use crate::text::{Identity, Namespace};
use crate::units::{Lsn, Time, Version};

/// One namespace's row. It is there while something is in it; its floor outlives it in the shard's.
#[derive(Default)]
pub(crate) struct NamespaceRow {
    /// No key that is made anew may have a version of one that is gone.
    pub(crate) floor: Version,
    /// Nodes, accounts and agents in it.
    pub(crate) referrers: u32,
    /// Leases that cover resources in it.
    pub(crate) leases: u32,
    /// Its keys with a document, by name.
    pub(crate) documents: BTreeMap<Arc<str>, RowId<Node>>,
    /// Its ended leases, in the order of their ends.
    pub(crate) ended: Chain<EndedLease>,
    /// Its agents, by the grants that first named them.
    pub(crate) agents: BTreeMap<Lsn, RowId<Agent>>,
}

/// An identity in a namespace.
#[derive(Default)]
pub(crate) struct Account {
    /// Leases that cover resources.
    pub(crate) leases: u32,
    /// Those of them that an operator may still revoke.
    pub(crate) revocable: Chain<Lease>,
    /// Agents that belong to it.
    pub(crate) agents: u32,
    /// Leases, ended leases and agents that refer to this row.
    pub(crate) referrers: u32,
}

/// An agent in a namespace.
pub(crate) struct Agent {
    /// Of the grant that first named it.
    pub(crate) since: Lsn,
    pub(crate) account: RowId<Account>,
    pub(crate) paused: bool,
    pub(crate) restart: Option<Restart>,
    pub(crate) leases: u32,
    pub(crate) revocable: Chain<Lease>,
    /// When it is forgotten; set while it has no leases and is not paused.
    pub(crate) forget_at: Option<Time>,
}

impl Agent {
    pub(crate) fn new(since: Lsn, account: RowId<Account>) -> Agent {
        let revocable = Chain::default();
        Agent { since, account, paused: false, restart: None, leases: 0, revocable, forget_at: None }
    }

    pub(crate) fn is_restarting(&self) -> bool {
        self.restart.is_some_and(|restart| restart.until.is_none())
    }
}

/// The last time that the agent said it would restart.
///
/// The end is kept as well: a lease that ran out in between has its grace, even if that is only
/// noticed after the agent came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Since when.
    pub since: Time,
    /// Since when it is back; `None` while it is not.
    pub until: Option<Time>,
}

impl Restart {
    /// Was the agent restarting at the moment when a lease with this deadline ran out?
    pub(crate) fn covers(self, deadline: Time) -> bool {
        self.since <= deadline && self.until.is_none_or(|until| deadline < until)
    }
}

/// A session of an account.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) leases: u32,
}

/// What was set for one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// New grants are stopped.
    pub paused: bool,
    /// What each identity may use.
    pub quota: Quota,
}

/// All that was set, by scope.
#[derive(Default)]
pub(crate) struct Policies(pub(crate) BTreeMap<Scope, Policy>);

impl Policies {
    /// What holds for an identity in a namespace: the narrower scope wins, number by number; a pause
    /// of any scope holds.
    pub(crate) fn resolve(&self, namespace: &Namespace, identity: &Identity) -> Policy {
        if self.0.is_empty() {
            return Policy::default();
        }
        let scopes = [
            (Some(namespace), Some(identity)),
            (Some(namespace), None),
            (None, Some(identity)),
            (None, None),
        ];
        let mut resolved = Policy::default();
        for (namespace, identity) in scopes {
            let scope = Scope { namespace: namespace.cloned(), identity: identity.cloned() };
            if let Some(policy) = self.0.get(&scope) {
                resolved.paused |= policy.paused;
                resolved.quota = resolved.quota.or(policy.quota);
            }
        }
        resolved
    }

    /// An entry that says nothing is none.
    pub(crate) fn set(&mut self, scope: &Scope, policy: Policy) {
        if policy == Policy::default() {
            self.0.remove(scope);
        } else {
            self.0.insert(scope.clone(), policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Span;

    fn scope(namespace: Option<&str>, identity: Option<&str>) -> Scope {
        Scope {
            namespace: namespace.map(|name| Namespace::new(name).unwrap()),
            identity: identity.map(|name| Identity::new(name).unwrap()),
        }
    }

    #[test]
    fn the_narrower_scope_wins_number_by_number() {
        let mut policies = Policies::default();
        let quota = |leases_max, idle| Quota { leases_max, idle_max: idle, ..Quota::default() };
        let set = |quota| Policy { paused: false, quota };
        policies.set(&scope(None, None), set(quota(Some(100), Some(Span(9)))));
        policies.set(&scope(None, Some("ada")), set(quota(Some(50), None)));
        policies.set(&scope(Some("prod"), None), set(quota(Some(10), None)));
        let at = |namespace, identity| {
            policies.resolve(&Namespace::new(namespace).unwrap(), &Identity::new(identity).unwrap()).quota
        };
        assert_eq!(at("test", "bob"), quota(Some(100), Some(Span(9))));
        assert_eq!(at("test", "ada"), quota(Some(50), Some(Span(9))));
        assert_eq!(at("prod", "ada"), quota(Some(10), Some(Span(9))));
    }

    #[test]
    fn a_pause_of_any_scope_holds() {
        let mut policies = Policies::default();
        policies.set(&scope(None, None), Policy { paused: true, ..Policy::default() });
        let quota = Quota { leases_max: Some(1), ..Quota::default() };
        policies.set(&scope(None, Some("ada")), Policy { paused: false, quota });
        let ada = Identity::new("ada").unwrap();
        assert!(policies.resolve(&Namespace::new("default").unwrap(), &ada).paused);
    }

    #[test]
    fn grace_covers_what_ran_out_between_the_announcement_and_the_return() {
        let restart = Restart { since: Time(10), until: Some(Time(20)) };
        let covered = |deadline| restart.covers(Time(deadline));
        assert!(!covered(9) && covered(10) && covered(19) && !covered(20));
    }
}
