//! A simulated disk below a page cache.
//!
//! Reads return what was written, synced or not. What a failure leaves:
//!
//! - **A process death** ([`SimFs::after_process_death`]) keeps the page cache: unsynced writes stay readable.
//! - **A power cut** ([`SimFs::after_crash`], [`SimFs::after_power_cut`]) loses a chosen subset of the unsynced sectors
//!   and of the unsynced creations, renames and removals of names. A file or directory whose directory is lost is lost.
//! - **A failed sync** ([`FaultPlan::fail_at`]) marks the sectors clean: they stay readable, later syncs succeed and do
//!   not write them, and the next power cut may lose them.
//! - **A flipped bit** ([`SimFs::flip_bit`]) changes a file on the device.
//!
//! [`SimFs::set_errors`] makes calls fail for lack of file descriptors or disk space until it is called again.

mod pages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::fs::{Dir, File, Fs};

use self::pages::{CachedFile, Survival};
use crate::rng::Rng;

pub use self::pages::SECTOR;

/// A simulated filesystem. Clones share the disk.
#[derive(Clone, Default)]
pub struct SimFs(Arc<Mutex<Disk>>);

/// The faults of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// The process dies, or the power fails, before the call of this number: it and all later calls have no effect.
    pub crash_at: Option<u64>,
    /// The call of this number fails with this `errno`, and has no effect. A failed sync of a file marks its unsynced
    /// sectors clean.
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
    files: Vec<CachedFile>,
    names: Names,
    durable_names: Names,
    /// Changes to directory entries since their directory was synced, in order.
    changes: Vec<EntryChange>,
}

type Names = BTreeMap<PathBuf, Entry>;

/// The object that a name refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    Directory,
    /// By its index in `Disk::files`.
    File(usize),
}

#[derive(Clone)]
enum EntryChange {
    Set(PathBuf, Entry),
    Remove(PathBuf),
    /// Atomic: the new name exists exactly if the old one is gone.
    Rename(PathBuf, PathBuf, Entry),
}

impl EntryChange {
    fn is_in(&self, dir: &Path) -> bool {
        let (EntryChange::Set(path, _) | EntryChange::Remove(path) | EntryChange::Rename(_, path, _)) = self;
        path.parent() == Some(dir)
    }

    fn apply(&self, names: &mut Names) {
        match self {
            EntryChange::Set(path, entry) => drop(names.insert(path.clone(), *entry)),
            EntryChange::Remove(path) => drop(names.remove(path)),
            EntryChange::Rename(from, to, entry) => {
                names.remove(from);
                names.insert(to.clone(), *entry);
            }
        }
    }
}

/// Whether a name is the root or a directory.
fn is_directory(names: &Names, path: &Path) -> bool {
    path.parent().is_none() || names.get(path) == Some(&Entry::Directory)
}

impl SimFs {
    /// An empty disk.
    pub fn new(plan: FaultPlan) -> SimFs {
        SimFs::from(Disk::default(), plan)
    }

    fn from(disk: Disk, plan: FaultPlan) -> SimFs {
        let disk = Disk { plan, errors: PersistentErrors::default(), calls: 0, ..disk };
        SimFs(Arc::new(Mutex::new(disk)))
    }

    /// Whether the call of number [`FaultPlan::crash_at`] was reached.
    pub fn is_powered_off(&self) -> bool {
        self.disk().is_powered_off()
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u64 {
        self.disk().calls
    }

    /// Sets which calls fail from now on.
    pub fn set_errors(&self, errors: PersistentErrors) {
        self.disk().errors = errors;
    }

    /// The disk that the next process finds if this one dies: everything written is readable, and nothing more is
    /// durable than before.
    #[must_use]
    pub fn after_process_death(&self, plan: FaultPlan) -> SimFs {
        SimFs::from(self.disk().clone(), plan)
    }

    /// The disk after a power cut: `rng` decides which unsynced changes survived.
    #[must_use]
    pub fn after_crash(&self, rng: &mut Rng, plan: FaultPlan) -> SimFs {
        let rate = rng.below(3);
        let mut survives = || match rate {
            0 => Survival::Lost,
            1 => Survival::Latest,
            _ => match rng.below(4) {
                0 | 1 => Survival::Lost,
                2 => Survival::Latest,
                _ => Survival::Earlier(usize::try_from(rng.below(1 << 20)).expect("small")),
            },
        };
        self.without_power(&mut survives, plan)
    }

    /// The number of unsynced changes: to names first, then by file in order of creation, and by sector.
    pub fn unsynced(&self) -> usize {
        let disk = self.disk();
        disk.changes.len() + disk.files.iter().map(CachedFile::unsynced).sum::<usize>()
    }

    /// The disk after a power cut that the unsynced changes with these numbers survive.
    #[must_use]
    pub fn after_power_cut(&self, survives: impl Fn(usize) -> bool, plan: FaultPlan) -> SimFs {
        let mut numbers = 0..;
        let mut survives = || {
            let is_kept = survives(numbers.next().expect("endless"));
            if is_kept { Survival::Latest } else { Survival::Lost }
        };
        self.without_power(&mut survives, plan)
    }

    fn without_power(&self, survives: &mut dyn FnMut() -> Survival, plan: FaultPlan) -> SimFs {
        let mut disk = self.disk().clone();
        disk.cut_power(survives);
        SimFs::from(disk, plan)
    }

    /// Flips one bit of a file.
    pub fn flip_bit(&self, path: &Path, bit: usize) {
        let mut disk = self.disk();
        let file = disk.find(path).expect("a file with a bit to flip");
        disk.files[file].flip_bit(bit);
    }

    /// The sum of the lengths of all files, in bytes.
    pub fn bytes_used(&self) -> usize {
        let disk = self.disk();
        let length = |entry: &Entry| match entry {
            Entry::Directory => 0,
            Entry::File(file) => disk.files[*file].bytes().len(),
        };
        disk.names.values().map(length).sum()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call, and fails it if it is due to fail.
    fn call(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let mut disk = self.disk();
        disk.count()?;
        Ok(disk)
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
    fn is_powered_off(&self) -> bool {
        self.plan.crash_at.is_some_and(|at| self.calls >= at)
    }

    fn count(&mut self) -> io::Result<()> {
        let (number, is_off) = (self.calls, self.is_powered_off());
        self.calls += 1;
        if is_off {
            return Err(io::Error::other("power failure"));
        }
        match self.plan.fail_at {
            Some((at, code)) if at == number => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }

    fn cut_power(&mut self, survives: &mut dyn FnMut() -> Survival) {
        for change in std::mem::take(&mut self.changes) {
            if survives() != Survival::Lost {
                change.apply(&mut self.durable_names);
            }
        }
        self.files.iter_mut().for_each(|file| file.cut_power(survives));
        let found = self.durable_names.clone();
        self.durable_names.retain(|path, _| path.ancestors().skip(1).all(|dir| is_directory(&found, dir)));
        self.names = self.durable_names.clone();
    }

    fn change(&mut self, change: EntryChange) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Entry::File(file)) => Ok(*file),
            Some(Entry::Directory) => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    /// Fails unless `path` is free, in a directory that exists.
    fn check_free(&self, path: &Path) -> io::Result<()> {
        if self.names.contains_key(path) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let has_directory = path.parent().is_some_and(|dir| is_directory(&self.names, dir));
        if has_directory { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
    }
}

impl Fs for SimFs {
    type File = SimFile;
    type Dir = SimDir;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.opening()?;
        let mut missing: Vec<&Path> =
            path.ancestors().take_while(|dir| !is_directory(&disk.names, dir)).collect();
        while let Some(dir) = missing.pop() {
            disk.change(EntryChange::Set(dir.to_path_buf(), Entry::Directory));
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.opening()?;
        if !is_directory(&disk.names, dir) {
            disk.find(dir)?;
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        let below = disk.names.keys().filter(|path| path.parent() == Some(dir));
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
        disk.check_free(path)?;
        disk.files.push(CachedFile::default());
        let file = disk.files.len() - 1;
        disk.change(EntryChange::Set(path.to_path_buf(), Entry::File(file)));
        Ok(SimFile { fs: self.clone(), file })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.call()?;
        let file = disk.find(from)?;
        disk.change(EntryChange::Rename(from.to_path_buf(), to.to_path_buf(), Entry::File(file)));
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.opening()?;
        let file = disk.find(from)?;
        disk.check_free(to)?;
        disk.change(EntryChange::Set(to.to_path_buf(), Entry::File(file)));
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
        Ok(self.fs.call()?.files[self.file].bytes().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.fs.call()?;
        let have = disk.files[self.file].bytes();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(have.len());
        let read = (have.len() - from).min(bytes.len());
        bytes[..read].copy_from_slice(&have[from..from + read]);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.fs.call()?;
        let (growing, file) = (disk.errors.growing, &mut disk.files[self.file]);
        let offset = usize::try_from(offset).expect("a simulated file is small");
        if let Some(code) = growing.filter(|_| offset + bytes.len() > file.bytes().len()) {
            return Err(io::Error::from_raw_os_error(code));
        }
        file.write(offset, bytes);
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).expect("a simulated file is small");
        self.fs.call()?.files[self.file].truncate(length);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let called = disk.count();
        let is_off = disk.plan.crash_at.is_some_and(|at| disk.calls > at);
        let file = &mut disk.files[self.file];
        match called {
            Ok(()) => file.sync(),
            Err(_) if is_off => {}
            Err(_) => file.fail_sync(),
        }
        called
    }
}
