//! Kinds of stores, and the URLs that select them.
//!
//! A new kind is a file in `store/` that implements [`StoreBackend`], and a row of `SCHEMES`.

mod bucket;
mod disk;
mod memory;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::bucket::RequestCounts;
use kernel::Shard;
use store::object::Objects;
use store::{BlobStore, LogStore, LsnRange, Seq, SlotMap, StoreError};

use self::bucket::BucketBackend;
use crate::backend::boot_error::BootError;
use crate::backend::credential::StoreKey;
use crate::backend::open_options::OpenOptions;
use crate::backend::private_files::check_private;
use disk::DiskBackend;
use memory::MemoryBackend;

/// A URL scheme: its prefix, the syntax that error messages show, and the parser of the rest.
struct Scheme {
    prefix: &'static str,
    syntax: Option<&'static str>,
    parse: fn(&str) -> Option<StoreUrl>,
}

/// Every URL scheme. `pebble` is an alias of `disk`. The parser of buckets gets the whole URL.
const SCHEMES: [Scheme; 4] = [
    Scheme { prefix: "disk://", syntax: Some("disk:///path (an absolute path)"), parse: DiskBackend::parse },
    Scheme { prefix: "pebble://", syntax: None, parse: DiskBackend::parse },
    Scheme {
        prefix: "",
        syntax: Some("s3://bucket/prefix, gs://bucket/prefix, az://container/prefix"),
        parse: BucketBackend::parse,
    },
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

    /// Whether it is on other machines: each append is a request.
    fn is_remote(&self) -> bool {
        false
    }
}

/// The parts of an open store.
pub struct StoreParts {
    /// The log of each shard, in order. Empty if other servers may share the store.
    pub logs: Vec<Box<dyn LogStore>>,
    /// What several servers share, if they may.
    pub shared: Option<SharedStore>,
    /// The documents that are not in the log, of all shards.
    pub blobs: Arc<dyn BlobStore>,
    /// The key that credentials are issued with.
    pub key: StoreKey,
    /// The shard of each slot.
    pub map: SlotMap,
    /// Torn tails that were cut off, at most one per log.
    pub torn_tails: Vec<TornTail>,
    /// The requests to the object store, if it is one.
    pub object_requests: Option<RequestCounts>,
    /// Keeps other processes out until it is dropped.
    pub guard: StoreGuard,
}

/// A store that several servers use: the log of a shard belongs to the server that creates its next object.
pub struct SharedStore {
    /// The objects, for the records of servers.
    pub objects: Arc<dyn Objects>,
    /// Opens the log of a shard, as often as it is followed.
    pub open_log: LogOpener,
}

/// Opens the log of a shard, to follow it.
pub type LogOpener = Arc<dyn Fn(u32) -> Result<Box<dyn LogStore>, StoreError> + Send + Sync>;

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
    /// `disk:///path`, its alias `pebble:///path`, `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or
    /// `mem://`.
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
        SCHEMES.iter().filter_map(|scheme| scheme.syntax).collect::<Vec<_>>().join(", ")
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

/// Reads a store key that is kept outside of the store.
fn outside_key(path: &Path) -> Result<StoreKey, BootError> {
    check_private(path)?;
    match read_key(path) {
        Err(BootError::NoKey(path)) => Err(BootError::NoOutsideKey(path)),
        other => other,
    }
}

/// Reads a store key from its file.
fn read_key(path: &Path) -> Result<StoreKey, BootError> {
    match std::fs::read(path) {
        Ok(bytes) => bytes.try_into().map(StoreKey::new).map_err(|_| BootError::BadKey(path.to_path_buf())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BootError::NoKey(path.to_path_buf())),
        Err(error) => Err(BootError::Io(path.to_path_buf(), error)),
    }
}

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
            ("s3://locks/prod", "s3://locks/prod"),
            ("gs://locks", "gs://locks"),
            ("az://locks/a/b", "az://locks/a/b"),
        ] {
            assert_eq!(StoreUrl::parse(text).expect(text).to_string(), shown);
        }
        assert_eq!(StoreUrl::parse("disk:///data").expect("valid"), StoreUrl::disk("/data"));
        assert!(StoreUrl::memory().backend().is_volatile());
    }

    #[test]
    fn an_invalid_url_is_refused_with_the_valid_syntax() {
        for text in ["", "disk", "disk://relative", "mem://data", "s3://", "s3://a//b", "/data"] {
            let error = StoreUrl::parse(text).expect_err(text).to_string();
            let expected = "not a store URL; use disk:///path (an absolute path), s3://bucket/prefix, \
                            gs://bucket/prefix, az://container/prefix, mem://: store=";
            assert_eq!(error, format!("{expected}{text}"));
        }
    }
}
