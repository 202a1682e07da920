//! The CA that issues a new certificate: a new one, or one read from a server's identity file or a CA file.

use std::path::{Path, PathBuf};

use identity::{
    Authority, CaBundle, CaKey, Cost, Days, Error, ErrorKind, IssueContext, IssuedCertificate, IssuedRecord,
    Name, ServerBundle, file,
};

use super::args::{CaSource, NewServer, PassphraseSource, default_ca_file};
use super::read_server;

/// A CA, its key as stored, plain or encrypted, and the record of the certificates that it issues.
pub(crate) struct Ca {
    pub(crate) authority: Authority,
    pub(crate) key: CaKey,
    issued: PathBuf,
}

impl Ca {
    /// Creates a CA for a new server, whose key is to be written to `file`.
    pub(crate) fn create(args: &NewServer, file: &Path, moment: &mut IssueContext) -> Result<Ca, String> {
        let passphrase = args.pass.for_new_key()?;
        let (algorithm, _) = args.kind.get();
        let authority = Authority::create(&ca_name(&args.cn), algorithm, Days::CA_DEFAULT, moment)?;
        let sealing = passphrase.as_ref().map(|passphrase| (passphrase, Cost::DEFAULT));
        let key = authority.to_bundle(sealing, moment)?.key().clone();
        Ok(Ca { authority, key, issued: record_of(&args.source, file) })
    }

    /// Opens an existing CA. Without a source it is looked for next to `beside`.
    pub(crate) fn find(
        source: &CaSource,
        pass: &PassphraseSource,
        beside: Option<&Path>,
    ) -> Result<Ca, String> {
        let server = source.server_in.as_deref().map(read_server).transpose()?;
        let (bundle, file) = match (&source.ca_in, &source.server_in, &server, beside) {
            (Some(path), ..) => (read_ca(path)?, path.clone()),
            (None, Some(path), Some(server), _) => of_server(path, server)?,
            (None, _, _, Some(path)) => next_to(path)?,
            _ => return Err("pass --server-in or --ca-in".into()),
        };
        if server.as_ref().is_some_and(|server| !server.anchors().contains(bundle.certificate())) {
            let what = "the CA file is of another CA than the server's file; pass the matching --ca-in";
            return Err(format!("{what}: cn={}", bundle.certificate().name()));
        }
        let passphrase = pass.for_key(bundle.key())?;
        let authority = Authority::open(bundle.certificate(), bundle.key(), passphrase.as_ref());
        Ok(Ca { authority: authority?, key: bundle.key().clone(), issued: record_of(source, &file) })
    }

    /// Records certificates, before their identity file is written.
    pub(crate) fn record(&self, certificates: &[IssuedCertificate]) -> Result<(), Error> {
        IssuedRecord::append(&self.issued, certificates)
    }

    /// The content of the CA file.
    pub(crate) fn to_bundle(&self) -> CaBundle {
        CaBundle::new(self.authority.certificate().clone(), self.key.clone())
    }
}

fn record_of(source: &CaSource, file: &Path) -> PathBuf {
    source.issued.clone().unwrap_or_else(|| IssuedRecord::path_beside(file))
}

fn read_ca(path: &Path) -> Result<CaBundle, Error> {
    CaBundle::parse(&file::read(path)?).map_err(|error| error.in_file(path))
}

/// The CA with its key, and the file that has the key: the server's, or the CA file next to it.
fn of_server(path: &Path, server: &ServerBundle) -> Result<(CaBundle, PathBuf), String> {
    match server.ca_key() {
        Some(key) => Ok((CaBundle::new(server.ca().clone(), key.clone()), path.to_path_buf())),
        None => next_to(path),
    }
}

/// The places of a CA file next to an identity file: where `auth new server` puts it, and where a first start does.
pub(crate) fn ca_files(path: &Path) -> [PathBuf; 2] {
    [default_ca_file(path), path.with_file_name("ca").join("ca.pem")]
}

fn next_to(path: &Path) -> Result<(CaBundle, PathBuf), String> {
    let places = ca_files(path);
    for place in &places {
        match read_ca(place) {
            Ok(bundle) => return Ok((bundle, place.clone())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let [one, other] = places.map(|place| place.display().to_string());
    let what = "the CA key is neither in this file nor in a CA file next to it; pass --ca-in";
    Err(format!("{what}: file={} searched={one},{other}", path.display()))
}

/// The server's name followed by ` CA`, truncated to the maximum length.
fn ca_name(server: &Name) -> Name {
    let short: String = server.as_str().chars().take(Name::CHARS_MAX - 3).collect();
    format!("{short} CA").parse().expect("a name of the same kind, not longer")
}
