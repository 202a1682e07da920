//! The identity of a peer, from its client certificate.
//!
//! **What is absent.** Verification. The certificate must come from a handshake in which [`crate::tls`] verified it; before
//! each request, [`crate::denylist::SharedDenylist::check`] decides whether it is still valid.

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::certificate::{Certificate, Name, Purpose};
use crate::error::Error;
use crate::rights::{Rights, Role, from_uris};
use crate::serial::Serial;

/// An identity with its role and rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The common name. Leases belong to it, not to a particular certificate.
    pub name: Name,
    /// Serial of the certificate; used for the denylist only.
    pub serial: Serial,
    /// The role.
    pub role: Role,
    /// Rights for each namespace.
    pub rights: Rights,
    /// End of the certificate's validity.
    pub not_after: UnixTime,
    /// Identifies the key of the CA that issued the certificate, if the certificate names it.
    pub issuer_key_id: Option<Vec<u8>>,
}

impl PeerIdentity {
    /// The identity in a client certificate.
    pub fn of(certificate: &Certificate) -> Result<PeerIdentity, Error> {
        if certificate.purpose() != Purpose::Client {
            let what = "the certificate is not for clients: it needs the extended key usage ClientAuth";
            return Err(Error::invalid(format!("{what}: purpose={}", certificate.purpose())));
        }
        let (role, rights) = from_uris(certificate.uris())?;
        let (name, serial) = (certificate.name().clone(), certificate.serial());
        let (not_after, issuer) = (certificate.not_after(), certificate.issuer_key_id());
        Ok(PeerIdentity { name, serial, role, rights, not_after, issuer_key_id: issuer.map(<[u8]>::to_vec) })
    }

    /// The identity of a connection's peer, from its certificate chain (end entity first).
    pub fn from_chain(chain: &[CertificateDer<'_>]) -> Result<PeerIdentity, Error> {
        let own = chain.first().ok_or_else(|| Error::invalid("the peer sent no certificate"))?;
        PeerIdentity::of(&Certificate::parse(own)?)
    }
}
