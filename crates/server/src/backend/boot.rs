//! Opens the store at a URL, and starts its shards.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Clock, Engine, EngineObserver, MachineClock, OpenError, Options, TenureConfig};
use kernel::{Limits, Shard, Slot, Store};
use store::private::{self, Access};
use store::{BlobStore, LogStore, SlotMap, StoreError};

use crate::backend::credential::StoreKey;
use crate::backend::store::{StoreGuard, StoreParts, StoreUrl, TornTail, random_bytes};

/// Options of opening a store.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The number of shards of a new store; an existing store keeps its own.
    pub shards: u32,
    /// Limits of the kernel, until the next start.
    pub limits: Limits,
    /// Maintenance of the store.
    pub engine: Options,
    /// Allows a network filesystem.
    pub allow_network: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { shards: 1, limits: Limits::default(), engine: Options::default(), allow_network: false }
    }
}

/// Why a store cannot be opened.
#[derive(Debug)]
pub enum BootError {
    /// Not the URL of a store.
    Url(String),
    /// The store is damaged, locked, or cannot be read.
    Store(StoreError),
    /// The file of the store key is missing.
    NoKey(PathBuf),
    /// The file of the store key has another length than 32 bytes.
    BadKey(PathBuf),
    /// A shard cannot be started.
    Shard(u32, OpenError),
    /// A file or directory cannot be read or written.
    Io(PathBuf, io::Error),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::Url(text) => {
                write!(f, "not a store URL; use {}: store={text}", StoreUrl::syntaxes())
            }
            BootError::Store(error) => error.fmt(f),
            BootError::NoKey(path) => write!(
                f,
                "the store key is missing, and without it no credential can be verified; restore it from a backup: \
                 path={}",
                path.display()
            ),
            BootError::BadKey(path) => {
                write!(
                    f,
                    "not a store key, which has 32 bytes; restore it from a backup: path={}",
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

/// A store whose shards run. Locked against other processes while the guard exists.
pub struct OpenStore {
    /// The shards, in order.
    pub engines: Vec<Arc<Engine>>,
    /// The key that credentials are issued with.
    pub key: StoreKey,
    /// The shard of each slot.
    pub map: SlotMap,
    /// Torn tails that were cut off.
    pub torn_tails: Vec<TornTail>,
    /// Keeps other processes out.
    pub guard: StoreGuard,
}

/// The clock and the randomness of a store: the machine's, or a test's.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// Fills a buffer with random bytes.
    pub random: &'a dyn Fn(&mut [u8]),
    /// Creates the clock of a shard.
    pub clock: &'a dyn Fn() -> io::Result<Box<dyn Clock>>,
}

impl Environment<'_> {
    /// Creates a shard's clock from the clocks of this machine.
    pub fn machine_clock() -> io::Result<Box<dyn Clock>> {
        Ok(Box::new(MachineClock::new()?))
    }
}

/// Opens a store, or creates it, and starts its shards.
pub fn open(
    url: &StoreUrl,
    options: &OpenOptions,
    environment: Environment<'_>,
    observer: &Arc<dyn EngineObserver>,
) -> Result<OpenStore, BootError> {
    let StoreParts { logs, blobs, key, map, torn_tails, guard } =
        url.backend().open(options, environment.random)?;
    let start = |(number, log)| start(number, &map, log, &blobs, options, environment, observer);
    let engines = (0..).zip(logs).map(start).collect::<Result<_, _>>()?;
    Ok(OpenStore { engines, key, map, torn_tails, guard })
}

/// Creates a directory with mode 0700. An existing one is restricted to that, unless it has other uses: other
/// subdirectories than these, another owner, or the sticky bit.
pub(crate) fn private_dir(path: &Path, subdirectories: &[&str]) -> Result<(), BootError> {
    let access = private::create_dir(path).and_then(|()| private::tighten(path, subdirectories));
    if access.map_err(|error| BootError::Io(path.to_path_buf(), error))? == Access::Open {
        tracing::warn!(path = %path.display(), "other users may enter the directory; use one for lockd alone, with mode 0700");
    }
    Ok(())
}

fn start(
    number: u32,
    map: &SlotMap,
    log: Box<dyn LogStore>,
    blobs: &Arc<dyn BlobStore>,
    options: &OpenOptions,
    environment: Environment<'_>,
    observer: &Arc<dyn EngineObserver>,
) -> Result<Arc<Engine>, BootError> {
    let random = environment.random;
    let hash_seed = u64::from_le_bytes(random_bytes(random));
    let store = Store { shard: Shard(number), shards: map.shards(), hash_seed };
    let writer = u128::from_le_bytes(random_bytes(random));
    let slots = Slot::all().filter(|slot| map.shard(slot.number()) == number).collect();
    let tenure = TenureConfig { store, writer, limits: options.limits, slots };
    let clock = (environment.clock)()
        .map_err(|error| BootError::Io("/proc/sys/kernel/random/boot_id".into(), error))?;
    let (blobs, observer) = (Arc::clone(blobs), Arc::clone(observer));
    let engine = Engine::open(log, blobs, clock, &tenure, options.engine, observer);
    engine.map(Arc::new).map_err(|error| BootError::Shard(number, error))
}
