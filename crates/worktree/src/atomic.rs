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
    let temp = temp_name(env, dir);
    env.fs.write_new(&temp, bytes, FILE_MODE, Durability::Synced)?;
    let linked = env.fs.link(&temp, path);
    let created = match linked {
        Ok(()) => Ok(CreateOutcome::Created),
        // A retransmitted `link` can fail although it succeeded; the bytes show whether the file is ours.
        Err(cause) => match env.fs.read(path) {
            Ok(found) if found == bytes => Ok(CreateOutcome::Created),
            _ if cause.kind() == io::ErrorKind::AlreadyExists => Ok(CreateOutcome::NameTaken),
            _ => Err(cause),
        },
    };
    let removed = env.fs.remove_file(&temp);
    if created.as_ref().is_ok_and(|created| *created == CreateOutcome::Created) {
        env.fs.sync_dir(parent(path))?;
    }
    // An orphan is harmless, and `doctor` finds it; a failure to remove it must not hide the outcome.
    drop(removed);
    created
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
