//! Opens a store, with its key and its shards, from where its URL says it is.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Clock, Engine, EngineObserver, MachineClock, OpenError, Options, TenureConfig};
use kernel::{Limits, Shard, Store};
use store::disk::{DiskDir, LogOptions, StoreFile};
use store::memory::{MemoryBlobs, MemoryLog};
use store::private::{self, Access};
use store::{BlobStore, LogStore, StoreError};
use system::file;

use crate::backend::credential::StoreKey;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// In a directory.
    Disk(PathBuf),
    /// In memory, gone with the process.
    Memory,
}

impl StoreUrl {
    /// `disk:///path`, its alias `pebble:///path`, or `mem://`.
    pub fn parse(text: &str) -> Result<StoreUrl, BootError> {
        let unknown = || BootError::Url(text.to_string());
        if matches!(text, "mem://" | "mem:") {
            return Ok(StoreUrl::Memory);
        }
        let path =
            text.strip_prefix("disk://").or_else(|| text.strip_prefix("pebble://")).ok_or_else(unknown)?;
        if path.starts_with('/') { Ok(StoreUrl::Disk(PathBuf::from(path))) } else { Err(unknown()) }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Disk(path) => write!(f, "disk://{}", path.display()),
            StoreUrl::Memory => f.write_str("mem://"),
        }
    }
}

/// What is fixed when a store is made, and what is not.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    /// How many shards a new store has.
    pub shards: u32,
    /// In force until the next start.
    pub limits: Limits,
    /// How the store is looked after.
    pub options: Options,
    /// A network filesystem will do.
    pub allow_network: bool,
}

impl Default for Making {
    fn default() -> Making {
        Making { shards: 1, limits: Limits::default(), options: Options::default(), allow_network: false }
    }
}

/// Why a store does not open.
#[derive(Debug)]
pub enum BootError {
    /// No store is there.
    Url(String),
    /// The store refuses.
    Store(StoreError),
    /// The store has lost its key.
    NoKey(PathBuf),
    /// Its key is no key.
    BadKey(PathBuf),
    /// A shard does not start.
    Shard(u32, OpenError),
    /// The machine refuses.
    Io(PathBuf, io::Error),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::Url(text) => {
                write!(f, "not a store; disk:///path (an absolute path) or mem:// is: store={text}")
            }
            BootError::Store(error) => error.fmt(f),
            BootError::NoKey(path) => write!(
                f,
                "the store has lost its key, and without it no credential can be verified; restore it from the backup: \
                 path={}",
                path.display()
            ),
            BootError::BadKey(path) => {
                write!(
                    f,
                    "not the key of a store, 32 bytes; restore it from the backup: path={}",
                    path.display()
                )
            }
            BootError::Shard(shard, error) => write!(f, "shard {shard}: {error}"),
            BootError::Io(path, error) => write!(f, "{error}: path={}", path.display()),
        }
    }
}

impl std::error::Error for BootError {}

impl From<StoreError> for BootError {
    fn from(error: StoreError) -> BootError {
        BootError::Store(error)
    }
}

/// An open store. Others are kept out while this is held.
pub struct Opened {
    /// Its shards, in order.
    pub engines: Vec<Arc<Engine>>,
    /// Its key.
    pub key: StoreKey,
    /// Keeps others out.
    pub lock: Option<DiskDir>,
}

/// What a store has of the machine that it runs on.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Fills bytes with chance.
    pub random: &'a dyn Fn(&mut [u8]),
    /// A clock for each shard.
    pub clock: &'a dyn Fn() -> io::Result<Box<dyn Clock>>,
}

impl Machine<'_> {
    /// Its own clock.
    pub fn clock() -> io::Result<Box<dyn Clock>> {
        Ok(Box::new(MachineClock::new()?))
    }
}

/// Opens a store, or makes it.
pub fn open(
    url: &StoreUrl,
    making: &Making,
    machine: Machine<'_>,
    watcher: &Arc<dyn EngineObserver>,
) -> Result<Opened, BootError> {
    let random = machine.random;
    match url {
        StoreUrl::Memory => {
            let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
            let shard = |number| {
                start(number, making.shards, Box::new(MemoryLog::default()), &blobs, making, machine, watcher)
            };
            let engines = (0..making.shards).map(shard).collect::<Result<_, _>>()?;
            Ok(Opened { engines, key: StoreKey::new(bytes(random)), lock: None })
        }
        StoreUrl::Disk(path) => {
            let is_new = !path.join("store").exists();
            private_dir(path, &["log", "blob"])?;
            if is_new {
                make_key(&path.join(KEY_FILE), random)?;
            }
            let fresh = StoreFile { store_id: u128::from_le_bytes(bytes(random)), shards: making.shards };
            let dir = DiskDir::open(path, fresh, making.allow_network)?;
            let key = read_key(&path.join(KEY_FILE))?;
            let blobs: Arc<dyn BlobStore> = Arc::new(dir.blobs()?);
            let shards = dir.file().shards;
            let mut engines = Vec::new();
            for number in 0..shards {
                let (log, _) = dir.log(number, LogOptions::SEGMENT_BYTES)?;
                engines.push(start(number, shards, Box::new(log), &blobs, making, machine, watcher)?);
            }
            Ok(Opened { engines, key, lock: Some(dir) })
        }
    }
}

/// Creates a directory for this user alone. One that exists is tightened, unless others have a use for it.
pub(crate) fn private_dir(path: &Path, subdirectories: &[&str]) -> Result<(), BootError> {
    let access = private::create_dir(path).and_then(|()| private::tighten(path, subdirectories));
    if access.map_err(|error| BootError::Io(path.to_path_buf(), error))? == Access::Open {
        tracing::warn!(path = %path.display(), "other users may enter the directory; make one for lockd alone, mode 0700");
    }
    Ok(())
}

fn start(
    number: u32,
    shards: u32,
    log: Box<dyn LogStore>,
    blobs: &Arc<dyn BlobStore>,
    making: &Making,
    machine: Machine<'_>,
    watcher: &Arc<dyn EngineObserver>,
) -> Result<Arc<Engine>, BootError> {
    let random = machine.random;
    let hash_seed = u64::from_le_bytes(bytes(random));
    let store = Store { shard: Shard(number), shards, hash_seed };
    let opening = TenureConfig { store, writer: u128::from_le_bytes(bytes(random)), limits: making.limits };
    let clock =
        (machine.clock)().map_err(|error| BootError::Io("/proc/sys/kernel/random/boot_id".into(), error))?;
    let (blobs, watcher) = (Arc::clone(blobs), Arc::clone(watcher));
    let engine = Engine::open(log, blobs, clock, &opening, making.options, watcher);
    engine.map(Arc::new).map_err(|error| BootError::Shard(number, error))
}

fn bytes<const N: usize>(random: &dyn Fn(&mut [u8])) -> [u8; N] {
    let mut bytes = [0; N];
    random(&mut bytes);
    bytes
}

const KEY_FILE: &str = "store.key";

/// Creates the store key. It comes before the store itself, so that every store has a key; a crash in between leaves a
/// key that the next start uses.
fn make_key(path: &Path, random: &dyn Fn(&mut [u8])) -> Result<(), BootError> {
    let failed = |error| BootError::Io(path.to_path_buf(), error);
    let whole = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == 32);
    if whole {
        return Ok(());
    }
    file::replace(path, &bytes::<32>(random), file::OWNER_ONLY).map_err(failed)
}

fn read_key(path: &Path) -> Result<StoreKey, BootError> {
    match std::fs::read(path) {
        Ok(bytes) => bytes.try_into().map(StoreKey::new).map_err(|_| BootError::BadKey(path.to_path_buf())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BootError::NoKey(path.to_path_buf())),
        Err(error) => Err(BootError::Io(path.to_path_buf(), error)),
    }
}
