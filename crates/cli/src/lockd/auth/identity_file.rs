//! An identity file of either kind, for commands that take both.

use std::path::Path;

use identity::bundle::leaf_certificates;
use identity::{ClientBundle, Error, Purpose, ServerBundle, TrustAnchors, file};
use zeroize::Zeroizing;

/// A server's or a client's identity file.
pub(super) enum IdentityFile {
    Server(Box<ServerBundle>),
    Client(Box<ClientBundle>),
}

impl IdentityFile {
    /// Reads a file; one with a server certificate is a server's.
    pub(super) fn read(path: &Path) -> Result<IdentityFile, Error> {
        let text = file::read(path)?;
        IdentityFile::parse(&text).map_err(|error| error.in_file(path))
    }

    fn parse(text: &str) -> Result<IdentityFile, Error> {
        let is_server = leaf_certificates(text)?.iter().any(|leaf| leaf.purpose() == Purpose::Server);
        if is_server {
            return Ok(IdentityFile::Server(Box::new(ServerBundle::parse(text)?)));
        }
        Ok(IdentityFile::Client(Box::new(ClientBundle::parse(text)?)))
    }

    pub(super) fn to_pem(&self) -> Zeroizing<String> {
        match self {
            IdentityFile::Server(bundle) => bundle.to_pem(),
            IdentityFile::Client(bundle) => bundle.to_pem(),
        }
    }

    pub(super) fn anchors(&self) -> &TrustAnchors {
        match self {
            IdentityFile::Server(bundle) => bundle.anchors(),
            IdentityFile::Client(bundle) => bundle.anchors(),
        }
    }

    pub(super) fn with_anchors(self, anchors: TrustAnchors) -> Result<IdentityFile, Error> {
        Ok(match self {
            IdentityFile::Server(bundle) => IdentityFile::Server(Box::new(bundle.with_anchors(anchors)?)),
            IdentityFile::Client(bundle) => IdentityFile::Client(Box::new(bundle.with_anchors(anchors)?)),
        })
    }
}
