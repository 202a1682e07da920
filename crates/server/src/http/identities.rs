//! The server's identity and denylist: loaded from files, created at the first start, reloaded on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use identity::file::{self, Existing};
use identity::{
    Algorithm, Authority, Days, Denylist, Error, Host, IssueContext, Name, Rights, Role, ServerBundle,
    ServerTls, SharedDenylist, UnixTime,
};
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::backend::machine_clocks;
use crate::config::Config;
use crate::http::listener::Tls;

const CA: &str = "ca.pem";
const SERVER: &str = "server.pem";
/// The client's identity file that the first start creates in the data directory.
pub const CLIENT: &str = "client.pem";

/// The server's identity file. In the data directory it is created at the first start.
pub(crate) fn server_file(config: &Config) -> PathBuf {
    config.bundle.clone().unwrap_or_else(|| config.data_dir.join(SERVER))
}

/// A server's identity, and the files that it comes from.
pub(crate) struct Identities {
    pub(crate) tls: Tls,
    bundle: PathBuf,
    denylist: Option<PathBuf>,
}

impl Identities {
    /// From the configured identity file, or from the one in the data directory, which is created if it does not exist.
    pub(crate) fn load(config: &Config) -> Result<Identities, Error> {
        let bundle = match &config.bundle {
            Some(path) => path.clone(),
            None => first_start(&config.data_dir)?,
        };
        let (read, denylist) = read(&bundle, config.denylist_path.as_deref())?;
        let denylist = Arc::new(SharedDenylist::new(denylist));
        let server = ServerTls::new(&read, Arc::clone(&denylist), Arc::new(DefaultTimeProvider))?;
        Ok(Identities { tls: Tls { server, denylist }, bundle, denylist: config.denylist_path.clone() })
    }

    /// Reads the files again and takes over revocations and a new certificate of the same CA.
    ///
    /// **Invariant.** All or nothing: CA, certificate, key and denylist are checked before any of them is replaced.
    /// **What would break it.** A fallible step after the first replacement: the denylist of a refused file would be in
    /// force, and clients that it does not name would be let in again.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let (bundle, denylist) = read(&self.bundle, self.denylist.as_deref())?;
        let certificate = self.tls.server.prepare(&bundle, &denylist)?;
        self.tls.denylist.replace(denylist);
        certificate.install();
        Ok(())
    }
}

/// The bundle, and the union of its denylist and the one in the denylist file.
fn read(bundle: &Path, denylist: Option<&Path>) -> Result<(ServerBundle, Denylist), Error> {
    let parsed = ServerBundle::parse(&file::read(bundle)?).map_err(|error| error.in_file(bundle))?;
    let mut revoked = parsed.denylist().clone();
    if let Some(path) = denylist {
        let listed = Denylist::parse(&file::read(path)?).map_err(|error| error.in_file(path))?;
        revoked = revoked.union(&listed);
    }
    Ok((parsed, revoked))
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
