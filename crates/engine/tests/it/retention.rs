//! Maintenance deletes nothing that is still needed: no blob in a garbage collection, no batch below a floor.

use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::document::DocumentLocation;
use engine::internals::documents::{BlobId, Term};
use engine::internals::engine::PanicOnFailure;
use engine::internals::record::Record;
use engine::internals::uploads::Uploads;
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{Decision, Engine, MachineClock, Options, Reply, TenureConfig, Unavailable};
use kernel::{
    Action, Command, Commit, Cursor, Etag, Granted, Kernel, Limits, Location, Lsn, Outcome, ResourceName,
    Response, Shard, Span, Store, Write,
};
use sim::fixture::{grant, held, identity, key};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{
    BlobName, BlobStore, BlobWriter, Bounds, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange,
    Seq, StoreError,
};

use crate::deadline::{DEADLINE, eventually};
use crate::fixture::executor;

/// A reader had read half of a long document when the next version was committed: the rest was deleted.
#[test]
fn a_blob_is_kept_while_it_is_read() {
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let uploads = Uploads::new(Arc::clone(&blobs), Shard(0), Term(1));
    let mut upload = uploads.begin(7).expect("writable");
    upload.write(b"bytes").expect("writable");
    let blob = upload.finish().expect("durable").blob();
    let stored = || blobs.list("").expect("a list").len();
    let (first, second) = (uploads.hold(blob), uploads.hold(blob));
    uploads.delete(blob).expect("the store works");
    drop(first);
    assert_eq!(uploads.sweep(|| Some(BTreeSet::new())).expect("the store works"), 0);
    assert_eq!(stored(), 1, "the second reader still needs it");
    drop(second);
    assert_eq!(uploads.sweep(|| Some(BTreeSet::new())).expect("the store works"), 1);
    assert_eq!(stored(), 0);
}

type DeleteHook = Box<dyn FnOnce() + Send>;

/// Blobs that run a hook before the next deletion.
#[derive(Clone, Default)]
struct HookedBlobs {
    inner: MemoryBlobs,
    before_delete: Arc<Mutex<Option<DeleteHook>>>,
}

impl BlobStore for HookedBlobs {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        self.inner.create(name)
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        self.inner.len(name)
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.inner.read(name, offset, length)
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        let hook = self.before_delete.lock().expect("not poisoned").take();
        if let Some(hook) = hook {
            hook();
        }
        self.inner.delete(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError> {
        self.inner.list(prefix)
    }
}

/// A superseded blob was found not to be held; then a reader took a hold and read the first part; then the blob was
/// deleted. The reader had promised its client the whole document.
#[test]
fn a_blob_is_not_deleted_between_the_first_part_of_a_read_and_the_rest() {
    let hooked = HookedBlobs::default();
    let blobs: Arc<dyn BlobStore> = Arc::new(hooked.clone());
    let uploads = Uploads::new(Arc::clone(&blobs), Shard(0), Term(1));
    let mut upload = uploads.begin(7).expect("writable");
    upload.write(b"bytes").expect("writable");
    let blob = upload.finish().expect("durable").blob();
    let (first_read, is_read) = sync_channel(1);
    let (deleted, is_deleted) = sync_channel::<()>(1);
    let (reader, name) = (uploads.clone(), blob.name());
    let reading = move || {
        let hold = reader.hold(blob);
        let first = blobs.read(&name, 0, 2).is_ok();
        let _ = first_read.send(());
        is_deleted.recv_timeout(DEADLINE).expect("the deletion ends");
        let rest = blobs.read(&name, 2, 9).is_ok();
        drop(hold);
        (first, rest)
    };
    let (send, started) = sync_channel(1);
    *hooked.before_delete.lock().expect("not poisoned") = Some(Box::new(move || {
        send.send(std::thread::spawn(reading)).expect("the test listens");
        // Time for the reader to get between the check and the deletion, if it can.
        let _ = is_read.recv_timeout(Duration::from_millis(200));
    }));
    uploads.delete(blob).expect("the store works");
    let reader = started.recv().expect("the hook ran");
    deleted.send(()).expect("the reader waits");
    let (first, rest) = reader.join().expect("no panic");
    assert!(!first || rest, "the first part was read, the rest is gone");
}

/// A writer that did not know yet that its log was taken over had the same term and number as the new one: a blob's name
/// could be guessed, and one upload could delete or serve the other's bytes.
#[test]
fn the_names_of_two_uploads_differ_even_with_the_same_term_and_number() {
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let upload = |random| {
        let uploads = Uploads::new(Arc::clone(&blobs), Shard(3), Term(1));
        let mut upload = uploads.begin(random).expect("writable");
        upload.write(b"bytes").expect("writable");
        upload.finish().expect("the name is free").blob()
    };
    let (first, second) = (upload(5), upload(6));
    assert_ne!(first.name(), second.name());
    assert_eq!(first.name().as_str(), "document/3/0000000000000001-0000000000000000-0000000000000005");
    for blob in [first, second, BlobId { random: 0, ..first }] {
        assert_eq!(BlobId::parse(&blob.name(), Shard(3)), Some(blob));
        assert_eq!(BlobId::parse(&blob.name(), Shard(4)), None, "of another shard");
        assert_eq!(
            DocumentLocation::of(DocumentLocation::Blob(blob).location()),
            DocumentLocation::Blob(blob)
        );
    }
    let parse = |name: &str| BlobId::parse(&store::BlobName::new(name).expect("a name"), Shard(3));
    assert_eq!(parse("document/3/0000000000000001-0000000000000000-0000000000000000"), None, "not canonical");
    assert_eq!(parse("document/3/1-0-5"), None, "not canonical");
}

/// A garbage collection read the state, in which no document referenced the blob; then its commit was decided and its
/// writer dropped the pin; then the collection read the pins. The document lost its blob.
#[test]
fn a_blob_committed_during_a_garbage_collection_is_kept() {
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let uploads = Uploads::new(Arc::clone(&blobs), Shard(0), Term(1));
    let mut upload = uploads.begin(7).expect("writable");
    upload.write(b"bytes").expect("writable");
    let pin = upload.finish().expect("durable");
    let collected = uploads.sweep(|| {
        let referenced = BTreeSet::new();
        // The commit is decided after the state was read.
        drop(pin);
        Some(referenced)
    });
    assert_eq!(collected.expect("the store works"), 0);
    assert_eq!(blobs.list("").expect("a list").len(), 1);
}

/// A server that was paused collected garbage after another had taken over its log: the uploads of the successor were in
/// no state that it knew, and were deleted.
#[test]
fn a_deposed_server_keeps_the_blobs_of_its_successor() {
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let [deposed, successor] = [1, 2].map(|term| Uploads::new(Arc::clone(&blobs), Shard(0), Term(term)));
    for uploads in [&deposed, &successor] {
        let mut upload = uploads.begin(7).expect("writable");
        upload.write(b"bytes").expect("writable");
        drop(upload.finish().expect("durable"));
    }
    let sweep = |uploads: &Uploads| uploads.sweep(|| Some(BTreeSet::new())).expect("the store works");
    assert_eq!(sweep(&deposed), 1, "its own");
    assert_eq!(sweep(&deposed), 0, "not the successor's");
    assert_eq!(sweep(&successor), 1);
}

/// A log that replays its appends, and checks each new floor for inline documents below it.
struct CheckedLog {
    inner: MemoryLog,
    kernel: Kernel,
    checks: Arc<Mutex<FloorChecks>>,
    /// Appends of relocated documents fail.
    relocations_fail: bool,
}

#[derive(Clone, Default)]
struct FloorChecks {
    floors: usize,
    relocated: usize,
    /// Documents whose bytes a floor would have deleted.
    lost: Vec<String>,
}

impl LogStore for CheckedLog {
    fn bounds(&self) -> Bounds {
        self.inner.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        for record in Record::decode_all(payload).expect("records") {
            let relocates = matches!(record.command.action, Action::Relocate(_));
            self.checks.lock().expect("not poisoned").relocated += usize::from(relocates);
            if relocates && self.relocations_fail {
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
        let mut checks = self.checks.lock().expect("not poisoned");
        checks.floors += 1;
        for (_, _, key, view) in self.kernel.documents_from(Cursor::default()) {
            let location = view.document.map(|document| DocumentLocation::of(document.location));
            if matches!(location, Some(DocumentLocation::Inline { lsn, .. }) if lsn < first) {
                checks.lost.push(format!("{} below {floor:?}", key.as_str()));
            }
        }
        drop(checks);
        self.inner.raise_floor(floor)
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.extents()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        self.inner.reader()
    }
}

fn submit(engine: &Engine, action: Action, document: Option<Vec<u8>>) -> Option<Reply> {
    engine.sequencer().call(Command::by(&identity("ada"), action), 0, document, None)
}

fn call(engine: &Engine, action: Action, document: Option<Vec<u8>>) -> Response {
    match submit(engine, action, document).expect("running").expect("accepted") {
        Decision::Outcome(Outcome::Applied(response, _)) => response,
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
    let outcome = commit(engine, lease, name, length).expect("running").expect("accepted");
    assert!(matches!(outcome, Decision::Outcome(Outcome::Applied(..))), "{outcome:?}");
}

fn commit(engine: &Engine, lease: &Granted, name: &str, length: usize) -> Option<Reply> {
    let key = ResourceName::key(name).expect("a valid key");
    let write =
        Write { held: held(lease), key, token: None, if_version: None, if_etag: None, release: false };
    let commit = Commit { write, etag: Etag([1; 32]), bytes: length as u64, location: Location::default() };
    submit(engine, Action::Commit(commit), Some(vec![7; length]))
}

/// A blob of another term is not pinned here: garbage collection takes it for one that no commit will ever name, and may
/// have deleted it.
#[test]
fn a_commit_that_names_a_blob_of_another_term_is_refused() {
    let engine = open(&Arc::default(), false, Arc::new(PanicOnFailure));
    let lease = acquire(&engine, "orders");
    let mut upload = engine.uploads().begin(7).expect("begun");
    upload.write(&[7; 100]).expect("written");
    let pin = upload.finish().expect("durable");
    let location = |term| {
        let blob = BlobId { term, ..pin.blob() };
        DocumentLocation::Blob(blob).location()
    };
    let own = pin.blob().term;
    let key = ResourceName::key("orders").expect("a valid key");
    let write =
        Write { held: held(&lease), key, token: None, if_version: None, if_etag: None, release: false };
    for (term, is_refused) in [(Term(own.0 + 1), true), (Term(99), true), (own, false)] {
        let commit =
            Commit { write: write.clone(), etag: Etag([1; 32]), bytes: 100, location: location(term) };
        let reply = submit(&engine, Action::Commit(commit), None).expect("running");
        assert_eq!(reply == Err(Unavailable::Deposed), is_refused, "{term:?}: {reply:?}");
    }
}

/// An engine with a snapshot every 64 KiB that retains no log below it.
fn open(
    checks: &Arc<Mutex<FloorChecks>>,
    relocations_fail: bool,
    observer: Arc<dyn EngineObserver>,
) -> Engine {
    let log = CheckedLog {
        inner: MemoryLog::default(),
        kernel: Kernel::new(),
        checks: Arc::clone(checks),
        relocations_fail,
    };
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let options = Options {
        snapshot_every: 64 << 10,
        retain: 0,
        sweep_every: Duration::from_secs(3600),
        ..Options::default()
    };
    let (blobs, clock) = (Arc::new(MemoryBlobs::default()), MachineClock::new().expect("Linux"));
    Engine::open(Box::new(log), blobs, Box::new(clock), &tenure, options, observer, &executor())
        .expect("an empty store")
}

/// Reports a fatal failure to the test.
struct FatalSignal(SyncSender<()>);

impl EngineObserver for FatalSignal {
    fn fatal(&self, _: Fatal) {
        self.0.send(()).expect("the test listens");
    }

    fn maintained(&self, _: MaintenanceEvent) {}
}

/// The append of a relocation failed and its reply was dropped, but the maintenance thread kept a sender of the channel
/// that it waited on, and waited for ever; and so did the thread that closed the engine.
#[test]
fn maintenance_ends_when_a_relocation_cannot_be_appended() {
    let (send, fatal) = sync_channel(1);
    let engine = open(&Arc::default(), true, Arc::new(FatalSignal(send)));
    put(&engine, &acquire(&engine, "cold"), "cold", 2000);
    let hot = acquire(&engine, "hot");
    eventually("a relocation fails", || {
        commit(&engine, &hot, "hot", 8000);
        fatal.try_recv().is_ok()
    });
    let (send, closed) = sync_channel(1);
    std::thread::spawn(move || {
        drop(engine);
        let _ = send.send(());
    });
    closed.recv_timeout(DEADLINE).expect("the engine closes");
}

/// The floor was raised as soon as the relocation of the documents below it was submitted. The power failed before it
/// was durable.
#[test]
fn a_floor_rises_only_after_live_documents_below_it_are_durably_relocated() {
    let checks = Arc::new(Mutex::new(FloorChecks::default()));
    let engine = open(&checks, false, Arc::new(PanicOnFailure));
    for n in 0..10 {
        let name = format!("cold-{n}");
        put(&engine, &acquire(&engine, &name), &name, 2000);
    }
    let hot = acquire(&engine, "hot");
    let (mut floors, mut writes) = (0, 0);
    loop {
        put(&engine, &hot, "hot", 8000);
        // A copy: an assertion that fails under the lock would poison it for the log.
        let checks = checks.lock().expect("not poisoned").clone();
        assert_eq!(checks.lost, [""; 0]);
        if checks.floors >= 10 && checks.relocated >= 50 {
            break;
        }
        writes = if checks.floors > floors { 0 } else { writes + 1 };
        floors = checks.floors;
        assert!(writes < 100_000, "no new floor: {} floors, {} relocated", checks.floors, checks.relocated);
        if writes > 100 {
            // Enough was written: leave the processor to the maintenance thread.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}
