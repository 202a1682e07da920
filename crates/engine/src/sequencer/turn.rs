//! The turn: decides what has arrived, appends it, publishes it. Every thread that drives a shard runs this function.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kernel::{LeaseId, Span, Time};
use store::{BATCH_MAX, ErrorKind, LogStore, StoreError};

use super::batch::PendingBatch;
use super::batch_limits::BatchLimits;
use super::fair_queue::FairQueue;
use super::inbox::{Capacity, Inbox, is_lease_request};
use super::pacing::Pacing;
use super::{
    BatchObserver, Ended, Health, MarkInterval, OnEnd, Publish, QUEUE_MAX, ReplyTo, SequencerOptions,
};
use crate::checkpoint::Mark;
use crate::decider::BATCH_BYTES;
use crate::decision::Unavailable;
use crate::executor::{Executor, Timer};
use crate::shard::{LogSpace, Shard};
use crate::stopwatch::Stopwatch;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError, TryLockError, lock};

/// More than the last command of a batch adds to it, with the frame around it.
const RECORD_BYTES: usize = BATCH_BYTES / 4;
/// Maximum number of connections and deliveries that a turn looks at.
const REPORTS_MAX: usize = 256;
/// Releases, revokes and ticks are accepted while the log has this much space: more than a batch of them can have.
const RESERVE_MIN: u64 = BATCH_BYTES as u64 + (256 << 10);
/// The interval at which a log without space is polled, and an undecided append repeated.
const RETRY: Duration = Duration::from_millis(250);
/// A log on another machine whose append takes longer than this is not ready.
const APPEND_MAX: Duration = Duration::from_secs(2);
/// Maximum number of turns that a submitting thread runs before it leaves the rest to a worker.
const TURNS_MAX: usize = if cfg!(feature = "shuttle") { 2 } else { 8 };
/// The timer of the executor may stand still while the machine sleeps, and the shard's clock does not.
const TIMER_MAX: Span = Span(5000);
/// A timer is not reset to be due earlier by less than this.
const EARLIER: Span = Span(2);

/// The operations that the thread may use that runs turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runner {
    /// It appends the batch itself. Otherwise a worker does.
    appends: bool,
    /// It waits for `core`. Otherwise it leaves its work to the thread that has it.
    waits: bool,
    /// The number of turns after which it leaves the rest to a worker.
    turns: usize,
}

impl Runner {
    /// A thread of the executor, or of an owner that closes the sequencer.
    pub(super) const WORKER: Runner = Runner { appends: true, waits: true, turns: usize::MAX };
    /// A submitting thread that appends: it waits for its reply anyway, or an append does not block. It does not wait for
    /// `core`: many such threads would wait in line for it, although one of them decides for all.
    pub(super) const APPENDING: Runner = Runner { appends: true, waits: false, turns: TURNS_MAX };
    /// The thread that publishes a batch: another appends the next one meanwhile.
    const PUBLISHING: Runner = Runner { appends: false, waits: true, turns: 1 };
    /// A submitting thread that must not block.
    const NON_BLOCKING: Runner = Runner { appends: false, waits: false, turns: TURNS_MAX };
}

/// A sequencer, shared by all threads that run its turns.
pub(super) struct Shared {
    pub(super) inbox: Inbox,
    core: Mutex<Core>,
    /// Publishes batches: the thread that has appended one takes the lock before it brings the writer back, so that batches
    /// are published in their order.
    observer: Mutex<Box<dyn BatchObserver>>,
    health: Mutex<Health>,
    /// Set before the owner hears of a failure: nothing is published afterwards.
    is_failed: AtomicBool,
    /// A thread brings the writer back, and needs `core`. It runs a turn after that, so that another thread that runs turns
    /// leaves: the lock is not fair, and a thread that takes it again at once would keep the writer away.
    is_returning: AtomicBool,
    /// Since when an append to a log on another machine is in flight.
    appending: Mutex<Option<Stopwatch>>,
    ended: Mutex<bool>,
    has_ended: Condvar,
    executor: Arc<dyn Executor>,
    /// An append never blocks.
    is_instant: bool,
    /// An append is a request to another machine.
    is_remote: bool,
    this: Weak<Shared>,
}

/// The shard, and what is on its way from and to it.
struct Core {
    shard: Shard<ReplyTo>,
    writer: WriterSlot,
    /// Results of queries that saw the state of the batch under way.
    queries: Vec<Publish>,
    /// Started with the first command of the batch under way.
    stopwatch: Stopwatch,
    timer: Box<dyn Timer>,
    /// When the timer is due.
    armed: Option<Time>,
    /// The timer was due: poll the log for space, or repeat the append.
    retries: bool,
    space: LogSpace,
    pacing: Pacing,
    limits: BatchLimits,
    /// Empty queues, for their allocations.
    spare: FairQueue,
    postponed: FairQueue,
    /// The batch under way takes nothing more from this size on. Behind a large batch in flight it is less than usual: the
    /// log has reserved space for the largest batch, and both must fit if the disk is full.
    bytes_max: usize,
    on_end: Option<OnEnd>,
    /// The owner closed it, and the waiters have their replies.
    is_stopping: bool,
    has_ended: bool,
}

/// The log. One thread at a time has it, and appends a batch.
struct Writer {
    log: Box<dyn LogStore>,
    marks: MarkInterval,
}

/// Where the writer is.
enum WriterSlot {
    Here(Writer),
    /// A thread appends, publishes or maintains the log, and runs a turn when it has brought the writer back.
    Appending,
    /// The outcome of an append is not known: it is to be repeated.
    Undecided(Box<Work>),
}

/// The writer, and the batch to append, if there is one.
struct Work {
    writer: Writer,
    batch: Option<PendingBatch>,
}

impl Shared {
    pub(super) fn new(
        shard: Shard<ReplyTo>,
        mut log: Box<dyn LogStore>,
        observer: Box<dyn BatchObserver>,
        options: SequencerOptions,
        on_end: OnEnd,
        executor: &Arc<dyn Executor>,
    ) -> Arc<Shared> {
        reached!();
        let (is_instant, is_remote) = (log.is_instant(), log.is_remote());
        let SequencerOptions { marks, commit_interval } = options;
        let health = health_of(&mut *log);
        let space = health.space;
        Arc::new_cyclic(|this: &Weak<Shared>| {
            let on_due = Weak::clone(this);
            let timer = executor.timer(Arc::new(move || {
                if let Some(shared) = on_due.upgrade() {
                    shared.on_timer();
                }
            }));
            let mut core = Core {
                shard,
                writer: WriterSlot::Here(Writer { log, marks }),
                queries: Vec::new(),
                stopwatch: Stopwatch::start(),
                timer,
                armed: None,
                retries: false,
                space,
                pacing: Pacing::new(is_remote, commit_interval),
                limits: BatchLimits::new(is_remote),
                spare: FairQueue::default(),
                postponed: FairQueue::default(),
                bytes_max: BATCH_BYTES,
                on_end: Some(on_end),
                is_stopping: false,
                has_ended: false,
            };
            core.shard.set_space(space);
            Shared {
                inbox: Inbox::new(QUEUE_MAX),
                core: Mutex::new(core),
                observer: Mutex::new(observer),
                health: Mutex::new(health),
                is_failed: AtomicBool::new(false),
                is_returning: AtomicBool::new(false),
                appending: Mutex::new(None),
                ended: Mutex::new(false),
                has_ended: Condvar::new(),
                executor: Arc::clone(executor),
                is_instant,
                is_remote,
                this: Weak::clone(this),
            }
        })
    }

    /// A thread that submits and must not block.
    pub(super) fn submitter(&self) -> Runner {
        reached!();
        if self.is_instant { Runner::APPENDING } else { Runner::NON_BLOCKING }
    }

    pub(super) fn health(&self) -> Health {
        reached!();
        let mut health = lock(&self.health).clone();
        let took = lock(&self.appending).map_or(Duration::ZERO, |since| since.elapsed());
        if health.reason.is_none() && took > APPEND_MAX {
            health.reason = Some(format!("an append has no outcome yet: ms={}", took.as_millis()));
        }
        health
    }

    /// How long the append or confirmation under way has taken, over all its tries.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        reached!();
        lock(&self.appending).map(|since| since.elapsed())
    }

    pub(super) fn is_holding_back(&self) -> bool {
        reached!();
        self.read_core(|core| core.has_something() && core.held_back() > Span(0))
    }

    /// Reads the state between two turns. A thread that submits a command during the read does not get `core`: this thread has
    /// to see to its command.
    fn read_core<T>(&self, read: impl FnOnce(&Core) -> T) -> T {
        reached!();
        let core = self.lock_core();
        let (result, capacity, has_ended) = (read(&core), core.capacity(), core.has_ended);
        drop(core);
        if !has_ended && self.inbox.has_work(capacity) {
            self.spawn_turns();
        }
        result
    }

    /// Runs turns on a worker.
    pub(super) fn spawn_turns(&self) {
        reached!();
        if !self.inbox.note_spawned() {
            return;
        }
        let this = Weak::clone(&self.this);
        self.executor.spawn(Box::new(move || {
            if let Some(shared) = this.upgrade() {
                shared.inbox.note_started();
                shared.run(Runner::WORKER);
            }
        }));
    }

    fn on_timer(&self) {
        reached!();
        let mut core = self.lock_core();
        core.armed = None;
        core.retries = true;
        drop(core);
        self.run(Runner::WORKER);
    }

    /// A response that carries a lease was handed to its socket, or failed. A grant may have to be undone.
    pub(super) fn report_delivery(&self, lease: LeaseId, reached: bool) {
        reached!();
        self.inbox.report_delivery(lease, reached);
        if !reached && !planted!(FailedDeliveryUnnoticed) {
            self.spawn_turns();
        }
    }

    /// Runs turns until there is nothing to do, or another thread does it.
    pub(super) fn run(&self, runner: Runner) {
        reached!();
        let _guard = PanicGuard::new(self);
        for _ in 0..runner.turns {
            if !self.turn(runner) {
                return;
            }
        }
        if !planted!(RestForgotten) {
            self.spawn_turns();
        }
    }

    /// One turn. Whether to run another.
    fn turn(&self, runner: Runner) -> bool {
        reached!();
        let Some(mut core) = self.core_for(runner) else { return false };
        if core.has_ended {
            return false;
        }
        core.decide(&self.inbox);
        if self.inbox.is_exhausted() {
            core.stop();
        }
        if core.is_stopping
            && core.is_idle()
            && let Some(close) = self.inbox.take_hand_over()
            && !planted!(HandOverUnlogged)
        {
            // A shard that has stopped decides nothing more: this is the last record.
            core.shard.hand_over(close);
        }
        let is_last = core.is_stopping && core.is_idle();
        let wants_log = core.is_here() && (is_last || core.retries || self.inbox.has_floor());
        let work = if runner.appends { core.take_work(wants_log) } else { core.take_batch() };
        let (capacity, is_due) = (core.capacity(), core.arm_timer());
        drop(core);
        match work {
            Some(work) if is_last => self.finish(work),
            Some(work) if runner.appends => return self.append(work),
            Some(work) => self.spawn_append(work),
            None if wants_log && !runner.appends => self.spawn_turns(),
            None => {}
        }
        let has_more = is_due || (self.inbox.has_work(capacity) && !planted!(InboxUnchecked));
        has_more && !self.is_returning.load(Ordering::Acquire)
    }

    fn spawn_append(&self, work: Work) {
        reached!();
        let this = self.this.upgrade().expect("a turn is run through a reference");
        self.executor.spawn(Box::new(move || {
            let _guard = PanicGuard::new(&this);
            if this.append(work) {
                this.run(Runner::WORKER);
            }
        }));
    }

    /// Appends a batch, publishes it, maintains the log and brings the writer back. Whether to run another turn: always,
    /// unless the append failed or is to be repeated.
    fn append(&self, mut work: Work) -> bool {
        reached!();
        if self.is_remote {
            // A repeated append is as old as its first try.
            lock(&self.appending).get_or_insert_with(Stopwatch::start);
        }
        if planted!(EventsEarly)
            && let Some(batch) = &mut work.batch
        {
            lock(&self.observer).durable(&std::mem::take(&mut batch.turn.events));
        }
        let appended = work.batch.as_mut().map_or(Ok(()), |batch| work.writer.append(batch));
        let is_undecided = matches!(&appended, Err(error) if error.kind == ErrorKind::Undecided);
        if self.is_remote && !is_undecided {
            *lock(&self.appending) = None;
        }
        // The batch before this one is published, whatever became of this one.
        let mut observer = lock(&self.observer);
        if let Err(error) = appended {
            drop(observer);
            return match error.kind {
                ErrorKind::Undecided => self.postpone(work, error),
                ErrorKind::Taken => self.end(Ended::Deposed(error), Some(work)),
                // Whether the batch is in the log cannot be known: its callers get no reply. Later commands did not happen.
                ErrorKind::Gone if self.is_remote => {
                    let told = if planted!(TruncatedAppendRefused) { Some(work) } else { None };
                    self.end(Ended::Deposed(error), told)
                }
                _ => self.end(Ended::Failed(error), Some(work)),
            };
        }
        if self.is_failed.load(Ordering::Acquire) {
            return false;
        }
        let Work { writer, batch } = work;
        match batch {
            Some(batch) if self.overlaps() => {
                self.bring_back(writer);
                self.turn(Runner::PUBLISHING);
                batch.publish(&mut **observer, &self.this);
            }
            batch => {
                // Replies go out before the log is maintained: that may take a while.
                if let Some(batch) = batch {
                    batch.publish(&mut **observer, &self.this);
                }
                self.bring_back(writer);
            }
        }
        drop(observer);
        !planted!(NoTurnAfterAppend)
    }

    /// Whether a batch is published while the next is appended, by another thread. Not where an append cannot block: a
    /// reply that submits a command would append on the thread that publishes. Nor on another machine: a batch waits there
    /// for the clients whose replies have gone out.
    fn overlaps(&self) -> bool {
        reached!();
        !self.is_instant && !self.is_remote && !self.inbox.has_floor()
    }

    /// Maintains the log, and makes the writer available.
    fn bring_back(&self, mut writer: Writer) {
        reached!();
        let health = self.maintain(&mut *writer.log);
        self.is_returning.store(true, Ordering::Release);
        let mut core = self.lock_core();
        core.set_space(health.space);
        let (now, commands) = (core.shard.now(), core.commands());
        core.pacing.appended(now, commands);
        core.limits.appended(now);
        core.writer = WriterSlot::Here(writer);
        self.is_returning.store(false, Ordering::Release);
        drop(core);
        self.set_health(health);
    }

    /// Truncates the log if requested, and reserves space for the next batch.
    fn maintain(&self, log: &mut dyn LogStore) -> Health {
        reached!();
        if let Some(floor) = self.inbox.take_floor() {
            // What cannot be freed now is freed when the floor is raised next, or when the log is opened.
            let _ = log.raise_floor(floor);
        }
        if let Some(prepare) = log.preparation() {
            // If it fails, the log makes its next segment itself when it needs it, and reports why it cannot.
            self.executor.spawn_background(Box::new(move || drop(prepare())));
        }
        health_of(log)
    }

    fn set_health(&self, health: Health) {
        reached!();
        let mut known = lock(&self.health);
        if *known != health {
            *known = health;
        }
    }

    /// Keeps an append whose outcome is not known, to repeat it. Whether to run another turn: something is due now, and the
    /// timer is set after that.
    fn postpone(&self, work: Work, error: StoreError) -> bool {
        reached!();
        let mut core = self.lock_core();
        core.writer = WriterSlot::Undecided(Box::new(work));
        core.retries = false;
        let (is_due, space) = (core.arm_timer(), core.space);
        drop(core);
        self.set_health(Health { space, reason: Some(error.what), is_undecided: true });
        is_due
    }

    /// Closed, and every reply was sent.
    fn finish(&self, mut work: Work) {
        reached!();
        // The last batch is published.
        drop(lock(&self.observer));
        // Without the mark the next start copies the last batch, as after a crash.
        let _ = work.writer.log.mark_clean_stop();
        let mut core = self.lock_core();
        core.has_ended = true;
        core.on_end = None;
        drop(core);
        drop(work);
        self.note_ended();
    }

    /// Ends before its owner closed it. From here on nothing is decided and nothing is published. Callers without a reply
    /// lose their reply address, unless it is certain that their commands did not happen. Returns false: no more turns.
    fn end(&self, why: Ended, work: Option<Work>) -> bool {
        reached!();
        self.is_failed.store(true, Ordering::Release);
        self.inbox.close();
        let mut core = self.lock_core();
        core.has_ended = true;
        let on_end = core.on_end.take();
        let (mut left, queries) = core.take_callers();
        drop(core);
        left.extend(work.into_iter().flat_map(Work::into_replies));
        left.extend(self.inbox.take(Capacity::Everything, FairQueue::default()).submissions.into_replies());
        if matches!(why, Ended::Deposed(_)) {
            for to in left.drain(..) {
                to(Err(Unavailable::Deposed), super::Delivery::default());
            }
        }
        // The owner hears of it before the callers: it may end the process. Once: another thread may end it too.
        if let Some(on_end) = on_end {
            on_end(why);
            self.note_ended();
        }
        drop((left, queries));
        false
    }

    pub(super) fn inspect<T>(&self, read: impl FnOnce(&Shard<ReplyTo>) -> T) -> T {
        reached!();
        self.read_core(|core| read(&core.shard))
    }

    /// Ends it as a crash would.
    pub(super) fn abandon(&self) {
        reached!();
        self.inbox.close();
        let mut core = self.lock_core();
        core.has_ended = true;
        core.on_end = None;
        let left = (core.take_callers(), std::mem::replace(&mut core.writer, WriterSlot::Appending));
        drop(core);
        drop((left, self.inbox.take(Capacity::Everything, FairQueue::default())));
        self.note_ended();
    }

    fn note_ended(&self) {
        reached!();
        *lock(&self.ended) = true;
        self.has_ended.notify_all();
    }

    pub(super) fn has_ended(&self) -> bool {
        reached!();
        *lock(&self.ended)
    }

    pub(super) fn wait_until_ended(&self) {
        reached!();
        let mut ended = lock(&self.ended);
        while !*ended {
            ended = self.has_ended.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn core_for(&self, runner: Runner) -> Option<MutexGuard<'_, Core>> {
        reached!();
        if runner.waits {
            return Some(self.lock_core());
        }
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(poisoned)) => Some(ended_by_panic(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock_core(&self) -> MutexGuard<'_, Core> {
        reached!();
        self.core.lock().unwrap_or_else(ended_by_panic)
    }
}

/// A turn that panicked left a state that no log leads to: it has ended, before anyone else looks at it.
fn ended_by_panic(poisoned: PoisonError<MutexGuard<'_, Core>>) -> MutexGuard<'_, Core> {
    reached!();
    let mut core = poisoned.into_inner();
    core.has_ended |= !planted!(PoisonIgnored);
    core
}

/// Ends the sequencer when a turn panics.
struct PanicGuard<'a> {
    shared: &'a Shared,
    /// A thread that submits while it unwinds from another panic has not left a turn.
    was_panicking: bool,
}

impl<'a> PanicGuard<'a> {
    fn new(shared: &'a Shared) -> PanicGuard<'a> {
        reached!();
        PanicGuard { shared, was_panicking: std::thread::panicking() }
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        reached!();
        if std::thread::panicking() && !self.was_panicking {
            let error = StoreError::new(ErrorKind::Io, "a batch was left unfinished by a panic");
            self.shared.end(Ended::Failed(error), None);
        }
    }
}

impl Core {
    /// Decides what has arrived, as far as the batch has capacity. The rest goes back to the inbox.
    fn decide(&mut self, inbox: &Inbox) {
        reached!();
        if !self.has_something() {
            self.stopwatch = Stopwatch::start();
        }
        if !self.is_full() {
            self.shard.housekeep();
        }
        let mut arrivals = inbox.take(self.capacity(), std::mem::take(&mut self.spare));
        if arrivals.is_dismissed {
            self.shard.dismiss();
        }
        for _ in 0..REPORTS_MAX {
            let Some(connection) = arrivals.disconnected.pop_front() else { break };
            self.shard.disconnect(&connection);
        }
        for _ in 0..REPORTS_MAX {
            if self.is_full() {
                break;
            }
            let Some((lease, reached)) = arrivals.deliveries.pop_front() else { break };
            self.shard.delivered(lease, reached);
        }
        // While waiters are served, requests for leases wait, in order: they would overtake the waiters.
        let mut postponed = std::mem::take(&mut self.postponed);
        while !self.is_full()
            && let Some(submission) = arrivals.submissions.pop()
        {
            let overtakes = self.shard.is_handing_off() || !postponed.is_empty();
            if overtakes && is_lease_request(&submission) && !planted!(RequestsOvertakeHandOff) {
                postponed.push(submission);
            } else {
                self.limits.note(submission.command.identity.as_ref());
                self.shard.submit(submission);
            }
        }
        if !postponed.is_empty() {
            postponed.append(&mut arrivals.submissions);
            std::mem::swap(&mut arrivals.submissions, &mut postponed);
        }
        self.postponed = postponed;
        #[cfg(feature = "planted")]
        self.publish_early();
        for query in std::mem::take(&mut arrivals.queries) {
            let publish = query(&self.shard);
            self.queries.push(publish);
        }
        self.spare = inbox.put_back(arrivals);
    }

    /// Planted faults: replies and events before they are durable.
    #[cfg(feature = "planted")]
    fn publish_early(&mut self) {
        if planted!(RefuseEarly) {
            for (to, reply) in self.shard.take_refusals() {
                to(reply, super::Delivery::default());
            }
        }
    }

    /// The capacity that a turn has for the inbox.
    fn capacity(&self) -> Capacity {
        reached!();
        match (self.is_full(), self.shard.is_handing_off()) {
            (true, _) => Capacity::Nothing,
            (false, true) => Capacity::NoLeaseRequests,
            (false, false) => Capacity::Everything,
        }
    }

    /// Replies to waiters that were served do not count: they would keep renewals out of every batch of a large
    /// hand-off.
    fn is_full(&self) -> bool {
        reached!();
        let replies = self.shard.load().1.saturating_sub(self.shard.served());
        let is_large = self.shard.load().0 >= self.bytes_max.min(self.limits.bytes());
        is_large || replies + self.shard.contended() + self.queries.len() >= self.limits.commands()
    }

    /// How long the batch under way is held back, so that it may grow; zero if it may be appended now.
    fn held_back(&self) -> Span {
        reached!();
        if self.is_full() || self.is_stopping {
            return Span(0);
        }
        self.pacing.wait(self.shard.now(), self.commands(), self.shard.load().0 > 0)
    }

    /// The number of commands and queries in the batch under way that have a reply.
    fn commands(&self) -> usize {
        reached!();
        self.shard.load().1 + self.queries.len()
    }

    /// Whether the batch under way contains anything, and is not held back.
    fn is_ready(&self) -> bool {
        reached!();
        self.has_something() && self.held_back() == Span(0)
    }

    /// Whether the batch under way contains anything: records, replies, or results of queries.
    fn has_something(&self) -> bool {
        reached!();
        let (bytes, replies) = self.shard.load();
        bytes > 0 || replies > 0 || self.shard.contended() > 0 || !self.queries.is_empty()
    }

    /// Nothing is under way. An append that this turn may repeat is: its outcome is not known.
    fn is_idle(&self) -> bool {
        reached!();
        matches!(self.writer, WriterSlot::Here(_)) && !self.has_something()
    }

    /// Whether the log is here, or an append that this turn may repeat.
    fn is_here(&self) -> bool {
        reached!();
        match self.writer {
            WriterSlot::Here(_) => true,
            WriterSlot::Appending => false,
            WriterSlot::Undecided(_) => self.retries,
        }
    }

    /// The writer and the batch under way, if the writer is here and there is something to append.
    fn take_batch(&mut self) -> Option<Work> {
        reached!();
        if self.is_ready() { self.take_writer() } else { None }
    }

    /// The same, also for the log's own sake; or the append to be repeated.
    fn take_work(&mut self, wants_log: bool) -> Option<Work> {
        reached!();
        if !(wants_log || self.is_ready()) {
            return None;
        }
        let retries = std::mem::take(&mut self.retries);
        match std::mem::replace(&mut self.writer, WriterSlot::Appending) {
            WriterSlot::Undecided(work) if retries => Some(*work),
            other => {
                self.writer = other;
                self.take_writer()
            }
        }
    }

    fn take_writer(&mut self) -> Option<Work> {
        reached!();
        match std::mem::replace(&mut self.writer, WriterSlot::Appending) {
            WriterSlot::Here(writer) => {
                let batch = self.has_something().then(|| self.seal());
                Some(Work { writer, batch })
            }
            other => {
                self.writer = other;
                None
            }
        }
    }

    /// Ends the batch under way.
    fn seal(&mut self) -> PendingBatch {
        reached!();
        self.pacing.appending(self.shard.now(), self.commands());
        self.limits.begin_batch(self.shard.now());
        let mut turn = self.shard.end_turn();
        if planted!(AnswerEarly) {
            for (to, reply, _) in turn.replies.drain(..) {
                to(reply, super::Delivery::default());
            }
        }
        let bytes = turn.sealed.as_ref().map_or(0, |sealed| sealed.payload.len());
        if !planted!(FullBatchesInFlight) {
            self.bytes_max = BATCH_MAX.saturating_sub(bytes + RECORD_BYTES).min(BATCH_BYTES);
        }
        let queries = std::mem::take(&mut self.queries);
        PendingBatch { turn, queries, mark: None, stopwatch: self.stopwatch, measure: None }
    }

    /// Sets the timer for what is due next. Whether something is due now and can be done now.
    fn arm_timer(&mut self) -> bool {
        reached!();
        let is_undecided = matches!(self.writer, WriterSlot::Undecided(_)) && !planted!(UndecidedForgotten);
        if self.is_full() && !is_undecided {
            // The thread that brings the log back runs a turn.
            return false;
        }
        let waits_for_log = self.space != LogSpace::Plenty || is_undecided;
        let retry = waits_for_log.then(|| Span(u64::try_from(RETRY.as_millis()).unwrap_or(u64::MAX)));
        // A full batch gets nothing that is due, and must still be appended.
        let due = self.shard.until_due().filter(|_| !self.is_full());
        let is_held_back = self.has_something() && matches!(self.writer, WriterSlot::Here(_));
        let held_back = is_held_back.then(|| self.held_back()).filter(|held_back| *held_back > Span(0));
        let due = due.into_iter().chain(retry).chain(held_back).min();
        let Some(delay) = due.map(|due| due.min(TIMER_MAX)) else { return false };
        if delay == Span(0) {
            return true;
        }
        let at = self.shard.now().after(delay);
        if self.armed.is_none_or(|armed| at.after(EARLIER) < armed && !planted!(TimerKept)) {
            self.armed = Some(at);
            self.timer.set(Duration::from_millis(delay.0));
        }
        false
    }

    fn set_space(&mut self, space: LogSpace) {
        reached!();
        self.space = space;
        self.bytes_max = BATCH_BYTES;
        if !self.is_stopping {
            self.shard.set_space(space);
        }
    }

    /// Replies to the waiters. Nothing is logged after the batch under way.
    fn stop(&mut self) {
        reached!();
        if !std::mem::replace(&mut self.is_stopping, true) {
            self.shard.stop();
        }
    }

    /// The addresses of all callers without a reply or a result: nothing will be published. To be dropped without `core`:
    /// a caller that is dropped may submit.
    fn take_callers(&mut self) -> (Vec<ReplyTo>, Vec<Publish>) {
        reached!();
        let queries = if planted!(QueriesKept) { Vec::new() } else { std::mem::take(&mut self.queries) };
        let mut left = self.shard.take_pending();
        if let WriterSlot::Undecided(work) = std::mem::replace(&mut self.writer, WriterSlot::Appending) {
            left.extend(work.into_replies());
        }
        (left, queries)
    }
}

impl Writer {
    /// Makes a batch durable, and marks it if enough has been logged since the last mark.
    fn append(&mut self, batch: &mut PendingBatch) -> Result<(), StoreError> {
        reached!();
        batch
            .append(&mut *self.log)
            .or_else(|error| if planted!(FailureIgnored) { Ok(()) } else { Err(error) })?;
        let Some(sealed) = &batch.turn.sealed else { return Ok(()) };
        if self.marks.count(sealed.payload.len()) {
            let (next, state) = (sealed.seq.next(), batch.turn.state);
            batch.mark = Some(Mark { next, state, extents: self.log.extents() });
        }
        Ok(())
    }
}

impl Work {
    fn into_replies(self) -> impl Iterator<Item = ReplyTo> {
        reached!();
        self.batch.into_iter().flat_map(|batch| batch.turn.replies).map(|(to, ..)| to)
    }
}

/// Reserves space for a batch and a segment behind it; says what the log can take.
fn health_of(log: &mut dyn LogStore) -> Health {
    reached!();
    match log.reserve() {
        Ok(()) => Health { space: LogSpace::Plenty, reason: None, is_undecided: false },
        Err(error) => {
            let needed = if planted!(ReleasesNeedMost) { BATCH_MAX as u64 } else { RESERVE_MIN };
            let fits = log.capacity().bytes >= needed;
            let space = if fits { LogSpace::Reserve } else { LogSpace::Nothing };
            Health { space, reason: Some(error.what), is_undecided: false }
        }
    }
}
