//! Identities that other issuers write: three files, as in a Kubernetes secret, and SPIFFE ids.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustix::process::Signal;

use crate::lockd::identities::IdentityDir;
use crate::lockd::serve::Running;
use crate::lockd::support::Ran;

/// The PEM sections of a text.
fn sections(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("-----BEGIN ") {
            found.push(String::new());
        }
        if let Some(section) = found.last_mut() {
            *section += line;
            section.push('\n');
        }
    }
    found
}

/// A directory as Kubernetes mounts a secret.
fn secret(directory: &Path, [certificate, key, ca]: [&str; 3]) {
    fs::create_dir_all(directory).expect("a directory");
    for (name, text) in [("tls.crt", certificate), ("tls.key", key), ("ca.crt", ca)] {
        fs::write(directory.join(name), text).expect("written");
    }
    fs::set_permissions(directory.join("tls.key"), fs::Permissions::from_mode(0o600)).expect("ours");
}

/// The server's and a client's file as secrets.
fn secrets(dir: &IdentityDir) -> [PathBuf; 2] {
    let read = |name: &str| sections(&fs::read_to_string(dir.path(name)).expect("there"));
    let (server, client) = (read("server.pem"), read("client1.pem"));
    let directories = [dir.path("server-secret"), dir.path("client-secret")];
    secret(&directories[0], [&server[1], &server[2], &server[0]]);
    secret(&directories[1], [&client[0], &client[1], &client[2]]);
    directories
}

fn lockd(dir: &IdentityDir, args: &[&str]) -> Ran {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    let output = command.args(args).current_dir(dir.path("")).output().expect("it runs");
    Ran {
        code: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

#[test]
fn three_files_are_an_identity_for_servers_and_clients() {
    let dir = IdentityDir::new();
    dir.client("client1.pem", "worker-1");
    let [server, _] = secrets(&dir);
    let file = |name: &str| server.join(name).to_str().expect("text").to_string();
    let separate =
        ["--tls-cert", &file("tls.crt"), "--tls-key", &file("tls.key"), "--tls-ca", &file("ca.crt")];
    for identity in [&["--bundle", server.to_str().expect("text")][..], &separate] {
        let mut running = Running::start(&dir.path("data"), &[&["--store", "mem://"], identity].concat());
        let client = ["client", "--server", running.address.as_str()];
        let directory = [&client[..], &["--identity", "client-secret", "list"]].concat();
        let ran = lockd(&dir, &directory);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let named = ["--tls-cert", "client-secret/tls.crt", "--tls-key", "client-secret/tls.key", "--tls-ca"];
        let ran =
            lockd(&dir, &[&client[..], &named, &["client-secret/ca.crt", "acquire", "orders"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let ran = lockd(&dir, &[&client[..], &["--tls-cert", "client-secret/tls.crt", "list"]].concat());
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("belong together"), "{}", ran.stderr);
        // cert-manager renews by replacing the files.
        dir.auth("renew --in server.pem");
        secrets(&dir);
        running.signal(Signal::HUP);
        running.log.wait_for("reloaded identities");
        assert_eq!(lockd(&dir, &directory).code, 0);
    }
}

#[test]
fn settings_for_three_files_belong_together() {
    let dir = IdentityDir::new();
    for words in
        ["--tls-cert a", "--tls-key a --tls-ca b", "--bundle server.pem --tls-cert a --tls-key b --tls-ca c"]
    {
        let ran = dir.run(&format!("serve --data-dir data --listen 127.0.0.1:0 {words}"));
        assert_eq!(ran.code, 2, "{words}: {}", ran.stderr);
        assert!(ran.stderr.contains("setting=--tls-cert"), "{words}: {}", ran.stderr);
    }
}

const ID: &str = "spiffe://example.org/ns/prod/sa/importer";

/// A CA in a file, to issue with.
fn issuer(ca: &Path) -> Issuer<'static, KeyPair> {
    let ca = pem::parse_many(fs::read(ca).expect("there")).expect("PEM");
    let key = KeyPair::try_from(ca[1].contents()).expect("the CA's key");
    Issuer::from_ca_cert_der(&ca[0].contents().into(), key).expect("the CA")
}

/// Certificate and key of a workload, as SPIRE issues them: for both sides, without a common name.
fn workload(dir: &IdentityDir) -> [String; 2] {
    let issuer = issuer(&dir.path("ca.pem"));
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.extended_key_usages = vec![Usage::ServerAuth, Usage::ClientAuth];
    params.subject_alt_names = vec![SanType::URI(ID.try_into().expect("ASCII"))];
    let key = KeyPair::generate().expect("a key");
    let made = params.signed_by(&key, &issuer).expect("a certificate");
    [section("CERTIFICATE", made.der()), section("PRIVATE KEY", &key.serialize_der())]
}

fn section(label: &str, bytes: &[u8]) -> String {
    pem::encode(&pem::Pem::new(label, bytes))
}

/// A worker's certificate below an intermediate CA of a root, followed by that of the intermediate CA; and its key.
fn worker_below_an_intermediate(root: &Issuer<'static, KeyPair>) -> [String; 2] {
    let named = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        (params, KeyPair::generate().expect("a key"))
    };
    let (mut params, key) = named("intermediate");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let intermediate = params.signed_by(&key, root).expect("a certificate");
    let issuer = Issuer::new(params, key);
    let (mut params, key) = named("worker-1");
    params.extended_key_usages = vec![Usage::ClientAuth];
    let uris = ["lockd:role/worker", "lockd:ns/default:rw"];
    params.subject_alt_names = uris.map(|uri| SanType::URI(uri.try_into().expect("ASCII"))).to_vec();
    let leaf = params.signed_by(&key, &issuer).expect("a certificate");
    let chain = [leaf.der(), intermediate.der()].map(|der| section("CERTIFICATE", der)).concat();
    [chain, section("PRIVATE KEY", &key.serialize_der())]
}

/// A certificate below an intermediate CA does not name the root. After the root was removed, its client kept its open
/// connection, and its lease.
#[test]
fn a_removed_root_ends_connections_of_certificates_below_its_intermediate_cas() {
    let dir = IdentityDir::new();
    dir.auth("new ca --out other.pem --cn other");
    dir.auth("trust --in server.pem --add other.pem");
    let [chain, key] = worker_below_an_intermediate(&issuer(&dir.path("other.pem")));
    let ca = |name: &str| sections(&fs::read_to_string(dir.path(name)).expect("there")).swap_remove(0);
    secret(&dir.path("worker"), [&chain, &key, &(ca("ca.pem") + &ca("other.pem"))]);
    dir.client("client1.pem", "worker-2");
    let bundle = dir.path("server.pem");
    let mut server =
        Running::start(&dir.path("data"), &["--store", "mem://", "--bundle", bundle.to_str().expect("text")]);
    let (mut below, mut other) =
        (server.connect(&dir.path("worker")), server.connect(&dir.path("client1.pem")));
    for connection in [&mut below, &mut other] {
        assert_eq!(connection.ask("GET", "/v1/leases", "").expect("a response").0, 200);
    }
    dir.auth("trust --in server.pem --remove other.pem");
    let line = server.log.wait_for("reloaded identities");
    assert!(line.contains("closed=1"), "{line}");
    let after = below.ask("POST", "/v1/acquire", r#"{"key":"k"}"#);
    assert!(after.as_ref().is_none_or(|(status, _)| *status == 401), "{after:?}");
    assert_eq!(server.connect(&dir.path("worker")).ask("GET", "/v1/leases", ""), None, "refused");
    assert_eq!(other.ask("GET", "/v1/leases", "").expect("a response").0, 200, "others stay connected");
}

#[test]
fn a_spiffe_id_acts_as_the_identity_that_it_is_mapped_to() {
    let dir = IdentityDir::new();
    let ca = sections(&fs::read_to_string(dir.path("ca.pem")).expect("there"));
    let [certificate, key] = workload(&dir);
    secret(&dir.path("workload"), [&certificate, &key, &ca[0]]);
    let map = dir.path("map");
    fs::write(&map, "# nobody yet\n").expect("written");
    let bundle = dir.path("server.pem");
    let args = ["--bundle", bundle.to_str().expect("text"), "--spiffe-map", map.to_str().expect("text")];
    let mut server = Running::start(&dir.path("data"), &[&["--store", "mem://"], &args[..]].concat());
    let address = server.address.clone();
    let client = |words: &[&str]| {
        lockd(
            &dir,
            &[&["client", "--server", &address, "--identity", "workload", "--output", "json"], words]
                .concat(),
        )
    };
    let ran = client(&["list"]);
    assert_eq!(ran.code, 14, "{}", ran.stderr);
    assert!(ran.stdout.contains("the server refuses this certificate"), "{}", ran.stdout);

    fs::write(&map, format!("{ID}  importer  worker  orders:rw\n")).expect("written");
    server.signal(Signal::HUP);
    server.log.wait_for("reloaded identities");
    assert_eq!(client(&["--namespace", "orders", "acquire", "k"]).code, 0);
    let listed = client(&["--namespace", "orders", "list"]);
    assert!(listed.stdout.contains("\"holder\":\"importer\""), "{}", listed.stdout);
    assert_eq!(client(&["acquire", "k"]).code, 14, "no right in the namespace default");

    // On a connection that stays open, the rights of the old map stayed in force.
    let mut open = server.connect(&dir.path("workload"));
    assert_eq!(open.ask("GET", "/v1/leases?namespace=orders", "").expect("a response").0, 200);
    fs::write(&map, format!("{ID}  importer  worker  invoices:rw\n")).expect("written");
    server.signal(Signal::HUP);
    let line = server.log.wait_for("reloaded identities");
    assert!(line.contains("closed=1"), "{line}");
    let after = open.ask("GET", "/v1/leases?namespace=orders", "");
    assert!(after.as_ref().is_none_or(|(status, _)| *status == 401), "{after:?}");
    fs::write(&map, format!("{ID}  importer  worker  orders:rw\n")).expect("written");
    server.signal(Signal::HUP);
    server.log.wait_for("reloaded identities");

    fs::write(&map, "spiffe://example.org/x\n").expect("written");
    server.signal(Signal::HUP);
    let line = server.log.wait_for("reload failed");
    assert!(line.contains("line=1") && line.contains("map"), "{line}");
    assert_eq!(client(&["--namespace", "orders", "list"]).code, 0, "the map before stays in use");
}
