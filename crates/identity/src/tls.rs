//! Identity files at work: TLS for servers, for clients, and for servers that forward to others.
//!
//! A server asks every client for a certificate, and lets in those that the CA issued for clients and that are
//! not revoked. A client checks the same of the server, and never its hostname. Certificates can be replaced
//! while connections are open: handshakes to come use the new one.
//!
//! **What is absent.** Sockets. And the last word: neither verifier is asked when a session is resumed, and
//! open connections outlive revocation and expiry, so a server also calls
//! [`SharedDenylist::check`] for every request.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};

use crate::bundle::{ClientBundle, ServerBundle};
use crate::certificate::Certificate;
use crate::denylist::{Denylist, Refused, SharedDenylist};
use crate::error::Error;
use crate::key::KeyedCertificate;
use crate::serial::Serial;
use crate::trust::{Trust, provider};

/// The protocols on offer, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS for a server.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    shown: Arc<Shown>,
}

impl ServerTls {
    /// Goes by the bundle's certificate and CA, and by the denylist as it is at each handshake. The bundle's own
    /// denylist counts only if the caller put it into the shared one.
    pub fn new(
        bundle: &ServerBundle,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ServerTls, Error> {
        let shown = Arc::new(Shown::new(bundle.ca(), bundle.server()));
        let verifier = Arc::new(Clients { trust: Trust::in_ca(bundle.ca())?, denylist });
        let mut config = ServerConfig::builder_with_details(provider(), clock)
            .with_safe_default_protocol_versions()
            .expect("the library has its own protocol versions")
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::<Shown>::clone(&shown));
        config.alpn_protocols = alpn();
        Ok(ServerTls { config: Arc::new(config), shown })
    }

    /// What a TLS acceptor needs.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Checks a bundle that is to replace the current one, and changes nothing: [`CertificateUpdate::install`] does.
    ///
    /// Refuses another CA, which takes a restart: sessions of the old CA's clients would live on. Refuses a new certificate
    /// that no client would accept: one that is not valid now, or is on `denylist`, the list that is to be in force with it.
    pub fn prepare(
        &self,
        bundle: &ServerBundle,
        denylist: &Denylist,
    ) -> Result<CertificateUpdate<'_>, Error> {
        let update = self.shown.prepare(bundle.ca(), bundle.server())?;
        let certificate = bundle.server().certificate();
        // A reload for a revocation alone must not fail because the certificate in use has expired.
        if !self.shown.is_current(certificate) {
            let now = self.config.time_provider.current_time();
            let now = now.ok_or_else(|| Error::invalid("the clock cannot be read"))?;
            Trust::in_ca(bundle.ca())?.check_at(certificate, now)?;
            if denylist.contains(certificate.serial()) {
                return Err(Error::invalid(Refused::Revoked(certificate.serial()).to_string()));
            }
        }
        Ok(update)
    }
}

/// A certificate that was checked and is not in use yet. Dropping it changes nothing.
#[must_use]
pub struct CertificateUpdate<'a> {
    shown: &'a Shown,
    next: Arc<CertifiedKey>,
}

impl CertificateUpdate<'_> {
    /// Uses the certificate for every handshake from now on. Cannot fail.
    pub fn install(self) {
        self.shown.current.store(self.next);
    }
}

/// TLS for a client.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    shown: Arc<Shown>,
}

impl ClientTls {
    /// For whoever asks a server.
    pub fn new(bundle: &ClientBundle, clock: Arc<dyn TimeProvider>) -> Result<ClientTls, Error> {
        let nobody = Arc::new(SharedDenylist::new(Denylist::default()));
        ClientTls::build(bundle.ca(), bundle.client(), nobody, clock)
    }

    /// For a server that asks another: it shows its certificate for forwarding, and trusts no revoked server. Every
    /// connection makes a full handshake, so that the denylist is asked.
    pub fn forwarding(
        bundle: &ServerBundle,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ClientTls, Error> {
        let mut tls = ClientTls::build(bundle.ca(), bundle.forwarding(), denylist, clock)?;
        Arc::make_mut(&mut tls.config).resumption = Resumption::disabled();
        Ok(tls)
    }

    /// What a TLS connector needs. The name to connect to may be anything: nobody looks at it.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Shows another certificate, of the same CA, from now on.
    pub fn replace(&self, bundle: &ClientBundle) -> Result<(), Error> {
        self.shown.prepare(bundle.ca(), bundle.client()).map(CertificateUpdate::install)
    }

    /// Shows another certificate for forwarding, of the same CA, from now on.
    pub fn replace_forwarding(&self, bundle: &ServerBundle) -> Result<(), Error> {
        self.shown.prepare(bundle.ca(), bundle.forwarding()).map(CertificateUpdate::install)
    }

    fn build(
        ca: &Certificate,
        own: &KeyedCertificate,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ClientTls, Error> {
        let shown = Arc::new(Shown::new(ca, own));
        let verifier = Arc::new(Servers { trust: Trust::in_ca(ca)?, denylist });
        let mut config = ClientConfig::builder_with_details(provider(), clock)
            .with_safe_default_protocol_versions()
            .expect("the library has its own protocol versions")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::<Shown>::clone(&shown));
        config.alpn_protocols = alpn();
        Ok(ClientTls { config: Arc::new(config), shown })
    }
}

/// The certificate that this side shows.
#[derive(Debug)]
struct Shown {
    ca: Certificate,
    current: ArcSwap<CertifiedKey>,
}

impl Shown {
    fn new(ca: &Certificate, own: &KeyedCertificate) -> Shown {
        Shown { ca: ca.clone(), current: ArcSwap::new(own.certified()) }
    }

    fn is_current(&self, certificate: &Certificate) -> bool {
        self.current.load().cert.first() == Some(certificate.der())
    }

    fn prepare(&self, ca: &Certificate, own: &KeyedCertificate) -> Result<CertificateUpdate<'_>, Error> {
        if *ca != self.ca {
            let what = "the new file has another CA; that takes a restart";
            return Err(Error::invalid(format!("{what}: cn={} serial={}", ca.name(), ca.serial())));
        }
        Ok(CertificateUpdate { shown: self, next: own.certified() })
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Whom a server lets in.
#[derive(Debug)]
struct Clients {
    trust: Trust,
    denylist: Arc<SharedDenylist>,
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.trust.clients().root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let peer = self.trust.check_client(own, between, now)?;
        refuse_revoked(&self.denylist, peer.serial)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.trust.clients().verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.trust.clients().verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.clients().supported_verify_schemes()
    }
}

/// Whom a client believes.
#[derive(Debug)]
struct Servers {
    trust: Trust,
    denylist: Arc<SharedDenylist>,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = self.trust.check_server(own, between, now)?;
        refuse_revoked(&self.denylist, certificate.serial())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, own, signed, self.trust.algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, own, signed, self.trust.algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.algorithms().supported_schemes()
    }
}

fn refuse_revoked(denylist: &SharedDenylist, serial: Serial) -> Result<(), rustls::Error> {
    if denylist.contains(serial) { Err(CertificateError::Revoked.into()) } else { Ok(()) }
}

fn alpn() -> Vec<Vec<u8>> {
    ALPN.iter().map(|protocol| protocol.to_vec()).collect()
}
