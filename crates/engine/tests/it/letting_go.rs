//! What upkeep lets go is needed by nobody: blobs under a sweep, batches below a floor.

use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::internals::documents::Term;
use engine::internals::engine::PanicOnFailure;
use engine::internals::uploads::Uploads;
use engine::{
    Decision, DocumentLocation, Engine, EngineObserver, Fatal, MachineClock, MaintenanceEvent, Options,
    Record, Reply, TenureConfig,
};
use kernel::{
    Action, Command, Commit, Cursor, Etag, Granted, Kernel, Limits, Location, Lsn, Outcome, ResourceName,
    Response, Shard, Span, Store, Write,
};
use sim::fixture::{grant, held, identity, key};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{
    BlobStore, Bounds, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange, Seq, StoreError,
};

/// A reader was half through a long document when the next version was committed: the rest of it was gone.
#[test]
fn what_is_being_read_stays_until_it_is_read() {
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let uploads = Uploads::new(Arc::clone(&blobs), Shard(0), Term(1));
    let mut upload = uploads.begin().expect("room");
    upload.write(b"bytes").expect("room");
    let blob = upload.finish().expect("durable").blob();
    let stored = || blobs.list("").expect("a list").len();
    let (one, other) = (uploads.hold(blob), uploads.hold(blob));
    uploads.delete(blob).expect("nothing fails");
    drop(one);
    assert_eq!(uploads.sweep(|| Some(BTreeSet::new())).expect("nothing fails"), 0);
    assert_eq!(stored(), 1, "the other still reads");
    drop(other);
    assert_eq!(uploads.sweep(|| Some(BTreeSet::new())).expect("nothing fails"), 1);
    assert_eq!(stored(), 0);
}

/// A sweep read the state, in which nothing referred to the blob; then its commit was decided and its writer let go
/// of it; then the sweep looked who had a hold on what. The document lost its bytes.
#[test]
fn a_commit_between_the_looks_of_a_sweep_keeps_its_blob() {
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let uploads = Uploads::new(Arc::clone(&blobs), Shard(0), Term(1));
    let mut upload = uploads.begin().expect("room");
    upload.write(b"bytes").expect("room");
    let pin = upload.finish().expect("durable");
    let swept = uploads.sweep(|| {
        let referred = BTreeSet::new();
        // It is committed now.
        drop(pin);
        Some(referred)
    });
    assert_eq!(swept.expect("nothing fails"), 0);
    assert_eq!(blobs.list("").expect("a list").len(), 1);
}

/// A log that follows what becomes durable, and looks for what every floor would take away.
struct Careful {
    inner: MemoryLog,
    kernel: Kernel,
    seen: Arc<Mutex<Seen>>,
    /// What is carried forward cannot be appended.
    stuck: bool,
}

#[derive(Default)]
struct Seen {
    floors: usize,
    carried: usize,
    lost: Vec<String>,
}

impl LogStore for Careful {
    fn bounds(&self) -> Bounds {
        self.inner.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        for record in Record::decode_all(payload).expect("records") {
            let carries = matches!(record.command.action, Action::Relocate(_));
            self.seen.lock().expect("one at a time").carried += usize::from(carries);
            if carries && self.stuck {
                return Err(StoreError::new(ErrorKind::Io, "the disk is worn"));
            }
            let outcome = self.kernel.apply(record.lsn, record.now, &record.command);
            assert!(matches!(outcome, Outcome::Applied(..)), "{outcome:?}");
        }
        self.inner.append(seq, lsns, payload)
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        self.inner.reserve()
    }

    fn capacity(&self) -> LogCapacity {
        self.inner.capacity()
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        let first = Lsn(self.inner.reader().read(floor).expect("within the log").lsns.first.0);
        let mut seen = self.seen.lock().expect("one at a time");
        seen.floors += 1;
        for (_, _, key, view) in self.kernel.documents_from(Cursor::default()) {
            let place = view.document.map(|document| DocumentLocation::of(document.location));
            if matches!(place, Some(DocumentLocation::Inline(lsn)) if lsn < first) {
                seen.lost.push(format!("{} below {floor:?}", key.as_str()));
            }
        }
        drop(seen);
        self.inner.raise_floor(floor)
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.extents()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        self.inner.reader()
    }
}

fn ask(engine: &Engine, action: Action, document: Option<Vec<u8>>) -> Option<Reply> {
    engine.sequencer().call(Command::by(&identity("ada"), action), 0, document, None)
}

fn call(engine: &Engine, action: Action, document: Option<Vec<u8>>) -> Response {
    match ask(engine, action, document).expect("it lives").expect("taken") {
        Decision::Outcome(Outcome::Applied(answer, _)) => answer,
        other => panic!("{other:?}"),
    }
}

fn acquire(engine: &Engine, name: &str) -> Granted {
    match call(engine, Action::Acquire(grant(key(name), Span(300_000))), None) {
        Response::Granted(granted) => granted,
        other => panic!("{other:?}"),
    }
}

fn put(engine: &Engine, lease: &Granted, name: &str, length: usize) {
    let outcome = commit(engine, lease, name, length).expect("it lives").expect("taken");
    assert!(matches!(outcome, Decision::Outcome(Outcome::Applied(..))), "{outcome:?}");
}

fn commit(engine: &Engine, lease: &Granted, name: &str, length: usize) -> Option<Reply> {
    let key = ResourceName::key(name).expect("a valid key");
    let write =
        Write { held: held(lease), key, token: None, if_version: None, if_etag: None, release: false };
    let commit = Commit { write, etag: Etag([1; 32]), bytes: length as u64, location: Location(0) };
    ask(engine, Action::Commit(commit), Some(vec![7; length]))
}

/// One that takes a snapshot soon, and keeps nothing that it need not.
fn open(seen: &Arc<Mutex<Seen>>, stuck: bool, watcher: Arc<dyn EngineObserver>) -> Engine {
    let log = Careful { inner: MemoryLog::default(), kernel: Kernel::new(), seen: Arc::clone(seen), stuck };
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = TenureConfig { store, writer: 1, limits: Limits::default() };
    let options = Options {
        snapshot_every: 64 << 10,
        retain: 0,
        sweep_every: Duration::from_secs(3600),
        ..Options::default()
    };
    let (blobs, clock) = (Arc::new(MemoryBlobs::default()), MachineClock::new().expect("Linux"));
    Engine::open(Box::new(log), blobs, Box::new(clock), &opening, options, watcher).expect("an empty store")
}

/// Says when it is over.
struct Over(SyncSender<()>);

impl EngineObserver for Over {
    fn fatal(&self, _: Fatal) {
        self.0.send(()).expect("the test listens");
    }

    fn upkeep(&self, _: MaintenanceEvent) {}
}

/// What upkeep had handed in was let go when its append failed, but upkeep held the other end of what it waited at, and waited
/// on; and so did whoever closed the engine.
#[test]
fn upkeep_ends_when_what_it_carries_cannot_be_appended() {
    let (send, over) = sync_channel(1);
    let engine = open(&Arc::default(), true, Arc::new(Over(send)));
    put(&engine, &acquire(&engine, "cold"), "cold", 2000);
    let hot = acquire(&engine, "hot");
    while over.try_recv().is_err() {
        commit(&engine, &hot, "hot", 8000);
    }
    let (send, closed) = sync_channel(1);
    std::thread::spawn(move || {
        drop(engine);
        let _ = send.send(());
    });
    closed.recv_timeout(Duration::from_secs(60)).expect("it can be closed");
}

/// The floor was raised as soon as the documents below it were on their way to the end of the log. The power failed
/// before they were there.
#[test]
fn a_floor_rises_when_what_is_alive_below_it_is_durable_above_it() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let engine = open(&seen, false, Arc::new(PanicOnFailure));
    for n in 0..10 {
        let name = format!("cold-{n}");
        put(&engine, &acquire(&engine, &name), &name, 2000);
    }
    let hot = acquire(&engine, "hot");
    let many = |seen: &Seen| seen.floors >= 10 && seen.carried >= 50;
    let (mut floors, mut since) = (0, 0);
    loop {
        put(&engine, &hot, "hot", 8000);
        let seen = seen.lock().expect("one at a time");
        assert_eq!(seen.lost, [""; 0]);
        if many(&seen) {
            break;
        }
        since = if seen.floors > floors { 0 } else { since + 1 };
        floors = seen.floors;
        assert!(since < 100_000, "upkeep does nothing: {} floors, {} carried", seen.floors, seen.carried);
        drop(seen);
        if since > 100 {
            // There is enough to do; upkeep has what others leave of a busy machine.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
