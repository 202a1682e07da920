//! A simulated disk that loses unsynced writes in a crash.
//!
//! The power can fail at any call; [`SimFs::after_crash`] is the disk found afterwards. Synced data survives. Of the
//! writes since a file's last sync each may survive in whole, in part or not at all, in any order; of the changes to a
//! directory since its last sync, any subset. Directories themselves are durable once created. [`SimFs::set_errors`] makes
//! calls fail for lack of file descriptors or disk space until it is called again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::fs::{Dir, File, Fs};

use crate::rng::Rng;

/// The unit in which a write survives a crash, in bytes.
const SECTOR: usize = 64;

/// A simulated filesystem. Clones share the disk.
#[derive(Clone, Default)]
pub struct SimFs(Arc<Mutex<Disk>>);

/// The faults of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// The power fails before the call of this number: it and all later calls have no effect.
    pub crash_at: Option<u64>,
    /// The call of this number fails with this `errno`, and has no effect.
    pub fail_at: Option<(u64, i32)>,
}

/// Calls that fail until further notice, with the `errno` they fail with.
#[derive(Clone, Copy, Debug, Default)]
pub struct PersistentErrors {
    /// Calls that open, list or create.
    pub opening: Option<i32>,
    /// Writes beyond the end of a file.
    pub growing: Option<i32>,
}

#[derive(Clone, Default)]
struct Disk {
    plan: FaultPlan,
    errors: PersistentErrors,
    calls: u64,
    files: Vec<FileState>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    dirs: Vec<PathBuf>,
    /// Changes to directory entries since their directory was synced, in order.
    changes: Vec<EntryChange>,
}

/// A file's current bytes, its durable bytes, and the writes since the last sync.
#[derive(Clone, Default)]
struct FileState {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    writes: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
enum EntryChange {
    Set(PathBuf, usize),
    Remove(PathBuf),
    /// Atomic: the new name exists exactly if the old one is gone.
    Rename(PathBuf, PathBuf, usize),
}

impl EntryChange {
    fn is_in(&self, dir: &Path) -> bool {
        let (EntryChange::Set(path, _) | EntryChange::Remove(path) | EntryChange::Rename(_, path, _)) = self;
        path.parent() == Some(dir)
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            EntryChange::Set(path, file) => drop(names.insert(path.clone(), *file)),
            EntryChange::Remove(path) => drop(names.remove(path)),
            EntryChange::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
        }
    }
}

impl SimFs {
    /// An empty disk.
    pub fn new(plan: FaultPlan) -> SimFs {
        SimFs(Arc::new(Mutex::new(Disk { plan, ..Disk::default() })))
    }

    /// Whether the power has failed.
    pub fn is_powered_off(&self) -> bool {
        let disk = self.disk();
        disk.plan.crash_at.is_some_and(|at| disk.calls >= at)
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Sets which calls fail from now on.
    pub fn set_errors(&self, errors: PersistentErrors) {
        self.disk().errors = errors;
    }

    /// The disk after a power failure: `rng` decides which unsynced changes survived.
    #[must_use]
    pub fn after_crash(&self, rng: &mut Rng, plan: FaultPlan) -> SimFs {
        let mut disk = self.disk().clone();
        disk.lose_unsynced(rng);
        (disk.plan, disk.errors, disk.calls) = (plan, PersistentErrors::default(), 0);
        SimFs(Arc::new(Mutex::new(disk)))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and fails it if it is due to fail.
    fn call(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let mut disk = self.disk();
        let number = disk.calls;
        disk.calls += 1;
        if disk.plan.crash_at.is_some_and(|at| number >= at) {
            return Err(io::Error::other("power failure"));
        }
        match disk.plan.fail_at {
            Some((at, code)) if at == number => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(disk),
        }
    }

    /// A call that needs a file descriptor or a directory entry.
    fn opening(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = self.call()?;
        match disk.errors.opening {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(disk),
        }
    }
}

impl Disk {
    fn lose_unsynced(&mut self, rng: &mut Rng) {
        let survival = rng.below(3);
        let survives = |rng: &mut Rng| match survival {
            0 => false,
            1 => true,
            _ => rng.one_in(2),
        };
        let mut names = self.durable_names.clone();
        for change in std::mem::take(&mut self.changes) {
            if survives(rng) {
                change.apply(&mut names);
            }
        }
        for file in &mut self.files {
            for (offset, bytes) in std::mem::take(&mut file.writes) {
                for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                    if survives(rng) {
                        put(&mut file.durable, offset + n * SECTOR, sector);
                    }
                }
            }
            file.bytes = file.durable.clone();
        }
        (self.names, self.durable_names) = (names.clone(), names);
    }

    fn change(&mut self, change: EntryChange) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, part: &[u8]) {
    let end = offset + part.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(part);
}

impl Fs for SimFs {
    type File = SimFile;
    type Dir = SimDir;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.opening()?;
        if !disk.dirs.iter().any(|dir| dir == path) {
            disk.dirs.push(path.to_path_buf());
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.opening()?;
        if !disk.dirs.iter().any(|known| known == dir) {
            disk.find(dir)?;
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        let below = disk.names.keys().chain(&disk.dirs).filter(|path| path.parent() == Some(dir));
        let names = below.filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<SimFile> {
        let file = self.opening()?.find(path)?;
        Ok(SimFile { fs: self.clone(), file })
    }

    fn create(&self, path: &Path) -> io::Result<SimFile> {
        let mut disk = self.opening()?;
        if disk.names.contains_key(path) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        disk.files.push(FileState::default());
        let file = disk.files.len() - 1;
        disk.change(EntryChange::Set(path.to_path_buf(), file));
        Ok(SimFile { fs: self.clone(), file })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.call()?;
        let file = disk.find(from)?;
        disk.change(EntryChange::Rename(from.to_path_buf(), to.to_path_buf(), file));
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.opening()?;
        let file = disk.find(from)?;
        if disk.names.contains_key(to) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        disk.change(EntryChange::Set(to.to_path_buf(), file));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.call()?;
        disk.find(path)?;
        disk.change(EntryChange::Remove(path.to_path_buf()));
        Ok(())
    }

    fn open_dir(&self, path: &Path) -> io::Result<SimDir> {
        drop(self.opening()?);
        Ok(SimDir { fs: self.clone(), path: path.to_path_buf() })
    }
}

/// A directory on a simulated disk.
pub struct SimDir {
    fs: SimFs,
    path: PathBuf,
}

impl Dir for SimDir {
    fn sync(&self) -> io::Result<()> {
        let mut disk = self.fs.call()?;
        let (synced, left): (Vec<EntryChange>, Vec<EntryChange>) =
            std::mem::take(&mut disk.changes).into_iter().partition(|change| change.is_in(&self.path));
        disk.changes = left;
        for change in synced {
            change.apply(&mut disk.durable_names);
        }
        Ok(())
    }
}

/// A file on a simulated disk.
pub struct SimFile {
    fs: SimFs,
    file: usize,
}

impl File for SimFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.fs.call()?.files[self.file].bytes.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.fs.call()?;
        let have = &disk.files[self.file].bytes;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(have.len());
        let read = (have.len() - from).min(bytes.len());
        bytes[..read].copy_from_slice(&have[from..from + read]);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.fs.call()?;
        let (growing, file) = (disk.errors.growing, &mut disk.files[self.file]);
        let offset = usize::try_from(offset).expect("a simulated file is small");
        if let Some(code) = growing.filter(|_| offset + bytes.len() > file.bytes.len()) {
            return Err(io::Error::from_raw_os_error(code));
        }
        put(&mut file.bytes, offset, bytes);
        file.writes.push((offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.fs.call()?;
        let file = &mut disk.files[self.file];
        file.durable = file.bytes.clone();
        file.writes.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(fs: &SimFs, path: &str) -> Option<Vec<u8>> {
        let file = fs.open(Path::new(path)).ok()?;
        let mut bytes = vec![0; usize::try_from(file.length().ok()?).ok()?];
        file.read_at(&mut bytes, 0).ok()?;
        Some(bytes)
    }

    /// The distinct contents found after 200 random crashes.
    fn outcomes(fs: &SimFs, path: &str) -> Vec<Option<Vec<u8>>> {
        let mut found: Vec<_> = (0..200)
            .map(|seed| bytes_of(&fs.after_crash(&mut Rng::new(seed), FaultPlan::default()), path))
            .collect();
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn synced_data_survives_a_crash_and_other_data_may() {
        let fs = SimFs::new(FaultPlan::default());
        let file = fs.create(Path::new("/d/a")).expect("new");
        file.write_at(b"safe", 0).expect("written");
        file.sync().expect("synced");
        assert_eq!(outcomes(&fs, "/d/a"), [None, Some(b"safe".to_vec())], "the name was not synced");
        fs.sync_dir(Path::new("/d")).expect("synced");
        assert_eq!(outcomes(&fs, "/d/a"), [Some(b"safe".to_vec())]);
        file.write_at(b"lost", 0).expect("written");
        assert_eq!(outcomes(&fs, "/d/a"), [Some(b"lost".to_vec()), Some(b"safe".to_vec())]);
    }

    #[test]
    fn a_long_write_may_survive_in_part() {
        let fs = SimFs::new(FaultPlan::default());
        let file = fs.create(Path::new("/d/a")).expect("new");
        fs.sync_dir(Path::new("/d")).expect("synced");
        file.write_at(&[7; 3 * SECTOR], 0).expect("written");
        assert!(outcomes(&fs, "/d/a").len() > 4, "torn in several ways");
    }

    #[test]
    fn calls_after_the_crash_fail() {
        let fs = SimFs::new(FaultPlan { crash_at: Some(1), fail_at: None });
        let file = fs.create(Path::new("/d/a")).expect("before it");
        assert!(file.write_at(b"x", 0).is_err() && fs.sync_dir(Path::new("/d")).is_err());
    }
}
