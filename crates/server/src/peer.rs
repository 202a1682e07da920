//! Who is asking, and what it may.

use std::fmt;
use std::sync::Arc;

use identity::{PeerIdentity, Rights, Role};
use kernel::Identity;

/// Who is asking.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Whose leases are whose.
    pub identity: Identity,
    /// What it is.
    pub role: Role,
    /// What it may, and where.
    pub rights: Arc<Rights>,
    /// The certificate that it has shown, to be checked again with every request.
    pub shown: Option<Arc<PeerIdentity>>,
}

/// A certificate whose name cannot be an identity.
#[derive(Debug)]
pub struct NoIdentity(kernel::TextError);

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the certificate's name cannot be an identity: {}", self.0)
    }
}

impl std::error::Error for NoIdentity {}

impl Peer {
    /// Everybody, where nobody is asked who it is: an operator on the same machine, a worker from elsewhere.
    pub fn anonymous(role: Role) -> Peer {
        let identity = Identity::new("anonymous").expect("a valid name");
        Peer { identity, role, rights: Arc::new(Rights::all()), shown: None }
    }

    /// Whoever has shown this certificate.
    pub fn of(shown: PeerIdentity) -> Result<Peer, NoIdentity> {
        let identity = Identity::new(shown.name.as_str()).map_err(NoIdentity)?;
        let (role, rights) = (shown.role, Arc::new(shown.rights.clone()));
        Ok(Peer { identity, role, rights, shown: Some(Arc::new(shown)) })
    }
}
