//! The real filesystem with fault injection: a hook sees every call before it is made, and may act first,
//! fail it, or truncate a write.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use worktree::clock::UnixMs;
use worktree::fs::{Durability, Fs, Meta, RealFs};

/// A filesystem call.
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

/// The hook's decision on a call.
pub enum CallOutcome {
    Proceed,
    Fail(io::Error),
    /// A write stores this many quarters of the bytes, and fails.
    Tear(usize),
    /// A link is created, and reported as `AlreadyExists`.
    LoseReply,
}

/// How a process died, as [`HookedFs::dying_at`] counts.
#[derive(Debug, Default)]
pub struct Death {
    /// Calls so far, those after its death included.
    pub calls: AtomicU64,
    /// Whether it died in a write; only then does the part of the bytes that arrived matter.
    pub in_write: AtomicBool,
}

type Hook = dyn Fn(Call, &Path) -> CallOutcome + Send + Sync;

/// The real filesystem behind a hook.
#[derive(Clone)]
pub struct HookedFs {
    hook: Arc<Hook>,
    time_offset: Arc<AtomicI64>,
    only_new: bool,
    unlisted: Option<OsString>,
    whole_seconds: bool,
    /// What a full disk has left, in bytes.
    free_bytes: Option<u64>,
    clone_command: Option<PathBuf>,
}

impl HookedFs {
    pub fn new(hook: impl Fn(Call, &Path) -> CallOutcome + Send + Sync + 'static) -> Self {
        Self {
            hook: Arc::new(hook),
            time_offset: Arc::default(),
            only_new: false,
            unlisted: None,
            whole_seconds: false,
            free_bytes: None,
            clone_command: None,
        }
    }

    /// A filesystem that has no more free space than this.
    pub fn with_free_bytes(free_bytes: u64) -> Self {
        Self { free_bytes: Some(free_bytes), ..Self::new(|_, _| CallOutcome::Proceed) }
    }

    /// A filesystem with a command that clones directories.
    pub fn with_clone_command(command: PathBuf) -> Self {
        Self { clone_command: Some(command), ..Self::new(|_, _| CallOutcome::Proceed) }
    }

    /// A filesystem whose clock differs from the machine's.
    pub fn with_clock_ahead_by(ms: i64) -> Self {
        let layer = Self::new(|_, _| CallOutcome::Proceed);
        layer.time_offset.store(ms, Ordering::SeqCst);
        layer
    }

    /// A filesystem on which time has passed since its files were written: only new files show it.
    pub fn with_probes_ahead_by(ms: i64) -> Self {
        Self { only_new: true, ..Self::with_clock_ahead_by(ms) }
    }

    /// The process is killed at the first call of this kind.
    pub fn killed_from(first: Call) -> Self {
        let dead = AtomicBool::new(false);
        Self::new(move |call, _| {
            dead.fetch_or(call == first, Ordering::SeqCst);
            if dead.load(Ordering::SeqCst) { CallOutcome::Fail(crash()) } else { CallOutcome::Proceed }
        })
    }

    /// A filesystem whose times are whole seconds.
    pub fn with_whole_seconds() -> Self {
        Self { whole_seconds: true, ..Self::new(|_, _| CallOutcome::Proceed) }
    }

    /// A filesystem whose listings lack one name, as if it had been created while they were read.
    pub fn not_listing(name: &str) -> Self {
        Self { unlisted: Some(name.into()), ..Self::new(|_, _| CallOutcome::Proceed) }
    }

    /// Fails from call number `at` (from 0) on. If that is a write, `quarters` of the bytes are stored.
    pub fn dying_at(at: u64, quarters: usize) -> (Self, Arc<Death>) {
        let death = Arc::new(Death::default());
        let seen = death.clone();
        let layer = Self::new(move |call, _| match seen.calls.fetch_add(1, Ordering::SeqCst) {
            n if n < at => CallOutcome::Proceed,
            n if n == at && call == Call::WriteNew => {
                seen.in_write.store(true, Ordering::SeqCst);
                CallOutcome::Tear(quarters)
            }
            _ => CallOutcome::Fail(crash()),
        });
        (layer, death)
    }

    /// The same on a filesystem that cannot exchange names.
    pub fn poor_and_dying_at(at: u64) -> Self {
        let (dying, _) = Self::dying_at(at, 2);
        Self::new(move |call, path| match (dying.hook)(call, path) {
            CallOutcome::Proceed if call == Call::Exchange => {
                CallOutcome::Fail(io::ErrorKind::Unsupported.into())
            }
            verdict => verdict,
        })
    }

    fn ask(&self, call: Call, path: &Path) -> io::Result<()> {
        match (self.hook)(call, path) {
            CallOutcome::Proceed => Ok(()),
            CallOutcome::Fail(cause) => Err(cause),
            CallOutcome::Tear(_) | CallOutcome::LoseReply => Err(crash()),
        }
    }

    fn dated(&self, mut meta: Meta) -> Meta {
        meta.modified = UnixMs(meta.modified.0 + self.time_offset.load(Ordering::SeqCst));
        if self.whole_seconds {
            meta.modified = UnixMs(meta.modified.0 / 1000 * 1000);
        }
        meta
    }
}

pub fn crash() -> io::Error {
    io::Error::other("the process was killed here")
}

impl fmt::Debug for HookedFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedFs")
    }
}

impl Fs for HookedFs {
    fn write_new(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<Meta> {
        match (self.hook)(Call::WriteNew, path) {
            CallOutcome::Proceed => {
                RealFs.write_new(path, bytes, mode, durability).map(|meta| self.dated(meta))
            }
            CallOutcome::Fail(cause) => Err(cause),
            CallOutcome::LoseReply => Err(crash()),
            CallOutcome::Tear(quarters) => {
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
        let names = RealFs.list(path)?;
        Ok(names.into_iter().filter(|name| Some(name) != self.unlisted.as_ref()).collect())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        match (self.hook)(Call::Link, to) {
            CallOutcome::Proceed => RealFs.link(from, to),
            CallOutcome::LoseReply => {
                RealFs.link(from, to)?;
                Err(io::ErrorKind::AlreadyExists.into())
            }
            CallOutcome::Fail(cause) => Err(cause),
            CallOutcome::Tear(_) => Err(crash()),
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

    fn free_bytes(&self, reported: u64) -> u64 {
        self.free_bytes.unwrap_or(reported)
    }

    fn clone_command(&self, _path: &Path) -> Option<PathBuf> {
        self.clone_command.clone()
    }

    fn step(&self) -> io::Result<()> {
        self.ask(Call::Step, Path::new("."))
    }
}
