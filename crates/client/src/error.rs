//! Why something failed, by what the caller has to do about it.

use std::fmt;

use api::{Code, Refusal};

/// What a caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Others hold it: wait, or do something else.
    Held,
    /// What the caller holds or knows is out of date, by another's doing: stop, or read again.
    Fenced,
    /// The lease ran out: stop, and acquire again.
    Expired,
    /// It may have happened, or not: look before doing it again.
    Indeterminate,
    /// It did not happen, and may work later.
    Unavailable,
    /// It is not allowed.
    Denied,
    /// It cannot work like this.
    Invalid,
}

/// A call that failed.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    detail: String,
    refusal: Option<Box<Refusal>>,
    /// An earlier try of the same call may have been applied.
    pub(crate) ambiguous: bool,
}

impl Error {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Error {
        Error { kind, detail: detail.into(), refusal: None, ambiguous: false }
    }

    pub(crate) fn refused(refusal: Refusal) -> Error {
        let kind = kind_of(refusal.error);
        Error { kind, detail: refusal.to_string(), refusal: Some(Box::new(refusal)), ambiguous: false }
    }

    pub(crate) fn with_kind(self, kind: Kind) -> Error {
        Error { kind, ..self }
    }

    /// Was an earlier try of the same call one that may have been applied?
    pub(crate) fn after(self, ambiguous: bool) -> Error {
        Error { ambiguous, ..self }
    }

    /// What to do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the server said, if it was the server.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_deref()
    }

    /// The server's code, if it was the server.
    pub fn code(&self) -> Option<Code> {
        self.refusal().map(|refusal| refusal.error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)?;
        match self.kind {
            Kind::Indeterminate => f.write_str("; it may have happened: look before doing it again"),
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
        Code::Throttled | Code::Unavailable | Code::Draining | Code::NoSpace => Kind::Unavailable,
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
