//! Kinds of stores, and the URLs that select them.
//!
//! A new kind is a file in `store/` that implements [`StoreBackend`], and a row of `SCHEMES`.

mod disk;
mod memory;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernel::Shard;
use store::{BlobStore, LogStore, LsnRange, Seq, SlotMap};

use crate::backend::boot_error::BootError;
use crate::backend::credential::StoreKey;
use crate::backend::open_options::OpenOptions;
use disk::DiskBackend;
use memory::MemoryBackend;

/// A URL scheme: its prefix, the syntax that error messages show, and the parser of the rest.
struct Scheme {
    prefix: &'static str,
    syntax: Option<&'static str>,
    parse: fn(&str) -> Option<StoreUrl>,
}

/// Every URL scheme. `pebble` is an alias of `disk`.
const SCHEMES: [Scheme; 3] = [
    Scheme { prefix: "disk://", syntax: Some("disk:///path (an absolute path)"), parse: DiskBackend::parse },
    Scheme { prefix: "pebble://", syntax: None, parse: DiskBackend::parse },
    Scheme { prefix: "mem:", syntax: Some("mem://"), parse: MemoryBackend::parse },
];

/// A kind of store, at one location.
pub trait StoreBackend: Send + Sync {
    /// Opens the store, or creates it, and locks it against other processes.
    fn open(&self, options: &OpenOptions, random: &dyn Fn(&mut [u8])) -> Result<StoreParts, BootError>;

    /// The URL that selects it.
    fn url(&self) -> String;

    /// Its directory on this machine, if it has one.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// Whether its log ends with the process, and so is never replayed.
    fn is_volatile(&self) -> bool {
        false
    }
}

/// The parts of an open store.
pub struct StoreParts {
    /// The log of each shard, in order.
    pub logs: Vec<Box<dyn LogStore>>,
    /// The documents that are not in the log, of all shards.
    pub blobs: Arc<dyn BlobStore>,
    /// The key that credentials are issued with.
    pub key: StoreKey,
    /// The shard of each slot.
    pub map: SlotMap,
    /// Torn tails that were cut off, at most one per log.
    pub torn_tails: Vec<TornTail>,
    /// Keeps other processes out until it is dropped.
    pub guard: StoreGuard,
}

/// Exclusive use of a store. Dropped, it lets another process open the store.
pub type StoreGuard = Box<dyn Send + Sync>;

/// A torn tail that was cut off a log: a batch whose append was interrupted, and so was never acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The shard of the log.
    pub shard: Shard,
    /// The file that was cut.
    pub file: PathBuf,
    /// Where it was cut, in bytes.
    pub offset: u64,
    /// The sequence number of the torn batch.
    pub seq: Seq,
    /// The LSNs of the torn batch, if its header was readable.
    pub lsns: Option<LsnRange>,
}

/// The location of a store, and the backend that opens it.
#[derive(Clone)]
pub struct StoreUrl(Arc<dyn StoreBackend>);

impl StoreUrl {
    /// `disk:///path`, its alias `pebble:///path`, or `mem://`.
    pub fn parse(text: &str) -> Result<StoreUrl, BootError> {
        let parse = |scheme: &Scheme| text.strip_prefix(scheme.prefix).and_then(scheme.parse);
        SCHEMES
            .iter()
            .find_map(parse)
            .ok_or_else(|| BootError::Url { text: text.to_string(), syntaxes: StoreUrl::syntaxes() })
    }

    /// A store in a directory.
    pub fn disk(path: impl Into<PathBuf>) -> StoreUrl {
        StoreUrl::new(DiskBackend::new(path.into()))
    }

    /// A store in memory, which ends with the process.
    pub fn memory() -> StoreUrl {
        StoreUrl::new(MemoryBackend)
    }

    /// A store of another kind: for programs that embed the server.
    pub fn new(backend: impl StoreBackend + 'static) -> StoreUrl {
        StoreUrl(Arc::new(backend))
    }

    pub(crate) fn backend(&self) -> &dyn StoreBackend {
        &*self.0
    }

    /// The syntax of every scheme, for error messages.
    fn syntaxes() -> String {
        SCHEMES.iter().filter_map(|scheme| scheme.syntax).collect::<Vec<_>>().join(" or ")
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.url())
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

impl PartialEq for StoreUrl {
    fn eq(&self, other: &StoreUrl) -> bool {
        self.0.url() == other.0.url()
    }
}

impl Eq for StoreUrl {}

/// Random bytes.
pub(super) fn random_bytes<const N: usize>(random: &dyn Fn(&mut [u8])) -> [u8; N] {
    let mut bytes = [0; N];
    random(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_selects_a_backend_and_is_shown_as_it_is_written() {
        for (text, shown) in [
            ("disk:///var/lib/lockd", "disk:///var/lib/lockd"),
            ("pebble:///data", "disk:///data"),
            ("mem://", "mem://"),
            ("mem:", "mem://"),
        ] {
            assert_eq!(StoreUrl::parse(text).expect(text).to_string(), shown);
        }
        assert_eq!(StoreUrl::parse("disk:///data").expect("valid"), StoreUrl::disk("/data"));
        assert!(StoreUrl::memory().backend().is_volatile());
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_valid_syntax() {
        for text in ["", "disk", "disk://relative", "mem://data", "s3://bucket", "/data"] {
            let error = StoreUrl::parse(text).expect_err(text).to_string();
            let expected = "not a store URL; use disk:///path (an absolute path) or mem://: store=";
            assert_eq!(error, format!("{expected}{text}"));
        }
    }
}
