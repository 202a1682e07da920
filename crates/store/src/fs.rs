//! The filesystem calls that the disk backend uses, and nothing else.
//!
//! They are a port, so that a simulator can crash between any two calls. The disk backend assumes of an
//! implementation: written bytes are durable once the file is synced; a created, renamed or removed name is
//! durable once its directory is synced, and so are the directory's own name and its parents'; anything else
//! may or may not survive, in any order, and a write may survive in part, by sectors of 512 bytes. Writing
//! within a file's synced length, syncing, and renaming within a directory allocate neither space nor
//! descriptors. A copy-on-write filesystem (btrfs, ZFS) breaks this: there an overwrite allocates, so that a
//! full disk can fail an append that was reserved.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::private;

/// A filesystem.
pub trait Fs: Clone + Send + Sync + 'static {
    /// An open file.
    type File: File;
    /// An open directory.
    type Dir: Dir;

    /// Creates a directory and its missing parents; succeeds if it exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Creates a file; fails if it exists.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Creates a hard link; fails if the new name is in use.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Opens an existing directory.
    fn open_dir(&self, path: &Path) -> io::Result<Self::Dir>;

    /// Makes changes to a directory's names durable. Opens the directory, so it needs a free descriptor.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.open_dir(dir)?.sync()
    }

    /// Creates a directory and its missing parents, and makes all their names durable, whichever process
    /// created them: one that died in between may have left any of them unsynced.
    fn create_dir_durably(&self, path: &Path) -> io::Result<()> {
        self.create_dir(path)?;
        let synced = if planted!(ParentsUnsynced) { 1 } else { usize::MAX };
        let parents: Vec<&Path> = path.ancestors().skip(1).take(synced).collect();
        for (distance, parent) in parents.into_iter().enumerate().rev() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            match self.sync_dir(parent) {
                // Further up, a directory that cannot be read or changed was not created by lockd.
                Err(error) if distance > 0 && is_immutable(&error) => {}
                synced => synced?,
            }
        }
        Ok(())
    }
}

/// Whether a directory cannot be synced because it is not readable, or its filesystem is never written.
fn is_immutable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported
    )
}

/// An open directory.
pub trait Dir: Send + Sync {
    /// Makes changes to its names durable.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. Offsets are explicit: there is no cursor.
pub trait File: Send + Sync + 'static {
    /// The file's length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Fills `bytes`; returns less only at the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Shortens the file to `length` bytes.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes all writes so far durable. After a failure nothing is known, and a retry proves nothing: the
    /// operating system may take unwritten pages for clean, so that they can be read until they are gone.
    fn sync(&self) -> io::Result<()>;

    /// Drops the file's synced pages from the page cache, so that the next read comes from the device. Best
    /// effort.
    fn evict(&self) {}

    /// Starts to sync the writes so far, while more is written. They are durable once [`PendingSync::wait`]
    /// has succeeded; an implementation may do all the work in `wait`. A sync that is not waited for
    /// guarantees nothing.
    fn begin_sync(self: &Arc<Self>) -> PendingSync {
        PendingSync::deferred(self)
    }
}

/// A sync in progress.
pub enum PendingSync {
    /// Runs in the thread that waits for it.
    Deferred(Box<dyn FnOnce() -> io::Result<()> + Send>),
    /// Runs on a thread of its own.
    Background(JoinHandle<io::Result<()>>),
}

impl PendingSync {
    fn deferred(file: &Arc<impl File + ?Sized>) -> PendingSync {
        let file = Arc::clone(file);
        PendingSync::Deferred(Box::new(move || file.sync()))
    }

    /// Waits until the sync has ended, and returns its result.
    pub fn wait(self) -> io::Result<()> {
        match self {
            PendingSync::Deferred(sync) => sync(),
            PendingSync::Background(thread) => thread.join().expect("a system call does not panic"),
        }
    }
}

/// The operating system's filesystem.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

/// An open directory of the operating system.
#[derive(Debug)]
pub struct RealDir(std::fs::File);

impl Dir for RealDir {
    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

impl Fs for RealFs {
    type File = std::fs::File;
    type Dir = RealDir;

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        private::create_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Self::File> {
        OpenOptions::new().read(true).write(true).open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Self::File> {
        private::create_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn open_dir(&self, path: &Path) -> io::Result<RealDir> {
        std::fs::File::open(path).map(RealDir)
    }
}

impl File for std::fs::File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match FileExt::read_at(self, &mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    /// A read after this proves that the device returns what was written: an error on the way to it, or in its
    /// sectors, shows. A read from the page cache proves only that memory still has it. It does not prove that
    /// the bytes are on the medium (the device has a cache of its own; the sync is responsible for that), and
    /// pages that are dirty or mapped stay: lockd syncs first, and maps nothing. Filesystems in memory ignore it.
    fn evict(&self) {
        let _ = rustix::fs::fadvise(self, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// On a background thread, unless `SYNCS_MAX` of them are running or none can be spawned.
    fn begin_sync(self: &Arc<Self>) -> PendingSync {
        let Some(permit) = SyncPermit::new() else { return PendingSync::deferred(self) };
        let file = Arc::clone(self);
        let sync = move || {
            let _permit = permit;
            file.sync()
        };
        std::thread::Builder::new()
            .spawn(sync)
            .map_or_else(|_| PendingSync::deferred(self), PendingSync::Background)
    }
}

/// Maximum number of background sync threads. A client that disconnects cancels its upload, but not a running
/// sync.
const SYNCS_MAX: usize = 64;

static SYNCS: AtomicUsize = AtomicUsize::new(0);

/// The right to run one background sync, counted in `SYNCS` until dropped.
struct SyncPermit;

impl SyncPermit {
    fn new() -> Option<SyncPermit> {
        let more = |syncs| (syncs < SYNCS_MAX).then_some(syncs + 1);
        SYNCS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| SyncPermit)
    }
}

impl Drop for SyncPermit {
    fn drop(&mut self) {
        SYNCS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While the disk hung, clients repeatedly began an upload, disconnected and reconnected: each left a
    /// sync thread behind.
    #[test]
    fn background_syncs_are_bounded() {
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        File::write_at(&*file, b"x", 0).expect("writable");
        let permits: Vec<SyncPermit> = std::iter::from_fn(SyncPermit::new).take(SYNCS_MAX + 1).collect();
        assert!(permits.len() <= SYNCS_MAX);
        let one_more = file.begin_sync();
        assert!(matches!(one_more, PendingSync::Deferred(_)));
        one_more.wait().expect("synced by this thread");
        drop(permits);
        let background = file.begin_sync();
        assert!(matches!(background, PendingSync::Background(_)));
        background.wait().expect("synced");
        let permits: Vec<SyncPermit> = std::iter::from_fn(SyncPermit::new).collect();
        assert!(!permits.is_empty(), "a finished sync returns its permit");
    }
}
