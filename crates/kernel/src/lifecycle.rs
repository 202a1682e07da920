//! The life of a lease's row: the only places where claims, timers and chains come and go.
//!
//! **Invariant.** A lease's claims, timer and places in chains always follow from its row. A row
//! begins through [`Kernel::enter`], changes through [`Kernel::change`] and [`Kernel::change_phase`],
//! and ends through [`Kernel::end`].

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::bundle::Member;
use crate::chain::{Links, by_account, by_agent};
use crate::history::{End, Past};
use crate::kernel::Kernel;
use crate::lease::{Few, Lease, LeaseRef, MemberRow, Phase};
use crate::lease_index::Whereabouts;
use crate::node::Node;
use crate::party_lifecycle::space_of;
use crate::party_rows::Space;
use crate::predicate::Class;
use crate::resource::Part;
use crate::resource::{ResourceName, dir_above, path_of};
use crate::table::RowId;
use crate::units::{Time, Version};

impl Kernel {
    /// Puts a new row into every structure that knows leases. Its nodes are there already.
    pub(crate) fn enter(&mut self, row: Lease) -> LeaseRef {
        let (lsn, account, agent, session) = (row.lsn, row.account, row.agent(), row.session());
        let lease = self.leases.insert(row);
        self.index.insert(lsn, Whereabouts::Live(lease));
        self.set_timer(lease);
        self.claim(lease);

        let space = space_of(self.accounts[account].parent);
        self.spaces[space].value.leases += 1;
        let owner = &mut self.accounts[account].value;
        owner.leases += 1;
        owner.referrers += 1;
        if let Some(agent) = agent {
            self.agents[agent].value.leases += 1;
            self.reset_forgetting(agent);
        }
        if let Some(session) = session {
            self.sessions[session].value.leases += 1;
        }
        if self.leases[lease].phase != Phase::Revoking {
            self.join_chains(lease);
        }
        self.note_grant(lease);
        self.note(lease);
        lease
    }

    /// Changes a row within its phase.
    pub(crate) fn change(&mut self, lease: LeaseRef, change: impl FnOnce(&mut Lease)) {
        let was = self.leases[lease].phase;
        self.rewrite(lease, change);
        assert!(self.leases[lease].phase == was, "a phase is left through change_phase");
    }

    /// Leads a row to another phase. Claims are kept in order of age, and a phase can change the age.
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
        self.note(lease);
    }

    /// Ends a lease: its resources are free, and its row becomes history.
    pub(crate) fn end(&mut self, lease: LeaseRef, end: End) {
        let members =
            self.leases[lease].members.as_slice().iter().map(|member| self.member(*member)).collect();
        let places = self.unclaim(lease);
        if let Some(at) = self.leases[lease].timer() {
            self.timers.remove(at, self.leases[lease].lsn);
        }
        if self.leases[lease].phase != Phase::Revoking {
            self.leave_chains(lease);
        }
        let mut row = self.leases.remove(lease);
        if row.epoch.is_authority() {
            row.end_authority();
        }
        self.drop_unused_nodes(places);
        let space = self.accounts[row.account].parent;
        let floor = self.space_mut(space).floor;
        self.hash.word(floor.0);
        self.settle_parties(&row);
        self.remember(row, end, members);
    }

    /// The account stays, since history refers to it now.
    fn settle_parties(&mut self, row: &Lease) {
        self.accounts[row.account].value.leases -= 1;
        self.space_mut(self.accounts[row.account].parent).leases -= 1;
        if let Some(agent) = row.agent() {
            self.agents[agent].value.leases -= 1;
            self.reset_forgetting(agent);
        }
        if let Some(session) = row.session() {
            let left = &mut self.sessions[session].value.leases;
            *left -= 1;
            if *left == 0 {
                self.sessions.remove(session);
            }
        }
    }

    fn remember(&mut self, row: Lease, end: End, members: Few<Member>) {
        let details = row.extra.map(|extra| extra.details).filter(|details| !details.is_default());
        let past = Past {
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
            space_links: Links::default(),
        };
        self.hash.words([past.lsn.0, past.epoch.0, past.end as u64]);
        let space = space_of(self.accounts[past.account].parent);
        let past = self.history.push(past, &mut self.spaces[space].value.past);
        self.index.move_to(row.lsn, Whereabouts::Past(past));
    }

    /// A member's resource and predicate.
    pub(crate) fn member(&self, member: MemberRow) -> Member {
        let text = &self.nodes[member.node].text;
        let resource =
            if member.subtree { ResourceName::subtree_of(text) } else { ResourceName::from_shared(text) };
        Member { resource, predicate: member.predicate }
    }

    fn claim(&mut self, lease: LeaseRef) {
        let places = self.places_of(lease);
        let (lsn, session) = (self.leases[lease].lsn, self.leases[lease].session());
        for (node, part, class) in &places {
            self.nodes[*node].value.holders_mut(*part).insert(*class, lease, &self.leases);
            if let Some(session) = session {
                self.session_claims.insert((session.number(), (node.number(), *part, *class), lsn));
            }
        }
        self.places = places;
    }

    /// Strikes the claims, and says where they were. Nodes stay, claimed or not.
    fn unclaim(&mut self, lease: LeaseRef) -> Vec<(RowId<Node>, Part, Class)> {
        let places = self.places_of(lease);
        let (lsn, session) = (self.leases[lease].lsn, self.leases[lease].session());
        for (node, part, class) in &places {
            self.nodes[*node].value.holders_mut(*part).remove(*class, lease, &self.leases);
            if let Some(session) = session {
                self.session_claims.remove(&(session.number(), (node.number(), *part, *class), lsn));
            }
        }
        places
    }

    /// Every set of claims that a lease is in: its resources, and the directories above them.
    fn places_of(&mut self, lease: LeaseRef) -> Vec<(RowId<Node>, Part, Class)> {
        let mut places = core::mem::take(&mut self.places);
        places.clear();
        for member in self.leases[lease].members.as_slice() {
            let class = member.predicate.class();
            places.extend(self.claimed_by(*member).map(|(node, part)| (node, part, class)));
        }
        // Members of a bundle share directories, and have one claim on each.
        if self.leases[lease].members.as_slice().len() > 1 {
            places.sort_unstable_by_key(|(node, part, class)| (node.number(), *part, *class));
            places.dedup();
        }
        places
    }

    /// The nodes of a member and of the directories above it, made where they are missing.
    pub(crate) fn ensure_nodes(&mut self, space: RowId<Space>, member: &Member) -> MemberRow {
        let (text, subtree) = member.resource.node();
        let shared = || if subtree { Arc::from(text) } else { Arc::clone(member.resource.shared()) };
        let node = self.ensure_node(space, text, shared);
        MemberRow { node, predicate: member.predicate, subtree }
    }

    fn ensure_node(
        &mut self,
        space: RowId<Space>,
        text: &str,
        shared: impl FnOnce() -> Arc<str>,
    ) -> RowId<Node> {
        if let Some(node) = self.nodes.find(space.as_parent(), text) {
            return node;
        }
        let node = self.new_node(space, text);
        self.insert_node(space, &shared(), node)
    }

    pub(crate) fn insert_node(&mut self, space: RowId<Space>, text: &Arc<str>, node: Node) -> RowId<Node> {
        self.join_space(space);
        self.nodes.insert(space.as_parent(), text, node)
    }

    /// A key that is made anew starts at its namespace's floor; a path, below the directory above it.
    fn new_node(&mut self, space: RowId<Space>, text: &str) -> Node {
        if path_of(text).is_some() {
            let above = dir_above(text).map(|dir| self.ensure_dir(space, dir));
            return Node::path(above);
        }
        let version = if is_key(text) { self.spaces[space].value.floor } else { Version(0) };
        Node::new(version, None)
    }

    fn ensure_dir(&mut self, space: RowId<Space>, dir: &str) -> RowId<Node> {
        self.ensure_node(space, dir, || Arc::from(dir))
    }

    /// The places of one node are next to each other.
    fn drop_unused_nodes(&mut self, mut places: Vec<(RowId<Node>, Part, Class)>) {
        places.dedup_by_key(|(node, ..)| *node);
        for (node, ..) in &places {
            self.drop_if_unused(*node);
        }
        self.places = places;
    }

    /// Drops a node that nothing needs. Its version must never come back: the floor rises to it.
    pub(crate) fn drop_if_unused(&mut self, node: RowId<Node>) {
        let row = &self.nodes[node];
        if row.value.is_claimed() || row.value.document.is_some() {
            return;
        }
        let row = self.nodes.remove(node);
        if is_key(&row.text) && !planted!(VersionReused) {
            let floor = &mut self.space_mut(row.parent).floor;
            *floor = (*floor).max(row.value.version);
        }
        self.leave_space(space_of(row.parent));
    }

    fn join_chains(&mut self, lease: LeaseRef) {
        let (account, agent) = (self.leases[lease].account, self.leases[lease].agent());
        self.accounts[account].value.revocable.push(lease, by_account, &mut self.leases);
        if let Some(agent) = agent {
            self.agents[agent].value.revocable.push(lease, by_agent, &mut self.leases);
        }
    }

    fn leave_chains(&mut self, lease: LeaseRef) {
        let (account, agent) = (self.leases[lease].account, self.leases[lease].agent());
        self.accounts[account].value.revocable.unlink(lease, by_account, &mut self.leases);
        if let Some(agent) = agent {
            self.agents[agent].value.revocable.unlink(lease, by_agent, &mut self.leases);
        }
    }

    fn set_timer(&mut self, lease: LeaseRef) {
        let row = &self.leases[lease];
        if let Some(at) = row.timer() {
            self.timers.insert(at, row.lsn);
        }
    }

    /// Folds what never changes about a lease into the state's hash.
    fn note_grant(&mut self, lease: LeaseRef) {
        let row = &self.leases[lease];
        self.hash.words([row.granted_at.0, row.ttl.0]);
        self.hash.text(&self.accounts[row.account].text);
        for member in row.members.as_slice() {
            self.hash.words([member.predicate as u64, u64::from(member.subtree)]);
            self.hash.text(&self.nodes[member.node].text);
        }
        if let Some(extra) = &row.extra {
            extra.details.note(&mut self.hash);
        }
    }

    /// Folds a row, as it is now, into the state's hash.
    fn note(&mut self, lease: LeaseRef) {
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
