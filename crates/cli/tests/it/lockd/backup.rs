//! `lockd backup`, `lockd restore`, `lockd store export` and `import`: as an operator uses them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::lockd::serve::Running;
use crate::lockd::server::sh;
use crate::lockd::support::{Ran, lockd};
use crate::running::until;

/// A server in its data directory, with documents: one in the log, one in a blob.
fn server(data: &Path) -> Running {
    let server = Running::start(data, &["--mtls=false"]);
    let ran = sh(
        &server.address,
        r#"set -e
        granted=$(lockd client acquire --ttl 60s orders) && eval "$granted"
        echo '{"cursor": 41}' | lockd client update orders
        granted=$(lockd client acquire --ttl 60s long) && eval "$granted"
        printf '"%0100000d"' 7 | lockd client update long"#,
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    server
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// The whole way: a backup of a running server, a restore, a server on it with the documents, and higher tokens.
#[test]
fn a_running_server_is_backed_up_and_restored_with_its_documents() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, archive) = (dir.path().join("data"), dir.path().join("b.tar"));
    let old = server(&data);
    let taken = json(&lockd(&["backup", "--store", path(&data), "--to", path(&archive), "--output", "json"]));
    assert_eq!((&taken["documents"], &taken["leases"]), (&Value::from(2), &Value::from(2)));
    assert_eq!(std::fs::metadata(&archive).expect("there").permissions().mode() & 0o777, 0o600);
    let acquire = "lockd client acquire --ttl 60s --output json other | sed 's/.*\"fencing_token\":\\([0-9]*\\).*/\\1/'";
    let issued: u64 = sh(&old.address, acquire).stdout.trim().parse().expect("a token");
    drop(old);
    let again = dir.path().join("again");
    std::fs::create_dir(&again).expect("a directory");
    std::fs::set_permissions(&again, std::fs::Permissions::from_mode(0o700)).expect("ours");
    let restored = lockd(&["restore", "--from", path(&archive), "--store", path(&again.join("store"))]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    for words in ["restored and verified", "keep the old server stopped", "lockd serve --store disk://"] {
        assert!(restored.stdout.contains(words), "{words}: {}", restored.stdout);
    }
    let new = Running::start(&again, &["--mtls=false"]);
    let document =
        sh(&new.address, "lockd client get --public orders && lockd client get --public long | wc -c");
    assert!(
        document.stdout.starts_with("{\"cursor\":41}") && document.stdout.trim().ends_with("100002"),
        "{}",
        document.stdout
    );
    let after: u64 = sh(&new.address, acquire).stdout.trim().parse().expect("a token");
    assert!(after > issued, "{after} {issued}");
}

#[test]
fn a_drill_passes_beside_a_running_server_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, scratch) = (dir.path().join("data"), dir.path().join("scratch"));
    let _server = server(&data);
    std::fs::create_dir(&scratch).expect("a directory");
    let drill = ["backup", "drill", "--store", path(&data), "--in", path(&scratch), "--output", "json"];
    let passed = json(&lockd(&drill));
    assert!(passed["token"].as_u64() > passed["last_lsn"].as_u64(), "{passed}");
    assert_eq!(std::fs::read_dir(&scratch).expect("there").count(), 0);
}

/// A backup that is killed leaves a name that nothing reads, and the server deletes again.
#[test]
fn a_killed_backup_leaves_a_partial_name_and_no_lock() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, to) = (dir.path().join("data"), dir.path().join("backup"));
    let server = server(&data);
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    // Slow enough to be killed in the middle.
    command.args(["backup", "--store", path(&data), "--to", path(&to), "--rate", "1000"]);
    let mut slow = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program");
    let partial = || {
        let names = std::fs::read_dir(dir.path()).expect("there").filter_map(Result::ok);
        names.filter(|entry| entry.file_name().to_string_lossy().contains(".partial-")).count()
    };
    until("the copy has begun", || partial() == 1);
    let lock = std::fs::File::open(data.join("store/backup-lock")).expect("the server made it");
    until("the store is held", || lock.try_lock().map(|()| lock.unlock().expect("locked")).is_err());
    slow.kill().expect("it runs");
    slow.wait().expect("a child");
    assert!(!to.exists() && partial() == 1);
    lock.try_lock().expect("the lock ended with the process");
    drop(lock);
    assert_eq!(lockd(&["backup", "--store", path(&data), "--to", path(&to)]).code, 0);
    drop(server);
}

#[test]
fn wrong_usage_exits_2_and_damage_exits_1() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, to) = (dir.path().join("data"), dir.path().join("backup"));
    drop(server(&data));
    let backup = |to: &Path| lockd(&["backup", "--store", path(&data), "--to", path(to)]);
    assert_eq!(backup(&to).code, 0);
    let again = backup(&to);
    assert!(again.code == 2 && again.stderr.contains("nothing is overwritten"), "{}", again.stderr);
    assert_eq!(lockd(&["backup"]).code, 2);
    assert_eq!(lockd(&["backup", "--store", path(&data), "--to", path(&to), "--rate", "0"]).code, 2);
    let timeout =
        lockd(&["backup", "--store", path(&data), "--to", path(&dir.path().join("t")), "--timeout", "0s"]);
    assert!(timeout.code == 1 && timeout.stderr.contains("--timeout"), "{}", timeout.stderr);
    let none = lockd(&["backup", "--store", path(dir.path()), "--to", path(&dir.path().join("t"))]);
    assert!(none.code == 1 && none.stderr.contains("there is no store here"), "{}", none.stderr);
    let segment = to.join("store/log/0/0000000000000000.seg");
    let mut bytes = std::fs::read(&segment).expect("there");
    bytes[100] ^= 1;
    std::fs::write(&segment, bytes).expect("writable");
    let verify = lockd(&["backup", "verify", path(&to)]);
    assert!(verify.code == 1 && verify.stderr.contains("does not match its hash"), "{}", verify.stderr);
    let target = dir.path().join("target");
    assert_eq!(lockd(&["restore", "--from", path(&to), "--store", path(&target)]).code, 1);
    assert!(!target.exists());
    let restore = lockd(&["restore", "--from", path(&to), "--store", path(&data)]);
    assert!(restore.code == 2 && restore.stderr.contains("not empty"), "{}", restore.stderr);
}

#[test]
fn documents_are_exported_and_imported_into_more_shards() {
    let dir = tempfile::tempdir().expect("a directory");
    let (data, new) = (dir.path().join("data"), dir.path().join("new"));
    drop(server(&data));
    let script = format!(
        "lockd store export --store {} | lockd store import --from - --store {}/store --shards 4 --output json",
        data.display(),
        new.display()
    );
    std::fs::create_dir(&new).expect("a directory");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o700)).expect("ours");
    let imported = json(&sh("", &script));
    assert_eq!((&imported["documents"], &imported["leases_ignored"]), (&Value::from(2), &Value::from(2)));
    let server = Running::start(&new, &["--mtls=false"]);
    let document = sh(&server.address, "lockd client get --public orders; lockd client describe orders");
    assert!(
        document.stdout.contains("{\"cursor\":41}") && document.stdout.contains("version=1"),
        "{}",
        document.stdout
    );
    let file = dir.path().join("e.jsonl");
    let export = || lockd(&["store", "export", "--store", path(&data), "--to", path(&file)]);
    assert_eq!((export().code, export().code), (0, 2), "nothing is overwritten");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
}

/// `store check` read frames and snapshots only: a store whose documents were gone was called sound.
#[test]
fn a_check_finds_damaged_documents_and_a_missing_key_and_says_what_they_cost() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(server(&data));
    let check = || {
        let ran = lockd(&["store", "check", "--store", path(&data), "--json"]);
        (ran.code, serde_json::from_str::<Value>(&ran.stdout).expect("JSON"))
    };
    let (code, sound) = check();
    assert_eq!(
        (code, &sound["shards"][0]["documents"], &sound["shards"][0]["leases"]),
        (0, &2.into(), &2.into())
    );
    let blobs = std::fs::read_dir(data.join("store/blob/by-name/document/0")).expect("there");
    let blob = blobs.map(|entry| entry.expect("readable").path()).next().expect("a blob");
    let whole = std::fs::read(&blob).expect("readable");
    let mut damaged = whole.clone();
    damaged[5] ^= 1;
    std::fs::write(&blob, damaged).expect("writable");
    let (code, report) = check();
    let finding = &report["findings"][0];
    assert_eq!(
        (code, finding["key"].as_str(), finding["version"].as_u64()),
        (1, Some("long"), Some(1)),
        "{report}"
    );
    assert_eq!(finding["file"], Value::from(path(&blob)));
    assert!(finding["advice"].as_str().expect("text").contains("lockd client update"), "{finding}");
    std::fs::remove_file(&blob).expect("there");
    assert!(check().1["findings"][0]["what"].as_str().expect("text").contains("its blob is missing"));
    std::fs::write(&blob, whole).expect("writable");
    std::fs::remove_file(data.join("store/store.key")).expect("there");
    let (code, report) = check();
    let finding = &report["findings"][0];
    assert_eq!((code, finding["what"].as_str()), (1, Some("the store key is missing")), "{report}");
    assert!(finding["advice"].as_str().expect("text").contains("store/store.key"), "{finding}");
}

#[test]
fn a_slow_backup_shows_a_progress_bar_on_a_terminal_and_nowhere_else() {
    use std::io::Read as _;
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    drop(server(&data));
    let (mut reader, terminal) = crate::terminal::open();
    let to = dir.path().join("backup");
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["backup", "--store", path(&data), "--to", path(&to), "--rate", "30000"]);
    let mut slow = command.stdout(Stdio::null()).stderr(terminal).spawn().expect("the program");
    drop(command);
    let (mut seen, mut part) = (String::new(), [0; 4096]);
    while !(seen.contains("copying ") && seen.contains("iB/")) {
        let read = reader.read(&mut part).expect("a bar before the end");
        seen.push_str(&String::from_utf8_lossy(&part[..read]));
    }
    slow.kill().expect("it runs");
    slow.wait().expect("a child");
    let piped = lockd(&["backup", "--store", path(&data), "--to", path(&to)]);
    assert_eq!((piped.code, piped.stderr.as_str()), (0, ""));
}

/// The sources below a directory, without comments, with continued strings joined.
fn sources(dir: &Path) -> Vec<(std::path::PathBuf, String)> {
    let mut found = Vec::new();
    for path in std::fs::read_dir(dir).expect("sources").map(|entry| entry.expect("readable").path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            let text = std::fs::read_to_string(&path).expect("text");
            let code: Vec<&str> =
                text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
            found.push((path, code.join("\n").replace("\\\n", "")));
        }
    }
    found
}

/// Seven messages asked for a backup, and no document said how to make or to restore one.
#[test]
fn every_message_that_asks_for_a_backup_names_the_command_or_the_file() {
    let mut messages = 0;
    for krate in ["backup", "cli", "engine", "server", "store"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(krate).join("src");
        for (path, text) in sources(&dir) {
            for (at, words) in
                text.match_indices("from a backup").chain(text.match_indices("restore a backup"))
            {
                let rest: String = text[at + words.len()..].chars().take(120).collect();
                let names = ["`lockd restore`", "where it is store/"].iter().any(|name| rest.contains(name));
                assert!(names, "{}: {words}{rest}", path.display());
                messages += 1;
            }
        }
    }
    assert!(messages >= 15, "only {messages} were found");
}
