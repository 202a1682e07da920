//! The calls to a filesystem that a store on disk is made of, and nothing else.
//!
//! They are a port, so that a simulator can put a crash between any two of them. What the disk adapter
//! assumes of an implementation: bytes written are durable once the file is synced; a name that was
//! made, changed or removed is durable once its directory is synced; anything else may or may not
//! survive, in any order, and a write may survive in part. To write within a file's synced length, to sync
//! and to rename within a directory takes neither space nor descriptors.

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

    /// Makes a directory; it is fine if it is there.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, in order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens a file that is there, to read and write.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Makes a file that is not there.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Gives a file another name, in place of what had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name; fails if that is in use.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Opens a directory that is there.
    fn open_dir(&self, path: &Path) -> io::Result<Self::Dir>;

    /// Makes what happened to a directory's names durable, where a descriptor may be asked for.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.open_dir(dir)?.sync()
    }
}

/// An open directory.
pub trait Dir: Send + Sync {
    /// Makes what happened to its names durable.
    fn sync(&self) -> io::Result<()>;
}

/// An open file. Offsets are explicit: there is no cursor.
pub trait File: Send + Sync + 'static {
    /// How long it is.
    fn length(&self) -> io::Result<u64>;
    /// Reads as much as there is, up to the length of `bytes`.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of it.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes what was written durable.
    fn sync(&self) -> io::Result<()>;

    /// Begins to make durable what was written by now, while more is written. It is durable once whoever waits for it was told
    /// so; all may be done only then. Of one that nobody waits for nothing is known.
    fn begin_sync(self: &Arc<Self>) -> Syncing {
        Syncing::here(self)
    }
}

/// A sync that was begun.
pub enum Syncing {
    /// By whoever waits for it.
    Here(Box<dyn FnOnce() -> io::Result<()> + Send>),
    /// On a thread of its own.
    Beside(JoinHandle<io::Result<()>>),
}

impl Syncing {
    fn here(file: &Arc<impl File + ?Sized>) -> Syncing {
        let file = Arc::clone(file);
        Syncing::Here(Box::new(move || file.sync()))
    }

    /// Waits until it has ended, and tells how.
    pub fn wait(self) -> io::Result<()> {
        match self {
            Syncing::Here(sync) => sync(),
            Syncing::Beside(thread) => thread.join().expect("a system call does not panic"),
        }
    }
}

/// The filesystem of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

/// A directory of the machine.
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

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    /// Beside, if there are fewer than `SYNCS_MAX` of them, and a thread is to be had.
    fn begin_sync(self: &Arc<Self>) -> Syncing {
        let Some(counted) = Counted::new() else { return Syncing::here(self) };
        let file = Arc::clone(self);
        let sync = move || {
            let _counted = counted;
            file.sync()
        };
        std::thread::Builder::new().spawn(sync).map_or_else(|_| Syncing::here(self), Syncing::Beside)
    }
}

/// How many threads sync at once. A client that hangs up lets its upload go, but not a sync that has begun.
const SYNCS_MAX: usize = 64;

static SYNCS: AtomicUsize = AtomicUsize::new(0);

/// One of those who sync.
struct Counted;

impl Counted {
    fn new() -> Option<Counted> {
        let more = |syncs| (syncs < SYNCS_MAX).then_some(syncs + 1);
        SYNCS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        SYNCS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients sent a little, hung up and came again, while the disk hung: each left a thread behind.
    #[test]
    fn no_more_than_so_many_sync_beside() {
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        File::write_at(&*file, b"x", 0).expect("room");
        let all: Vec<Counted> = std::iter::from_fn(Counted::new).take(SYNCS_MAX + 1).collect();
        assert!(all.len() <= SYNCS_MAX);
        let one_more = file.begin_sync();
        assert!(matches!(one_more, Syncing::Here(_)));
        one_more.wait().expect("it is synced here");
        drop(all);
        let beside = file.begin_sync();
        assert!(matches!(beside, Syncing::Beside(_)));
        beside.wait().expect("it is synced");
        let all_again: Vec<Counted> = std::iter::from_fn(Counted::new).collect();
        assert!(!all_again.is_empty(), "one that has ended counts no more");
    }
}
