//! A filesystem that counts reads and unsynced writes, and runs a hook before an open. It does not really
//! sync, so that tests with many batches are fast.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use store::fs::{Dir, File, Fs, RealFs};

/// Clones share their counters.
#[derive(Clone, Default)]
pub(crate) struct ObservedFs(Arc<Observations>);

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Observations {
    read: AtomicU64,
    unsynced_max: AtomicU64,
    syncs: AtomicU64,
    before_open: Mutex<Option<Hook>>,
}

impl ObservedFs {
    /// The number of bytes read since the last call.
    pub(crate) fn take_read(&self) -> u64 {
        self.0.read.swap(0, Ordering::Relaxed)
    }

    /// The maximum number of unsynced bytes in one file so far, and the number of file syncs.
    pub(crate) fn unsynced(&self) -> (u64, u64) {
        (self.0.unsynced_max.load(Ordering::Relaxed), self.0.syncs.load(Ordering::Relaxed))
    }

    /// Runs the hook once, just before the next file is opened.
    pub(crate) fn before_open(&self, hook: impl FnOnce() + Send + 'static) {
        *self.0.before_open.lock().expect("not poisoned") = Some(Box::new(hook));
    }

    fn observe(&self, inner: io::Result<std::fs::File>) -> io::Result<ObservedFile> {
        inner.map(|inner| ObservedFile {
            inner,
            observations: Arc::clone(&self.0),
            unsynced: AtomicU64::new(0),
        })
    }
}

impl Fs for ObservedFs {
    type File = ObservedFile;
    type Dir = UnsyncedDir;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealFs.create_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }

    fn open(&self, path: &Path) -> io::Result<ObservedFile> {
        let hook = self.0.before_open.lock().expect("not poisoned").take();
        if let Some(hook) = hook {
            hook();
        }
        self.observe(RealFs.open(path))
    }

    fn create(&self, path: &Path) -> io::Result<ObservedFile> {
        self.observe(RealFs.create(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFs.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFs.remove(path)
    }

    fn open_dir(&self, _: &Path) -> io::Result<UnsyncedDir> {
        Ok(UnsyncedDir)
    }
}

pub(crate) struct UnsyncedDir;

impl Dir for UnsyncedDir {
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) struct ObservedFile {
    inner: std::fs::File,
    observations: Arc<Observations>,
    unsynced: AtomicU64,
}

impl File for ObservedFile {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = File::read_at(&self.inner, bytes, offset)?;
        self.observations.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = bytes.len() as u64;
        let unsynced = self.unsynced.fetch_add(written, Ordering::Relaxed) + written;
        self.observations.unsynced_max.fetch_max(unsynced, Ordering::Relaxed);
        File::write_at(&self.inner, bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.unsynced.store(0, Ordering::Relaxed);
        self.observations.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
