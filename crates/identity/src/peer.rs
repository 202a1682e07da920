//! Whoever is at the other end: the identity in a certificate for clients.
//!
//! **What is absent.** Trust. What is read here must come from a handshake in which [`crate::tls`] verified the
//! certificate; before each request, [`crate::denylist::SharedDenylist::check`] says whether it still holds.

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::certificate::{Certificate, Name, Purpose};
use crate::error::Error;
use crate::rights::{Rights, Role, from_uris};
use crate::serial::Serial;

/// An identity, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Who it is: the common name. Leases belong to it, whatever certificate it shows next time.
    pub name: Name,
    /// Which certificate it shows. Only for the denylist.
    pub serial: Serial,
    /// What kind of party it is.
    pub role: Role,
    /// What it may do, namespace by namespace.
    pub rights: Rights,
    /// Up to when it may do it.
    pub not_after: UnixTime,
}

impl PeerIdentity {
    /// From a certificate for clients.
    pub fn of(certificate: &Certificate) -> Result<PeerIdentity, Error> {
        if certificate.purpose() != Purpose::Client {
            let what = "the certificate is not for clients: it needs the extended key usage ClientAuth";
            return Err(Error::invalid(format!("{what}: purpose={}", certificate.purpose())));
        }
        let (role, rights) = from_uris(certificate.uris())?;
        let (name, serial) = (certificate.name().clone(), certificate.serial());
        Ok(PeerIdentity { name, serial, role, rights, not_after: certificate.not_after() })
    }

    /// From what a connection gives as its peer's certificates, the peer's own first.
    pub fn from_chain(chain: &[CertificateDer<'_>]) -> Result<PeerIdentity, Error> {
        let own = chain.first().ok_or_else(|| Error::invalid("the peer has shown no certificate"))?;
        PeerIdentity::of(&Certificate::parse(own)?)
    }
}
