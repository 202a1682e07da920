//! Certificates of other issuers: in three files, below intermediate CAs, with SPIFFE ids.

use std::fs;

use identity::{
    CaBundle, CertificateRefusal, Denylist, IdentityLocation, PeerIdentity, Role, SeparateFiles, SpiffeMap,
    VerifiedChain,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::CertificateError;
use tempfile::TempDir;

use crate::handshake::{client, connect, refused, test_server};
use crate::support::{ISSUED_AT, Project, at, pem_of, section, sections};

const ID: &str = "spiffe://example.org/ns/prod/sa/importer";

/// A certificate of a SPIFFE issuer: both purposes, no common name, the id as its only name.
fn workload(params: &mut CertificateParams) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.extended_key_usages = vec![Usage::ServerAuth, Usage::ClientAuth];
    params.subject_alt_names = vec![SanType::URI(ID.try_into().expect("ASCII"))];
}

/// The three files of an irregular certificate.
fn three_files(project: &Project, change: impl FnOnce(&mut CertificateParams)) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let [certificate, key] = sections(&project.irregular(change)).try_into().expect("two sections");
    for (name, text) in [("tls.crt", certificate), ("tls.key", key), ("ca.crt", project.ca_certificate())] {
        fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

#[test]
fn a_spiffe_id_is_the_identity_that_it_is_mapped_to() {
    let project = Project::new(50);
    let server = test_server(&project.server());
    let dir = three_files(&project, workload);
    let bundle = IdentityLocation::Path(dir.path().to_path_buf()).read_client().expect("a client's");
    assert!(
        matches!(refused(connect(&client(&bundle), &server)), CertificateError::Other(_)),
        "it is not mapped"
    );
    let map = SpiffeMap::parse(&format!("{ID} importer operator orders:rw\n")).expect("a map");
    server.tls.map_spiffe_ids(map);
    let connected = connect(&client(&bundle), &server).expect("mapped");
    let peer = server.tls.peer(connected.server.peer_certificates().expect("a certificate")).expect("mapped");
    assert_eq!((peer.name.as_str(), peer.role), ("importer", Role::Operator));
    let rights: Vec<String> = peer.rights.iter().map(|one| one.to_string()).collect();
    assert_eq!(rights, ["orders:rw"]);
}

#[test]
fn a_map_gives_no_certificate_more_than_it_says_of_itself() {
    let project = Project::new(51);
    let map = SpiffeMap::parse(&format!("{ID} importer operator *:rwpm\n")).expect("a map");
    let with = |uris: &[&str], usages: &[Usage]| {
        let text = project.irregular(|params| {
            params.extended_key_usages = usages.to_vec();
            params.subject_alt_names =
                uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("ASCII"))).collect();
        });
        identity::Certificate::parse(&section(&text, "CERTIFICATE"))
    };
    let worker = with(&["lockd:role/worker", ID], &[Usage::ClientAuth]).expect("a certificate");
    assert_eq!(PeerIdentity::mapped(&worker, &map).expect("its own role").role, Role::Worker);
    let unknown = with(&["lockd:until/tomorrow", ID], &[Usage::ClientAuth]).expect("a certificate");
    assert!(PeerIdentity::mapped(&unknown, &map).is_err(), "an attribute that is not known");
    let server = with(&[ID], &[Usage::ServerAuth]).expect("a certificate");
    assert!(PeerIdentity::mapped(&server, &map).is_err(), "a server's");
    let two = with(&[ID, "spiffe://example.org/other"], &[Usage::ClientAuth]).expect("a certificate");
    assert!(PeerIdentity::mapped(&two, &map).is_err(), "two ids");
    assert!(
        with(&["https://example.org"], &[Usage::ServerAuth, Usage::ClientAuth]).is_err(),
        "both sides, no id"
    );
}

/// A workload's certificate is for both sides: it must not pose as a server.
#[test]
fn a_workload_is_never_a_server() {
    let project = Project::new(52);
    let dir = three_files(&project, workload);
    let location = IdentityLocation::Path(dir.path().to_path_buf());
    location.read_client().expect("a client's");
    let error = location.read_server().expect_err("not a server's").to_string();
    assert!(error.contains("not for servers"), "{error}");
}

/// As cert-manager writes them: a leaf below an intermediate CA, whose certificate follows it.
#[test]
fn three_files_with_an_intermediate_ca_serve_and_connect() {
    let project = Project::new(53);
    let issuer = intermediate(&project);
    let server_dir = leaf_files(&issuer, &project.ca_certificate(), Usage::ServerAuth, &[]);
    let client_dir = leaf_files(&issuer, &project.ca_certificate(), Usage::ClientAuth, WORKER);
    let server = IdentityLocation::Path(server_dir.path().to_path_buf()).read_server().expect("a server");
    assert!(server.forwarding().is_none());
    let [certificate, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| client_dir.path().join(name));
    let separate = SeparateFiles { certificate: certificate.clone(), key, ca };
    let bundle = IdentityLocation::Separate(separate.clone()).read_client().expect("a client");
    let connected = connect(&client(&bundle), &test_server(&server)).expect("accepted");
    let chain = connected.server.peer_certificates().expect("a chain");
    assert_eq!(chain.len(), 2, "the intermediate CA is presented");
    connect(&client(&project.client("a")), &test_server(&server)).expect("a client of the CA itself");

    fs::write(&certificate, sections(&fs::read_to_string(&certificate).expect("there"))[0].as_str())
        .expect("cut");
    let error = IdentityLocation::Separate(separate).read_client().expect_err("no chain").to_string();
    assert!(error.contains("not issued by this CA") && error.contains("tls.crt"), "{error}");
}

/// A certificate below an intermediate CA does not name the root. After the root was removed, its open connection stayed
/// valid until the client reconnected.
#[test]
fn a_chain_below_a_removed_ca_is_refused_on_an_open_connection() {
    let (old, new) = (Project::new(56), Project::new(57));
    let cas = old.ca_certificate() + &new.ca_certificate();
    let dir = leaf_files(&intermediate(&old), &cas, Usage::ClientAuth, WORKER);
    let bundle = IdentityLocation::Path(dir.path().to_path_buf()).read_client().expect("a client");
    let after = new.server();
    let both = after.anchors().clone().with(old.authority.certificate().clone()).expect("two");
    let server = test_server(&after.clone().with_anchors(both).expect("its own CA is there"));

    let version = server.tls.version();
    let connected = connect(&client(&bundle), &server).expect("accepted");
    let certificates = connected.server.peer_certificates().expect("a chain");
    let (peer, chain) =
        (server.tls.peer(certificates).expect("verified"), VerifiedChain::new(certificates, version));
    let now = at(ISSUED_AT);
    assert_eq!(server.tls.check(&peer, &chain, now), Ok(()));
    server.tls.prepare(&after, &Denylist::default()).expect("it shares a CA").install();
    assert_eq!(server.tls.check(&peer, &chain, now), Err(CertificateRefusal::Distrusted(peer.serial)));
}

const WORKER: &[&str] = &["lockd:role/worker", "lockd:ns/default:rw"];

/// The three files of a certificate below an intermediate CA; with a common name if it has URIs.
fn leaf_files(
    (intermediate, issuer): &(String, Issuer<'static, KeyPair>),
    cas: &str,
    purpose: Usage,
    uris: &[&str],
) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let mut params = CertificateParams::new(vec!["lockd.example".to_string()]).expect("a name");
    params.distinguished_name = rcgen::DistinguishedName::new();
    if !uris.is_empty() {
        params.distinguished_name.push(DnType::CommonName, "worker-1");
    }
    params.extended_key_usages = vec![purpose];
    params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("ASCII"))));
    let key = KeyPair::generate().expect("a key");
    let leaf = params.signed_by(&key, issuer).expect("a certificate");
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("written");
    write("tls.crt", &(pem_of("CERTIFICATE", leaf.der()) + intermediate));
    write("tls.key", &pem_of("PRIVATE KEY", &key.serialize_der()));
    write("ca.crt", cas);
    dir
}

/// The PEM of an intermediate CA, and its key.
fn intermediate(project: &Project) -> (String, Issuer<'static, KeyPair>) {
    let root = CaBundle::parse(&project.ca_pem()).expect("the CA");
    let root_key = KeyPair::try_from(section(&project.ca_pem(), "PRIVATE KEY")).expect("the CA's key");
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "intermediate");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let issuer = Issuer::from_ca_cert_der(root.certificate().der(), root_key).expect("the CA");
    let key = KeyPair::generate().expect("a key");
    let made = params.signed_by(&key, &issuer).expect("a certificate");
    (pem_of("CERTIFICATE", made.der()), Issuer::new(params, key))
}
