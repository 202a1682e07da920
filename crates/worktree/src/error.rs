//! Errors, classified by how the caller has to react.
//!
//! The first seven classes are those of the JVS locking and consistency specification, in its order; the rest
//! are common to all tools. The detail says what happened and what to do next. Values for programs
//! (`stealable_at`) are also in `facts`, so that no caller has to parse prose.

use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of error; callers react differently to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Another session holds the lock.
    LockConflict,
    /// The lease expired before the operation was done; the lock is not stolen yet.
    LockExpired,
    /// The caller does not hold the lock.
    LockNotHeld,
    /// The caller's fencing token is no longer the current one.
    FencingMismatch,
    /// The clock skew exceeds the policy's bound.
    ClockSkewExceeded,
    /// The tree changed while it was read, so the snapshot would not be quiesced.
    ConsistencyUnavailable,
    /// The snapshot exists, but is not published.
    PartialSnapshot,
    /// The request is invalid.
    Invalid,
    /// The repository, worktree or snapshot does not exist.
    NotFound,
    /// A stored file is missing or altered.
    Damaged,
    /// A filesystem call failed.
    Io,
}

impl ErrorClass {
    /// The name that scripts match on.
    pub fn name(self) -> &'static str {
        match self {
            Self::LockConflict => "E_LOCK_CONFLICT",
            Self::LockExpired => "E_LOCK_EXPIRED",
            Self::LockNotHeld => "E_LOCK_NOT_HELD",
            Self::FencingMismatch => "E_FENCING_MISMATCH",
            Self::ClockSkewExceeded => "E_CLOCK_SKEW_EXCEEDED",
            Self::ConsistencyUnavailable => "E_CONSISTENCY_UNAVAILABLE",
            Self::PartialSnapshot => "E_PARTIAL_SNAPSHOT",
            Self::Invalid => "E_INVALID",
            Self::NotFound => "E_NOT_FOUND",
            Self::Damaged => "E_DAMAGED",
            Self::Io => "E_IO",
        }
    }

    /// The exit code of a command that fails with this class: 20 to 26 in the specification's order.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::LockConflict => 20,
            Self::LockExpired => 21,
            Self::LockNotHeld => 22,
            Self::FencingMismatch => 23,
            Self::ClockSkewExceeded => 24,
            Self::ConsistencyUnavailable => 25,
            Self::PartialSnapshot => 26,
            Self::Invalid => 2,
            Self::NotFound | Self::Damaged | Self::Io => 1,
        }
    }
}

/// An error.
#[derive(Clone, Debug)]
pub struct Error {
    class: ErrorClass,
    detail: String,
    facts: Map<String, Value>,
}

impl Error {
    /// An error of `class`; `detail` says what happened and what to do next.
    pub fn new(class: ErrorClass, detail: impl Into<String>) -> Self {
        Self { class, detail: detail.into(), facts: Map::new() }
    }

    /// The filesystem call `action` on `path` failed.
    pub fn io(action: &str, path: &Path, cause: &io::Error) -> Self {
        let error =
            Self::new(ErrorClass::Io, format!("could not {action}: {cause}: path={}", path.display()));
        if cause.kind() == io::ErrorKind::ReadOnlyFilesystem { error.with("read_only", true) } else { error }
    }

    /// The request is invalid; `detail` says how to correct it.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ErrorClass::Invalid, detail)
    }

    /// The requested object does not exist.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ErrorClass::NotFound, detail)
    }

    /// The file at `path` is missing or altered.
    pub fn damaged(path: &Path, cause: impl fmt::Display) -> Self {
        Self::new(
            ErrorClass::Damaged,
            format!("damaged: {cause}; run `jvs doctor --strict`: path={}", path.display()),
        )
    }

    /// The same with more detail.
    #[must_use]
    pub fn and(mut self, detail: &str) -> Self {
        self.detail = format!("{detail}: {}", self.detail);
        self
    }

    /// Adds a value for programs.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).expect("facts are plain numbers and strings");
        self.facts.insert(name.to_owned(), value);
        self
    }

    /// The kind of error.
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// What happened, and what to do next.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Values for programs, by name.
    pub fn facts(&self) -> &Map<String, Value> {
        &self.facts
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class.name(), self.detail)
    }
}

impl std::error::Error for Error {}

/// Adds action and path to a failed filesystem call.
pub(crate) trait ErrorContext<T> {
    /// Converts the failure into an [`Error`] that names the action and the path.
    fn doing(self, action: &str, path: &Path) -> Result<T>;
}

impl<T> ErrorContext<T> for io::Result<T> {
    fn doing(self, action: &str, path: &Path) -> Result<T> {
        self.map_err(|cause| Error::io(action, path, &cause))
    }
}

impl<T> ErrorContext<T> for rustix::io::Result<T> {
    fn doing(self, action: &str, path: &Path) -> Result<T> {
        self.map_err(|cause| Error::io(action, path, &cause.into()))
    }
}
