//! What must hold of every state, checked in full.
//!
//! [`check`] looks at everything and is for tests and the simulator. What a command touched is also
//! asserted where it is touched, in release builds too.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::kernel::Kernel;
use crate::lease::{Lease, LeaseRef, Phase};
use crate::lease_index::IndexEntry;
use crate::node::Node;
use crate::party_rows::NamespaceRow;
use crate::resource::{claimed, dir_above, path_of};
use crate::table::{Parent, Row};

/// The first thing that does not hold, if any.
pub fn check(kernel: &Kernel) -> Result<(), String> {
    for (id, lease) in kernel.leases.iter() {
        kernel.check_lease(id, lease).map_err(|what| format!("{what}: lsn={}", lease.lsn.0))?;
    }
    kernel.check_counts()?;
    kernel.check_nodes()?;
    kernel.check_accounts()?;
    kernel.check_agents()?;
    kernel.check_history()?;
    kernel.check_bounds()
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

impl Kernel {
    /// After a grant or rebind: nothing live is in the way of what was given, and the token is new.
    pub(crate) fn assert_granted(&self, lease: LeaseRef) {
        let row = &self.leases[lease];
        assert!(row.token.0 == self.last.0, "a token is the LSN of its grant");
        assert!(row.epoch.is_authority(), "a grant gives authority");
        assert!(row.deadline >= self.now, "a grant is not over when it is made");
        assert!(self.is_compatible(lease), "no two holders: {}", self.lease_id(row.lsn));
    }

    /// Is no other lease in the way of this one?
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
        ensure(self.is_compatible(id), "live members of different leases are compatible")?;
        let has_authority = matches!(lease.phase, Phase::Reserved | Phase::Active);
        ensure(lease.epoch.is_authority() == has_authority, "an odd epoch goes with authority")?;
        ensure(
            lease.token.0 >= lease.lsn.0 && lease.token.0 <= self.last.0,
            "a token is the LSN of a grant",
        )?;
        ensure(lease.deadline <= lease.ttl_until, "a deadline is not beyond the TTL")?;
        ensure(
            lease.capped || lease.deadline == lease.ttl_until,
            "only a quota ends a lease before its TTL",
        )?;
        let indexed = matches!(self.index.get(lease.lsn), Some(IndexEntry::Live(found)) if found == id);
        ensure(indexed, "a live lease is found by its id")?;
        ensure(self.has_all_claims(id, lease), "a bundle is whole: every member is claimed")
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
        ensure(self.timers.iter().eq(timers), "leases that time changes have timers, and nothing else has")?;
        ensure(self.index.len() == self.leases.len() + self.history.len(), "no id without its lease")?;
        let documents = self.nodes.iter().filter(|(_, row)| row.value.document.is_some()).count();
        ensure(self.documents as usize == documents, "documents are counted")?;
        let in_session = |id| self.leases.iter().filter(|(_, lease)| lease.session() == Some(id)).count();
        let sessions = self
            .sessions
            .iter()
            .all(|(id, row)| row.value.leases > 0 && row.value.leases as usize == in_session(id));
        ensure(sessions, "sessions count their leases, and go with the last")?;
        let claimed = |lsn| self.live(lsn).is_some_and(|lease| self.leases[lease].session().is_some());
        let claims = self.session_claims.iter().all(|(.., lsn)| claimed(*lsn));
        ensure(claims, "no claim of a session without its lease")?;
        let scopes = || {
            let nodes = self.nodes.iter().map(|(_, row)| row.parent);
            let accounts = self.accounts.iter().map(|(_, row)| row.parent);
            nodes.chain(accounts).chain(self.agents.iter().map(|(_, row)| row.parent))
        };
        let namespaces = self.namespaces.iter().all(|(id, row)| {
            let within = scopes().filter(|scope| *scope == id.as_parent()).count();
            within > 0 && row.value.referrers as usize == within
        });
        ensure(namespaces, "namespaces count what is in them, and go with the last")?;
        self.namespaces.iter().try_for_each(|(id, row)| self.check_namespace(id.as_parent(), &row.value))
    }

    /// What a deletion would take.
    fn check_namespace(&self, id: Parent, ns: &NamespaceRow) -> Result<(), String> {
        let here = |account| self.accounts[account].parent == id;
        let leases = self.leases.iter().filter(|(_, lease)| here(lease.account)).count();
        ensure(ns.leases as usize == leases, "namespaces count their leases")?;
        let documents = self.nodes.iter().filter(|(_, row)| row.parent == id && row.value.document.is_some());
        let mut documents: Vec<_> = documents.map(|(node, row)| (&row.text, node)).collect();
        documents.sort_unstable_by_key(|(text, _)| *text);
        let listed = ns.documents.iter().map(|(text, node)| (text, *node));
        ensure(listed.eq(documents), "namespaces list their documents")?;
        let agents = self.agents.iter().filter(|(_, row)| row.parent == id);
        let mut agents: Vec<_> = agents.map(|(agent, row)| (row.value.since, agent)).collect();
        agents.sort_unstable_by_key(|(since, _)| *since);
        let listed = ns.agents.iter().map(|(since, agent)| (*since, *agent));
        ensure(listed.eq(agents), "namespaces list their agents")?;
        let ended = self.history.iter().filter(|ended| here(ended.account)).map(|ended| ended.lsn);
        let listed = self.history.of_namespace(ns.ended).map(|ended| ended.lsn);
        ensure(listed.eq(ended), "namespaces list their ended leases, in the order of their ends")
    }

    fn check_nodes(&self) -> Result<(), String> {
        for (_, row) in self.nodes.iter() {
            let text = &row.text;
            ensure(
                row.value.is_claimed() || row.value.document.is_some(),
                "nothing is kept for unused names",
            )?;
            let key = text.starts_with("KEY:");
            ensure(key || row.value.document.is_none(), "only keys have documents")?;
            ensure(
                row.value.is_path() == path_of(text).is_some(),
                "paths, and nothing else, have directories",
            )?;
            let above = dir_above(text).map(|dir| self.nodes.find(row.parent, dir));
            ensure(above.is_none_or(|above| above.is_some()), "the directories above a path are there")?;
            ensure(row.value.above() == above.flatten(), "a path leads to the directory above it")?;
            ensure(row.value.document.is_none() || row.value.version.0 > 0, "a document has a version")?;
        }
        Ok(())
    }

    fn check_accounts(&self) -> Result<(), String> {
        for (id, row) in self.accounts.iter() {
            let leases = self.leases.iter().filter(|(_, lease)| lease.account == id).count();
            let ended = self.history.iter().filter(|ended| ended.account == id).count();
            let agents = self.agents.iter().filter(|(_, agent)| agent.value.account == id).count();
            ensure(row.value.leases as usize == leases, "accounts count their leases")?;
            ensure(
                row.value.referrers as usize == leases + ended + agents,
                "accounts count what refers to them",
            )?;
            ensure(row.value.referrers > 0, "accounts go with the last referrer")?;
            ensure(row.value.agents as usize == agents, "accounts count their agents")?;
        }
        Ok(())
    }

    fn check_agents(&self) -> Result<(), String> {
        for (id, row) in self.agents.iter() {
            let agent: &Row<_> = row;
            let leases = self.leases.iter().filter(|(_, lease)| lease.agent() == Some(id)).count();
            ensure(agent.value.leases as usize == leases, "agents count their leases")?;
            let idle = agent.value.leases == 0 && !agent.value.paused;
            ensure(agent.value.forget_at.is_some() == idle, "an idle agent will be forgotten")?;
            let timed = agent
                .value
                .forget_at
                .is_none_or(|at| self.agent_timers.contains_key(&(at, agent.value.since)));
            ensure(timed, "an idle agent has its timer")?;
        }
        let idle = self.agents.iter().filter(|(_, row)| row.value.forget_at.is_some()).count();
        ensure(self.agent_timers.len() == idle, "no timer without its agent")
    }

    fn check_history(&self) -> Result<(), String> {
        let mut before = crate::units::Lsn(0);
        for ended in self.history.iter() {
            ensure(!ended.epoch.is_authority(), "an ended lease has no authority")?;
            ensure(ended.ended_lsn >= before, "history is in the order of ends")?;
            ensure(ended.ended_lsn >= ended.lsn, "a lease ends after its grant")?;
            before = ended.ended_lsn;
            let indexed = matches!(self.index.get(ended.lsn), Some(IndexEntry::Ended(_)));
            ensure(indexed, "an ended lease is found by its id, as ended")?;
        }
        Ok(())
    }

    /// History may be over its limit by what one command ends, and by what a lowered limit has left.
    fn check_bounds(&self) -> Result<(), String> {
        let members: usize = self.history.iter().map(|ended| ended.members.as_slice().len()).sum();
        ensure(members == self.history.members(), "history counts its members")?;
        ensure(self.events.is_empty(), "events are handed out with the outcome")
    }
}
