//! A lease that is held, as a context keeps it.

use std::path::PathBuf;
use std::time::Duration;

use api::tell::{Extended, Granted};
use cli::remote::{Connection, Failure, Held, servers};
use serde::{Deserialize, Serialize};
use worktree::clock::{BootId, BootMs, Clock, SystemClock, UnixMs};

/// A lease, and how to reach whoever granted it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) namespace: String,
    pub(crate) servers: Vec<String>,
    identity: Option<PathBuf>,
    timeout_ms: Option<u64>,
    pub(crate) owner: String,
    /// The credential: never printed.
    pub(crate) lease_id: String,
    pub(crate) public_id: String,
    pub(crate) fencing_token: u64,
    /// As it was last asked for.
    pub(crate) ttl_ms: u64,
    ends: Ends,
}

/// When a lease ends at the latest, by this machine's clocks.
#[derive(Clone, Serialize, Deserialize)]
struct Ends {
    boot_id: BootId,
    boot: BootMs,
    wall: UnixMs,
}

impl Ends {
    /// Counted from when the answer is here: the server counts from earlier.
    fn after(remaining_ms: u64) -> Ends {
        let clock = SystemClock::new();
        let boot = clock.boot().plus(remaining_ms);
        Ends { boot_id: clock.boot_id(), boot, wall: clock.wall().plus(remaining_ms) }
    }

    /// The boot clock decides; after a restart only the wall clock is left.
    fn left(&self, clock: &dyn Clock) -> Duration {
        let ms = if self.boot_id == clock.boot_id() {
            self.boot.since(clock.boot())
        } else {
            self.wall.since(clock.wall())
        };
        Duration::from_millis(ms)
    }
}

impl Entry {
    /// A lease that was just granted.
    pub(crate) fn new(connection: &Connection, granted: &Granted) -> Result<Entry, Failure> {
        Ok(Entry {
            key: granted.key.clone().unwrap_or_default(),
            namespace: granted.namespace.clone(),
            servers: servers(connection)?,
            identity: connection.identity.clone(),
            timeout_ms: connection.timeout.and_then(|timeout| timeout.as_millis().try_into().ok()),
            owner: granted.owner.clone(),
            lease_id: granted.lease_id.clone(),
            public_id: granted.public_id.clone(),
            fencing_token: granted.fencing_token,
            ttl_ms: granted.ttl_ms,
            ends: Ends::after(granted.remaining_ms),
        })
    }

    /// It was extended, by this TTL.
    pub(crate) fn extend(&mut self, extended: &Extended, ttl: Duration) {
        self.ttl_ms = ttl.as_millis().try_into().unwrap_or(u64::MAX);
        self.ends = Ends::after(extended.remaining_ms);
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// How long it lasts at most, if nobody extends it.
    pub(crate) fn left(&self, clock: &dyn Clock) -> Duration {
        self.ends.left(clock)
    }

    /// To ask whoever granted it.
    pub(crate) fn connection(&self) -> Connection {
        Connection {
            server: self.servers.clone(),
            namespace: Some(self.namespace.clone()),
            mtls: true,
            identity: self.identity.clone(),
            timeout: self.timeout_ms.map(Duration::from_millis),
        }
    }

    pub(crate) fn held(&self) -> Held {
        let (key, lease_id) = (self.key.clone(), self.lease_id.clone());
        Held { key, lease_id, fencing_token: Some(self.fencing_token) }
    }
}
