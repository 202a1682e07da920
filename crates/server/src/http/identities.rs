//! The server's identity and denylist: loaded from files, created at the first start, reloaded on request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use identity::{Denylist, Error, ServerBundle, ServerTls, SharedDenylist, file};
use tokio_rustls::rustls::time_provider::DefaultTimeProvider;

use crate::backend::certificate_dates::CertificateDates;
use crate::config::Config;
use crate::http::listener::Tls;
use crate::http::{certificate_expiry, first_start};

/// A server's identity, and the files that it comes from.
pub(crate) struct Identities {
    pub(crate) tls: Tls,
    /// When the certificates in use expire.
    pub(crate) dates: Arc<CertificateDates>,
    bundle: PathBuf,
    denylist: Option<PathBuf>,
}

impl Identities {
    /// From the configured identity file, or from the one in the data directory, which is created if it does not exist.
    pub(crate) fn load(config: &Config) -> Result<Identities, Error> {
        let bundle = match &config.bundle {
            Some(path) => path.clone(),
            None => first_start::server_file(&config.data_dir)?,
        };
        let (read, denylist) = read(&bundle, config.denylist_path.as_deref())?;
        first_start::warn_of_ca_key(&bundle, &read);
        let dates = Arc::new(CertificateDates::default());
        dates.replace(certificate_expiry::dates(&read, &bundle));
        let denylist = Arc::new(SharedDenylist::new(denylist));
        let server = ServerTls::new(&read, Arc::clone(&denylist), Arc::new(DefaultTimeProvider))?;
        let tls = Tls { server, denylist };
        Ok(Identities { tls, dates, bundle, denylist: config.denylist_path.clone() })
    }

    /// Reads the files again and takes over revocations, a new certificate, and added or removed CAs.
    ///
    /// **Invariant.** All or nothing: CA, certificate, key and denylist are checked before any of them is replaced.
    /// **What would break it.** A fallible step after the first replacement: the denylist of a refused file would be in
    /// force, and clients that it does not name would be let in again.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        let (bundle, denylist) = read(&self.bundle, self.denylist.as_deref())?;
        let certificate = self.tls.server.prepare(&bundle, &denylist)?;
        self.tls.denylist.replace(denylist);
        certificate.install();
        self.dates.replace(certificate_expiry::dates(&bundle, &self.bundle));
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
