//! Where an identity is: in one PEM file, or in three, as cert-manager and Kubernetes write them.
//!
//! `tls.crt` has the certificate, followed by those of intermediate CAs if there are any; `tls.key` its private key; `ca.crt`
//! the trusted CAs. A server's identity of three files has no certificate for forwarding, and no denylist of its own.

use std::path::{Path, PathBuf};

use crate::bundle::{ClientBundle, ServerBundle};
use crate::error::Error;
use crate::file;

/// What messages call a file of an identity.
const IDENTITY: &str = "identity file";

/// The files of an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityLocation {
    /// An identity file, or a directory with `tls.crt`, `tls.key` and `ca.crt`.
    Path(PathBuf),
    /// Three files.
    Separate(SeparateFiles),
}

/// A certificate, its key and the trusted CAs, in a file each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeparateFiles {
    /// The certificate, then those of intermediate CAs.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The trusted CAs.
    pub ca: PathBuf,
}

impl SeparateFiles {
    /// The files in a directory, by their usual names.
    fn in_directory(directory: &Path) -> SeparateFiles {
        let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| directory.join(name));
        SeparateFiles { certificate, key, ca }
    }
}

impl IdentityLocation {
    /// The path to name in messages.
    pub fn path(&self) -> &Path {
        match self {
            IdentityLocation::Path(path) => path,
            IdentityLocation::Separate(files) => &files.certificate,
        }
    }

    /// The file with the private key, which no other user may read.
    pub fn key_file(&self) -> PathBuf {
        self.separate().map_or_else(|| self.path().to_path_buf(), |files| files.key)
    }

    /// All files: a change of the identity changes one of them.
    pub fn files(&self) -> Vec<PathBuf> {
        match self.separate() {
            Some(SeparateFiles { certificate, key, ca }) => vec![certificate, key, ca],
            None => vec![self.path().to_path_buf()],
        }
    }

    /// Reads a client's identity.
    pub fn read_client(&self) -> Result<ClientBundle, Error> {
        let bundle = match self.separate() {
            Some(files) => {
                let [certificate, key, ca] = read_separate(&files)?;
                ClientBundle::from_separate(&certificate, &key, &ca)
            }
            None => ClientBundle::parse(&file::read_as(IDENTITY, self.path())?),
        };
        bundle.map_err(|error| error.in_file(self.path()))
    }

    /// Reads a server's identity.
    pub fn read_server(&self) -> Result<ServerBundle, Error> {
        let bundle = match self.separate() {
            Some(files) => {
                let [certificate, key, ca] = read_separate(&files)?;
                ServerBundle::from_separate(&certificate, &key, &ca)
            }
            None => ServerBundle::parse(&file::read_as(IDENTITY, self.path())?),
        };
        bundle.map_err(|error| error.in_file(self.path()))
    }

    fn separate(&self) -> Option<SeparateFiles> {
        match self {
            IdentityLocation::Separate(files) => Some(files.clone()),
            IdentityLocation::Path(path) => path.is_dir().then(|| SeparateFiles::in_directory(path)),
        }
    }
}

fn read_separate(files: &SeparateFiles) -> Result<[zeroize::Zeroizing<String>; 3], Error> {
    let read = |path: &Path| file::read_as(IDENTITY, path);
    Ok([read(&files.certificate)?, read(&files.key)?, read(&files.ca)?])
}
