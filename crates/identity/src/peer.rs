//! The identity of a peer, from its client certificate.
//!
//! **What is absent.** Verification. The certificate must come from a handshake in which [`crate::tls`] verified it; before
//! each request, [`crate::tls::ServerTls::check`] decides whether it is still valid.

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::certificate::{Certificate, Name, Purpose};
use crate::error::Error;
use crate::rights::{Rights, Role, from_uris, is_ours};
use crate::serial::Serial;
use crate::spiffe::SpiffeMap;

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
}

impl PeerIdentity {
    /// The identity in a client certificate.
    pub fn of(certificate: &Certificate) -> Result<PeerIdentity, Error> {
        if certificate.purpose() != Purpose::Client {
            let what = "the certificate is not for clients: it needs the extended key usage ClientAuth";
            return Err(Error::invalid(format!("{what}: purpose={}", certificate.purpose())));
        }
        if !certificate.has_common_name() {
            return Err(Error::invalid(
                "a client's certificate must have one common name: it is the identity",
            ));
        }
        let (role, rights) = from_uris(certificate.uris())?;
        Ok(PeerIdentity::new(certificate, certificate.name().clone(), role, rights))
    }

    /// The same; a certificate without a role of its own has the identity that its SPIFFE id is mapped to.
    pub fn mapped(certificate: &Certificate, map: &SpiffeMap) -> Result<PeerIdentity, Error> {
        let refused = match PeerIdentity::of(certificate) {
            Ok(identity) => return Ok(identity),
            Err(refused) => refused,
        };
        let Some(id) = foreign_id(certificate) else { return Err(refused) };
        let Some(mapped) = map.get(id) else {
            let what = "the SPIFFE id is not mapped to an identity; add it to the file of --spiffe-map";
            return Err(Error::invalid(format!("{what}: id={}", id.escape_debug())));
        };
        Ok(PeerIdentity::new(certificate, mapped.name.clone(), mapped.role, mapped.rights.clone()))
    }

    /// The identity as its own client knows it: the rights of a SPIFFE id are known to the server alone.
    pub(crate) fn of_own(certificate: &Certificate) -> Result<PeerIdentity, Error> {
        PeerIdentity::of(certificate).or_else(|refused| match foreign_id(certificate) {
            Some(_) => {
                Ok(PeerIdentity::new(certificate, certificate.name().clone(), Role::Worker, Rights::none()))
            }
            None => Err(refused),
        })
    }

    fn new(certificate: &Certificate, name: Name, role: Role, rights: Rights) -> PeerIdentity {
        let (serial, not_after) = (certificate.serial(), certificate.not_after());
        PeerIdentity { name, serial, role, rights, not_after }
    }

    /// The identity of a connection's peer, from its certificate chain (end entity first).
    pub fn from_chain(chain: &[CertificateDer<'_>], map: &SpiffeMap) -> Result<PeerIdentity, Error> {
        let own = chain.first().ok_or_else(|| Error::invalid("the peer sent no certificate"))?;
        PeerIdentity::mapped(&Certificate::parse(own)?, map)
    }
}

/// The SPIFFE id of a client certificate that says nothing about lockd.
fn foreign_id(certificate: &Certificate) -> Option<&str> {
    let is_client = matches!(certificate.purpose(), Purpose::Client | Purpose::Workload);
    certificate.spiffe_id().filter(|_| is_client && !is_ours(certificate.uris()))
}
