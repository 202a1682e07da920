//! Errors of fenced writes, classified by what the caller should do.

use std::fmt;

use crate::token::Token;

/// A write that was not applied, or not certainly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A newer token has written; this write was not applied. The caller no longer holds the lease and must stop.
    Stale {
        /// The newest token, if the resource reports it.
        current: Option<Token>,
    },
    /// The write may have been applied, or may be applied later, under its token. It is safe to retry.
    Indeterminate(String),
    /// The write was not applied; a later retry may succeed.
    Unavailable(String),
    /// The write was not applied, and cannot succeed unchanged.
    Invalid(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Stale { current: Some(current) } => {
                write!(f, "a newer holder has written; stop, and acquire again: current={current}")
            }
            Error::Stale { current: None } => {
                f.write_str("a newer holder has written; stop, and acquire again")
            }
            Error::Indeterminate(what) => {
                write!(f, "{what}; it may have been applied: retrying the same write is safe")
            }
            Error::Unavailable(what) | Error::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
