//! Several servers on one bucket: which of them owns a shard, which follow it, and when a follower takes over.
//!
//! **Invariant.** Nothing here is needed for safety: the log in the bucket decides which server owns a shard, by the
//! conditional creation of its next object. This module decides only when a server tries, and where requests are sent. A
//! record of a server that is stale, missing or forged costs a hop or a takeover, never a lease.
//!
//! Modules in reading order: `server_record` is the object by which servers know of each other; `watched_time` measures
//! silence; `placement` says which servers follow a shard, and which shards an owner should hand over; `registry` writes
//! this server's record and watches the others; `tender` is the thread of one shard, which follows, takes over, serves and
//! stands down; `shard_slot` is where requests find the shard's engine.

mod placement;
pub(crate) mod registry;
pub(crate) mod server_record;
pub(crate) mod shard_slot;
mod tender;
mod watched_time;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::Clock;
use engine::observe::EngineObserver;
use engine::{Executor, Options, TenureConfig};
use kernel::Shard;
use store::BlobStore;
use store::object::Objects;

use self::registry::Registry;
use self::server_record::ServerId;
use self::shard_slot::ShardSlot;
use self::tender::Tender;
use crate::backend::store::LogOpener;

/// Creates the clock of a shard.
pub(crate) type ClockSource = Arc<dyn Fn() -> std::io::Result<Box<dyn Clock>> + Send + Sync>;

/// Everything that servers of a cluster need of their common store, and of this process.
pub(crate) struct ClusterParts {
    pub(crate) id: ServerId,
    pub(crate) silence: Duration,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) open_log: LogOpener,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) clock: ClockSource,
    /// The tenure to open, by shard.
    pub(crate) tenures: Vec<TenureConfig>,
    pub(crate) options: Options,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) observer: Arc<dyn EngineObserver>,
}

/// This server among those of its bucket.
pub(crate) struct Cluster {
    registry: Arc<Registry>,
    slots: Vec<Arc<ShardSlot>>,
    stopping: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Cluster {
    /// Announces this server, and starts to follow the shards that are its own to follow.
    pub(crate) fn start(parts: ClusterParts) -> Result<Cluster, std::io::Error> {
        let shards = u32::try_from(parts.tenures.len()).expect("a store numbers its shards with 32 bits");
        let slots: Vec<_> = (0..shards).map(|_| Arc::new(ShardSlot::shared())).collect();
        let registry =
            Arc::new(Registry::new(parts.id, parts.silence, Arc::clone(&parts.objects), slots.clone()));
        // The first look, before any shard is tried: an owner that lives is seen by its record.
        registry.look();
        let stopping = Arc::new(AtomicBool::new(false));
        let parts = Arc::new(parts);
        let mut threads = Vec::new();
        let (beating, stop) = (Arc::clone(&registry), Arc::clone(&stopping));
        threads.push(spawn("beats", move || beating.run_beats(&stop))?);
        let (looking, stop) = (Arc::clone(&registry), Arc::clone(&stopping));
        threads.push(spawn("servers", move || looking.run_looks(&stop))?);
        for shard in (0..shards).map(Shard) {
            let slot = Arc::clone(&slots[shard.0 as usize]);
            let (parts, registry) = (Arc::clone(&parts), Arc::clone(&registry));
            let tender = Tender::new(shard, parts, registry, slot, Arc::clone(&stopping));
            threads.push(spawn("shard", move || tender.run())?);
        }
        Ok(Cluster { registry, slots, stopping, threads: Mutex::new(threads) })
    }

    pub(crate) fn slots(&self) -> &[Arc<ShardSlot>] {
        &self.slots
    }

    pub(crate) fn silence(&self) -> Duration {
        self.registry.silence()
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Waits until every shard has an owner, or the timeout is over. Whether every shard has one.
    pub(crate) fn wait_for_owners(&self, timeout: Duration) -> bool {
        self.registry.wait_for_owners(timeout)
    }

    /// Makes the threads of these shards hand them over. False if no other server is known that could have them.
    pub(crate) fn request_hand_over(&self, shards: &[Shard]) -> bool {
        let is_requested = self.registry.request_hand_over(shards);
        for shard in shards {
            self.slots[shard.0 as usize].wake();
        }
        is_requested
    }

    /// Hands every shard over, and withdraws this server's record.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.slots.iter().for_each(|slot| slot.wake());
        self.registry.wake();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        if threads.is_empty() {
            return;
        }
        for thread in threads {
            // A panic of the thread was reported by the panic hook.
            let _ = thread.join();
        }
        self.registry.withdraw();
    }
}

impl Drop for Cluster {
    /// A program that drops its server without stopping it must not leave an owner behind.
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, std::io::Error> {
    std::thread::Builder::new().name(format!("lockd-{name}")).spawn(run)
}
