//! Outcomes of commands.
//!
//! There are three. [`Outcome::Applied`]: the state changed, and the record must be logged.
//! [`Outcome::Unchanged`]: a successful response without a state change, so there is nothing to log.
//! [`Outcome::Rejected`]: a refusal, which also changed nothing. Only the first advances LSN and time.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::resource::ResourceName;
use crate::text::Namespace;
use crate::units::{Age, Epoch, Etag, LeaseId, Location, Lsn, Span, Time, Token, Version};

/// The result of [`Kernel::apply`](crate::Kernel::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The state changed and the record must be logged; the response may be sent once the record is
    /// durable.
    Applied(Response, Vec<Event>),
    /// Nothing changed, and nothing needs to be logged.
    Unchanged(Response),
    /// Rejected. Nothing changed, and nothing needs to be logged.
    Rejected(Rejection),
}

/// The response to each action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// A tenure has begun.
    Opened,
    /// The tenure has ended.
    Closed,
    /// Overdue leases were ended, at most a bounded number: see
    /// [`Kernel::next_due`](crate::Kernel::next_due).
    Ticked,
    /// Acquire, reserve and rebind: the holder's current authority.
    Granted(Granted),
    /// Activate and touch: the current deadline.
    Live(Live),
    /// One result for each renewal, in order.
    Renewed(Vec<Result<Live, Rejection>>),
    /// The lease is released.
    Released,
    /// The holder's authority is withdrawn; the resources stay covered until a reclaim.
    Revoking(LeaseId),
    /// A batch of leases was revoked.
    RevokedAll {
        /// The number revoked by this command.
        revoked: u32,
        /// Leases remain: send the command again.
        more: bool,
    },
    /// The resources are free.
    Reclaimed(LeaseId),
    /// A part of a namespace was deleted.
    Dropped {
        /// Something remains: send the command again.
        more: bool,
    },
    /// The new version of the document.
    Committed(Version),
    /// The document was removed, or there was none.
    Removed {
        /// Whether there was a document.
        removed: bool,
        /// The key's version.
        version: Version,
    },
    /// The relocation was recorded, or the version was no longer current.
    Relocated {
        /// Whether the new location is now current.
        moved: bool,
    },
    /// Pause, quota and agent commands: the setting is in effect.
    Done,
    /// The grant was undone, or the lease had been used and stays.
    Retracted {
        /// Whether the grant was undone.
        undone: bool,
    },
}

/// The authority that a grant or rebind gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The lease.
    pub lease: LeaseId,
    /// The epoch for which the credential is issued.
    pub epoch: Epoch,
    /// The fencing token.
    pub token: Token,
    /// When the lease was first granted.
    pub granted_at: Time,
    /// Authority ends when this time has passed.
    pub deadline: Time,
    /// The lease's TTL.
    pub ttl: Span,
}

/// A lease with authority, and its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// The lease.
    pub lease: LeaseId,
    /// The epoch of its authority.
    pub epoch: Epoch,
    /// Authority ends when this time has passed.
    pub deadline: Time,
}

/// A refusal: a response, not a failure. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The record is invalid at this point of the log: see [`InvalidRecord`].
    InvalidRecord(InvalidRecord),
    /// The TTL is zero or longer than the limit.
    InvalidTtl {
        /// The longest permitted span.
        max: Span,
    },
    /// The hold after expiry is longer than the limit.
    InvalidHold {
        /// The longest permitted span.
        max: Span,
    },
    /// The batch is empty or larger than [`Action::MAX_BATCH`](crate::Action::MAX_BATCH).
    InvalidBatch,
    /// The idempotency key was used for a different request.
    RequestMismatch,

    /// No such lease, key, agent or namespace ever existed here.
    NotFound,
    /// The lease ended, and its history has been discarded.
    Retired,
    /// The lease belongs to another identity, was released, or does not cover the resource.
    NotHeld,
    /// An operator revoked the lease.
    LeaseRevoked,
    /// The lease expired.
    LeaseExpired,
    /// The credential belongs to an earlier epoch of a live lease.
    StaleEpoch {
        /// The current epoch.
        current: Epoch,
    },
    /// The lease has a different fencing token.
    FencingMismatch {
        /// The current token.
        current: Token,
    },
    /// The command is not allowed in the lease's current state.
    InvalidState(State),
    /// The namespace has leases.
    InUse {
        /// The number of leases.
        leases: u32,
    },
    /// The agent belongs to another identity.
    AgentTaken,
    /// Too many leases are overdue to decide this now: retry after some ticks.
    Behind,
    /// The log does not own the namespace's slot, or its tenure was closed.
    Moved {
        /// The id of the server that the log was handed over to, if it is known.
        to: Option<u128>,
    },

    /// Conflicting leases exist.
    Conflict(Box<Conflict>),
    /// The same session already holds a conflicting lease.
    AlreadyHeld(LeaseId),
    /// The key has a different version.
    VersionConflict(DocumentTag),
    /// The document has a different hash.
    EtagMismatch(DocumentTag),

    /// New grants are paused for this party.
    Paused,
    /// The identity has reached its lease quota.
    QuotaExceeded {
        /// The quota.
        max: u32,
    },
    /// A table has reached its limit.
    Full {
        /// The table.
        table: BoundedTable,
        /// The limit.
        max: u32,
    },
}

/// Why a record is invalid at its point of the log. Caused by an engine bug or a damaged log, never by a
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidRecord {
    /// Its LSN is not above the last one, or too high.
    Lsn {
        /// The value of the last record.
        last: Lsn,
    },
    /// Its stamp is before the last one, or too high.
    Time {
        /// The value of the last record.
        last: Time,
    },
    /// The log has not been opened.
    NotOpen,
    /// An `open` whose term is not above the last one.
    Term {
        /// The value of the last record.
        last: u64,
    },
    /// An `open` for another store.
    Store,
    /// An `open` with a version that this build does not know or that is older than the one in force; or
    /// an action that the version in force does not know.
    KernelVersion {
        /// The newest version this build knows.
        newest: u32,
    },
    /// An `open` with invalid limits.
    Limits,
    /// A client's action without an identity.
    NoIdentity,
}

/// The leases that block a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Some of the conflicting leases, at most [`Conflict::SHOWN_MAX`].
    pub holders: Vec<LeaseId>,
    /// The age of the oldest conflicting lease, listed or not: the input to wait-die.
    pub oldest: Age,
}

impl Conflict {
    /// The maximum number of listed leases.
    pub const SHOWN_MAX: usize = 8;
}

/// The properties of a document that conditions compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentTag {
    /// The key's version.
    pub version: Version,
    /// The document's hash, if there is one.
    pub etag: Option<Etag>,
}

/// A table with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundedTable {
    /// Leases that cover resources.
    Leases,
    /// Namespaces.
    Namespaces,
    /// Names that are leased or have a document, and the directories above them.
    Nodes,
    /// Keys with a document.
    Documents,
    /// Agents.
    Agents,
    /// Agents of the identity in the namespace.
    AgentsPerIdentity,
    /// Scopes with a quota or a pause.
    Policies,
    /// Idempotency entries.
    Requests,
    /// Idempotency entries of the identity.
    RequestsPerIdentity,
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Granted, not yet activated.
    Reserved,
    /// The holder has authority.
    Active,
    /// The holder has lost authority, and the resources are not yet free.
    Revoking,
    /// The holder released it.
    Released,
    /// It expired.
    Expired,
    /// An operator revoked and reclaimed it.
    Revoked,
}

impl State {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Reserved => "reserved",
            State::Active => "active",
            State::Revoking => "revoking",
            State::Released => "released",
            State::Expired => "expired",
            State::Revoked => "revoked",
        }
    }
}

/// A state change. A command causes a bounded number, in this order: overdue leases first, then its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lease was granted, active or reserved.
    Granted(LeaseId, Token),
    /// A reserved lease became active.
    Activated(LeaseId),
    /// A holder rebound its lease.
    Rebound(LeaseId, Token),
    /// The holder released the lease: its resources are free.
    Released(LeaseId),
    /// Authority expired. The resources are free, or on hold until a given time, which may be never.
    Expired {
        /// The lease.
        lease: LeaseId,
        /// The end of the hold; `None` if the resources are free.
        held_until: Option<Time>,
    },
    /// An operator withdrew the authority; the resources are not free.
    Revoked(LeaseId),
    /// A hold ended, by time or by an operator: the resources are free.
    Reclaimed(LeaseId),
    /// A document has a new version.
    Committed {
        /// The lease under which it was written.
        lease: LeaseId,
        /// The key of the document.
        key: ResourceName,
        /// Its new version.
        version: Version,
        /// The location of the previous version: its bytes can be deleted once this record is durable.
        superseded: Option<Location>,
    },
    /// A document was removed.
    Removed {
        /// The lease under which it was written.
        lease: LeaseId,
        /// The key of the document.
        key: ResourceName,
        /// The key's version.
        version: Version,
        /// The location of the removed document.
        superseded: Location,
    },
    /// A document was deleted with its namespace.
    Dropped {
        /// The namespace.
        namespace: Namespace,
        /// The key of the document.
        key: ResourceName,
        /// The location of the deleted document.
        superseded: Location,
    },
}

impl Event {
    /// The lease that changed, or under which a document did; `None` for a document that is deleted with its namespace.
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Event::Granted(lease, _)
            | Event::Activated(lease)
            | Event::Rebound(lease, _)
            | Event::Released(lease)
            | Event::Expired { lease, .. }
            | Event::Revoked(lease)
            | Event::Reclaimed(lease)
            | Event::Committed { lease, .. }
            | Event::Removed { lease, .. } => Some(*lease),
            Event::Dropped { .. } => None,
        }
    }

    /// The lease whose resources this event freed, if any. It stays in history at least until the next
    /// command is applied, so its members can be read there.
    pub fn freed(&self) -> Option<LeaseId> {
        match self {
            Event::Released(lease) | Event::Reclaimed(lease) | Event::Expired { lease, held_until: None } => {
                Some(*lease)
            }
            _ => None,
        }
    }
}
