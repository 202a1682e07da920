//! The calls of a history, each with its response, as a client observed them.
//!
//! Resources are numbered within their group. A response that reveals kernel time carries it; any other call may have
//! happened at any time between its invocation and its return.

use kernel::{Epoch, Etag, Lsn, Predicate, Span, State, Time, Token, Version};

/// A resource of a group, by its number.
pub type ResourceNumber = usize;

/// The members of a lease.
pub type Members = Vec<(ResourceNumber, Predicate)>;

/// A call and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The idempotency key, numbered uniquely within the history.
    pub request: Option<u64>,
    /// The response.
    pub result: CallResult,
}

/// A credential: a lease and the epoch for which it was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The lease.
    pub lease: Lsn,
    /// The epoch.
    pub epoch: Epoch,
}

/// A document as a response shows it: the key's version, and the ETag if there is a document.
pub type FoundDocument = (Version, Option<Etag>);

/// A live lease on a resource, as a read shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundHolder {
    /// The lease.
    pub lease: Lsn,
    /// Its fencing token.
    pub token: Token,
    /// Its state: active, or revoking.
    pub state: State,
}

/// A write of a document: a commit or a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCall {
    /// The credential.
    pub held: Held,
    /// The key.
    pub resource: ResourceNumber,
    /// The condition.
    pub if_version: Option<Version>,
    /// Whether the same record releases the lease.
    pub release: bool,
}

/// Why a credential was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialRefusal {
    /// `not_held`: released, never issued, or the lease does not cover the key for writing.
    NotHeld,
    /// `lease_revoked`.
    Revoked,
    /// `lease_expired`.
    Expired,
    /// `stale_epoch`.
    StaleEpoch,
    /// `invalid_state`: a rebind of a live lease.
    Live,
}

/// The responses, by kind of call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// Acquire succeeded.
    Granted {
        /// The lease.
        lease: Lsn,
        /// Its fencing token.
        token: Token,
        /// The time of the grant, if the response showed it.
        at: Option<Time>,
        /// The deadline.
        deadline: Time,
        /// The hold after expiry; `None` frees the resources at once.
        hold: Option<Span>,
        /// All resources of the bundle.
        members: Members,
    },
    /// Acquire failed with a conflict.
    Blocked {
        /// The requested resources.
        members: Members,
        /// A conflicting lease, if the response named one.
        by: Option<Lsn>,
    },
    /// Rebind succeeded.
    Rebound {
        /// The credential of the ended epoch.
        held: Held,
        /// The new epoch.
        epoch: Epoch,
        /// The new fencing token.
        token: Token,
        /// The TTL, from the time of the rebind.
        ttl: Span,
        /// The new deadline.
        deadline: Time,
    },
    /// Rebind failed.
    NotRebound(Held, CredentialRefusal),
    /// The grant under this idempotency key is stored, and its authority has ended.
    ReplayRefused(CredentialRefusal),
    /// The idempotency key was used for another request.
    RequestMismatch,
    /// Renew succeeded.
    Renewed {
        /// The credential.
        held: Held,
        /// The TTL, from the time of the renewal.
        ttl: Span,
        /// The new deadline.
        deadline: Time,
    },
    /// Release freed the resources.
    Released(Held),
    /// Release of a lease that had already ended, or is being revoked.
    NothingToRelease(Held),
    /// Release succeeded; the response does not show which of the two it was.
    ReleasedOrEnded(Held),
    /// Release failed.
    NotReleased(Held, CredentialRefusal),
    /// Commit succeeded.
    Committed {
        /// The call.
        write: WriteCall,
        /// The new content.
        etag: Etag,
        /// The new version.
        version: Version,
    },
    /// Removal succeeded.
    Removed {
        /// The call.
        write: WriteCall,
        /// Whether there was a document.
        removed: bool,
        /// The version after it.
        version: Version,
    },
    /// Commit or removal failed: the condition does not hold.
    VersionConflict {
        /// The call.
        write: WriteCall,
        /// The document.
        found: FoundDocument,
    },
    /// Renew, or a write of this resource, failed.
    Refused {
        /// The credential.
        held: Held,
        /// The written resource.
        written: Option<ResourceNumber>,
        /// The refusal.
        why: CredentialRefusal,
    },
    /// Revoke succeeded.
    Revoking(Lsn),
    /// Reclaim succeeded.
    Reclaimed(Lsn),
    /// Revoke failed: the lease is in this state.
    NotRevoked(Lsn, State),
    /// Reclaim failed: the lease is in this state.
    NotReclaimed(Lsn, State),
    /// A read of a resource.
    Read {
        /// The time of the read, if the response showed it.
        at: Option<Time>,
        /// The resource.
        resource: ResourceNumber,
        /// The version and ETag of its document; `None` if the resource has no entry.
        found: Option<FoundDocument>,
        /// Its live leases in the order of their ids, if the response showed them.
        holders: Option<Vec<FoundHolder>>,
    },
    /// A read of a lease.
    ReadLease {
        /// The time of the read.
        at: Time,
        /// The lease.
        lease: Lsn,
        /// Its state.
        state: State,
    },
}
