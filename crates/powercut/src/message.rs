//! Messages of a worker: one line before each call, and one after its response.
//!
//! **Invariant.** A message is one write to a pipe, no longer than a pipe accepts atomically: messages written before
//! the kill are complete, and there are no partial ones.

use std::io::{self, Write};

use kernel::{Etag, LeaseId, Lsn, ResourceName, Shard};
use serde::{Deserialize, Serialize};
use sim::rng::Rng;

/// One message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// The store is open: the tenure is durable.
    Opened { term: u64 },
    /// A client is about to send a request.
    Request(ClientId, WorkerRequest),
    /// A client got a response.
    Response(ClientId, WorkerResponse),
    /// A snapshot was taken, and `moved` documents were relocated.
    Snapshot { moved: usize },
    /// This many blobs were garbage-collected.
    Swept(usize),
    /// The store has failed.
    StoreFailed(String),
    /// An invariant was violated.
    Violation(String),
}

/// A client's number. Each has its own keys, so the responses to its requests are predictable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ClientId(pub(crate) u32);

/// The index of one of a client's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct KeyIndex(pub(crate) u32);

/// A lease, by the LSN of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LeaseLsn(pub(crate) u64);

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerRequest {
    Acquire(Vec<KeyIndex>),
    Renew(LeaseLsn),
    Release(LeaseLsn),
    Revoke(LeaseLsn),
    Reclaim(LeaseLsn),
    Commit { lease: LeaseLsn, key: KeyIndex, content: Content, release: bool },
}

/// The response to a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerResponse {
    Granted { lease: LeaseLsn, deadline: u64 },
    Renewed { deadline: u64 },
    Committed { version: u64 },
    Done,
}

/// A document that is generated from a unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) id: u64,
    pub(crate) bytes: usize,
}

impl KeyIndex {
    /// The number of keys of each client.
    pub(crate) const COUNT: u32 = 4;

    pub(crate) fn name(self, client: ClientId) -> ResourceName {
        ResourceName::key(&format!("client-{}-key-{}", client.0, self.0)).expect("a valid key")
    }

    pub(crate) fn all() -> impl Iterator<Item = KeyIndex> {
        (0..KeyIndex::COUNT).map(KeyIndex)
    }
}

impl LeaseLsn {
    pub(crate) fn id(self) -> LeaseId {
        LeaseId { shard: Shard(0), lsn: Lsn(self.0) }
    }
}

impl From<LeaseId> for LeaseLsn {
    fn from(id: LeaseId) -> LeaseLsn {
        LeaseLsn(id.lsn.0)
    }
}

impl Content {
    pub(crate) fn etag(self) -> Etag {
        let mut etag = [0; 32];
        etag[..8].copy_from_slice(&self.id.to_le_bytes());
        etag[8..16].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        Etag(etag)
    }

    pub(crate) fn from_etag(etag: Etag) -> Content {
        let half = |from: usize| u64::from_le_bytes(etag.0[from..from + 8].try_into().expect("eight bytes"));
        Content { id: half(0), bytes: usize::try_from(half(8)).unwrap_or(usize::MAX) }
    }

    pub(crate) fn make(self) -> Vec<u8> {
        let mut rng = Rng::new(self.id);
        let mut bytes: Vec<u8> =
            (0..self.bytes.div_ceil(8)).flat_map(|_| rng.number().to_le_bytes()).collect();
        bytes.truncate(self.bytes);
        bytes
    }
}

impl WorkerMessage {
    /// Writes it to the pipe. Fails when the reader has gone.
    pub(crate) fn write(&self) -> io::Result<()> {
        let mut text = serde_json::to_string(self).expect("plain data");
        text.push('\n');
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// `None` for a line without its newline: the write was cut off.
    pub(crate) fn parse(text: &str) -> Result<Option<WorkerMessage>, String> {
        let Some(text) = text.strip_suffix('\n') else { return Ok(None) };
        serde_json::from_str(text)
            .map(Some)
            .map_err(|error| format!("invalid message of a worker: {text:?}: {error}"))
    }
}
