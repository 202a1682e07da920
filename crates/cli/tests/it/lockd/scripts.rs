//! `lockd client acquire` in scripts: a script goes on only with the lease, and finds it.

use std::process::{Command, Output, Stdio};

use identity::Role;
use rustix::process::Signal;

use crate::lockd::identities::IdentityDir;
use crate::lockd::serve::{LogLines, Running};
use crate::lockd::server::{Server, program, sh};
use crate::lockd::support::Ran;

/// The shells on this machine, with and without `set -e`.
fn shells() -> Vec<Vec<&'static str>> {
    let known: [&[&str]; 5] = [&["sh"], &["bash"], &["dash"], &["busybox", "sh"], &["ksh"]];
    let starts = |words: &&[&str]| {
        let probe =
            Command::new(words[0]).args(&words[1..]).args(["-c", "exit 0"]).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    };
    known.into_iter().filter(starts).map(<[&str]>::to_vec).collect()
}

fn run(shell: &[&str], address: &str, script: &str) -> Ran {
    let mut command = program(address, shell[0]);
    let Output { status, stdout, stderr } =
        command.args(&shell[1..]).args(["-c", script]).output().expect("it runs");
    Ran {
        code: status.code().expect("it was not killed"),
        stdout: String::from_utf8(stdout).expect("text"),
        stderr: String::from_utf8(stderr).expect("text"),
    }
}

/// A refused acquire printed nothing, so that its eval succeeded and the script went on without the lease, also with
/// `set -e`, and with the variables of an earlier lease.
#[test]
fn a_script_ends_at_an_acquire_that_was_not_granted() {
    let server = Server::start(Role::Operator);
    let address = server.address.to_string();
    assert_eq!(server.sh("lockd client acquire --ttl 5m taken").code, 0);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    let unreachable = format!("--server {closed} free");
    for shell in shells() {
        for (acquire, code) in [
            ("taken", 10),
            ("--ttl 9h free", 2),
            ("--ttl soon free", 2),
            ("--no-such-flag free", 2),
            ("--tls-cert /nowhere free", 2),
            (unreachable.as_str(), 13),
        ] {
            let eval = format!(r#"eval "$(lockd client acquire {acquire})""#);
            let strict = run(&shell, &address, &format!("set -e; {eval}; echo went on"));
            assert_eq!((strict.code, strict.stdout.as_str()), (code, ""), "{shell:?} {acquire}");
            let lax = format!(
                r#"eval "$(lockd client acquire --ttl 5m mine)"
                {eval}; echo "$? ${{LOCKD_CLIENT_LEASE_ID-none}} ${{LOCKD_CLIENT_KEY-none}} ${{LOCKD_CLIENT_FENCING_TOKEN-none}}"
                lockd client release mine"#
            );
            let lax = run(&shell, &address, &lax);
            assert_eq!(lax.stdout, format!("{code} none none none\n"), "{shell:?} {acquire}: {}", lax.stderr);
            assert_eq!(lax.code, 0, "the earlier lease is found by its key: {}", lax.stderr);
        }
    }
}

/// A mistyped command printed nothing on standard output, so that its eval succeeded.
#[test]
fn a_script_ends_at_an_acquire_that_is_mistyped() {
    for words in ["aquire k", "acquire k", "clent acquire k", "client aquire k", "client manifset k"] {
        let strict =
            run(&["sh"], "127.0.0.1:1", &format!(r#"set -e; eval "$(lockd {words})"; echo went on"#));
        assert_eq!((strict.code, strict.stdout.as_str()), (2, ""), "{words}: {}", strict.stderr);
    }
    // Other commands print nothing there: they have other readers.
    let other = run(&["sh"], "127.0.0.1:1", "lockd run --key acquire acquire");
    assert_eq!((other.code, other.stdout.as_str()), (2, ""));
}

/// `eval "$(timeout 60 lockd client acquire --block 10m orders)"`: the signal ended the acquire, which had printed nothing.
/// The eval succeeded, and the script went on without the lease.
#[test]
fn a_script_ends_at_an_acquire_that_a_signal_ends() {
    let server = Server::start(Role::Operator);
    assert_eq!(server.sh("lockd client acquire --ttl 5m taken").code, 0);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let mut acquire = server.lockd(&["client", "acquire", "--block", "2m", "taken"]);
        let mut child =
            acquire.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        LogLines::new(child.stderr.take().expect("piped")).wait_for("waiting for the lease");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).expect("our own");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(code), "{signal:?}");
        let printed = String::from_utf8(output.stdout).expect("text");
        let strict = server.sh(&format!("set -e; eval \"{printed}\"; echo went on"));
        assert_eq!((strict.code, strict.stdout.as_str()), (code, ""), "{signal:?}: {printed}");
    }
    // Ignored signals stay ignored.
    let script =
        "trap '' HUP; lockd client acquire --block 1s taken 2>/dev/null & sleep 0.2; kill -HUP $!; wait $!";
    assert_eq!(server.sh(script).code, 10);
}

/// The second acquire made the first lease unreachable until it expired, without a word.
#[test]
fn a_second_lease_in_a_shell_does_not_orphan_the_first() {
    let server = Server::start(Role::Operator);
    let ran = server.sh(r#"set -e
        eval "$(lockd client acquire --ttl 5m first)"
        eval "$(lockd client acquire --ttl 5m second)"
        echo '{"n":1}' | lockd client update first >/dev/null
        lockd client get first; echo
        lockd client release first
        lockd client release
        lockd client why first | cut -d: -f1
        lockd client why second | cut -d: -f1"#);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"n\":1}\nfree\nfree\n"), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("is still held").count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("`lockd client release first`: key=first"), "{}", ran.stderr);

    let one_by_one = server.sh(r#"set -e
        for key in a b c; do
            eval "$(lockd client acquire --ttl 5m $key)"
            lockd client release $key
        done"#);
    assert_eq!((one_by_one.code, one_by_one.stderr.as_str()), (0, ""), "released leases are no news");
}

#[test]
fn a_key_without_a_lease_is_told_whose_lease_there_is() {
    let server = Server::start(Role::Operator);
    let other = Server::start(Role::Operator);
    let ran = server.sh(&format!(
        r#"eval "$(lockd client acquire --ttl 5m orders)"
        lockd client release payments; echo $?
        eval "$(lockd client acquire --ttl 5m payments 2>/dev/null)"
        lockd client release --server {} orders; echo $?
        LOCKD_CLIENT_LEASES=x lockd client release stock; echo $?"#,
        other.address
    ));
    assert_eq!(ran.stdout, "2\n2\n2\n", "{}", ran.stderr);
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(lines[0].ends_with("key=payments LOCKD_CLIENT_LEASE_ID is of key=orders"), "{}", lines[0]);
    assert!(lines[0].contains("lockc"), "{}", lines[0]);
    let elsewhere = format!("--namespace default --server http://{}", server.address);
    assert!(lines[1].contains(&elsewhere), "{}", lines[1]);
    assert!(lines[2].contains("LOCKD_CLIENT_LEASES is not what acquire exports"), "{}", lines[2]);
}

/// The credential of a lease was sent to whatever server the command named.
#[test]
fn a_lease_is_not_used_at_another_server_or_namespace() {
    let (server, other) = (Server::start(Role::Operator), Server::start(Role::Operator));
    let ran = server.sh(&format!(
        r#"eval "$(lockd client acquire --ttl 5m orders)"
        lockd client release orders --server {other}; echo $?
        lockd client release --server {other}; echo $?
        lockd client get orders --namespace team -o /dev/null; echo $?
        lockd client keepalive --server 'http://{own}' >/dev/null; echo $?
        lockd client release --namespace default; echo $?"#,
        other = other.address,
        own = server.address
    ));
    assert_eq!(ran.stdout, "2\n2\n2\n0\n0\n", "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("no lease on this key in the environment").count(), 3, "{}", ran.stderr);
}

/// The commands after an acquire used another identity, or none; and leases had the owner of the shell's last lease.
#[test]
fn the_commands_after_an_acquire_need_no_flags() {
    let dir = IdentityDir::new();
    dir.client("ada.pem", "ada");
    dir.auth("new client --server-in server.pem --out ops.pem --cn ops --role operator --namespace *:rwpm");
    dir.write("denylist", "# none\n");
    let server_file = dir.path("server.pem");
    let data = tempfile::tempdir().expect("a directory");
    let server =
        Running::start(&data.path().join("data"), &["--bundle", server_file.to_str().expect("a path")]);
    split(&dir, "ada.pem");
    for identity in [
        "--identity ada.pem",
        "--tls-cert ada.crt --tls-key ada.key --tls-ca ca.crt --denylist-path denylist",
    ] {
        let script = format!(
            r#"set -e; unset LOCKD_CLIENT_MTLS LOCKD_CLIENT_SERVER
            cd '{}'
            eval "$(lockd client acquire --server {} {identity} --namespace default --owner me --ttl 5m ledger)"
            cd /
            echo '{{"a":1}}' | lockd client update ledger >/dev/null
            lockd client set ledger a++ >/dev/null
            lockd client get ledger; echo
            lockd client keepalive >/dev/null
            lockd client release
            echo "${{LOCKD_CLIENT_OWNER-none}}""#,
            dir.path("").display(),
            server.address
        );
        let ran = sh(&server.address, &script);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"a\":2}\nnone\n"), "{identity}: {}", ran.stderr);
    }
}

/// The parts of an identity file as three files: `NAME.crt`, `NAME.key` and `ca.crt`.
fn split(dir: &IdentityDir, file: &str) {
    let text = std::fs::read_to_string(dir.path(file)).expect("made");
    let name = file.trim_end_matches(".pem");
    let blocks = pem_blocks(&text);
    let ca = std::fs::read_to_string(dir.path("ca.pem")).expect("made");
    let ca = pem_blocks(&ca).into_iter().find(|(kind, _)| kind == "CERTIFICATE").expect("a CA").1;
    let is_own = |(kind, block): &&(String, String)| kind == "CERTIFICATE" && *block != ca;
    let own = &blocks.iter().find(is_own).expect("its own certificate").1;
    let key = &blocks.iter().find(|(kind, _)| kind.contains("PRIVATE KEY")).expect("a key").1;
    dir.write(&format!("{name}.crt"), own);
    dir.write(&format!("{name}.key"), key);
    dir.write("ca.crt", &ca);
}

fn pem_blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut block = String::new();
    for line in text.lines() {
        if line.starts_with("-----BEGIN ") {
            block.clear();
        }
        block.push_str(line);
        block.push('\n');
        if let Some(label) = line.strip_prefix("-----END ") {
            blocks.push((label.trim_end_matches('-').to_string(), block.clone()));
        }
    }
    blocks
}

/// Under `lockd run` the lease of the run is in the plain variables only.
#[test]
fn an_acquire_under_run_leaves_the_lease_of_the_run_usable() {
    let server = Server::start(Role::Operator);
    let script = r#"eval "$(lockd client acquire --ttl 5m inner 2>/dev/null)"
        lockd client set outer n++ && lockd client set inner n++ && lockd client release inner"#;
    let output =
        server.lockd(&["run", "--key", "outer", "--", "sh", "-c", script]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "committed version=1 bytes=7\ncommitted version=1 bytes=7\n", "{output:?}");
    assert!(output.status.success());
}
