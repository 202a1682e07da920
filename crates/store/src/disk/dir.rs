//! The store directory: opened by one process at a time, and never on a network filesystem by accident.
//!
//! **Invariant.** Whoever finds the file `store` finds the key that signed it, and a map of slots: they are durable
//! before it. Everything here is written whole under another name, synced, renamed and its directory synced.
//!
//! **Conversion.** A store of format 1 becomes one of format 2 by two files: its map of slots is created, then `store` is
//! replaced. Logs, snapshots and blobs stay as they are: each batch and snapshot says in which format it is, and new ones
//! are written in the new format. A crash before the second step leaves a store of format 1 with a map that the next
//! attempt finds; so does every crash before the rename in that step.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::backup_lock::DeletionGuard;
use super::{DiskBlobs, DiskLog, LogOptions};
use crate::disk::TornTail;
use crate::fs::{Fs, RealFs};
use crate::port::{Damage, ErrorKind, StoreError};
use crate::private;
use crate::slot_map::SlotMap;
use crate::store_file::{Key, StoreFile, StoredFile, decode, encode, verifies};

const STORE: &str = "store";
const MAPS: &str = "map";
/// The number of the first map.
const FIRST_MAP: u64 = 1;

/// A store directory that no other process can open until this is dropped.
pub struct LockedDir {
    path: PathBuf,
    lock: File,
}

impl LockedDir {
    /// Creates the directory if there is none, and locks it.
    ///
    /// Refuses a directory that another process has open, and a network filesystem unless `allow_network` is
    /// set: those may not honour syncs or locks.
    pub fn lock(path: &Path, allow_network: bool) -> Result<LockedDir, StoreError> {
        LockedDir::lock_on(path, allow_network, filesystem_type)
    }

    /// Like [`LockedDir::lock`]; `type_of` returns the type of the filesystem of a path.
    fn lock_on(
        path: &Path,
        allow_network: bool,
        type_of: fn(&Path) -> io::Result<u64>,
    ) -> Result<LockedDir, StoreError> {
        let doing = |error: &io::Error| {
            StoreError::io(error, "opening the store").with(format_args!("path={}", path.display()))
        };
        RealFs.create_dir_durably(path).map_err(|error| doing(&error))?;
        if !allow_network && NETWORK_TYPES.contains(&type_of(path).map_err(|error| doing(&error))?) {
            let what = "the store directory is on a network filesystem; use a local disk, or allow it: path=";
            return Err(StoreError::new(ErrorKind::Refused, format!("{what}{}", path.display())));
        }
        let lock = private::file_options().write(true).create(true).truncate(false).open(path.join("lock"));
        let lock = lock.map_err(|error| doing(&error))?;
        match lock.try_lock() {
            Ok(()) => Ok(LockedDir { path: path.to_path_buf(), lock }),
            Err(TryLockError::WouldBlock) => Err(in_use(path, &lock)),
            Err(TryLockError::Error(error)) => Err(doing(&error)),
        }
    }

    /// Whether there is no store in the directory yet. A log without the file `store` is a damaged store, not a new one.
    pub fn is_new(&self) -> Result<bool, StoreError> {
        let path = self.path.join(STORE);
        let exists = path.try_exists().map_err(|error| reading(&error, &path))?;
        if !exists {
            check_no_log(&self.path)?;
        }
        Ok(!exists)
    }

    /// Opens the store, converts it to the present format, or creates it with the parameters in `fresh`. The key must be
    /// durable.
    pub fn open(self, fresh: StoreFile, key: &Key) -> Result<DiskDir, StoreError> {
        let LockedDir { path, lock } = self;
        let file = match read_store(&path)? {
            Some(StoredFile::Current(file, mac)) if verifies(file, mac, key) => file,
            Some(StoredFile::Current(..)) => return Err(wrong_key(&path)),
            Some(StoredFile::Legacy(file)) => {
                let map = SlotMap::of_format_1(file.shards).ok_or_else(|| inconvertible(file.shards))?;
                create(&path, file, &map, key)?;
                file
            }
            None => {
                check_no_log(&path)?;
                let map = SlotMap::ranges(fresh.shards).ok_or_else(|| too_many_shards(fresh.shards))?;
                create(&path, fresh, &map, key)?;
                fresh
            }
        };
        let map = checked_map(&path, file)?;
        let deletions = DeletionGuard::create(&path).map_err(|error| {
            StoreError::io(&error, "creating the backup lock").with(format_args!("path={}", path.display()))
        })?;
        Ok(DiskDir { path, file, map, deletions, _lock: lock })
    }
}

fn in_use(path: &Path, lock: &File) -> StoreError {
    let what = "another process has the store open; stop it first: path=";
    let pid = holder_pid(lock).map(|pid| format!(" pid={pid}")).unwrap_or_default();
    StoreError::new(ErrorKind::Refused, format!("{what}{}{pid}", path.display()))
}

/// The process that has locked a file, as Linux lists it; `None` where it does not, or if it is in another PID namespace.
fn holder_pid(lock: &File) -> Option<u32> {
    let inode = lock.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| holder_in(line, &inode))
}

/// The process id in a line such as `1: FLOCK  ADVISORY  WRITE 30998 fe:00:5677335 0 EOF`. The device is not compared:
/// filesystems with subvolumes list another one than `stat` has.
fn holder_in(line: &str, inode: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields.as_slice() else { return None };
    let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
    (file.rsplit(':').next() == Some(inode)).then_some(pid)
}

/// An open store. Locked against other processes until dropped.
pub struct DiskDir {
    path: PathBuf,
    file: StoreFile,
    map: SlotMap,
    deletions: DeletionGuard,
    _lock: File,
}

impl DiskDir {
    /// Locks a directory, and opens the store in it with its key, or creates it with the parameters in `fresh`.
    pub fn open(
        path: &Path,
        fresh: StoreFile,
        key: &Key,
        allow_network: bool,
    ) -> Result<DiskDir, StoreError> {
        LockedDir::lock(path, allow_network)?.open(fresh, key)
    }

    /// The parameters fixed at creation.
    pub fn file(&self) -> StoreFile {
        self.file
    }

    /// The map of slots with the highest number.
    pub fn map(&self) -> &SlotMap {
        &self.map
    }

    /// Opens the log of one shard, and reports a torn tail if it had to cut one off.
    pub fn log(
        &self,
        shard: u32,
        segment_bytes: u64,
    ) -> Result<(DiskLog<RealFs>, Option<TornTail>), StoreError> {
        assert!(shard < self.file.shards, "a store has as many logs as shards");
        let options = LogOptions { shard, store_id: self.file.store_id, segment_bytes };
        let dir = self.path.join("log").join(shard.to_string());
        DiskLog::open_guarded(RealFs, &dir, options, self.deletions.clone())
    }

    /// Opens the blobs.
    pub fn blobs(&self) -> Result<DiskBlobs<RealFs>, StoreError> {
        let blobs = DiskBlobs::open(RealFs, &self.path.join("blob"))?;
        Ok(blobs.guarded_by(self.deletions.clone()))
    }
}

/// A store that no server has open until this is dropped. Nothing is written.
pub struct UnusedStore {
    _lock: Option<File>,
}

impl UnusedStore {
    /// Fails if a process has the store open. A store that none has ever opened, such as a copy, has nothing to lock.
    pub fn lock(path: &Path) -> Result<UnusedStore, StoreError> {
        let name = path.join("lock");
        let lock = match File::open(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(UnusedStore { _lock: None }),
            opened => opened.map_err(|error| reading(&error, &name))?,
        };
        match lock.try_lock_shared() {
            Ok(()) => Ok(UnusedStore { _lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(in_use(path, &lock)),
            Err(TryLockError::Error(error)) => Err(reading(&error, &name)),
        }
    }
}

/// Creates the files of a store, in a directory that has its logs and blobs: the key, the map of slots, and last the
/// parameters.
pub fn create_store(dir: &Path, file: StoreFile, map: &SlotMap, key: &Key) -> Result<(), StoreError> {
    let created = private::create_dir(dir).and_then(|()| write_whole(dir, "store.key", key));
    created.map_err(|error| creating(&error, dir))?;
    create(dir, file, map, key)
}

/// The parameters in the file `store`, without verifying its key.
pub(super) fn read_parameters(dir: &Path) -> Result<Option<StoreFile>, StoreError> {
    read_store(dir).map(|file| file.map(StoredFile::parameters))
}

/// Fails if the map of slots is missing or damaged. A store of format 1 has none.
pub(super) fn check_map(dir: &Path) -> Result<(), StoreError> {
    match read_store(dir)? {
        Some(StoredFile::Current(file, _)) => checked_map(dir, file).map(drop),
        _ => Ok(()),
    }
}

/// Fails if the store was created with another key. A store of format 1 is bound to none.
pub(super) fn check_key(dir: &Path, key: &Key) -> Result<(), StoreError> {
    match read_store(dir)? {
        Some(StoredFile::Current(file, mac)) if !verifies(file, mac, key) => Err(wrong_key(dir)),
        _ => Ok(()),
    }
}

/// The map of slots, also of a store in the old format, which has none in a file.
pub(super) fn view_map(dir: &Path, file: StoreFile) -> Result<SlotMap, StoreError> {
    match read_store(dir)? {
        Some(StoredFile::Legacy(file)) => {
            SlotMap::of_format_1(file.shards).ok_or_else(|| inconvertible(file.shards))
        }
        _ => checked_map(dir, file),
    }
}

fn checked_map(dir: &Path, file: StoreFile) -> Result<SlotMap, StoreError> {
    let map = read_map(dir)?;
    if map.shards() != file.shards {
        let what = "the map of slots is of another number of shards";
        return Err(Damage { file: dir.join(MAPS), offset: 12, what }.into());
    }
    Ok(map)
}

fn read_store(dir: &Path) -> Result<Option<StoredFile>, StoreError> {
    let path = dir.join(STORE);
    match std::fs::read(&path) {
        Ok(bytes) => decode(&bytes).map(Some).map_err(|error| error.at(path)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(reading(&error, &path)),
    }
}

/// Fails if a directory without the file `store` has a log. A new store gets its log after that file, so the file was lost;
/// one created in its place would name another store than the segments do.
pub(super) fn check_no_log(dir: &Path) -> Result<(), StoreError> {
    // Every store has a shard 0. `log` alone may be another program's.
    if dir.join("log/0").is_dir() {
        let what = "the store file is missing, though its log is here";
        return Err(Damage { file: dir.join(STORE), offset: 0, what }.into());
    }
    Ok(())
}

/// The map comes first: a store always has one.
fn create(dir: &Path, file: StoreFile, map: &SlotMap, key: &Key) -> Result<(), StoreError> {
    let maps = dir.join(MAPS);
    let created = private::create_dir(&maps)
        .and_then(|()| sync_dir(dir))
        .and_then(|()| write_whole(&maps, &FIRST_MAP.to_string(), &map.encode()))
        .and_then(|()| write_whole(dir, STORE, &encode(file, key)));
    created.map_err(|error| creating(&error, dir))
}

fn creating(error: &io::Error, dir: &Path) -> StoreError {
    StoreError::io(error, "creating the store").with(format_args!("path={}", dir.display()))
}

/// Replaces a file: a reader finds the old content or the new one.
fn write_whole(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let tmp = dir.join(format!("{name}.tmp"));
    // Left over by a crash.
    let _ = std::fs::remove_file(&tmp);
    let mut file = private::create_file(&tmp)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&tmp, dir.join(name))?;
    sync_dir(dir)
}

fn read_map(dir: &Path) -> Result<SlotMap, StoreError> {
    let maps = dir.join(MAPS);
    let names = std::fs::read_dir(&maps)
        .and_then(Iterator::collect::<io::Result<Vec<_>>>)
        .map_err(|error| reading(&error, &maps))?;
    let highest = names.iter().filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok()).max();
    let Some(highest) = highest else {
        let what = "the store has no map of slots";
        return Err(Damage { file: maps, offset: 0, what }.into());
    };
    let path = maps.join(highest.to_string());
    let bytes = std::fs::read(&path).map_err(|error| reading(&error, &path))?;
    SlotMap::decode(&bytes).map_err(|what| Damage { file: path, offset: 0, what }.into())
}

fn reading(error: &io::Error, path: &Path) -> StoreError {
    StoreError::io(error, "reading a file").with(format_args!("file={}", path.display()))
}

fn wrong_key(dir: &Path) -> StoreError {
    let what = "the store key is not the one that this store was created with, so it would refuse every credential; \
                copy the key from a backup, where it is store/store.key: path=";
    StoreError::new(ErrorKind::Refused, format!("{what}{}", dir.display()))
}

fn inconvertible(shards: u32) -> StoreError {
    let what = "a store of format 1 can be converted if its number of shards divides 4096; copy its documents to a new \
                store with the lockd that wrote it: shards=";
    StoreError::new(ErrorKind::Refused, format!("{what}{shards}"))
}

fn too_many_shards(shards: u32) -> StoreError {
    let what = format!("a store has 1 to {} shards: shards={shards}", SlotMap::SHARDS_MAX);
    StoreError::new(ErrorKind::Refused, what)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The types of network filesystems, as `statfs` reports them.
const NETWORK_TYPES: [u64; 8] = [
    0x6969,      // NFS
    0x517b,      // SMB
    0xfe53_4d42, // SMB2
    0xff53_4d42, // CIFS
    0x6573_5546, // FUSE
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS
    0x0102_1997, // 9P
];

/// The type that `statfs` reports, which has 32 bits.
fn filesystem_type(path: &Path) -> io::Result<u64> {
    let kind = rustix::fs::statfs(path)?.f_type;
    Ok(u64::try_from(kind).unwrap_or_default() & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock or a sync on a network filesystem may not do what it says: no test noticed when the refusal was gone.
    #[test]
    fn a_network_filesystem_is_refused_unless_it_is_allowed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (nfs, tmpfs) = (|_: &Path| Ok(0x6969), |_: &Path| Ok(0x0102_1994));
        let refused = LockedDir::lock_on(dir.path(), false, nfs).err().expect("a network filesystem");
        assert_eq!(refused.kind, ErrorKind::Refused);
        assert!(refused.what.contains("network filesystem"), "{}", refused.what);
        assert!(!dir.path().join("lock").exists(), "nothing is created");
        assert!(LockedDir::lock_on(dir.path(), false, tmpfs).is_ok());
        assert!(LockedDir::lock_on(dir.path(), true, nfs).is_ok());
    }

    #[test]
    fn the_type_of_a_filesystem_is_read() {
        assert_eq!(filesystem_type(Path::new("/proc")).expect("Linux"), 0x9fa0);
    }
}
