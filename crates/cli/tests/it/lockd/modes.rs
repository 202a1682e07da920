//! Permissions of the data directory: for its owner alone, under any umask.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use crate::lockd::serve::Running;

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

/// A data directory that an earlier version, or `mkdir`, made readable for all stayed so.
#[test]
fn a_data_directory_that_is_open_to_others_is_tightened_at_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let store = dir.path().join("elsewhere");
    for path in [&data, &store] {
        fs::create_dir(path).expect("made");
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("ours");
    }
    let server = Running::start(&data, &["--store", &format!("disk://{}", store.display())]);
    use_it(&server, &data);
    assert_eq!(wider(&data), Vec::<String>::new());
    assert_eq!(wider(&store), Vec::<String>::new());
}
