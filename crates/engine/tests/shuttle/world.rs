//! The environment of a scenario: an executor, a clock and a log whose steps the model checker schedules, and clients
//! that check their replies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use engine::internals::decider::Decider;
use engine::internals::executor::{Executor, Job, OnDue, Timer};
use engine::internals::record::decode_batch;
use engine::internals::sequencer::{Ended, Sequencer};
use engine::internals::shard::Shard;
use engine::waiters::{Wait, WaiterConnection};
use engine::{
    Authorization, Clock, Decision, Delivery, OnDecided, Reply, ReplyTo, Submission, TenureConfig,
    Unavailable,
};
use kernel::{Action, Command, Granted, Kernel, Limits, Outcome, Response, Span, Store};
use shuttle::sync::Mutex;
use shuttle::sync::mpsc::{Receiver, channel};
use shuttle::thread;
use sim::fixture::{grant, identity, key};
use store::memory::MemoryLog;
use store::{Bounds, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange, Seq, StoreError};

/// Jobs are threads, so that the model checker schedules them; timers are due when the scenario's clock says so.
#[derive(Clone, Default)]
pub(crate) struct Threads {
    clock: TestClock,
    /// A panic ends its thread only, as in a server.
    survives_panics: bool,
    timers: Arc<Mutex<Vec<Arc<ModelTimer>>>>,
}

struct ModelTimer {
    due: Mutex<Option<u64>>,
    on_due: OnDue,
    clock: TestClock,
}

struct TimerHandle(Arc<ModelTimer>);

impl Timer for TimerHandle {
    fn set(&self, delay: Duration) {
        let at =
            self.0.clock.0.load(Ordering::Relaxed) + u64::try_from(delay.as_millis()).expect("milliseconds");
        *self.0.due.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }
}

impl Executor for Threads {
    fn spawn(&self, job: Job) {
        self.start(job);
    }

    fn spawn_background(&self, job: Job) {
        self.start(job);
    }

    fn timer(&self, on_due: OnDue) -> Box<dyn Timer> {
        let timer = Arc::new(ModelTimer { due: Mutex::new(None), on_due, clock: self.clock.clone() });
        self.timers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&timer));
        Box::new(TimerHandle(timer))
    }
}

impl Threads {
    fn start(&self, job: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
        let survives = self.survives_panics;
        thread::spawn(move || {
            if survives {
                let _ = catch_unwind(AssertUnwindSafe(job));
            } else {
                job();
            }
        })
    }

    /// Lets time pass, and runs the timers that are due by then, each on a thread of its own.
    fn advance(&self, ms: u64) {
        let now = self.clock.0.fetch_add(ms, Ordering::Relaxed) + ms;
        let timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for timer in timers {
            let mut due = timer.due.lock().unwrap_or_else(PoisonError::into_inner);
            if due.is_some_and(|due| due <= now) {
                *due = None;
                let timer = Arc::clone(&timer);
                thread::spawn(move || (timer.on_due)());
            }
        }
    }
}

#[derive(Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl Clock for TestClock {
    fn boot_clock(&self) -> Span {
        Span(self.0.load(Ordering::Relaxed))
    }

    fn boot_id(&self) -> u128 {
        1
    }

    fn unix_micros(&self) -> u64 {
        1_800_000_000_000_000
    }
}

/// How the log behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogKind {
    /// Appends at once, on the submitting thread.
    Instant,
    /// Other threads run during an append.
    Slow,
    /// The append of this batch fails.
    Fails(u64),
    /// The first try to append this batch has no known outcome.
    Undecided(u64),
    /// Another writer has this batch.
    Taken(u64),
    /// There is no space until the floor is raised.
    Full,
}

/// A log in memory, with scheduling points.
struct ModelLog {
    kind: LogKind,
    memory: MemoryLog,
    tries: u64,
    is_full: bool,
}

impl LogStore for ModelLog {
    fn bounds(&self) -> Bounds {
        self.memory.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        if self.kind != LogKind::Instant {
            thread::yield_now();
        }
        let error = |kind| Err(StoreError::new(kind, "the scenario says so"));
        match self.kind {
            LogKind::Fails(at) if at == seq.0 => return error(ErrorKind::Io),
            LogKind::Taken(at) if at == seq.0 => return error(ErrorKind::Taken),
            LogKind::Undecided(at) if at == seq.0 && self.tries == 0 => {
                self.tries = 1;
                return error(ErrorKind::Undecided);
            }
            _ => {}
        }
        self.memory.append(seq, lsns, payload)
    }

    fn is_instant(&self) -> bool {
        self.kind == LogKind::Instant
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        if self.is_full { Err(StoreError::new(ErrorKind::NoSpace, "full")) } else { Ok(()) }
    }

    fn capacity(&self) -> LogCapacity {
        LogCapacity { bytes: 4 << 20, spare: !self.is_full }
    }

    fn raise_floor(&mut self, _: Seq) -> Result<(), StoreError> {
        self.is_full = false;
        Ok(())
    }

    fn extents(&self) -> Vec<Extent> {
        self.memory.extents()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        self.memory.reader()
    }
}

/// A sequencer and its surroundings.
pub(crate) struct World {
    /// `None` once it is closed.
    sequencer: Option<Arc<Sequencer>>,
    threads: Threads,
    log: MemoryLog,
    /// Why it ended, if not by being closed.
    pub(crate) ended: Arc<Mutex<Option<bool>>>,
}

/// A client's side of a request.
pub(crate) struct Request {
    reply: Receiver<Reply>,
    /// The connection of a request that may wait.
    pub(crate) connection: WaiterConnection,
}

impl World {
    /// Starts a sequencer on an empty log.
    pub(crate) fn new(kind: LogKind) -> World {
        World::with(kind, Threads::default())
    }

    /// The same, where a panic ends its thread only.
    pub(crate) fn surviving_panics(kind: LogKind) -> World {
        World::with(kind, Threads { survives_panics: true, ..Threads::default() })
    }

    fn with(kind: LogKind, threads: Threads) -> World {
        let log = MemoryLog::default();
        let tenure = TenureConfig {
            store: Store { shard: kernel::Shard(0), shards: 1, hash_seed: 1 },
            writer: 1,
            limits: Limits::default(),
            slots: kernel::Slots::ALL,
        };
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(threads.clock.clone()), &tenure);
        let shard = Shard::new(decider.expect("a valid clock"));
        let model = ModelLog { kind, memory: log.clone(), tries: 0, is_full: kind == LogKind::Full };
        let ended = Arc::new(Mutex::new(None));
        let why = Arc::clone(&ended);
        let on_end = Box::new(move |ended| {
            let is_failed = matches!(ended, Ended::Failed(_));
            assert_eq!(
                why.lock().unwrap_or_else(PoisonError::into_inner).replace(is_failed),
                None,
                "it ends once"
            );
        });
        let executor: Arc<dyn Executor> = Arc::new(threads.clone());
        let sequencer = Sequencer::start(shard, Box::new(model), Box::new(()), u64::MAX, on_end, &executor);
        World { sequencer: Some(Arc::new(sequencer)), threads, log, ended }
    }

    /// The sequencer, for another thread.
    pub(crate) fn sequencer(&self) -> Arc<Sequencer> {
        Arc::clone(self.sequencer.as_ref().expect("it is not closed yet"))
    }

    /// A thread that uses the sequencer.
    pub(crate) fn spawn(&self, body: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
        let world = World {
            sequencer: self.sequencer.clone(),
            threads: self.threads.clone(),
            log: self.log.clone(),
            ended: Arc::clone(&self.ended),
        };
        self.threads.start(move || body(&world))
    }

    /// Lets time pass.
    pub(crate) fn advance(&self, ms: u64) {
        self.threads.advance(ms);
    }

    /// Closes the sequencer, and returns when it has ended.
    pub(crate) fn close(mut self) {
        drop(self.sequencer.take());
    }

    /// The commands in the log, by name.
    pub(crate) fn logged(&self) -> Vec<&'static str> {
        let mut reader = self.log.reader();
        let batches = (0..self.log.bounds().next.0).map(|seq| reader.read(Seq(seq)).expect("in the log"));
        let decode =
            |batch: store::Batch| decode_batch(&batch.payload, kernel::Shard(0)).expect("just encoded");
        batches.flat_map(|batch| decode(batch).records).map(|record| record.command.action.name()).collect()
    }

    /// Submits an acquire that waits for up to a minute.
    pub(crate) fn acquire(&self, name: &str, resource: &str, ttl_ms: u64) -> Request {
        self.submit(name, Action::Acquire(grant(key(resource), Span(ttl_ms))), None)
    }

    /// Submits any command.
    pub(crate) fn submit(&self, name: &str, action: Action, on_decided: Option<OnDecided>) -> Request {
        self.submit_as(name, &Authorization::default(), action, on_decided)
    }

    /// Submits any command of a client with this authorization.
    pub(crate) fn submit_as(
        &self,
        name: &str,
        authorization: &Authorization,
        action: Action,
        on_decided: Option<OnDecided>,
    ) -> Request {
        let (send, reply) = channel();
        let connection = WaiterConnection::new(authorization.clone());
        let wait = Some(Wait { timeout: Span(60_000), connection: connection.clone() });
        let wait = wait.filter(|_| matches!(action, Action::Acquire(_)));
        let log = self.log.clone();
        let ended = Arc::clone(&self.ended);
        let to: ReplyTo = Box::new(move |reply: Reply, delivery: Delivery| {
            let is_ended = *ended.lock().unwrap_or_else(PoisonError::into_inner);
            assert!(
                is_ended.is_none() || reply.is_err(),
                "a reply after the failure was reported: {reply:?}"
            );
            assert_durable(&log, &reply);
            delivery.settle(send.send(reply).is_ok());
        });
        let command = Command::by(&identity(name), action);
        let authorization = authorization.clone();
        let submission = Submission { wait, authorization, on_decided, ..Submission::new(command, to) };
        self.sequencer().submit(submission);
        Request { reply, connection }
    }

    /// Queries the state, and waits for the result.
    pub(crate) fn query(&self) -> Option<u64> {
        let (send, result) = channel();
        let query = self.sequencer().query(Box::new(move |shard| {
            let lsn = shard.kernel().last_lsn().0;
            Box::new(move || {
                let _ = send.send(lsn);
            })
        }));
        query.ok()?;
        let lsn = result.recv().ok()?;
        assert!(lsn <= last_lsn(&self.log), "a query revealed what is not durable");
        Some(lsn)
    }
}

impl Request {
    /// The reply; `None` if the sequencer ended without one.
    pub(crate) fn reply(&self) -> Option<Reply> {
        self.reply.recv().ok()
    }

    /// The lease that the reply grants.
    pub(crate) fn granted(&self) -> Granted {
        let reply = self.reply();
        granted(reply.as_ref()).unwrap_or_else(|| panic!("not granted: {reply:?}"))
    }
}

/// The lease that a reply grants.
pub(crate) fn granted(reply: Option<&Reply>) -> Option<Granted> {
    match reply {
        Some(Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)))) => Some(*granted),
        _ => None,
    }
}

/// Whether the sequencer refused because it has stopped, or another server owns the shard.
pub(crate) fn is_stopped(reply: Option<&Reply>) -> bool {
    matches!(
        reply,
        Some(Err(Unavailable::Dismissed(_)
            | Unavailable::Stopped
            | Unavailable::Deposed
            | Unavailable::Moved(_)))
    )
}

fn assert_durable(log: &MemoryLog, reply: &Reply) {
    if let Some(granted) = granted(Some(reply)) {
        assert!(granted.token.0 <= last_lsn(log), "a grant was revealed before it was durable");
    }
}

fn last_lsn(log: &MemoryLog) -> u64 {
    let next = log.bounds().next;
    let Some(last) = next.0.checked_sub(1) else { return 0 };
    log.reader().read(Seq(last)).expect("it is in memory").lsns.last.0
}
