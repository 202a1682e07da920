//! Opens the store at a URL, and starts its shards.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bucket::RequestCounts;
use engine::observe::EngineObserver;
use engine::{Clock, Engine, Executor, MachineClock, TenureConfig, Workers};
use kernel::{Shard, Slot, Store};
use store::{BlobStore, LogStore, SlotMap};

use crate::backend::boot_error::BootError;
use crate::backend::cluster::server_record::ServerId;
use crate::backend::cluster::shard_slot::ShardSlot;
use crate::backend::cluster::{Cluster, ClusterParts};
use crate::backend::credential::StoreKey;
use crate::backend::open_options::OpenOptions;
use crate::backend::store::{SharedStore, StoreGuard, StoreParts, StoreUrl, TornTail, random_bytes};

/// A store whose shards run. Locked against other processes while the guard exists.
pub struct OpenStore {
    /// The shards, in order.
    pub(crate) slots: Vec<Arc<ShardSlot>>,
    /// The other servers of the store, if there may be any.
    pub(crate) cluster: Option<Arc<Cluster>>,
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
    let StoreParts { logs, shared, blobs, key, map, torn_tails, object_requests, guard } =
        url.backend().open(options, environment.random)?;
    // A thread of its own for each append that waits for another machine.
    let threads = if shared.is_some() { map.shards() as usize + APPENDS_BESIDE } else { 0 };
    let executor: Arc<dyn Executor> = Arc::new(Workers::with_appends(threads));
    let environment = ShardEnvironment { environment, executor: &executor, observer };
    let (slots, cluster) = if let Some(shared) = shared {
        let cluster = join_cluster(shared, &map, blobs, options, environment)?;
        (cluster.slots().to_vec(), Some(Arc::new(cluster)))
    } else {
        let start = |(number, log)| start(number, &map, log, &blobs, options, environment);
        let slot = |engine: Result<_, _>| engine.map(|engine| Arc::new(ShardSlot::owned(engine)));
        ((0..).zip(logs).map(start).map(slot).collect::<Result<Vec<_>, _>>()?, None)
    };
    Ok(OpenStore { slots, cluster, key, map, torn_tails, object_requests, guard })
}

/// Joins the servers of a bucket. Returns when every shard has an owner, this server or another; or later than any takeover
/// takes: requests for a shard without an owner are then refused.
fn join_cluster(
    shared: SharedStore,
    map: &SlotMap,
    blobs: Arc<dyn BlobStore>,
    options: &OpenOptions,
    environment: ShardEnvironment<'_>,
) -> Result<Cluster, BootError> {
    let id = ServerId(u128::from_le_bytes(random_bytes(environment.environment.random)));
    let silence = options.takeover_silence;
    let SharedStore { objects, open_log } = shared;
    let tenure = |number| tenure(number, map, id.0, options, environment);
    let cluster = Cluster::start(ClusterParts {
        id,
        silence,
        objects,
        open_log,
        blobs,
        clock: Arc::new(Environment::machine_clock),
        tenures: (0..map.shards()).map(tenure).collect(),
        options: options.engine.clone(),
        executor: Arc::clone(environment.executor),
        observer: Arc::clone(environment.observer),
    });
    let cluster = cluster.map_err(|error| BootError::Io("/proc/self/task".into(), error))?;
    if !cluster.wait_for_owners(silence * 3 + OWNERS_TIMEOUT) {
        tracing::warn!("a shard has no owner yet; requests for it are refused until it has one");
    }
    Ok(cluster)
}

/// A start waits for owners of all shards for three silences and this time.
const OWNERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The tenure that a server opens when it takes a shard.
fn tenure(
    number: u32,
    map: &SlotMap,
    writer: u128,
    options: &OpenOptions,
    shared: ShardEnvironment<'_>,
) -> TenureConfig {
    let hash_seed = u64::from_le_bytes(random_bytes(shared.environment.random));
    let store = Store { shard: Shard(number), shards: map.shards(), hash_seed };
    let slots = Slot::all().filter(|slot| map.shard(slot.number()) == number).collect();
    TenureConfig { store, writer, limits: options.limits.in_each_of(map.shards()), slots }
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
    let writer = u128::from_le_bytes(random_bytes(shared.environment.random));
    let tenure = tenure(number, map, writer, options, shared);
    let clock = (shared.environment.clock)()
        .map_err(|error| BootError::Io("/proc/sys/kernel/random/boot_id".into(), error))?;
    let (blobs, observer) = (Arc::clone(blobs), Arc::clone(shared.observer));
    let engine = Engine::open(log, blobs, clock, &tenure, options.engine.clone(), observer, shared.executor);
    engine.map(Arc::new).map_err(|error| BootError::Shard(number, error))
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
