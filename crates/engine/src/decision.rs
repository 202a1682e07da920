//! The decision on a command, and the reply to a blocked request for a lease.
//!
//! A decision is published only when the state that it reveals is durable; so is a refusal.

use kernel::{
    AgentName, Identity, Kernel, LeaseId, Lsn, Member, Namespace, Outcome, Rejection, Response, Time,
};

use crate::memory::ExceededLimit;
use crate::waiting::Attempt;

/// The decision on a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The kernel's outcome, never a conflict.
    Outcome(Outcome),
    /// Leases or waiters conflict with the request.
    Blocked(Box<Blocked>),
}

impl Decision {
    /// A rejection by the kernel's rules.
    pub(crate) fn rejected(rejection: Rejection) -> Decision {
        Decision::Outcome(Outcome::Rejected(rejection))
    }

    /// The kernel's response to a command that was applied or changed nothing; `None` if it was rejected or blocked.
    pub fn response(&self) -> Option<&Response> {
        match self {
            Decision::Outcome(Outcome::Applied(response, _) | Outcome::Unchanged(response)) => Some(response),
            Decision::Outcome(Outcome::Rejected(_)) | Decision::Blocked(_) => None,
        }
    }

    /// The lease that the response carries, granted now or replayed.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        match self.response() {
            Some(Response::Granted(granted)) => Some(granted.lease),
            _ => None,
        }
    }

    /// The lease that this decision granted.
    pub(crate) fn new_lease(&self) -> Option<LeaseId> {
        self.lease().filter(|_| matches!(self, Decision::Outcome(Outcome::Applied(..))))
    }
}

/// Reads the state in which a command was decided. Its result may be published with the reply, not before. The second
/// argument reads kernel time, so that a caller can read another clock before it.
pub type OnDecided = Box<dyn FnOnce(&Kernel, &dyn Fn() -> Time, &Decision) + Send>;

/// The reply to a command, once it is durable.
pub type Reply = Result<Decision, Unavailable>;

/// Why there is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// A bounded queue is full: retry later.
    Busy,
    /// The log has no free capacity. Releases, revokes and reclaims may still be accepted.
    NoSpace,
    /// The identity requests leases more often than its quota allows.
    TooOften,
    /// The request would exceed a limit in bytes.
    OverLimit(ExceededLimit),
    /// A retry of the same request has taken its place.
    Replaced,
    /// The authorization of its client was withdrawn before the command was decided.
    Withdrawn,
    /// The shard is about to stop, and the request was waiting. A retry presents the attempt to keep its place.
    Dismissed(Attempt),
    /// The shard has stopped, or is about to.
    Stopped,
    /// Another server owns the shard now; the command was not carried out.
    Deposed,
    /// This server hands the shard over, to the server with this id if there is one; the command was not carried out.
    Moved(Option<u128>),
}

/// A request for a lease is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The recommended action of the client.
    pub advice: Advice,
    /// Some of the conflicting leases, at most [`Conflict::SHOWN_MAX`](kernel::Conflict::SHOWN_MAX).
    pub holders: Vec<LeaseId>,
    /// The number of conflicting waiters ahead, at most [`Waiters::COUNT_MAX`](crate::waiters::Waiters::COUNT_MAX).
    pub position: usize,
    /// The leases that the session holds and has to release, unless the advice is to wait.
    pub release: Vec<LeaseId>,
    /// The attempt that the request is a try of; a retry presents it to keep its place.
    pub attempt: Attempt,
}

/// The recommended action of a client whose request is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Wait, or retry.
    Wait,
    /// Wait-die: release what is held, and retry with the same attempt.
    Die,
    /// A wait would close a deadlock cycle of sessions: release what is held first.
    Deadlock,
}

/// A request for a lease was blocked. It changed no state, and is not logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentionEvent {
    /// The last record before it.
    pub after: Lsn,
    /// How the request went on.
    pub outcome: ContentionOutcome,
    /// The identity that sent the request.
    pub identity: Identity,
    /// The agent on whose behalf it was sent.
    pub agent: Option<AgentName>,
    /// The namespace of the resources.
    pub namespace: Namespace,
    /// Some of the contended members, at most [`ContentionEvent::SHOWN_MAX`].
    pub members: Vec<Member>,
    /// Some of the conflicting leases.
    pub holders: Vec<LeaseId>,
}

impl ContentionEvent {
    /// The maximum number of members that are listed.
    pub const SHOWN_MAX: usize = 8;
}

/// How a blocked request went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentionOutcome {
    /// It waits.
    Queued,
    /// It did not want to wait, and was refused.
    Refused,
    /// It was refused by wait-die or because of a deadlock cycle.
    Died,
    /// Its wait timed out.
    TimedOut,
}
