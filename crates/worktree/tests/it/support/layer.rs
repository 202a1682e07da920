//! The real filesystem with a hand in between: a hook sees every call before it is made, and may do
//! something first, refuse it, or let a write happen only in part.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use worktree::clock::UnixMs;
use worktree::fs::{Durability, Fs, Meta, RealFs};

/// A call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    WriteNew,
    Read,
    Meta,
    List,
    Link,
    Rename,
    Exchange,
    RemoveFile,
    MakeDir,
    RemoveDir,
    SyncDir,
    Step,
}

/// What becomes of it.
pub enum Verdict {
    Go,
    Fail(io::Error),
    /// Of a write, this part of the bytes (in quarters) arrives, and then it fails.
    Tear(usize),
    /// A link is made, and then reported as refused because it exists.
    LoseAnswer,
}

/// How a process died, as [`Layer::dying_at`] counts.
#[derive(Debug, Default)]
pub struct Death {
    /// Calls so far, those after its death included.
    pub calls: AtomicU64,
    /// Whether it died in a write; only then does the part of the bytes that arrived matter.
    pub in_write: AtomicBool,
}

type Hook = dyn Fn(Call, &Path) -> Verdict + Send + Sync;

/// The real filesystem behind a hook.
#[derive(Clone)]
pub struct Layer {
    hook: Arc<Hook>,
    time_offset: Arc<AtomicI64>,
    only_new: bool,
}

impl Layer {
    pub fn new(hook: impl Fn(Call, &Path) -> Verdict + Send + Sync + 'static) -> Self {
        Self { hook: Arc::new(hook), time_offset: Arc::default(), only_new: false }
    }

    /// A filesystem whose clock differs from the machine's.
    pub fn with_clock_ahead_by(ms: i64) -> Self {
        let layer = Self::new(|_, _| Verdict::Go);
        layer.time_offset.store(ms, Ordering::SeqCst);
        layer
    }

    /// A filesystem on which time has passed since its files were written: only new ones show it.
    pub fn with_probes_ahead_by(ms: i64) -> Self {
        Self { only_new: true, ..Self::with_clock_ahead_by(ms) }
    }

    /// Dies at the call number `at` (from 0), and stays dead. A write it dies in leaves `quarters` behind.
    pub fn dying_at(at: u64, quarters: usize) -> (Self, Arc<Death>) {
        let death = Arc::new(Death::default());
        let seen = death.clone();
        let layer = Self::new(move |call, _| match seen.calls.fetch_add(1, Ordering::SeqCst) {
            n if n < at => Verdict::Go,
            n if n == at && call == Call::WriteNew => {
                seen.in_write.store(true, Ordering::SeqCst);
                Verdict::Tear(quarters)
            }
            _ => Verdict::Fail(crash()),
        });
        (layer, death)
    }

    /// The same on a filesystem that cannot exchange names.
    pub fn poor_and_dying_at(at: u64) -> Self {
        let (dying, _) = Self::dying_at(at, 2);
        Self::new(move |call, path| match (dying.hook)(call, path) {
            Verdict::Go if call == Call::Exchange => Verdict::Fail(io::ErrorKind::Unsupported.into()),
            verdict => verdict,
        })
    }

    fn ask(&self, call: Call, path: &Path) -> io::Result<()> {
        match (self.hook)(call, path) {
            Verdict::Go => Ok(()),
            Verdict::Fail(cause) => Err(cause),
            Verdict::Tear(_) | Verdict::LoseAnswer => Err(crash()),
        }
    }

    fn dated(&self, mut meta: Meta) -> Meta {
        meta.modified = UnixMs(meta.modified.0 + self.time_offset.load(Ordering::SeqCst));
        meta
    }
}

pub fn crash() -> io::Error {
    io::Error::other("the process was killed here")
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Layer")
    }
}

impl Fs for Layer {
    fn write_new(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<Meta> {
        match (self.hook)(Call::WriteNew, path) {
            Verdict::Go => RealFs.write_new(path, bytes, mode, durability).map(|meta| self.dated(meta)),
            Verdict::Fail(cause) => Err(cause),
            Verdict::LoseAnswer => Err(crash()),
            Verdict::Tear(quarters) => {
                RealFs.write_new(path, &bytes[..bytes.len() * quarters / 4], mode, Durability::Lazy)?;
                Err(crash())
            }
        }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.ask(Call::Read, path)?;
        RealFs.read(path)
    }

    fn meta(&self, path: &Path) -> io::Result<Meta> {
        self.ask(Call::Meta, path)?;
        RealFs.meta(path).map(|meta| if self.only_new { meta } else { self.dated(meta) })
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.ask(Call::List, path)?;
        RealFs.list(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        match (self.hook)(Call::Link, to) {
            Verdict::Go => RealFs.link(from, to),
            Verdict::LoseAnswer => {
                RealFs.link(from, to)?;
                Err(io::ErrorKind::AlreadyExists.into())
            }
            Verdict::Fail(cause) => Err(cause),
            Verdict::Tear(_) => Err(crash()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.ask(Call::Rename, to)?;
        RealFs.rename(from, to)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.ask(Call::Exchange, other)?;
        RealFs.exchange(one, other)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::RemoveFile, path)?;
        RealFs.remove_file(path)
    }

    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.ask(Call::MakeDir, path)?;
        RealFs.make_dir(path, mode)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::RemoveDir, path)?;
        RealFs.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.ask(Call::SyncDir, path)?;
        RealFs.sync_dir(path)
    }

    fn step(&self) -> io::Result<()> {
        self.ask(Call::Step, Path::new("."))
    }
}
