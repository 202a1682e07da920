//! The client's identity for HTTPS: fixed, or from files that are read again when they change.
//!
//! **Invariant.** A renewed identity file is in use within [`CHECK_INTERVAL`] of the next call, without a restart: the
//! connections that were opened with the old certificate are left to the calls in progress. A file that cannot be read,
//! because it is being replaced or was damaged, changes nothing: the identity before stays in use.
//!
//! **What is absent.** A thread or timer: files are checked when a call starts.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use identity::{ClientTls, Denylist, IdentityLocation, file};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::clock::BootTime;
use crate::connect::{HttpVersion, stream_alpn};
use crate::error::{Error, Kind};

/// How often the files are checked for changes, at most.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Where a client's identity comes from.
#[derive(Clone, Debug)]
pub(crate) enum IdentitySource {
    /// Given by the program; never changes.
    Fixed(ClientTls),
    /// An identity file, or three.
    Files(IdentityLocation),
}

/// The identity in use. Calls share it.
pub(crate) struct ClientIdentity {
    source: IdentitySource,
    denylist: Option<PathBuf>,
    version: HttpVersion,
    current: Mutex<Current>,
}

struct Current {
    tls: ClientTls,
    connectors: TlsConnectors,
    /// Grows with every change.
    generation: u64,
    stamps: Vec<Option<FileStamp>>,
    checked_at: BootTime,
}

/// The TLS of new connections.
#[derive(Clone)]
pub(crate) struct TlsConnectors {
    pub(crate) http: TlsConnector,
    /// Offers the stream protocol, and HTTP/1.1 behind it.
    pub(crate) stream: TlsConnector,
}

/// Changes whenever a file is replaced or rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl ClientIdentity {
    pub(crate) fn load(
        source: IdentitySource,
        denylist: Option<PathBuf>,
        version: HttpVersion,
    ) -> Result<ClientIdentity, Error> {
        let stamps = stamps(&source, denylist.as_deref());
        let tls = read(&source, denylist.as_deref())
            .map_err(|error| Error::new(Kind::Invalid, String::from(error)))?;
        let connectors = TlsConnectors::new(&tls, version);
        let current = Current { tls, connectors, generation: 0, stamps, checked_at: BootTime::now() };
        Ok(ClientIdentity { source, denylist, version, current: Mutex::new(current) })
    }

    /// The TLS of new connections, and its generation: connections of another generation are out of date.
    pub(crate) fn connectors(&self) -> (TlsConnectors, u64) {
        let mut current = self.lock();
        if current.checked_at.elapsed() >= CHECK_INTERVAL {
            self.refresh(&mut current);
        }
        (current.connectors.clone(), current.generation)
    }

    /// Checks the files now; whether the identity has changed since that generation.
    pub(crate) fn changed_since(&self, generation: u64) -> bool {
        let mut current = self.lock();
        self.refresh(&mut current);
        current.generation != generation
    }

    /// The file to name in messages.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.source {
            IdentitySource::Fixed(_) => None,
            IdentitySource::Files(location) => Some(location.path()),
        }
    }

    pub(crate) fn tls(&self) -> ClientTls {
        self.lock().tls.clone()
    }

    fn refresh(&self, current: &mut Current) {
        current.checked_at = BootTime::now();
        // Before the files are read: a change during the read is noticed the next time.
        let stamps = stamps(&self.source, self.denylist.as_deref());
        if stamps == current.stamps {
            return;
        }
        if let Ok(tls) = read(&self.source, self.denylist.as_deref()) {
            current.connectors = TlsConnectors::new(&tls, self.version);
            current.tls = tls;
            current.stamps = stamps;
            current.generation += 1;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(source: &IdentitySource, denylist: Option<&Path>) -> Vec<Option<FileStamp>> {
    let own = match source {
        IdentitySource::Fixed(_) => Vec::new(),
        IdentitySource::Files(location) => location.files(),
    };
    own.iter().map(PathBuf::as_path).chain(denylist).map(FileStamp::of).collect()
}

impl FileStamp {
    /// `None` if there is no such file.
    fn of(path: &Path) -> Option<FileStamp> {
        let found = std::fs::metadata(path).ok()?;
        let modified = (found.mtime(), found.mtime_nsec());
        Some(FileStamp { device: found.dev(), inode: found.ino(), bytes: found.size(), modified })
    }
}

fn read(source: &IdentitySource, denylist: Option<&Path>) -> Result<ClientTls, identity::Error> {
    let revoked = match denylist {
        Some(path) => {
            Denylist::parse(&file::read_as("denylist", path)?).map_err(|error| error.in_file(path))?
        }
        None => Denylist::default(),
    };
    match source {
        IdentitySource::Fixed(tls) => Ok(tls.clone()),
        IdentitySource::Files(location) => {
            ClientTls::with_denylist(&location.read_client()?, &revoked, Arc::new(DefaultTimeProvider))
        }
    }
}

impl TlsConnectors {
    fn new(tls: &ClientTls, version: HttpVersion) -> TlsConnectors {
        TlsConnectors { http: connector(tls, version.alpn()), stream: connector(tls, stream_alpn()) }
    }
}

fn connector(tls: &ClientTls, alpn: Vec<Vec<u8>>) -> TlsConnector {
    let mut config = (*tls.config()).clone();
    config.alpn_protocols = alpn;
    // In a full handshake the server says why it refuses a certificate; a resumed session it can only close.
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}
