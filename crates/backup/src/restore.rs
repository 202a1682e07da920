//! Makes a store of a backup.
//!
//! **Invariant.** The target does not exist, or is an empty directory, until every file was compared with its hash and the
//! restored copy was recovered, from the device, to the state that the backup was taken from. Then it appears whole.
//!
//! **Fencing tokens** of the restored store still only grow. Its next start takes an LSN above that of the last record, and
//! at least the wall clock in microseconds. The lost store did the same, and no store logs a record per microsecond: so
//! every token that it has issued since the backup is below, if the clock is not behind the lost server's. A clock that is
//! behind the backup itself is certainly wrong, and is refused.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use store::disk::CopiedFile;

use crate::archive;
use crate::error::BackupError;
use crate::manifest::{FileEntry, Manifest, STORE};
use crate::pace::{Pace, Progress};
use crate::staging::Staging;
use crate::verify::{check_hash, outside, read_parts, verify_store};

/// How to restore.
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// The wall clock, in milliseconds since 1970.
    pub now_unix_ms: u64,
}

/// A restored store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The backup.
    pub manifest: Manifest,
    /// The user that owns the files now, if root has restored for another user.
    pub owner: Option<u32>,
}

/// Restores a backup, a directory or an archive, into a store directory that does not exist or is empty.
pub fn restore(
    from: &Path,
    target: &Path,
    options: &RestoreOptions,
    progress: &dyn Progress,
) -> Result<Restored, BackupError> {
    restore_at(from, target, *options, &Pace::unlimited(progress))
}

/// The same at a pace, beside a server.
pub(crate) fn restore_at(
    from: &Path,
    target: &Path,
    options: RestoreOptions,
    pace: &Pace<'_>,
) -> Result<Restored, BackupError> {
    let staging = Staging::new(target, true)?;
    let manifest = if from.is_file() {
        let unpacked = archive::unpack(from, &staging.path, pace)?;
        check_clock(&unpacked, options.now_unix_ms)?;
        flatten(&staging.path)?;
        unpacked
    } else {
        let manifest = Manifest::read(from)?;
        check_clock(&manifest, options.now_unix_ms)?;
        copy(from, &manifest, &staging.path, pace)?;
        manifest
    };
    verify_store(&staging.path, &manifest, pace)?;
    let owner = hand_over(&staging.path, target)?;
    staging.publish()?;
    Ok(Restored { manifest, owner })
}

fn check_clock(manifest: &Manifest, now_unix_ms: u64) -> Result<(), BackupError> {
    if now_unix_ms >= manifest.created_at_unix_ms || planted!(RestoreClockIgnored) {
        return Ok(());
    }
    Err(BackupError::Refused(format!(
        "the wall clock is behind the time of the backup, so fencing tokens could be issued twice; set the clock first: \
         now_unix_ms={now_unix_ms} backup_unix_ms={}",
        manifest.created_at_unix_ms
    )))
}

/// Copies the files of a backup directory, each compared with its hash.
fn copy(from: &Path, manifest: &Manifest, to: &Path, pace: &Pace<'_>) -> Result<(), BackupError> {
    pace.begin("restoring", manifest.bytes());
    for file in &manifest.files {
        let source = file.below(from).ok_or_else(|| outside(file))?;
        copy_file(&source, file, &to.join(in_store(file)), pace)?;
    }
    Ok(())
}

/// The path of a file in the store.
fn in_store(file: &FileEntry) -> PathBuf {
    Path::new(&file.path).strip_prefix(STORE).expect("the path was checked").to_path_buf()
}

fn copy_file(source: &Path, file: &FileEntry, to: &Path, pace: &Pace<'_>) -> Result<(), BackupError> {
    let (mut copy, mut hasher) = (CopiedFile::create(to)?, blake3::Hasher::new());
    read_parts(source, &mut |part| {
        hasher.update(part);
        copy.write(part)?;
        pace.advance(part.len() as u64)
    })?;
    copy.finish()?;
    check_hash(file, &hasher)
}

/// An unpacked backup becomes its store.
fn flatten(staged: &Path) -> Result<(), BackupError> {
    let doing = |error: std::io::Error| BackupError::io(&error, "renaming", staged);
    fs::remove_file(staged.join(crate::manifest::NAME)).map_err(doing)?;
    // `store` is also the name of a file in the store.
    let aside = staged.join("unpacked");
    fs::rename(staged.join(STORE), &aside).map_err(doing)?;
    for entry in fs::read_dir(&aside).map_err(doing)? {
        let entry = entry.map_err(doing)?;
        fs::rename(entry.path(), staged.join(entry.file_name())).map_err(doing)?;
    }
    fs::remove_dir(&aside).map_err(doing)
}

/// Restored by root, the files belong to the owner of the directory that they go into: the server's user.
fn hand_over(staged: &Path, target: &Path) -> Result<Option<u32>, BackupError> {
    let parent = std::path::absolute(target).ok().and_then(|path| Some(path.parent()?.to_path_buf()));
    let parent = parent.expect("it was resolved before");
    let owner = fs::metadata(&parent).map_err(|error| BackupError::io(&error, "reading a file", &parent))?;
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || owner.uid() == 0 {
        return Ok(None);
    }
    let mut paths = vec![staged.to_path_buf()];
    while let Some(path) = paths.pop() {
        let failed = |error: std::io::Error| BackupError::io(&error, "changing the owner", &path);
        chown(&path, Some(owner.uid()), Some(owner.gid())).map_err(failed)?;
        if path.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed)? {
                paths.push(entry.map_err(failed)?.path());
            }
        }
    }
    Ok(Some(owner.uid()))
}
