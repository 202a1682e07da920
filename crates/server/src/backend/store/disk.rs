//! A store in a directory: `disk:///path`. Its key is a file beside the store's own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernel::Shard;
use store::LogStore;
use store::disk::{LockedDir, LogOptions, StoreFile};
use system::file;

use super::{StoreBackend, StoreParts, StoreUrl, TornTail, outside_key, random_bytes, read_key};
use crate::backend::boot_error::BootError;
use crate::backend::disk_space::{DiskSpace, needed_by_new_store};
use crate::backend::open_options::OpenOptions;
use crate::backend::private_files::{check_private, private_dir};

const KEY_FILE: &str = "store.key";

/// A store in a directory.
pub(super) struct DiskBackend {
    path: PathBuf,
}

impl DiskBackend {
    pub(super) fn new(path: PathBuf) -> DiskBackend {
        DiskBackend { path }
    }

    /// Parses the rest of `disk://`: an absolute path.
    pub(super) fn parse(location: &str) -> Option<StoreUrl> {
        location.starts_with('/').then(|| StoreUrl::disk(location))
    }
}

impl StoreBackend for DiskBackend {
    fn open(&self, options: &OpenOptions, random: &dyn Fn(&mut [u8])) -> Result<StoreParts, BootError> {
        let path = &self.path;
        let key_path = options.store_key_file.clone().unwrap_or_else(|| path.join(KEY_FILE));
        private_dir(path)?;
        let locked = LockedDir::lock(path, options.allow_network)?;
        if locked.is_new()? {
            check_space(path, options.shards)?;
            if options.store_key_file.is_none() {
                create_key(&key_path, random)?;
            }
        }
        check_private(&key_path)?;
        let key = match &options.store_key_file {
            Some(path) => outside_key(path)?,
            None => read_key(&key_path)?,
        };
        let fresh = StoreFile { store_id: u128::from_le_bytes(random_bytes(random)), shards: options.shards };
        let dir = locked.open(fresh, key.as_bytes())?;
        let blobs = Arc::new(dir.blobs()?);
        let (mut logs, mut torn_tails) = (Vec::<Box<dyn LogStore>>::new(), Vec::new());
        for number in 0..dir.file().shards {
            let (log, torn) = dir.log(number, LogOptions::SEGMENT_BYTES)?;
            logs.push(Box::new(log));
            torn_tails.extend(torn.map(|torn| torn_tail(Shard(number), torn)));
        }
        Ok(StoreParts {
            logs,
            shared: None,
            blobs,
            key,
            map: dir.map().clone(),
            torn_tails,
            object_requests: None,
            guard: Box::new(dir),
        })
    }

    fn url(&self) -> String {
        format!("disk://{}", self.path.display())
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

/// Refuses a filesystem on which a new store could not grant a lease. One that does not know its free space passes.
fn check_space(path: &Path, shards: u32) -> Result<(), BootError> {
    let needed = needed_by_new_store(shards);
    match DiskSpace::of(path) {
        Ok(DiskSpace { size, free }) if size > 0 && free < needed => {
            Err(BootError::DiskTooSmall { path: path.to_path_buf(), needed, free })
        }
        _ => Ok(()),
    }
}

fn torn_tail(shard: Shard, torn: store::disk::TornTail) -> TornTail {
    let store::disk::TornTail { file, offset, seq, lsns } = torn;
    TornTail { shard, file, offset, seq, lsns }
}

/// Creates the store key. It comes before the store itself, so that every store has a key; a crash in between leaves a
/// key that the next start uses.
fn create_key(path: &Path, random: &dyn Fn(&mut [u8])) -> Result<(), BootError> {
    let is_complete = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == 32);
    if is_complete {
        return Ok(());
    }
    let failed = |error| BootError::Io(path.to_path_buf(), error);
    file::replace(path, &random_bytes::<32>(random), file::OWNER_ONLY).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{LsnRange, Seq};

    fn open(dir: &Path) -> StoreParts {
        let options = OpenOptions { shards: 2, ..OpenOptions::default() };
        DiskBackend::new(dir.to_path_buf()).open(&options, &|bytes| bytes.fill(7)).expect("a store")
    }

    /// A torn tail was cut and not reported: an operator never learnt that a crash had interrupted a batch.
    #[test]
    fn a_torn_tail_is_cut_once_and_reported_with_its_shard_file_and_lsns() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut opened = open(dir.path());
        assert_eq!(opened.torn_tails, []);
        let log = &mut opened.logs[1];
        let seq = log.bounds().next;
        log.append(seq, LsnRange::new(1, 2), b"acknowledged").expect("space");
        log.append(Seq(seq.0 + 1), LsnRange::new(3, 5), &[7; 2000]).expect("space");
        drop(opened);
        let segments = std::fs::read_dir(dir.path().join("log/1")).expect("the log of shard 1");
        let segments: Vec<PathBuf> = segments.map(|entry| entry.expect("readable").path()).collect();
        let [file] = &segments[..] else { panic!("one segment: {segments:?}") };
        let mut bytes = std::fs::read(file).expect("readable");
        // Two of the batch's sectors never reached the disk.
        bytes[1024..2048].fill(0);
        std::fs::write(file, bytes).expect("writable");

        let reopened = open(dir.path());
        let [torn] = &reopened.torn_tails[..] else { panic!("one torn tail: {:?}", reopened.torn_tails) };
        assert_eq!((torn.shard, &torn.file, torn.seq), (Shard(1), file, Seq(seq.0 + 1)));
        assert_eq!(torn.lsns, Some(LsnRange::new(3, 5)));
        drop(reopened);
        assert_eq!(open(dir.path()).torn_tails, [], "it is cut");
    }

    #[test]
    fn another_open_is_refused_until_the_guard_is_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let StoreParts { guard, .. } = open(dir.path());
        let again = DiskBackend::new(dir.path().to_path_buf()).open(&OpenOptions::default(), &|_| {});
        assert!(matches!(again, Err(BootError::Store(_))));
        drop(guard);
        open(dir.path());
    }
}
