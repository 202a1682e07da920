//! A store in memory whose appends take a while, or whose disk is full; it keeps the wall-clock time at which the last
//! append began.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockd_server::backend::boot_error::BootError;
use lockd_server::backend::credential::StoreKey;
use lockd_server::backend::open_options::OpenOptions;
use lockd_server::backend::store::{StoreBackend, StoreParts};
use store::faulty::{Call, Fault, Faulty, Plan};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{ErrorKind, SlotMap};

#[derive(Clone, Default)]
pub(crate) struct SlowStore {
    delay_ms: Arc<AtomicU64>,
    appended_at: Arc<AtomicU64>,
    is_full: Arc<AtomicBool>,
    appending: Arc<AtomicU64>,
}

impl SlowStore {
    /// How long each append takes from now on, the one that is under way included.
    pub(crate) fn delay(&self, delay: Duration) {
        self.delay_ms.store(u64::try_from(delay.as_millis()).expect("short"), Ordering::Release);
    }

    /// Whether no space can be reserved from now on.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Release);
    }

    /// When the last append began, in milliseconds since 1970. What it makes durable was decided before.
    pub(crate) fn appended_at_unix_ms(&self) -> u64 {
        self.appended_at.load(Ordering::Acquire)
    }

    /// The number of appends that are paused now.
    pub(crate) fn appending(&self) -> u64 {
        self.appending.load(Ordering::Acquire)
    }

    /// Blocks the append thread, as a slow disk does.
    fn pause(&self) {
        const STEP_MS: u64 = 5;
        self.appending.fetch_add(1, Ordering::AcqRel);
        let mut paused_ms = 0;
        while paused_ms < self.delay_ms.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(STEP_MS));
            paused_ms += STEP_MS;
        }
        self.appending.fetch_sub(1, Ordering::AcqRel);
    }

    fn plan(&self) -> Plan {
        let store = self.clone();
        Box::new(move |call| {
            if call == Call::Append {
                store.appended_at.store(unix_ms(), Ordering::Release);
                store.pause();
            }
            match call {
                Call::Reserve if store.is_full.load(Ordering::Acquire) => Fault::Before(ErrorKind::NoSpace),
                _ => Fault::None,
            }
        })
    }
}

impl StoreBackend for SlowStore {
    fn open(&self, options: &OpenOptions, random: &dyn Fn(&mut [u8])) -> Result<StoreParts, BootError> {
        assert_eq!(options.shards, 1, "one shard, one last append");
        let mut key = [0; 32];
        random(&mut key);
        Ok(StoreParts {
            map: SlotMap::ranges(1).expect("one shard"),
            logs: vec![Box::new(Faulty::new(MemoryLog::default(), self.plan()))],
            shared: None,
            blobs: Arc::new(MemoryBlobs::default()),
            key: StoreKey::new(key),
            object_requests: None,
            torn_tails: Vec::new(),
            guard: Box::new(()),
        })
    }

    fn url(&self) -> String {
        "mem://slow".to_string()
    }
}

#[expect(clippy::disallowed_methods, reason = "compared with what a server publishes by the same clock")]
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_millis()).expect("this century")
}
