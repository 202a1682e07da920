//! Why a backup cannot be taken, verified or restored.

use std::fmt;
use std::io;
use std::path::Path;

use engine::internals::recovery::RecoveryError;
use store::StoreError;

/// Why a backup cannot be taken, verified or restored.
#[derive(Debug)]
pub enum BackupError {
    /// The request cannot be carried out, and nothing was changed: the target exists, or a value is invalid.
    Refused(String),
    /// The backup or the store is damaged, or a copy does not lead to the state of its original.
    Damaged(String),
    /// The store or the target could not be read or written.
    Store(StoreError),
}

impl BackupError {
    /// A failure of the operating system, with the operation and the file.
    pub(crate) fn io(error: &io::Error, doing: &str, path: &Path) -> BackupError {
        BackupError::Store(StoreError::io(error, format_args!("{doing}: file={}", path.display())))
    }

    /// The same failure, with a note on what it leaves behind.
    pub(crate) fn noted(self, note: &str) -> BackupError {
        match self {
            BackupError::Refused(what) => BackupError::Refused(format!("{what}; {note}")),
            BackupError::Damaged(what) => BackupError::Damaged(format!("{what}; {note}")),
            BackupError::Store(error) => {
                let what = format!("{}; {note}", error.what);
                BackupError::Store(StoreError { what, ..error })
            }
        }
    }

    /// A failure to recover a shard.
    pub(crate) fn recovery(shard: u32, error: RecoveryError) -> BackupError {
        match error {
            RecoveryError::Store(error) => BackupError::Store(error),
            other => BackupError::Damaged(format!("shard {shard}: {other}")),
        }
    }
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::Refused(what) | BackupError::Damaged(what) => f.write_str(what),
            BackupError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BackupError {}

impl From<StoreError> for BackupError {
    fn from(error: StoreError) -> BackupError {
        BackupError::Store(error)
    }
}
