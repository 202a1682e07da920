//! Why a store cannot be opened.
//!
//! **What is absent.** Knowledge of any kind of store: every kind returns this type.

use std::fmt;
use std::io;
use std::path::PathBuf;

use engine::OpenError;
use store::StoreError;

/// Why a store cannot be opened.
#[derive(Debug)]
pub enum BootError {
    /// Not the URL of a store.
    Url {
        /// The text that was read.
        text: String,
        /// The syntax of every kind of store.
        syntaxes: String,
    },
    /// The store is damaged, locked, or cannot be read.
    Store(StoreError),
    /// A new store does not fit on its filesystem.
    DiskTooSmall {
        /// The directory of the store.
        path: PathBuf,
        /// The free space that it needs, in bytes.
        needed: u64,
        /// The free space that there is, in bytes.
        free: u64,
    },
    /// The file of the store key is missing.
    NoKey(PathBuf),
    /// The file of a store key that is kept outside of the store is missing.
    NoOutsideKey(PathBuf),
    /// The file of the store key has another length than 32 bytes.
    BadKey(PathBuf),
    /// A shard cannot be started.
    Shard(u32, OpenError),
    /// The log of a shard has no space for its first record.
    NoSpace(u32, StoreError),
    /// A file or directory of secrets that every user may access.
    Exposed(String),
    /// A file or directory cannot be read or written.
    Io(PathBuf, io::Error),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::Url { text, syntaxes } => write!(f, "not a store URL; use {syntaxes}: store={text}"),
            BootError::Store(error) => error.fmt(f),
            BootError::DiskTooSmall { path, needed, free } => write!(
                f,
                "not enough free disk space for a new store; free some, or name another directory with --data-dir or \
                 --store: path={} needed_bytes={needed} free_bytes={free}",
                path.display()
            ),
            BootError::NoKey(path) => write!(
                f,
                "the store key is missing, and without it no credential can be verified; copy it from a \
                 backup, where it is store/store.key: path={}",
                path.display()
            ),
            BootError::NoOutsideKey(path) => {
                let path = path.display();
                write!(
                    f,
                    "the file of the store key does not exist; copy it to every server of the store, or create it for a \
                     new one with `(umask 077 && head -c 32 /dev/urandom > {path})`: setting=--store-key-file path={path}"
                )
            }
            BootError::BadKey(path) => {
                write!(
                    f,
                    "not a store key, which has 32 bytes; copy it from a backup, where it is store/store.key: path={}",
                    path.display()
                )
            }
            BootError::Shard(shard, error) => write!(f, "shard {shard}: {error}"),
            BootError::NoSpace(shard, error) => {
                write!(
                    f,
                    "there is too little free disk space for the log; free some, and start again: {error} shard={shard}"
                )
            }
            BootError::Exposed(text) => f.write_str(text),
            BootError::Io(path, error) => {
                write!(f, "{}: {error}: path={}", io_advice(error), path.display())
            }
        }
    }
}

/// What to do about a file or directory that cannot be read or written.
fn io_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the server may not access its files; run it as the user that owns them"
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "a file is where the server needs a directory; name another one with --data-dir or --store"
        }
        _ => "a file or directory of the server cannot be read or written",
    }
}

impl std::error::Error for BootError {}

impl From<StoreError> for BootError {
    fn from(error: StoreError) -> BootError {
        BootError::Store(error)
    }
}
