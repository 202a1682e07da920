//! Opens a store, with its key and its shards, from where its URL says it is.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Clock, Engine, EngineObserver, MachineClock, OpenError, Options, TenureConfig};
use kernel::{Limits, Shard, Store};
use store::private::{self, Access};
use store::{BlobStore, LogStore, StoreError};

use crate::backend::credential::StoreKey;
use crate::backend::store::{OpenStore, StoreGuard, StoreUrl, TornTail, random_bytes};

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
                write!(f, "not a store URL; use {}: store={text}", StoreUrl::syntaxes())
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
    /// Torn tails that were cut off.
    pub torn_tails: Vec<TornTail>,
    /// Keeps other processes out.
    pub guard: StoreGuard,
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
    let OpenStore { logs, blobs, key, torn_tails, guard } = url.backend().open(making, machine.random)?;
    let shards = u32::try_from(logs.len()).expect("a store numbers its shards with 32 bits");
    let start = |(number, log)| start(number, shards, log, &blobs, making, machine, watcher);
    let engines = (0..).zip(logs).map(start).collect::<Result<_, _>>()?;
    Ok(Opened { engines, key, torn_tails, guard })
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
    let hash_seed = u64::from_le_bytes(random_bytes(random));
    let store = Store { shard: Shard(number), shards, hash_seed };
    let opening =
        TenureConfig { store, writer: u128::from_le_bytes(random_bytes(random)), limits: making.limits };
    let clock =
        (machine.clock)().map_err(|error| BootError::Io("/proc/sys/kernel/random/boot_id".into(), error))?;
    let (blobs, watcher) = (Arc::clone(blobs), Arc::clone(watcher));
    let engine = Engine::open(log, blobs, clock, &opening, making.options, watcher);
    engine.map(Arc::new).map_err(|error| BootError::Shard(number, error))
}
