//! `lockd store check`: what it finds in sound, torn and damaged stores, and that it changes nothing.

use std::path::Path;

use engine::internals::record::Record;
use kernel::Action;
use serde_json::{Value, json};
use store::{LogStore, LsnRange};

use crate::lockd::dump::files;
use crate::lockd::serve::Running;
use crate::lockd::support::{Ran, TestStore, applied, erase, flip, frames, lockd, record, ticking};

fn check(store: &Path, more: &[&str]) -> Ran {
    lockd(&[&["store", "check", "--store", store.to_str().expect("a plain path")], more].concat())
}

/// The JSON document, and the exit code. Nothing is changed.
fn checked(store: &TestStore) -> (i32, Value) {
    let before = files(Path::new(store.path()));
    let ran = check(Path::new(store.path()), &["--json"]);
    assert_eq!(files(Path::new(store.path())), before, "nothing is changed");
    let document =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{} {}", ran.stdout, ran.stderr));
    (ran.code, document)
}

/// The only finding of a damaged store.
fn damage(store: &TestStore) -> Value {
    let (code, document) = checked(store);
    assert_eq!((code, &document["sound"]), (1, &json!(false)), "{document}");
    let [finding] = document["findings"].as_array().expect("a list").as_slice() else { panic!("{document}") };
    assert_eq!(finding["kind"], "damage");
    finding.clone()
}

/// Runs the command of a finding with `--yes`, and checks that the rest of the log is sound.
fn cut_as_advised(store: TestStore, finding: &Value) {
    let command = finding["cut_command"].as_str().expect("a command").to_string();
    let dir = store.close();
    let words: Vec<&str> = command.split(' ').skip(1).chain(["--yes"]).collect();
    let ran = lockd(&words);
    assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
    assert_eq!(check(dir.path(), &[]).code, 0);
}

#[test]
fn a_sound_store_is_described_shard_by_shard() {
    let store = ticking();
    store.snapshot(0, 2);
    store.log(0).mark_clean_stop().expect("space");
    let (code, document) = checked(&store);
    let bytes = store.segment().metadata().expect("there").len();
    let expected = json!({
        "shard": 0, "floor": 0, "first_batch": 0, "last_batch": 2, "last_lsn": 6, "segments": 1, "bytes": bytes,
        "clean_stop": true, "snapshots": document["shards"][0]["snapshots"], "leases": 5, "documents": 0,
    });
    assert_eq!((code, &document["sound"], &document["findings"]), (0, &json!(true), &json!([])));
    assert_eq!(document["shards"][0], expected);
    let snapshot = &document["shards"][0]["snapshots"][0];
    assert_eq!((&snapshot["next_batch"], &snapshot["readable"]), (&json!(2), &json!(true)));
    assert_eq!(
        (&document["shards"][1]["last_batch"], &document["shards"][1]["segments"]),
        (&json!(null), &json!(0))
    );

    let ran = check(Path::new(store.path()), &[]);
    let line = format!(
        "shard=0 floor=0 first_batch=0 last_batch=2 last_lsn=6 segments=1 bytes={bytes} clean_stop=yes snapshots=2:readable leases=5 documents=0"
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout.lines().next(), Some(line.as_str()));
    assert!(ran.stdout.ends_with(&format!("sound: store={}\n", store.path())), "{}", ran.stdout);
    store.append(0, &[record(7, None, Action::Tick)]);
    assert_eq!(checked(&store).1["shards"][0]["clean_stop"], json!(false), "it was not stopped since");
}

#[test]
fn a_torn_tail_is_reported_and_is_sound() {
    let store = ticking();
    // A batch in several sectors, of which one is missing.
    let ticks: Vec<Record> = (7..100).map(|lsn| record(lsn, None, Action::Tick)).collect();
    store.append(0, &ticks);
    let last = *frames(&store.last_segment()).last().expect("a frame");
    erase(&store.last_segment(), (last + 512).next_multiple_of(512));
    let (code, document) = checked(&store);
    assert_eq!((code, &document["sound"], &document["shards"][0]["last_lsn"]), (0, &json!(true), &json!(6)));
    let torn = &document["findings"][0];
    assert_eq!((&torn["kind"], &torn["shard"], &torn["batch"]), (&json!("torn_tail"), &json!(0), &json!(3)));
    assert_eq!((&torn["file"], &torn["offset"]), (&json!(store.last_segment()), &json!(last)));
    assert_eq!((&torn["first_lsn"], &torn["last_lsn"]), (&json!(7), &json!(99)));
    let text = check(Path::new(store.path()), &[]).stdout;
    assert!(text.contains("torn tail: ") && text.contains("will be cut at the next start"), "{text}");
    assert!(text.contains(&format!("batch=3 lsns=7-99 file={}", store.last_segment().display())), "{text}");
}

#[test]
fn a_flipped_bit_in_the_last_frame_is_damage_with_the_command_that_cuts_it() {
    let store = ticking();
    let last = *frames(&store.last_segment()).last().expect("a frame");
    flip(&store.last_segment(), last + 50);
    let finding = damage(&store);
    assert_eq!((&finding["file"], &finding["offset"]), (&json!(store.last_segment()), &json!(last)));
    assert_eq!((&finding["batch"], &finding["shard"]), (&json!(2), &json!(0)));
    let command =
        format!("lockd store cut --store {} {} {last}", store.path(), store.last_segment().display());
    assert_eq!(finding["cut_command"], json!(command));
    let text = check(Path::new(store.path()), &[]).stdout;
    assert!(text.contains(&format!("\n  {command}\n")) && text.contains("damaged: store="), "{text}");
    cut_as_advised(store, &finding);
}

#[test]
fn a_flipped_bit_in_a_snapshot_is_damage_without_a_cut() {
    let store = ticking();
    let snapshot = store.snapshot(0, 2);
    flip(&snapshot, 40);
    let finding = damage(&store);
    assert_eq!((&finding["file"], &finding["cut_command"]), (&json!(snapshot), &json!(null)));
    assert!(finding["advice"].as_str().expect("text").starts_with("the server starts without"), "{finding}");
    store.log(0).raise_floor(store::Seq(2)).expect("within the log");
    let finding = damage(&store);
    assert!(finding["advice"].as_str().expect("text").contains("the server does not start"), "{finding}");
}

#[test]
fn a_missing_segment_is_damage_with_the_command_that_cuts_before_it() {
    let store = TestStore::new();
    let mut log = store.log(0);
    for batch in 0..60_u64 {
        let ticks: Vec<Record> = (1..=50).map(|n| applied(batch * 50 + n)).collect();
        let payload = Record::encode_batch(kernel::ClockReading::default(), &ticks);
        let lsns = LsnRange::new(batch * 50 + 1, batch * 50 + 50);
        log.append(log.bounds().next, lsns, &payload).expect("space");
    }
    let segments = log.extents();
    assert!(segments.len() > 2, "{segments:?}");
    drop(log);
    let missing = store.segment().with_file_name(format!("{:016x}.seg", segments[1].first.0));
    std::fs::remove_file(missing).expect("there");
    let finding = damage(&store);
    assert_eq!(finding["batch"], json!(segments[1].first.0));
    // The newest snapshot contains the missing batches: after a cut, the server would not start.
    let snapshot = store.snapshot(0, 60);
    assert_eq!(damage(&store)["cut_command"], json!(null));
    std::fs::remove_file(snapshot).expect("there");
    cut_as_advised(store, &finding);
}

#[test]
fn a_log_that_ends_before_its_snapshot_is_damaged() {
    let store = ticking();
    store.snapshot(0, 9);
    assert!(damage(&store)["what"].as_str().expect("text").contains("ends before the newest snapshot"));
}

#[test]
fn a_damaged_store_file_or_map_is_damage() {
    let store = ticking();
    let file = Path::new(store.path()).join("map/1");
    flip(&file, 100);
    assert_eq!(damage(&store)["file"], json!(file));
    flip(&file, 100);
    let file = Path::new(store.path()).join("store");
    flip(&file, 20);
    assert_eq!(damage(&store)["file"], json!(file));
}

#[test]
fn a_store_in_use_is_checked_and_the_default_is_the_one_of_serve() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = Running::start(&dir.path().join("lockd"), &["--mtls=false"]);
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    let output = command.args(["store", "check", "--json"]).env("XDG_DATA_HOME", dir.path()).output();
    let output = output.expect("the binary runs");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &document["sound"]), (Some(0), &json!(true)), "{document}");
    assert_eq!(document["store"], json!(dir.path().join("lockd/store")));
    assert_eq!(document["shards"][0]["clean_stop"], json!(false));
    drop(server);
}

#[test]
fn what_cannot_be_inspected_exits_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let ran = check(&dir.path().join("nowhere"), &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("there is no store here"), "{}", ran.stderr);
    assert_eq!(lockd(&["store", "check", "--store", "s3://bucket"]).code, 2);
    assert_eq!(lockd(&["store", "check", "--store", "pebble://relative"]).code, 2);
    let help = lockd(&["store", "check", "--help"]).stdout;
    assert!(help.contains("Exit codes: 0 the store is sound") && help.contains("Examples:"), "{help}");
}

/// Every file of a store, each with its content.
fn regular_files(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let is_kept = |path: &Path| !path.ends_with("lock") && !path.ends_with("backup-lock");
    files(dir).into_iter().filter(|(path, _)| is_kept(path)).collect()
}

/// The damages that are tried: bytes flipped, the file emptied, the file removed (`None`).
fn damages(path: &Path, bytes: &[u8]) -> Vec<Option<Vec<u8>>> {
    let is_segment = path.extension().is_some_and(|extension| extension == "seg");
    // Behind its frames a segment is preallocated.
    let places = if is_segment { vec![0, 60] } else { vec![0, bytes.len() / 2, bytes.len() - 1] };
    let flipped = places.into_iter().map(|at| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 0x10;
        Some(bytes)
    });
    flipped.chain([Some(Vec::new()), None]).collect()
}

/// Whether a server opens the store.
fn starts(data: &Path) -> bool {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let _entered = runtime.enter();
    let store = lockd_server::backend::store::StoreUrl::disk(data.join("store"));
    let config = lockd_server::Config { mtls: false, store, ..lockd_server::Config::in_directory(data) };
    lockd_server::Server::new(config).is_ok()
}

/// Damages a file of a copy of the store, and compares what the check says with what a start does.
fn assert_check_agrees_with_start(original: &Path, file: &Path, damaged: Option<&[u8]>) {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let copied = std::process::Command::new("cp").arg("-a").args([original, data.as_path()]).status();
    assert!(copied.expect("cp").success());
    let copy = data.join(file);
    match damaged {
        Some(bytes) => std::fs::write(&copy, bytes).expect("writable"),
        None => std::fs::remove_file(&copy).expect("there"),
    }
    let case = format!("{} {:?} bytes", file.display(), damaged.map(<[u8]>::len));
    let ran = check(&data.join("store"), &["--json"]);
    let document: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{case}: {}", ran.stderr));
    let findings = document["findings"].as_array().expect("a list");
    // The mark, a snapshot while there is another one, and the floor of a log that has all its batches, may be missing.
    let is_spare = ["clean-stop", "floor"].iter().any(|name| file.ends_with(name))
        || file.components().any(|part| part.as_os_str() == "snapshot");
    let is_sound = damaged.is_none() && is_spare;
    assert_eq!((ran.code, findings.is_empty()), (i32::from(!is_sound), is_sound), "{case}: {document}");
    let advice = |finding: &Value| finding["advice"].as_str().expect("text").to_string();
    for finding in findings {
        let advice = advice(finding);
        let helps = ["`lockd ", "where it is store/", "checkpoint replaces it"];
        assert!(helps.iter().any(|words| advice.contains(words)), "{case}: {advice}");
        assert!(
            advice.contains("the server starts") || advice.contains("does not start"),
            "{case}: {advice}"
        );
    }
    let is_fatal = findings.iter().any(|finding| advice(finding).contains("does not start"));
    assert_eq!(starts(&data), !is_fatal, "{case}: {document}");
}

/// The check left out what damage costs, and for a lost file `store` it said that there was no store.
#[test]
fn damage_of_every_file_is_found_and_the_check_agrees_with_a_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let original = dir.path().join("data");
    let mut server = Running::start(&original, &["--mtls=false"]);
    let script = r#"set -e
        granted=$(lockd client acquire --ttl 60s orders) && eval "$granted"
        echo '{"cursor": 41}' | lockd client update orders
        granted=$(lockd client acquire --ttl 60s long) && eval "$granted"
        printf '"%0100000d"' 7 | lockd client update long"#;
    assert_eq!(crate::lockd::server::sh(&server.address, script).code, 0);
    server.signal(rustix::process::Signal::TERM);
    server.exit_status();
    let all = regular_files(&original.join("store"));
    let names = ["store", "store.key", "1", "clean-stop"];
    assert!(names.iter().all(|name| all.iter().any(|(path, _)| path.ends_with(name))), "{all:?}");
    assert!(all.iter().any(|(path, _)| path.components().any(|part| part.as_os_str() == "document")));
    damage_all(&original);
}

/// Damages every file of the store in this data directory, one at a time.
fn damage_all(original: &Path) {
    for (path, bytes) in regular_files(&original.join("store")) {
        let name = path.strip_prefix(original).expect("below it");
        for damaged in damages(&path, &bytes) {
            assert_check_agrees_with_start(original, name, damaged.as_deref());
        }
    }
}

#[test]
fn damage_of_snapshots_and_of_the_floor_is_found_and_the_check_agrees_with_a_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let original = dir.path().join("data");
    std::fs::create_dir(&original).expect("a directory");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&original, private).expect("ours");
    let store = ticking();
    store.snapshot(0, 1);
    store.snapshot(0, 2);
    store.log(0).raise_floor(::store::Seq(1)).expect("within the log");
    crate::lockd::runbooks::copy_private(store.close().path(), &original.join("store"));
    let all = regular_files(&original.join("store"));
    let names = ["floor", "0000000000000001", "0000000000000002"];
    assert!(names.iter().all(|name| all.iter().any(|(path, _)| path.ends_with(name))));
    assert_eq!(check(&original.join("store"), &[]).code, 0);
    damage_all(&original);
}
