//! Opens the store at a URL, and starts its shards.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use bucket::RequestCounts;
use engine::observe::EngineObserver;
use engine::{Clock, Engine, Executor, MachineClock, TenureConfig, Workers};
use kernel::{Shard, Slot, Store};
use store::{BlobStore, LogStore, SlotMap};

use crate::backend::boot_error::BootError;
use crate::backend::credential::StoreKey;
use crate::backend::open_options::OpenOptions;
use crate::backend::store::{StoreGuard, StoreParts, StoreUrl, TornTail, random_bytes};

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
    /// The requests to the object store, if it is one.
    pub object_requests: Option<RequestCounts>,
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
    let StoreParts { logs, blobs, key, map, torn_tails, object_requests, guard } =
        url.backend().open(options, environment.random)?;
    // A thread of its own for each append that waits for another machine.
    let threads = if url.backend().is_remote() { logs.len() + APPENDS_BESIDE } else { 0 };
    let executor: Arc<dyn Executor> = Arc::new(Workers::with_appends(threads));
    let environment = ShardEnvironment { environment, executor: &executor, observer };
    let start = |(number, log)| start(number, &map, log, &blobs, options, environment);
    let engines = (0..).zip(logs).map(start).collect::<Result<Vec<_>, _>>()?;
    if url.backend().is_remote() {
        (0..).zip(&engines).try_for_each(|(number, engine)| wait_for_ownership(number, engine))?;
    }
    Ok(OpenStore { engines, key, map, torn_tails, object_requests, guard })
}

/// Threads for work of shards beside their appends.
const APPENDS_BESIDE: usize = 8;

/// What all shards of a store share.
#[derive(Clone, Copy)]
struct ShardEnvironment<'a> {
    environment: Environment<'a>,
    executor: &'a Arc<dyn Executor>,
    observer: &'a Arc<dyn EngineObserver>,
}

fn start(
    number: u32,
    map: &SlotMap,
    log: Box<dyn LogStore>,
    blobs: &Arc<dyn BlobStore>,
    options: &OpenOptions,
    shared: ShardEnvironment<'_>,
) -> Result<Arc<Engine>, BootError> {
    let mut log = log;
    reserve(number, &mut *log)?;
    let random = shared.environment.random;
    let hash_seed = u64::from_le_bytes(random_bytes(random));
    let store = Store { shard: Shard(number), shards: map.shards(), hash_seed };
    let writer = u128::from_le_bytes(random_bytes(random));
    let slots = Slot::all().filter(|slot| map.shard(slot.number()) == number).collect();
    let limits = options.limits.in_each_of(map.shards());
    let tenure = TenureConfig { store, writer, limits, slots };
    let clock = (shared.environment.clock)()
        .map_err(|error| BootError::Io("/proc/sys/kernel/random/boot_id".into(), error))?;
    let (blobs, observer) = (Arc::clone(blobs), Arc::clone(shared.observer));
    let engine = Engine::open(log, blobs, clock, &tenure, options.engine.clone(), observer, shared.executor);
    engine.map(Arc::new).map_err(|error| BootError::Shard(number, error))
}

/// Waits until the record that begins the tenure is durable: until then another server may own the log.
fn wait_for_ownership(number: u32, engine: &Engine) -> Result<(), BootError> {
    let (send, receive) = sync_channel(1);
    let lost = || BootError::Deposed(number);
    let query = engine.sequencer().query(Box::new(move |_| Box::new(move || drop(send.send(())))));
    query.map_err(|_| lost())?;
    receive.recv().map_err(|_| lost())
}

/// The most bytes of the record that begins a tenure, with every slot in it.
const OPEN_RECORD_BYTES_MAX: u64 = 64 << 10;

/// A tenure begins with a record. If its append failed for lack of space, the process would end after the start, with an
/// advice to start it again.
fn reserve(shard: u32, log: &mut dyn LogStore) -> Result<(), BootError> {
    match log.reserve() {
        Err(error) if log.capacity().bytes < OPEN_RECORD_BYTES_MAX => Err(BootError::NoSpace(shard, error)),
        // With less space than a whole segment the server starts, and accepts releases.
        _ => Ok(()),
    }
}
