//! The whole state as plain data, in one canonical order, and back.
//!
//! **Invariant.** A restored kernel behaves exactly like the original: everything that is not in the
//! snapshot (indexes, timers, claims, chains, row numbers) is derived from its content.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::bundle::{Bundle, Member};
use crate::chain::Links;
use crate::command::ClockReading;
use crate::history::{EndReason, EndedLease, LeaseAttributes};
use crate::kernel::{Kernel, Tenure};
use crate::lease::{Lease, OptionalFields, Phase};
use crate::lease_index::IndexEntry;
use crate::node::{Document, Node};
use crate::party_rows::{Account, Agent, NamespaceRow, Policy, Restart};
use crate::requests::IdempotencyEntry;
use crate::resource::ResourceName;
use crate::statehash::StateHash;
use crate::table::{Row, RowId};
use crate::text::{AgentName, Identity, Namespace};
use crate::units::{Epoch, Lsn, Span, Time, Token, Version};

/// The complete state of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// `None` before the first `open`; everything else is then empty.
    pub tenure: Option<Tenure>,
    /// The LSN of the last applied record.
    pub last: Lsn,
    /// The stamp of that record.
    pub now: Time,
    /// The clocks of the last batch; see [`Kernel::clocks`].
    pub clocks: Option<ClockReading>,
    /// The running hash after that record.
    pub state_hash: u64,
    /// At least the version floor of every deleted namespace.
    pub floor: Version,
    /// Namespaces, by name.
    pub namespaces: Vec<NamespaceData>,
    /// Policies, by scope.
    pub policies: Vec<(crate::command::Scope, Policy)>,
    /// Agents, by namespace and name.
    pub agents: Vec<AgentData>,
    /// Keys with a document or under a lease, by namespace and name.
    pub keys: Vec<KeyData>,
    /// Leases that cover resources, by LSN.
    pub leases: Vec<LeaseData>,
    /// Ended leases, in the order of their ends.
    pub history: Vec<EndedLeaseData>,
    /// Idempotency entries, in the order in which they lapse.
    pub requests: Vec<IdempotencyEntry>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespaceData {
    /// Its name.
    pub name: Namespace,
    /// The version floor: new keys start here.
    pub floor: Version,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentData {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name in the namespace.
    pub name: AgentName,
    /// The identity to which it belongs.
    pub identity: Identity,
    /// The LSN of the grant that first named it.
    pub since: Lsn,
    /// Whether an operator paused its grants.
    pub paused: bool,
    /// Its last announced restart.
    pub restart: Option<Restart>,
    /// When it is removed, if it has no leases.
    pub forget_at: Option<Time>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyData {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name in the namespace.
    pub key: ResourceName,
    /// Its version.
    pub version: Version,
    /// Its document.
    pub document: Option<Document>,
}

/// A lease that covers resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseData {
    /// The LSN of its grant.
    pub lsn: Lsn,
    /// Its namespace.
    pub namespace: Namespace,
    /// The identity to which it belongs.
    pub identity: Identity,
    /// The phase stored in the row.
    pub phase: Phase,
    /// The epoch.
    pub epoch: Epoch,
    /// The fencing token.
    pub token: Token,
    /// When it was granted.
    pub granted_at: Time,
    /// Its TTL.
    pub ttl: Span,
    /// The end of the TTL.
    pub ttl_until: Time,
    /// The time of the last commit or touch, or of the grant.
    pub active_at: Time,
    /// When authority ends.
    pub deadline: Time,
    /// Whether the deadline comes from a quota.
    pub capped: bool,
    /// Whether it was used since it was granted.
    pub used: bool,
    /// The members it covers.
    pub members: Vec<Member>,
    /// Its optional attributes.
    pub details: LeaseAttributes,
}

/// A lease that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedLeaseData {
    /// The LSN of its grant.
    pub lsn: Lsn,
    /// Its namespace.
    pub namespace: Namespace,
    /// The identity to which it belongs.
    pub identity: Identity,
    /// How it ended.
    pub end: EndReason,
    /// When it ended.
    pub ended_at: Time,
    /// The LSN of the record that ended it.
    pub ended_lsn: Lsn,
    /// The epoch.
    pub epoch: Epoch,
    /// The fencing token.
    pub token: Token,
    /// When it was granted.
    pub granted_at: Time,
    /// The latest time at which authority ended.
    pub deadline: Time,
    /// Its TTL.
    pub ttl: Span,
    /// The members it covered.
    pub members: Vec<Member>,
    /// Its optional attributes.
    pub details: LeaseAttributes,
}

/// A snapshot that no kernel can have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreError(&'static str);

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid snapshot: {}", self.0)
    }
}

impl core::error::Error for RestoreError {}

impl Kernel {
    /// Takes a snapshot of the whole state.
    pub fn snapshot(&self) -> Snapshot {
        let mut namespaces: Vec<_> = self.namespaces.iter().map(|(_, row)| namespace_data(row)).collect();
        namespaces.sort_unstable();
        let mut agents: Vec<_> = self.agents.iter().map(|(_, row)| self.agent_data(row)).collect();
        agents.sort_unstable_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let keys = self.nodes.iter().filter_map(|(_, row)| self.key_data(row));
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable_by(|a, b| (&a.namespace, &a.key).cmp(&(&b.namespace, &b.key)));
        let mut leases: Vec<_> = self.leases.iter().map(|(_, lease)| self.lease_data(lease)).collect();
        leases.sort_unstable_by_key(|lease| lease.lsn);
        Snapshot {
            tenure: self.tenure.clone(),
            last: self.last,
            now: self.now,
            clocks: self.clocks,
            state_hash: self.hash.0,
            floor: self.floor,
            namespaces,
            policies: self.policies.0.iter().map(|(scope, policy)| (scope.clone(), *policy)).collect(),
            agents,
            keys,
            leases,
            history: self.history.iter().map(|ended| self.ended_data(ended)).collect(),
            requests: self.requests.iter().cloned().collect(),
        }
    }

    /// Rebuilds the kernel from a snapshot.
    pub fn restore(snapshot: &Snapshot) -> Result<Kernel, RestoreError> {
        let mut kernel = Kernel::new();
        kernel.tenure.clone_from(&snapshot.tenure);
        if let Some(tenure) = &snapshot.tenure {
            kernel.seed_indexes(tenure.open.store);
        }
        kernel.last = snapshot.last;
        kernel.now = snapshot.now;
        kernel.clocks = snapshot.clocks;
        kernel.floor = snapshot.floor;
        kernel.restore_parties(snapshot)?;
        snapshot.keys.iter().try_for_each(|key| kernel.restore_key(key))?;
        snapshot.leases.iter().try_for_each(|lease| kernel.restore_lease(lease))?;
        snapshot.history.iter().try_for_each(|ended| kernel.restore_ended(ended))?;
        snapshot.requests.iter().for_each(|entry| kernel.requests.insert(entry.clone()));
        if kernel.namespaces.iter().any(|(_, row)| row.value.referrers == 0) {
            return Err(RestoreError("empty namespace"));
        }
        kernel.hash = StateHash(snapshot.state_hash);
        Ok(kernel)
    }

    fn restore_parties(&mut self, snapshot: &Snapshot) -> Result<(), RestoreError> {
        for NamespaceData { name, floor } in &snapshot.namespaces {
            let ns = self.ensure_namespace(name);
            self.namespaces[ns].value.floor = *floor;
        }
        self.policies.0.extend(snapshot.policies.iter().cloned());
        for data in &snapshot.agents {
            let ns = self.namespace_to_restore(&data.namespace)?;
            if self.agents.find(ns.as_parent(), data.name.as_str()).is_some() {
                return Err(RestoreError("duplicate agent"));
            }
            let account = self.ensure_account(ns, &data.identity);
            let mut agent = Agent::new(data.since, account);
            (agent.paused, agent.restart, agent.forget_at) = (data.paused, data.restart, data.forget_at);
            let id = self.insert_agent(ns, &data.name, agent);
            if let Some(at) = data.forget_at {
                self.agent_timers.insert((at, data.since), id);
            }
        }
        Ok(())
    }

    fn restore_key(&mut self, data: &KeyData) -> Result<(), RestoreError> {
        let ns = self.namespace_to_restore(&data.namespace)?;
        if !data.key.is_key() || self.nodes.find(ns.as_parent(), data.key.as_str()).is_some() {
            return Err(RestoreError("duplicate key, or a resource that is not a key"));
        }
        let node = self.insert_node(ns, data.key.shared(), Node::new(data.version, data.document));
        if let Some(document) = &data.document {
            self.list_document(node);
            self.namespaces[ns].value.documents_bytes += document.bytes;
        }
        Ok(())
    }

    fn restore_lease(&mut self, data: &LeaseData) -> Result<(), RestoreError> {
        let ns = self.namespace_to_restore(&data.namespace)?;
        if data.lsn > self.last || self.index.get(data.lsn).is_some() {
            return Err(RestoreError("duplicate lease, or a lease beyond the last LSN"));
        }
        if data.epoch.is_authority() != matches!(data.phase, Phase::Reserved | Phase::Active) {
            return Err(RestoreError("lease with an epoch that contradicts its phase"));
        }
        let bundle =
            Bundle::new(data.members.clone()).map_err(|_| RestoreError("lease with an invalid bundle"))?;
        let account = self.ensure_account(ns, &data.identity);
        let optional = self.restore_optional_fields(ns, account, &data.details)?;
        let members = bundle.members().iter().map(|member| self.ensure_nodes(ns, member)).collect();
        let lease = self.insert_lease(Lease {
            lsn: data.lsn,
            epoch: data.epoch,
            token: data.token,
            granted_at: data.granted_at,
            ttl: data.ttl,
            ttl_until: data.ttl_until,
            active_at: data.active_at,
            deadline: data.deadline,
            phase: data.phase,
            account,
            account_links: Links::default(),
            capped: data.capped,
            used: data.used,
            weight: u32::try_from(bundle.weight()).expect("a bundle has a bounded number of claims"),
            members,
            optional,
        });
        if self.is_compatible(lease) { Ok(()) } else { Err(RestoreError("conflicting leases")) }
    }

    fn restore_optional_fields(
        &mut self,
        ns: RowId<NamespaceRow>,
        account: RowId<Account>,
        details: &LeaseAttributes,
    ) -> Result<Option<Box<OptionalFields>>, RestoreError> {
        if details.is_default() {
            return Ok(None);
        }
        let known = |name: &AgentName| self.agents.find(ns.as_parent(), name.as_str());
        let agent = match &details.agent {
            Some(name) => Some(known(name).ok_or(RestoreError("lease of an unknown agent"))?),
            None => None,
        };
        let session = details.session.as_ref().map(|name| self.ensure_session(account, name));
        let details = details.clone();
        Ok(Some(Box::new(OptionalFields { details, agent, agent_links: Links::default(), session })))
    }

    fn restore_ended(&mut self, data: &EndedLeaseData) -> Result<(), RestoreError> {
        let ns = self.namespace_to_restore(&data.namespace)?;
        if data.lsn > self.last || self.index.get(data.lsn).is_some() || data.members.is_empty() {
            return Err(RestoreError("duplicate or empty ended lease, or one beyond the last LSN"));
        }
        let account = self.ensure_account(ns, &data.identity);
        self.accounts[account].value.referrers += 1;
        let details = (!data.details.is_default()).then(|| Box::new(data.details.clone()));
        let ended = EndedLease {
            lsn: data.lsn,
            epoch: data.epoch,
            token: data.token,
            granted_at: data.granted_at,
            deadline: data.deadline,
            ttl: data.ttl,
            end: data.end,
            ended_at: data.ended_at,
            ended_lsn: data.ended_lsn,
            account,
            members: data.members.iter().cloned().collect(),
            details,
            links: Links::default(),
            namespace_links: Links::default(),
        };
        let ended = self.history.push(ended, &mut self.namespaces[ns].value.ended);
        self.index.insert(data.lsn, IndexEntry::Ended(ended));
        Ok(())
    }

    fn namespace_to_restore(&self, namespace: &Namespace) -> Result<RowId<NamespaceRow>, RestoreError> {
        self.find_namespace(namespace).ok_or(RestoreError("unknown namespace"))
    }

    fn agent_data(&self, row: &Row<Agent>) -> AgentData {
        AgentData {
            namespace: self.namespace_of(row.parent),
            name: AgentName::from_shared(&row.text),
            identity: self.identity_of(row.value.account),
            since: row.value.since,
            paused: row.value.paused,
            restart: row.value.restart,
            forget_at: row.value.forget_at,
        }
    }

    fn key_data(&self, row: &Row<Node>) -> Option<KeyData> {
        let key = ResourceName::from_shared(&row.text);
        key.is_key().then(|| KeyData {
            namespace: self.namespace_of(row.parent),
            key,
            version: row.value.version,
            document: row.value.document.as_deref().copied(),
        })
    }

    fn lease_data(&self, row: &Lease) -> LeaseData {
        LeaseData {
            lsn: row.lsn,
            namespace: self.namespace_of(self.accounts[row.account].parent),
            identity: self.identity_of(row.account),
            phase: row.phase,
            epoch: row.epoch,
            token: row.token,
            granted_at: row.granted_at,
            ttl: row.ttl,
            ttl_until: row.ttl_until,
            active_at: row.active_at,
            deadline: row.deadline,
            capped: row.capped,
            used: row.used,
            members: row.members.as_slice().iter().map(|member| self.member(*member)).collect(),
            details: row.optional.as_ref().map(|optional| optional.details.clone()).unwrap_or_default(),
        }
    }

    fn ended_data(&self, ended: &EndedLease) -> EndedLeaseData {
        EndedLeaseData {
            lsn: ended.lsn,
            namespace: self.namespace_of(self.accounts[ended.account].parent),
            identity: self.identity_of(ended.account),
            end: ended.end,
            ended_at: ended.ended_at,
            ended_lsn: ended.ended_lsn,
            epoch: ended.epoch,
            token: ended.token,
            granted_at: ended.granted_at,
            deadline: ended.deadline,
            ttl: ended.ttl,
            members: ended.members.as_slice().to_vec(),
            details: ended.details.as_deref().cloned().unwrap_or_default(),
        }
    }
}

fn namespace_data(row: &Row<NamespaceRow>) -> NamespaceData {
    NamespaceData { name: Namespace::from_shared(&row.text), floor: row.value.floor }
}
