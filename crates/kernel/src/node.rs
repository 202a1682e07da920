//! Nodes: names that are claimed or have a document.
//!
//! A node exists while a lease claims it or something beneath it, or while it has a document. It is
//! removed with the last of these: unused names occupy no memory.

use alloc::boxed::Box;
use core::num::NonZeroU32;

use crate::claims::ClaimSet;
use crate::outcome::DocumentTag;
use crate::predicate::Class;
use crate::resource::ClaimSetKind;
use crate::table::RowId;
use crate::units::{Etag, Location, Time, Version};

#[derive(Default)]
pub(crate) struct Node {
    /// The version of a key's document, present or removed. Starts at the namespace's floor.
    pub(crate) version: Version,
    pub(crate) document: Option<Box<Document>>,
    at: ClaimSet,
    /// Set for paths only.
    dir: Option<Box<Dir>>,
}

/// The fields that only a path has.
#[derive(Default)]
struct Dir {
    /// The directory above, except for the root. A claim on a path is also a claim beneath every directory
    /// above it, so the directory's node lives at least as long.
    above: Option<RowId<Node>>,
    subtree: ClaimSet,
    beneath: ClaimSet,
}

/// The document of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// The hash of its content.
    pub etag: Etag,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where the content is stored.
    pub location: Location,
    /// When it was committed.
    pub committed_at: Time,
}

/// Identifies a claim set, and a class within it: the node's number, the part, the class.
pub(crate) type ClaimKey = (NonZeroU32, ClaimSetKind, Class);

/// The smallest key.
pub(crate) const MIN_CLAIM_KEY: ClaimKey = (NonZeroU32::MIN, ClaimSetKind::At, Class::Shared);

impl Node {
    pub(crate) fn new(version: Version, document: Option<Document>) -> Node {
        Node { version, document: document.map(Box::new), ..Node::default() }
    }

    /// The node of a path beneath the directory `above`.
    pub(crate) fn path(above: Option<RowId<Node>>) -> Node {
        Node { dir: Some(Box::new(Dir { above, ..Dir::default() })), ..Node::default() }
    }

    pub(crate) fn is_path(&self) -> bool {
        self.dir.is_some()
    }

    pub(crate) fn above(&self) -> Option<RowId<Node>> {
        self.dir.as_ref().and_then(|dir| dir.above)
    }

    pub(crate) fn claims(&self, part: ClaimSetKind) -> &ClaimSet {
        static EMPTY: ClaimSet = ClaimSet::None;
        match (part, &self.dir) {
            (ClaimSetKind::At, _) => &self.at,
            (ClaimSetKind::Subtree, Some(dir)) => &dir.subtree,
            (ClaimSetKind::Beneath, Some(dir)) => &dir.beneath,
            (ClaimSetKind::Subtree | ClaimSetKind::Beneath, None) => &EMPTY,
        }
    }

    pub(crate) fn claims_mut(&mut self, part: ClaimSetKind) -> &mut ClaimSet {
        match (part, &mut self.dir) {
            (ClaimSetKind::At, _) => &mut self.at,
            (ClaimSetKind::Subtree, Some(dir)) => &mut dir.subtree,
            (ClaimSetKind::Beneath, Some(dir)) => &mut dir.beneath,
            (ClaimSetKind::Subtree | ClaimSetKind::Beneath, None) => {
                unreachable!("only a path has claims beneath it")
            }
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        [ClaimSetKind::At, ClaimSetKind::Subtree, ClaimSetKind::Beneath]
            .into_iter()
            .any(|part| !self.claims(part).is_empty())
    }

    pub(crate) fn tag(&self) -> DocumentTag {
        DocumentTag { version: self.version, etag: self.document.as_ref().map(|document| document.etag) }
    }
}
