//! `lockd store dump`: reading live, torn and damaged logs without changing them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine::internals::decider::Decider;
use engine::internals::record::Record;
use engine::{Clock, Origin, TenureConfig};
use kernel::{Action, Kernel, Limits, Outcome, Span, Store};
use sim::fixture::{grant, identity, key};
use store::{LogStore, LsnRange};

use crate::lockd::serve::Running;
use crate::lockd::support::{TestStore, erase, flip, frames, lockd, record, ticking};

/// Every file below a directory, with its content.
pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("there").map(|entry| entry.expect("readable").path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else {
            found.insert(entry.clone(), std::fs::read(&entry).expect("readable"));
        }
    }
    found
}

struct StoppedClock;

impl Clock for StoppedClock {
    fn boot_clock(&self) -> Span {
        Span(0)
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        1_800_000_000_000_000
    }
}

#[test]
fn a_log_can_be_read_while_the_engine_has_the_store_open() {
    let store = TestStore::new();
    let mut log = store.log(1);
    let opening = TenureConfig {
        store: Store { shard: kernel::Shard(1), shards: 2, hash_seed: 9 },
        writer: 3,
        limits: Limits::default(),
        slots: kernel::Slots::ALL,
    };
    let mut decider = Decider::open(Kernel::new(), log.bounds().next, Box::new(StoppedClock), &opening)
        .expect("a right clock");
    let acquire = kernel::Command::by(&identity("ada"), Action::Acquire(grant(key("k"), Span(500))));
    assert!(matches!(decider.decide(&acquire, &Origin::default(), None), Outcome::Applied(..)));
    let sealed = decider.seal().expect("two records");
    log.append(sealed.seq, sealed.lsns, &sealed.payload).expect("room");

    let before = files(Path::new(store.path()));
    let ran = store.dump(&["--shard", "1"]);
    let said: Vec<_> =
        ran.lines().iter().map(|line| (line["shard"].clone(), line["action"].clone())).collect();
    assert_eq!(said, [(1.into(), "open".into()), (1.into(), "acquire".into())]);
    assert_eq!(ran.lsns(), [sealed.lsns.first.0, sealed.lsns.last.0]);
    assert_eq!(files(Path::new(store.path())), before, "nothing is touched");
}

#[test]
fn a_store_is_named_by_a_path_or_an_address_and_all_shards_are_read() {
    let store = ticking();
    store.append(1, &[record(2, None, Action::Tick)]);
    // `serve` accepts `pebble` as well.
    let addresses = ["disk", "pebble"].map(|scheme| format!("{scheme}://{}", store.path()));
    for name in [store.path(), &addresses[0], &addresses[1]] {
        let ran = lockd(&["store", "dump", "--store", name]);
        assert_eq!((ran.code, ran.lsns()), (0, vec![1, 2, 3, 4, 5, 6, 2]), "{}", ran.stderr);
    }
    assert_eq!(store.dump(&["--shard", "1"]).lsns(), [2]);
}

#[test]
fn an_empty_store_has_no_records() {
    let store = TestStore::new();
    let ran = store.dump(&[]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""));
    assert!(!Path::new(store.path()).join("log").exists(), "nothing is made");
}

#[test]
fn only_the_records_between_two_lsns_are_printed() {
    let store = ticking();
    assert_eq!(store.dump(&["--from-lsn", "4"]).lsns(), [4, 5, 6]);
    assert_eq!(store.dump(&["--to-lsn", "3"]).lsns(), [1, 2, 3]);
    assert_eq!(store.dump(&["--from-lsn", "2", "--to-lsn", "2"]).lsns(), [2]);
    assert_eq!(store.dump(&["--from-lsn", "7"]).lsns(), [0; 0]);
}

#[test]
fn a_torn_tail_is_a_note_and_no_failure() {
    let store = ticking();
    // A batch in several sectors, of which one is missing.
    let ticks: Vec<Record> = (7..100).map(|lsn| record(lsn, None, Action::Tick)).collect();
    store.append(0, &ticks);
    let last = *frames(&store.last_segment()).last().expect("a frame");
    erase(&store.last_segment(), (last + 512).next_multiple_of(512));
    let before = files(Path::new(store.path()));
    let ran = store.dump(&[]);
    assert_eq!((ran.code, ran.lsns()), (0, vec![1, 2, 3, 4, 5, 6]));
    let place = format!("seq=3 lsns=7-99 file={} offset={last}", store.last_segment().display());
    assert!(ran.stderr.starts_with("lockd: note: ") && ran.stderr.contains(&place), "{}", ran.stderr);
    assert_eq!(files(Path::new(store.path())), before, "it is not cut off");
}

#[test]
fn damage_before_the_tail_fails_with_file_and_offset_after_the_valid_records() {
    let store = ticking();
    let places = frames(&store.segment());
    flip(&store.segment(), places[1] + 50);
    let ran = store.dump(&[]);
    assert_eq!((ran.code, ran.lsns()), (1, vec![1, 2]));
    let place = format!("file={} offset={}", store.segment().display(), places[1]);
    assert!(ran.stderr.contains(&place), "{}", ran.stderr);
}

#[test]
fn a_batch_that_holds_no_records_fails_with_its_number() {
    let store = ticking();
    let mut log = store.log(0);
    log.append(log.bounds().next, LsnRange::new(7, 7), b"not records").expect("room");
    let ran = store.dump(&[]);
    assert_eq!((ran.code, ran.lsns().len()), (1, 6));
    assert!(ran.stderr.contains("shard=0 seq=3"), "{}", ran.stderr);
}

#[test]
fn where_there_is_no_store_it_says_so_and_makes_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nowhere");
    let ran = lockd(&["store", "dump", "--store", path.to_str().expect("plain")]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("there is no store here"), "{}", ran.stderr);
    assert!(!path.exists());
    let ran = ticking().dump(&["--shard", "2"]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("no such shard: shard=2 shards=2"), "{}", ran.stderr);
}

#[test]
fn wrong_usage_exits_2() {
    let wrong: [&[&str]; 6] = [
        &[],
        &["store"],
        &["store", "dump", "--store", "s3://"],
        &["store", "dump", "--store", "disk://relative"],
        &["store", "dump", "--store", "/x", "--from-lsn", "many"],
        &["store", "dump", "--store", "/x", "--from-lsn", "5", "--to-lsn", "4"],
    ];
    for args in wrong {
        assert_eq!(lockd(args).code, 2, "{args:?}");
    }
    let help = lockd(&["store", "dump", "--help"]);
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("Example:"), "{}", help.stdout);
}

/// `lockd store dump … | head -1`: the reader closes the pipe long before the end.
#[test]
fn a_closed_pipe_ends_it_silently() {
    let store = TestStore::new();
    for batch in 0..1000_u64 {
        let ticks: Vec<_> = (1..=10).map(|n| record(batch * 10 + n, None, Action::Tick)).collect();
        store.append(0, &ticks);
    }
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("lockd"))
        .args(["store", "dump", "--store", store.path()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert!(line.contains("\"lsn\":1,"), "{line}");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]));
}

/// `X-Correlation-Id: job-4711` was stored as a hash that nothing documented: its records could not be found again.
#[test]
fn the_records_of_a_request_are_found_by_the_correlation_id_that_the_client_sent() {
    let data = tempfile::tempdir().expect("a directory");
    let server = Running::start(data.path(), &[]);
    let long = "x".repeat(256);
    let ids = [
        "job-4711",
        "a",
        " ~!\"'$",
        "0123456789abcdef0123456789abcdef",
        "FFFFFFFF-89ab-cdef-0123-456789abcdef",
        "00000000000000000000000000000000",
        long.as_str(),
    ];
    let mut connection = server.connect(&data.path().join("client.pem"));
    connection.ask("POST", "/v1/acquire", r#"{"key":"without"}"#).expect("a response");
    for (n, id) in ids.iter().enumerate() {
        // A header loses the spaces around it.
        let header = format!("x-correlation-id: {}\r\n", id.trim());
        let body = format!("{{\"key\":\"k{n}\"}}");
        let (status, reply) = connection.send("POST", "/v1/acquire", &header, &body).expect("a response");
        assert_eq!(status, 200, "{reply}");
    }
    let store = data.path().join("store");
    let store = store.to_str().expect("a plain path");
    for (n, id) in ids.iter().enumerate() {
        let ran = lockd(&["store", "dump", "--store", store, "--correlation", id.trim()]);
        let lines = ran.lines();
        assert_eq!((ran.code, lines.len()), (0, 1), "{id}: {}{}", ran.stdout, ran.stderr);
        let resource = &lines[0]["fields"]["members"][0]["resource"];
        assert_eq!(resource.as_str(), Some(format!("KEY:k{n}").as_str()), "{id}");
        // What the dump shows is accepted as well.
        let shown = lines[0]["correlation"].as_str().expect("an id").to_string();
        let again = lockd(&["store", "dump", "--store", store, "--correlation", &shown]);
        assert_eq!(again.stdout, ran.stdout, "{id}");
    }
    let unknown = lockd(&["store", "dump", "--store", store, "--correlation", "job-4712"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (0, ""));
    for bad in ["", "ä", "a\nb", &"x".repeat(257)] {
        let refused = lockd(&["store", "dump", "--store", store, "--correlation", bad]);
        assert_eq!(refused.code, 2, "{bad:?}");
        assert!(refused.stderr.contains("1 to 256 printable ASCII characters"), "{}", refused.stderr);
    }
}
