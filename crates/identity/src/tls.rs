//! TLS configurations from identity files: for servers, for clients, and for servers that forward to other servers.
//!
//! A server requires a client certificate that the CA issued for clients and that is not revoked. A client checks the
//! same of the server's certificate, and never its hostname. Certificates can be replaced while connections are open:
//! later handshakes use the new one.
//!
//! **What is absent.** Sockets. Checks after the handshake: a resumed session calls no verifier, and open connections
//! outlive revocation and expiry, so a server also calls [`SharedDenylist::check`] for every request.

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
use crate::denylist::{CertificateRefusal, Denylist, SharedDenylist};
use crate::error::Error;
use crate::key::KeyedCertificate;
use crate::serial::Serial;
use crate::trust::{Trust, provider};

/// The offered protocols, in order of preference.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS for a server.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    certificate: Arc<OwnCertificate>,
}

impl ServerTls {
    /// Uses the bundle's certificate and CA, and reads the shared denylist at each handshake. The bundle's own denylist
    /// applies only if the caller has added it to the shared one.
    pub fn new(
        bundle: &ServerBundle,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ServerTls, Error> {
        ServerTls::with_observer(bundle, denylist, clock, RefusalObserver::default())
    }

    /// Like [`ServerTls::new`]; the observer gets the serial of every certificate that is refused.
    pub fn with_observer(
        bundle: &ServerBundle,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
        observer: RefusalObserver,
    ) -> Result<ServerTls, Error> {
        let certificate = Arc::new(OwnCertificate::new(bundle.ca(), bundle.server()));
        let trust = Trust::in_ca(bundle.ca())?;
        let verifier = Arc::new(ClientVerifier { trust, denylist, observer });
        let mut config = ServerConfig::builder_with_details(provider(), clock)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default protocol versions")
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::<OwnCertificate>::clone(&certificate));
        config.alpn_protocols = alpn();
        Ok(ServerTls { config: Arc::new(config), certificate })
    }

    /// The configuration for a TLS acceptor.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Checks a bundle that is to replace the current one. Changes nothing: [`CertificateUpdate::install`] does.
    ///
    /// Refuses another CA, which needs a restart: sessions of the old CA's clients would survive. Refuses a new
    /// certificate that no client would accept: not valid now, or on `denylist`, which is to be installed with it.
    pub fn prepare(
        &self,
        bundle: &ServerBundle,
        denylist: &Denylist,
    ) -> Result<CertificateUpdate<'_>, Error> {
        let update = self.certificate.prepare(bundle.ca(), bundle.server())?;
        let certificate = bundle.server().certificate();
        // A reload for a revocation alone must not fail because the certificate in use has expired.
        if !self.certificate.is_current(certificate) {
            let now = self.config.time_provider.current_time();
            let now = now.ok_or_else(|| Error::invalid("the clock cannot be read"))?;
            Trust::in_ca(bundle.ca())?.check_at(certificate, now)?;
            if denylist.contains(certificate.serial()) {
                return Err(Error::invalid(CertificateRefusal::Revoked(certificate.serial()).to_string()));
            }
        }
        Ok(update)
    }
}

/// A checked certificate that is not in use yet. Dropping it changes nothing.
#[must_use]
pub struct CertificateUpdate<'a> {
    certificate: &'a OwnCertificate,
    next: Arc<CertifiedKey>,
}

impl CertificateUpdate<'_> {
    /// Uses the certificate for every handshake from now on. Cannot fail.
    pub fn install(self) {
        self.certificate.current.store(self.next);
    }
}

/// TLS for a client.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    certificate: Arc<OwnCertificate>,
}

impl ClientTls {
    /// TLS of a client. It has no denylist.
    pub fn new(bundle: &ClientBundle, clock: Arc<dyn TimeProvider>) -> Result<ClientTls, Error> {
        let none_revoked = Arc::new(SharedDenylist::new(Denylist::default()));
        ClientTls::build(bundle.ca(), bundle.client(), none_revoked, clock)
    }

    /// TLS of a server that forwards requests to another server: it presents its forwarding certificate, and refuses
    /// revoked servers. Session resumption is off, so that every connection checks the denylist.
    pub fn forwarding(
        bundle: &ServerBundle,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ClientTls, Error> {
        let mut tls = ClientTls::build(bundle.ca(), bundle.forwarding(), denylist, clock)?;
        Arc::make_mut(&mut tls.config).resumption = Resumption::disabled();
        Ok(tls)
    }

    /// The configuration for a TLS connector. The server name is not verified.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Presents another certificate of the same CA from now on.
    pub fn replace(&self, bundle: &ClientBundle) -> Result<(), Error> {
        self.certificate.prepare(bundle.ca(), bundle.client()).map(CertificateUpdate::install)
    }

    fn build(
        ca: &Certificate,
        own: &KeyedCertificate,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ClientTls, Error> {
        let certificate = Arc::new(OwnCertificate::new(ca, own));
        let verifier = Arc::new(ServerVerifier { trust: Trust::in_ca(ca)?, denylist });
        let mut config = ClientConfig::builder_with_details(provider(), clock)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default protocol versions")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::<OwnCertificate>::clone(&certificate));
        config.alpn_protocols = alpn();
        Ok(ClientTls { config: Arc::new(config), certificate })
    }
}

/// The certificate that this side presents in handshakes.
#[derive(Debug)]
struct OwnCertificate {
    ca: Certificate,
    current: ArcSwap<CertifiedKey>,
}

impl OwnCertificate {
    fn new(ca: &Certificate, own: &KeyedCertificate) -> OwnCertificate {
        OwnCertificate { ca: ca.clone(), current: ArcSwap::new(own.certified()) }
    }

    fn is_current(&self, certificate: &Certificate) -> bool {
        self.current.load().cert.first() == Some(certificate.der())
    }

    fn prepare(&self, ca: &Certificate, own: &KeyedCertificate) -> Result<CertificateUpdate<'_>, Error> {
        if *ca != self.ca {
            let what = "the new file has another CA; restart the server to use it";
            return Err(Error::invalid(format!("{what}: cn={} serial={}", ca.name(), ca.serial())));
        }
        Ok(CertificateUpdate { certificate: self, next: own.certified() })
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Receives the serial of each client certificate that a handshake refuses. It is called during the handshake, by the
/// task that drives it: a failed handshake itself no longer has the certificate.
#[derive(Clone, Default)]
pub struct RefusalObserver(Option<Arc<dyn Fn(Serial) + Send + Sync>>);

impl RefusalObserver {
    /// Calls this function. It must not block.
    pub fn new(on_refused: impl Fn(Serial) + Send + Sync + 'static) -> RefusalObserver {
        RefusalObserver(Some(Arc::new(on_refused)))
    }

    fn refused(&self, certificate: &CertificateDer<'_>) {
        if let (Some(on_refused), Ok(certificate)) = (&self.0, Certificate::parse(certificate)) {
            on_refused(certificate.serial());
        }
    }
}

impl std::fmt::Debug for RefusalObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RefusalObserver")
    }
}

/// A server's verifier of client certificates.
#[derive(Debug)]
struct ClientVerifier {
    trust: Trust,
    denylist: Arc<SharedDenylist>,
    observer: RefusalObserver,
}

impl ClientVerifier {
    fn verify(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let peer = self.trust.check_client(own, intermediates, now)?;
        refuse_revoked(&self.denylist, peer.serial)
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.trust.clients().root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.verify(own, intermediates, now);
        verified.inspect_err(|_| self.observer.refused(own)).map(|()| ClientCertVerified::assertion())
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

/// A client's verifier of server certificates.
#[derive(Debug)]
struct ServerVerifier {
    trust: Trust,
    denylist: Arc<SharedDenylist>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = self.trust.check_server(own, intermediates, now)?;
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
