//! Which identity file a client uses when none is named.

use std::path::Path;
use std::process::{Command, Output};

use crate::lockd::serve::Running;

/// A client in `cwd`, of a user whose data directory is `data_home/lockd`.
fn acquire(
    cwd: &Path,
    data_home: &Path,
    server: &Running,
    change: impl FnOnce(&mut Command) -> &mut Command,
) -> (Option<i32>, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["client", "--server", &server.address, "--timeout", "5s"]);
    command.current_dir(cwd).env("XDG_DATA_HOME", data_home);
    change(&mut command);
    let Output { status, stdout, stderr } = command.args(["acquire", "orders"]).output().expect("it runs");
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

/// An identity file brings its own CA, the only thing by which a client trusts a server, and a `client*.pem` in the current
/// directory went before the user's own: in a cloned repository with a `client.pem` in it, a client took its lease from a
/// rogue server.
#[test]
fn an_identity_file_in_the_current_directory_is_not_used_unless_it_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let (home, clone, rogue_data) =
        (dir.path().join("home"), dir.path().join("clone"), dir.path().join("rogue"));
    let own = Running::start(&home.join("lockd"), &[]);
    let rogue = Running::start(&rogue_data, &[]);
    std::fs::create_dir(&clone).expect("made");
    std::fs::copy(rogue_data.join("client.pem"), clone.join("client.pem")).expect("copied");

    let (code, output) = acquire(&clone, &home, &rogue, |command| command);
    assert_ne!(code, Some(0), "the rogue server is not trusted: {output}");
    assert!(!output.contains("export LOCKD_CLIENT_LEASE_ID"), "{output}");
    let (code, output) = acquire(&clone, &home, &own, |command| command);
    assert_eq!(code, Some(0), "the user's own server is: {output}");

    // Without any in the data directory there is none.
    let empty = dir.path().join("empty");
    let (code, output) = acquire(&clone, &empty, &rogue, |command| command);
    assert_eq!(code, Some(2), "{output}");
    assert!(
        output.contains("--identity") && output.contains(&empty.join("lockd").display().to_string()),
        "{output}"
    );

    // A file that is named is used, wherever it is.
    let (code, output) = acquire(&clone, &home, &rogue, |command| command.args(["--identity", "client.pem"]));
    assert_eq!(code, Some(0), "{output}");
    let (code, output) =
        acquire(&clone, &home, &rogue, |command| command.env("LOCKD_CLIENT_IDENTITY", "client.pem"));
    assert_eq!(code, Some(10), "held by the command before: {output}");
}
