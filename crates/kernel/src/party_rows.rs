//! Rows of namespaces, accounts, agents and sessions, and their policies.
//!
//! An account is an identity within one namespace and exists while something refers to it. An agent is
//! remembered for a while after its last lease; a session exists only while it has one.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use crate::chain::Chain;
use crate::command::Scope;
use crate::footprint::IdentityFootprint;
use crate::history::EndedLease;
use crate::lease::Lease;
use crate::limits::Quota;
use crate::node::Node;
use crate::table::RowId;
use crate::text::{Identity, Namespace};
use crate::units::{Lsn, Time, Version};

/// A namespace. It exists while something refers to it; its version floor is then merged into the shard's.
#[derive(Default)]
pub(crate) struct NamespaceRow {
    /// New keys start at this version, above all versions of deleted ones.
    pub(crate) floor: Version,
    /// The number of nodes, accounts and agents in it.
    pub(crate) referrers: u32,
    /// The number of leases that cover resources in it.
    pub(crate) leases: u32,
    /// Its keys with a document, by name.
    pub(crate) documents: BTreeMap<Arc<str>, RowId<Node>>,
    /// Its ended leases, in the order of their ends.
    pub(crate) ended: Chain<EndedLease>,
    /// Its agents, by the LSN of the grant that first named them.
    pub(crate) agents: BTreeMap<Lsn, RowId<Agent>>,
    /// The same agents, by name.
    pub(crate) agents_by_name: BTreeMap<Arc<str>, RowId<Agent>>,
    /// The length of its documents together.
    pub(crate) documents_bytes: u64,
    /// The memory that their names occupy.
    pub(crate) document_name_bytes: u64,
}

/// An identity in a namespace.
pub(crate) struct Account {
    /// The same identity in all namespaces.
    pub(crate) identity: RowId<IdentityFootprint>,
    /// The number of leases that cover resources.
    pub(crate) leases: u32,
    /// Those of its leases that can still be revoked.
    pub(crate) revocable: Chain<Lease>,
    /// The number of agents that belong to it.
    pub(crate) agents: u32,
    /// The number of leases, ended leases and agents that refer to this row.
    pub(crate) referrers: u32,
}

impl Account {
    pub(crate) fn new(identity: RowId<IdentityFootprint>) -> Account {
        Account { identity, leases: 0, revocable: Chain::default(), agents: 0, referrers: 0 }
    }
}

/// An agent in a namespace.
pub(crate) struct Agent {
    /// The LSN of the grant that first named it.
    pub(crate) since: Lsn,
    pub(crate) account: RowId<Account>,
    pub(crate) paused: bool,
    pub(crate) restart: Option<Restart>,
    pub(crate) leases: u32,
    pub(crate) revocable: Chain<Lease>,
    /// When it is removed; set while it has no leases and is not paused.
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

/// The last announced restart of an agent.
///
/// The end is stored as well: a lease that expired during the restart has its grace, even if it is settled
/// only after the agent returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// When the restart was announced.
    pub since: Time,
    /// When the agent returned; `None` until then.
    pub until: Option<Time>,
}

impl Restart {
    /// Whether the agent was restarting when a lease with this deadline expired.
    pub(crate) fn covers(self, deadline: Time) -> bool {
        self.since <= deadline && self.until.is_none_or(|until| deadline < until)
    }
}

/// A session of an account.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) leases: u32,
}

/// The settings of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether new grants are paused.
    pub paused: bool,
    /// The quota of each identity.
    pub quota: Quota,
}

/// All policies, by scope.
#[derive(Default)]
pub(crate) struct Policies(pub(crate) BTreeMap<Scope, Policy>);

impl Policies {
    /// The effective policy of an identity in a namespace: for each quota value the narrowest scope wins;
    /// a pause in any scope applies.
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
                resolved.paused |= policy.paused && !(planted!(WidePauseIgnored) && namespace.is_none());
                resolved.quota = resolved.quota.or(policy.quota);
            }
        }
        resolved
    }

    /// Sets a policy; a default policy has no entry.
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
    fn the_narrowest_scope_wins_for_each_quota_value() {
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
    fn a_pause_in_any_scope_applies() {
        let mut policies = Policies::default();
        policies.set(&scope(None, None), Policy { paused: true, ..Policy::default() });
        let quota = Quota { leases_max: Some(1), ..Quota::default() };
        policies.set(&scope(None, Some("ada")), Policy { paused: false, quota });
        let ada = Identity::new("ada").unwrap();
        assert!(policies.resolve(&Namespace::new("default").unwrap(), &ada).paused);
    }

    #[test]
    fn grace_covers_leases_that_expired_between_announcement_and_return() {
        let restart = Restart { since: Time(10), until: Some(Time(20)) };
        let covered = |deadline| restart.covers(Time(deadline));
        assert!(!covered(9) && covered(10) && covered(19) && !covered(20));
    }
}
