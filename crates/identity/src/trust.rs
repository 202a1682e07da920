//! The judgement over a chain: the project's CA issued it, for this purpose, and it is valid now.
//!
//! The TLS library asks for a purpose only where a certificate names any, and for no hostname where it is told
//! not to. So certificates are read here as well: [`Certificate::parse`] refuses those without exactly one.
//!
//! **What is absent.** Hostnames; intermediate CAs that the project's CA does not allow; the denylist, which
//! [`crate::tls`] asks.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, OtherError};

use crate::certificate::{Certificate, Purpose};
use crate::error::Error;
use crate::peer::PeerIdentity;

/// The one library of cryptography.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Trust in one CA.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    ca: Certificate,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Trust {
    pub(crate) fn in_ca(ca: &Certificate) -> Result<Trust, Error> {
        let unusable = |error: &dyn std::fmt::Display| {
            Error::invalid(format!("the CA certificate cannot be trusted: {error}: cn={}", ca.name()))
        };
        let mut roots = RootCertStore::empty();
        roots.add(ca.der().clone()).map_err(|error| unusable(&error))?;
        let roots = Arc::new(roots);
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider).build();
        let clients = clients.map_err(|error| unusable(&error))?;
        Ok(Trust { ca: ca.clone(), roots, clients, algorithms })
    }

    /// The TLS library's own verifier of clients; it does not know the denylist, nor our rules of purpose.
    pub(crate) fn clients(&self) -> &dyn ClientCertVerifier {
        &*self.clients
    }

    pub(crate) fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.algorithms
    }

    /// A certificate that asks.
    pub(crate) fn check_client(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<PeerIdentity, rustls::Error> {
        self.clients.verify_client_cert(own, between, now)?;
        Certificate::parse(own).and_then(|certificate| PeerIdentity::of(&certificate)).map_err(refusal)
    }

    /// A certificate that answers.
    pub(crate) fn check_server(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Certificate, rustls::Error> {
        let parsed = ParsedCertificate::try_from(own)?;
        let known = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, known)?;
        let certificate = Certificate::parse(own).map_err(refusal)?;
        match certificate.purpose() {
            Purpose::Server => Ok(certificate),
            _ => Err(CertificateError::InvalidPurpose.into()),
        }
    }

    /// Whether the CA issued it, for what it says. Dates apart: they change by themselves.
    pub(crate) fn check_issued(&self, certificate: &Certificate) -> Result<(), Error> {
        self.check_at(certificate, certificate.not_before())
    }

    /// Whether the CA issued it, for what it says, and it is valid at that moment.
    pub(crate) fn check_at(&self, certificate: &Certificate, now: UnixTime) -> Result<(), Error> {
        let checked = match certificate.purpose() {
            Purpose::Client => self.check_client(certificate.der(), &[], now).map(drop),
            Purpose::Server => self.check_server(certificate.der(), &[], now).map(drop),
            Purpose::Authority => Err(CertificateError::InvalidPurpose.into()),
        };
        checked.map_err(|error| {
            let (name, ca) = (certificate.name(), self.ca.name());
            Error::invalid(format!("{}: cn={name} ca={ca} serial={}", in_words(&error), certificate.serial()))
        })
    }
}

fn refusal(error: Error) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

fn in_words(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(error) = error else {
        return format!("the certificate cannot be used: {error}");
    };
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the certificate was not issued by this CA".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate has expired; make a new one".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate is not valid yet; look at the clock".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate is for something else".into()
        }
        CertificateError::Other(OtherError(error)) => error.to_string(),
        other => format!("the certificate cannot be trusted: {other:?}"),
    }
}
