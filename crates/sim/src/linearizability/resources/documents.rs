//! The documents of a group: versions and conditions.
//!
//! A key has an entry while a lease covers it or it has a document. Without one its version is not kept: a new entry
//! starts at a floor that is shared with other keys, so it may be higher than the last version, and never lower.

use kernel::{Etag, Version};

use super::super::operation::{CallResult, FoundDocument, ResourceNumber, WriteCall};
use super::{ResourcesState, State};

/// A key's version and document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DocumentState {
    version: KeyVersion,
    etag: Option<Etag>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyVersion {
    Known(Version),
    /// Not shown since the key's entry was made.
    AtLeast(Version),
}

impl Default for DocumentState {
    fn default() -> DocumentState {
        DocumentState { version: KeyVersion::AtLeast(Version(0)), etag: None }
    }
}

impl DocumentState {
    fn may_have(&self, version: Version) -> bool {
        match self.version {
            KeyVersion::Known(known) => known == version,
            KeyVersion::AtLeast(least) => version >= least,
        }
    }
}

impl ResourcesState {
    /// Commit and removal: under authority, if the condition holds, with the next version.
    pub(super) fn write(&mut self, result: &CallResult) -> bool {
        let (write, version, etag, changes) = match result {
            CallResult::Committed { write, etag, version } => (write, *version, Some(*etag), true),
            CallResult::Removed { write, removed, version } => (write, *version, None, *removed),
            _ => return false,
        };
        let removes = matches!(result, CallResult::Removed { .. });
        let document = self.documents[write.resource];
        let Some(before) = version.0.checked_sub(u64::from(changes)).map(Version) else { return false };
        let possible = self.authority(write.held, Some(write.resource)).is_ok()
            && document.may_have(before)
            && write.if_version.is_none_or(|expected| expected == before)
            && (!removes || document.etag.is_some() == changes);
        self.documents[write.resource] = DocumentState { version: KeyVersion::Known(version), etag };
        if write.release {
            self.end(write.held.lease, State::Released);
        }
        possible
    }

    pub(super) fn version_conflict(&mut self, write: &WriteCall, found: FoundDocument) -> bool {
        self.authority(write.held, Some(write.resource)).is_ok()
            && write.if_version.is_some_and(|expected| expected != found.0)
            && self.show(write.resource, found)
    }

    /// No entry is shown as `None`. While a lease covers the key it has one.
    pub(super) fn read_document(&mut self, resource: ResourceNumber, found: Option<FoundDocument>) -> bool {
        match found {
            Some(found) => self.show(resource, found),
            None => self.documents[resource].etag.is_none() && !self.is_covered(resource),
        }
    }

    /// A response shows the document. From then on the version is known, while the entry is kept.
    fn show(&mut self, resource: ResourceNumber, (version, etag): FoundDocument) -> bool {
        let covered = self.is_covered(resource);
        let document = &mut self.documents[resource];
        let possible = document.may_have(version) && document.etag == etag;
        if covered {
            document.version = KeyVersion::Known(version);
        }
        possible
    }

    /// Without a lease and a document the key's version becomes part of the floor.
    pub(super) fn drop_unused_entry(&mut self, resource: ResourceNumber) {
        let covered = self.is_covered(resource);
        let document = &mut self.documents[resource];
        if let (false, None, KeyVersion::Known(version)) = (covered, document.etag, document.version) {
            document.version = KeyVersion::AtLeast(version);
        }
    }
}
