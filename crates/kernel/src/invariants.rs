//! Invariants of every state, checked in full.
//!
//! [`check`] examines the whole state and is for tests and the simulator. The rows that a grant touched
//! are also checked by assertions in release builds.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::footprint::{IdentityFootprint, document_name_bytes};
use crate::kernel::Kernel;
use crate::lease::{Lease, LeaseRef, Phase};
use crate::lease_index::IndexEntry;
use crate::node::Node;
use crate::party_rows::{Agent, NamespaceRow};
use crate::resource::{claimed, dir_above, path_of};
use crate::table::{Parent, Row, RowId};
use crate::units::Lsn;

/// Returns the first violated invariant, if any.
pub fn check(kernel: &Kernel) -> Result<(), String> {
    for (id, lease) in kernel.leases.iter() {
        kernel.check_lease(id, lease).map_err(|what| format!("{what}: lsn={}", lease.lsn.0))?;
    }
    kernel.check_counts()?;
    kernel.check_nodes()?;
    kernel.check_accounts()?;
    kernel.check_agents()?;
    kernel.check_tokens()?;
    kernel.check_history()?;
    kernel.check_bounds()
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

impl Kernel {
    /// After a grant or rebind: no live lease conflicts with the new one, and the token is new.
    pub(crate) fn assert_granted(&self, lease: LeaseRef) {
        let row = &self.leases[lease];
        assert!(row.token.0 == self.last.0, "a new token is the LSN of its record");
        assert!(row.epoch.is_authority(), "a grant must give authority");
        assert!(row.deadline >= self.now, "a grant must not be expired");
        assert!(
            self.is_compatible(lease),
            "a granted lease conflicts with another: {}",
            self.lease_id(row.lsn)
        );
    }

    /// Whether no other lease conflicts with this one.
    pub(crate) fn is_compatible(&self, lease: LeaseRef) -> bool {
        let row = &self.leases[lease];
        row.members.as_slice().iter().all(|member| {
            let class = member.predicate.class();
            let is_alone =
                |node: &Node, part| node.claims(part).conflicting_with(class).all(|other| other == lease);
            self.claim_sets_to_check_for_member(*member)
                .all(|(node, part)| is_alone(&self.nodes[node].value, part))
        })
    }

    fn check_lease(&self, id: LeaseRef, lease: &Lease) -> Result<(), String> {
        ensure(self.is_compatible(id), "members of different live leases must be compatible")?;
        let has_authority = matches!(lease.phase, Phase::Reserved | Phase::Active);
        ensure(lease.epoch.is_authority() == has_authority, "a lease has authority exactly in odd epochs")?;
        ensure(
            lease.token.0 >= lease.lsn.0 && lease.token.0 <= self.last.0,
            "a token is between its lease's LSN and the last LSN",
        )?;
        ensure(lease.deadline <= lease.ttl_until, "a deadline must not exceed the TTL")?;
        ensure(
            lease.capped || lease.phase == Phase::Revoking || lease.deadline == lease.ttl_until,
            "only a quota or a revoke sets a deadline before the end of the TTL",
        )?;
        let indexed = matches!(self.index.get(lease.lsn), Some(IndexEntry::Live(found)) if found == id);
        ensure(indexed, "a live lease is indexed as live")?;
        ensure(self.has_all_claims(id, lease), "a lease has a claim for every member")
    }

    fn has_all_claims(&self, id: LeaseRef, lease: &Lease) -> bool {
        lease.members.as_slice().iter().all(|member| {
            let row = &self.nodes[member.node];
            claimed(&row.text, member.subtree).all(|(text, part)| {
                let node = self.nodes.find(row.parent, text);
                node.is_some_and(|node| {
                    let mut claims = self.nodes[node].value.claims(part).of_class(member.predicate.class());
                    claims.any(|claimant| claimant == id)
                })
            })
        })
    }

    fn check_counts(&self) -> Result<(), String> {
        let mut timers: Vec<_> =
            self.leases.iter().filter_map(|(_, lease)| Some((lease.timer()?, lease.lsn))).collect();
        timers.sort_unstable();
        ensure(self.timers.iter().eq(timers), "timers match the leases that need one")?;
        ensure(
            self.index.len() == self.leases.len() + self.history.len(),
            "the index has one entry per lease",
        )?;
        let documents = self.nodes.iter().filter(|(_, row)| row.value.document.is_some()).count();
        ensure(self.documents as usize == documents, "the document count is correct")?;
        self.check_footprint()?;
        let in_session = |id| self.leases.iter().filter(|(_, lease)| lease.session() == Some(id)).count();
        let sessions = self
            .sessions
            .iter()
            .all(|(id, row)| row.value.leases > 0 && row.value.leases as usize == in_session(id));
        ensure(sessions, "a session counts its leases and is removed with the last")?;
        let claimed = |lsn| self.live(lsn).is_some_and(|lease| self.leases[lease].session().is_some());
        let claims = self.session_claims.iter().all(|(.., lsn)| claimed(*lsn));
        ensure(claims, "a session claim belongs to a live lease")?;
        let scopes = || {
            let nodes = self.nodes.iter().map(|(_, row)| row.parent);
            let accounts = self.accounts.iter().map(|(_, row)| row.parent);
            nodes.chain(accounts).chain(self.agents.iter().map(|(_, row)| row.parent))
        };
        let namespaces = self.namespaces.iter().all(|(id, row)| {
            let within = scopes().filter(|scope| *scope == id.as_parent()).count();
            within > 0 && row.value.referrers as usize == within
        });
        ensure(namespaces, "a namespace counts its references and is removed with the last")?;
        self.namespaces.iter().try_for_each(|(id, row)| self.check_namespace(id.as_parent(), &row.value))
    }

    fn check_footprint(&self) -> Result<(), String> {
        let leases = || self.leases.iter().map(|(_, lease)| lease);
        let all: u64 = leases().map(|lease| self.lease_footprint(lease)).sum();
        ensure(self.footprint.lease_bytes == all, "the memory of leases is counted")?;
        let documents = self.nodes.iter().filter(|(_, row)| row.value.document.is_some());
        let names: u64 = documents.map(|(_, row)| document_name_bytes(&row.text)).sum();
        ensure(self.footprint.document_bytes == names, "the memory of documents is counted")?;
        let is_counted = self.identities.iter().all(|(id, row)| {
            let mine = |account| self.accounts[account].value.identity == id;
            let bytes = leases().filter(|lease| mine(lease.account)).map(|lease| self.lease_footprint(lease));
            let accounts = self.accounts.iter().filter(|(account, _)| mine(*account)).count();
            let IdentityFootprint { lease_bytes, namespaces } = row.value;
            lease_bytes == bytes.sum::<u64>() && namespaces as usize == accounts && accounts > 0
        });
        ensure(is_counted, "the memory of each identity is counted")
    }

    /// Checks the lists that deleting a namespace relies on.
    fn check_namespace(&self, id: Parent, ns: &NamespaceRow) -> Result<(), String> {
        let here = |account| self.accounts[account].parent == id;
        let leases = self.leases.iter().filter(|(_, lease)| here(lease.account)).count();
        ensure(ns.leases as usize == leases, "a namespace counts its leases")?;
        let documents = self.nodes.iter().filter(|(_, row)| row.parent == id && row.value.document.is_some());
        let mut documents: Vec<_> = documents.map(|(node, row)| (&row.text, node)).collect();
        documents.sort_unstable_by_key(|(text, _)| *text);
        let listed = ns.documents.iter().map(|(text, node)| (text, *node));
        ensure(listed.eq(documents), "a namespace lists its documents")?;
        let lengths = ns.documents.values().filter_map(|node| self.nodes[*node].value.document.as_ref());
        let bytes: u64 = lengths.map(|document| document.bytes).sum();
        ensure(ns.documents_bytes == bytes, "a namespace counts the length of its documents")?;
        let name_bytes: u64 = ns.documents.keys().map(|text| document_name_bytes(text)).sum();
        ensure(ns.document_name_bytes == name_bytes, "a namespace counts the memory of its documents")?;
        let agents = self.agents.iter().filter(|(_, row)| row.parent == id);
        let mut agents: Vec<_> = agents.map(|(agent, row)| (row.value.since, agent)).collect();
        agents.sort_unstable_by_key(|(since, _)| *since);
        let listed = ns.agents.iter().map(|(since, agent)| (*since, *agent));
        ensure(listed.eq(agents.iter().copied()), "a namespace lists its agents")?;
        let by_name = |(_, agent): &(Lsn, RowId<Agent>)| {
            ns.agents_by_name.get(&self.agents[*agent].text) == Some(agent)
        };
        let named = ns.agents_by_name.len() == agents.len() && agents.iter().all(by_name);
        ensure(named, "a namespace lists its agents by name")?;
        let ended = self.history.iter().filter(|ended| here(ended.account)).map(|ended| ended.lsn);
        let listed = self.history.of_namespace(ns.ended).map(|ended| ended.lsn);
        ensure(listed.eq(ended), "a namespace lists its ended leases in the order of their ends")
    }

    fn check_nodes(&self) -> Result<(), String> {
        for (_, row) in self.nodes.iter() {
            let text = &row.text;
            ensure(
                row.value.is_claimed() || row.value.document.is_some(),
                "a node is claimed or has a document",
            )?;
            let key = text.starts_with("KEY:");
            ensure(key || row.value.document.is_none(), "only keys have documents")?;
            ensure(row.value.is_path() == path_of(text).is_some(), "exactly paths have directory fields")?;
            let above = dir_above(text).map(|dir| self.nodes.find(row.parent, dir));
            ensure(above.is_none_or(|above| above.is_some()), "the directory above a path has a node")?;
            ensure(row.value.above() == above.flatten(), "a path is linked to the directory above it")?;
            ensure(row.value.document.is_none() || row.value.version.0 > 0, "a document has a version")?;
        }
        Ok(())
    }

    fn check_accounts(&self) -> Result<(), String> {
        for (id, row) in self.accounts.iter() {
            let leases = self.leases.iter().filter(|(_, lease)| lease.account == id).count();
            let ended = self.history.iter().filter(|ended| ended.account == id).count();
            let agents = self.agents.iter().filter(|(_, agent)| agent.value.account == id).count();
            ensure(row.value.leases as usize == leases, "an account counts its leases")?;
            ensure(
                row.value.referrers as usize == leases + ended + agents,
                "an account counts its references",
            )?;
            ensure(row.value.referrers > 0, "an account is removed with the last reference")?;
            ensure(row.value.agents as usize == agents, "an account counts its agents")?;
        }
        Ok(())
    }

    fn check_tokens(&self) -> Result<(), String> {
        let others = self.leases.iter().filter(|(_, lease)| lease.token.0 != lease.lsn.0);
        let others: BTreeSet<_> = others.map(|(_, lease)| (lease.token, lease.lsn)).collect();
        ensure(self.rebound == others, "the tokens of rebound leases are indexed")
    }

    fn check_agents(&self) -> Result<(), String> {
        for (id, row) in self.agents.iter() {
            let agent: &Row<_> = row;
            let leases = self.leases.iter().filter(|(_, lease)| lease.agent() == Some(id)).count();
            ensure(agent.value.leases as usize == leases, "an agent counts its leases")?;
            let idle = agent.value.leases == 0 && !agent.value.paused;
            ensure(agent.value.forget_at.is_some() == idle, "exactly idle agents have a removal time")?;
            let timed = agent
                .value
                .forget_at
                .is_none_or(|at| self.agent_timers.contains_key(&(at, agent.value.since)));
            ensure(timed, "an idle agent has a timer")?;
        }
        let idle = self.agents.iter().filter(|(_, row)| row.value.forget_at.is_some()).count();
        ensure(self.agent_timers.len() == idle, "every agent timer belongs to an idle agent")
    }

    fn check_history(&self) -> Result<(), String> {
        let mut before = crate::units::Lsn(0);
        for ended in self.history.iter() {
            ensure(!ended.epoch.is_authority(), "an ended lease has no authority")?;
            ensure(ended.ended_lsn >= before, "history is ordered by end")?;
            ensure(ended.ended_lsn >= ended.lsn, "a lease does not end before its grant")?;
            before = ended.ended_lsn;
            let indexed = matches!(self.index.get(ended.lsn), Some(IndexEntry::Ended(_)));
            ensure(indexed, "an ended lease is indexed as ended")?;
        }
        Ok(())
    }

    /// History may exceed its limit by the leases that one command ends, and after a limit was lowered.
    fn check_bounds(&self) -> Result<(), String> {
        let members: usize = self.history.iter().map(|ended| ended.members.as_slice().len()).sum();
        ensure(members == self.history.members(), "the history member count is correct")?;
        ensure(self.events.is_empty(), "events are returned with the outcome")
    }
}
