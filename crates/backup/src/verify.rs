//! Verifies a backup: every byte against its hash, and the state that a server would recover from it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use store::disk::StoreView;
use system::hex;

use crate::archive;
use crate::error::BackupError;
use crate::manifest::{FileEntry, Manifest, NAME, STORE, ShardEntry};
use crate::pace::{Pace, Progress};
use crate::recovered::{check_documents, recover_shard};

const PART: usize = 1 << 20;

/// Verifies a backup: a directory, or an archive, which is unpacked beside itself for that.
pub fn verify(path: &Path, progress: &dyn Progress) -> Result<Manifest, BackupError> {
    if path.is_file() {
        let unpacked = archive::unpack_beside(path, progress)?;
        return verify_directory(&unpacked.path, &Pace::unlimited(progress));
    }
    verify_directory(path, &Pace::unlimited(progress))
}

/// Verifies a backup in a directory.
pub(crate) fn verify_directory(dir: &Path, pace: &Pace<'_>) -> Result<Manifest, BackupError> {
    let manifest = Manifest::read(dir)?;
    pace.begin("verifying", manifest.bytes());
    for file in &manifest.files {
        verify_file(dir, file, pace)?;
    }
    check_no_others(dir, &manifest)?;
    verify_store(&dir.join(STORE), &manifest, pace)?;
    Ok(manifest)
}

/// Recovers every shard of a store, and compares it with the manifest. Reads every document.
pub(crate) fn verify_store(store: &Path, manifest: &Manifest, pace: &Pace<'_>) -> Result<(), BackupError> {
    let view = StoreView::open(store)?;
    view.check_map()?;
    check_key(&view, store)?;
    let shards = u32::try_from(manifest.shards.len()).unwrap_or(u32::MAX);
    if (view.file().shards, format!("{:032x}", view.file().store_id)) != (shards, manifest.store_id.clone()) {
        return Err(BackupError::Damaged("the backup is of another store than its manifest says".into()));
    }
    pace.begin("recovering", manifest.bytes());
    for expected in &manifest.shards {
        verify_shard(&view, expected, manifest, pace)?;
    }
    Ok(())
}

fn verify_shard(
    view: &StoreView,
    expected: &ShardEntry,
    manifest: &Manifest,
    pace: &Pace<'_>,
) -> Result<(), BackupError> {
    let recovered = recover_shard(view, expected.shard, pace)?;
    let mut found = ShardEntry::of(expected.shard, &recovered);
    if manifest.lockd_version != env!("CARGO_PKG_VERSION") {
        // Another version may compute it otherwise.
        found.content_digest.clone_from(&expected.content_digest);
    }
    if found != *expected {
        return Err(BackupError::Damaged(format!(
            "the backup leads to another state than the one it was taken from; use another backup, and report this: \
             expected={expected:?} found={found:?}"
        )));
    }
    if let Some(damage) = check_documents(view, expected.shard, &recovered.kernel, pace)?.first() {
        return Err(BackupError::Damaged(format!(
            "a document of the backup cannot be read: {}; use another backup: key={} namespace={}",
            damage.what, damage.key, damage.namespace
        )));
    }
    Ok(())
}

pub(crate) fn check_key(view: &StoreView, store: &Path) -> Result<(), BackupError> {
    let path = store.join("store.key");
    let key = fs::read(&path).map_err(|error| BackupError::io(&error, "reading a file", &path))?;
    let key = key.try_into().map_err(|_| {
        BackupError::Damaged(format!("not a store key, which has 32 bytes: file={}", path.display()))
    })?;
    Ok(view.check_key(&key)?)
}

/// Compares a file with its hash.
fn verify_file(dir: &Path, file: &FileEntry, pace: &Pace<'_>) -> Result<(), BackupError> {
    let path = file.below(dir).ok_or_else(|| outside(file))?;
    let mut hasher = blake3::Hasher::new();
    read_parts(&path, &mut |part| {
        hasher.update(part);
        pace.advance(part.len() as u64)
    })?;
    check_hash(file, &hasher)
}

pub(crate) fn check_hash(file: &FileEntry, hasher: &blake3::Hasher) -> Result<(), BackupError> {
    let matches = hasher.count() == file.bytes && hex::encode(hasher.finalize().as_bytes()) == file.blake3;
    if matches || planted!(BackupUnhashed) {
        return Ok(());
    }
    let what = "a file of the backup does not match its hash; use another backup: file=";
    Err(BackupError::Damaged(format!("{what}{}", file.path)))
}

pub(crate) fn outside(file: &FileEntry) -> BackupError {
    BackupError::Damaged(format!("the backup names a file outside of it; do not use it: file={}", file.path))
}

/// Reads a file of a backup in parts.
pub(crate) fn read_parts(
    path: &Path,
    on_part: &mut dyn FnMut(&[u8]) -> Result<(), BackupError>,
) -> Result<(), BackupError> {
    let failed = |error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let what = "a file of the backup is missing; use another backup: file=";
            BackupError::Damaged(format!("{what}{}", path.display()))
        }
        _ => BackupError::io(error, "reading a file", path),
    };
    let mut file = fs::File::open(path).map_err(|error| failed(&error))?;
    let mut part = vec![0; PART];
    loop {
        match file.read(&mut part).map_err(|error| failed(&error))? {
            0 => return Ok(()),
            read => on_part(&part[..read])?,
        }
    }
}

/// Fails if the backup has a file that the manifest does not name.
fn check_no_others(dir: &Path, manifest: &Manifest) -> Result<(), BackupError> {
    let named: BTreeSet<&str> = manifest.files.iter().map(|file| file.path.as_str()).chain([NAME]).collect();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(next) = dirs.pop() {
        let failed = |error: io::Error| BackupError::io(&error, "listing", &next);
        for entry in fs::read_dir(&next).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            if entry.file_type().map_err(failed)?.is_dir() {
                dirs.push(path);
                continue;
            }
            let relative = path.strip_prefix(dir).ok().and_then(Path::to_str);
            if relative.is_none_or(|relative| !named.contains(relative)) {
                let what =
                    "the backup contains a file that its manifest does not name; use another backup: file=";
                return Err(BackupError::Damaged(format!("{what}{}", path.display())));
            }
        }
    }
    Ok(())
}
