//! The server's identity and denylist: loaded from files, created at the first start, read again for a reload.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use identity::{
    CertificateRefusal, Denylist, Error, IdentityLocation, PeerIdentity, RefusalObserver, ServerBundle,
    ServerTls, SharedDenylist, SpiffeMap, UnixTime, Zeroizing, file,
};
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::backend::certificate_dates::CertificateDates;
use crate::http::forward::ForwardingTls;
use crate::http::{certificate_expiry, first_start, refused_serial};
use crate::peer::PeerConnection;

/// Where the files of a server's identity are.
pub(crate) struct IdentitySources {
    /// `None`: in the data directory, where it is created at the first start.
    pub(crate) location: Option<IdentityLocation>,
    pub(crate) denylist: Option<PathBuf>,
    pub(crate) spiffe_map: Option<PathBuf>,
    pub(crate) data_dir: PathBuf,
}

impl IdentitySources {
    /// The file with the server's private key.
    pub(crate) fn key_file(&self) -> PathBuf {
        let in_data_dir = || self.data_dir.join(first_start::SERVER);
        self.location.as_ref().map_or_else(in_data_dir, IdentityLocation::key_file)
    }
}

/// TLS of a server: its certificate, its CAs, and the revoked certificates.
#[derive(Clone)]
pub struct Tls {
    /// The server's certificate, and the CAs of its clients.
    pub server: ServerTls,
    /// Revoked client certificates, checked for every request.
    pub denylist: Arc<SharedDenylist>,
}

impl Tls {
    /// Checks that a client's certificate is still valid, and still stands for the same identity.
    pub(crate) fn check(
        &self,
        certificate: &PeerIdentity,
        connection: &PeerConnection,
        now: UnixTime,
    ) -> Result<(), CertificateRefusal> {
        match connection.chain() {
            Some(chain) => self.server.check(certificate, chain, now),
            // Another program has accepted the connection.
            None => self.denylist.check(certificate, now),
        }
    }
}

/// A server's identity, and the files that it comes from.
pub(crate) struct Identities {
    pub(crate) tls: Tls,
    /// When the certificates in use expire.
    pub(crate) dates: Arc<CertificateDates>,
    /// For connections to other servers.
    pub(crate) forwarding: Arc<ForwardingTls>,
    /// The files as they were loaded.
    pub(crate) loaded: Fingerprint,
    location: IdentityLocation,
    denylist: Option<PathBuf>,
    spiffe_map: Option<PathBuf>,
}

impl Identities {
    /// From the configured identity file, or from the one in the data directory, which is created if it does not exist.
    pub(crate) fn load(sources: IdentitySources) -> Result<Identities, Error> {
        let IdentitySources { location, denylist, spiffe_map, data_dir } = sources;
        let location = match location {
            Some(location) => location,
            None => IdentityLocation::Path(first_start::server_file(&data_dir)?),
        };
        let files = IdentityFiles::read(&location, denylist.as_deref(), spiffe_map.as_deref());
        let parsed = files.parse()?;
        first_start::warn_of_ca_key(location.path(), &parsed.bundle);
        let dates = Arc::new(CertificateDates::default());
        dates.replace(certificate_expiry::dates(&parsed.bundle, location.path()));
        let revoked = Arc::new(SharedDenylist::new(parsed.denylist));
        let clock = Arc::new(DefaultTimeProvider);
        let observer = RefusalObserver::new(refused_serial::note);
        let server = ServerTls::with_observer(&parsed.bundle, Arc::clone(&revoked), clock, observer)?;
        server.map_spiffe_ids(parsed.spiffe_map);
        let forwarding = Arc::new(ForwardingTls::default());
        forwarding.replace(&parsed.bundle, &revoked);
        let (tls, loaded) = (Tls { server, denylist: revoked }, files.fingerprint());
        Ok(Identities { tls, dates, forwarding, loaded, location, denylist, spiffe_map })
    }

    /// Reads the files as they are now.
    pub(crate) fn read_files(&self) -> IdentityFiles {
        IdentityFiles::read(&self.location, self.denylist.as_deref(), self.spiffe_map.as_deref())
    }

    /// This bundle is in use from now on: notes when its certificates expire, and forwards with them.
    pub(crate) fn note_replaced(&self, bundle: &ServerBundle) {
        self.forwarding.replace(bundle, &self.tls.denylist);
        self.dates.replace(certificate_expiry::dates(bundle, self.location.path()));
    }
}

/// The texts of the identity, the denylist file and the map of SPIFFE ids, read at one moment. Symbolic links are followed
/// each time: a mounted directory may be swapped as a whole.
pub(crate) struct IdentityFiles {
    /// One identity file; or the certificate, its key and the CAs.
    identity: Vec<FileText>,
    denylist: Option<FileText>,
    spiffe_map: Option<FileText>,
}

/// The content of the files.
pub(crate) struct ParsedIdentity {
    pub(crate) bundle: ServerBundle,
    /// The union of the bundle's denylist and the one in the denylist file.
    pub(crate) denylist: Denylist,
    pub(crate) spiffe_map: SpiffeMap,
}

/// The hash of the texts of the files, or of the reasons why they cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

struct FileText {
    path: PathBuf,
    text: Result<Zeroizing<String>, Error>,
}

impl FileText {
    fn read(path: &Path) -> FileText {
        FileText { path: path.to_path_buf(), text: file::read(path) }
    }

    fn text(&self) -> Result<&str, Error> {
        self.text.as_ref().map(|text| text.as_str()).map_err(Clone::clone)
    }

    fn parse<T>(&self, parse: impl Fn(&str) -> Result<T, Error>) -> Result<T, Error> {
        parse(self.text()?).map_err(|error| error.in_file(&self.path))
    }

    fn hash(&self) -> blake3::Hash {
        match &self.text {
            Ok(text) => blake3::hash(text.as_bytes()),
            Err(error) => blake3::hash(error.to_string().as_bytes()),
        }
    }
}

impl IdentityFiles {
    fn read(
        location: &IdentityLocation,
        denylist: Option<&Path>,
        spiffe_map: Option<&Path>,
    ) -> IdentityFiles {
        IdentityFiles {
            identity: location.files().iter().map(|path| FileText::read(path)).collect(),
            denylist: denylist.map(FileText::read),
            spiffe_map: spiffe_map.map(FileText::read),
        }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new();
        for file in self.identity.iter().chain(&self.denylist).chain(&self.spiffe_map) {
            hasher.update(file.hash().as_bytes());
        }
        Fingerprint(hasher.finalize().into())
    }

    pub(crate) fn parse(&self) -> Result<ParsedIdentity, Error> {
        let bundle = self.bundle()?;
        let mut denylist = bundle.denylist().clone();
        if let Some(file) = &self.denylist {
            denylist = denylist.union(&file.parse(Denylist::parse)?);
        }
        let spiffe_map = self.spiffe_map.as_ref().map(|file| file.parse(SpiffeMap::parse)).transpose()?;
        Ok(ParsedIdentity { bundle, denylist, spiffe_map: spiffe_map.unwrap_or_default() })
    }

    fn bundle(&self) -> Result<ServerBundle, Error> {
        match &self.identity[..] {
            [certificate, key, ca] => {
                let parse = |text: &str| ServerBundle::from_separate(text, key.text()?, ca.text()?);
                certificate.parse(parse)
            }
            [file, ..] => file.parse(ServerBundle::parse),
            [] => unreachable!("an identity has at least one file"),
        }
    }
}
