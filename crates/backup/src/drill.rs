//! A drill: a backup is taken and restored, and the restored store is opened as a server opens it.
//!
//! **Invariant.** The store itself is only read. Everything is written below a directory of its own, which is removed in
//! any case; nothing listens on a socket, so that no client can mistake the copy for the server. Beside a server all of it goes
//! at the pace of a backup.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{Clock, Decision, Engine, Executor, MachineClock, Options, TenureConfig, Workers};
use kernel::{
    Action, Bundle, Command, Identity, LeaseRequest, Limits, Namespace, OnExpiry, Outcome, ResourceName,
    Response, Shard, Slot, Span, Store, Token,
};
use store::disk::{DiskDir, LogOptions, StoreFile};
use system::{hex, random};

use crate::error::BackupError;
use crate::manifest::Manifest;
use crate::pace::{Pace, Progress};
use crate::restore::{RestoreOptions, restore_at};
use crate::take::{BackupOptions, take};

/// What a drill has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drill {
    /// The backup that was taken.
    pub manifest: Manifest,
    /// How long it took to take and to verify it.
    pub backup: Duration,
    /// How long it took to restore it, without pauses for the server.
    pub restore: Duration,
    /// How long it took to open the restored store, until a lease was granted.
    pub start: Duration,
    /// The fencing token of that lease: above every token in the backup.
    pub token: u64,
}

/// Carries out a drill below `scratch`, which needs about twice the size of the store.
pub fn drill(
    store: &Path,
    scratch: &Path,
    options: &BackupOptions,
    progress: &dyn Progress,
    on_damage: &mut dyn FnMut(String),
) -> Result<Drill, BackupError> {
    let scratch = Scratch::create(scratch)?;
    let (backup_path, restored) = (scratch.0.join("backup"), scratch.0.join("restored"));
    let begun = now();
    let manifest = take(store, &backup_path, options, progress, on_damage)?;
    let backup = begun.elapsed();
    let pace = Pace::beside_server(progress, options.rate, Duration::MAX);
    restore_at(&backup_path, &restored, RestoreOptions { now_unix_ms: options.now_unix_ms }, &pace)?;
    let restore = pace.worked();
    let begun = now();
    let token = grant_one(&restored)?.0;
    let start = begun.elapsed();
    pace.rest();
    if token <= manifest.last_lsn() {
        return Err(BackupError::Damaged(format!(
            "the restored store issues a fencing token that is not above those of the backup; report this: token={token} \
             last_lsn={}",
            manifest.last_lsn()
        )));
    }
    Ok(Drill { manifest, backup, restore, start, token })
}

/// A directory that is removed when this is dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn create(parent: &Path) -> Result<Scratch, BackupError> {
        let path = parent.join(format!("lockd-drill-{}", hex::encode(&random::bytes::<8>())));
        store::private::create_dir(&path).map_err(|error| BackupError::io(&error, "creating", &path))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens a store and grants a lease, on the shard of the namespace `default`.
fn grant_one(path: &Path) -> Result<Token, BackupError> {
    let dir = open(path)?;
    let namespace = Namespace::new("default").expect("a valid name");
    let shard = dir.map().shard(Slot::of(&namespace).number());
    let slots = Slot::all().filter(|slot| dir.map().shard(slot.number()) == shard).collect();
    let (log, _) = dir.log(shard, LogOptions::SEGMENT_BYTES)?;
    let blobs = Arc::new(dir.blobs()?);
    let store = Store { shard: Shard(shard), shards: dir.file().shards, hash_seed: random::number() };
    let limits = Limits::default();
    let tenure = TenureConfig { store, writer: u128::from(random::number()), limits, slots };
    let clock = MachineClock::new();
    let clock = clock.map_err(|error| BackupError::io(&error, "reading the boot id", Path::new("/proc")))?;
    let (clock, executor): (Box<dyn Clock>, Arc<dyn Executor>) =
        (Box::new(clock), Arc::new(Workers::default()));
    let options = Options::default();
    let engine =
        Engine::open(Box::new(log), blobs, clock, &tenure, options, Arc::new(DrillObserver), &executor)
            .map_err(|error| BackupError::Damaged(format!("the restored store does not open: {error}")))?;
    let token = acquire(&engine, namespace);
    drop(engine);
    token
}

fn open(path: &Path) -> Result<DiskDir, BackupError> {
    let key_path = path.join("store.key");
    let key =
        std::fs::read(&key_path).map_err(|error| BackupError::io(&error, "reading a file", &key_path))?;
    let key = key.try_into().expect("the restored store was verified");
    Ok(DiskDir::open(path, StoreFile { store_id: 0, shards: 1 }, &key, true)?)
}

fn acquire(engine: &Engine, namespace: Namespace) -> Result<Token, BackupError> {
    let name = format!("lockd backup drill {}", hex::encode(&random::bytes::<8>()));
    let identity = Identity::new("lockd-backup-drill").expect("a valid name");
    let request = LeaseRequest {
        namespace,
        bundle: Bundle::of_key(ResourceName::key(&name).expect("a valid key")),
        ttl: Span(1000),
        on_expiry: OnExpiry::Free,
        owner: None,
        agent: None,
        session: None,
        attempt: None,
        reason: None,
        metadata: None,
    };
    let command = Command::by(&identity, Action::Acquire(request));
    match engine.sequencer().call(command, 0, None, None) {
        Some(Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)))) => Ok(granted.token),
        other => Err(BackupError::Damaged(format!("the restored store grants nothing: {other:?}"))),
    }
}

/// A failure shows as a lease that is not granted.
struct DrillObserver;

impl EngineObserver for DrillObserver {
    fn fatal(&self, _: Fatal) {}

    fn maintained(&self, _: MaintenanceEvent) {}
}

#[expect(clippy::disallowed_methods, reason = "how long a drill takes")]
fn now() -> Instant {
    Instant::now()
}
