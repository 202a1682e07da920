//! What the kernel says to a command.
//!
//! Three things can come out. [`Outcome::Applied`]: the state changed, and the record must be logged.
//! [`Outcome::Unchanged`]: a good answer, but nothing changed, so there is nothing to log.
//! [`Outcome::Rejected`]: a refusal, which changed nothing either. Only the first moves LSN and time.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::resource::ResourceName;
use crate::text::Namespace;
use crate::units::{Age, Epoch, Etag, LeaseId, Location, Lsn, Span, Time, Token, Version};

/// The result of [`Kernel::apply`](crate::Kernel::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The state changed. To be logged; the answer may be given once the record is durable.
    Applied(Answer, Vec<Event>),
    /// Nothing changed, and nothing is to be logged.
    Unchanged(Answer),
    /// Refused. Nothing changed, and nothing is to be logged.
    Rejected(Rejection),
}

/// A typed answer for each action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A tenure has begun.
    Opened,
    /// What was due is ended, or a bounded part of it: see [`Kernel::next_due`](crate::Kernel::next_due).
    Ticked,
    /// Acquire, reserve and rebind: the authority that the holder has now.
    Granted(Granted),
    /// Activate and touch: the deadline as it is now.
    Live(Live),
    /// One result for each renewal, in order.
    Renewed(Vec<Result<Live, Rejection>>),
    /// The holder has nothing any more.
    Released,
    /// The holder's authority is withdrawn; the resources wait for a reclaim.
    Revoking(LeaseId),
    /// So many leases were withdrawn; `more`: call again.
    RevokedAll {
        /// How many this time.
        revoked: u32,
        /// There are others left.
        more: bool,
    },
    /// The resources are free.
    Reclaimed(LeaseId),
    /// A part of a namespace is gone; `more`: call again.
    Dropped {
        /// There is something left.
        more: bool,
    },
    /// The document has this version now.
    Committed(Version),
    /// The key has this version now; `removed` is false if there was no document.
    Removed {
        /// Was there a document?
        removed: bool,
        /// The key's version.
        version: Version,
    },
    /// The new place is noted, or the version was no longer current.
    Relocated {
        /// Is the new place in use?
        moved: bool,
    },
    /// Pause, quota, agent: it is so now.
    Done,
    /// The grant is undone, or it was in use and stays.
    Retracted {
        /// Was it undone?
        undone: bool,
    },
}

/// The authority that a grant or rebind gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The lease.
    pub lease: LeaseId,
    /// The epoch that the credential is issued for.
    pub epoch: Epoch,
    /// The fencing token.
    pub token: Token,
    /// When the lease was first granted.
    pub granted_at: Time,
    /// Authority ends once this has passed.
    pub deadline: Time,
    /// The lease's TTL.
    pub ttl: Span,
}

/// A lease that has authority, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// The lease.
    pub lease: LeaseId,
    /// The epoch of its authority.
    pub epoch: Epoch,
    /// Authority ends once this has passed.
    pub deadline: Time,
}

/// A refusal: an answer, not a failure. It changed nothing at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The command has no place here in the log: see [`Misplaced`].
    Misplaced(Misplaced),
    /// Zero, or longer than the limit.
    InvalidTtl {
        /// The longest that is granted.
        max: Span,
    },
    /// The hold after expiry is longer than the limit.
    InvalidHold {
        /// The longest that is granted.
        max: Span,
    },
    /// None, or more entries than one command may have.
    InvalidBatch,
    /// The idempotency key was used for another request.
    RequestMismatch,

    /// No such thing was ever here.
    NotFound,
    /// The lease ended, and its history is gone.
    Retired,
    /// The lease is another identity's, was released, or does not cover this.
    NotHeld,
    /// An operator withdrew the lease.
    LeaseRevoked,
    /// The lease ran out.
    LeaseExpired,
    /// The credential is of an earlier epoch of a lease that is live.
    StaleEpoch {
        /// The epoch now.
        current: Epoch,
    },
    /// The lease's fencing token is another one.
    FencingMismatch {
        /// The token now.
        current: Token,
    },
    /// The lease is in a state from which this does not lead on.
    InvalidState(State),
    /// Leases stand in the namespace.
    InUse {
        /// How many.
        leases: u32,
    },
    /// The agent belongs to another identity.
    AgentTaken,
    /// So much is due that this cannot be decided yet: try again after some ticks.
    Behind,

    /// Others hold what was asked for.
    Conflict(Box<Conflict>),
    /// The same session holds it already.
    AlreadyHeld(LeaseId),
    /// The key has another version.
    VersionConflict(DocumentTag),
    /// The document has another hash.
    EtagMismatch(DocumentTag),

    /// New grants are stopped for this party.
    Paused,
    /// The identity holds as many leases as it may.
    QuotaExceeded {
        /// How many it may hold.
        max: u32,
    },
    /// A table has as many entries as it may.
    Full(Bounded),
}

/// Why a command has no place in the log. The engine's bug or a damaged log; never a client's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// Its LSN is not above the last one, or too high.
    Lsn {
        /// The last one.
        last: Lsn,
    },
    /// Its stamp is before the last one, or too late.
    Time {
        /// The last one.
        last: Time,
    },
    /// The log has not been opened.
    NotOpen,
    /// An `open` whose term is not above the last one.
    Term {
        /// The last one.
        last: u64,
    },
    /// An `open` for another store.
    Store,
    /// An `open` by rules that this build does not know, or older than those in force; or an action that
    /// the rules in force do not know.
    KernelVersion {
        /// The newest known here.
        newest: u32,
    },
    /// An `open` with limits that make no sense.
    Limits,
    /// A client's action without an identity.
    NoIdentity,
}

/// Who is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Some of the leases, at most [`Conflict::SHOWN_MAX`].
    pub holders: Vec<LeaseId>,
    /// The oldest of all that are in the way, shown or not: what wait-die needs to know.
    pub oldest: Age,
}

impl Conflict {
    /// The most leases that are listed.
    pub const SHOWN_MAX: usize = 8;
}

/// A document as conditions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentTag {
    /// The key's version.
    pub version: Version,
    /// The document's hash, if there is one.
    pub etag: Option<Etag>,
}

/// A bounded table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounded {
    /// Leases that cover resources.
    Leases,
    /// Namespaces.
    Namespaces,
    /// Names that something is known about.
    Nodes,
    /// Keys with a document.
    Documents,
    /// Agents, of all or of this identity.
    Agents,
    /// Scopes with a quota or a pause.
    Policies,
    /// Idempotency entries, of all or of this identity.
    Requests,
}

/// Where a lease is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Granted, and not yet activated.
    Reserved,
    /// The holder has authority.
    Active,
    /// The holder has none, and the resources are not yet free.
    Revoking,
    /// The holder gave it back.
    Released,
    /// It ran out.
    Expired,
    /// An operator took it back.
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

/// Something that happened. A command causes a bounded number, in this order: what was due, then its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lease was granted, active or reserved.
    Granted(LeaseId, Token),
    /// A reserved lease became active.
    Activated(LeaseId),
    /// A holder took its lease back.
    Rebound(LeaseId, Token),
    /// The holder gave the lease back: its resources are free.
    Released(LeaseId),
    /// Authority ran out. The resources are free, or held until a moment that may be never.
    Expired {
        /// The lease.
        lease: LeaseId,
        /// `None`: free now.
        held_until: Option<Time>,
    },
    /// An operator withdrew the authority; the resources are not free.
    Revoked(LeaseId),
    /// A hold is over, or an operator ended it: the resources are free.
    Reclaimed(LeaseId),
    /// A document has a new version.
    Committed {
        /// Under which lease.
        lease: LeaseId,
        /// Whose document.
        key: ResourceName,
        /// Its version.
        version: Version,
        /// Where the version before it was: nobody needs those bytes once this is durable.
        superseded: Option<Location>,
    },
    /// A document is gone.
    Removed {
        /// Under which lease.
        lease: LeaseId,
        /// Whose document.
        key: ResourceName,
        /// The key's version.
        version: Version,
        /// Where the document was.
        superseded: Location,
    },
    /// A document went with its namespace.
    Dropped {
        /// The namespace.
        namespace: Namespace,
        /// Whose document.
        key: ResourceName,
        /// Where it was.
        superseded: Location,
    },
}

impl Event {
    /// The lease whose resources became free by this, if it freed any. It is in history at least
    /// until the next command is applied, so its members can be read there.
    pub fn freed(&self) -> Option<LeaseId> {
        match self {
            Event::Released(lease) | Event::Reclaimed(lease) | Event::Expired { lease, held_until: None } => {
                Some(*lease)
            }
            _ => None,
        }
    }
}
