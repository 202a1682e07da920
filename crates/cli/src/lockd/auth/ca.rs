//! The CA that a new certificate is to come from: a new one, or the one of a server's file or a CA's file.

use std::path::Path;

use identity::{Authority, CaBundle, CaKey, Cost, Days, Error, ErrorKind, Moment, Name, ServerBundle, file};

use super::args::{CaSource, NewServer, Pass, beside};
use super::read_server;

/// A CA, and its key as it is kept.
pub(crate) struct Ca {
    pub(crate) authority: Authority,
    pub(crate) key: CaKey,
}

impl Ca {
    /// A CA for a server that belongs to none.
    pub(crate) fn create(args: &NewServer, moment: &mut Moment) -> Result<Ca, String> {
        let passphrase = args.pass.for_new_key()?;
        let (algorithm, _) = args.kind.get();
        let authority = Authority::create(&ca_name(&args.cn), algorithm, Days::OF_CA, moment)?;
        let sealing = passphrase.as_ref().map(|passphrase| (passphrase, Cost::USUAL));
        let key = authority.to_bundle(sealing, moment)?.key().clone();
        Ok(Ca { authority, key })
    }

    /// The CA that is there.
    pub(crate) fn find(source: &CaSource, pass: &Pass) -> Result<Ca, String> {
        let server = source.server_in.as_deref().map(read_server).transpose()?;
        let bundle = match (&source.ca_in, &source.server_in, &server) {
            (Some(path), _, _) => read_ca(path)?,
            (None, Some(path), Some(server)) => of_server(path, server)?,
            _ => return Err("give --server-in or --ca-in".into()),
        };
        if server.as_ref().is_some_and(|server| server.ca() != bundle.certificate()) {
            let what = "the CA's file belongs to another CA than the server's; give the right --ca-in";
            return Err(format!("{what}: cn={}", bundle.certificate().name()));
        }
        let passphrase = pass.for_key(bundle.key())?;
        let authority = Authority::open(bundle.certificate(), bundle.key(), passphrase.as_ref());
        Ok(Ca { authority: authority?, key: bundle.key().clone() })
    }

    /// What goes into the CA's file.
    pub(crate) fn to_bundle(&self) -> CaBundle {
        CaBundle::new(self.authority.certificate().clone(), self.key.clone())
    }
}

fn read_ca(path: &Path) -> Result<CaBundle, Error> {
    CaBundle::parse(&file::read(path)?).map_err(|error| error.in_file(path))
}

/// The CA with its key, from the server's file or from beside it.
fn of_server(path: &Path, server: &ServerBundle) -> Result<CaBundle, String> {
    if let Some(key) = server.ca_key() {
        return Ok(CaBundle::new(server.ca().clone(), key.clone()));
    }
    let beside = beside(path);
    read_ca(&beside).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "the CA key is neither in the server's file nor beside it; give --ca-in: server={} ca={}",
            path.display(),
            beside.display()
        ),
        _ => error.to_string(),
    })
}

/// The server's name and ` CA`, as much of it as fits.
fn ca_name(server: &Name) -> Name {
    let short: String = server.as_str().chars().take(Name::CHARS_MAX - 3).collect();
    format!("{short} CA").parse().expect("a name of the same kind, not longer")
}
