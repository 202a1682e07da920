//! One name that something is known about: who claims it, and the document beside it.
//!
//! A node is there while a lease claims it or something beneath it, or while it has a document. When
//! the last reason goes, so does the node: nothing is kept for names that are gone.

use alloc::boxed::Box;
use core::num::NonZeroU32;

use crate::claims::ClaimSet;
use crate::outcome::DocumentTag;
use crate::predicate::Class;
use crate::resource::Part;
use crate::table::RowId;
use crate::units::{Etag, Location, Time, Version};

#[derive(Default)]
pub(crate) struct Node {
    /// Of a key's document, present or not. Begins at the namespace's floor.
    pub(crate) version: Version,
    pub(crate) document: Option<Box<Document>>,
    at: ClaimSet,
    /// Every path has one, and nothing else.
    dir: Option<Box<Dir>>,
}

/// What only a path can have.
#[derive(Default)]
struct Dir {
    /// The directory above it, but for the root. Whoever claims a path claims beneath every directory
    /// above it, so that one is there for at least as long.
    above: Option<RowId<Node>>,
    subtree: ClaimSet,
    beneath: ClaimSet,
}

/// The document beside a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Document {
    /// The hash of its content.
    pub etag: Etag,
    /// Its length.
    pub bytes: u64,
    /// Where it is.
    pub location: Location,
    /// When it was committed.
    pub committed_at: Time,
}

/// A set of claims as a key: the node's number, the part, the class.
pub(crate) type ClaimKey = (NonZeroU32, Part, Class);

/// Sorts before every other.
pub(crate) const MIN_CLAIM_KEY: ClaimKey = (NonZeroU32::MIN, Part::At, Class::Shared);

impl Node {
    pub(crate) fn new(version: Version, document: Option<Document>) -> Node {
        Node { version, document: document.map(Box::new), ..Node::default() }
    }

    /// The node of a path, below that of a directory.
    pub(crate) fn path(above: Option<RowId<Node>>) -> Node {
        Node { dir: Some(Box::new(Dir { above, ..Dir::default() })), ..Node::default() }
    }

    pub(crate) fn is_path(&self) -> bool {
        self.dir.is_some()
    }

    pub(crate) fn above(&self) -> Option<RowId<Node>> {
        self.dir.as_ref().and_then(|dir| dir.above)
    }

    pub(crate) fn claims(&self, part: Part) -> &ClaimSet {
        static EMPTY: ClaimSet = ClaimSet::None;
        match (part, &self.dir) {
            (Part::At, _) => &self.at,
            (Part::Subtree, Some(dir)) => &dir.subtree,
            (Part::Beneath, Some(dir)) => &dir.beneath,
            (Part::Subtree | Part::Beneath, None) => &EMPTY,
        }
    }

    pub(crate) fn claims_mut(&mut self, part: Part) -> &mut ClaimSet {
        match (part, &mut self.dir) {
            (Part::At, _) => &mut self.at,
            (Part::Subtree, Some(dir)) => &mut dir.subtree,
            (Part::Beneath, Some(dir)) => &mut dir.beneath,
            (Part::Subtree | Part::Beneath, None) => unreachable!("only a path has something beneath it"),
        }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        [Part::At, Part::Subtree, Part::Beneath].into_iter().any(|part| !self.claims(part).is_empty())
    }

    pub(crate) fn tag(&self) -> DocumentTag {
        DocumentTag { version: self.version, etag: self.document.as_ref().map(|document| document.etag) }
    }
}
