//! The lifecycle of lease rows: the only code that adds and removes claims, timers and chain links.
//!
//! **Invariant.** A lease's claims, timer and chain links always follow from its row. A row is created by
//! [`Kernel::insert_lease`], changed by [`Kernel::change`] and [`Kernel::change_phase`], and ended by
//! [`Kernel::end`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::bundle::Member;
use crate::chain::{Links, account_links_of, agent_links_of};
use crate::history::{EndReason, EndedLease};
use crate::kernel::Kernel;
use crate::lease::{Lease, LeaseRef, MemberRow, OneOrMany, Phase};
use crate::lease_index::IndexEntry;
use crate::node::Node;
use crate::party_lifecycle::namespace_row;
use crate::party_rows::NamespaceRow;
use crate::predicate::Class;
use crate::resource::{ClaimSetKind, ResourceName, dir_above, path_of};
use crate::table::RowId;
use crate::units::{Time, Version};

impl Kernel {
    /// Inserts a new row into every structure that tracks leases. Its nodes must exist already.
    pub(crate) fn insert_lease(&mut self, row: Lease) -> LeaseRef {
        let (lsn, account, agent, session) = (row.lsn, row.account, row.agent(), row.session());
        self.count_footprint(&row, u64::wrapping_add);
        let lease = self.leases.insert(row);
        self.index.insert(lsn, IndexEntry::Live(lease));
        self.index_token(lease);
        self.set_timer(lease);
        self.claim(lease);

        let ns = namespace_row(self.accounts[account].parent);
        self.namespaces[ns].value.leases += 1;
        let owner = &mut self.accounts[account].value;
        owner.leases += 1;
        owner.referrers += 1;
        if let Some(agent) = agent {
            self.agents[agent].value.leases += 1;
            self.reset_agent_timer(agent);
        }
        if let Some(session) = session {
            self.sessions[session].value.leases += 1;
        }
        if self.leases[lease].phase != Phase::Revoking {
            self.join_chains(lease);
        }
        self.hash_grant(lease);
        self.hash_lease(lease);
        lease
    }

    /// Adds the memory of a lease to the counts, or subtracts it. Its nodes must exist.
    fn count_footprint(&mut self, row: &Lease, apply: fn(u64, u64) -> u64) {
        let bytes = self.lease_footprint(row);
        let identity = self.accounts[row.account].value.identity;
        let mine = &mut self.identities[identity].value.lease_bytes;
        *mine = apply(*mine, bytes);
        self.footprint.lease_bytes = apply(self.footprint.lease_bytes, bytes);
    }

    /// The LSN of a grant finds its lease by itself.
    pub(crate) fn index_token(&mut self, lease: LeaseRef) {
        let (token, lsn) = (self.leases[lease].token, self.leases[lease].lsn);
        if token.0 != lsn.0 {
            self.rebound.insert((token, lsn));
        }
    }

    /// Changes a row without changing its phase.
    pub(crate) fn change(&mut self, lease: LeaseRef, change: impl FnOnce(&mut Lease)) {
        let was = self.leases[lease].phase;
        self.rewrite(lease, change);
        assert!(self.leases[lease].phase == was, "change must not alter the phase; use change_phase");
    }

    /// Changes the phase of a row. Claims are sorted by age, which depends on the phase, so they are
    /// removed and inserted again.
    pub(crate) fn change_phase(&mut self, lease: LeaseRef, change: impl FnOnce(&mut Lease)) {
        let was_revocable = self.leases[lease].phase != Phase::Revoking;
        self.unclaim(lease);
        self.rewrite(lease, change);
        self.claim(lease);
        if was_revocable && self.leases[lease].phase == Phase::Revoking {
            self.leave_chains(lease);
        }
    }

    fn rewrite(&mut self, lease: LeaseRef, change: impl FnOnce(&mut Lease)) {
        let was = self.leases[lease].timer();
        change(&mut self.leases[lease]);
        let row = &self.leases[lease];
        if row.timer() != was {
            if let Some(at) = was {
                self.timers.remove(at, row.lsn);
            }
            self.set_timer(lease);
        }
        self.hash_lease(lease);
    }

    /// Ends a lease: frees its resources and moves its row to history.
    pub(crate) fn end(&mut self, lease: LeaseRef, end: EndReason) {
        let members =
            self.leases[lease].members.as_slice().iter().map(|member| self.member(*member)).collect();
        let claims = self.unclaim(lease);
        if let Some(at) = self.leases[lease].timer() {
            self.timers.remove(at, self.leases[lease].lsn);
        }
        if self.leases[lease].phase != Phase::Revoking {
            self.leave_chains(lease);
        }
        let mut row = self.leases.remove(lease);
        self.count_footprint(&row, u64::wrapping_sub);
        self.rebound.remove(&(row.token, row.lsn));
        if row.epoch.is_authority() {
            row.end_authority();
        }
        self.drop_unused_nodes(claims);
        let ns = self.accounts[row.account].parent;
        let floor = self.namespace_mut(ns).floor;
        self.hash.word(floor.0);
        self.drop_party_refs(&row);
        self.move_to_history(row, end, members);
    }

    /// Updates the counts of the lease's parties. The account's reference passes to history.
    fn drop_party_refs(&mut self, row: &Lease) {
        self.accounts[row.account].value.leases -= 1;
        self.namespace_mut(self.accounts[row.account].parent).leases -= 1;
        if let Some(agent) = row.agent() {
            self.agents[agent].value.leases -= 1;
            self.reset_agent_timer(agent);
        }
        if let Some(session) = row.session() {
            let left = &mut self.sessions[session].value.leases;
            *left -= 1;
            if *left == 0 {
                self.sessions.remove(session);
            }
        }
    }

    fn move_to_history(&mut self, row: Lease, end: EndReason, members: OneOrMany<Member>) {
        let details = row.optional.map(|optional| optional.details).filter(|details| !details.is_default());
        let ended = EndedLease {
            lsn: row.lsn,
            epoch: row.epoch,
            token: row.token,
            granted_at: row.granted_at,
            deadline: row.deadline,
            ttl: row.ttl,
            end,
            ended_at: self.now,
            ended_lsn: self.last,
            account: row.account,
            members,
            details: details.map(Box::new),
            links: Links::default(),
            namespace_links: Links::default(),
        };
        self.hash.words([ended.lsn.0, ended.epoch.0, ended.end as u64]);
        let ns = namespace_row(self.accounts[ended.account].parent);
        let ended = self.history.push(ended, &mut self.namespaces[ns].value.ended);
        self.index.update(row.lsn, IndexEntry::Ended(ended));
    }

    /// A member's resource and predicate.
    pub(crate) fn member(&self, member: MemberRow) -> Member {
        let text = &self.nodes[member.node].text;
        let resource =
            if member.subtree { ResourceName::subtree_of(text) } else { ResourceName::from_shared(text) };
        Member { resource, predicate: member.predicate }
    }

    fn claim(&mut self, lease: LeaseRef) {
        let claims = self.claims_of(lease);
        let (lsn, session) = (self.leases[lease].lsn, self.leases[lease].session());
        for (node, part, class) in &claims {
            self.nodes[*node].value.claims_mut(*part).insert(*class, lease, &self.leases);
            if let Some(session) = session {
                self.session_claims.insert((session.number(), (node.number(), *part, *class), lsn));
            }
        }
        self.claim_buffer = claims;
    }

    /// Removes the claims and returns them. Nodes stay, even without claims.
    fn unclaim(&mut self, lease: LeaseRef) -> Vec<(RowId<Node>, ClaimSetKind, Class)> {
        let claims = self.claims_of(lease);
        let (lsn, session) = (self.leases[lease].lsn, self.leases[lease].session());
        for (node, part, class) in &claims {
            self.nodes[*node].value.claims_mut(*part).remove(*class, lease, &self.leases);
            if let Some(session) = session {
                self.session_claims.remove(&(session.number(), (node.number(), *part, *class), lsn));
            }
        }
        claims
    }

    /// Every claim of a lease: on its resources and on the directories above them.
    fn claims_of(&mut self, lease: LeaseRef) -> Vec<(RowId<Node>, ClaimSetKind, Class)> {
        let mut claims = core::mem::take(&mut self.claim_buffer);
        claims.clear();
        for member in self.leases[lease].members.as_slice() {
            let class = member.predicate.class();
            claims.extend(self.claim_sets_joined_by(*member).map(|(node, part)| (node, part, class)));
        }
        // Members of a bundle share directories, with one claim on each.
        if self.leases[lease].members.as_slice().len() > 1 {
            claims.sort_unstable_by_key(|(node, part, class)| (node.number(), *part, *class));
            claims.dedup();
        }
        claims
    }

    /// Finds or creates the nodes of a member and of the directories above it.
    pub(crate) fn ensure_nodes(&mut self, ns: RowId<NamespaceRow>, member: &Member) -> MemberRow {
        let (text, subtree) = member.resource.node();
        let shared = || if subtree { Arc::from(text) } else { Arc::clone(member.resource.shared()) };
        let node = self.ensure_node(ns, text, shared);
        MemberRow { node, predicate: member.predicate, subtree }
    }

    fn ensure_node(
        &mut self,
        ns: RowId<NamespaceRow>,
        text: &str,
        shared: impl FnOnce() -> Arc<str>,
    ) -> RowId<Node> {
        if let Some(node) = self.nodes.find(ns.as_parent(), text) {
            return node;
        }
        let node = self.new_node(ns, text);
        self.insert_node(ns, &shared(), node)
    }

    pub(crate) fn insert_node(
        &mut self,
        ns: RowId<NamespaceRow>,
        text: &Arc<str>,
        node: Node,
    ) -> RowId<Node> {
        self.add_namespace_ref(ns);
        self.nodes.insert(ns.as_parent(), text, node)
    }

    /// A new key starts at its namespace's version floor; a new path is linked to the directory above it.
    fn new_node(&mut self, ns: RowId<NamespaceRow>, text: &str) -> Node {
        if path_of(text).is_some() {
            let above = dir_above(text).map(|dir| self.ensure_dir(ns, dir));
            return Node::path(above);
        }
        let version = if is_key(text) { self.namespaces[ns].value.floor } else { Version(0) };
        Node::new(version, None)
    }

    fn ensure_dir(&mut self, ns: RowId<NamespaceRow>, dir: &str) -> RowId<Node> {
        self.ensure_node(ns, dir, || Arc::from(dir))
    }

    /// The claims on one node are adjacent.
    fn drop_unused_nodes(&mut self, mut claims: Vec<(RowId<Node>, ClaimSetKind, Class)>) {
        claims.dedup_by_key(|(node, ..)| *node);
        for (node, ..) in &claims {
            self.drop_if_unused(*node);
        }
        self.claim_buffer = claims;
    }

    /// Removes an unused node and raises the floor to its version, so that the version is never reused.
    pub(crate) fn drop_if_unused(&mut self, node: RowId<Node>) {
        let row = &self.nodes[node];
        if row.value.is_claimed() || row.value.document.is_some() {
            return;
        }
        let row = self.nodes.remove(node);
        if is_key(&row.text) && !planted!(VersionReused) {
            let floor = &mut self.namespace_mut(row.parent).floor;
            *floor = (*floor).max(row.value.version);
        }
        self.drop_namespace_ref(namespace_row(row.parent));
    }

    fn join_chains(&mut self, lease: LeaseRef) {
        let (account, agent) = (self.leases[lease].account, self.leases[lease].agent());
        self.accounts[account].value.revocable.push(lease, account_links_of, &mut self.leases);
        if let Some(agent) = agent {
            self.agents[agent].value.revocable.push(lease, agent_links_of, &mut self.leases);
        }
    }

    fn leave_chains(&mut self, lease: LeaseRef) {
        let (account, agent) = (self.leases[lease].account, self.leases[lease].agent());
        self.accounts[account].value.revocable.unlink(lease, account_links_of, &mut self.leases);
        if let Some(agent) = agent {
            self.agents[agent].value.revocable.unlink(lease, agent_links_of, &mut self.leases);
        }
    }

    fn set_timer(&mut self, lease: LeaseRef) {
        let row = &self.leases[lease];
        if let Some(at) = row.timer() {
            self.timers.insert(at, row.lsn);
        }
    }

    /// Folds the immutable fields of a lease into the state hash.
    fn hash_grant(&mut self, lease: LeaseRef) {
        let row = &self.leases[lease];
        self.hash.words([row.granted_at.0, row.ttl.0]);
        self.hash.text(&self.accounts[row.account].text);
        for member in row.members.as_slice() {
            self.hash.words([member.predicate as u64, u64::from(member.subtree)]);
            self.hash.text(&self.nodes[member.node].text);
        }
        if let Some(optional) = &row.optional {
            optional.details.hash_into(&mut self.hash);
        }
    }

    /// Folds the current row into the state hash.
    fn hash_lease(&mut self, lease: LeaseRef) {
        let row = &self.leases[lease];
        let phase = match row.phase {
            Phase::Reserved => 1,
            Phase::Active => 2,
            Phase::Revoking => 3,
            Phase::OnHold { until: Time(until), rebindable } => 4 + u64::from(rebindable) + (until << 3),
        };
        let flags = u64::from(row.capped) + 2 * u64::from(row.used);
        let words = [
            row.lsn.0,
            row.epoch.0,
            row.token.0,
            row.deadline.0,
            row.ttl_until.0,
            row.active_at.0,
            phase,
            flags,
        ];
        self.hash.words(words);
    }
}

fn is_key(text: &str) -> bool {
    text.starts_with("KEY:")
}
