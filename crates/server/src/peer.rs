//! The authenticated client of a connection, and its rights.

use std::fmt;
use std::sync::Arc;

use identity::{PeerIdentity, Right, Rights, RightsScope, Role};
use kernel::{Identity, Namespace};

/// The authenticated client of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The identity that its leases belong to.
    pub identity: Identity,
    /// Operators may also act on the leases of other identities, in the namespaces that `rights` name.
    pub role: Role,
    /// Its rights, by namespace.
    pub rights: Arc<Rights>,
    /// Its certificate, which is checked again for every request; `None` without mutual TLS.
    pub certificate: Option<Arc<PeerIdentity>>,
}

/// A certificate whose name is not a valid identity.
#[derive(Debug)]
pub struct InvalidIdentity(kernel::TextError);

impl fmt::Display for InvalidIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the certificate's name is not a valid identity: {}", self.0)
    }
}

impl std::error::Error for InvalidIdentity {}

impl Peer {
    /// Every client of a server without authentication: an operator on the same machine, a worker from elsewhere.
    pub fn anonymous(role: Role) -> Peer {
        let identity = Identity::new("anonymous").expect("a valid name");
        Peer { identity, role, rights: Arc::new(Rights::all()), certificate: None }
    }

    /// Whether the peer is an operator of the namespace: one whose certificate names it, with any right. `None` stands
    /// for all namespaces, which only `*` names.
    pub(crate) fn operates(&self, namespace: Option<&Namespace>) -> bool {
        let named = match namespace {
            Some(namespace) => Right::ALL.iter().any(|right| self.rights.allows(namespace.as_str(), *right)),
            None => self.rights.iter().any(|listed| *listed.scope() == RightsScope::Any),
        };
        named && self.role == Role::Operator
    }

    /// The client that presented this certificate.
    pub fn from_certificate(certificate: PeerIdentity) -> Result<Peer, InvalidIdentity> {
        let identity = Identity::new(certificate.name.as_str()).map_err(InvalidIdentity)?;
        let (role, rights) = (certificate.role, Arc::new(certificate.rights.clone()));
        Ok(Peer { identity, role, rights, certificate: Some(Arc::new(certificate)) })
    }
}

/// Checks whether the certificate of a request is still valid: for responses that last longer than the check at the
/// request's start.
#[derive(Clone)]
pub(crate) struct CertificateCheck(pub(crate) Arc<dyn Fn() -> bool + Send + Sync>);
