//! Verifies certificate chains: issued by a trusted CA, for the expected purpose, and valid now.
//!
//! The TLS library checks the purpose only of certificates that name one. So certificates are also parsed here:
//! [`Certificate::parse`] refuses those without exactly one purpose.
//!
//! **What is absent.** Hostnames; intermediate CAs that the project's CA does not allow; the denylist, which
//! [`crate::tls`] checks.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, OtherError};

use crate::anchors::TrustAnchors;
use crate::certificate::{Certificate, Purpose};
use crate::error::Error;
use crate::key::KeyedCertificate;
use crate::peer::PeerIdentity;

/// The cryptography provider of all TLS configurations.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Trust in one CA, or in several.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    anchors: Vec<Certificate>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Trust {
    pub(crate) fn in_ca(ca: &Certificate) -> Result<Trust, Error> {
        Trust::in_all([ca])
    }

    pub(crate) fn in_anchors(anchors: &TrustAnchors) -> Result<Trust, Error> {
        Trust::in_all(anchors.iter())
    }

    fn in_all<'a>(anchors: impl IntoIterator<Item = &'a Certificate>) -> Result<Trust, Error> {
        let anchors: Vec<Certificate> = anchors.into_iter().cloned().collect();
        let unusable = |error: &dyn std::fmt::Display| {
            Error::invalid(format!("the CA certificate cannot be trusted: {error}: cn={}", names(&anchors)))
        };
        let mut roots = RootCertStore::empty();
        for ca in &anchors {
            roots.add(ca.der().clone()).map_err(|error| unusable(&error))?;
        }
        let roots = Arc::new(roots);
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider).build();
        let clients = clients.map_err(|error| unusable(&error))?;
        Ok(Trust { anchors, roots, clients, algorithms })
    }

    /// The TLS library's own client verifier. It checks neither the denylist nor our rules about purposes.
    pub(crate) fn clients(&self) -> &dyn ClientCertVerifier {
        &*self.clients
    }

    pub(crate) fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.algorithms
    }

    /// Verifies a client certificate. Its identity is for the caller to determine, which may refuse it.
    pub(crate) fn check_client(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        identify: impl FnOnce(&Certificate) -> Result<PeerIdentity, Error>,
    ) -> Result<PeerIdentity, rustls::Error> {
        self.clients.verify_client_cert(own, intermediates, now)?;
        Certificate::parse(own).and_then(|certificate| identify(&certificate)).map_err(refusal)
    }

    /// Verifies a server certificate.
    pub(crate) fn check_server(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Certificate, rustls::Error> {
        let parsed = ParsedCertificate::try_from(own)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        let certificate = Certificate::parse(own).map_err(refusal)?;
        match certificate.purpose() {
            Purpose::Server => Ok(certificate),
            _ => Err(CertificateError::InvalidPurpose.into()),
        }
    }

    /// Checks that a CA issued the certificate for its purpose. Ignores its dates, which depend on the time of the check.
    pub(crate) fn check_issued(&self, keyed: &KeyedCertificate) -> Result<(), Error> {
        self.check_at(keyed, keyed.certificate().not_before())
    }

    /// Checks that a CA issued the certificate for its purpose, and that it is valid at `now`.
    pub(crate) fn check_at(&self, keyed: &KeyedCertificate, now: UnixTime) -> Result<(), Error> {
        let certificate = keyed.certificate();
        let chain: Vec<_> = keyed.intermediates().iter().map(|one| one.der().clone()).collect();
        let checked = match certificate.purpose() {
            Purpose::Client | Purpose::Workload => {
                self.check_client(certificate.der(), &chain, now, PeerIdentity::of_own).map(drop)
            }
            Purpose::Server => self.check_server(certificate.der(), &chain, now).map(drop),
            Purpose::Authority => Err(CertificateError::InvalidPurpose.into()),
        };
        checked.map_err(|error| {
            let (name, ca) = (certificate.name(), names(&self.anchors));
            Error::invalid(format!("{}: cn={name} ca={ca} serial={}", describe(&error), certificate.serial()))
        })
    }
}

/// The names of CAs, separated by commas.
fn names(anchors: &[Certificate]) -> String {
    anchors.iter().map(|ca| ca.name().as_str()).collect::<Vec<_>>().join(",")
}

fn refusal(error: Error) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

fn describe(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(error) = error else {
        return format!("the certificate cannot be used: {error}");
    };
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the certificate was not issued by this CA".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate has expired; create a new one".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet; check the clock".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is for another purpose".into()
        }
        CertificateError::Other(OtherError(error)) => error.to_string(),
        other => format!("the certificate cannot be trusted: {other:?}"),
    }
}
