//! The machine's filesystem, watched: how much is read, how much is written and not synced yet, and a deed
//! between two calls. Nothing is synced in truth, so that tests with many batches are quick.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use store::fs::{Dir, File, Fs, RealFs};

/// Clones watch together.
#[derive(Clone, Default)]
pub(crate) struct Watched(Arc<Seen>);

type Deed = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Seen {
    read: AtomicU64,
    most_unsynced: AtomicU64,
    syncs: AtomicU64,
    before_open: Mutex<Option<Deed>>,
}

impl Watched {
    /// How many bytes were read since the last time.
    pub(crate) fn take_read(&self) -> u64 {
        self.0.read.swap(0, Ordering::Relaxed)
    }

    /// The most that was ever written to one file and not synced, and how often a file was synced.
    pub(crate) fn unsynced(&self) -> (u64, u64) {
        (self.0.most_unsynced.load(Ordering::Relaxed), self.0.syncs.load(Ordering::Relaxed))
    }

    /// Does this once, just before a file is opened.
    pub(crate) fn before_open(&self, deed: impl FnOnce() + Send + 'static) {
        *self.0.before_open.lock().expect("nobody panics") = Some(Box::new(deed));
    }

    fn watch(&self, inner: io::Result<std::fs::File>) -> io::Result<WatchedFile> {
        inner.map(|inner| WatchedFile { inner, seen: Arc::clone(&self.0), unsynced: AtomicU64::new(0) })
    }
}

impl Fs for Watched {
    type File = WatchedFile;
    type Dir = Unsynced;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealFs.create_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }

    fn open(&self, path: &Path) -> io::Result<WatchedFile> {
        let deed = self.0.before_open.lock().expect("nobody panics").take();
        if let Some(deed) = deed {
            deed();
        }
        self.watch(RealFs.open(path))
    }

    fn create(&self, path: &Path) -> io::Result<WatchedFile> {
        self.watch(RealFs.create(path))
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

    fn open_dir(&self, _: &Path) -> io::Result<Unsynced> {
        Ok(Unsynced)
    }
}

pub(crate) struct Unsynced;

impl Dir for Unsynced {
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) struct WatchedFile {
    inner: std::fs::File,
    seen: Arc<Seen>,
    unsynced: AtomicU64,
}

impl File for WatchedFile {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = File::read_at(&self.inner, bytes, offset)?;
        self.seen.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let written = bytes.len() as u64;
        let unsynced = self.unsynced.fetch_add(written, Ordering::Relaxed) + written;
        self.seen.most_unsynced.fetch_max(unsynced, Ordering::Relaxed);
        File::write_at(&self.inner, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.unsynced.store(0, Ordering::Relaxed);
        self.seen.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
