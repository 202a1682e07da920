//! Why the backend has no result for a request.

use engine::waiters::Attempt;
use engine::{Decision, Unavailable};
use kernel::{Namespace, Rejection, Shard};

/// Why the backend has no result for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BackendError {
    /// The shard refused the command or the query before it was decided.
    Unavailable(Unavailable),
    /// The server is shutting down.
    Draining,
    /// The server is shutting down, and the request was waiting.
    Dismissed(Attempt),
    /// The shard failed before it replied: the command may have been applied.
    Indeterminate,
    /// The shard failed before it ran the query.
    QueryFailed,
    /// Another server owns the shard, or none does at the moment. Nothing was carried out.
    Moved(Shard),
    /// The lease is of a shard that this store does not have.
    NoSuchLease,
    /// The agent is unknown in its namespace.
    NoSuchAgent,
    /// The lease is in another namespace than this one, which the request names.
    OtherNamespace(Namespace),
    /// A query found that the kernel would reject the command.
    Rejected(Rejection),
    /// The command was decided, and the decision is a refusal.
    Refused(Decision),
}
