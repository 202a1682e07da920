//! `lockd auth`: the command lines of the lockd service specification, and their errors.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use tempfile::TempDir;

use crate::lockd::support::Ran;

const PASS: [&str; 2] = ["--ca-pass-file", "pass"];

/// A working directory that contains a passphrase file `pass`.
struct WorkDir(TempDir);

impl WorkDir {
    fn new() -> WorkDir {
        let dir = WorkDir(tempfile::tempdir().expect("a directory"));
        dir.write_private("pass", "correct horse\n");
        dir
    }

    /// With a CA with an unencrypted key, a server and a client.
    fn with_identities() -> WorkDir {
        let dir = WorkDir::new();
        dir.done(&["new", "server", "--out", "server.pem"]);
        dir.done(&["new", "client", "--server-in", "server.pem", "--out", "client1.pem", "--cn", "worker-1"]);
        dir
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).expect("writable");
    }

    fn write_private(&self, name: &str, text: &str) {
        self.write(name, text);
        fs::set_permissions(self.path().join(name), fs::Permissions::from_mode(0o600)).expect("ours");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).expect(name)
    }

    fn has(&self, name: &str) -> bool {
        self.path().join(name).exists()
    }

    /// Runs the command without a terminal, so that it cannot prompt.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("setsid");
        command.arg("--wait").arg(assert_cmd::cargo::cargo_bin!("lockd")).arg("auth").args(args);
        command.current_dir(self.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        ran(&mut self.command(args))
    }

    fn done(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        ran.stdout
    }

    fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--output", "json"]].concat());
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{args:?}: {}", ran.stderr))
    }

    /// Asserts the exit code and a part of the error message.
    fn refused(&self, args: &[&str], code: i32, what: &str) {
        let ran = self.run(args);
        assert_eq!(ran.code, code, "{args:?}: {} {}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains(what), "{args:?}: {}", ran.stderr);
    }

    fn serial(&self, client: &str) -> String {
        let seen = self.json(&["inspect", "client", "--in", client]);
        seen["client"]["serial"].as_str().expect("a serial").to_string()
    }
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("setsid runs");
    Ran {
        code: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// The command lines of the lockd service specification, except that the passphrase comes from a file.
#[test]
fn the_specifications_command_lines_work() {
    let dir = WorkDir::new();
    dir.done(&[
        "new",
        "server",
        "--out",
        "server.pem",
        "--cn",
        "lockd-anywhere",
        "--hosts",
        "*",
        PASS[0],
        PASS[1],
    ]);
    dir.done(&[
        "new",
        "client",
        "--server-in",
        "server.pem",
        "--out",
        "client1.pem",
        "--cn",
        "worker-1",
        PASS[0],
        PASS[1],
    ]);
    let serial = dir.serial("client1.pem");
    dir.done(&["verify", "client", "--server-in", "server.pem", "--in", "client1.pem"]);
    dir.done(&["revoke", "client", "--server-in", "server.pem", "--out", "server.pem", &serial, "0A1B"]);
    let server = dir.done(&["inspect", "server", "--in", "server.pem"]);
    assert!(server.contains("lockd-anywhere") && server.contains(&serial), "{server}");
    let client = dir.done(&["inspect", "client", "--in", "client1.pem"]);
    assert!(client.contains("cn: worker-1") && client.contains("default:rw"), "{client}");

    let verified = dir.done(&["verify", "server", "--in", "server.pem"]);
    assert!(
        verified.contains("ok: yes") && verified.contains(&serial) && verified.contains("0a1b"),
        "{verified}"
    );
    let refused = dir.run(&["verify", "client", "--server-in", "server.pem", "--in", "client1.pem"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stdout.contains(&format!("the certificate is revoked: serial={serial}")),
        "{}",
        refused.stdout
    );
}

/// On a terminal: `--ca-pass-prompt` prompts twice, and `new client` prompts without any flag.
#[test]
fn a_person_is_asked_for_the_passphrase() {
    let dir = WorkDir::new();
    let args = [
        "new",
        "server",
        "--out",
        "server.pem",
        "--cn",
        "lockd-anywhere",
        "--hosts",
        "*",
        "--ca-pass-prompt",
    ];
    assert_eq!(at_a_terminal(&dir, &args, "typed by hand\ntyped by hand\n"), Some(0));
    assert!(dir.read("ca.pem").contains("LOCKD ENCRYPTED CA KEY"));
    let args = ["new", "client", "--server-in", "server.pem", "--out", "client1.pem", "--cn", "worker-1"];
    assert_eq!(at_a_terminal(&dir, &args, "wrong\n"), Some(1));
    assert!(!dir.has("client1.pem"));
    assert_eq!(at_a_terminal(&dir, &args, "typed by hand\n"), Some(0));
    assert!(dir.has("client1.pem"));

    let args = ["new", "server", "--out", "other/server.pem", "--ca-pass-prompt"];
    fs::create_dir(dir.path().join("other")).expect("a directory");
    assert_eq!(at_a_terminal(&dir, &args, "one of thirteen\nanother of them\n"), Some(1), "they differ");
    assert_eq!(at_a_terminal(&dir, &args, "too short\ntoo short\n"), Some(1));
    assert!(!dir.has("other/ca.pem"));
}

fn at_a_terminal(dir: &WorkDir, args: &[&str], typed: &str) -> Option<i32> {
    let mut master =
        fs::File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are terminals"));
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("our own");
    let name = ptsname(&master, Vec::new()).expect("it has a name");
    let terminal =
        fs::File::options().read(true).write(true).open(name.to_str().expect("a path")).expect("our own");
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).arg(assert_cmd::cargo::cargo_bin!("lockd")).arg("auth").args(args);
    let mut child = command
        .current_dir(dir.path())
        .stdin(terminal)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("setsid runs");
    // Only the child has the terminal open now: if it exits early, reading fails instead of blocking.
    drop(command);
    // Each line is typed after its prompt appears.
    for line in typed.split_inclusive('\n') {
        let mut asked = [0; 256];
        while !String::from_utf8_lossy(&asked).contains(": ") {
            let read = master.read(&mut asked).expect("a question");
            assert!(read > 0);
        }
        master.write_all(line.as_bytes()).expect("typed");
    }
    child.wait().expect("it ends").code()
}

#[test]
fn identity_files_are_readable_by_their_owner_only() {
    let dir = WorkDir::with_identities();
    for name in ["server.pem", "ca.pem", "client1.pem"] {
        let mode = fs::metadata(dir.path().join(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    dir.done(&["revoke", "client", "--server-in", "server.pem", "0a"]);
    let mode = fs::metadata(dir.path().join("server.pem")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn nothing_is_overwritten_without_force() {
    let dir = WorkDir::with_identities();
    let before = ["server.pem", "ca.pem", "client1.pem"].map(|name| dir.read(name));
    let server = ["new", "server", "--out", "server.pem"];
    let other = ["new", "server", "--out", "other.pem"];
    let client =
        ["new", "client", "--server-in", "server.pem", "--out", "client1.pem", "--cn", "x", PASS[0], PASS[1]];
    let elsewhere = ["revoke", "client", "--server-in", "server.pem", "--out", "client1.pem", "0a"];
    for args in [&server[..], &other, &client, &elsewhere] {
        dir.refused(args, 1, "--force");
    }
    assert_eq!(["server.pem", "ca.pem", "client1.pem"].map(|name| dir.read(name)), before);
    assert!(!dir.has("other.pem"), "not one of a pair either");

    dir.done(&[&client[..], &["--force"]].concat());
    dir.done(&[&server[..], &["--force"]].concat());
    let after = ["server.pem", "ca.pem", "client1.pem"].map(|name| dir.read(name));
    assert!(after.iter().zip(&before).all(|(after, before)| after != before));
}

#[test]
fn the_ca_key_is_in_its_own_file_unless_with_ca_key_is_given() {
    let dir = WorkDir::with_identities();
    let seen = dir.json(&["inspect", "server", "--in", "server.pem"]);
    assert_eq!(seen["ca"]["key"], "not in this file");

    dir.done(&["new", "server", "--out", "b.pem", "--ca-out", "b-ca.pem", "--with-ca-key", PASS[0], PASS[1]]);
    assert_eq!(dir.json(&["inspect", "server", "--in", "b.pem"])["ca"]["key"], "encrypted");
    dir.done(&["new", "server", "--out", "c.pem", "--ca-out", "c-ca.pem", "--with-ca-key"]);
    assert_eq!(dir.json(&["inspect", "server", "--in", "c.pem"])["ca"]["key"], "in clear");
    let verified = dir.done(&["verify", "server", "--in", "c.pem"]);
    assert!(verified.contains("its readers can issue client certificates"), "{verified}");
}

#[test]
fn a_client_is_made_from_either_place_of_the_ca_key() {
    let dir = WorkDir::new();
    fs::create_dir(dir.path().join("vault")).expect("a directory");
    dir.done(&["new", "server", "--out", "a.pem", "--ca-out", "vault/ca-a.pem", "--with-ca-key"]);
    dir.done(&["new", "server", "--out", "b.pem", "--ca-out", "vault/ca-b.pem", PASS[0], PASS[1]]);
    let client = |server, more: &[&str]| {
        let out = format!("{server}-{}.pem", more.len());
        let args = ["new", "client", "--server-in", server, "--out", &out, "--cn", "x"];
        dir.run(&[&args, more].concat())
    };
    assert_eq!(client("a.pem", &[]).code, 0, "in the server's file, in clear");
    let missing = client("b.pem", &PASS);
    assert_eq!(missing.code, 1);
    assert!(
        missing.stderr.contains("pass --ca-in: file=b.pem searched=ca.pem,ca/ca.pem"),
        "{}",
        missing.stderr
    );
    assert_eq!(client("b.pem", &["--ca-in", "vault/ca-b.pem", PASS[0], PASS[1]]).code, 0);
    let wrong = client("b.pem", &["--ca-in", "vault/ca-a.pem"]);
    assert!(wrong.stderr.contains("of another CA than the server"), "{}", wrong.stderr);
    dir.done(&["new", "client", "--ca-in", "vault/ca-a.pem", "--out", "c.pem", "--cn", "x"]);
    dir.done(&["verify", "client", "--server-in", "a.pem", "--in", "c.pem"]);
}

#[test]
fn a_second_server_joins_the_ca_of_the_first_and_inherits_its_denylist() {
    let dir = WorkDir::with_identities();
    dir.done(&["revoke", "client", "--server-in", "server.pem", "0a1b"]);
    let before = dir.read("ca.pem");
    dir.done(&[
        "new",
        "server",
        "--server-in",
        "server.pem",
        "--out",
        "standby.pem",
        "--cn",
        "standby",
        PASS[0],
        PASS[1],
    ]);
    assert_eq!(dir.read("ca.pem"), before, "the CA stays as it is");
    let [one, other] =
        ["server.pem", "standby.pem"].map(|name| dir.json(&["inspect", "server", "--in", name]));
    assert_eq!((&one["ca"], &one["revoked"]), (&other["ca"], &other["revoked"]));
    assert_ne!(one["server"]["serial"], other["server"]["serial"]);
    dir.done(&["verify", "client", "--server-in", "standby.pem", "--in", "client1.pem"]);
}

#[test]
fn a_passphrase_comes_from_a_file_or_a_descriptor_and_must_be_right() {
    let dir = WorkDir::new();
    dir.done(&["new", "server", "--out", "server.pem", PASS[0], PASS[1]]);
    let args = ["new", "client", "--server-in", "server.pem", "--out", "c.pem", "--cn", "x"];
    dir.write_private("wrong", "incorrect horse\n");
    dir.write_private("empty", "\n");
    dir.refused(&args, 1, "there is no terminal to prompt on; pass --ca-pass-file or --ca-pass-fd");
    dir.refused(&[&args[..], &["--ca-pass-file", "wrong"]].concat(), 1, "the passphrase is wrong");
    dir.refused(
        &[&args[..], &["--ca-pass-file", "empty"]].concat(),
        1,
        "the passphrase is empty: file=empty",
    );
    dir.refused(&[&args[..], &["--ca-pass-file", "none"]].concat(), 1, "file=none");
    dir.refused(&[&args[..], &["--ca-pass-fd", "77"]].concat(), 1, "/dev/fd/77");
    dir.refused(
        &[&args[..], &["--ca-pass-file", "pass", "--ca-pass-prompt"]].concat(),
        2,
        "cannot be used with",
    );
    assert!(!dir.has("c.pem"));

    let fresh = ["new", "server", "--out", "s2.pem", "--ca-out", "ca2.pem"];
    dir.write_private("short", "eleven char\n");
    let too_short = [&fresh[..], &["--ca-pass-file", "short"]].concat();
    dir.refused(
        &too_short,
        1,
        "the passphrase is too short: a copy of the CA's file lets it be guessed offline: characters_min=12",
    );
    for mode in [0o640, 0o604] {
        fs::set_permissions(dir.path().join("pass"), fs::Permissions::from_mode(mode)).expect("ours");
        let wide = [&fresh[..], &PASS].concat();
        dir.refused(&wide, 1, &format!("run `chmod 600 pass`: file=pass mode={mode:o}"));
        dir.refused(&[&args[..], &PASS].concat(), 1, "other users can read the passphrase");
    }
    assert!(!dir.has("s2.pem") && !dir.has("ca2.pem") && !dir.has("c.pem"));

    let pass = fs::File::open(dir.path().join("pass")).expect("there");
    let mut command = dir.command(&[&args[..], &["--ca-pass-fd", "0"]].concat());
    let given = ran(command.stdin(pass));
    assert_eq!(given.code, 0, "{}", given.stderr);
}

#[test]
fn a_ca_key_in_clear_is_said_to_be_one() {
    let dir = WorkDir::new();
    let ran = dir.run(&["new", "server", "--out", "server.pem"]);
    assert!(ran.stderr.contains("note: the CA key is not encrypted"), "{}", ran.stderr);
    let sealed = dir.run(&["new", "server", "--out", "b.pem", "--ca-out", "b-ca.pem", PASS[0], PASS[1]]);
    assert_eq!(sealed.stderr, "");
}

#[test]
fn client_certificates_carry_the_requested_role_and_rights() {
    let dir = WorkDir::with_identities();
    let args =
        ["new", "client", "--server-in", "server.pem", "--out", "ada.pem", "--cn", "ada", PASS[0], PASS[1]];
    let more = [
        "--role",
        "operator",
        "--namespace",
        "*:pm",
        "--namespace",
        "a:b:wr",
        "--days",
        "7",
        "--algorithm",
        "ed25519",
    ];
    let made = dir.json(&[&args[..], &more].concat());
    let client = &made["client"];
    assert_eq!((&client["cn"], &client["role"]), (&"ada".into(), &"operator".into()));
    assert_eq!(client["namespaces"], serde_json::json!(["*:pm", "a:b:rw"]));
    assert_eq!(client["algorithm"], "Ed25519");
    let span = client["not_after_unix"].as_u64().expect("a time")
        - client["not_before_unix"].as_u64().expect("a time");
    assert_eq!(span, 7 * 86_400 + 600, "seven days, and ten minutes for slow clocks");
    assert_eq!(dir.json(&["inspect", "client", "--in", "ada.pem"])["client"], *client);

    let verified = dir.json(&["verify", "client", "--server-in", "server.pem", "--in", "ada.pem"]);
    assert_eq!(verified["ok"], true);
    assert!(verified["notes"][0].as_str().expect("a note").contains("expires soon"), "{verified}");
}

/// curl refused every certificate that was made without naming hosts, and each page showed `-k`.
#[test]
fn a_server_certificate_names_this_machine_by_default() {
    let directory = WorkDir::new();
    let made = directory.json(&["new", "server", "--out", "server.pem"]);
    let hosts = made["server"]["hosts"].as_array().expect("a list").clone();
    let host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for host in ["localhost", "127.0.0.1", "::1", &host_name] {
        assert!(hosts.contains(&serde_json::json!(host)), "{host} is not in {hosts:?}");
    }
}

#[test]
fn servers_name_the_hosts_that_were_asked_for() {
    let dir = WorkDir::new();
    let made = dir.json(&["new", "server", "--out", "server.pem", "--hosts", "*,db.example,127.0.0.1,::1"]);
    assert_eq!(made["server"]["hosts"], serde_json::json!(["*", "db.example", "127.0.0.1", "::1"]));
    assert_eq!((&made["file"], &made["ca_file"]), (&"server.pem".into(), &"ca.pem".into()));
}

#[test]
fn revoking_needs_no_ca_key_and_adds_up() {
    let dir = WorkDir::with_identities();
    fs::remove_file(dir.path().join("ca.pem")).expect("there");
    dir.done(&["revoke", "client", "--server-in", "server.pem", "0a"]);
    dir.done(&["revoke", "client", "--server-in", "server.pem", "--out", "copy.pem", "0b", "0A"]);
    let revoked = |name| dir.json(&["verify", "server", "--in", name])["revoked"].clone();
    assert_eq!(revoked("server.pem"), serde_json::json!(["0a"]));
    assert_eq!(revoked("copy.pem"), serde_json::json!(["0a", "0b"]));

    let own = dir.json(&["inspect", "server", "--in", "server.pem"])["forwarding"]["serial"].clone();
    let ran = dir.run(&["revoke", "client", "--server-in", "server.pem", own.as_str().expect("a serial")]);
    assert!(ran.stderr.contains("the server's own certificate"), "{}", ran.stderr);
}

#[test]
fn two_who_revoke_at_once_do_not_lose_each_others() {
    let dir = WorkDir::with_identities();
    let running: Vec<_> = (1..=12)
        .map(|number| {
            let serial = format!("{number:02x}");
            let mut command = dir.command(&["revoke", "client", "--server-in", "server.pem", &serial]);
            command.stdout(Stdio::null()).spawn().expect("setsid runs")
        })
        .collect();
    for mut child in running {
        assert!(child.wait().expect("it ends").success());
    }
    let revoked = dir.json(&["verify", "server", "--in", "server.pem"])["revoked"].clone();
    assert_eq!(revoked.as_array().expect("a list").len(), 12, "{revoked}");
}

#[test]
fn a_denylist_beside_the_file_counts_too() {
    let dir = WorkDir::with_identities();
    let serial = dir.serial("client1.pem");
    dir.write("denylist", &format!("# left in spring\n{serial}  # worker-1\n"));
    let args = ["verify", "client", "--server-in", "server.pem", "--in", "client1.pem"];
    dir.done(&args);
    let ran = dir.run(&[&args[..], &["--denylist-path", "denylist"]].concat());
    assert_eq!(ran.code, 1);
    let listed = dir.json(&["verify", "server", "--in", "server.pem", "--denylist-path", "denylist"]);
    assert_eq!(listed["revoked"], serde_json::json!([serial]));
}

#[test]
fn verify_reports_problems_as_text_and_as_json() {
    let (dir, other) = (WorkDir::with_identities(), WorkDir::with_identities());
    dir.write("strange.pem", &other.read("client1.pem"));
    let whole = dir.read("client1.pem");
    dir.write("cut.pem", &whole[..whole.len() - 40]);
    dir.write("twice.pem", &(whole.clone() + &whole));
    let table = [
        ("strange.pem", "not issued by this CA"),
        ("cut.pem", "cut short"),
        ("twice.pem", "more than one client certificate"),
        ("server.pem", "does not belong into a client's file"),
        ("none.pem", "file=none.pem"),
    ];
    for (name, what) in table {
        let args = ["verify", "client", "--server-in", "server.pem", "--in", name];
        let text = dir.run(&args);
        assert_eq!(text.code, 1, "{name}");
        assert!(
            text.stdout.contains(what) && text.stderr.contains("verification failed"),
            "{} {}",
            text.stdout,
            text.stderr
        );
        let json = dir.json(&args);
        assert_eq!(json["ok"], false);
        assert!(json["problems"][0].as_str().expect("a text").contains(what), "{json}");
    }
    fs::set_permissions(dir.path().join("client1.pem"), fs::Permissions::from_mode(0o644)).expect("ours");
    let json = dir.json(&["verify", "client", "--server-in", "server.pem", "--in", "client1.pem"]);
    assert!(json["notes"][0].as_str().expect("a note").contains("mode=644"), "{json}");
}

#[test]
fn wrong_usage_and_failure_have_different_exit_codes() {
    let dir = WorkDir::with_identities();
    let client = ["new", "client", "--server-in", "server.pem", "--out", "c.pem"];
    let table: &[(&[&str], &str)] = &[
        (&["new", "client", "--out", "c.pem", "--cn", "x"], "--server-in"),
        (&client, "--cn"),
        (&["--cn", ""], "1 to 64 characters"),
        (&["--cn", "x", "--days", "0"], "1 to 36500"),
        (&["--cn", "x", "--role", "server"], "worker"),
        (&["--cn", "x", "--role", "root"], "worker"),
        (&["--cn", "x", "--namespace", "orders"], "NAME:rw"),
        (&["--cn", "x", "--namespace", "orders:x"], "rights are letters"),
        (&["--cn", "x", "--namespace", ":r"], "1 to 128 bytes"),
        (&["--cn", "x", "--algorithm", "rsa"], "p256"),
        (&["--cn", "x", "--ca-pass", "secret"], "unexpected argument"),
        (&["new", "server", "--out", "ca.pem"], "--ca-out"),
        (&["new", "server", "--out", "s.pem", "--hosts", "a b"], "a host is a DNS name"),
        (&["new", "server"], "--out"),
        (&["revoke", "client", "--server-in", "server.pem"], "HEX-SERIAL"),
        (&["revoke", "client", "--server-in", "server.pem", "xyz"], "hexadecimal"),
        (&["revoke", "client", "--server-in", "server.pem", "00"], "hexadecimal"),
        (&["inspect", "client"], "--in"),
        (&["verify", "client", "--in", "client1.pem"], "--server-in"),
    ];
    for (args, what) in table {
        let args = if args[0] == "--cn" { [&client[..], args].concat() } else { args.to_vec() };
        dir.refused(&args, 2, what);
    }
    assert!(!dir.has("c.pem") && !dir.has("s.pem"));
}
