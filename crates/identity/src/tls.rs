//! TLS configurations from identity files: for servers, for clients, and for servers that forward to other servers.
//!
//! A server requires a client certificate that a trusted CA issued for clients and that is not revoked. A client checks
//! the same of the server's certificate, and never its hostname. A server's certificate and its CAs can be replaced while
//! connections are open: later handshakes use the new ones.
//!
//! A resumed session calls no verifier, and an open connection outlives revocation, expiry, the removal of a CA and a
//! changed map of SPIFFE ids. So a server also calls [`ServerTls::check`] for every request: it verifies the chain of an
//! open connection again when the trusted CAs or the map have changed since.
//!
//! **What is absent.** Sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

use crate::anchors::TrustAnchors;
use crate::bundle::{ClientBundle, ServerBundle};
use crate::certificate::Certificate;
use crate::denylist::{CertificateRefusal, Denylist, SharedDenylist};
use crate::error::Error;
use crate::key::KeyedCertificate;
use crate::peer::PeerIdentity;
use crate::serial::Serial;
use crate::spiffe::SpiffeMap;
use crate::trust::{Trust, provider};

/// The protocols that a client offers by default, in order of preference.
const CLIENT_ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// The protocols of a server, in order of preference. The first one is the stream protocol, which only the SDK offers.
const SERVER_ALPN: [&[u8]; 3] = [b"lockd/1", b"h2", b"http/1.1"];

/// TLS for a server. Clones share everything, replacements included.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<ServerState>);

#[derive(Debug)]
struct ServerState {
    certificate: Arc<OwnCertificate>,
    accepting: ArcSwap<Accepting>,
    denylist: Arc<SharedDenylist>,
    spiffe: Arc<ArcSwap<SpiffeMap>>,
    /// Counts the changes of the trusted CAs and of the map. Raised after a change is in use.
    version: AtomicU64,
    observer: RefusalObserver,
    clock: Arc<dyn TimeProvider>,
}

/// The clients that are accepted, and how.
#[derive(Debug)]
struct Accepting {
    config: Arc<ServerConfig>,
    anchors: TrustAnchors,
    trust: Trust,
}

/// Identifies the trusted CAs and the map of SPIFFE ids that a server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustVersion(u64);

/// The certificate chain of a connection's peer, and the version of trust under which it was verified last.
#[derive(Debug)]
pub struct VerifiedChain {
    /// End entity first.
    certificates: Vec<CertificateDer<'static>>,
    version: AtomicU64,
}

impl VerifiedChain {
    /// A chain that a handshake has verified. `version` is from before the handshake.
    pub fn new(chain: &[CertificateDer<'_>], version: TrustVersion) -> VerifiedChain {
        let certificates = chain.iter().cloned().map(CertificateDer::into_owned).collect();
        VerifiedChain { certificates, version: AtomicU64::new(version.0) }
    }
}

impl ServerTls {
    /// Uses the bundle's certificate and CAs, and reads the shared denylist at each handshake. The bundle's own denylist
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
        let certificate = Arc::new(OwnCertificate::new(bundle.server()));
        let anchors = bundle.anchors().clone();
        let spiffe = Arc::default();
        let trust = Trust::in_anchors(&anchors)?;
        let verifier = ClientVerifier::new(&trust, &denylist, &spiffe, &observer);
        let config = server_config(verifier, &certificate, &clock);
        let accepting = ArcSwap::from_pointee(Accepting { config, anchors, trust });
        let version = AtomicU64::new(0);
        let state = ServerState { certificate, accepting, denylist, spiffe, version, observer, clock };
        Ok(ServerTls(Arc::new(state)))
    }

    /// Maps SPIFFE ids to identities from now on. No id is mapped by default.
    pub fn map_spiffe_ids(&self, map: SpiffeMap) {
        if **self.0.spiffe.load() != map {
            self.0.spiffe.store(Arc::new(map));
            self.0.raise_version();
        }
    }

    /// The version of trust in use. Read it before [`ServerTls::config`]: a change during the handshake is noticed then.
    pub fn version(&self) -> TrustVersion {
        TrustVersion(self.0.version.load(Ordering::Acquire))
    }

    /// The identity of a connection's peer, from its verified certificate chain.
    pub fn peer(&self, chain: &[CertificateDer<'_>]) -> Result<PeerIdentity, Error> {
        PeerIdentity::from_chain(chain, &self.0.spiffe.load())
    }

    /// The configuration for the next handshake of a TLS acceptor.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.accepting.load().config)
    }

    /// Checks that the peer of an open connection would be accepted now, as the same identity. Call it for every request.
    pub fn check(
        &self,
        peer: &PeerIdentity,
        chain: &VerifiedChain,
        now: UnixTime,
    ) -> Result<(), CertificateRefusal> {
        self.0.denylist.check(peer, now)?;
        let TrustVersion(version) = self.version();
        if chain.version.load(Ordering::Relaxed) == version {
            return Ok(());
        }
        let distrusted = CertificateRefusal::Distrusted(peer.serial);
        let (own, intermediates) = chain.certificates.split_first().ok_or(distrusted)?;
        let accepting = self.0.accepting.load();
        let verified = accepting.trust.clients().verify_client_cert(own, intermediates, now);
        verified.map_err(|_| distrusted)?;
        if !self.peer(&chain.certificates).is_ok_and(|identity| identity == *peer) {
            return Err(CertificateRefusal::Changed(peer.serial));
        }
        chain.version.store(version, Ordering::Relaxed);
        Ok(())
    }

    /// Checks a bundle that is to replace the current one. Changes nothing: [`ServerUpdate::install`] does.
    ///
    /// CAs may be added and removed; a file that shares no CA with the current one is refused, because it would lock out
    /// every client. Refuses a new certificate that no client would accept: not valid now, or on `denylist`, which is to
    /// be installed with it.
    pub fn prepare(&self, bundle: &ServerBundle, denylist: &Denylist) -> Result<ServerUpdate<'_>, Error> {
        let state = &*self.0;
        let accepting = state.next_accepting(bundle.anchors())?;
        let certificate = bundle.server().certificate();
        // A reload for a revocation alone must not fail because the certificate in use has expired.
        if !state.certificate.is_current(certificate) {
            let now = state.clock.current_time();
            let now = now.ok_or_else(|| Error::invalid("the clock cannot be read"))?;
            Trust::in_anchors(bundle.anchors())?.check_at(bundle.server(), now)?;
            if denylist.contains(certificate.serial()) {
                return Err(Error::invalid(CertificateRefusal::Revoked(certificate.serial()).to_string()));
            }
        }
        Ok(ServerUpdate { state, certificate: bundle.server().certified(), accepting })
    }
}

impl ServerState {
    /// `None` if the CAs stay the same: sessions can be resumed then. A new configuration resumes none, so every client
    /// is verified against the new CAs.
    fn next_accepting(&self, anchors: &TrustAnchors) -> Result<Option<Accepting>, Error> {
        let current = self.accepting.load();
        if current.anchors.iter().all(|ca| anchors.contains(ca))
            && anchors.iter().all(|ca| current.anchors.contains(ca))
        {
            return Ok(None);
        }
        if !anchors.iter().any(|ca| current.anchors.contains(ca)) {
            let what = "the new file has another CA, which no client trusts; add it first with `lockd auth trust`, or restart the server";
            let ca = anchors.issuer();
            return Err(Error::invalid(format!("{what}: cn={} serial={}", ca.name(), ca.serial())));
        }
        let trust = Trust::in_anchors(anchors)?;
        let verifier = ClientVerifier::new(&trust, &self.denylist, &self.spiffe, &self.observer);
        let config = server_config(verifier, &self.certificate, &self.clock);
        Ok(Some(Accepting { config, anchors: anchors.clone(), trust }))
    }

    fn raise_version(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

fn server_config(
    verifier: ClientVerifier,
    certificate: &Arc<OwnCertificate>,
    clock: &Arc<dyn TimeProvider>,
) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_details(provider(), Arc::clone(clock))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default protocol versions")
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::<OwnCertificate>::clone(certificate));
    config.alpn_protocols = alpn(&SERVER_ALPN);
    Arc::new(config)
}

/// A checked certificate and CAs that are not in use yet. Dropping it changes nothing.
#[must_use]
pub struct ServerUpdate<'a> {
    state: &'a ServerState,
    certificate: Arc<CertifiedKey>,
    accepting: Option<Accepting>,
}

impl ServerUpdate<'_> {
    /// Uses them for every handshake from now on. Cannot fail.
    pub fn install(self) {
        self.state.certificate.current.store(self.certificate);
        if let Some(accepting) = self.accepting {
            self.state.accepting.store(Arc::new(accepting));
            self.state.raise_version();
        }
    }
}

/// TLS for a client.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    certificate: Certificate,
}

impl ClientTls {
    /// TLS of a client. Servers on the bundle's denylist are refused.
    pub fn new(bundle: &ClientBundle, clock: Arc<dyn TimeProvider>) -> Result<ClientTls, Error> {
        ClientTls::with_denylist(bundle, &Denylist::default(), clock)
    }

    /// The same; servers on this list are refused too.
    pub fn with_denylist(
        bundle: &ClientBundle,
        denylist: &Denylist,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ClientTls, Error> {
        let revoked = Arc::new(SharedDenylist::new(bundle.denylist().union(denylist)));
        ClientTls::build(bundle.anchors(), bundle.client(), revoked, clock)
    }

    /// TLS of a server that forwards requests to another server: it presents its forwarding certificate, and refuses
    /// revoked servers. Session resumption is off, so that every connection checks the denylist.
    pub fn forwarding(
        bundle: &ServerBundle,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ClientTls, Error> {
        let own = bundle
            .forwarding()
            .ok_or_else(|| Error::invalid("the server has no certificate for forwarding"))?;
        let mut tls = ClientTls::build(bundle.anchors(), own, denylist, clock)?;
        Arc::make_mut(&mut tls.config).resumption = Resumption::disabled();
        Ok(tls)
    }

    /// The certificate that the client presents.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The configuration for a TLS connector. The server name is not verified.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    fn build(
        anchors: &TrustAnchors,
        own: &KeyedCertificate,
        denylist: Arc<SharedDenylist>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<ClientTls, Error> {
        let verifier = Arc::new(ServerVerifier { trust: Trust::in_anchors(anchors)?, denylist });
        let mut config = ClientConfig::builder_with_details(provider(), clock)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default protocol versions")
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(OwnCertificate::new(own)));
        config.alpn_protocols = alpn(&CLIENT_ALPN);
        Ok(ClientTls { config: Arc::new(config), certificate: own.certificate().clone() })
    }
}

/// The certificate that this side presents in handshakes.
#[derive(Debug)]
struct OwnCertificate {
    current: ArcSwap<CertifiedKey>,
}

impl OwnCertificate {
    fn new(own: &KeyedCertificate) -> OwnCertificate {
        OwnCertificate { current: ArcSwap::new(own.certified()) }
    }

    fn is_current(&self, certificate: &Certificate) -> bool {
        self.current.load().cert.first() == Some(certificate.der())
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
    spiffe: Arc<ArcSwap<SpiffeMap>>,
    observer: RefusalObserver,
}

impl ClientVerifier {
    fn new(
        trust: &Trust,
        denylist: &Arc<SharedDenylist>,
        spiffe: &Arc<ArcSwap<SpiffeMap>>,
        observer: &RefusalObserver,
    ) -> ClientVerifier {
        let (denylist, spiffe) = (Arc::clone(denylist), Arc::clone(spiffe));
        ClientVerifier { trust: trust.clone(), denylist, spiffe, observer: observer.clone() }
    }

    fn verify(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let identify = |certificate: &Certificate| PeerIdentity::mapped(certificate, &self.spiffe.load());
        let peer = self.trust.check_client(own, intermediates, now, identify)?;
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

fn alpn(protocols: &[&[u8]]) -> Vec<Vec<u8>> {
    protocols.iter().map(|protocol| protocol.to_vec()).collect()
}
