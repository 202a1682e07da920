//! Where requests find the engine of a shard: always, if this process owns the store alone; while it owns the shard, in a
//! cluster.

use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use engine::Engine;

/// The engine of a shard, if this server owns the shard.
pub(crate) struct ShardSlot {
    engine: RwLock<Option<Arc<Engine>>>,
    /// Set to wake the thread of the shard before its next look.
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl ShardSlot {
    /// The slot of a shard that this process owns for as long as it runs.
    pub(crate) fn owned(engine: Arc<Engine>) -> ShardSlot {
        ShardSlot { engine: RwLock::new(Some(engine)), ..ShardSlot::shared() }
    }

    /// The slot of a shard that any server of a cluster may own.
    pub(crate) fn shared() -> ShardSlot {
        ShardSlot { engine: RwLock::new(None), is_woken: Mutex::new(false), woken: Condvar::new() }
    }

    /// The engine; `None` if another server owns the shard, or none does.
    pub(crate) fn engine(&self) -> Option<Arc<Engine>> {
        self.engine.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this server owns the shard. An engine that has just ended, and is still here, has lost it.
    pub(crate) fn is_owned(&self) -> bool {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref().is_some_and(|engine| !engine.sequencer().has_ended())
    }

    /// Requests get this engine from now on.
    pub(super) fn set(&self, engine: Option<Arc<Engine>>) {
        *self.engine.write().unwrap_or_else(PoisonError::into_inner) = engine;
    }

    /// Ends the wait of the shard's thread: a request has come for a shard that this server may soon own, or the server
    /// stops.
    pub(crate) fn wake(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.woken.notify_all();
    }

    /// Waits for the timeout, or until it is woken. Whether it was woken.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut woken, _) = self
            .woken
            .wait_timeout_while(woken, timeout, |woken| !*woken)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *woken)
    }
}
