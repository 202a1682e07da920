//! A filesystem in memory with simulated power cuts: any combination of unsynced names and bytes may be lost.
//! Real filesystems lose less, so a protocol that survives here survives there.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use worktree::clock::{Clock, SystemClock};
use worktree::fs::{Durability, FileKind, Fs, Meta};

/// A seeded random generator, so that a failure can be reproduced.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

#[derive(Clone, Debug, Default)]
struct Dir {
    names: BTreeMap<OsString, u64>,
    durable: BTreeMap<OsString, u64>,
}

#[derive(Clone, Debug)]
struct File {
    bytes: Vec<u8>,
    synced: bool,
    meta: Meta,
}

#[derive(Clone, Debug, Default)]
struct State {
    dirs: BTreeMap<PathBuf, Dir>,
    files: BTreeMap<u64, File>,
    next_inode: u64,
    calls: u64,
    dies_at: Option<u64>,
}

/// The filesystem; clones see the same one.
#[derive(Clone, Debug, Default)]
pub struct SimFs {
    state: Arc<Mutex<State>>,
}

impl SimFs {
    /// With the one directory `root`, durable.
    pub fn new(root: &Path) -> Self {
        let sim = Self::default();
        sim.state().dirs.insert(root.to_owned(), Dir::default());
        sim
    }

    /// The process makes `calls` more calls, and dies in the next.
    pub fn die_after(&self, calls: u64) {
        let mut state = self.state();
        state.dies_at = Some(state.calls + calls);
    }

    /// Another process starts.
    pub fn live(&self) {
        self.state().dies_at = None;
    }

    /// A copy of the disk after a power cut.
    pub fn cut_copy(&self, rng: &mut Rng) -> Self {
        let copy = Self { state: Arc::new(Mutex::new(self.state().clone())) };
        copy.cut_power(rng);
        copy
    }

    /// Loses a random subset of the unsynced names and bytes.
    pub fn cut_power(&self, rng: &mut Rng) {
        let mut state = self.state();
        for dir in state.dirs.values_mut() {
            let all: Vec<OsString> = dir.names.keys().chain(dir.durable.keys()).cloned().collect();
            for name in all {
                let (now, before) = (dir.names.get(&name).copied(), dir.durable.get(&name).copied());
                let kept = if rng.below(2) == 0 { now } else { before };
                match kept {
                    Some(inode) => dir.names.insert(name.clone(), inode),
                    None => dir.names.remove(&name),
                };
            }
            dir.durable = dir.names.clone();
        }
        for file in state.files.values_mut().filter(|file| !file.synced) {
            let quarters = usize::try_from(rng.below(5)).expect("under five");
            file.bytes.truncate(file.bytes.len() * quarters / 4);
            file.synced = true;
        }
        state.dies_at = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }

    /// Counts a call; fails if the process has died.
    fn call(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.calls += 1;
        match state.dies_at {
            Some(at) if state.calls > at => Err(super::layer::crash()),
            _ => Ok(state),
        }
    }
}

impl State {
    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn parent(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dir(path.parent().expect("below the root"))
    }

    fn inode(&mut self, path: &Path) -> io::Result<u64> {
        let name = name(path).to_owned();
        self.parent(path)?.names.get(&name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn add(&mut self, path: &Path, inode: u64) -> io::Result<()> {
        let name = name(path).to_owned();
        let names = &mut self.parent(path)?.names;
        if names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.insert(name, inode);
        Ok(())
    }

    fn new_inode(&mut self) -> u64 {
        self.next_inode += 1;
        self.next_inode
    }
}

fn name(path: &Path) -> &OsStr {
    path.file_name().expect("a name")
}

fn meta(kind: FileKind, inode: u64) -> Meta {
    Meta { kind, device: 1, inode, modified: SystemClock::new().wall() }
}

impl Fs for SimFs {
    fn write_new(&self, path: &Path, bytes: &[u8], _mode: u32, durability: Durability) -> io::Result<Meta> {
        let mut state = self.call()?;
        let inode = state.new_inode();
        state.add(path, inode)?;
        let meta = meta(FileKind::File, inode);
        let synced = durability == Durability::Synced;
        state.files.insert(inode, File { bytes: bytes.to_vec(), synced, meta });
        Ok(meta)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.call()?;
        let inode = state.inode(path)?;
        Ok(state.files[&inode].bytes.clone())
    }

    fn meta(&self, path: &Path) -> io::Result<Meta> {
        let mut state = self.call()?;
        if state.dirs.contains_key(path) {
            return Ok(meta(FileKind::Dir, 0));
        }
        let inode = state.inode(path)?;
        Ok(state.files[&inode].meta)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        Ok(self.call()?.dir(path)?.names.keys().cloned().collect())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.call()?;
        let inode = state.inode(from)?;
        state.add(to, inode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.call()?;
        if let Some(dir) = state.dirs.get(from).cloned() {
            if state.dirs.contains_key(to) {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            state.dirs.remove(from);
            state.dirs.insert(to.to_owned(), dir);
            return Ok(());
        }
        let inode = state.inode(from)?;
        state.parent(from)?.names.remove(name(from));
        state.parent(to)?.names.insert(name(to).to_owned(), inode);
        Ok(())
    }

    fn exchange(&self, _one: &Path, _other: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.call()?;
        state.inode(path)?;
        state.parent(path)?.names.remove(name(path));
        Ok(())
    }

    fn make_dir(&self, path: &Path, _mode: u32) -> io::Result<()> {
        let mut state = self.call()?;
        if state.dirs.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // Directories are created once, long before any power cut, and are durable at once.
        state.dirs.insert(path.to_owned(), Dir::default());
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.call()?.dirs.remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.call()?;
        let dir = state.dir(path)?;
        dir.durable = dir.names.clone();
        Ok(())
    }
}
