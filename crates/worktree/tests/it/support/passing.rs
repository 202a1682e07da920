//! Time that passes for everyone: all wall clocks and the filesystem's clock are ahead of the machine's by the same
//! amount, so that a test can let a lease expire without waiting for it. Only new files show it, as on a filesystem
//! on which time has passed since the others were written.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use worktree::clock::{BootId, BootMs, Clock, Millis, MonoMs, UnixMs};
use worktree::env::Env;
use worktree::fs::{Durability, Fs, Meta};

/// The components of a test, ahead of the machine by `passed` milliseconds.
pub fn env(dir: &Path, fs: Arc<dyn Fs>, clock: Arc<dyn Clock>, passed: &Arc<AtomicI64>) -> Env {
    super::env(dir, ahead_fs(fs, passed), ahead_clock(clock, passed))
}

pub fn ahead_fs(inner: Arc<dyn Fs>, passed: &Arc<AtomicI64>) -> Arc<dyn Fs> {
    Arc::new(PassingFs { inner, passed: passed.clone() })
}

pub fn ahead_clock(inner: Arc<dyn Clock>, passed: &Arc<AtomicI64>) -> Arc<dyn Clock> {
    Arc::new(PassingClock { inner, passed: passed.clone() })
}

struct PassingClock {
    inner: Arc<dyn Clock>,
    passed: Arc<AtomicI64>,
}

impl Clock for PassingClock {
    fn wall(&self) -> UnixMs {
        UnixMs(self.inner.wall().0 + self.passed.load(Ordering::SeqCst))
    }

    fn boot(&self) -> BootMs {
        self.inner.boot()
    }

    fn monotonic(&self) -> MonoMs {
        self.inner.monotonic()
    }

    fn boot_id(&self) -> BootId {
        self.inner.boot_id()
    }

    fn wait(&self, ms: Millis) {
        self.inner.wait(ms);
    }
}

#[derive(Debug)]
struct PassingFs {
    inner: Arc<dyn Fs>,
    passed: Arc<AtomicI64>,
}

impl Fs for PassingFs {
    fn write_new(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<Meta> {
        let mut meta = self.inner.write_new(path, bytes, mode, durability)?;
        meta.modified = UnixMs(meta.modified.0 + self.passed.load(Ordering::SeqCst));
        Ok(meta)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.inner.read(path)
    }

    fn meta(&self, path: &Path) -> io::Result<Meta> {
        self.inner.meta(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.inner.list(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.inner.exchange(one, other)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.inner.make_dir(path, mode)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn free_bytes(&self, reported: u64) -> u64 {
        self.inner.free_bytes(reported)
    }

    fn clone_command(&self, path: &Path) -> Option<PathBuf> {
        self.inner.clone_command(path)
    }

    fn step(&self) -> io::Result<()> {
        self.inner.step()
    }
}
