//! Atomic creation and replacement of records.
//!
//! **Invariant.** A name that readers open is only created by `link` or replaced by `rename`, from a
//! temporary file that was written and synced before. So a reader sees nothing or the whole record, also
//! after a power cut.
//!
//! A temporary name contains its maker (`<pid space>.<pid>.<start time>.<random>`), so that `doctor` can
//! distinguish an orphan from a file in use.

use std::io;
use std::path::{Path, PathBuf};

use crate::env::Env;
use crate::fs::Durability;
use crate::holder::Maker;
use crate::ids::random_hex;

/// Permission bits of records, before the user's umask.
pub(crate) const FILE_MODE: u32 = 0o666;
/// Permission bits of directories, before the user's umask.
pub(crate) const DIR_MODE: u32 = 0o777;

/// Permission bits of a directory until its final ones are set.
pub(crate) const OWNER_ONLY: u32 = 0o700;

/// The outcome of creating a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateOutcome {
    /// The file holds our bytes.
    Created,
    /// Another process created the name first.
    NameTaken,
}

/// Creates `path` with `bytes` through a temporary file in `dir`, unless the name exists. Durable once
/// created.
pub(crate) fn create(env: &Env, dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<CreateOutcome> {
    prepare(env, dir, bytes)?.create(env, path).map_err(CreateError::into_cause)
}

/// A record under a temporary name, durable, that readers cannot see yet.
pub(crate) struct PreparedRecord<'a> {
    temp: PathBuf,
    bytes: &'a [u8],
}

/// Why a prepared record could not be created.
pub(crate) struct CreateError {
    /// The cause.
    pub(crate) cause: io::Error,
    /// Whether the name may have been created all the same.
    pub(crate) indeterminate: bool,
}

impl CreateError {
    fn into_cause(self) -> io::Error {
        self.cause
    }
}

/// Writes `bytes` to a temporary file in `dir`, which is removed if that fails.
pub(crate) fn prepare<'a>(env: &Env, dir: &Path, bytes: &'a [u8]) -> io::Result<PreparedRecord<'a>> {
    let temp = temp_name(env, dir);
    match env.fs.write_new(&temp, bytes, FILE_MODE, Durability::Synced) {
        Ok(_) => Ok(PreparedRecord { temp, bytes }),
        Err(cause) => {
            drop(env.fs.remove_file(&temp));
            Err(cause)
        }
    }
}

impl PreparedRecord<'_> {
    /// Gives the record the name `path`, unless it exists.
    pub(crate) fn create(self, env: &Env, path: &Path) -> Result<CreateOutcome, CreateError> {
        let created = match env.fs.link(&self.temp, path) {
            Ok(()) => Ok(CreateOutcome::Created),
            // A retransmitted `link` can fail although it succeeded; the bytes show whether the file is ours.
            Err(cause) => match env.fs.read(path) {
                Ok(found) if found == self.bytes => Ok(CreateOutcome::Created),
                _ if cause.kind() == io::ErrorKind::AlreadyExists => Ok(CreateOutcome::NameTaken),
                _ => Err(CreateError { indeterminate: !is_refusal(&cause), cause }),
            },
        };
        // An orphan is harmless, and `doctor` finds it; a failure to remove it must not hide the outcome.
        drop(env.fs.remove_file(&self.temp));
        if let Ok(CreateOutcome::Created) = created {
            env.fs.sync_dir(parent(path)).map_err(|cause| CreateError { cause, indeterminate: true })?;
        }
        created
    }
}

/// Whether the filesystem refused a call before it changed anything.
fn is_refusal(cause: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(cause.kind(), NotFound | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// Writes `bytes` to `path` through a temporary file in `dir`, replacing an existing file.
pub(crate) fn replace(
    env: &Env,
    dir: &Path,
    path: &Path,
    bytes: &[u8],
    durability: Durability,
) -> io::Result<()> {
    let temp = temp_name(env, dir);
    env.fs.write_new(&temp, bytes, FILE_MODE, durability)?;
    if let Err(cause) = env.fs.rename(&temp, path) {
        drop(env.fs.remove_file(&temp));
        return Err(cause);
    }
    match durability {
        Durability::Synced => env.fs.sync_dir(parent(path)),
        Durability::Lazy => Ok(()),
    }
}

/// A unique name in `dir`.
pub(crate) fn temp_name(env: &Env, dir: &Path) -> PathBuf {
    dir.join(format!("{}.{}", env.maker, random_hex(&*env.entropy, 8)))
}

/// Whether the process that created a temporary name has certainly ended; `None` if it is in another pid
/// space.
pub(crate) fn maker_is_gone(env: &Env, name: &str) -> Option<bool> {
    Maker::from_name(name)?.is_gone(&env.maker)
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().expect("every path here is below the repository's root")
}
