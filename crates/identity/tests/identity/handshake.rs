//! Handshakes in memory: accepted and refused certificates, and checks after the handshake.

use std::sync::Arc;

use identity::{
    CertificateRefusal, ClientBundle, ClientTls, Denylist, PeerIdentity, Role, ServerBundle, ServerTls,
    SharedDenylist, SpiffeMap, TrustVersion, VerifiedChain,
};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose as Usage};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, HandshakeKind, RootCertStore,
    ServerConnection, version,
};

use crate::support::{DAY, FixedClock, ISSUED_AT, Project, at, pair};

/// A server with its denylist, on a fixed clock.
pub(crate) struct TestServer {
    pub(crate) tls: ServerTls,
    denylist: Arc<SharedDenylist>,
}

fn server_at(bundle: &ServerBundle, seconds: u64) -> TestServer {
    let denylist = Arc::new(SharedDenylist::new(bundle.denylist().clone()));
    let clock = Arc::new(FixedClock(at(seconds)));
    let tls = ServerTls::new(bundle, Arc::clone(&denylist), clock).expect("a sound bundle");
    TestServer { tls, denylist }
}

pub(crate) fn test_server(bundle: &ServerBundle) -> TestServer {
    server_at(bundle, ISSUED_AT)
}

pub(crate) fn client(bundle: &ClientBundle) -> Arc<ClientConfig> {
    ClientTls::new(bundle, Arc::new(FixedClock(at(ISSUED_AT)))).expect("a sound bundle").config()
}

/// Both ends of a connection after its handshake.
pub(crate) struct Connected {
    client: ClientConnection,
    pub(crate) server: ServerConnection,
}

impl Connected {
    fn peer(&self) -> PeerIdentity {
        let chain = self.server.peer_certificates().expect("a certificate");
        PeerIdentity::from_chain(chain, &SpiffeMap::default()).expect("verified")
    }

    fn chain(&self, version: TrustVersion) -> VerifiedChain {
        VerifiedChain::new(self.server.peer_certificates().expect("a certificate"), version)
    }
}

/// Delivers pending bytes of the client, then of the server.
fn exchange(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), Error> {
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("memory");
    server.read_tls(&mut &bytes[..]).expect("memory");
    let server_result = server.process_new_packets().map(drop);
    let mut bytes = Vec::new();
    server.write_tls(&mut bytes).expect("memory");
    client.read_tls(&mut &bytes[..]).expect("memory");
    let client_result = client.process_new_packets().map(drop);
    server_result.and(client_result)
}

/// Delivers bytes until neither side has any left.
pub(crate) fn connect(config: &Arc<ClientConfig>, server: &TestServer) -> Result<Connected, Error> {
    let name = ServerName::try_from("whatever.example").expect("a name");
    let mut client = ClientConnection::new(Arc::clone(config), name).expect("a client");
    let mut server = ServerConnection::new(server.tls.config()).expect("a server");
    while client.wants_write() || server.wants_write() {
        exchange(&mut client, &mut server)?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(Connected { client, server })
}

/// A client that presents this certificate, and accepts every server.
fn trusting_client(own: Option<(CertificateDer<'static>, Vec<u8>)>) -> Arc<ClientConfig> {
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAll));
    Arc::new(match own {
        Some((certificate, key)) => {
            let key = PrivatePkcs8KeyDer::from(key).into();
            builder.with_client_auth_cert(vec![certificate], key).expect("a pair")
        }
        None => builder.with_no_client_auth(),
    })
}

#[derive(Debug)]
struct AcceptAll;

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.verify_tls12_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

pub(crate) fn refused(connected: Result<Connected, Error>) -> CertificateError {
    match connected.map(|_| ()) {
        Err(Error::InvalidCertificate(error)) => error,
        other => panic!("accepted, or refused for another reason: {other:?}"),
    }
}

fn usage(usages: &[Usage]) -> impl FnOnce(&mut CertificateParams) {
    let usages = usages.to_vec();
    move |params| params.extended_key_usages = usages
}

#[test]
fn a_valid_client_is_accepted_under_its_name() {
    for algorithm in [identity::Algorithm::P256, identity::Algorithm::Ed25519] {
        let project = Project::with(1, algorithm);
        let (server, bundle) = (test_server(&project.server()), project.client("worker-1"));
        let connected = connect(&client(&bundle), &server).expect("accepted");
        assert_eq!(&connected.peer(), bundle.identity());
        assert_eq!(connected.server.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(connected.client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(server.denylist.check(&connected.peer(), at(ISSUED_AT)), Ok(()));
    }
}

#[test]
fn a_http_1_client_is_accepted() {
    let project = Project::new(2);
    let mut config = client(&project.client("a"));
    Arc::make_mut(&mut config).alpn_protocols = vec![b"http/1.1".to_vec()];
    let connected = connect(&config, &test_server(&project.server())).expect("accepted");
    assert_eq!(connected.server.alpn_protocol(), Some(&b"http/1.1"[..]));
}

/// A standard TLS 1.2 client, which verifies hostnames, accepts the server.
#[test]
fn a_tls_1_2_client_is_accepted() {
    let project = Project::new(3);
    let (bundle, home) = (project.client("a"), project.server());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(bundle.ca().der().clone()).expect("a CA");
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    // Its own certificate comes first in the file.
    let (certificate, key) = pair(&bundle.to_pem());
    let config = ClientConfig::builder_with_details(provider, Arc::new(FixedClock(at(ISSUED_AT))))
        .with_protocol_versions(&[&version::TLS12])
        .expect("versions")
        .with_webpki_verifier(verifier.build().expect("a verifier"))
        .with_client_auth_cert(vec![certificate], PrivatePkcs8KeyDer::from(key).into())
        .expect("a pair");
    let parsed = ParsedCertificate::try_from(home.server().certificate().der()).expect("a certificate");
    verify_server_name(&parsed, &ServerName::try_from("localhost").expect("a name")).expect("listed");

    let mut client_end =
        ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").expect("a name"))
            .expect("one");
    let mut server = ServerConnection::new(test_server(&home).tls.config()).expect("a server");
    while client_end.is_handshaking() || server.is_handshaking() {
        exchange(&mut client_end, &mut server).expect("both agree");
    }
    assert_eq!(server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_2));
}

#[test]
fn a_client_of_another_ca_is_refused_by_both_sides() {
    let (project, other) = (Project::new(4), Project::new(5));
    let server = test_server(&project.server());
    let strange = other.client("worker-1");
    let unknown = [CertificateError::UnknownIssuer, CertificateError::BadSignature];
    assert!(unknown.contains(&refused(connect(&client(&strange), &server))), "the client refuses the server");

    let own = strange.to_pem();
    assert!(
        unknown.contains(&refused(connect(&trusting_client(Some(pair(&own))), &server))),
        "the server refuses the client"
    );
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let server = test_server(&Project::new(6).server());
    let error = connect(&trusting_client(None), &server).map(|_| ()).expect_err("no certificate");
    assert_eq!(error, Error::NoCertificatesPresented);
}

#[test]
fn a_certificate_for_another_purpose_is_refused() {
    let project = Project::new(7);
    let server = server_at(&project.server(), ISSUED_AT);
    let table: [&[Usage]; 4] =
        [&[], &[Usage::ServerAuth], &[Usage::ServerAuth, Usage::ClientAuth], &[Usage::Any]];
    for usages in table {
        let error =
            refused(connect(&trusting_client(Some(pair(&project.irregular(usage(usages))))), &server));
        let ours = matches!(error, CertificateError::Other(_));
        assert!(
            ours || matches!(error, CertificateError::InvalidPurposeContext { .. }),
            "{usages:?}: {error:?}"
        );
    }
    let right = project.irregular(usage(&[Usage::ClientAuth]));
    connect(&trusting_client(Some(pair(&right))), &server)
        .expect("the same with the right purpose is accepted");
}

#[test]
fn a_server_certificate_is_refused_as_a_client() {
    let project = Project::new(8);
    let served = project.server();
    let text = served.to_pem();
    let own = text.split_inclusive("-----END CERTIFICATE-----").skip(1).collect::<String>();
    let error = refused(connect(&trusting_client(Some(pair(&own))), &test_server(&served)));
    assert!(matches!(error, CertificateError::InvalidPurposeContext { .. }), "{error:?}");
}

#[test]
fn the_ca_certificate_is_refused_as_a_client() {
    let project = Project::new(20);
    refused(connect(&trusting_client(Some(pair(&project.ca_pem()))), &test_server(&project.server())));
}

#[test]
fn a_client_without_a_role_is_refused() {
    let project = Project::new(9);
    let odd = project.irregular(|params| {
        params.extended_key_usages = vec![Usage::ClientAuth];
        params.subject_alt_names.clear();
    });
    let error = refused(connect(&trusting_client(Some(pair(&odd))), &test_server(&project.server())));
    assert!(format!("{error:?}").contains("no role"), "{error:?}");
}

#[test]
fn an_expired_client_is_refused_from_the_second_after() {
    let project = Project::new(10);
    let own = project.client("a").to_pem();
    let config = trusting_client(Some(pair(&own)));
    let served = project.server();
    connect(&config, &server_at(&served, ISSUED_AT + 365 * DAY)).expect("the last second");
    let error = refused(connect(&config, &server_at(&served, ISSUED_AT + 365 * DAY + 1)));
    assert!(matches!(error, CertificateError::ExpiredContext { .. }), "{error:?}");
    let error = refused(connect(&config, &server_at(&served, ISSUED_AT - DAY)));
    assert!(matches!(error, CertificateError::NotValidYetContext { .. }), "{error:?}");
}

#[test]
fn a_client_refuses_an_expired_server_and_a_client_certificate() {
    let project = Project::new(11);
    let late = Arc::new(FixedClock(at(ISSUED_AT + 366 * DAY)));
    let config = ClientTls::new(&project.client("a"), late).expect("sound").config();
    let error = refused(connect(&config, &test_server(&project.server())));
    assert!(matches!(error, CertificateError::ExpiredContext { .. }), "{error:?}");

    for usages in [&[][..], &[Usage::ClientAuth], &[Usage::ServerAuth, Usage::ClientAuth]] {
        let (certificate, key) = pair(&project.irregular(usage(usages)));
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(key).into())
        .expect("a pair");
        let mut server = ServerConnection::new(Arc::new(config)).expect("a server");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut client_end = ClientConnection::new(client(&project.client("a")), name).expect("a client");
        let error = exchange(&mut client_end, &mut server).expect_err("not a server");
        assert!(matches!(error, Error::InvalidCertificate(_)), "{usages:?}: {error:?}");
    }
}

#[test]
fn a_revoked_client_is_refused() {
    let project = Project::new(12);
    let (bundle, other) = (project.client("a"), project.client("b"));
    let revoked: Denylist = [bundle.identity().serial].into_iter().collect();
    let server = test_server(&project.server().with_denylist(revoked));
    assert_eq!(refused(connect(&client(&bundle), &server)), CertificateError::Revoked);
    connect(&client(&other), &server).expect("other clients are accepted");
}

#[test]
fn a_revocation_reaches_open_connections() {
    let project = Project::new(13);
    let (server, bundle) = (test_server(&project.server()), project.client("a"));
    let config = client(&bundle);
    let connected = connect(&config, &server).expect("accepted");
    let peer = connected.peer();
    assert_eq!(server.denylist.check(&peer, at(ISSUED_AT)), Ok(()));

    server.denylist.replace([peer.serial].into_iter().collect());
    assert_eq!(server.denylist.check(&peer, at(ISSUED_AT)), Err(CertificateRefusal::Revoked(peer.serial)));
    server.denylist.replace(Denylist::default());
    assert_eq!(server.denylist.check(&peer, at(ISSUED_AT)), Ok(()), "a revocation can be withdrawn");
}

#[test]
fn an_open_connection_does_not_outlive_its_certificate() {
    let project = Project::new(14);
    let (server, bundle) = (test_server(&project.server()), project.client("a"));
    let peer = connect(&client(&bundle), &server).expect("accepted").peer();
    assert_eq!(server.denylist.check(&peer, at(ISSUED_AT + 365 * DAY)), Ok(()));
    let after = server.denylist.check(&peer, at(ISSUED_AT + 365 * DAY + 1));
    assert_eq!(after, Err(CertificateRefusal::Expired(peer.serial)));
}

/// A resumed session calls no verifier: that is why a server checks again for every request.
#[test]
fn a_revoked_client_that_resumes_is_refused_by_the_check_of_each_request() {
    let project = Project::new(15);
    let (server, bundle) = (test_server(&project.server()), project.client("a"));
    let config = client(&bundle);
    connect(&config, &server).expect("accepted");
    server.denylist.replace([bundle.identity().serial].into_iter().collect());

    let connected = connect(&config, &server).expect("the library resumes the session");
    assert_eq!(connected.server.handshake_kind(), Some(HandshakeKind::Resumed));
    let refusal = server.denylist.check(&connected.peer(), at(ISSUED_AT));
    assert_eq!(refusal, Err(CertificateRefusal::Revoked(bundle.identity().serial)));
}

#[test]
fn a_certificate_is_replaced_while_the_server_runs() {
    let (project, other) = (Project::new(16), Project::new(17));
    let server = test_server(&project.server());
    connect(&client(&project.client("a")), &server).expect("accepted");

    let next_server = project.server();
    let none = Denylist::default();
    server.tls.prepare(&next_server, &none).expect("of the same CA").install();
    // Another client has no session to resume.
    let connected = connect(&client(&project.client("b")), &server).expect("accepted");
    let chain = connected.client.peer_certificates().expect("a certificate");
    assert_eq!(chain[0], *next_server.server().certificate().der());

    let refused = |bundle: &ServerBundle, denylist: &Denylist| {
        server.tls.prepare(bundle, denylist).err().expect("refused").to_string()
    };
    let error = refused(&other.server(), &none);
    assert!(error.contains("restart the server"), "{error}");
    let revoked = project.server();
    let error = refused(&revoked, &[revoked.server().certificate().serial()].into_iter().collect());
    assert!(error.contains("revoked"), "{error}");
}

/// The steps of a CA change: trust the new CA, renew the clients, renew the server, distrust the old CA. At each step every
/// client that was not renewed yet still connects, until the server presents a certificate of the new CA.
#[test]
fn one_ca_is_replaced_by_another_while_the_server_runs() {
    let (old, new) = (Project::new(30), Project::new(31));
    let server_file = old.server();
    let (server, worker) = (test_server(&server_file), old.client("worker"));
    let none = Denylist::default();
    let reload = |bundle: &ServerBundle| server.tls.prepare(bundle, &none).expect("it shares a CA").install();
    let stranger = new.client("stranger");
    assert!(connect(&trusting_client(Some(pair(&stranger.to_pem()))), &server).is_err());

    let both = server_file.anchors().clone().with(new.authority.certificate().clone()).expect("two");
    let trusting = server_file.with_anchors(both).expect("its own CA is still there");
    reload(&trusting);
    connect(&client(&worker), &server).expect("a client of the old CA");
    let renewed = new.issue(|moment| new.authority.renew_client(&worker, None, moment)).expect("renewed");
    assert_eq!(renewed.identity().name, worker.identity().name);
    assert_eq!(renewed.anchors().iter().count(), 2);
    let version = server.tls.version();
    let open = connect(&client(&worker), &server).expect("a client of the old CA");
    let (peer, chain) = (open.peer(), open.chain(version));
    connect(&client(&renewed), &server).expect("a client of the new CA, and a server of the old");

    let next = new.issue(|moment| new.authority.renew_server(&trusting, None, moment)).expect("renewed");
    reload(&next);
    connect(&client(&renewed), &server).expect("client and server of the new CA");
    assert!(connect(&client(&worker), &server).is_err(), "it does not trust the new CA");
    assert_eq!(server.tls.check(&peer, &chain, at(ISSUED_AT)), Ok(()));

    let old_serial = old.authority.certificate().serial();
    let without = next.anchors().clone().without(old_serial).expect("not the issuer");
    reload(&next.with_anchors(without).expect("the new CA is there"));
    connect(&client(&renewed), &server).expect("client and server of the new CA");
    let late = connect(&trusting_client(Some(pair(&worker.to_pem()))), &server);
    assert!(late.is_err(), "the old CA is not trusted any more");
    let refused = Err(CertificateRefusal::Distrusted(peer.serial));
    assert_eq!(server.tls.check(&peer, &chain, at(ISSUED_AT)), refused, "nor on a connection that is open");
}

/// A session of a client whose CA was removed could be resumed, without a look at its certificate.
#[test]
fn no_session_survives_a_change_of_the_cas() {
    let (old, new) = (Project::new(32), Project::new(33));
    let mut server_file = old.server();
    let (server, config) = (test_server(&server_file), client(&old.client("a")));
    connect(&config, &server).expect("accepted");
    let resumed = connect(&config, &server).expect("accepted");
    assert_eq!(resumed.server.handshake_kind(), Some(HandshakeKind::Resumed));
    let both = server_file.anchors().clone().with(new.authority.certificate().clone()).expect("two");
    server_file = server_file.with_anchors(both).expect("its own CA is still there");
    server.tls.prepare(&server_file, &Denylist::default()).expect("it shares a CA").install();
    let connected = connect(&config, &server).expect("accepted");
    assert_eq!(connected.server.handshake_kind(), Some(HandshakeKind::Full));
}

/// A stolen server's file could pose as the server until it expired: clients had no denylist.
#[test]
fn a_client_refuses_a_revoked_server() {
    let project = Project::new(34);
    let (stolen, replacement, bundle) = (project.server(), project.server(), project.client("a"));
    let revoked: Denylist = [stolen.server().certificate().serial()].into_iter().collect();
    connect(&client(&bundle), &test_server(&stolen)).expect("nothing is revoked yet");

    let in_file = bundle.clone().with_denylist(revoked.clone());
    let in_file = ClientBundle::parse(&in_file.to_pem()).expect("its own text");
    assert_eq!(refused(connect(&client(&in_file), &test_server(&stolen))), CertificateError::Revoked);
    connect(&client(&in_file), &test_server(&replacement)).expect("another server");

    let beside = ClientTls::with_denylist(&bundle, &revoked, Arc::new(FixedClock(at(ISSUED_AT))));
    let beside = beside.expect("sound").config();
    assert_eq!(refused(connect(&beside, &test_server(&stolen))), CertificateError::Revoked);
}

#[test]
fn a_server_forwards_to_another_as_a_server() {
    let project = Project::new(18);
    let (here, there) = (project.server(), project.server());
    let denylist = Arc::new(SharedDenylist::default());
    let tls = ClientTls::forwarding(&here, Arc::clone(&denylist), Arc::new(FixedClock(at(ISSUED_AT))))
        .expect("sound");
    let server = test_server(&there);
    let connected = connect(&tls.config(), &server).expect("accepted");
    assert_eq!((connected.peer().role, connected.peer().name.as_str()), (Role::Server, "lockd"));

    denylist.replace([there.server().certificate().serial()].into_iter().collect());
    assert_eq!(refused(connect(&tls.config(), &server)), CertificateError::Revoked, "nor by resuming");
}

#[test]
fn a_refused_client_gets_the_reason_as_an_alert() {
    let project = Project::new(19);
    let bundle = project.client("a");
    let server =
        test_server(&project.server().with_denylist([bundle.identity().serial].into_iter().collect()));
    let name = ServerName::try_from("x").expect("a name");
    let mut client_end = ClientConnection::new(client(&bundle), name).expect("a client");
    let mut serving = ServerConnection::new(server.tls.config()).expect("a server");
    while exchange(&mut client_end, &mut serving).is_ok() {}
    let alert = client_end.process_new_packets().expect_err("refused");
    assert_eq!(alert, Error::AlertReceived(AlertDescription::CertificateRevoked));
}
