//! The server's identity and denylist: loaded from files, created at the first start, read again for a reload.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use identity::file::{self, Existing};
use identity::{
    Algorithm, Authority, Days, Denylist, Error, Host, IssueContext, Name, RefusalObserver, Rights, Role,
    ServerBundle, ServerTls, SharedDenylist, UnixTime, Zeroizing,
};
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::backend::machine_clocks;
use crate::http::refused_serial;

const CA: &str = "ca.pem";
const SERVER: &str = "server.pem";
/// The client's identity file that the first start creates in the data directory.
pub const CLIENT: &str = "client.pem";

/// The server's identity file. In the data directory it is created at the first start.
pub(crate) fn server_file(bundle: Option<&Path>, data_dir: &Path) -> PathBuf {
    bundle.map_or_else(|| data_dir.join(SERVER), Path::to_path_buf)
}

/// TLS of a server: its certificate, its CA, and the revoked certificates.
#[derive(Clone)]
pub struct Tls {
    /// The server's certificate, and the CA of its clients.
    pub server: ServerTls,
    /// Revoked client certificates, checked for every request.
    pub denylist: Arc<SharedDenylist>,
}

/// A server's identity, and the files that it comes from.
pub(crate) struct Identities {
    pub(crate) tls: Tls,
    /// The files as they were loaded.
    pub(crate) loaded: Fingerprint,
    bundle: PathBuf,
    denylist: Option<PathBuf>,
}

impl Identities {
    /// From the configured identity file, or from the one in the data directory, which is created if it does not exist.
    pub(crate) fn load(
        bundle: Option<&Path>,
        denylist_path: Option<&Path>,
        data_dir: &Path,
    ) -> Result<Identities, Error> {
        let bundle = match bundle {
            Some(path) => path.to_path_buf(),
            None => first_start(data_dir)?,
        };
        let files = IdentityFiles::read(&bundle, denylist_path);
        let (parsed, denylist) = files.parse()?;
        let denylist = Arc::new(SharedDenylist::new(denylist));
        let clock = Arc::new(DefaultTimeProvider);
        let observer = RefusalObserver::new(refused_serial::note);
        let server = ServerTls::with_observer(&parsed, Arc::clone(&denylist), clock, observer)?;
        let (tls, loaded) = (Tls { server, denylist }, files.fingerprint());
        Ok(Identities { tls, loaded, bundle, denylist: denylist_path.map(Path::to_path_buf) })
    }

    /// Reads the files as they are now.
    pub(crate) fn read_files(&self) -> IdentityFiles {
        IdentityFiles::read(&self.bundle, self.denylist.as_deref())
    }
}

/// The texts of the identity file and the denylist file, read at one moment. Symbolic links are followed each time: a
/// mounted directory may be swapped as a whole.
pub(crate) struct IdentityFiles {
    bundle: FileText,
    denylist: Option<FileText>,
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

    fn parse<T>(&self, parse: impl Fn(&str) -> Result<T, Error>) -> Result<T, Error> {
        let text = self.text.as_ref().map_err(Clone::clone)?;
        parse(text).map_err(|error| error.in_file(&self.path))
    }

    fn hash(&self) -> blake3::Hash {
        match &self.text {
            Ok(text) => blake3::hash(text.as_bytes()),
            Err(error) => blake3::hash(error.to_string().as_bytes()),
        }
    }
}

impl IdentityFiles {
    fn read(bundle: &Path, denylist: Option<&Path>) -> IdentityFiles {
        IdentityFiles { bundle: FileText::read(bundle), denylist: denylist.map(FileText::read) }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut hasher = blake3::Hasher::new();
        for file in std::iter::once(&self.bundle).chain(&self.denylist) {
            hasher.update(file.hash().as_bytes());
        }
        Fingerprint(hasher.finalize().into())
    }

    /// The bundle, and the union of its denylist and the one in the denylist file.
    pub(crate) fn parse(&self) -> Result<(ServerBundle, Denylist), Error> {
        let bundle = self.bundle.parse(ServerBundle::parse)?;
        let mut revoked = bundle.denylist().clone();
        if let Some(file) = &self.denylist {
            revoked = revoked.union(&file.parse(Denylist::parse)?);
        }
        Ok((bundle, revoked))
    }
}

/// Creates a CA, a server and an operator client in the data directory, unless it has a server.
fn first_start(data: &Path) -> Result<PathBuf, Error> {
    let server = data.join(SERVER);
    if server.exists() {
        return Ok(server);
    }
    store::private::create_dir(data)
        .map_err(|error| Error::io("creating the data directory", data, &error))?;
    let mut fill = system::random::fill;
    let mut moment =
        IssueContext { now: UnixTime::since_unix_epoch(machine_clocks::since_epoch()), fill: &mut fill };
    let name = |text: &str| text.parse::<Name>();
    let authority =
        Authority::create(&name("lockd CA")?, Algorithm::default(), Days::CA_DEFAULT, &mut moment)?;
    let usual = (Algorithm::default(), Days::DEFAULT);
    let hosts = Host::of_this_machine(&system::host_name());
    let bundle = authority.issue_server(&name("lockd")?, &hosts, usual, &mut moment)?;
    let client =
        authority.issue_client(&name("operator")?, (Role::Operator, &Rights::all()), usual, &mut moment)?;
    let ca = authority.to_bundle(None, &mut moment)?;
    let (ca_path, client_path) = (data.join(CA), data.join(CLIENT));
    let files: [(&Path, &str); 3] =
        [(&ca_path, &ca.to_pem()), (&client_path, &client.to_pem()), (&server, &bundle.to_pem())];
    file::write(&files, Existing::Keep, &mut system::random::fill)?;
    tracing::info!(directory = %data.display(), "created a CA, a server and a client identity");
    tracing::warn!(file = %ca_path.display(), "the CA's key is not encrypted; keep it elsewhere");
    Ok(server)
}
