//! Memory accounting: an estimate of the bytes that the rows of identities and documents occupy.
//!
//! **Invariant.** The counts follow from the rows. They are no part of the state: they are in no snapshot, digest or
//! rule, so a replay does not depend on them, and a server with more memory may accept more.
//!
//! **What would break it.** A rule of the kernel that reads them: a log would then replay differently under another
//! estimate. The engine reads them instead, and refuses a command before it is decided.
//!
//! An estimate counts each name once for every lease that covers it, with the directories above it, although leases
//! share them: it is never less than what a bundle of new names occupies.

use crate::bundle::Member;
use crate::command::LeaseRequest;
use crate::history::LeaseAttributes;
use crate::kernel::Kernel;
use crate::lease::Lease;
use crate::resource::claimed;
use crate::text::{AgentName, Identity, Metadata, Namespace, Owner, Reason, SessionName};
use crate::units::LeaseId;

/// A lease row with its index entries, timer, chain links and attributes, without its names and texts.
const LEASE_BYTES: u64 = 192;
/// A node with its claim and its index entry, without its name.
const NODE_BYTES: u64 = 128;
/// The node of a document, with its entry in the namespace's list, without its name.
const DOCUMENT_BYTES: u64 = 256;

/// The memory that an identity occupies in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityFootprint {
    /// An estimate of the bytes of its live leases.
    pub lease_bytes: u64,
    /// The number of namespaces in which it has leases, ended leases that are still readable, or agents.
    pub namespaces: u32,
}

/// The memory that a shard occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// An estimate of the bytes of all live leases.
    pub lease_bytes: u64,
    /// An estimate of the bytes of all documents' names. Their contents are in the store.
    pub document_bytes: u64,
}

impl LeaseRequest {
    /// An estimate of the bytes that the lease will occupy.
    pub fn footprint(&self) -> u64 {
        let texts = [
            self.agent.as_ref().map(AgentName::as_str),
            self.session.as_ref().map(SessionName::as_str),
            self.owner.as_ref().map(Owner::as_str),
            self.reason.as_ref().map(Reason::as_str),
        ];
        let members: u64 = self.bundle.members().iter().map(member_bytes).sum();
        LEASE_BYTES + members + text_bytes(texts, self.metadata.as_ref())
    }
}

impl Kernel {
    /// The memory that the shard occupies.
    pub fn footprint(&self) -> Footprint {
        self.footprint
    }

    /// The memory that an identity occupies in the shard.
    pub fn identity_footprint(&self, identity: &Identity) -> IdentityFootprint {
        let row = self.identities.find(None, identity.as_str());
        row.map_or(IdentityFootprint::default(), |row| self.identities[row].value)
    }

    /// The memory that each identity occupies in the shard. It visits every identity: for the start of a server only.
    pub fn identity_footprints(&self) -> impl Iterator<Item = (Identity, IdentityFootprint)> {
        let identity = |text: &str| Identity::new(text).expect("it was an identity when it was interned");
        self.identities.iter().map(move |(_, row)| (identity(&row.text), row.value))
    }

    /// Whether an identity has leases, ended leases that are still readable, or agents in a namespace.
    pub fn has_account(&self, namespace: &Namespace, identity: &Identity) -> bool {
        let ns = self.find_namespace(namespace);
        ns.is_some_and(|ns| self.accounts.find(ns.as_parent(), identity.as_str()).is_some())
    }

    /// The namespace of a live lease.
    pub fn namespace_of_lease(&self, lease: LeaseId) -> Option<Namespace> {
        let row = &self.leases[self.live(lease.lsn)?];
        Some(self.namespace_of(self.accounts[row.account].parent))
    }

    /// The length of all documents in a namespace, in bytes.
    pub fn documents_bytes(&self, namespace: &Namespace) -> u64 {
        self.find_namespace(namespace).map_or(0, |ns| self.namespaces[ns].value.documents_bytes)
    }

    /// An estimate of the bytes that the names of all documents in a namespace occupy.
    pub fn document_name_bytes(&self, namespace: &Namespace) -> u64 {
        self.find_namespace(namespace).map_or(0, |ns| self.namespaces[ns].value.document_name_bytes)
    }

    /// An estimate of the bytes that a lease occupies.
    pub(crate) fn lease_footprint(&self, lease: &Lease) -> u64 {
        let members = lease.members.as_slice().iter();
        let members: u64 =
            members.map(|member| name_bytes(&self.nodes[member.node].text, member.subtree)).sum();
        let texts = lease.optional.as_ref().map_or(0, |optional| attribute_bytes(&optional.details));
        LEASE_BYTES + members + texts
    }
}

/// An estimate of the bytes that a document's name occupies.
pub(crate) fn document_name_bytes(text: &str) -> u64 {
    DOCUMENT_BYTES + text.len() as u64
}

fn member_bytes(member: &Member) -> u64 {
    let (text, subtree) = member.resource.node();
    name_bytes(text, subtree)
}

/// A name and the directories above it.
fn name_bytes(text: &str, subtree: bool) -> u64 {
    claimed(text, subtree).map(|(name, _)| NODE_BYTES + name.len() as u64).sum()
}

fn attribute_bytes(details: &LeaseAttributes) -> u64 {
    let texts = [
        details.agent.as_ref().map(AgentName::as_str),
        details.session.as_ref().map(SessionName::as_str),
        details.owner.as_ref().map(Owner::as_str),
        details.reason.as_ref().map(Reason::as_str),
    ];
    text_bytes(texts, details.metadata.as_ref())
}

fn text_bytes(texts: [Option<&str>; 4], metadata: Option<&Metadata>) -> u64 {
    let texts: usize = texts.into_iter().flatten().map(str::len).sum();
    (texts + metadata.map_or(0, |metadata| metadata.as_bytes().len())) as u64
}
