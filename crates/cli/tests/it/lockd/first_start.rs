//! The first start: the CA apart from the server's files, and the warnings until it is moved away.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::lockd::serve::Running;
use crate::lockd::support::lockd;

/// The CA's key stayed beside the server, readable by it: an attacker in the server process could issue operators, and
/// one warning at the first start was all that said so.
#[test]
fn the_ca_is_apart_and_each_start_warns_until_it_is_moved_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut command = String::new();
    for _ in 0..2 {
        let mut server = Running::start_on_terminal(&data);
        server.log.wait_for("try it:");
        let line =
            server.log.seen().lines().find(|line| line.contains("run: mv ")).expect("a warning").to_string();
        assert!(line.contains("WARN") && line.contains("the server can read the CA's key"), "{line}");
        command =
            line.split("run: ").nth(1).expect("a command").split(" file=").next().expect("text").to_string();
    }
    let mode = |name: &str| fs::metadata(data.join(name)).expect(name).permissions().mode() & 0o777;
    assert_eq!((mode("ca"), mode("ca/ca.pem"), mode("ca/issued")), (0o700, 0o600, 0o600));
    assert!(!data.join("ca.pem").exists());

    let moved = Command::new("sh").args(["-c", &command]).env("HOME", dir.path()).status().expect("a shell");
    assert!(moved.success(), "{command}");
    let mut server = Running::start_on_terminal(&data);
    server.log.wait_for("try it:");
    assert!(!server.log.seen().contains("CA's key"), "{}", server.log.seen());
    let ca = dir.path().join("lockd-ca/ca.pem");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command
        .args(["auth", "new", "client", "--cn", "ada", "--ca-in"])
        .arg(&ca)
        .arg("--out")
        .arg(dir.path().join("ada.pem"));
    assert!(command.output().expect("it runs").status.success());
    let mut connection = server.connect(&dir.path().join("ada.pem"));
    assert_eq!(connection.ask("GET", "/v1/leases", "").expect("a response").0, 200);
}

/// The key is found without naming it, in the place where the first start puts it; and what the first start issued is
/// recorded.
#[test]
fn the_ca_of_a_first_start_issues_lists_and_revokes() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(Running::start(&data, &[]));
    let auth = |words: &str| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        let output = command.arg("auth").args(words.split(' ')).current_dir(&data).output().expect("it runs");
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    auth("new client --server-in server.pem --out ada.pem --cn ada");
    auth("revoke client --server-in server.pem --cn ada");
    auth("renew --in client.pem");
    let listed = auth("list --server-in server.pem");
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let shown: Vec<(&str, &str)> = rows[1..].iter().map(|row| (row[1], row[row.len() - 1])).collect();
    let expected = [
        ("lockd", "valid"),
        ("lockd", "valid"),
        ("operator", "valid"),
        ("ada", "revoked"),
        ("operator", "valid"),
    ];
    assert_eq!(shown, expected, "{listed}");
}

/// A lost `server.pem` was answered with "the file exists", about the CA's file, and an advice that `serve` does not take.
#[test]
fn a_missing_server_file_is_not_replaced_by_a_second_ca() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(Running::start(&data, &[]));
    fs::remove_file(data.join("server.pem")).expect("lost");
    let serve = || {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .env("XDG_CONFIG_HOME", &data);
        command
    };
    let refused = serve().output().expect("it runs");
    let said = String::from_utf8(refused.stderr).expect("text");
    assert_eq!(refused.status.code(), Some(1), "{said}");
    let advice = said.split('`').nth(1).unwrap_or_else(|| panic!("{said}"));
    let words: Vec<&str> = advice.split(' ').skip(1).collect();
    let made = Command::new(assert_cmd::cargo::cargo_bin!("lockd")).args(words).output().expect("it runs");
    assert!(made.status.success(), "{advice}");
    let server = Running::start(&data, &[]);
    let mut connection = server.connect(&data.join("client.pem"));
    assert_eq!(
        connection.ask("GET", "/v1/leases", "").expect("a response").0,
        200,
        "the clients are still trusted"
    );
}

/// The CA was moved away, as the log advises, and `server.pem` was lost: the message was "the file exists", about the
/// client's file, with the advice to use --force, which `serve` does not take.
#[test]
fn a_missing_server_file_beside_a_client_is_told_as_that() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(Running::start(&data, &[]));
    fs::remove_file(data.join("server.pem")).expect("lost");
    fs::rename(data.join("ca"), dir.path().join("lockd-ca")).expect("moved away");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().expect("a path")];
    let refused = lockd(&serve);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(!refused.stderr.contains("--force"), "{}", refused.stderr);
    let advice = refused.stderr.split('`').nth(1).unwrap_or_else(|| panic!("{}", refused.stderr));
    let ca = dir.path().join("lockd-ca/ca.pem");
    let words = advice.split(' ').skip(1);
    let words = words.map(|word| if word == "CA" { ca.to_str().expect("a path") } else { word });
    let made = lockd(&words.collect::<Vec<_>>());
    assert_eq!(made.code, 0, "{advice}: {}", made.stderr);
    let server = Running::start(&data, &[]);
    let mut connection = server.connect(&data.join("client.pem"));
    assert_eq!(connection.ask("GET", "/v1/leases", "").expect("a response").0, 200);
}

/// A server with an identity of its own told its user to use `client.pem`, a file that nobody had made. And on a terminal
/// it ended in a panic of its log, which wanted colours: nothing but the lines of the log and the command may be there.
#[test]
fn a_server_on_a_terminal_names_a_client_file_only_if_there_is_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let mut server = Running::start_on_terminal(&first);
    let line = server.log.wait_for("try it: ");
    assert!(line.contains(&format!("--identity {}", first.join("client.pem").display())), "{line}");
    let is_expected = |line: &str| line.starts_with("20") || line.starts_with("lockd: try it");
    let seen = server.log.seen().to_string();
    assert!(seen.lines().filter(|line| !line.trim().is_empty()).all(is_expected), "{seen}");
    drop(server);
    let bundle = first.join("server.pem");
    let mut server =
        Running::start_on_terminal_with(&second, &["--bundle", bundle.to_str().expect("a path")]);
    let line = server.log.wait_for("try it, with the identity file of a client: ");
    assert!(line.contains("--identity FILE --key orders"), "{line}");
}
