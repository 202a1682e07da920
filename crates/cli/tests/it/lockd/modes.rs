//! Permissions of the data directory: for its owner alone, under any umask.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::lockd::serve::Running;
use crate::lockd::support::{Ran, lockd};
use crate::running::Running as Ended;

/// Every directory at or below `path` whose mode is not 0700, and every other file whose mode is not 0600.
fn wider(path: &Path) -> Vec<String> {
    let metadata = fs::symlink_metadata(path).expect("it is there");
    let mode = metadata.permissions().mode() & 0o7777;
    let wanted = if metadata.is_dir() { 0o700 } else { 0o600 };
    let mut found = Vec::new();
    if mode != wanted {
        found.push(format!("{mode:o} {}", path.display()));
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("readable") {
            found.extend(wider(&entry.expect("readable").path()));
        }
    }
    found
}

/// Makes everything that a server writes: a lease, a document in the log, a document in a file of its own.
fn use_it(server: &Running, data: &Path) {
    let mut connection = server.connect(&data.join("client.pem"));
    let (status, lease) =
        connection.ask("POST", "/v1/acquire", r#"{"key":"orders","ttl_seconds":60}"#).expect("a response");
    assert_eq!(status, 200, "{lease}");
    let lease: serde_json::Value = serde_json::from_str(&lease).expect("JSON");
    let credential = lease["lease_id"].as_str().expect("text");
    for length in [10, 1 << 20] {
        let document = format!("\"{}\"", "x".repeat(length));
        let headers = format!("x-lease-id: {credential}\r\n");
        let response = connection.send("POST", "/v1/update_state?key=orders", &headers, &document);
        assert_eq!(response.expect("a response").0, 200);
    }
}

/// With the usual umask 022 the data directory and the store were 0755, log segments and blobs 0644: every local user could
/// read the documents, in clear, from the log. Only identity files and the store's key were 0600.
#[test]
fn everything_in_the_data_directory_is_for_its_owner_alone_whatever_the_umask() {
    for umask in ["000", "022"] {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().join("new/data");
        let socket = data.join("socket");
        let server = Running::start_with_umask(umask, &data, &["--unix", socket.to_str().expect("text")]);
        use_it(&server, &data);
        assert!(fs::metadata(&socket).expect("it listens").file_type().is_socket());
        let blobs = fs::read_dir(data.join("store/blob")).expect("a store").count();
        assert!(blobs > 1, "a blob was written, beside the directory of uploads");
        assert_eq!(wider(&data), Vec::<String>::new(), "umask {umask}");
    }
}

/// The exit code and messages of a server that does not start.
fn refused_start(data: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data).args(args);
    let child = command.env("XDG_CONFIG_HOME", data).stderr(Stdio::piped()).spawn().expect("the binary runs");
    Ended::new(child).ended()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
}

/// A data directory, an identity file or a store key that every user could read was used without a word.
#[test]
fn what_every_user_may_access_is_refused_at_start_with_the_command_that_helps() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(Running::start(&data, &[]));
    for (path, world, private) in [
        (data.clone(), 0o701, "700"),
        (data.join("store"), 0o755, "700"),
        (data.join("server.pem"), 0o644, "600"),
        (data.join("store/store.key"), 0o604, "600"),
    ] {
        set_mode(&path, world);
        let (code, text) = refused_start(&data, &[]);
        let advice = format!("run `chmod {private} {}`", path.display());
        assert!(code == Some(1) && text.contains(&advice), "{code:?} {text}");
        // The command that is advised is the one that helps.
        let fixed = Command::new("sh").args(["-c", &format!("chmod {private} {}", path.display())]).status();
        assert!(fixed.expect("a shell").success());
    }
    // A group is warned of.
    set_mode(&data.join("server.pem"), 0o640);
    let server = Running::start(&data, &[]);
    assert!(server.log.seen().contains("a group of users may access it"), "{}", server.log.seen());
    drop(server);
    set_mode(&data.join("server.pem"), 0o600);
    // An empty directory, as `mkdir` makes it, becomes private.
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).expect("made");
    set_mode(&empty, 0o755);
    let server = Running::start(&empty, &[]);
    use_it(&server, &empty);
    assert_eq!(wider(&empty), Vec::<String>::new());
}

/// A client's identity file, with its private key, was used however many users could read it.
#[test]
fn a_clients_identity_file_that_every_user_may_read_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let server = Running::start(&data, &["--store", "mem://"]);
    let identity = data.join("client.pem");
    let run = |words: &[&str], command: &[&str]| {
        let mut lockd = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
        lockd.args(words).args(["--server", &server.address, "--identity"]).arg(&identity).args(command);
        let output = lockd.output().expect("the binary runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let agent = ["run", "--intent", "MUTATES:KEY:k"];
    for (words, command) in [(&["client", "list"][..], &[][..]), (&agent[..], &["--", "true"][..])] {
        set_mode(&identity, 0o600);
        assert_eq!(run(words, command), (Some(0), String::new()));
        set_mode(&identity, 0o640);
        let (code, text) = run(words, command);
        let warnings = text.matches("warning: a group of users may access it").count();
        assert_eq!((code, warnings), (Some(0), 1), "{text}");
        set_mode(&identity, 0o644);
        let (code, text) = run(words, command);
        let advice = format!("run `chmod 600 {}`: mode=0644", identity.display());
        assert!(code == Some(2) && text.contains(&advice), "{code:?} {text}");
    }
}

/// `--unix PATH` removed whatever was at PATH, and the socket had the mode that the umask left: with umask 0 every user was
/// an operator.
#[test]
fn a_unix_socket_is_private_and_replaces_nothing_but_a_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let at = |name: &str| dir.path().join(name).to_str().expect("text").to_string();
    fs::write(at("precious"), "precious").expect("written");
    std::os::unix::fs::symlink("precious", at("link")).expect("linked");
    fs::create_dir(at("directory")).expect("made");
    for name in ["precious", "link", "directory"] {
        let (code, text) = refused_start(&data, &["--store", "mem://", "--unix", &at(name)]);
        assert!(code == Some(1) && text.contains(&at(name)), "{name}: {code:?} {text}");
    }
    assert_eq!(fs::read_to_string(at("link")).expect("there"), "precious");
    assert!(fs::metadata(at("directory")).expect("there").is_dir());
    let mode = || fs::metadata(at("socket")).expect("it listens").permissions().mode() & 0o7777;
    for _ in 0..2 {
        // The second time over the socket of a server that was killed.
        let _server =
            Running::start_with_umask("000", &data, &["--store", "mem://", "--unix", &at("socket")]);
        assert_eq!(mode(), 0o600);
    }
}

/// A store file with a valid checksum and 4,294,967,295 shards: `store dump` did not end, and `serve` created logs until
/// the disk was full. A link in the place of `lock` had its target emptied.
#[test]
fn a_store_directory_that_was_tampered_with_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(Running::start(&data, &[]));
    let store = data.join("store");
    let original = fs::read(store.join("store")).expect("a store");
    let url = format!("disk://{}", store.display());
    // Both versions of the file.
    for length in [original.len(), 36] {
        let mut bytes = original[..length].to_vec();
        bytes[8] = if length == 36 { 1 } else { 2 };
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..length - 4]).to_le_bytes();
        bytes[length - 4..].copy_from_slice(&crc);
        fs::write(store.join("store"), &bytes).expect("writable");
        let (code, text) = refused_start(&data, &[]);
        assert!(code == Some(1) && text.contains("more than a store has"), "{code:?} {text}");
        for verb in ["dump", "check"] {
            let Ran { code, stdout, stderr } = lockd(&["store", verb, "--store", &url]);
            let text = stdout + &stderr;
            assert!(code != 0 && text.contains("more than a store has"), "{verb}: {code} {text}");
        }
    }
    fs::write(store.join("store"), original).expect("writable");
    let target = dir.path().join("target");
    fs::write(&target, "precious").expect("written");
    fs::remove_file(store.join("lock")).expect("there");
    std::os::unix::fs::symlink(&target, store.join("lock")).expect("linked");
    assert_eq!(refused_start(&data, &[]).0, Some(1));
    assert_eq!(fs::read_to_string(&target).expect("there"), "precious");
}
