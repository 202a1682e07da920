//! What a worker tells: one line before each call, and one after it was answered.
//!
//! **Invariant.** A line is one write to a pipe, and shorter than what a pipe takes whole: what was written before
//! the end is there, and nothing is there in part.

use std::io::{self, Write};

use kernel::{Etag, LeaseId, Lsn, ResourceName, Shard};
use serde::{Deserialize, Serialize};
use sim::rng::Rng;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// The store is open: the tenure is durable.
    Opened { term: u64 },
    /// A client is about to ask.
    Asks(Client, Ask),
    /// A client was answered.
    Told(Client, Told),
    /// A snapshot was taken, and so many documents carried forward.
    Snapshot { moved: usize },
    /// So many blobs were swept.
    Swept(usize),
    /// The store does not work any more.
    Trouble(String),
    /// What may never happen.
    Wrong(String),
}

/// A client's number. Each has keys of its own, so that it knows what it will be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Client(pub(crate) u32);

/// The number of one of a client's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key(pub(crate) u32);

/// A lease, by the LSN of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Lease(pub(crate) u64);

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Acquire(Vec<Key>),
    Renew(Lease),
    Release(Lease),
    Revoke(Lease),
    Reclaim(Lease),
    Commit { lease: Lease, key: Key, content: Content, release: bool },
}

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    Granted { lease: Lease, deadline: u64 },
    Renewed { deadline: u64 },
    Committed { version: u64 },
    Done,
}

/// A document, made up from a number that no other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) id: u64,
    pub(crate) bytes: usize,
}

impl Key {
    /// How many each client has.
    pub(crate) const COUNT: u32 = 4;

    pub(crate) fn name(self, client: Client) -> ResourceName {
        ResourceName::key(&format!("client-{}-key-{}", client.0, self.0)).expect("a valid key")
    }

    pub(crate) fn all() -> impl Iterator<Item = Key> {
        (0..Key::COUNT).map(Key)
    }
}

impl Lease {
    pub(crate) fn id(self) -> LeaseId {
        LeaseId { shard: Shard(0), lsn: Lsn(self.0) }
    }
}

impl From<LeaseId> for Lease {
    fn from(id: LeaseId) -> Lease {
        Lease(id.lsn.0)
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

impl Line {
    /// Writes it to the pipe. Fails when nobody reads any more.
    pub(crate) fn write(&self) -> io::Result<()> {
        let mut text = serde_json::to_string(self).expect("plain data");
        text.push('\n');
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// A line without its end was not written whole.
    pub(crate) fn parse(text: &str) -> Result<Option<Line>, String> {
        let Some(text) = text.strip_suffix('\n') else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|error| format!("a worker said {text:?}: {error}"))
    }
}
