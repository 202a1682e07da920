//! Handshakes, in memory: who is let in, who is believed, and what outlives a handshake.

use std::sync::Arc;

use identity::{
    ClientBundle, ClientTls, Denylist, PeerIdentity, Refused, Role, ServerBundle, ServerTls, SharedDenylist,
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

use crate::support::{DAY, MADE, Project, Stopped, at, pair};

/// A server with its denylist, on a clock that stands still.
struct Running {
    tls: ServerTls,
    denylist: Arc<SharedDenylist>,
}

fn running_at(bundle: &ServerBundle, seconds: u64) -> Running {
    let denylist = Arc::new(SharedDenylist::new(bundle.denylist().clone()));
    let clock = Arc::new(Stopped(at(seconds)));
    let tls = ServerTls::new(bundle, Arc::clone(&denylist), clock).expect("a sound bundle");
    Running { tls, denylist }
}

fn running(bundle: &ServerBundle) -> Running {
    running_at(bundle, MADE)
}

fn client(bundle: &ClientBundle) -> Arc<ClientConfig> {
    ClientTls::new(bundle, Arc::new(Stopped(at(MADE)))).expect("a sound bundle").config()
}

/// What each side made of it.
struct Met {
    client: ClientConnection,
    server: ServerConnection,
}

impl Met {
    fn peer(&self) -> PeerIdentity {
        PeerIdentity::from_chain(self.server.peer_certificates().expect("shown")).expect("verified")
    }
}

/// Carries what the client has to say, then what the server has to say.
fn carry(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), Error> {
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("memory");
    server.read_tls(&mut &bytes[..]).expect("memory");
    let heard = server.process_new_packets().map(drop);
    let mut bytes = Vec::new();
    server.write_tls(&mut bytes).expect("memory");
    client.read_tls(&mut &bytes[..]).expect("memory");
    let told = client.process_new_packets().map(drop);
    heard.and(told)
}

/// Carries bytes to and fro until neither side has any.
fn meet(config: &Arc<ClientConfig>, running: &Running) -> Result<Met, Error> {
    let name = ServerName::try_from("whatever.example").expect("a name");
    let mut client = ClientConnection::new(Arc::clone(config), name).expect("a client");
    let mut server = ServerConnection::new(running.tls.config()).expect("a server");
    while client.wants_write() || server.wants_write() {
        carry(&mut client, &mut server)?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok(Met { client, server })
}

/// A client that shows what it is given, and believes everything.
fn gullible(own: Option<(CertificateDer<'static>, Vec<u8>)>) -> Arc<ClientConfig> {
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Gullible));
    Arc::new(match own {
        Some((certificate, key)) => {
            let key = PrivatePkcs8KeyDer::from(key).into();
            builder.with_client_auth_cert(vec![certificate], key).expect("a pair")
        }
        None => builder.with_no_client_auth(),
    })
}

#[derive(Debug)]
struct Gullible;

impl ServerCertVerifier for Gullible {
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

fn refused(met: Result<Met, Error>) -> CertificateError {
    match met.map(|_| ()) {
        Err(Error::InvalidCertificate(error)) => error,
        other => panic!("let in, or refused for another reason: {other:?}"),
    }
}

fn usage(usages: &[Usage]) -> impl FnOnce(&mut CertificateParams) {
    let usages = usages.to_vec();
    move |params| params.extended_key_usages = usages
}

#[test]
fn the_right_client_is_let_in_under_its_name() {
    for algorithm in [identity::Algorithm::P256, identity::Algorithm::Ed25519] {
        let project = Project::with(1, algorithm);
        let (server, bundle) = (running(&project.server()), project.client("worker-1"));
        let met = meet(&client(&bundle), &server).expect("let in");
        assert_eq!(&met.peer(), bundle.identity());
        assert_eq!(met.server.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(met.client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(server.denylist.check(&met.peer(), at(MADE)), Ok(()));
    }
}

#[test]
fn a_client_of_http_1_is_served_too() {
    let project = Project::new(2);
    let mut config = client(&project.client("a"));
    Arc::make_mut(&mut config).alpn_protocols = vec![b"http/1.1".to_vec()];
    let met = meet(&config, &running(&project.server())).expect("let in");
    assert_eq!(met.server.alpn_protocol(), Some(&b"http/1.1"[..]));
}

/// Somebody else's TLS 1.2 client, which does go by hostnames, finds nothing to complain about.
#[test]
fn a_client_of_tls_1_2_is_let_in() {
    let project = Project::new(3);
    let (bundle, home) = (project.client("a"), project.server());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(bundle.ca().der().clone()).expect("a CA");
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
    // Its own certificate comes first in the file.
    let (certificate, key) = pair(&bundle.to_pem());
    let config = ClientConfig::builder_with_details(provider, Arc::new(Stopped(at(MADE))))
        .with_protocol_versions(&[&version::TLS12])
        .expect("versions")
        .with_webpki_verifier(verifier.build().expect("a verifier"))
        .with_client_auth_cert(vec![certificate], PrivatePkcs8KeyDer::from(key).into())
        .expect("a pair");
    let parsed = ParsedCertificate::try_from(home.server().certificate().der()).expect("a certificate");
    verify_server_name(&parsed, &ServerName::try_from("localhost").expect("a name")).expect("listed");

    let mut asking =
        ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").expect("a name"))
            .expect("one");
    let mut server = ServerConnection::new(running(&home).tls.config()).expect("a server");
    while asking.is_handshaking() || server.is_handshaking() {
        carry(&mut asking, &mut server).expect("both agree");
    }
    assert_eq!(server.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_2));
}

#[test]
fn a_client_of_another_ca_is_refused_by_both_sides() {
    let (project, other) = (Project::new(4), Project::new(5));
    let server = running(&project.server());
    let strange = other.client("worker-1");
    let unknown = [CertificateError::UnknownIssuer, CertificateError::BadSignature];
    assert!(unknown.contains(&refused(meet(&client(&strange), &server))), "the client does not believe");

    let own = strange.to_pem();
    assert!(
        unknown.contains(&refused(meet(&gullible(Some(pair(&own))), &server))),
        "the server does not let in"
    );
}

#[test]
fn who_shows_no_certificate_is_refused() {
    let server = running(&Project::new(6).server());
    let error = meet(&gullible(None), &server).map(|_| ()).expect_err("nobody");
    assert_eq!(error, Error::NoCertificatesPresented);
}

#[test]
fn a_certificate_for_something_else_is_refused() {
    let project = Project::new(7);
    let server = running_at(&project.server(), MADE);
    let table: [&[Usage]; 4] =
        [&[], &[Usage::ServerAuth], &[Usage::ServerAuth, Usage::ClientAuth], &[Usage::Any]];
    for usages in table {
        let error = refused(meet(&gullible(Some(pair(&project.odd(usage(usages))))), &server));
        let ours = matches!(error, CertificateError::Other(_));
        assert!(
            ours || matches!(error, CertificateError::InvalidPurposeContext { .. }),
            "{usages:?}: {error:?}"
        );
    }
    let right = project.odd(usage(&[Usage::ClientAuth]));
    meet(&gullible(Some(pair(&right))), &server).expect("the same with the right purpose is let in");
}

#[test]
fn a_servers_certificate_does_not_pass_for_a_client() {
    let project = Project::new(8);
    let served = project.server();
    let text = served.to_pem();
    let own = text.split_inclusive("-----END CERTIFICATE-----").skip(1).collect::<String>();
    let error = refused(meet(&gullible(Some(pair(&own))), &running(&served)));
    assert!(matches!(error, CertificateError::InvalidPurposeContext { .. }), "{error:?}");
}

#[test]
fn the_ca_itself_is_no_client() {
    let project = Project::new(20);
    refused(meet(&gullible(Some(pair(&project.ca_pem()))), &running(&project.server())));
}

#[test]
fn a_client_without_a_role_is_refused() {
    let project = Project::new(9);
    let odd = project.odd(|params| {
        params.extended_key_usages = vec![Usage::ClientAuth];
        params.subject_alt_names.clear();
    });
    let error = refused(meet(&gullible(Some(pair(&odd))), &running(&project.server())));
    assert!(format!("{error:?}").contains("no role"), "{error:?}");
}

#[test]
fn an_expired_client_is_refused_from_the_second_after() {
    let project = Project::new(10);
    let own = project.client("a").to_pem();
    let config = gullible(Some(pair(&own)));
    let served = project.server();
    meet(&config, &running_at(&served, MADE + 365 * DAY)).expect("the last second");
    let error = refused(meet(&config, &running_at(&served, MADE + 365 * DAY + 1)));
    assert!(matches!(error, CertificateError::ExpiredContext { .. }), "{error:?}");
    let error = refused(meet(&config, &running_at(&served, MADE - DAY)));
    assert!(matches!(error, CertificateError::NotValidYetContext { .. }), "{error:?}");
}

#[test]
fn a_client_believes_no_expired_server_and_no_client_that_plays_one() {
    let project = Project::new(11);
    let late = Arc::new(Stopped(at(MADE + 366 * DAY)));
    let config = ClientTls::new(&project.client("a"), late).expect("sound").config();
    let error = refused(meet(&config, &running(&project.server())));
    assert!(matches!(error, CertificateError::ExpiredContext { .. }), "{error:?}");

    for usages in [&[][..], &[Usage::ClientAuth], &[Usage::ServerAuth, Usage::ClientAuth]] {
        let (certificate, key) = pair(&project.odd(usage(usages)));
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
        let mut asking = ClientConnection::new(client(&project.client("a")), name).expect("a client");
        let error = carry(&mut asking, &mut server).expect_err("not a server");
        assert!(matches!(error, Error::InvalidCertificate(_)), "{usages:?}: {error:?}");
    }
}

#[test]
fn a_revoked_client_is_not_let_in() {
    let project = Project::new(12);
    let (bundle, other) = (project.client("a"), project.client("b"));
    let revoked: Denylist = [bundle.identity().serial].into_iter().collect();
    let server = running(&project.server().with_denylist(revoked));
    assert_eq!(refused(meet(&client(&bundle), &server)), CertificateError::Revoked);
    meet(&client(&other), &server).expect("nobody else suffers");
}

#[test]
fn a_revocation_reaches_open_connections() {
    let project = Project::new(13);
    let (server, bundle) = (running(&project.server()), project.client("a"));
    let config = client(&bundle);
    let met = meet(&config, &server).expect("let in");
    let peer = met.peer();
    assert_eq!(server.denylist.check(&peer, at(MADE)), Ok(()));

    server.denylist.replace([peer.serial].into_iter().collect());
    assert_eq!(server.denylist.check(&peer, at(MADE)), Err(Refused::Revoked(peer.serial)));
    server.denylist.replace(Denylist::default());
    assert_eq!(server.denylist.check(&peer, at(MADE)), Ok(()), "and can be taken back");
}

#[test]
fn an_open_connection_does_not_outlive_its_certificate() {
    let project = Project::new(14);
    let (server, bundle) = (running(&project.server()), project.client("a"));
    let peer = meet(&client(&bundle), &server).expect("let in").peer();
    assert_eq!(server.denylist.check(&peer, at(MADE + 365 * DAY)), Ok(()));
    let after = server.denylist.check(&peer, at(MADE + 365 * DAY + 1));
    assert_eq!(after, Err(Refused::Expired(peer.serial)));
}

/// A resumed session never asks a verifier: that is why a server asks again for every request.
#[test]
fn a_revoked_client_that_resumes_is_refused_by_the_check_of_each_request() {
    let project = Project::new(15);
    let (server, bundle) = (running(&project.server()), project.client("a"));
    let config = client(&bundle);
    meet(&config, &server).expect("let in");
    server.denylist.replace([bundle.identity().serial].into_iter().collect());

    let met = meet(&config, &server).expect("the library lets it resume");
    assert_eq!(met.server.handshake_kind(), Some(HandshakeKind::Resumed));
    let refusal = server.denylist.check(&met.peer(), at(MADE));
    assert_eq!(refusal, Err(Refused::Revoked(bundle.identity().serial)));
}

#[test]
fn certificates_are_replaced_while_the_server_runs() {
    let (project, other) = (Project::new(16), Project::new(17));
    let (server, bundle) = (running(&project.server()), project.client("a"));
    let tls = ClientTls::new(&bundle, Arc::new(Stopped(at(MADE)))).expect("sound");
    meet(&tls.config(), &server).expect("let in");

    let (next_server, next_client) = (project.server(), project.client("a"));
    let none = Denylist::default();
    server.tls.prepare(&next_server, &none).expect("of the same CA").install();
    tls.replace(&next_client).expect("of the same CA");
    // Another client has no session to resume.
    let met = meet(&client(&project.client("b")), &server).expect("let in");
    let shown = met.client.peer_certificates().expect("shown");
    assert_eq!(shown[0], *next_server.server().certificate().der());

    let refused = |bundle: &ServerBundle, denylist: &Denylist| {
        server.tls.prepare(bundle, denylist).err().expect("refused").to_string()
    };
    let error = refused(&other.server(), &none);
    assert!(error.contains("takes a restart"), "{error}");
    let revoked = project.server();
    let error = refused(&revoked, &[revoked.server().certificate().serial()].into_iter().collect());
    assert!(error.contains("revoked"), "{error}");
    assert!(tls.replace(&other.client("a")).is_err());
}

#[test]
fn a_server_forwards_to_another_as_a_server() {
    let project = Project::new(18);
    let (here, there) = (project.server(), project.server());
    let denylist = Arc::new(SharedDenylist::default());
    let tls =
        ClientTls::forwarding(&here, Arc::clone(&denylist), Arc::new(Stopped(at(MADE)))).expect("sound");
    let server = running(&there);
    let met = meet(&tls.config(), &server).expect("let in");
    assert_eq!((met.peer().role, met.peer().name.as_str()), (Role::Server, "lockd"));

    denylist.replace([there.server().certificate().serial()].into_iter().collect());
    assert_eq!(refused(meet(&tls.config(), &server)), CertificateError::Revoked, "not even by resuming");
}

#[test]
fn a_client_that_is_refused_is_told_why() {
    let project = Project::new(19);
    let bundle = project.client("a");
    let server = running(&project.server().with_denylist([bundle.identity().serial].into_iter().collect()));
    let name = ServerName::try_from("x").expect("a name");
    let mut asking = ClientConnection::new(client(&bundle), name).expect("a client");
    let mut serving = ServerConnection::new(server.tls.config()).expect("a server");
    while carry(&mut asking, &mut serving).is_ok() {}
    let told = asking.process_new_packets().expect_err("refused");
    assert_eq!(told, Error::AlertReceived(AlertDescription::CertificateRevoked));
}
