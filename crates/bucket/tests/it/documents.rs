//! Short documents of an engine whose log is in a bucket: they ride in batches, and are read back by range.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bucket::Provider;
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{
    Decision, Delivery, Engine, Executor, MachineClock, Options, ReplyTo, Submission, TenureConfig, Workers,
};
use kernel::{
    Action, Command, Commit, Document, Etag, Granted, Limits, Location, Outcome, ResourceName, Response,
    Span, Store, Write,
};
use objectserver::{Moment, ObjectServer, Operation};
use sim::fixture::{default_namespace, grant, held, identity, key};
use store::ErrorKind;
use store::object::{ObjectBlobs, ObjectLog, ObjectOptions, Objects, RetryPolicy, UploadOptions, WriterId};

use crate::fixture::{BUCKET, PREFIX, client, start};

const DEADLINE: Duration = Duration::from_secs(60);
const DOCUMENTS: usize = 12;
const BYTES: usize = 60_000;

struct Quiet;

impl EngineObserver for Quiet {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn maintained(&self, _: MaintenanceEvent) {}
}

/// Opens the engine of the store. No batch stays in memory.
fn open(server: &ObjectServer, writer: u128) -> Engine {
    let (objects, policy): (Arc<dyn Objects>, _) =
        (Arc::new(client(Provider::S3, server)), RetryPolicy::without_pause(3));
    let log = ObjectOptions::new(0, 9, WriterId(writer));
    let log = ObjectLog::open(Arc::clone(&objects), log, policy.clone()).expect("a log");
    let blobs = Arc::new(ObjectBlobs::new(objects, policy, UploadOptions::parts_of(5 << 20)));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let executor: Arc<dyn Executor> = Arc::new(Workers::default());
    let clock = Box::new(MachineClock::new().expect("Linux"));
    Engine::open(Box::new(log), blobs, clock, &tenure, Options::default(), Arc::new(Quiet), &executor)
        .expect("opened")
}

fn submit(engine: &Engine, action: Action, document: Option<Vec<u8>>) -> Receiver<Outcome> {
    let (send, receive) = channel();
    let to: ReplyTo = Box::new(move |reply, delivery: Delivery| {
        delivery.confirm();
        match reply.expect("accepted") {
            Decision::Outcome(outcome) => send.send(outcome).expect("the test waits"),
            Decision::Blocked(blocked) => panic!("{blocked:?}"),
        }
    });
    let command = Command::by(&identity("ada"), action);
    engine.sequencer().submit(Submission { document, ..Submission::new(command, to) });
    receive
}

fn name(n: usize) -> String {
    format!("key-{n}")
}

fn content(n: usize) -> Vec<u8> {
    (0..BYTES).map(|at| u8::try_from((n * 31 + at * 7) % 251).expect("below 251")).collect()
}

fn acquire(engine: &Engine, n: usize) -> Granted {
    let acquired = submit(engine, Action::Acquire(grant(key(&name(n)), Span(300_000))), None);
    match acquired.recv_timeout(DEADLINE).expect("a reply") {
        Outcome::Applied(Response::Granted(granted), _) => granted,
        other => panic!("{other:?}"),
    }
}

fn commit(engine: &Engine, n: usize, lease: &Granted) -> Receiver<Outcome> {
    let key = ResourceName::key(&name(n)).expect("a name");
    let write =
        Write { held: held(lease), key, token: None, if_version: None, if_etag: None, release: false };
    let etag = Etag(*blake3::hash(&content(n)).as_bytes());
    let commit = Commit { write, etag, bytes: BYTES as u64, location: Location::default() };
    submit(engine, Action::Commit(commit), Some(content(n)))
}

/// Writes documents that share one batch, and returns the name of its object: while the append before it is held, they
/// are decided and wait.
fn write_one_batch(server: &ObjectServer, engine: &Engine) -> String {
    let log = format!("{PREFIX}log/");
    let leases: Vec<_> = (0..DOCUMENTS).map(|n| acquire(engine, n)).collect();
    let batches = || server.objects(BUCKET).into_keys().filter(|name| name.starts_with(&log)).collect();
    let hold = server.hold(Operation::Put, &log, Moment::BeforeEffect);
    let before = submit(engine, Action::Acquire(grant(key("other"), Span(300_000))), None);
    assert!(hold.wait_for(1, DEADLINE), "the append is held");
    let earlier: Vec<String> = batches();
    let commits: Vec<_> = leases.iter().enumerate().map(|(n, lease)| commit(engine, n, lease)).collect();
    hold.release();
    for reply in std::iter::once(before).chain(commits) {
        let outcome = reply.recv_timeout(DEADLINE).expect("a reply");
        assert!(matches!(outcome, Outcome::Applied(..)), "{outcome:?}");
    }
    let later: Vec<String> = batches();
    assert_eq!(later.len(), earlier.len() + 2, "the held batch, and one with all documents");
    later.into_iter().next_back().expect("two new ones")
}

fn document(engine: &Engine, n: usize) -> Document {
    let (send, receive) = channel();
    let key = ResourceName::key(&name(n)).expect("a name");
    let query = engine.sequencer().query(Box::new(move |shard| {
        let found = shard.kernel().key(&default_namespace(), &key);
        Box::new(move || send.send(found).expect("the test waits"))
    }));
    query.expect("running");
    receive.recv_timeout(DEADLINE).expect("a reply").and_then(|view| view.document).expect("a document")
}

/// Reads a document by one request, whose response has as many bytes as stated.
fn expect_read(server: &ObjectServer, engine: &Engine, n: usize, bytes: u64) {
    /// Bytes of other responses meanwhile: the engine lists its log from time to time.
    const OTHERS_MAX: u64 = 4096;
    let document = document(engine, n);
    server.reset_counts();
    assert!(engine.read_document(&document, 0, 1 << 20).expect("there") == content(n));
    let counts = server.counts();
    assert_eq!(counts.of(Operation::Get), 1);
    assert!((bytes..bytes + OTHERS_MAX).contains(&counts.sent_bytes), "{}, not {bytes}", counts.sent_bytes);
}

#[test]
fn a_short_document_is_read_without_the_rest_of_its_batch() {
    let server = start(Provider::S3);
    let engine = open(&server, 1);
    let object = write_one_batch(&server, &engine);
    let batch_bytes = server.object(BUCKET, &object).expect("the batch").len() as u64;
    assert!(batch_bytes > (DOCUMENTS * BYTES) as u64, "all documents share it");
    for n in [5, 0, DOCUMENTS - 1] {
        expect_read(&server, &engine, n, BYTES as u64);
    }
    let document = document(&engine, 3);
    let part = engine.read_document(&document, BYTES as u64 - 10, 1 << 20).expect("there");
    assert_eq!(part, content(3)[BYTES - 10..]);
    drop(engine);
    // A process that has not written the batch reads it once, and then knows where its documents are.
    let engine = open(&server, 2);
    expect_read(&server, &engine, 5, batch_bytes);
    for n in [5, 7] {
        expect_read(&server, &engine, n, BYTES as u64);
    }
}

/// The checksum of a batch does not protect a part of it.
#[test]
fn a_damaged_document_is_reported_and_its_neighbours_are_still_read() {
    let server = start(Provider::S3);
    let engine = open(&server, 1);
    let object = write_one_batch(&server, &engine);
    let stored = server.object(BUCKET, &object).expect("the batch");
    let content_5 = content(5);
    let at = stored.windows(BYTES).position(|part| part == content_5).expect("in the batch");
    assert!(server.damage(BUCKET, &object, at + BYTES / 2));
    let damaged = engine.read_document(&document(&engine, 5), 0, 1 << 20).expect_err("damaged");
    assert_eq!(damaged.kind, ErrorKind::Damaged, "{damaged}");
    assert!(damaged.to_string().contains("the batch does not match its checksum"), "{damaged}");
    // Its own bytes are sound.
    expect_read(&server, &engine, 4, BYTES as u64);
    assert!(server.remove(BUCKET, &object));
    let missing = engine.read_document(&document(&engine, 4), 0, 1 << 20).expect_err("gone");
    assert_eq!(missing.kind, ErrorKind::Damaged, "{missing}");
}
