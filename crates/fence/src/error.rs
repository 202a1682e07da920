//! Why a write was not done, by what the caller has to do about it.

use std::fmt;

use crate::token::Token;

/// A write that was not done, or not certainly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A newer token has written, and nothing of this write was applied: the caller holds the lease no more. Stop.
    Stale {
        /// The newest token, where the resource tells it.
        current: Option<Token>,
    },
    /// It may have happened, or may happen yet, under its token. The same write may be tried again.
    Indeterminate(String),
    /// It did not happen, and may work later.
    Unavailable(String),
    /// It did not happen, and cannot work like this.
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
                write!(f, "{what}; it may have happened: the same write may be tried again")
            }
            Error::Unavailable(what) | Error::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}
