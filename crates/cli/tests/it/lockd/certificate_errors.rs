//! Certificate errors as a user sees them: exit code 14, the file, and the command that helps.

use std::fs;
use std::path::Path;
use std::process::Command;

use identity::UnixTime;
use lockd_client::Client;

use crate::lockd::identities::{IdentityDir, issue_at, server, worker};
use crate::lockd::serve::Running;

fn start(dir: &IdentityDir, bundle: &str) -> Running {
    let bundle = dir.path(bundle);
    Running::start(&dir.path("data"), &["--store", "mem://", "--bundle", bundle.to_str().expect("text")])
}

/// Exit code and error of a command with that identity.
fn client(server: &Running, dir: &IdentityDir, identity: &str, words: &str) -> (Option<i32>, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["client", "--server", &server.address, "--identity", identity]).args(words.split(' '));
    let output = command.current_dir(dir.path("")).output().expect("it runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

/// A revoked, expired or foreign certificate was reported as an unreachable server with exit code 13, or for a write as 15,
/// "it may have been applied", after four attempts.
#[test]
fn a_refused_certificate_is_denied_with_the_file_and_the_command_that_helps() {
    let dir = IdentityDir::new();
    dir.client("good.pem", "worker-1");
    dir.client("revoked.pem", "worker-2");
    let write = |name: &str, text: &str| dir.write(name, text);
    write("expired.pem", &dir.days_ago(30, |authority, moment| worker(authority, "7", moment)).to_pem());
    let later = UnixTime::now().as_secs() + 7 * 86_400;
    write(
        "early.pem",
        &issue_at(&dir.path("ca.pem"), later, |authority, moment| worker(authority, "7", moment)).to_pem(),
    );
    fs::create_dir(dir.path("other")).expect("a directory");
    dir.auth("new server --out other/server.pem");
    dir.auth("new client --server-in other/server.pem --out foreign.pem --cn worker-1");
    dir.auth("revoke client --server-in server.pem --in revoked.pem");
    let server = start(&dir, "server.pem");
    assert_eq!(client(&server, &dir, "good.pem", "list").0, Some(0));
    for (identity, reason, command) in [
        ("revoked.pem", "refuses this certificate: it is revoked", "`lockd auth new client`"),
        ("expired.pem", "refuses this certificate: it has expired", "`lockd auth renew --in expired.pem`"),
        ("early.pem", "refuses this certificate: it is not valid yet", "check the clocks"),
        (
            "foreign.pem",
            "certificate is of another CA than this identity",
            "`lockd auth new client --server-in",
        ),
    ] {
        for words in ["list", "acquire --ttl 30s orders"] {
            let (code, said) = client(&server, &dir, identity, words);
            assert_eq!(code, Some(14), "{identity} {words}: {said}");
            assert!(said.contains(reason) && said.contains(command), "{identity} {words}: {said}");
            assert!(said.contains(&format!("identity={identity}")), "{identity} {words}: {said}");
            assert!(!said.contains("may have been applied"), "{said}");
        }
    }
}

/// A document that is longer than the buffers of a connection was still being written when the server closed it: some of
/// the commits were reported as an unreachable server, or as one that may have been applied.
#[test]
fn a_refused_certificate_is_denied_while_a_large_document_is_sent() {
    let dir = IdentityDir::new();
    dir.client("revoked.pem", "worker-2");
    dir.auth("revoke client --server-in server.pem --in revoked.pem");
    dir.write("large.json", &format!("\"{}\"", "x".repeat(20_000_000)));
    let server = start(&dir, "server.pem");
    let lease = "--lease-id L-00000000000000000000000000000001.1.AAAAAAAAAAAAAAAAAAAAAA";
    for _ in 0..5 {
        for words in ["update orders -i large.json", "update orders"] {
            let program = assert_cmd::cargo::cargo_bin!("lockd").display();
            let script = format!(
                "cat large.json | '{program}' client --server {} --identity revoked.pem {words} {lease}",
                server.address
            );
            let mut command = Command::new("sh");
            let output = command.args(["-c", &script]).current_dir(dir.path("")).output().expect("it runs");
            let said = String::from_utf8(output.stderr).expect("text");
            assert_eq!(output.status.code(), Some(14), "{words}: {said}");
            assert!(said.contains("refuses this certificate: it is revoked"), "{words}: {said}");
            assert!(!said.contains("may have been applied") && !said.contains("cannot be"), "{said}");
        }
    }
}

/// Plain HTTP to a TLS server was reported as an invalid HTTP version, for a write as one that may have been applied.
#[test]
fn plain_http_to_a_tls_server_is_told_as_that() {
    let dir = IdentityDir::new();
    let server = start(&dir, "server.pem");
    for words in ["list", "acquire orders"] {
        let (code, said) = client(&server, &dir, "unused.pem", &format!("--mtls=false {words}"));
        assert_eq!(code, Some(2), "a retry does not help: {said}");
        assert!(said.contains("it may expect TLS; use an https:// address"), "{said}");
        assert!(!said.contains("cannot be reached") && !said.contains("may have been applied"), "{said}");
    }
}

/// Clients trusted every server of their CA, a revoked one too; and an expired one was reported as unreachable.
#[test]
fn a_server_that_is_not_trusted_is_denied_with_the_reason() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    dir.write("expired.pem", &dir.days_ago(400, server).to_pem());
    let expired = start(&dir, "expired.pem");
    let (code, said) = client(&expired, &dir, "ada.pem", "acquire --ttl 30s orders");
    assert_eq!(code, Some(14), "{said}");
    assert!(
        said.contains("the server's certificate has expired") && said.contains("`lockd auth renew"),
        "{said}"
    );
    drop(expired);

    let current = start(&dir, "server.pem");
    assert_eq!(client(&current, &dir, "ada.pem", "list").0, Some(0));
    dir.client("careful.pem", "careful");
    dir.auth("revoke server --client-in careful.pem --in server.pem");
    let denylist = dir.auth("inspect client --in careful.pem");
    let serials: Vec<&str> =
        denylist.split("revoked_servers:\n").nth(1).expect("a list").split_whitespace().collect();
    fs::write(dir.path("denylist"), format!("# stolen\n{}\n", serials.join("\n"))).expect("written");
    for (identity, words) in [
        ("careful.pem", "acquire --ttl 30s orders"),
        ("ada.pem", "--denylist-path denylist acquire --ttl 30s orders"),
    ] {
        let (code, said) = client(&current, &dir, identity, words);
        assert_eq!(code, Some(14), "{said}");
        assert!(said.contains("the server's certificate is revoked"), "{said}");
    }
    assert_eq!(
        refused_by_all_programs(&current, &dir.path("ada.pem"), &dir.path("denylist")),
        [Some(14), Some(14), Some(14)]
    );
}

/// `lockd run`, `lockc` and `lockd health` with the denylist from the environment.
fn refused_by_all_programs(server: &Running, identity: &Path, denylist: &Path) -> [Option<i32>; 3] {
    let home = tempfile::tempdir().expect("a directory");
    let daemon = assert_cmd::cargo::cargo_bin!("lockd");
    let commands = [
        (daemon, &["run", "--key", "k", "--", "true"][..]),
        (assert_cmd::cargo::cargo_bin!("lockc"), &["acquire", "k"]),
        (daemon, &["health"]),
    ];
    commands.map(|(program, words)| {
        let mut command = Command::new(program);
        command
            .args(words)
            .env("LOCKD_CLIENT_SERVER", &server.address)
            .env("LOCKD_CLIENT_IDENTITY", identity);
        command.env("LOCKD_CLIENT_DENYLIST_PATH", denylist).env("XDG_STATE_HOME", home.path());
        command.output().expect("it runs").status.code()
    })
}

/// A program that runs for weeks refuses a server from the moment at which its denylist names it.
#[test]
fn a_running_client_takes_over_its_denylist() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    fs::write(dir.path("denylist"), "# none yet\n").expect("written");
    let server = start(&dir, "server.pem");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let builder = Client::builder().identity_file(dir.path("ada.pem")).denylist_file(dir.path("denylist"));
    let client = builder.endpoint(&server.address).build().expect("sound");
    runtime.block_on(client.ready()).expect("nothing is revoked");
    let text = fs::read_to_string(dir.path("server.pem")).expect("there");
    let serial = identity::ServerBundle::parse(&text).expect("sound").server().certificate().serial();
    fs::write(dir.path("denylist"), format!("{serial}\n")).expect("written");
    let mut refused = None;
    crate::running::until("the list is taken over", || {
        refused = runtime.block_on(client.ready()).err();
        refused.is_some()
    });
    let refused = refused.expect("a refusal");
    assert_eq!(refused.kind(), lockd_client::Kind::Denied, "{refused}");
    assert!(refused.to_string().contains("the server's certificate is revoked"), "{refused}");
}
