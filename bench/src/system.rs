//! What the bench asks of every system: a server that it can start, and clients that lease keys.
//!
//! **Invariant.** An operation returns `Ok` only when the system has confirmed it at the durability that the system
//! states. A client never answers by itself, retries in silence, or merges operations of different clients into one. Clients
//! of some systems share a connection, and with it the writes to its socket.
//! Left out: what the figures mean. Adapters do not measure, and workloads do not know which system they drive.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// Why there is no figure.
#[derive(Debug, Clone)]
pub enum Error {
    /// Another client has the lease: the one refusal that a workload may expect.
    Held,
    /// The system cannot do this, with the reason.
    Unsupported(String),
    /// The workload was not finished by its deadline, with how far it came.
    Unfinished(String),
    /// Anything else: fails the run.
    Failed(String),
}

impl Error {
    /// A failure with the text of its cause.
    pub fn failed(cause: impl std::fmt::Display) -> Error {
        Error::Failed(cause.to_string())
    }

    /// A refusal of a workload that the system has no operation for.
    pub fn unsupported(reason: &str) -> Error {
        Error::Unsupported(reason.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Failed(error.to_string())
    }
}

/// The result of an operation of a client.
pub type Result<T> = std::result::Result<T, Error>;

/// When a system confirms an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// After a flush to the device that covers it.
    Flushed,
    /// Before the flush, which follows within a second: weaker.
    EverySecond,
    /// Never written: weaker.
    Volatile,
    /// Not a lease service, but a bound for them.
    Ceiling,
}

impl Durability {
    /// A word for tables.
    pub fn label(self) -> &'static str {
        match self {
            Durability::Flushed => "flushed",
            Durability::EverySecond => "weaker: flushed every second",
            Durability::Volatile => "weaker: volatile",
            Durability::Ceiling => "ceiling",
        }
    }
}

/// How leases of a system end without a release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Each at its own deadline.
    PerLease,
    /// With the session of its client.
    WithSession,
}

/// Settings that adapters need.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The program `lockd`.
    pub lockd: PathBuf,
    /// Folder on the disk that is measured.
    pub data: PathBuf,
}

/// A granted lease.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The key, or the first of a bundle.
    pub key: String,
    /// What the holder must present, as the adapter needs it.
    pub credential: String,
    /// A number that belongs to the credential: etcd's lease id, a row's token.
    pub number: i64,
    /// The further keys of a bundle.
    pub rest: Vec<String>,
}

impl Lease {
    /// A lease of one key.
    pub fn new(key: &str, credential: impl Into<String>, number: i64) -> Lease {
        Lease { key: key.to_string(), credential: credential.into(), number, rest: Vec::new() }
    }
}

/// A system under measurement. It may not start processes by itself: [`crate::server`] does, and ends them.
#[async_trait]
pub trait System: Send + Sync {
    /// The name on the command line and in tables.
    fn name(&self) -> &'static str;

    /// When it confirms.
    fn durability(&self) -> Durability;

    /// How a lease is made of the system's operations, in one line.
    fn about(&self) -> &'static str;

    /// How leases end without a release.
    fn expiry(&self) -> Expiry {
        Expiry::PerLease
    }

    /// The version of the installed program; an error means that it is missing.
    fn version(&self, environment: &Environment) -> Result<String>;

    /// Prepares the fresh data folder, before the first start.
    fn prepare(&self, _folder: &Path) -> Result<()> {
        Ok(())
    }

    /// The command that serves on this port of loopback from this folder.
    fn command(&self, environment: &Environment, folder: &Path, port: u16) -> Command;

    /// Returns `Ok` once the server serves; called until then. Creates tables and the like.
    async fn set_up(&self, address: &str) -> Result<()>;

    /// A client, with a connection of its own unless the system says otherwise. Its session, if the system has such, ends this long after the client's
    /// last sign of life.
    async fn connect(&self, address: &str, session: Duration) -> Result<Box<dyn Client>>;
}

/// A client, with one operation at a time.
#[async_trait]
pub trait Client: Send {
    /// Leases a key, or fails with [`Error::Held`] at once.
    async fn acquire(&mut self, key: &str, ttl: Duration) -> Result<Lease>;

    /// Ends a lease.
    async fn release(&mut self, lease: Lease) -> Result<()>;

    /// Leases a key, and waits as long as another client has it.
    async fn acquire_waiting(&mut self, _key: &str, _ttl: Duration) -> Result<Lease> {
        Err(Error::unsupported("no way to wait"))
    }

    /// Extends a lease.
    async fn renew(&mut self, _lease: &Lease, _ttl: Duration) -> Result<()> {
        Err(Error::unsupported("no renewal"))
    }

    /// Extends many leases, in the best way that the system offers.
    async fn renew_many(&mut self, leases: &[Lease], ttl: Duration) -> Result<()> {
        for lease in leases {
            self.renew(lease, ttl).await?;
        }
        Ok(())
    }

    /// Leases many keys, in the best way that the system offers.
    async fn acquire_many(&mut self, keys: &[String], ttl: Duration) -> Result<Vec<Lease>> {
        let mut leases = Vec::with_capacity(keys.len());
        for key in keys {
            leases.push(self.acquire(key, ttl).await?);
        }
        Ok(leases)
    }

    /// Leases several keys, all or none.
    async fn acquire_bundle(&mut self, _keys: &[String], _ttl: Duration) -> Result<Lease> {
        Err(Error::unsupported("no atomic lease over several keys"))
    }

    /// Writes a JSON document, atomically with a check that the lease is still held.
    async fn update(&mut self, _lease: &Lease, _document: &[u8]) -> Result<()> {
        Err(Error::unsupported("no document under a lease"))
    }

    /// How many leases the server still stores.
    async fn live(&mut self) -> Result<u64> {
        Err(Error::unsupported("expired leases are not removed by the server"))
    }
}
