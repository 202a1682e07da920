//! The exit codes of `lockd`, `lockc` and `jvs`, with their meaning and the reaction of a script.
//!
//! `docs/reference/exit-codes.md` is generated from these tables; the help texts are tested against them.

use lockd_client::Kind;
use worktree::error::ErrorClass;

/// Done.
pub const DONE: u8 = 0;
/// A failure on this machine.
pub const FAILED: u8 = 1;
/// Wrong usage or invalid input.
pub const USAGE: u8 = 2;
/// Conflicting leases.
pub const HELD: u8 = 10;
/// The lease or the expected version is no longer current.
pub const FENCED: u8 = 11;
/// The lease expired.
pub const EXPIRED: u8 = 12;
/// No server could do it now.
pub const UNAVAILABLE: u8 = 13;
/// The identity may not do it.
pub const DENIED: u8 = 14;
/// The request may have been applied.
pub const INDETERMINATE: u8 = 15;

/// One exit code.
pub struct ExitCode {
    /// The code.
    pub code: u8,
    /// Its name in `--help`.
    pub name: &'static str,
    /// When a program exits with it.
    pub meaning: &'static str,
    /// The reaction of a script.
    pub remedy: &'static str,
}

const fn row(code: u8, name: &'static str, meaning: &'static str, remedy: &'static str) -> ExitCode {
    ExitCode { code, name, meaning, remedy }
}

/// The codes of `lockd` and `lockc`.
pub const LOCKD: [ExitCode; 9] = [
    row(DONE, "done", "the command succeeded", "go on"),
    row(
        FAILED,
        "failed",
        "something on this machine failed: a file, a terminal, the runtime",
        "read the message",
    ),
    row(
        USAGE,
        "wrong usage or invalid input",
        "wrong flags, names or documents, or no such lease or key",
        "correct the command",
    ),
    row(
        HELD,
        "held by another",
        "conflicting leases, or a deadlock cycle",
        "retry later, or wait with `--block`",
    ),
    row(
        FENCED,
        "fenced or not held",
        "the lease was released, revoked or taken over, or the document has another version",
        "stop the work under the lease; read again before the next write",
    ),
    row(
        EXPIRED,
        "expired",
        "the lease expired; `lockd run` lost its lease",
        "stop the work under the lease; acquire again",
    ),
    row(
        UNAVAILABLE,
        "unavailable",
        "no server could be reached or accept the request; nothing was applied",
        "retry later",
    ),
    row(
        DENIED,
        "denied",
        "a certificate is refused, or the identity lacks the role or right, is paused or at its quota",
        "read the message: renew or use another identity, or ask an operator",
    ),
    row(
        INDETERMINATE,
        "indeterminate (it may have happened)",
        "the request was sent and no response came",
        "read the state before repeating the command",
    ),
];

/// The word for an exit code in the output for programs, where the server sent no error code.
pub fn word(code: u8) -> &'static str {
    match code {
        USAGE => "usage",
        HELD => "held",
        FENCED => "fenced",
        EXPIRED => "expired",
        UNAVAILABLE => "unavailable",
        DENIED => "denied",
        INDETERMINATE => "indeterminate",
        _ => "failed",
    }
}

/// The exit code of a client error.
pub fn of_kind(kind: Kind) -> u8 {
    match kind {
        Kind::Held => HELD,
        Kind::Fenced => FENCED,
        Kind::Expired => EXPIRED,
        Kind::Unavailable => UNAVAILABLE,
        Kind::Denied => DENIED,
        Kind::Indeterminate => INDETERMINATE,
        Kind::Invalid => USAGE,
    }
}

/// The error classes of `jvs` with their meaning and remedy; [`ErrorClass::exit_code`] has the codes.
pub const JVS: [(ErrorClass, &str, &str); 11] = [
    (
        ErrorClass::LockConflict,
        "another session holds the lock",
        "retry later; an expired lock can be stolen with `jvs lock steal`",
    ),
    (
        ErrorClass::LockExpired,
        "the lease expired before the operation was done",
        "acquire again, and check the work since the last renewal",
    ),
    (ErrorClass::LockNotHeld, "the session does not hold the lock", "acquire it first"),
    (
        ErrorClass::FencingMismatch,
        "the session's fencing token is no longer the current one",
        "stop; another session has the worktree",
    ),
    (
        ErrorClass::ClockSkewExceeded,
        "a clock is further off than the policy allows",
        "correct the host's clock",
    ),
    (
        ErrorClass::ConsistencyUnavailable,
        "the tree changed while it was read, so no quiesced snapshot exists",
        "stop the writers and retry, or use `--consistency best_effort`",
    ),
    (ErrorClass::PartialSnapshot, "the snapshot was never completed", "use another snapshot"),
    (ErrorClass::Invalid, "wrong usage or invalid input", "correct the command"),
    (
        ErrorClass::NotFound,
        "the repository, worktree or snapshot does not exist",
        "check the name and `--repo`",
    ),
    (ErrorClass::Damaged, "stored data fails its checksum or cannot be parsed", "run `jvs doctor --strict`"),
    (ErrorClass::Io, "a filesystem operation failed", "read the message"),
];

#[cfg(test)]
mod tests;
