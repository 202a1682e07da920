//! The server's identity and denylist: loaded from files, created at the first start, reloaded on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use identity::{Denylist, Error, IdentityLocation, ServerBundle, ServerTls, SharedDenylist, SpiffeMap, file};
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::backend::certificate_dates::CertificateDates;
use crate::config::{Config, ConfigError};
use crate::http::listener::Tls;
use crate::http::{certificate_expiry, first_start};

/// The file with the server's private key. In the data directory it is created at the first start.
pub(crate) fn key_file(config: &Config) -> Result<PathBuf, ConfigError> {
    let location = config.identity()?;
    Ok(location.map_or_else(|| config.data_dir.join(first_start::SERVER), |location| location.key_file()))
}

/// A server's identity, and the files that it comes from.
pub(crate) struct Identities {
    pub(crate) tls: Tls,
    /// When the certificates in use expire.
    pub(crate) dates: Arc<CertificateDates>,
    location: IdentityLocation,
    denylist: Option<PathBuf>,
    spiffe_map: Option<PathBuf>,
}

impl Identities {
    /// From the configured identity file, or from the one in the data directory, which is created if it does not exist.
    pub(crate) fn load(config: &Config) -> Result<Identities, Error> {
        let location = match config.identity().map_err(|error| Error::invalid(error.to_string()))? {
            Some(location) => location,
            None => IdentityLocation::Path(first_start::server_file(&config.data_dir)?),
        };
        let (bundle, denylist) = read(&location, config.denylist_path.as_deref())?;
        first_start::warn_of_ca_key(location.path(), &bundle);
        let dates = Arc::new(CertificateDates::default());
        dates.replace(certificate_expiry::dates(&bundle, location.path()));
        let denylist = Arc::new(SharedDenylist::new(denylist));
        let server = ServerTls::new(&bundle, Arc::clone(&denylist), Arc::new(DefaultTimeProvider))?;
        server.map_spiffe_ids(read_map(config.spiffe_map.as_deref())?);
        let tls = Tls { server, denylist };
        let (denylist, spiffe_map) = (config.denylist_path.clone(), config.spiffe_map.clone());
        Ok(Identities { tls, dates, location, denylist, spiffe_map })
    }

    /// Reads the files again and takes over revocations, a new certificate, and added or removed CAs.
    ///
    /// **Invariant.** All or nothing: CA, certificate, key and denylist are checked before any of them is replaced.
    /// **What would break it.** A fallible step after the first replacement: the denylist of a refused file would be in
    /// force, and clients that it does not name would be let in again.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let (bundle, denylist) = read(&self.location, self.denylist.as_deref())?;
        let spiffe_map = read_map(self.spiffe_map.as_deref())?;
        let certificate = self.tls.server.prepare(&bundle, &denylist)?;
        self.tls.denylist.replace(denylist);
        certificate.install();
        self.tls.server.map_spiffe_ids(spiffe_map);
        self.dates.replace(certificate_expiry::dates(&bundle, self.location.path()));
        Ok(())
    }
}

/// The bundle, and the union of its denylist and the one in the denylist file.
fn read(location: &IdentityLocation, denylist: Option<&Path>) -> Result<(ServerBundle, Denylist), Error> {
    let bundle = location.read_server()?;
    let mut revoked = bundle.denylist().clone();
    if let Some(path) = denylist {
        let listed = Denylist::parse(&file::read(path)?).map_err(|error| error.in_file(path))?;
        revoked = revoked.union(&listed);
    }
    Ok((bundle, revoked))
}

fn read_map(path: Option<&Path>) -> Result<SpiffeMap, Error> {
    let Some(path) = path else { return Ok(SpiffeMap::default()) };
    SpiffeMap::parse(&file::read(path)?).map_err(|error| error.in_file(path))
}
