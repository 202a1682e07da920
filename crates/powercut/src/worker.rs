//! The process that is killed: an engine, and clients that keep it busy.
//!
//! Segments are as small as possible and snapshots frequent, so that kills often happen at a segment change, during the
//! relocation of documents, while the floor is raised, or during the garbage collection of blobs.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use engine::document::DocumentLocation;
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{Decision, Engine, Executor, MachineClock, Options, TenureConfig, Workers};
use kernel::{
    Action, Bundle, Command, Commit, Credential, Cursor, Event, Identity, LeaseView, Limits, Location, Lsn,
    Member, Outcome, Predicate, Renewal, Response, Span, State, Store, Write,
};
use sim::fixture::{grant, identity};
use sim::rng::Rng;
use store::StoreError;
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::fs::RealFs;

use crate::message::{ClientId, Content, KeyIndex, LeaseLsn, WorkerMessage, WorkerRequest, WorkerResponse};
use crate::store_in;

/// The arguments of a worker.
#[derive(Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    dir: PathBuf,
    /// Number of clients; with 0 it only opens the store
    #[arg(long)]
    clients: u32,
    #[arg(long)]
    seed: u64,
}

/// Longer than any run: no lease expires.
const TTL: Span = Span(30 * 86_400_000);
/// Longer documents are blobs; in bytes.
const INLINE_MAX: u64 = 60 << 10;
const BLOB_MAX: u64 = 300 << 10;

pub(crate) const LOG: LogOptions = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };

struct Reporter;

impl EngineObserver for Reporter {
    fn fatal(&self, why: Fatal) {
        let _ = WorkerMessage::StoreFailed(why.to_string()).write();
    }

    fn durable(&self, _: &[(Lsn, Vec<Event>)]) {}

    fn maintained(&self, event: MaintenanceEvent) {
        let message = match event {
            MaintenanceEvent::Snapshot { moved, .. } => WorkerMessage::Snapshot { moved },
            MaintenanceEvent::Swept(blobs) => WorkerMessage::Swept(blobs),
            MaintenanceEvent::SnapshotDamaged(snapshot) => WorkerMessage::StoreFailed(snapshot.to_string()),
            MaintenanceEvent::Failed(error) => WorkerMessage::StoreFailed(error.to_string()),
        };
        let _ = message.write();
    }
}

/// Works until it is killed, or the reader of its messages has gone.
pub(crate) fn work(args: &WorkerArgs) -> Result<(), String> {
    let engine = open(&args.dir)?;
    let (term, leases) = read_state(&engine).ok_or("the engine has ended")?;
    WorkerMessage::Opened { term }.write().map_err(|error| error.to_string())?;
    std::thread::scope(|scope| {
        for number in (0..args.clients).map(ClientId) {
            let owned =
                leases.iter().filter(|view| view.identity == number.identity()).map(OwnedLease::of).collect();
            let rng = Rng::new(args.seed ^ u64::from(number.0) << 48);
            let mut thread = ClientThread { engine: &engine, me: number, rng, leases: owned };
            scope.spawn(move || while thread.one_call().is_some() {});
        }
    });
    // Returns when the parent process has ended.
    io::stdin().read_to_end(&mut Vec::new()).map_err(|error| error.to_string())?;
    Ok(())
}

fn open(dir: &Path) -> Result<Engine, String> {
    let text = |error: StoreError| error.to_string();
    let (log, blob) = store_in(dir);
    let log = DiskLog::open(RealFs, &log, LOG).map_err(text)?.0;
    let blobs = Arc::new(DiskBlobs::open(RealFs, &blob).map_err(text)?);
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = TenureConfig {
        store,
        writer: 1,
        limits: Limits { ttl_max: TTL, ..Limits::default() },
        slots: kernel::Slots::ALL,
    };
    let clock = Box::new(MachineClock::new().map_err(|error| error.to_string())?);
    let options = Options {
        snapshot_every: 512 << 10,
        retain: 0,
        sweep_every: Duration::from_millis(20),
        ..Options::default()
    };
    let executor: Arc<dyn Executor> = Arc::new(Workers::default());
    Engine::open(Box::new(log), blobs, clock, &opening, options, Arc::new(Reporter), &executor)
        .map_err(|error| error.to_string())
}

/// The term and all leases, once they are durable.
fn read_state(engine: &Engine) -> Option<(u64, Vec<LeaseView>)> {
    let (send, receive) = channel();
    let query = engine.sequencer().query(Box::new(move |shard| {
        let (kernel, now) = (shard.kernel(), shard.now());
        let term = kernel.tenure().map_or(0, |tenure| tenure.open.term);
        let leases: Vec<LeaseView> =
            kernel.leases_from(Cursor::default(), now).map(|(_, view)| view).collect();
        Box::new(move || drop(send.send((term, leases))))
    }));
    query.ok()?;
    receive.recv().ok()
}

impl ClientId {
    pub(crate) fn identity(self) -> Identity {
        identity(&format!("client-{}", self.0))
    }
}

/// A lease of a client.
#[derive(Clone)]
struct OwnedLease {
    held: Credential,
    keys: Vec<KeyIndex>,
    revoked: bool,
}

impl OwnedLease {
    fn of(view: &LeaseView) -> OwnedLease {
        let client =
            view.identity.as_str().trim_start_matches("client-").parse().map_or(ClientId(0), ClientId);
        let covers = |key: &KeyIndex| view.members.iter().any(|member| member.resource == key.name(client));
        OwnedLease {
            held: Credential { lease: view.id, epoch: view.epoch },
            keys: KeyIndex::all().filter(covers).collect(),
            revoked: view.state == State::Revoking,
        }
    }

    fn lease(&self) -> LeaseLsn {
        LeaseLsn::from(self.held.lease)
    }
}

struct ClientThread<'a> {
    engine: &'a Engine,
    me: ClientId,
    rng: Rng,
    leases: Vec<OwnedLease>,
}

impl ClientThread<'_> {
    /// Makes one random call. `None` if the worker cannot continue.
    fn one_call(&mut self) -> Option<()> {
        let free: Vec<KeyIndex> = KeyIndex::all().filter(|key| self.read_lsn(*key).is_none()).collect();
        if self.leases.is_empty() || (!free.is_empty() && self.rng.one_in(3)) {
            return self.acquire(&free);
        }
        let one = usize::try_from(self.rng.below(self.leases.len() as u64)).expect("below a length");
        let owned = self.leases[one].clone();
        match self.rng.below(12) {
            _ if owned.revoked => {
                self.end(one, WorkerRequest::Reclaim(owned.lease()), Action::Reclaim(owned.held.lease))
            }
            0 => self.end(one, WorkerRequest::Release(owned.lease()), Action::Release(owned.held)),
            1 => self.revoke(one, &owned),
            2 => self.renew(&owned),
            _ => self.commit(one, &owned),
        }
    }

    fn read_lsn(&self, key: KeyIndex) -> Option<&OwnedLease> {
        self.leases.iter().find(|owned| owned.keys.contains(&key))
    }

    /// Reports the request, makes the call, and reports the response. `None` if there is none.
    fn call(
        &self,
        request: WorkerRequest,
        action: Action,
        document: Option<Vec<u8>>,
    ) -> Option<WorkerResponse> {
        WorkerMessage::Request(self.me, request).write().ok()?;
        let command = Command::by(&self.me.identity(), action);
        let outcome = match self.engine.sequencer().call(command, 1, document, None)? {
            Ok(Decision::Outcome(outcome)) => outcome,
            Ok(Decision::Blocked(blocked)) => return self.violation(&format!("{blocked:?}")),
            Err(why) => return Self::store_failed(format!("request not accepted: {why:?}")),
        };
        let response = match outcome {
            Outcome::Applied(Response::Granted(granted), _) => {
                WorkerResponse::Granted { lease: LeaseLsn::from(granted.lease), deadline: granted.deadline.0 }
            }
            Outcome::Applied(Response::Renewed(renewed), _) => match &renewed[..] {
                [Ok(live)] => WorkerResponse::Renewed { deadline: live.deadline.0 },
                other => return self.violation(&format!("{other:?}")),
            },
            Outcome::Applied(Response::Committed(version), _) => {
                WorkerResponse::Committed { version: version.0 }
            }
            Outcome::Applied(Response::Released | Response::Revoking(_) | Response::Reclaimed(_), _) => {
                WorkerResponse::Done
            }
            other => return self.violation(&format!("{other:?}")),
        };
        WorkerMessage::Response(self.me, response).write().ok()?;
        Some(response)
    }

    fn violation<T>(&self, what: &str) -> Option<T> {
        let _ =
            WorkerMessage::Violation(format!("unexpected response to client {}: {what}", self.me.0)).write();
        None
    }

    fn store_failed<T>(what: String) -> Option<T> {
        let _ = WorkerMessage::StoreFailed(what).write();
        None
    }

    /// Acquires one or two keys.
    fn acquire(&mut self, free: &[KeyIndex]) -> Option<()> {
        let mut keys = vec![*self.rng.pick(free), *self.rng.pick(free)];
        keys.sort_unstable();
        keys.dedup();
        let member = |key: &KeyIndex| Member { resource: key.name(self.me), predicate: Predicate::Mutates };
        let bundle = Bundle::new(keys.iter().map(member).collect()).expect("one or two keys");
        match self.call(WorkerRequest::Acquire(keys.clone()), Action::Acquire(grant(bundle, TTL)), None)? {
            WorkerResponse::Granted { lease, .. } => {
                let held = Credential { lease: lease.id(), epoch: kernel::Epoch::FIRST };
                self.leases.push(OwnedLease { held, keys, revoked: false });
                Some(())
            }
            other => self.violation(&format!("{other:?}")),
        }
    }

    fn end(&mut self, one: usize, request: WorkerRequest, action: Action) -> Option<()> {
        self.call(request, action, None)?;
        self.leases.swap_remove(one);
        Some(())
    }

    fn revoke(&mut self, one: usize, owned: &OwnedLease) -> Option<()> {
        self.call(WorkerRequest::Revoke(owned.lease()), Action::Revoke(owned.held.lease), None)?;
        self.leases[one].revoked = true;
        Some(())
    }

    fn renew(&self, owned: &OwnedLease) -> Option<()> {
        let action = Action::Renew(vec![Renewal { held: owned.held, ttl: None }]);
        self.call(WorkerRequest::Renew(owned.lease()), action, None).map(drop)
    }

    /// The last key's document changes rarely, so that checkpoints have to relocate it.
    fn commit(&mut self, one: usize, owned: &OwnedLease) -> Option<()> {
        let mut key = *self.rng.pick(&owned.keys);
        if key.0 + 1 == KeyIndex::COUNT && !self.rng.one_in(20) {
            key = owned.keys[0];
        }
        let as_blob = self.rng.one_in(10);
        let bytes = if as_blob { self.rng.below(BLOB_MAX) } else { self.rng.below(INLINE_MAX) };
        let content = Content { id: self.rng.number(), bytes: usize::try_from(bytes).expect("short") };
        let release = self.rng.one_in(10);
        let request = WorkerRequest::Commit { lease: owned.lease(), key, content, release };
        let slow = self.rng.one_in(3);
        let done = if as_blob { self.upload(request, owned, slow) } else { self.inline(request, owned.held) };
        done?;
        if release {
            self.leases.swap_remove(one);
        }
        Some(())
    }

    fn inline(&self, request: WorkerRequest, held: Credential) -> Option<WorkerResponse> {
        let (action, content) = self.writing(&request, held, Location::default())?;
        self.call(request, action, Some(content.make()))
    }

    /// If `slow`, garbage collection runs between the upload and its commit.
    fn upload(&self, request: WorkerRequest, owned: &OwnedLease, slow: bool) -> Option<WorkerResponse> {
        let (_, content) = self.writing(&request, owned.held, Location::default())?;
        let uploaded = || {
            let mut upload = self.engine.uploads().begin(7)?;
            content.make().chunks(64 << 10).try_for_each(|part| upload.write(part))?;
            upload.finish()
        };
        match uploaded() {
            Ok(pin) => {
                (0..if slow { 20 } else { 0 }).try_for_each(|_| self.renew(owned))?;
                let (action, _) =
                    self.writing(&request, owned.held, DocumentLocation::Blob(pin.blob()).location())?;
                self.call(request, action, None)
            }
            Err(error) => Self::store_failed(error.to_string()),
        }
    }

    fn writing(
        &self,
        request: &WorkerRequest,
        held: Credential,
        location: Location,
    ) -> Option<(Action, Content)> {
        let WorkerRequest::Commit { key, content, release, .. } = request else { return None };
        let (key, release) = (key.name(self.me), *release);
        let write = Write { held, key, token: None, if_version: None, if_etag: None, release };
        let commit = Commit { write, etag: content.etag(), bytes: content.bytes as u64, location };
        Some((Action::Commit(commit), *content))
    }
}
