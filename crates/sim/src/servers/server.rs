//! A simulated server: the real sequencer with its log and its blobs, on an executor whose schedule the seed decides.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use engine::document::{DocumentLocation, Pin};
use engine::internals::checkpoint::{self, CheckpointError, DocumentMove, TruncationPlan};
use engine::internals::decider::Decider;
use engine::internals::documents::{BlobId, Term, read_inline};
use engine::internals::executor::Executor;
use engine::internals::recovery::{DamagedSnapshot, RecoveryError, SnapshotDamage, recover};
use engine::internals::sequencer::{Ended, Health, Publish, Sequencer};
use engine::internals::shard::{Shard, StateDigest};
use engine::internals::uploads::Uploads;
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::waiters::{Attempt, Wait, WaiterConnection};
use engine::{Follower, ReplyTo, Submission, TenureConfig, Unavailable};
use kernel::{
    Close, Command, Cursor, Document, Kernel, Limits, Lsn, ResourceName, Span, Store, Time, Version,
};
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::object::{ObjectBlobs, ObjectLog, ObjectOptions, Objects, RetryPolicy, UploadOptions, WriterId};
use store::{BlobStore, ErrorKind, LogReader, LogStore, Seq, StoreError};

use super::client::{Content, namespace};
use super::clock::Machine;
use super::executor::SimExecutor;
use super::ledger::Ledger;
use super::outbox::{LogStep, ObservedLog, Outbox, PublishedReply, VersionRead};
use crate::disk::SimFs;
use crate::rng::Rng;

/// The number of a request in the simulation.
pub type RequestNumber = u64;

/// Where a server stores its log and its blobs.
pub enum Backend {
    /// On a disk that loses unsynced writes.
    Disk(SimFs),
    /// In an object store, as this writer.
    Objects(Arc<dyn Objects>, WriterId),
}

/// Why a server ended.
#[derive(Debug)]
pub enum ServerError {
    /// Its store failed: a power or network failure, or a takeover of the log.
    Store(StoreError),
    /// An invariant was violated.
    Violation(String),
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> ServerError {
        match error.kind {
            ErrorKind::Damaged => ServerError::Violation(error.to_string()),
            _ => ServerError::Store(error),
        }
    }
}

impl From<RecoveryError> for ServerError {
    fn from(error: RecoveryError) -> ServerError {
        match error {
            RecoveryError::Store(error) => error.into(),
            other => ServerError::Violation(other.to_string()),
        }
    }
}

/// A request as it reaches a server.
pub struct ServerRequest {
    /// Its number.
    pub number: RequestNumber,
    /// The command.
    pub command: Command,
    /// A document that is stored in the log.
    pub document: Option<Vec<u8>>,
    /// For a lease that conflicts with others.
    pub wait: Option<Wait>,
    /// The attempt that it presents as a retry.
    pub attempt: Option<Attempt>,
}

/// A running server. Dropping it ends its process: nothing more is decided, appended or published.
pub struct Server {
    sequencer: Arc<Sequencer>,
    executor: Arc<SimExecutor>,
    outbox: Outbox,
    reader: Box<dyn LogReader>,
    blobs: Arc<dyn BlobStore>,
    /// Uploads of long documents.
    pub uploads: Uploads,
    /// Its clocks.
    pub machine: Machine,
    /// The last state that the ledger has.
    seen: Lsn,
}

const STORE: Store = Store { shard: kernel::Shard(0), shards: 1, hash_seed: 77 };
/// The limits of small worlds.
pub const LIMITS: Limits = Limits {
    ttl_max: Span(60_000),
    hold_max: Span(20_000),
    leases_max: 40,
    leases_per_identity_max: 12,
    namespaces_max: 3,
    nodes_max: 100,
    documents_max: 6,
    agents_max: 6,
    agents_per_identity_max: 3,
    policies_max: 3,
    history_max: 10,
    history_members_max: 20,
    history_window: Span(3000),
    requests_max: 40,
    requests_per_identity_max: 20,
    request_window: Span(5000),
    step_max: 4,
};

/// The size of a world.
#[derive(Clone, Copy, Debug)]
pub struct WorldSize {
    /// The kernel's limits.
    pub limits: Limits,
    /// The length of a segment of a log on disk.
    pub segment_bytes: u64,
    /// Maximum tries of a request to the object store.
    pub tries: u32,
}

impl WorldSize {
    /// So small that every limit is reached, and a log has many segments.
    pub const SMALL: WorldSize = WorldSize { limits: LIMITS, segment_bytes: 16_000, tries: 6 };
    /// A batch of this size is appended before a small log gets more: its segments are the largest batch that it takes.
    pub const SMALL_BATCH: usize = 6000;
}

/// A sequencer sets no timer for longer than this.
pub const TIMER_MAX: Span = Span(5000);
/// A timer may be this late: it is not reset to be due two milliseconds earlier, and clocks count in milliseconds.
pub const TIMER_LATE: Span = Span(3);

impl Server {
    /// Recovers the store and starts a sequencer, which opens a tenure with its first batch. The ledger checks the
    /// recovered state.
    pub fn start(
        size: &WorldSize,
        backend: &Backend,
        machine: &Machine,
        writer: u128,
        ledger: &mut Ledger,
    ) -> Result<Server, ServerError> {
        let (log, blobs) = open(backend, size)?;
        let mut damaged = Vec::new();
        let kernel = recover(&*log, &*blobs, STORE.shard, &mut |snapshot| damaged.push(snapshot))?;
        damaged.iter().try_for_each(damage_found)?;
        let is_exclusive = matches!(backend, Backend::Disk(_));
        ledger.recovered(&kernel, is_exclusive).map_err(ServerError::Violation)?;
        let opening = TenureConfig { store: STORE, writer, limits: size.limits, slots: kernel::Slots::ALL };
        let durable = kernel.last_lsn();
        let decider = Decider::open(kernel, log.bounds().next, Box::new(machine.clone()), &opening)
            .map_err(|error| ServerError::Violation(error.to_string()))?;
        Server::serve(decider, durable, (log, blobs), machine, ledger)
    }

    /// Follows a log, which another server may own.
    pub fn follow(size: &WorldSize, backend: &Backend, machine: &Machine) -> Result<Follower, ServerError> {
        let (log, blobs) = open(backend, size)?;
        let damage = DamageObserver::default();
        let follower = Follower::open(log, blobs, Box::new(machine.clone()), STORE.shard, &damage);
        let follower = follower.map_err(|error| match error {
            // The log has changed while it was read.
            error if error.is_transient() => StoreError::new(ErrorKind::Gone, error.to_string()).into(),
            error => ServerError::from(error),
        })?;
        let found = damage.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.iter().try_for_each(damage_found)?;
        Ok(follower)
    }

    /// Opens a tenure behind what was followed, and starts a sequencer.
    pub fn take_over(
        follower: Follower,
        size: &WorldSize,
        backend: &Backend,
        machine: &Machine,
        writer: u128,
        ledger: &mut Ledger,
    ) -> Result<Server, ServerError> {
        let (log, kernel, read_at) = follower.into_parts();
        ledger.recovered(&kernel, false).map_err(ServerError::Violation)?;
        let opening = TenureConfig { store: STORE, writer, limits: size.limits, slots: kernel::Slots::ALL };
        let (durable, next) = (kernel.last_lsn(), log.bounds().next);
        let decider = Decider::open_after(kernel, next, read_at, Box::new(machine.clone()), &opening)
            .map_err(|error| ServerError::Violation(error.to_string()))?;
        Server::serve(decider, durable, (log, open_blobs(backend, size)?), machine, ledger)
    }

    /// Runs a sequencer, whose first batch opens the tenure.
    fn serve(
        decider: Decider,
        durable: Lsn,
        (log, blobs): OpenedStore,
        machine: &Machine,
        ledger: &mut Ledger,
    ) -> Result<Server, ServerError> {
        let outbox = Outbox::new(durable);
        let term = decider.kernel().tenure().expect("just opened").open.term;
        let uploads = Uploads::new(Arc::clone(&blobs), STORE.shard, Term(term));
        let (reader, executor) = (log.reader(), Arc::new(SimExecutor::new(machine)));
        let shared: Arc<dyn Executor> = Arc::<SimExecutor>::clone(&executor);
        let log = Box::new(ObservedLog::new(log, outbox.clone()));
        let observer = Box::new(outbox.clone());
        let mut audited = Shard::new(decider);
        audited.set_audited();
        let sequencer = Sequencer::start(audited, log, observer, 1, outbox.on_end(), &shared);
        let sequencer = Arc::new(sequencer);
        let (machine, seen) = (machine.clone(), Lsn(0));
        let mut server = Server { sequencer, executor, outbox, reader, blobs, uploads, machine, seen };
        server.observe(ledger)?;
        Ok(server)
    }

    /// Submits a request.
    pub fn submit(&mut self, request: ServerRequest, ledger: &mut Ledger) -> Result<(), ServerError> {
        self.sequencer.submit(self.submission(request));
        self.observe(ledger)
    }

    fn submission(&self, request: ServerRequest) -> Submission<ReplyTo> {
        let ServerRequest { number, command, document, wait, attempt } = request;
        let (to, on_decided) =
            (self.outbox.reply_to(number), Some(self.outbox.on_decided(number, &self.machine)));
        let correlation = u128::from(number);
        Submission {
            origin: correlation.into(),
            document,
            wait,
            attempt,
            on_decided,
            ..Submission::new(command, to)
        }
    }

    /// Submits requests while the next append of at least `bytes` bytes is in flight, by whichever job makes it.
    pub fn submit_during_append(&self, requests: Vec<ServerRequest>, bytes: usize) {
        let sequencer = Arc::downgrade(&self.sequencer);
        let submissions: Vec<_> = requests.into_iter().map(|request| self.submission(request)).collect();
        let submit = move || {
            let sequencer = sequencer.upgrade().expect("a server at work has its sequencer");
            for submission in submissions {
                sequencer.submit(submission);
            }
        };
        self.outbox.during_append(bytes, Box::new(submit));
    }

    /// Submits now what no append was large enough for.
    pub fn flush_arrivals(&mut self, ledger: &mut Ledger) -> Result<(), ServerError> {
        self.outbox.flush();
        self.observe(ledger)
    }

    /// The connection of a waiter has closed.
    pub fn disconnect(&self, connection: WaiterConnection) {
        self.sequencer.disconnect(connection);
    }

    /// Queries the versions of keys, and compares them with those that were acknowledged before.
    pub fn read_versions(&self, known: Vec<(&'static str, Option<Version>)>) -> Result<(), Unavailable> {
        let outbox = self.outbox.clone();
        self.sequencer.query(Box::new(move |shard| {
            let (kernel, lsn) = (shard.kernel(), shard.kernel().last_lsn());
            let read = |(key, known)| {
                let name = ResourceName::parse(key, None).expect("a valid name");
                VersionRead {
                    key,
                    lsn,
                    known,
                    found: kernel.key(&namespace(), &name).map(|view| view.version),
                }
            };
            let reads = known.into_iter().map(read).collect();
            Box::new(move || outbox.read(lsn, reads))
        }))
    }

    /// Runs one job of the server, chosen at random. False if there is none.
    pub fn step(&mut self, rng: &mut Rng, ledger: &mut Ledger) -> Result<bool, ServerError> {
        let has_run = self.executor.run_one(rng);
        self.observe(ledger)?;
        Ok(has_run)
    }

    /// Runs all jobs, and those that they spawn.
    pub fn settle(&mut self, rng: &mut Rng, ledger: &mut Ledger) -> Result<(), ServerError> {
        while self.step(rng, ledger)? {}
        Ok(())
    }

    /// Replies since the last call.
    pub fn take_replies(&self) -> Vec<PublishedReply> {
        self.outbox.take_replies()
    }

    /// Results of queries since the last call.
    pub fn take_reads(&self) -> Vec<VersionRead> {
        self.outbox.take_reads()
    }

    /// Reports to the ledger what has happened to the log, and deletes superseded blobs. Fails if the sequencer ended.
    fn observe(&mut self, ledger: &mut Ledger) -> Result<(), ServerError> {
        let state = self.sequencer.inspect(|shard| digest(shard.kernel()));
        if state.lsn != self.seen {
            self.seen = state.lsn;
            ledger.state_seen(state, None);
        }
        for step in self.outbox.take_steps() {
            match step {
                LogStep::Appending(last) => ledger.appending(last),
                LogStep::Appended(last) => ledger.appended(last),
                LogStep::Marked(state) => ledger.state_seen(state, None),
            }
        }
        if let Some(violation) = self.outbox.violation() {
            return Err(ServerError::Violation(violation));
        }
        for blob in self.outbox.take_superseded() {
            self.uploads.delete(blob)?;
        }
        match self.outbox.take_ended() {
            // A server that cannot open its tenure does not start; later a full disk ends nothing.
            Some(Ended::Failed(error)) if error.kind == ErrorKind::NoSpace && self.is_open() => {
                Err(ServerError::Violation(format!("a full disk ended the sequencer: {error}")))
            }
            Some(Ended::Failed(error) | Ended::Deposed(error)) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Gives the ledger the whole state, if the server has nothing in flight.
    pub fn show_state(&self, ledger: &mut Ledger) {
        if self.is_quiet() {
            let (state, snapshot) =
                self.sequencer.inspect(|shard| (digest(shard.kernel()), shard.kernel().snapshot()));
            ledger.state_seen(state, Some(snapshot));
        }
    }

    /// Reads the state, durable or not.
    pub fn inspect<T>(&self, read: impl FnOnce(&Shard<ReplyTo>) -> T) -> T {
        self.sequencer.inspect(read)
    }

    /// Kernel time now.
    pub fn now(&self) -> Time {
        self.sequencer.inspect(Shard::now)
    }

    /// Whether it can grant leases durably.
    pub fn health(&self) -> Health {
        self.sequencer.health()
    }

    /// The last record that is durable.
    pub fn durable(&self) -> Lsn {
        self.outbox.durable()
    }

    /// Whether it owns the log: its first batch is durable.
    pub fn is_open(&self) -> bool {
        self.outbox.has_appended()
    }

    /// The largest batch so far, in bytes.
    pub fn largest_batch(&self) -> usize {
        self.outbox.largest_batch()
    }

    /// The number of segments of its log, at the last mark.
    pub fn segments(&self) -> usize {
        self.outbox.mark().map_or(0, |mark| mark.extents.len())
    }

    /// Whether nothing is to be run now, and no batch is held back, in flight or undecided.
    pub fn is_quiet(&self) -> bool {
        !self.executor.has_jobs() && !self.health().is_undecided && !self.is_holding_back()
    }

    /// Whether it holds a batch back, so that it may grow.
    pub fn is_holding_back(&self) -> bool {
        self.sequencer.is_holding_back()
    }

    /// The time until its next timer is due.
    pub fn until_timer(&self) -> Option<Span> {
        self.executor.until_timer()
    }

    /// An append whose outcome is unknown is repeated: a timer is set for it.
    pub fn check_repetition(&self) -> Result<(), String> {
        let waits = (self.health().is_undecided || self.is_holding_back()) && !self.executor.has_jobs();
        if waits && self.until_timer().is_none() {
            return Err("an undecided append is never repeated, or a batch is held back for ever".into());
        }
        Ok(())
    }

    /// A server at rest has forgotten nothing: every decision is durable, and a timer is set for what is due next.
    pub fn check_at_rest(&self) -> Result<(), String> {
        let (lsn, due) = self.inspect(|shard| (shard.kernel().last_lsn(), shard.until_due()));
        if lsn != self.durable() {
            let durable = self.durable();
            return Err(format!("at rest {lsn:?} is decided, and only {durable:?} is durable"));
        }
        let timer = self.until_timer();
        match due {
            Some(due) if timer.is_none_or(|timer| timer.0 > due.0.min(TIMER_MAX.0) + TIMER_LATE.0) => {
                Err(format!("something is due in {due:?}, and the next timer in {timer:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Stops accepting commands. With its last reply it ends.
    pub fn close(&self, dismisses: bool) {
        if dismisses {
            self.sequencer.dismiss();
        }
        self.sequencer.close();
    }

    /// Hands the log over to this server, or to any: the last record says so. Not to be called without log space.
    pub fn hand_over(&self, to: Option<u128>) {
        assert!(self.sequencer.hand_over(Close { to }), "it was not closed before");
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let has_ended = self.sequencer.has_ended();
        if has_ended {
            // Returns at once.
            self.sequencer.wait_until_ended();
            assert!(self.sequencer.busy_for().is_none(), "no append is in flight after the end");
        }
        has_ended
    }

    /// A bug: a query panics, and the turn with it. To be called at rest. Fails unless the sequencer has ended.
    pub fn panic_in_turn(&self) -> Result<(), String> {
        // Without the panic hook, which would print it.
        let query = |_: &Shard<ReplyTo>| -> Publish { resume_unwind(Box::new("injected")) };
        let result = catch_unwind(AssertUnwindSafe(|| self.sequencer.query(Box::new(query))));
        let ended = self.outbox.take_ended();
        match (result, ended) {
            (Err(_), Some(Ended::Failed(_))) if self.has_ended() => {}
            (result, ended) => return Err(format!("a panic ended it as {ended:?}: {:?}", result.is_err())),
        }
        let refused = self.sequencer.query(Box::new(|_| -> Publish { unreachable!("it has ended") }));
        if refused == Err(Unavailable::Stopped) { Ok(()) } else { Err("it goes on after a panic".into()) }
    }

    /// Uploads a long document as a blob.
    pub fn upload(&self, bytes: &[u8]) -> Result<Pin, ServerError> {
        let mut upload = self.uploads.begin(7)?;
        for part in bytes.chunks(700) {
            upload.write(part)?;
        }
        Ok(upload.finish()?)
    }

    /// Takes a snapshot of the state at the last mark. Returns how far the log can be truncated.
    pub fn checkpoint(&mut self, retain: u64) -> Result<Option<TruncationPlan>, ServerError> {
        let Some(mark) = self.outbox.mark() else { return Ok(None) };
        let mut damaged = Vec::new();
        let mut on_damage = |snapshot| damaged.push(snapshot);
        let taken =
            checkpoint::take(&*self.blobs, &mut *self.reader, STORE.shard, &mark, retain, &mut on_damage);
        damaged.iter().try_for_each(damage_found)?;
        let taken = taken.map_err(checkpoint_failed)?;
        Ok(checkpoint::plan(&taken, &mut *self.reader, &mark, retain)?)
    }

    /// The request that relocates a document; `None` if an earlier plan relocated it.
    pub fn relocation(
        &mut self,
        step: &DocumentMove,
        number: RequestNumber,
    ) -> Result<Option<ServerRequest>, ServerError> {
        let document = match step.read(&mut *self.reader) {
            Err(error) if error.kind == ErrorKind::Gone => return Ok(None),
            other => other?,
        };
        Ok(Some(ServerRequest {
            number,
            command: step.command(),
            document: Some(document),
            wait: None,
            attempt: None,
        }))
    }

    /// Submits a request, and waits for the reply on the same thread. To be called at rest, without leases and on a disk.
    pub fn call(
        &mut self,
        request: ServerRequest,
        ledger: &mut Ledger,
    ) -> Result<Result<(), Unavailable>, ServerError> {
        let ServerRequest { number, command, document, wait, .. } = request;
        let reply = self.sequencer.call(command, u128::from(number), document, wait);
        self.observe(ledger)?;
        let ended = || StoreError::new(ErrorKind::Io, "the sequencer ended during a call");
        Ok(reply.ok_or_else(ended)?.map(drop))
    }

    /// Truncates the log, as soon as it is not in use.
    pub fn raise_floor(&self, floor: Seq) {
        self.sequencer.raise_floor(floor);
    }

    /// Deletes blobs without a reference in the durable state. Runs jobs at the same time.
    pub fn sweep(&mut self, rng: &mut Rng, ledger: &mut Ledger) -> Result<usize, ServerError> {
        let (sequencer, executor) = (&self.sequencer, &self.executor);
        let swept = self.uploads.sweep(|| referenced_blobs(sequencer, executor, rng));
        self.observe(ledger)?;
        Ok(swept?)
    }

    /// Every document, with its key.
    pub fn documents(&self) -> Vec<(String, Document)> {
        self.inspect(|shard| documents(shard.kernel()))
    }

    /// A document's bytes.
    pub fn read(&mut self, document: &Document) -> Result<Vec<u8>, StoreError> {
        match DocumentLocation::of(document.location) {
            DocumentLocation::Inline { lsn, .. } => read_inline(&mut *self.reader, lsn),
            DocumentLocation::Blob(blob) => self.blobs.read(&blob.name(), 0, 1 << 20),
        }
    }

    /// Every document reads back as committed. To be called at rest. A log that another server may own promises nothing.
    pub fn check_documents(&mut self, is_owner: bool) -> Result<(), ServerError> {
        for (key, document) in self.documents() {
            let content = Content::of(document.etag);
            match self.read(&document) {
                Ok(bytes) if bytes == content.bytes() => {}
                Ok(bytes) => {
                    return Err(ServerError::Violation(format!(
                        "{key} has other contents than committed: {} bytes, {content:?}",
                        bytes.len()
                    )));
                }
                Err(error) if error.kind == ErrorKind::Gone && is_owner => {
                    return Err(ServerError::Violation(format!(
                        "the document of {key} is missing: {document:?}: {error}"
                    )));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The number of document blobs in the store, referenced or not.
    pub fn blobs(&self) -> Result<usize, StoreError> {
        Ok(self.blobs.list(&BlobId::prefix(STORE.shard))?.len())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.executor.kill();
        self.sequencer.abandon();
    }
}

fn digest(kernel: &Kernel) -> StateDigest {
    StateDigest { lsn: kernel.last_lsn(), hash: kernel.state_hash() }
}

/// Queries the documents, and runs jobs until the result is published. `None` if the log does not get that far.
fn referenced_blobs(
    sequencer: &Sequencer,
    executor: &SimExecutor,
    rng: &mut Rng,
) -> Option<BTreeSet<BlobId>> {
    let result: Arc<Mutex<Option<BTreeSet<BlobId>>>> = Arc::default();
    let to = Arc::clone(&result);
    let query = sequencer.query(Box::new(move |shard| {
        let documents = documents(shard.kernel()).into_iter();
        let blobs = documents.filter_map(|(_, document)| match DocumentLocation::of(document.location) {
            DocumentLocation::Blob(blob) => Some(blob),
            DocumentLocation::Inline { .. } => None,
        });
        let blobs = blobs.collect();
        Box::new(move || *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(blobs))
    }));
    query.ok()?;
    loop {
        let published = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        if published.is_some() || !executor.run_one(rng) {
            return published;
        }
    }
}

fn documents(kernel: &Kernel) -> Vec<(String, Document)> {
    let all = kernel.documents_from(Cursor::default());
    all.filter_map(|(_, _, key, view)| Some((key.as_str().to_string(), view.document?))).collect()
}

fn checkpoint_failed(error: CheckpointError) -> ServerError {
    match error {
        CheckpointError::Store(error) => error.into(),
        CheckpointError::Unreadable(snapshot) => match damage_found(&snapshot) {
            Ok(()) => StoreError::new(ErrorKind::Io, "reading back a snapshot failed").into(),
            Err(violation) => violation,
        },
        CheckpointError::Diverged(what) => ServerError::Violation(what),
    }
}

/// Simulated devices fail to read, but damage nothing.
fn damage_found(snapshot: &DamagedSnapshot) -> Result<(), ServerError> {
    match snapshot.damage {
        SnapshotDamage::Device(_) => Ok(()),
        _ => Err(ServerError::Violation(format!("a damaged snapshot: {snapshot}"))),
    }
}

/// Notes the snapshots that a follower could not use.
#[derive(Default)]
struct DamageObserver(Mutex<Vec<DamagedSnapshot>>);

impl EngineObserver for DamageObserver {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn maintained(&self, event: MaintenanceEvent) {
        if let MaintenanceEvent::SnapshotDamaged(snapshot) = event {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(snapshot);
        }
    }
}

type OpenedStore = (Box<dyn LogStore>, Arc<dyn BlobStore>);

fn open(backend: &Backend, size: &WorldSize) -> Result<OpenedStore, StoreError> {
    match backend {
        Backend::Disk(fs) => {
            let options = LogOptions { shard: 0, store_id: 9, segment_bytes: size.segment_bytes };
            let (log, _) = DiskLog::open(fs.clone(), Path::new("/store/log"), options)?;
            Ok((Box::new(log), open_blobs(backend, size)?))
        }
        Backend::Objects(objects, writer) => {
            let objects = Arc::clone(objects);
            let options = ObjectOptions { index_batches: 4, ..ObjectOptions::new(0, 9, *writer) };
            let log = ObjectLog::open(objects, options, RetryPolicy::without_pause(size.tries))?;
            Ok((Box::new(log), open_blobs(backend, size)?))
        }
    }
}

fn open_blobs(backend: &Backend, size: &WorldSize) -> Result<Arc<dyn BlobStore>, StoreError> {
    match backend {
        Backend::Disk(fs) => Ok(Arc::new(DiskBlobs::open(fs.clone(), Path::new("/store/blob"))?)),
        Backend::Objects(objects, _) => {
            // Long documents and most snapshots have several parts.
            let parts = UploadOptions::parts_of(500);
            let tries = RetryPolicy::without_pause(size.tries);
            Ok(Arc::new(ObjectBlobs::new(Arc::clone(objects), tries, parts)))
        }
    }
}
