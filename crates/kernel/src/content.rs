//! A digest of the content of the state, computed from the rows themselves.
//!
//! **Invariant.** Two kernels with the same rows have the same digest, whatever the order of their slab
//! entries; a kernel that lacks a row, or has another value in one of its fields, has another digest.
//!
//! **What would break it.** The running [state hash](crate::statehash) is carried along by a snapshot, so a
//! kernel restored from a snapshot that lost rows has the right running hash. Hashing the plain data of
//! [`Snapshot`](crate::Snapshot) instead of the rows: a row that is left out there would be left out of the
//! digest as well. A field that is added to a row and forgotten here: so every row is taken apart without `..`.
//!
//! It visits every row, so it is for a kernel that serves no requests. It protects against bugs and damage, not
//! against an adversary.

use core::fmt::{self, Write};

use crate::history::EndedLease;
use crate::kernel::Kernel;
use crate::lease::{Lease, OptionalFields, Phase};
use crate::node::{Document, Node};
use crate::party_rows::{Account, Agent, NamespaceRow, Policy};
use crate::resource::ResourceName;
use crate::statehash::StateHash;
use crate::table::{Parent, Row, RowId};
use crate::units::{Location, Time};

impl Kernel {
    /// A digest of all rows; see the module's documentation. Visits the whole state.
    pub fn content_digest(&self) -> u64 {
        let mut sum = self.ordered_content().0;
        let mut add = |hash: StateHash| sum = sum.wrapping_add(hash.0);
        self.namespaces.iter().for_each(|(_, row)| add(namespace_content(row)));
        self.agents.iter().for_each(|(_, row)| add(self.agent_content(row)));
        self.nodes.iter().for_each(|(_, row)| add(self.node_content(row)));
        self.leases.iter().for_each(|(_, row)| add(self.lease_content(row)));
        sum
    }

    /// Everything that has an order of its own, and the sizes of what is derived.
    fn ordered_content(&self) -> StateHash {
        let mut hash = StateHash::default();
        hash.words([self.last.0, self.now.0, self.hash.0, self.floor.0]);
        debug(&mut hash, &self.tenure);
        debug(&mut hash, &self.clocks);
        for (scope, Policy { paused, quota }) in &self.policies.0 {
            debug(&mut hash, &(scope, paused, quota));
        }
        self.history.iter().for_each(|ended| self.hash_ended(ended, &mut hash));
        for entry in self.requests.iter() {
            hash.text(entry.identity.as_str());
            hash.text(entry.namespace.as_ref().map_or("", |namespace| namespace.as_str()));
            hash.bytes(&entry.request.key.0);
            hash.bytes(&entry.request.fingerprint);
            hash.word(entry.lapses_at.0);
            debug(&mut hash, &entry.answer);
        }
        let derived = [self.accounts.len(), self.sessions.len(), self.session_claims.len(), self.index.len()];
        hash.words(derived.map(|len| len as u64));
        hash.words([self.agent_timers.len() as u64, u64::from(self.documents)]);
        hash
    }

    fn agent_content(&self, row: &Row<Agent>) -> StateHash {
        let Row { parent, text, value } = row;
        let Agent { since, account, paused, restart, leases, revocable: _, forget_at } = value;
        let mut hash = begin(2);
        self.hash_place(*parent, text, &mut hash);
        self.hash_account(*account, &mut hash);
        hash.words([since.0, u64::from(*paused), u64::from(*leases), optional(*forget_at)]);
        debug(&mut hash, restart);
        hash
    }

    fn node_content(&self, row: &Row<Node>) -> StateHash {
        let mut hash = begin(3);
        self.hash_place(row.parent, &row.text, &mut hash);
        // The version of a name that is not a key means nothing, and a snapshot does not contain it.
        if ResourceName::from_shared(&row.text).is_key() {
            hash.word(row.value.version.0);
        }
        match row.value.document.as_deref() {
            Some(Document { etag, bytes, location, committed_at }) => {
                hash.bytes(&etag.0);
                let Location { shard, term, number, random } = *location;
                hash.words([u64::from(shard.0), term, number, random]);
                hash.words([*bytes, committed_at.0]);
            }
            None => hash.word(u64::MAX),
        }
        hash
    }

    fn lease_content(&self, row: &Lease) -> StateHash {
        let Lease {
            lsn,
            epoch,
            token,
            granted_at,
            ttl,
            ttl_until,
            active_at,
            deadline,
            phase,
            account,
            account_links: _,
            capped,
            used,
            weight,
            members,
            optional,
        } = row;
        let mut hash = begin(4);
        hash.words([lsn.0, epoch.0, token.0, granted_at.0, ttl.0, ttl_until.0, active_at.0, deadline.0]);
        hash.words(match *phase {
            Phase::Reserved => [0, 0, 0],
            Phase::Active => [1, 0, 0],
            Phase::OnHold { until, rebindable } => [2, until.0, u64::from(rebindable)],
            Phase::Revoking => [3, 0, 0],
        });
        hash.words([u64::from(*capped), u64::from(*used), u64::from(*weight)]);
        self.hash_account(*account, &mut hash);
        for member in members.as_slice() {
            hash.text(&self.nodes[member.node].text);
            hash.words([member.predicate as u64, u64::from(member.subtree)]);
        }
        if let Some(optional) = optional {
            self.hash_optional_fields(optional, &mut hash);
        }
        hash
    }

    fn hash_optional_fields(&self, optional: &OptionalFields, hash: &mut StateHash) {
        let OptionalFields { details, agent, agent_links: _, session } = optional;
        details.hash_into(hash);
        hash.text(agent.map_or("", |agent| &self.agents[agent].text));
        hash.text(session.map_or("", |session| &self.sessions[session].text));
    }

    fn hash_ended(&self, row: &EndedLease, hash: &mut StateHash) {
        let EndedLease {
            lsn,
            epoch,
            token,
            granted_at,
            deadline,
            ttl,
            end,
            ended_at,
            ended_lsn,
            account,
            members,
            details,
            links: _,
            namespace_links: _,
        } = row;
        hash.words([lsn.0, epoch.0, token.0, granted_at.0, deadline.0, ttl.0, ended_at.0, ended_lsn.0]);
        hash.word(*end as u64);
        self.hash_account(*account, hash);
        for member in members.as_slice() {
            hash.text(member.resource.as_str());
            hash.word(member.predicate as u64);
        }
        if let Some(details) = details {
            details.hash_into(hash);
        }
    }

    /// A name, with the namespace that it is in.
    fn hash_place(&self, parent: Parent, text: &str, hash: &mut StateHash) {
        hash.text(self.namespace_of(parent).as_str());
        hash.text(text);
    }

    fn hash_account(&self, account: RowId<Account>, hash: &mut StateHash) {
        let row = &self.accounts[account];
        self.hash_place(row.parent, &row.text, hash);
    }
}

fn namespace_content(row: &Row<NamespaceRow>) -> StateHash {
    let Row { parent: _, text, value } = row;
    let NamespaceRow {
        floor,
        referrers,
        leases,
        documents,
        ended: _,
        agents,
        agents_by_name,
        documents_bytes: _,
        document_name_bytes: _,
    } = value;
    let mut hash = begin(1);
    hash.text(text);
    hash.words([floor.0, u64::from(*referrers), u64::from(*leases)]);
    hash.words([documents.len() as u64, agents.len() as u64, agents_by_name.len() as u64]);
    hash
}

/// Rows of different kinds have different digests.
fn begin(kind: u64) -> StateHash {
    let mut hash = StateHash::default();
    hash.word(kind);
    hash
}

fn optional(time: Option<Time>) -> u64 {
    time.map_or(0, |time| time.0.wrapping_add(1))
}

/// Hashes a value by its debug form: slow, complete, and for rows of which there are few.
fn debug(hash: &mut StateHash, value: &impl fmt::Debug) {
    struct Text<'a>(&'a mut StateHash);
    impl Write for Text<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.text(text);
            Ok(())
        }
    }
    write!(Text(hash), "{value:?}").expect("hashing does not fail");
}
