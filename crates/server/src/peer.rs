//! The authenticated client of a connection, its rights, and whether it may still act.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use engine::Authorization;
use identity::{CertificateRefusal, PeerIdentity, Right, Rights, RightsScope, Role, VerifiedChain};
use kernel::{Identity, Namespace};
use tokio::sync::Notify;

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
    /// Its connection.
    pub connection: PeerConnection,
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
        let (rights, connection) = (Arc::new(Rights::all()), PeerConnection::default());
        Peer { identity, role, rights, certificate: None, connection }
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
        let connection = PeerConnection::of_certificate(&certificate);
        let certificate = Some(Arc::new(certificate));
        Ok(Peer { identity, role, rights, certificate, connection })
    }

    /// A client whose requests this server forwards. Its requests end with the connection of this server. `address` is that
    /// of the client, if the server says so.
    pub(crate) fn forwarding(
        &self,
        identity: Identity,
        role: Role,
        rights: Rights,
        serial: Option<&str>,
        address: Option<SocketAddr>,
    ) -> Peer {
        let serial = serial.map(Arc::from);
        let connection = PeerConnection::new(address.or(self.connection.address()), None, serial.as_ref());
        Peer { identity, role, rights: Arc::new(rights), certificate: None, connection }
    }

    /// The same client on a connection from this address; `None` for a Unix socket.
    #[must_use]
    pub(crate) fn on_connection(&self, address: Option<SocketAddr>) -> Peer {
        Peer { connection: PeerConnection::new(address, None, self.connection.serial()), ..self.clone() }
    }

    /// The same client on a connection with mutual TLS.
    #[must_use]
    pub(crate) fn on_tls_connection(self, address: Option<SocketAddr>, chain: VerifiedChain) -> Peer {
        let connection = PeerConnection::new(address, Some(chain), self.connection.serial());
        Peer { connection, ..self }
    }
}

/// The connection of a client: where it comes from, and whether the client may still act. Clones are the same
/// connection. The default is one that this server did not accept: it is never ended from here.
#[derive(Clone, Debug, Default)]
pub struct PeerConnection(Arc<ConnectionState>);

/// A connection that goes with its last [`PeerConnection`].
pub(crate) struct WeakPeerConnection(Weak<ConnectionState>);

impl WeakPeerConnection {
    /// `None` once it is gone.
    pub(crate) fn upgrade(&self) -> Option<PeerConnection> {
        self.0.upgrade().map(PeerConnection)
    }
}

#[derive(Debug, Default)]
struct ConnectionState {
    address: Option<SocketAddr>,
    chain: Option<VerifiedChain>,
    /// The serial number of the client's certificate, in hexadecimal.
    serial: Option<Arc<str>>,
    authorization: Authorization,
    end: OnceLock<ConnectionEnd>,
    ended: Notify,
}

/// Why the server ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// The certificate was revoked.
    Revoked,
    /// The certificate has expired.
    Expired,
    /// The certificate's CA is no longer trusted.
    Distrusted,
    /// The certificate's SPIFFE id has another identity now, other rights, or none.
    IdentityChanged,
    /// The client does not take its responses.
    Stalled,
    /// The client has too many requests in progress, and does not take the refusals.
    Overloaded,
}

impl From<CertificateRefusal> for ConnectionEnd {
    fn from(why: CertificateRefusal) -> ConnectionEnd {
        match why {
            CertificateRefusal::Revoked(_) => ConnectionEnd::Revoked,
            CertificateRefusal::Expired(_) => ConnectionEnd::Expired,
            CertificateRefusal::Distrusted(_) => ConnectionEnd::Distrusted,
            CertificateRefusal::Changed(_) => ConnectionEnd::IdentityChanged,
        }
    }
}

impl ConnectionEnd {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ConnectionEnd::Revoked => "revoked",
            ConnectionEnd::Expired => "expired",
            ConnectionEnd::Distrusted => "distrusted",
            ConnectionEnd::IdentityChanged => "identity_changed",
            ConnectionEnd::Stalled => "stalled",
            ConnectionEnd::Overloaded => "overloaded",
        }
    }
}

impl PeerConnection {
    fn new(
        address: Option<SocketAddr>,
        chain: Option<VerifiedChain>,
        serial: Option<&Arc<str>>,
    ) -> PeerConnection {
        let (authorization, serial) = (Authorization::new(), serial.cloned());
        let (end, ended) = (OnceLock::new(), Notify::new());
        PeerConnection(Arc::new(ConnectionState { address, chain, serial, authorization, end, ended }))
    }

    fn of_certificate(certificate: &PeerIdentity) -> PeerConnection {
        let serial = Some(certificate.serial.to_string().into());
        PeerConnection(Arc::new(ConnectionState { serial, ..ConnectionState::default() }))
    }

    pub(crate) fn downgrade(&self) -> WeakPeerConnection {
        WeakPeerConnection(Arc::downgrade(&self.0))
    }

    /// The serial number of the client's certificate; `None` without mutual TLS.
    pub(crate) fn serial(&self) -> Option<&Arc<str>> {
        self.0.serial.as_ref()
    }

    /// The client's certificates; `None` without mutual TLS.
    pub(crate) fn chain(&self) -> Option<&VerifiedChain> {
        self.0.chain.as_ref()
    }

    /// The address of the client; `None` on a Unix socket, or if another program accepted the connection.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.0.address
    }

    /// Whether the commands of this client may still be decided.
    pub(crate) fn authorization(&self) -> &Authorization {
        &self.0.authorization
    }

    /// Ends the connection. Without a valid certificate, nothing more is decided for its client: at the latest once every
    /// shard has passed its turn. Returns whether it had not been ended before.
    pub(crate) fn end(&self, why: ConnectionEnd) -> bool {
        if self.0.end.set(why).is_err() {
            return false;
        }
        if !matches!(why, ConnectionEnd::Stalled | ConnectionEnd::Overloaded) {
            self.0.authorization.withdraw();
        }
        self.0.ended.notify_waiters();
        true
    }

    /// Why it was ended; `None` while it is not.
    pub(crate) fn end_reason(&self) -> Option<ConnectionEnd> {
        self.0.end.get().copied()
    }

    /// Waits until it is ended.
    pub(crate) async fn ended(&self) -> ConnectionEnd {
        loop {
            // Created before the check: an end in between wakes it.
            let notified = self.0.ended.notified();
            if let Some(why) = self.end_reason() {
                return why;
            }
            notified.await;
        }
    }
}

/// Checks whether the certificate of a request is still valid: for responses that last longer than the check at the
/// request's start.
#[derive(Clone)]
pub(crate) struct CertificateCheck(pub(crate) Arc<dyn Fn() -> bool + Send + Sync>);
