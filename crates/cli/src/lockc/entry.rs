//! A held lease, as a context stores it.

use std::path::PathBuf;
use std::time::Duration;

use api::responses::{Extended, Granted};
use cli::remote::{ConnectionArgs, Failure, LeaseCredential, TlsFiles, servers};
use serde::{Deserialize, Serialize};
use worktree::clock::{BootId, BootMs, Clock, SystemClock, UnixMs};

/// A lease, and how to reach the server that granted it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct LeaseEntry {
    pub(crate) key: String,
    pub(crate) namespace: String,
    pub(crate) servers: Vec<String>,
    identity: Option<PathBuf>,
    /// Certificate, key and CAs, if the identity is in three files.
    #[serde(default)]
    tls: Option<[PathBuf; 3]>,
    #[serde(default)]
    denylist_path: Option<PathBuf>,
    timeout_ms: Option<u64>,
    pub(crate) owner: String,
    /// The credential; never printed.
    pub(crate) lease_id: String,
    pub(crate) public_id: String,
    pub(crate) fencing_token: u64,
    /// The last requested TTL.
    pub(crate) ttl_ms: u64,
    ends: Expiry,
}

/// The latest time at which a lease expires, on this machine's clocks.
#[derive(Clone, Serialize, Deserialize)]
struct Expiry {
    boot_id: BootId,
    boot: BootMs,
    wall: UnixMs,
}

impl Expiry {
    /// Counts from the arrival of the response. The server counts from an earlier time, so this is an upper bound.
    fn after(remaining_ms: u64) -> Expiry {
        let clock = SystemClock::new();
        let boot = clock.boot().plus(remaining_ms);
        Expiry { boot_id: clock.boot_id(), boot, wall: clock.wall().plus(remaining_ms) }
    }

    /// Time left on the boot clock, or on the wall clock if the machine has rebooted since.
    fn left(&self, clock: &dyn Clock) -> Duration {
        let ms = if self.boot_id == clock.boot_id() {
            self.boot.since(clock.boot())
        } else {
            self.wall.since(clock.wall())
        };
        Duration::from_millis(ms)
    }
}

impl LeaseEntry {
    /// A lease that was just granted.
    pub(crate) fn new(connection: &ConnectionArgs, granted: &Granted) -> Result<LeaseEntry, Failure> {
        Ok(LeaseEntry {
            key: granted.key.clone().unwrap_or_default(),
            namespace: granted.namespace.clone(),
            servers: servers(connection)?,
            identity: connection.identity.clone(),
            tls: connection.tls.separate()?.map(|files| [files.certificate, files.key, files.ca]),
            denylist_path: connection.denylist_path.clone(),
            timeout_ms: connection.timeout.and_then(|timeout| timeout.as_millis().try_into().ok()),
            owner: granted.owner.clone(),
            lease_id: granted.lease_id.clone(),
            public_id: granted.public_id.clone(),
            fencing_token: granted.fencing_token,
            ttl_ms: granted.ttl_ms,
            ends: Expiry::after(granted.remaining_ms),
        })
    }

    /// Applies a renewal with this TTL.
    pub(crate) fn extend(&mut self, extended: &Extended, ttl: Duration) {
        self.ttl_ms = ttl.as_millis().try_into().unwrap_or(u64::MAX);
        self.ends = Expiry::after(extended.remaining_ms);
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// Upper bound of the time left without a renewal.
    pub(crate) fn left(&self, clock: &dyn Clock) -> Duration {
        self.ends.left(clock)
    }

    /// The connection to the server that granted the lease.
    pub(crate) fn connection(&self) -> ConnectionArgs {
        ConnectionArgs {
            server: self.servers.clone(),
            namespace: Some(self.namespace.clone()),
            mtls: true,
            identity: self.identity.clone(),
            tls: self.tls_files(),
            denylist_path: self.denylist_path.clone(),
            timeout: self.timeout_ms.map(Duration::from_millis),
        }
    }

    fn tls_files(&self) -> TlsFiles {
        let Some([certificate, key, ca]) = self.tls.clone() else { return TlsFiles::default() };
        TlsFiles { tls_cert: Some(certificate), tls_key: Some(key), tls_ca: Some(ca) }
    }

    pub(crate) fn credential(&self) -> LeaseCredential {
        let (key, lease_id) = (self.key.clone(), self.lease_id.clone());
        let namespace = Some(self.namespace.clone());
        LeaseCredential { key, namespace, lease_id, fencing_token: Some(self.fencing_token) }
    }
}
