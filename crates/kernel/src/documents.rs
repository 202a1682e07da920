//! The documents beside keys: commit, remove, relocate.
//!
//! **Invariant.** The check of the lease, its epoch and the conditions happens in the record that
//! installs the new version: there is no gap for a stale holder to slip into. A version is never used
//! twice for one key, deleted or not.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::command::{Commit, Relocation, Removal, Write};
use crate::kernel::{Handled, Kernel, Stamp, Stop};
use crate::lease::LeaseRef;
use crate::node::{Document, Node};
use crate::outcome::{Answer, Bounded, Event, Rejection};
use crate::predicate::Predicate;
use crate::table::RowId;
use crate::text::Identity;
use crate::units::Time;

impl Kernel {
    pub(crate) fn commit(&mut self, stamp: Stamp, identity: &Identity, commit: &Commit) -> Handled {
        let (lease, node) = self.decide_write(stamp.now, identity, &commit.write)?;
        let is_new = self.nodes[node].value.document.is_none();
        if is_new && self.documents >= self.limits().documents_max {
            return Err(Rejection::Full(Bounded::Documents).into());
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
        let row = &mut self.nodes[node].value;
        let superseded = row.document.replace(Box::new(document)).map(|document| document.location);
        row.version = row.version.next();
        let version = row.version;
        let (lease_id, key) = (commit.write.held.lease, commit.write.key.clone());
        self.events.push(Event::Committed { lease: lease_id, key, version, superseded });
        self.note_document(node);
        self.after_write(lease, &commit.write);
        Ok(Answer::Committed(version))
    }

    pub(crate) fn remove(&mut self, stamp: Stamp, identity: &Identity, removal: &Removal) -> Handled {
        let write = &removal.write;
        let (lease, node) = self.decide_write(stamp.now, identity, write)?;
        let removed = self.nodes[node].value.document.is_some();
        if !removed && !write.release {
            let version = self.nodes[node].value.version;
            return Err(Stop::Unchanged(Answer::Removed { removed, version }));
        }
        self.begin(stamp, &[]);
        if let Some(document) = self.take_document(node) {
            let (version, superseded) = (self.nodes[node].value.version, document.location);
            let (lease, key) = (write.held.lease, write.key.clone());
            self.events.push(Event::Removed { lease, key, version, superseded });
        }
        let version = self.nodes[node].value.version;
        self.note_document(node);
        self.after_write(lease, write);
        Ok(Answer::Removed { removed, version })
    }

    /// The bytes of a version have moved. Nothing, if that version is not the current one any more.
    pub(crate) fn relocate(&mut self, stamp: Stamp, relocation: &Relocation) -> Handled {
        let space = self.spaces.find(None, relocation.namespace.as_str());
        let node = space.and_then(|space| self.nodes.find(space.as_parent(), relocation.key.as_str()));
        let current = node.filter(|node| {
            let row = &self.nodes[*node].value;
            row.document.is_some() && (row.version == relocation.version || planted!(RelocateAnyVersion))
        });
        let Some(node) = current else {
            return Err(Stop::Unchanged(Answer::Relocated { moved: false }));
        };
        self.begin(stamp, &[]);
        let document = self.nodes[node].value.document.as_mut().expect("it was found with a document");
        document.location = relocation.location;
        self.note_document(node);
        Ok(Answer::Relocated { moved: true })
    }

    /// The refusals in their order: the lease, its token, what it covers, its state, the conditions.
    fn decide_write(
        &self,
        now: Time,
        identity: &Identity,
        write: &Write,
    ) -> Result<(LeaseRef, RowId<Node>), Rejection> {
        let lease = match self.authority(now, identity, write.held) {
            Err(Rejection::StaleEpoch { .. }) if planted!(CommitStaleEpoch) => {
                self.live(write.held.lease.lsn).expect("it has an epoch")
            }
            decided => decided?,
        };
        let row = &self.leases[lease];
        if write.token.is_some_and(|token| token != row.token) {
            return Err(Rejection::FencingMismatch { current: row.token });
        }
        let may_write = self.covering(lease, &write.key).is_some_and(Predicate::may_write);
        if !may_write || !write.key.is_key() {
            return Err(Rejection::NotHeld);
        }
        self.not_reserved(lease)?;
        let space = self.accounts[row.account].parent;
        let node = self.nodes.find(space, write.key.as_str()).expect("a key under lease has a node");
        let tag = self.nodes[node].value.tag();
        if write.if_version.is_some_and(|version| version != tag.version) {
            return Err(Rejection::VersionConflict(tag));
        }
        if write.if_etag.is_some_and(|etag| etag != tag.etag) {
            return Err(Rejection::EtagMismatch(tag));
        }
        Ok((lease, node))
    }

    fn after_write(&mut self, lease: LeaseRef, write: &Write) {
        self.note_activity(lease);
        if write.release {
            self.release_now(lease);
        }
    }

    /// A key gets its first document: whoever deletes the namespace must find it.
    pub(crate) fn list_document(&mut self, node: RowId<Node>) {
        let (space, text) = (self.nodes[node].parent, Arc::clone(&self.nodes[node].text));
        self.space_mut(space).documents.insert(text, node);
        self.documents += 1;
    }

    /// Takes a key's document away. The version rises: what was said of the one before holds no more.
    pub(crate) fn take_document(&mut self, node: RowId<Node>) -> Option<Box<Document>> {
        let row = &mut self.nodes[node];
        let document = row.value.document.take()?;
        row.value.version = row.value.version.next();
        let (space, text) = (row.parent, Arc::clone(&row.text));
        self.space_mut(space).documents.remove(&text);
        self.documents -= 1;
        Some(document)
    }

    pub(crate) fn note_document(&mut self, node: RowId<Node>) {
        let row = &self.nodes[node].value;
        self.hash.word(row.version.0);
        if let Some(document) = &row.document {
            self.hash.word(document.bytes);
            self.hash.bytes(&document.location.0.to_le_bytes());
            self.hash.bytes(&document.etag.0);
        }
    }
}
