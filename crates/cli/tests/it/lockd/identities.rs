//! The life of certificates as files: issued, recorded, listed, renewed, revoked.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use identity::{
    Algorithm, Authority, CaBundle, ClientBundle, Days, IssueContext, Rights, Role, ServerBundle, UnixTime,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::lockd::support::Ran;

/// A directory of identity files, and the commands that make them.
pub(crate) struct IdentityDir(TempDir);

impl IdentityDir {
    /// A CA in `ca.pem`, and a server in `server.pem`.
    pub(crate) fn new() -> IdentityDir {
        let dir = IdentityDir(tempfile::tempdir().expect("a directory"));
        dir.auth("new server --out server.pem");
        dir
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file for its owner alone.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).expect("ours");
    }

    pub(crate) fn run(&self, words: &str) -> Ran {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        let output = command.args(words.split(' ')).current_dir(self.0.path()).output().expect("it runs");
        Ran {
            code: output.status.code().expect("it was not killed"),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    pub(crate) fn auth(&self, words: &str) -> String {
        let ran = self.run(&format!("auth {words}"));
        assert_eq!(ran.code, 0, "{words}: {}", ran.stderr);
        ran.stdout
    }

    fn refused(&self, words: &str, what: &str) {
        let ran = self.run(&format!("auth {words}"));
        assert_eq!(ran.code, 1, "{words}: {}", ran.stdout);
        assert!(ran.stderr.contains(what), "{words}: {}", ran.stderr);
    }

    pub(crate) fn client(&self, file: &str, cn: &str) {
        self.auth(&format!("new client --server-in server.pem --out {file} --cn {cn}"));
    }

    fn json(&self, words: &str) -> Value {
        serde_json::from_str(&self.auth(&format!("{words} --output json"))).expect("JSON")
    }

    pub(crate) fn serial(&self, file: &str) -> String {
        let seen = self.json(&format!("inspect client --in {file}"));
        seen["client"]["serial"].as_str().expect("a serial").to_string()
    }

    fn revoked(&self) -> Vec<String> {
        let listed = self.json("verify server --in server.pem")["revoked"].clone();
        serde_json::from_value(listed).expect("a list")
    }

    /// The issuing CA, as of a number of days ago: its certificates can have expired.
    pub(crate) fn days_ago<T>(&self, days: u64, issue: impl FnOnce(&Authority, &mut IssueContext) -> T) -> T {
        issue_at(&self.path("ca.pem"), UnixTime::now().as_secs() - days * 86_400, issue)
    }
}

/// Opens a CA whose key is in clear, to issue certificates at any time.
pub(crate) fn issue_at<T>(ca: &Path, unix: u64, issue: impl FnOnce(&Authority, &mut IssueContext) -> T) -> T {
    let ca = CaBundle::parse(&fs::read_to_string(ca).expect("a CA")).expect("sound");
    let authority = Authority::open(ca.certificate(), ca.key(), None).expect("its key is in clear");
    let now = UnixTime::since_unix_epoch(Duration::from_secs(unix));
    issue(&authority, &mut IssueContext { now, fill: &mut system::random::fill })
}

/// A worker's certificate for a number of days.
pub(crate) fn worker(authority: &Authority, days: &str, moment: &mut IssueContext) -> ClientBundle {
    let (name, days) = ("worker".parse().expect("a name"), days.parse().expect("days"));
    let who = (Role::Worker, &Rights::client_default());
    authority.issue_client(&name, who, (Algorithm::default(), days), moment).expect("issued")
}

/// A server's certificates for a year.
pub(crate) fn server(authority: &Authority, moment: &mut IssueContext) -> ServerBundle {
    let kind = (Algorithm::default(), Days::DEFAULT);
    authority.issue_server(&"lockd".parse().expect("a name"), &[], kind, moment).expect("issued")
}

/// A laptop with an identity file was stolen. Revocation took a serial, which was only in that file: nothing but a new CA
/// helped.
#[test]
fn lost_certificates_are_revoked_by_name() {
    let dir = IdentityDir::new();
    for (file, cn) in [("laptop.pem", "ada"), ("desktop.pem", "ada"), ("bob.pem", "bob")] {
        dir.client(file, cn);
    }
    let serials = ["laptop.pem", "desktop.pem"].map(|file| dir.serial(file));
    for file in ["laptop.pem", "desktop.pem"] {
        fs::remove_file(dir.path(file)).expect("stolen");
    }
    let said = dir.auth("revoke client --server-in server.pem --cn ada");
    assert!(said.contains("running servers that use this file apply it within seconds"), "{said}");
    let mut expected = serials.to_vec();
    expected.sort();
    assert_eq!(dir.revoked(), expected, "both, and not bob's");
    dir.refused(
        "revoke client --server-in server.pem --cn eve",
        "no unexpired certificate with this name is recorded",
    );
    dir.refused("revoke client --server-in server.pem --cn lockd", "cn=lockd");
}

#[test]
fn certificates_are_revoked_by_file() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    dir.client("bob.pem", "bob");
    dir.auth("revoke client --server-in server.pem --in ada.pem");
    assert_eq!(dir.revoked(), [dir.serial("ada.pem")]);
    dir.auth("revoke client --server-in server.pem --in bob.pem 0a");
    assert_eq!(dir.revoked().len(), 3);
    dir.refused("revoke client --server-in server.pem --in ca.pem", "no certificate to revoke: file=ca.pem");
    dir.refused("revoke client --server-in server.pem --in none.pem", "file=none.pem");
}

#[test]
fn the_list_shows_every_issued_certificate_with_its_state() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    dir.auth("new client --server-in server.pem --out op.pem --cn op --role operator --namespace *:rwpm --namespace b:r");
    let expired = dir.days_ago(400, |authority, moment| worker(authority, "7", moment));
    let issued = identity::IssuedCertificate::of_client(&expired);
    identity::IssuedRecord::append(&dir.path("issued"), &[issued]).expect("recorded");
    dir.auth("revoke client --server-in server.pem --in ada.pem");
    let table = dir.auth("list --server-in server.pem");
    let columns = |line: &str| {
        line.split("  ")
            .filter(|cell| !cell.is_empty())
            .map(|cell| cell.trim().to_string())
            .collect::<Vec<_>>()
    };
    let lines: Vec<Vec<String>> = table.lines().map(columns).collect();
    assert_eq!(lines[0], ["SERIAL", "CN", "KIND", "ROLE", "NAMESPACES", "NOT AFTER", "STATUS"]);
    let shown: Vec<[&str; 5]> =
        lines[1..].iter().map(|cells| [1, 2, 3, 4, 6].map(|at| cells[at].as_str())).collect();
    assert_eq!(
        shown,
        [
            ["lockd", "server", "server", "-", "valid"],
            ["lockd", "forwarding", "server", "-", "valid"],
            ["ada", "client", "worker", "default:rw", "revoked"],
            ["op", "client", "operator", "*:rwpm,b:r", "valid"],
            ["worker", "client", "worker", "default:rw", "expired"],
        ]
    );
    let json: Value = serde_json::from_str(&dir.auth("list --server-in server.pem --json")).expect("JSON");
    assert_eq!(json["issued"][2]["serial"], Value::from(dir.serial("ada.pem")));
    assert_eq!(json["issued"][3]["namespaces"], serde_json::json!(["*:rwpm", "b:r"]));
    dir.refused("revoke client --server-in server.pem --cn worker", "no unexpired certificate");
}

#[test]
fn certificates_are_recorded_wherever_the_ca_key_is() {
    let dir = IdentityDir(tempfile::tempdir().expect("a directory"));
    fs::create_dir(dir.path("vault")).expect("a directory");
    dir.auth("new server --out server.pem --ca-out vault/ca.pem --with-ca-key");
    dir.auth("new client --server-in server.pem --out a.pem --cn a");
    dir.auth("new client --ca-in vault/ca.pem --out b.pem --cn b");
    let cns = |words: &str| -> Vec<String> {
        let json: Value = serde_json::from_str(&dir.auth(words)).expect("JSON");
        let issued = json["issued"].as_array().expect("a list").clone();
        issued.iter().map(|one| one["cn"].as_str().expect("a name").to_string()).collect()
    };
    assert_eq!(
        cns("list --server-in server.pem --json"),
        ["a"],
        "beside the server's file, which has the key"
    );
    assert_eq!(cns("list --ca-in vault/ca.pem --json"), ["lockd", "lockd", "b"]);
    assert_eq!(cns("list --server-in server.pem --ca-in vault/ca.pem --json").len(), 4);
    for name in ["issued", "vault/issued"] {
        assert_eq!(fs::metadata(dir.path(name)).expect(name).mode() & 0o777, 0o600, "{name}");
    }
    dir.refused(
        "new client --ca-in vault/ca.pem --out c.pem --cn c --issued no/such",
        "the record of issued certificates cannot be written",
    );
    assert!(!dir.path("c.pem").exists(), "a certificate that is not recorded is not issued");
    dir.refused("list --issued no/such", "no record of issued certificates");
}

/// `sudo lockd auth revoke` left the service with a file of root's.
#[test]
fn commands_that_replace_a_file_keep_its_owner_and_mode() {
    let dir = IdentityDir::new();
    dir.client("client1.pem", "worker-1");
    let files = ["server.pem", "client1.pem"];
    for name in files {
        fs::set_permissions(dir.path(name), fs::Permissions::from_mode(0o640)).expect("ours");
        // Only root can give a file away; the mode is checked in any case.
        let _ = std::os::unix::fs::chown(dir.path(name), Some(65_534), Some(65_534));
    }
    let access = |name: &str| {
        let found = fs::metadata(dir.path(name)).expect(name);
        (found.uid(), found.gid(), found.mode() & 0o777)
    };
    let before = files.map(access);
    dir.auth("new ca --out other.pem");
    for words in [
        "revoke client --server-in server.pem 0a",
        "renew --in server.pem",
        "renew --in client1.pem --server-in server.pem",
        "trust --in server.pem --add other.pem",
        "revoke server --client-in client1.pem 0b",
        "new client --server-in server.pem --out client1.pem --cn worker-1 --force",
        "new server --server-in server.pem --out server.pem --force",
    ] {
        dir.auth(words);
        assert_eq!(files.map(access), before, "{words}");
    }
}

#[test]
fn renewal_keeps_everything_but_key_serial_and_dates() {
    let dir = IdentityDir(tempfile::tempdir().expect("a directory"));
    dir.auth(
        "new server --out server.pem --cn main --hosts a.example,127.0.0.1 --algorithm ed25519 --days 30",
    );
    dir.auth(
        "new client --server-in server.pem --out ada.pem --cn ada --role operator --namespace b:rm --days 3",
    );
    dir.auth("revoke client --server-in server.pem 0a");
    let look = |kind: &str, file: &str| dir.json(&format!("inspect {kind} --in {file}"));
    let before = [look("server", "server.pem"), look("client", "ada.pem")];
    dir.auth("renew --in server.pem");
    dir.auth("renew --in ada.pem");
    let after = [look("server", "server.pem"), look("client", "ada.pem")];
    for (kind, at) in [("server", 0), ("forwarding", 0), ("client", 1)] {
        let [old, new] = [&before[at][kind], &after[at][kind]];
        for field in ["cn", "purpose", "algorithm", "hosts", "role", "namespaces"] {
            assert_eq!(old[field], new[field], "{kind} {field}");
        }
        assert_ne!(old["serial"], new["serial"], "{kind}");
        let span = |seen: &Value| {
            seen["not_after_unix"].as_u64().expect("a time")
                - seen["not_before_unix"].as_u64().expect("a time")
        };
        assert_eq!(span(old), span(new), "{kind} is valid for as long as before");
    }
    assert_eq!(before[0]["revoked"], after[0]["revoked"]);
    dir.auth("verify client --server-in server.pem --in ada.pem");
    dir.auth("renew --in ada.pem --days 7 --out next.pem");
    let days = look("client", "next.pem")["client"]["not_after_unix"].as_u64().expect("a time")
        - UnixTime::now().as_secs();
    assert!((6 * 86_400..=7 * 86_400).contains(&days), "{days}");
    let listed: Value = serde_json::from_str(&dir.auth("list --server-in server.pem --json")).expect("JSON");
    assert_eq!(listed["issued"].as_array().expect("a list").len(), 7, "each issue is recorded");
    fs::remove_file(dir.path("ca.pem")).expect("moved away");
    dir.refused("renew --in ada.pem", "pass --ca-in: file=ada.pem searched=ca.pem,ca/ca.pem");
}

#[test]
fn a_file_shows_and_changes_the_cas_that_it_trusts() {
    let dir = IdentityDir::new();
    dir.auth("new ca --out next.pem --cn next");
    dir.auth("trust --in server.pem --add next.pem");
    let seen = dir.json("inspect server --in server.pem");
    assert_eq!((&seen["ca"]["cn"], &seen["other_ca"]["cn"]), (&"lockd CA".into(), &"next".into()));
    dir.auth("new client --ca-in next.pem --server-in server.pem --out c.pem --cn c");
    dir.auth("verify client --server-in server.pem --in c.pem");
    assert_eq!(dir.json("inspect client --in c.pem")["other_ca"]["cn"], "lockd CA", "it trusts the server");
    dir.refused("trust --in server.pem --remove ca.pem", "renew them first with `lockd auth renew --ca-in`");
    dir.refused("trust --in server.pem --remove 0a", "the file does not trust this CA: serial=0a");
    dir.refused("trust --in server.pem --remove none.pem", "neither a CA's file nor a serial");
    dir.auth("trust --in server.pem --remove next.pem");
    assert_eq!(dir.json("inspect server --in server.pem")["other_ca"], Value::Null);
    let ran = dir.run("auth verify client --server-in server.pem --in c.pem");
    assert!(ran.stdout.contains("not issued by this CA"), "{}", ran.stdout);
}

#[test]
fn a_client_file_names_revoked_servers() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    dir.auth("revoke server --client-in ada.pem --in server.pem");
    let server = dir.json("inspect server --in server.pem");
    let seen = dir.json("inspect client --in ada.pem");
    let mut expected =
        ["server", "forwarding"].map(|which| server[which]["serial"].as_str().expect("text").to_string());
    expected.sort();
    assert_eq!(seen["revoked_servers"], serde_json::json!(expected));
    let ran = dir.run("auth verify client --server-in server.pem --in ada.pem");
    assert!(ran.stdout.contains("this server is revoked in the client's file"), "{}", ran.stdout);
    dir.client("bob.pem", "bob");
    dir.auth("revoke server --client-in bob.pem --cn lockd --ca-in ca.pem");
    assert_eq!(dir.json("inspect client --in bob.pem")["revoked_servers"], serde_json::json!(expected));
}
