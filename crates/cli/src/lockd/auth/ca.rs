//! The CA that issues a new certificate: a new one, or one read from a server's identity file or a CA file.

use std::path::Path;

use identity::{
    Authority, CaBundle, CaKey, Cost, Days, Error, ErrorKind, IssueContext, Name, ServerBundle, file,
};

use super::args::{CaSource, NewServer, PassphraseSource, default_ca_file};
use super::read_server;

/// A CA, and its key as stored: plain or encrypted.
pub(crate) struct Ca {
    pub(crate) authority: Authority,
    pub(crate) key: CaKey,
}

impl Ca {
    /// Creates a CA for a new server.
    pub(crate) fn create(args: &NewServer, moment: &mut IssueContext) -> Result<Ca, String> {
        let passphrase = args.pass.for_new_key()?;
        let (algorithm, _) = args.kind.get();
        let authority = Authority::create(&ca_name(&args.cn), algorithm, Days::CA_DEFAULT, moment)?;
        let sealing = passphrase.as_ref().map(|passphrase| (passphrase, Cost::DEFAULT));
        let key = authority.to_bundle(sealing, moment)?.key().clone();
        Ok(Ca { authority, key })
    }

    /// Opens an existing CA.
    pub(crate) fn find(source: &CaSource, pass: &PassphraseSource) -> Result<Ca, String> {
        let server = source.server_in.as_deref().map(read_server).transpose()?;
        let bundle = match (&source.ca_in, &source.server_in, &server) {
            (Some(path), _, _) => read_ca(path)?,
            (None, Some(path), Some(server)) => of_server(path, server)?,
            _ => return Err("pass --server-in or --ca-in".into()),
        };
        if server.as_ref().is_some_and(|server| server.ca() != bundle.certificate()) {
            let what = "the CA file is of another CA than the server's file; pass the matching --ca-in";
            return Err(format!("{what}: cn={}", bundle.certificate().name()));
        }
        let passphrase = pass.for_key(bundle.key())?;
        let authority = Authority::open(bundle.certificate(), bundle.key(), passphrase.as_ref());
        Ok(Ca { authority: authority?, key: bundle.key().clone() })
    }

    /// The content of the CA file.
    pub(crate) fn to_bundle(&self) -> CaBundle {
        CaBundle::new(self.authority.certificate().clone(), self.key.clone())
    }
}

fn read_ca(path: &Path) -> Result<CaBundle, Error> {
    CaBundle::parse(&file::read(path)?).map_err(|error| error.in_file(path))
}

/// The CA with its key, from the server's file or the CA file next to it.
fn of_server(path: &Path, server: &ServerBundle) -> Result<CaBundle, String> {
    if let Some(key) = server.ca_key() {
        return Ok(CaBundle::new(server.ca().clone(), key.clone()));
    }
    let ca_file = default_ca_file(path);
    read_ca(&ca_file).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "the CA key is neither in the server's file nor in ca.pem next to it; pass --ca-in: server={} ca={}",
            path.display(),
            ca_file.display()
        ),
        _ => error.to_string(),
    })
}

/// The server's name followed by ` CA`, truncated to the maximum length.
fn ca_name(server: &Name) -> Name {
    let short: String = server.as_str().chars().take(Name::CHARS_MAX - 3).collect();
    format!("{short} CA").parse().expect("a name of the same kind, not longer")
}
