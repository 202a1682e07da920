//! Documents of keys: commit, remove, relocate.
//!
//! **Invariant.** The lease, its epoch and the conditions are checked in the same record that installs the
//! new version, so a stale holder has no window in which to write. A version is never used twice for one
//! key, deleted or not.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::command::{Commit, Relocation, Removal, Write};
use crate::footprint::document_name_bytes;
use crate::kernel::{CommandResult, Kernel, NotApplied, Stamp};
use crate::lease::LeaseRef;
use crate::node::{Document, Node};
use crate::outcome::{BoundedTable, Event, Rejection, Response};
use crate::table::RowId;
use crate::text::Identity;
use crate::units::{Location, Time};

/// The kernel version since which a removal under an idempotency key is stored even if it found nothing.
const REMOVALS_STORED_SINCE: u32 = 3;

impl Kernel {
    pub(crate) fn commit(&mut self, stamp: Stamp, identity: &Identity, commit: &Commit) -> CommandResult {
        let (lease, node) = self.decide_write(stamp.now, identity, &commit.write)?;
        let is_new = self.nodes[node].value.document.is_none();
        if is_new && self.documents >= self.limits().documents_max {
            return Err(
                Rejection::Full { table: BoundedTable::Documents, max: self.limits().documents_max }.into()
            );
        }
        self.begin(stamp, &[]);
        let document = Document {
            etag: commit.etag,
            bytes: commit.bytes,
            location: commit.location,
            committed_at: self.now,
        };
        if is_new {
            self.list_document(node);
        }
        let before = self.nodes[node].value.document.as_ref().map_or(0, |document| document.bytes);
        let counted = &mut self.namespace_mut(self.nodes[node].parent).documents_bytes;
        *counted = *counted - before + document.bytes;
        let row = &mut self.nodes[node].value;
        let superseded = row.document.replace(Box::new(document)).map(|document| document.location);
        row.version = row.version.next();
        let version = row.version;
        let (lease_id, key) = (commit.write.held.lease, commit.write.key.clone());
        self.events.push(Event::Committed { lease: lease_id, key, version, superseded });
        self.hash_document(node);
        self.after_write(lease, &commit.write);
        Ok(Response::Committed(version))
    }

    /// A removal that finds nothing changes nothing, but under an idempotency key its response must be stored: a late copy
    /// of the request would otherwise remove what was written since.
    pub(crate) fn remove(
        &mut self,
        stamp: Stamp,
        identity: &Identity,
        removal: &Removal,
        is_keyed: bool,
    ) -> CommandResult {
        let write = &removal.write;
        let (lease, node) = self.decide_write(stamp.now, identity, write)?;
        let removed = self.nodes[node].value.document.is_some();
        let is_stored = is_keyed && self.follows_rules_since(REMOVALS_STORED_SINCE);
        if !removed && !write.release && (!is_stored || planted!(EmptyRemovalForgotten)) {
            let version = self.nodes[node].value.version;
            return Err(NotApplied::Unchanged(Response::Removed { removed, version }));
        }
        self.begin(stamp, &[]);
        if let Some(document) = self.take_document(node) {
            let (version, superseded) = (self.nodes[node].value.version, document.location);
            let (lease, key) = (write.held.lease, write.key.clone());
            self.events.push(Event::Removed { lease, key, version, superseded });
        }
        let version = self.nodes[node].value.version;
        self.hash_document(node);
        self.after_write(lease, write);
        Ok(Response::Removed { removed, version })
    }

    /// Records a new location for the bytes of a version. Ignored if that version is no longer current.
    pub(crate) fn relocate(&mut self, stamp: Stamp, relocation: &Relocation) -> CommandResult {
        let ns = self.find_namespace(&relocation.namespace);
        let node = ns.and_then(|ns| self.nodes.find(ns.as_parent(), relocation.key.as_str()));
        let current = node.filter(|node| {
            let row = &self.nodes[*node].value;
            row.document.is_some() && (row.version == relocation.version || planted!(RelocateAnyVersion))
        });
        let Some(node) = current else {
            return Err(NotApplied::Unchanged(Response::Relocated { moved: false }));
        };
        self.begin(stamp, &[]);
        let document = self.nodes[node].value.document.as_mut().expect("the node was found with a document");
        document.location = relocation.location;
        self.hash_document(node);
        Ok(Response::Relocated { moved: true })
    }

    /// Whether a write would be accepted. An upload is refused by it before its first byte is stored.
    pub fn may_write(&self, now: Time, identity: &Identity, write: &Write) -> Result<(), Rejection> {
        self.decide_write(now, identity, write).map(drop)
    }

    /// Checks in this order: the lease, its token, its coverage, its state, the conditions.
    fn decide_write(
        &self,
        now: Time,
        identity: &Identity,
        write: &Write,
    ) -> Result<(LeaseRef, RowId<Node>), Rejection> {
        let decided = self.authority(now, identity, write.held);
        let lease =
            if planted!(CommitStaleEpoch) { self.ignore_stale_epoch(decided, write) } else { decided }?;
        let row = &self.leases[lease];
        if write.token.is_some_and(|token| token != row.token) && !planted!(TokenUnchecked) {
            return Err(Rejection::FencingMismatch { current: row.token });
        }
        let covering = self.covering(lease, &write.key);
        let may_write = covering.is_some_and(|covering| covering.may_write() || planted!(ReaderWrites));
        if !may_write || !write.key.is_key() {
            return Err(Rejection::NotHeld);
        }
        self.check_not_reserved(lease)?;
        let ns = self.accounts[row.account].parent;
        let node = self.nodes.find(ns, write.key.as_str()).expect("a leased key has a node");
        let tag = self.nodes[node].value.tag();
        if write.if_version.is_some_and(|version| version != tag.version) && !planted!(VersionUnchecked) {
            return Err(Rejection::VersionConflict(tag));
        }
        if write.if_etag.is_some_and(|etag| etag != tag.etag) && !planted!(EtagUnchecked) {
            return Err(Rejection::EtagMismatch(tag));
        }
        Ok((lease, node))
    }

    /// Planted fault: an older epoch counts as the current one.
    fn ignore_stale_epoch(
        &self,
        decided: Result<LeaseRef, Rejection>,
        write: &Write,
    ) -> Result<LeaseRef, Rejection> {
        match decided {
            Err(Rejection::StaleEpoch { .. }) => self.live(write.held.lease.lsn).ok_or(Rejection::Retired),
            decided => decided,
        }
    }

    fn after_write(&mut self, lease: LeaseRef, write: &Write) {
        self.record_activity(lease);
        if write.release {
            self.release_now(lease);
        }
    }

    /// Lists the first document of a key in its namespace, so that deleting the namespace finds it.
    pub(crate) fn list_document(&mut self, node: RowId<Node>) {
        let (ns, text) = (self.nodes[node].parent, Arc::clone(&self.nodes[node].text));
        let bytes = document_name_bytes(&text);
        self.footprint.document_bytes += bytes;
        let ns = self.namespace_mut(ns);
        ns.document_name_bytes += bytes;
        ns.documents.insert(text, node);
        self.documents += 1;
    }

    /// Removes a key's document. The version increases, so that conditions on the removed document no
    /// longer match.
    pub(crate) fn take_document(&mut self, node: RowId<Node>) -> Option<Box<Document>> {
        let row = &mut self.nodes[node];
        let document = row.value.document.take()?;
        if !planted!(RemovalKeepsVersion) {
            row.value.version = row.value.version.next();
        }
        let (ns, text) = (row.parent, Arc::clone(&row.text));
        let bytes = document_name_bytes(&text);
        self.footprint.document_bytes -= bytes;
        let ns = self.namespace_mut(ns);
        ns.documents.remove(&text);
        ns.document_name_bytes -= bytes;
        ns.documents_bytes -= document.bytes;
        self.documents -= 1;
        Some(document)
    }

    pub(crate) fn hash_document(&mut self, node: RowId<Node>) {
        let row = &self.nodes[node].value;
        self.hash.word(row.version.0);
        if let Some(document) = &row.document {
            self.hash.word(document.bytes);
            let Location { shard, term, number, random } = document.location;
            self.hash.words([u64::from(shard.0), term, number, random]);
            self.hash.bytes(&document.etag.0);
        }
    }
}
