//! A whole engine on a real disk: documents, snapshots, and what they let go.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::clock::MachineClock;
use engine::decider::{Opening, Said};
use engine::documents::Place;
use engine::engine::{Engine, Fatal, Options, Upkeep, Watcher};
use engine::recovery::snapshots;
use kernel::{
    Action, Answer, Command, Commit, Document, Etag, Event, Granted, Limits, Location, Lsn, Outcome,
    ResourceName, Shard, Span, Store, Write,
};
use sim::world::{default_namespace, grant, held, identity, key};
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::fs::RealFs;

const SEGMENT: u64 = 8 << 20;

#[derive(Default)]
struct Watch {
    snapshots: Mutex<Vec<(usize, u64)>>,
    swept: Mutex<usize>,
}

impl Watcher for Watch {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn happened(&self, _: &[(Lsn, Vec<Event>)]) {}

    fn upkeep(&self, news: Upkeep) {
        match news {
            Upkeep::Snapshot { moved, moved_bytes } => {
                self.snapshots.lock().expect("one at a time").push((moved, moved_bytes));
            }
            Upkeep::Swept(gone) => *self.swept.lock().expect("one at a time") += gone,
            Upkeep::Failed(error) => panic!("{error}"),
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

fn open(dir: &Path, watch: &Arc<Watch>, options: Options) -> Engine {
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = Opening { store, writer: 1, limits: Limits::default() };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let watcher: Arc<dyn Watcher> = Arc::clone(watch) as Arc<dyn Watcher>;
    Engine::open(Box::new(log(dir)), blobs(dir), clock, &opening, options, watcher).expect("a sound store")
}

fn small() -> Options {
    Options {
        snapshot_every: 4 << 20,
        retain: 0,
        sweep_every: Duration::from_secs(3600),
        ..Options::default()
    }
}

fn call(engine: &Engine, action: Action, document: Option<Vec<u8>>) -> Outcome {
    let command = Command::by(&identity("ada"), action);
    match engine.sequencer().call(command, 7, document, None).expect("it lives").expect("taken") {
        Said::Outcome(outcome) => outcome,
        Said::Blocked(blocked) => panic!("{blocked:?}"),
    }
}

fn acquire(engine: &Engine, name: &str) -> Granted {
    match call(engine, Action::Acquire(grant(key(name), Span(300_000))), None) {
        Outcome::Applied(Answer::Granted(granted), _) => granted,
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
    let action = commit(lease, name, content.len(), Location(0));
    let outcome = call(engine, action, Some(content));
    assert!(matches!(outcome, Outcome::Applied(Answer::Committed(_), _)), "{outcome:?}");
}

fn document(engine: &Engine, name: &str) -> Document {
    let (send, receive) = std::sync::mpsc::channel();
    let key = ResourceName::key(name).expect("a valid key");
    let look = engine.sequencer().look(Box::new(move |shard| {
        let found = shard.kernel().key(&default_namespace(), &key);
        Box::new(move || send.send(found).expect("the test listens"))
    }));
    look.expect("it lives");
    receive.recv().expect("an answer").and_then(|view| view.document).expect("a document")
}

fn read(engine: &Engine, name: &str) -> Vec<u8> {
    let document = document(engine, name);
    engine.read_document(Shard(0), document.location, 0, 1 << 20).expect("there")
}

fn content(n: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((n * 31 + at * 7) % 251).expect("below 251")).collect()
}

#[test]
fn a_document_rides_in_the_log_and_is_read_back_in_parts_and_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = Arc::new(Watch::default());
    let engine = open(dir.path(), &watch, small());
    let lease = acquire(&engine, "k");
    put(&engine, &lease, "k", content(1, 1000));
    put(&engine, &lease, "k", content(2, 64 << 10));
    assert_eq!(read(&engine, "k"), content(2, 64 << 10));
    let location = document(&engine, "k").location;
    let part = engine.read_document(Shard(0), location, 65_000, 1000).expect("there");
    assert_eq!(part, content(2, 64 << 10)[65_000..]);
    drop(engine);
    let engine = open(dir.path(), &watch, small());
    assert_eq!(read(&engine, "k"), content(2, 64 << 10));
}

/// 200 documents that never change, and one that changes all the time: the log is let go behind them, and they
/// are carried along, but never so often that more is carried than written.
#[test]
fn what_is_alive_is_carried_forward_and_the_rest_goes() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = Arc::new(Watch::default());
    let engine = open(dir.path(), &watch, small());
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
    // Upkeep is behind by what was written since its last mark.
    let carried = loop {
        let done = watch.snapshots.lock().expect("one at a time").clone();
        if done.len() >= 20 {
            break done.iter().map(|(_, bytes)| bytes).sum::<u64>();
        }
        std::thread::yield_now();
    };
    assert!(carried >= 200 * (40 << 10), "all of them were carried at least once: {carried}");
    assert!(carried <= written, "write amplification above 2: carried={carried} written={written}");
    for n in 0..200 {
        assert_eq!(read(&engine, &format!("cold-{n}")), content(n, 40 << 10), "cold-{n}");
    }
    // 8 MB are alive; the log settles at a few segments, however much is written.
    let mut more = 0;
    while segments(dir.path()) > 6 {
        put(&engine, &hot, "hot", content(1599, 60 << 10));
        more += 1;
        assert!(more < 3000, "the log does not shrink: {}", segments(dir.path()));
    }
    drop(engine);
    assert_eq!(snapshots(&*blobs(dir.path()), Shard(0)).expect("a list").len(), 1, "older ones have gone");
    let engine = open(dir.path(), &watch, small());
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
    let mut upload = engine.uploads().begin().expect("room");
    content.chunks(10_000).for_each(|part| upload.write(part).expect("room"));
    let pin = upload.finish().expect("durable");
    let outcome = call(engine, commit(lease, name, content.len(), Place::Blob(pin.blob()).location()), None);
    assert!(matches!(outcome, Outcome::Applied(Answer::Committed(_), _)), "{outcome:?}");
}

/// Counted without opening the store, which would clear away what is under way.
fn stored(dir: &Path) -> usize {
    std::fs::read_dir(dir.join("blob/by-name/document/0")).map_or(0, Iterator::count)
}

#[test]
fn a_long_document_is_a_blob_that_goes_when_a_durable_record_superseded_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = Arc::new(Watch::default());
    let engine = open(dir.path(), &watch, small());
    let lease = acquire(&engine, "k");
    upload(&engine, &lease, "k", &content(1, 300_000));
    assert_eq!(read(&engine, "k"), content(1, 300_000));
    upload(&engine, &lease, "k", &content(2, 200_000));
    while stored(dir.path()) > 1 {
        std::thread::yield_now();
    }
    assert_eq!(read(&engine, "k"), content(2, 200_000));
    // A short one takes its place, and the blob goes too.
    put(&engine, &lease, "k", content(3, 10));
    while stored(dir.path()) > 0 {
        std::thread::yield_now();
    }
    assert_eq!(read(&engine, "k"), content(3, 10));
}

/// A slow upload had finished its blob when a sweep came by; its commit came later, and made a document of what
/// was no longer there.
#[test]
fn a_sweep_takes_what_an_earlier_term_left_behind_and_nothing_under_its_writer() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = Arc::new(Watch::default());
    let engine = open(dir.path(), &watch, small());
    let lease = acquire(&engine, "k");
    upload(&engine, &lease, "k", &content(1, 100_000));
    let mut abandoned = engine.uploads().begin().expect("room");
    abandoned.write(b"finished, and never committed").expect("room");
    drop(abandoned.finish().expect("durable"));
    assert_eq!(stored(dir.path()), 2);
    drop(engine);

    let often = Options { sweep_every: Duration::from_millis(20), ..small() };
    let engine = open(dir.path(), &watch, often);
    let mut slow = engine.uploads().begin().expect("room");
    slow.write(&content(5, 100_000)).expect("room");
    let pin = slow.finish().expect("durable");
    let mut dropped = engine.uploads().begin().expect("room");
    dropped.write(b"its lease ended midway").expect("room");
    drop(dropped.finish().expect("durable"));
    // The abandoned one of the term before, and the one whose writer has gone.
    while *watch.swept.lock().expect("one at a time") < 2 {
        std::thread::yield_now();
    }
    assert_eq!(stored(dir.path()), 2);
    let location = Place::Blob(pin.blob()).location();
    let outcome = call(&engine, commit(&lease, "k", 100_000, location), None);
    assert!(matches!(outcome, Outcome::Applied(Answer::Committed(_), _)), "{outcome:?}");
    drop(pin);
    assert_eq!(read(&engine, "k"), content(5, 100_000));
}

/// Three records' worth of documents, in the log and in blobs: all of it goes, and stays gone.
#[test]
fn a_namespace_is_deleted_with_its_blobs_and_is_not_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = Arc::new(Watch::default());
    let engine = open(dir.path(), &watch, small());
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
    assert_eq!(stored(dir.path()), 3);
    let deleted = call(&engine, Action::DropNamespace(default_namespace()), None);
    assert!(matches!(deleted, Outcome::Applied(Answer::Dropped { more: false }, _)), "{deleted:?}");
    while stored(dir.path()) > 0 {
        std::thread::yield_now();
    }
    drop(engine);
    let engine = open(dir.path(), &watch, small());
    let again = call(&engine, Action::DropNamespace(default_namespace()), None);
    assert!(matches!(again, Outcome::Applied(Answer::Dropped { more: false }, _)), "{again:?}");
    let lease = acquire(&engine, "k1");
    let outcome = call(&engine, commit(&lease, "k1", 3, Location(1)), Some(content(1, 3)));
    assert!(matches!(outcome, Outcome::Applied(Answer::Committed(kernel::Version(3)), _)), "{outcome:?}");
}
