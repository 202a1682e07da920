//! A store with a running engine, which truncates its log and collects blobs as soon as it can.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backup::{BackupError, BackupOptions, Manifest, Progress};
use engine::document::DocumentLocation;
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{Decision, Engine, Executor, MachineClock, Options, TenureConfig, Workers};
use kernel::{
    Action, Command, Commit, Etag, Granted, Limits, Location, Outcome, ResourceName, Response, Span, Store,
    Write,
};
use sim::fixture::{grant, held, identity, key};
use store::disk::{DiskDir, StoreFile};

/// The time of every backup: long ago, so that every clock is past it.
pub(crate) const NOW: u64 = 1_700_000_000_000;
const KEY: [u8; 32] = [7; 32];
/// Small segments, so that the log is truncated often.
const SEGMENT: u64 = 256 << 10;
/// The size of documents that are blobs. No other part of a copy has this size.
pub(crate) const BLOB: usize = 70_001;
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct MaintenanceCount {
    checkpoints: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl EngineObserver for MaintenanceCount {
    fn fatal(&self, why: Fatal) {
        self.failed.lock().expect("not poisoned").push(why.to_string());
    }

    fn maintained(&self, event: MaintenanceEvent) {
        match event {
            MaintenanceEvent::Snapshot { .. } => {
                self.checkpoints.fetch_add(1, Ordering::Relaxed);
            }
            MaintenanceEvent::Swept(_) => {}
            MaintenanceEvent::SnapshotDamaged(snapshot) => {
                self.failed.lock().expect("not poisoned").push(snapshot.to_string());
            }
            MaintenanceEvent::Failed(error) => {
                self.failed.lock().expect("not poisoned").push(error.to_string());
            }
        }
    }
}

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    /// `None` while the server is stopped.
    pub(crate) running: RefCell<Option<(Engine, DiskDir)>>,
    maintenance: Arc<MaintenanceCount>,
}

impl World {
    pub(crate) fn new() -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let world = World { dir, running: RefCell::new(None), maintenance: Arc::default() };
        std::fs::create_dir(world.store()).expect("a directory");
        std::fs::write(world.store().join("store.key"), KEY).expect("writable");
        world.start();
        world
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    pub(crate) fn start(&self) {
        self.start_with(KEY);
    }

    pub(crate) fn start_with(&self, key: [u8; 32]) {
        *self.running.borrow_mut() = Some(open(&self.store(), &key, &self.maintenance));
    }

    pub(crate) fn stop(&self) {
        *self.running.borrow_mut() = None;
    }

    fn call(&self, action: Action, document: Option<Vec<u8>>) -> Response {
        let running = self.running.borrow();
        let (engine, _) = running.as_ref().expect("the server runs");
        let command = Command::by(&identity("ada"), action);
        match engine.sequencer().call(command, 7, document, None).expect("running").expect("accepted") {
            Decision::Outcome(Outcome::Applied(response, _)) => response,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn acquire(&self, name: &str) -> Granted {
        match self.call(Action::Acquire(grant(key(name), Span(300_000))), None) {
            Response::Granted(granted) => granted,
            other => panic!("{other:?}"),
        }
    }

    /// Commits a document that is stored in the log.
    pub(crate) fn put(&self, lease: &Granted, name: &str, content: &[u8]) {
        self.call(commit(lease, name, content, Location::default()), Some(content.to_vec()));
    }

    /// Commits a document that is stored in a blob.
    pub(crate) fn put_blob(&self, lease: &Granted, name: &str, content: &[u8]) {
        let pin = {
            let running = self.running.borrow();
            let (engine, _) = running.as_ref().expect("the server runs");
            let mut upload = engine.uploads().begin(4711).expect("space");
            upload.write(content).expect("space");
            upload.finish().expect("space")
        };
        self.call(commit(lease, name, content, DocumentLocation::Blob(pin.blob()).location()), None);
    }

    /// Writes until at least `more` checkpoints were taken after this call.
    pub(crate) fn write_until_checkpoints(&self, lease: &Granted, name: &str, more: usize) {
        let goal = self.maintenance.checkpoints.load(Ordering::Relaxed) + more;
        let begun = now();
        for n in 0.. {
            if self.maintenance.checkpoints.load(Ordering::Relaxed) >= goal {
                return;
            }
            assert!(now() - begun < DEADLINE, "no checkpoint: {:?}", self.maintenance.failed);
            self.put(lease, name, &content(n, 60 << 10));
        }
    }

    pub(crate) fn assert_nothing_failed(&self) {
        let failed = self.maintenance.failed.lock().expect("not poisoned");
        assert!(failed.is_empty(), "{failed:?}");
    }

    /// Takes a backup, and calls `hook` with the phase and the size of every part that is copied.
    pub(crate) fn backup(
        &self,
        to: &Path,
        hook: &dyn Fn(&'static str, u64),
    ) -> Result<Manifest, BackupError> {
        let options = BackupOptions { key: None, now_unix_ms: NOW, rate: None, timeout: DEADLINE };
        let progress = Hooked { hook, phase: Cell::new("") };
        backup::take(&self.store(), to, &options, &progress, &mut |what| panic!("{what}"))
    }
}

struct Hooked<'a> {
    hook: &'a dyn Fn(&'static str, u64),
    phase: Cell<&'static str>,
}

impl Progress for Hooked<'_> {
    fn begin(&self, what: &'static str, _: u64) {
        self.phase.set(what);
    }

    fn advance(&self, bytes: u64) {
        (self.hook)(self.phase.get(), bytes);
    }
}

pub(crate) fn no_hook(_: &'static str, _: u64) {}

fn commit(lease: &Granted, name: &str, content: &[u8], location: Location) -> Action {
    let key = ResourceName::key(name).expect("a valid key");
    let write =
        Write { held: held(lease), key, token: None, if_version: None, if_etag: None, release: false };
    let etag = Etag(*blake3::hash(content).as_bytes());
    Action::Commit(Commit { write, etag, bytes: content.len() as u64, location })
}

/// Opens the store like a server.
fn open(path: &Path, key: &[u8; 32], observer: &Arc<MaintenanceCount>) -> (Engine, DiskDir) {
    let dir = DiskDir::open(path, StoreFile { store_id: 5, shards: 1 }, key, true).expect("a store");
    let options = Options {
        snapshot_every: 256 << 10,
        retain: 0,
        sweep_every: Duration::from_millis(5),
        ..Options::default()
    };
    let (log, _) = dir.log(0, SEGMENT).expect("a sound log");
    let blobs = Arc::new(dir.blobs().expect("a sound store"));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let tenure = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let executor: Arc<dyn Executor> = Arc::new(Workers::default());
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let observer: Arc<dyn EngineObserver> = Arc::clone(observer) as Arc<dyn EngineObserver>;
    let engine = Engine::open(Box::new(log), blobs, clock, &tenure, options, observer, &executor);
    (engine.expect("a sound store"), dir)
}

pub(crate) fn content(n: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((n * 31 + at * 7) % 251).expect("below 251")).collect()
}

#[expect(clippy::disallowed_methods, reason = "a deadline")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Waits until it is true.
#[expect(clippy::disallowed_methods, reason = "with a deadline")]
pub(crate) fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let begun = now();
    while !is_true() {
        assert!(now() - begun < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
