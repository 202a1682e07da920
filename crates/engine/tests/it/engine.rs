//! A whole engine on a real disk: documents, snapshots, log truncation, garbage collection.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::document::DocumentLocation;
use engine::internals::recovery::snapshots;
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{Decision, Engine, MachineClock, Options, TenureConfig};
use kernel::{
    Action, Command, Commit, Document, Etag, Event, Granted, Limits, Location, Lsn, Outcome, ResourceName,
    Response, Shard, Span, Store, Write,
};
use sim::fixture::{default_namespace, grant, held, identity, key};
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::fs::RealFs;

use crate::deadline::{DEADLINE, eventually};
use crate::fixture::executor;

const SEGMENT: u64 = 8 << 20;

#[derive(Default)]
struct MaintenanceLog {
    /// Relocated documents and bytes of each snapshot.
    snapshots: Mutex<Vec<(usize, u64)>>,
    /// The number of garbage-collected blobs.
    collected: Mutex<usize>,
}

impl EngineObserver for MaintenanceLog {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn durable(&self, _: &[(Lsn, Vec<Event>)]) {}

    fn maintained(&self, event: MaintenanceEvent) {
        match event {
            MaintenanceEvent::Snapshot { moved, moved_bytes } => {
                self.snapshots.lock().expect("not poisoned").push((moved, moved_bytes));
            }
            MaintenanceEvent::Swept(deleted) => *self.collected.lock().expect("not poisoned") += deleted,
            MaintenanceEvent::SnapshotDamaged(snapshot) => panic!("{snapshot}"),
            MaintenanceEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn log(dir: &Path) -> DiskLog<RealFs> {
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes: SEGMENT };
    DiskLog::open(RealFs, &dir.join("log"), options).expect("a sound log").0
}

fn blobs(dir: &Path) -> Arc<DiskBlobs<RealFs>> {
    Arc::new(DiskBlobs::open(RealFs, &dir.join("blob")).expect("a sound store"))
}

fn open(dir: &Path, maintenance: &Arc<MaintenanceLog>, options: Options) -> Engine {
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let observer: Arc<dyn EngineObserver> = Arc::clone(maintenance) as Arc<dyn EngineObserver>;
    Engine::open(Box::new(log(dir)), blobs(dir), clock, &tenure, options, observer, &executor())
        .expect("a sound store")
}

/// A turn had checked that a client may act, the client's authorization was withdrawn, which was reported, and then the
/// turn decided.
#[test]
fn a_withdrawal_waits_for_the_turn_that_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Arc::new(open(dir.path(), &Arc::default(), Options::default()));
    let (begun, running) = channel();
    let (end, ended) = channel::<()>();
    let querying = Arc::clone(&engine);
    // A query runs within a turn, as every decision does.
    let turn = std::thread::spawn(move || {
        let query = Box::new(move |_: &_| -> Box<dyn FnOnce() + Send> {
            begun.send(()).expect("the test waits");
            let _ = ended.recv_timeout(DEADLINE);
            Box::new(|| ())
        });
        querying.sequencer().query(query).expect("accepted");
    });
    running.recv_timeout(DEADLINE).expect("the turn runs");
    let (passed, passing) = channel();
    let withdrawing = Arc::clone(&engine);
    let withdrawal = std::thread::spawn(move || {
        withdrawing.pass_turn();
        passed.send(()).expect("the test waits");
    });
    assert!(passing.recv_timeout(Duration::from_millis(50)).is_err(), "the turn has not ended");
    end.send(()).expect("the turn waits");
    passing.recv_timeout(DEADLINE).expect("the turn has ended");
    turn.join().expect("no panic");
    withdrawal.join().expect("no panic");
}

fn frequent_snapshots() -> Options {
    Options {
        snapshot_every: 4 << 20,
        retain: 0,
        sweep_every: Duration::from_secs(3600),
        ..Options::default()
    }
}

fn call(engine: &Engine, action: Action, document: Option<Vec<u8>>) -> Outcome {
    let command = Command::by(&identity("ada"), action);
    match engine.sequencer().call(command, 7, document, None).expect("running").expect("accepted") {
        Decision::Outcome(outcome) => outcome,
        Decision::Blocked(blocked) => panic!("{blocked:?}"),
    }
}

fn acquire(engine: &Engine, name: &str) -> Granted {
    match call(engine, Action::Acquire(grant(key(name), Span(300_000))), None) {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("{other:?}"),
    }
}

fn commit(lease: &Granted, name: &str, bytes: usize, location: Location) -> Action {
    let key = ResourceName::key(name).expect("a valid key");
    let write =
        Write { held: held(lease), key, token: None, if_version: None, if_etag: None, release: false };
    let etag = Etag([u8::try_from(bytes % 251).expect("small"); 32]);
    Action::Commit(Commit { write, etag, bytes: bytes as u64, location })
}

fn put(engine: &Engine, lease: &Granted, name: &str, content: Vec<u8>) {
    let action = commit(lease, name, content.len(), Location::default());
    let outcome = call(engine, action, Some(content));
    assert!(matches!(outcome, Outcome::Applied(Response::Committed(_), _)), "{outcome:?}");
}

fn document(engine: &Engine, name: &str) -> Document {
    let (send, receive) = std::sync::mpsc::channel();
    let key = ResourceName::key(name).expect("a valid key");
    let query = engine.sequencer().query(Box::new(move |shard| {
        let found = shard.kernel().key(&default_namespace(), &key);
        Box::new(move || send.send(found).expect("the test listens"))
    }));
    query.expect("running");
    receive.recv_timeout(DEADLINE).expect("a reply").and_then(|view| view.document).expect("a document")
}

fn read(engine: &Engine, name: &str) -> Vec<u8> {
    let document = document(engine, name);
    engine.read_document(&document, 0, 1 << 20).expect("there")
}

fn content(n: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((n * 31 + at * 7) % 251).expect("below 251")).collect()
}

#[test]
fn an_inline_document_is_read_in_parts_and_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let maintenance = Arc::new(MaintenanceLog::default());
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    let lease = acquire(&engine, "k");
    put(&engine, &lease, "k", content(1, 1000));
    put(&engine, &lease, "k", content(2, 64 << 10));
    assert_eq!(read(&engine, "k"), content(2, 64 << 10));
    let document = document(&engine, "k");
    let part = engine.read_document(&document, 65_000, 1000).expect("there");
    assert_eq!(part, content(2, 64 << 10)[65_000..]);
    drop(engine);
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    assert_eq!(read(&engine, "k"), content(2, 64 << 10));
}

/// 200 documents that never change, and a document that always changes: the log is truncated and the live
/// documents are relocated, but never more bytes than were written.
#[test]
fn truncation_relocates_live_documents_with_bounded_write_amplification() {
    let dir = tempfile::tempdir().expect("a directory");
    let maintenance = Arc::new(MaintenanceLog::default());
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    for n in 0..200 {
        let name = format!("cold-{n}");
        put(&engine, &acquire(&engine, &name), &name, content(n, 40 << 10));
    }
    let hot = acquire(&engine, "hot");
    let mut written: u64 = 200 * (40 << 10);
    for n in 0..1600 {
        put(&engine, &hot, "hot", content(n, 60 << 10));
        written += 60 << 10;
    }
    // Maintenance lags behind by at most what was written since its last mark.
    eventually("20 snapshots are taken", || maintenance.snapshots.lock().expect("not poisoned").len() >= 20);
    let relocated =
        maintenance.snapshots.lock().expect("not poisoned").iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(relocated >= 200 * (40 << 10), "every document is relocated at least once: {relocated}");
    assert!(relocated <= written, "write amplification above 2: relocated={relocated} written={written}");
    for n in 0..200 {
        assert_eq!(read(&engine, &format!("cold-{n}")), content(n, 40 << 10), "cold-{n}");
    }
    // 8 MB are live: the log shrinks to a few segments, however much is written.
    // A slow machine may need more writes than a fast one: maintenance runs beside them.
    eventually("the log shrinks", || {
        put(&engine, &hot, "hot", content(1599, 60 << 10));
        segments(dir.path()) <= 6
    });
    drop(engine);
    assert_eq!(snapshots(&*blobs(dir.path()), Shard(0)).expect("a list").len(), 2, "older ones are deleted");
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    for n in 0..200 {
        assert_eq!(read(&engine, &format!("cold-{n}")), content(n, 40 << 10), "cold-{n}");
    }
    assert_eq!(read(&engine, "hot"), content(1599, 60 << 10));
}

fn segments(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir.join("log")).expect("a log").filter_map(Result::ok);
    names.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "seg")).count()
}

fn upload(engine: &Engine, lease: &Granted, name: &str, content: &[u8]) {
    let mut upload = engine.uploads().begin(7).expect("writable");
    content.chunks(10_000).for_each(|part| upload.write(part).expect("writable"));
    let pin = upload.finish().expect("durable");
    let outcome =
        call(engine, commit(lease, name, content.len(), DocumentLocation::Blob(pin.blob()).location()), None);
    assert!(matches!(outcome, Outcome::Applied(Response::Committed(_), _)), "{outcome:?}");
}

/// Counts blobs without tenure the store, which would delete unfinished ones.
fn stored_blobs(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("blob/by-name/document/0")).map_or(0, Iterator::count)
}

#[test]
fn the_blob_of_a_long_document_is_deleted_once_a_durable_record_supersedes_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let maintenance = Arc::new(MaintenanceLog::default());
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    let lease = acquire(&engine, "k");
    upload(&engine, &lease, "k", &content(1, 300_000));
    assert_eq!(read(&engine, "k"), content(1, 300_000));
    upload(&engine, &lease, "k", &content(2, 200_000));
    eventually("the old blob is deleted", || stored_blobs(dir.path()) <= 1);
    assert_eq!(read(&engine, "k"), content(2, 200_000));
    // A short document replaces it, and the blob is deleted too.
    put(&engine, &lease, "k", content(3, 10));
    eventually("the blob is deleted", || stored_blobs(dir.path()) == 0);
    assert_eq!(read(&engine, "k"), content(3, 10));
}

/// A slow upload had finished its blob when garbage collection ran; its commit came later, and referenced a
/// deleted blob.
#[test]
fn garbage_collection_deletes_abandoned_blobs_and_spares_pinned_ones() {
    let dir = tempfile::tempdir().expect("a directory");
    let maintenance = Arc::new(MaintenanceLog::default());
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    let lease = acquire(&engine, "k");
    upload(&engine, &lease, "k", &content(1, 100_000));
    let mut abandoned = engine.uploads().begin(7).expect("writable");
    abandoned.write(b"finished, and never committed").expect("writable");
    drop(abandoned.finish().expect("durable"));
    assert_eq!(stored_blobs(dir.path()), 2);
    drop(engine);

    let often = Options { sweep_every: Duration::from_millis(20), ..frequent_snapshots() };
    let engine = open(dir.path(), &maintenance, often);
    let mut slow = engine.uploads().begin(7).expect("writable");
    slow.write(&content(5, 100_000)).expect("writable");
    let pin = slow.finish().expect("durable");
    let mut dropped = engine.uploads().begin(7).expect("writable");
    dropped.write(b"its lease ended midway").expect("writable");
    drop(dropped.finish().expect("durable"));
    // The abandoned blob of the previous term, and the one whose pin was dropped.
    eventually("two blobs are collected", || *maintenance.collected.lock().expect("not poisoned") >= 2);
    assert_eq!(stored_blobs(dir.path()), 2);
    let location = DocumentLocation::Blob(pin.blob()).location();
    let outcome = call(&engine, commit(&lease, "k", 100_000, location), None);
    assert!(matches!(outcome, Outcome::Applied(Response::Committed(_), _)), "{outcome:?}");
    drop(pin);
    assert_eq!(read(&engine, "k"), content(5, 100_000));
}

/// The deletion takes three records. Documents in the log and in blobs are deleted, and stay deleted.
#[test]
fn a_namespace_is_deleted_with_its_blobs_and_stays_deleted_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let maintenance = Arc::new(MaintenanceLog::default());
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    for n in 0..600 {
        let name = format!("k{n}");
        let lease = acquire(&engine, &name);
        if n % 200 == 0 {
            upload(&engine, &lease, &name, &content(n, 100_000));
        } else {
            put(&engine, &lease, &name, content(n, 10));
        }
        let released = call(&engine, Action::Release(held(&lease)), None);
        assert!(matches!(released, Outcome::Applied(..)), "{released:?}");
    }
    assert_eq!(stored_blobs(dir.path()), 3);
    let deleted = call(&engine, Action::DropNamespace(default_namespace()), None);
    assert!(matches!(deleted, Outcome::Applied(Response::Dropped { more: false }, _)), "{deleted:?}");
    eventually("the blobs are deleted", || stored_blobs(dir.path()) == 0);
    drop(engine);
    let engine = open(dir.path(), &maintenance, frequent_snapshots());
    let again = call(&engine, Action::DropNamespace(default_namespace()), None);
    assert!(matches!(again, Outcome::Applied(Response::Dropped { more: false }, _)), "{again:?}");
    let lease = acquire(&engine, "k1");
    let outcome = call(
        &engine,
        commit(&lease, "k1", 3, Location { number: 1, ..Location::default() }),
        Some(content(1, 3)),
    );
    assert!(matches!(outcome, Outcome::Applied(Response::Committed(kernel::Version(3)), _)), "{outcome:?}");
}

/// A server that was restarted again and again before it had logged a whole interval never took a snapshot: its log, and
/// the time to recover it, grew without bound.
#[test]
fn a_server_that_is_restarted_often_takes_snapshots_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { snapshot_every: 8 << 20, ..Options::default() };
    for round in 0..12 {
        let engine = open(dir.path(), &Arc::default(), options.clone());
        for n in 0..20 {
            let name = format!("k{round}-{n}");
            put(&engine, &acquire(&engine, &name), &name, content(n, 50_000));
        }
    }
    let maintenance = Arc::new(MaintenanceLog::default());
    let engine = open(dir.path(), &maintenance, options);
    acquire(&engine, "last");
    eventually("12 MB were logged, 1 MB by each tenure", || {
        !maintenance.snapshots.lock().expect("not poisoned").is_empty()
    });
}
