//! Errors, classified by what the caller should do.

use std::fmt;
use std::time::Duration;

use api::{Code, Refusal};

use crate::waiting::WaitStatus;

/// What the caller should do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A conflicting lease exists: wait, or do something else.
    Held,
    /// The caller's lease, version or etag is stale because another client acted: stop, or read again.
    Fenced,
    /// The lease expired: stop, and acquire again.
    Expired,
    /// The call may or may not have been applied: check the state before retrying.
    Indeterminate,
    /// The call was not applied; a later retry may succeed.
    Unavailable,
    /// The caller lacks the right or the quota.
    Denied,
    /// The request is invalid; retrying it unchanged cannot succeed.
    Invalid,
}

/// A call that failed.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    detail: String,
    refusal: Option<Box<Refusal>>,
    /// What the caller waited for, if the block time is over.
    waited_for: Option<Box<WaitStatus>>,
    /// An earlier attempt of the same call may have been applied.
    pub(crate) ambiguous: bool,
}

impl Error {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Error {
        Error { kind, detail: detail.into(), refusal: None, waited_for: None, ambiguous: false }
    }

    pub(crate) fn refused(refusal: Refusal) -> Error {
        let kind = kind_of(refusal.error);
        let detail = refusal.to_string();
        Error { refusal: Some(Box::new(refusal)), ..Error::new(kind, detail) }
    }

    pub(crate) fn with_kind(self, kind: Kind) -> Error {
        Error { kind, ..self }
    }

    /// Records whether an earlier attempt of the same call may have been applied.
    pub(crate) fn after(self, ambiguous: bool) -> Error {
        Error { ambiguous, ..self }
    }

    pub(crate) fn timed_out_waiting_with(self, status: WaitStatus) -> Error {
        let waited = Duration::from_millis(u64::try_from(status.waited.as_millis()).unwrap_or(u64::MAX));
        let detail = format!("{}; gave up after {waited:?}", self.detail);
        Error { detail, waited_for: Some(Box::new(status)), ..self }
    }

    /// What the caller waited for until its block time was over; `None` if it did not wait, or was refused for another reason.
    pub fn timed_out_waiting(&self) -> Option<&WaitStatus> {
        self.waited_for.as_deref()
    }

    /// What the caller should do.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Adds a note to the text.
    pub(crate) fn with_note(self, note: &str) -> Error {
        Error { detail: format!("{}; {note}", self.detail), ..self }
    }

    /// The server's refusal, if the server sent one.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_deref()
    }

    /// The server's error code, if it sent one.
    pub fn code(&self) -> Option<Code> {
        self.refusal().map(|refusal| refusal.error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        match self.kind {
            Kind::Indeterminate => f.write_str("; it may have been applied: check before retrying"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

fn kind_of(code: Code) -> Kind {
    match code {
        Code::Waiting | Code::Deadlock | Code::AlreadyHeld => Kind::Held,
        Code::NotHeld
        | Code::LeaseRevoked
        | Code::StaleEpoch
        | Code::FencingMismatch
        | Code::VersionConflict
        | Code::EtagMismatch => Kind::Fenced,
        Code::LeaseExpired | Code::Retired => Kind::Expired,
        Code::Throttled | Code::Unavailable | Code::Draining | Code::NoSpace | Code::Moved => {
            Kind::Unavailable
        }
        Code::Unauthenticated | Code::Forbidden | Code::QuotaExceeded => Kind::Denied,
        Code::InvalidBody
        | Code::InvalidKey
        | Code::InvalidTtl
        | Code::InvalidJson
        | Code::MissingKey
        | Code::MissingLeaseId
        | Code::NotFound
        | Code::MethodNotAllowed
        | Code::InvalidState
        | Code::DocumentTooLarge
        | Code::InvalidRange
        | Code::IdempotencyMismatch => Kind::Invalid,
    }
}
