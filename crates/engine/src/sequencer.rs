//! A shard and those who drive it: callers that decide, a thread that appends and answers, and one for the rest.
//!
//! **Invariant.** An answer goes out only when the state that it reveals is durable, and answers go out
//! in the order in which they were decided. One append is in flight at a time; what comes in while it
//! runs is decided as the next batch, and costs one sync together.
//!
//! **What would break it.** An append fails and the process goes on: memory is ahead of the log, and the
//! next answer reveals what a restart will not know. So a failed append is fatal: nothing is answered any
//! more, and the owner is told to end the process.
//!
//! Whoever hands a command in decides it, with all that others have handed in meanwhile, if nobody else is at it; what
//! was decided goes to the appending thread if the log is here, and waits for it there otherwise. One at a time, by the
//! lock `deciding`: whoever does not get it leaves its own in the inbox, and whoever had it looks into the inbox once
//! more after letting it go. So nothing is left there. The deciding thread does what nobody asks for, what comes with
//! time, and whatever somebody had to leave to it. A caller that blocks, on a shard where nothing else is going on, does
//! the whole turn on its own thread; and where an append waits for nobody, in memory, so does everybody.
//!
//! Room is made before it is needed. Without it new work is refused, and what gives back (releases, revokes,
//! ticks) goes on in what is left.

mod delivery;
mod inbox;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use kernel::{Command, Event, Lsn, Span};
use store::{Bounds, ErrorKind, LogStore, Seq, StoreError};

pub use self::delivery::Delivery;
use self::inbox::{Drained, Inbox};
use crate::checkpoint::Mark;
use crate::decider::ContentionEvent;
use crate::shard::{LogSpace, Reply, Shard, Submission, TurnOutput, Unavailable, Wait};
use crate::stopwatch::Stopwatch;
use crate::waiting::WaiterConnection;

/// How many commands may wait to be decided.
pub const QUEUE_MAX: usize = 4096;
/// How many commands one batch takes at the most.
const BATCH_COMMANDS: usize = 1024;
/// Room for a batch, and for the command that made it full.
const BATCH_CAPACITY: u64 = 2 << 20;
/// How often a log without room is asked again.
const RETRY: Duration = Duration::from_millis(250);
/// How many turns a caller does, for others too, before it leaves them to the deciding thread.
const TURNS: usize = 8;
/// How often a caller tries to get what is held for moments only, before it leaves its command to the deciding thread.
const SPINS: usize = 100;
/// The clock may have been asleep: nobody sleeps for longer.
const NAP: Duration = Duration::from_secs(5);

/// Where a reply goes, with its delivery, to be confirmed once a client has it. Dropped without a call if the
/// sequencer dies before the outcome is durable: it may have happened.
pub type ReplyTo = Box<dyn FnOnce(Reply, Delivery) + Send>;

/// Looks at the state, and returns what to do once what it saw is durable.
pub type Query = Box<dyn FnOnce(&Shard<ReplyTo>) -> Publish + Send>;

/// To be done when a state is durable.
pub type Publish = Box<dyn FnOnce() + Send>;

/// What to do when an append fails: end the process, with a message. Called once.
pub type Fatal = Box<dyn FnOnce(StoreError) + Send>;

/// Is told what has become durable, in order. Must not block.
pub trait BatchObserver: Send {
    /// This happened, and is durable.
    fn landed(&mut self, events: &[(Lsn, Vec<Event>)]);

    /// These met others in their way. What is in the way is durable.
    fn contended(&mut self, contended: &[ContentionEvent]) {
        let _ = contended;
    }

    /// So much has been logged since the last mark that a snapshot is worth it.
    fn marked(&mut self, mark: Mark);

    /// So long it took.
    fn measured(&mut self, measure: Measure) {
        let _ = measure;
    }
}

/// How long something took.
#[derive(Clone, Copy, Debug)]
pub enum Measure {
    /// A batch became durable.
    Append {
        /// From when it was handed to the log.
        took: Duration,
        /// How many bytes of records are in it.
        bytes: usize,
        /// What can be read from the log now.
        bounds: Bounds,
    },
    /// Waiters were given what others gave up.
    HandOff {
        /// From when the first command of the turn was taken up, to when they had their answers.
        took: Duration,
        /// How many they were.
        waiters: usize,
    },
}

/// Nobody follows.
impl BatchObserver for () {
    fn landed(&mut self, _: &[(Lsn, Vec<Event>)]) {}

    fn marked(&mut self, _: Mark) {}
}

/// Can it grant, durably?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What the log can take.
    pub space: LogSpace,
    /// Why that is not everything.
    pub reason: Option<String>,
}

/// A shard and its threads. They end when this is dropped, after all that was taken is answered.
pub struct Sequencer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    inbox: Arc<Inbox>,
    /// An append waits for nobody.
    instant: bool,
    core: Mutex<Core>,
    /// Held by whoever decides for all who hand in; taken before `core`, and never waited for.
    deciding: Mutex<()>,
    /// Held by whoever tells what has landed; taken before `core`.
    publishing: Mutex<()>,
    health: Mutex<Health>,
}

/// What turns are made with.
struct Core {
    shard: Shard<ReplyTo>,
    /// `None` while it is away with the appending thread.
    log: Option<Box<dyn LogStore>>,
    /// To the appending thread, which ends when this is gone.
    work: Option<SyncSender<Work>>,
    /// What was looked at in this turn.
    queries: Vec<Publish>,
    /// Runs from when this turn began.
    stopwatch: Stopwatch,
    /// Turns that are durable and have not been told yet, in order.
    landed: VecDeque<PendingBatch>,
    follower: Box<dyn BatchObserver>,
    /// A mark is made after so many bytes.
    mark_every: u64,
    since_mark: u64,
    fatal: Option<Fatal>,
    /// An append failed: nothing is said any more.
    dead: bool,
}

/// A turn to append, and what to.
type Work = (Box<dyn LogStore>, PendingBatch);

/// What came of a turn on a caller's thread.
enum TurnOutcome {
    /// All that was in the inbox is decided.
    Done,
    /// Somebody else is at it, or will be, and looks into the inbox after that.
    ByAnother,
    /// It is the deciding thread's.
    NotHere,
}

/// A turn on its way to the disk, and all that is said when it is there.
struct PendingBatch {
    turn: TurnOutput<ReplyTo>,
    queries: Vec<Publish>,
    mark: Option<Mark>,
    /// Runs from when the turn began.
    stopwatch: Stopwatch,
    /// What the append took.
    measure: Option<Measure>,
}

impl Sequencer {
    /// Starts on a shard that has just been opened, and the log that it was recovered from. A mark is made after
    /// every `mark_every` bytes.
    pub fn start(
        opened: Shard<ReplyTo>,
        log: Box<dyn LogStore>,
        follower: Box<dyn BatchObserver>,
        mark_every: u64,
        fatal: Fatal,
    ) -> Sequencer {
        let instant = log.is_instant();
        // There is one log to go with a batch: nobody who sends waits.
        let (work, batches) = sync_channel(1);
        let core = Core {
            shard: opened,
            log: Some(log),
            work: Some(work),
            queries: Vec::new(),
            stopwatch: Stopwatch::start(),
            landed: VecDeque::new(),
            follower,
            mark_every,
            since_mark: 0,
            fatal: Some(fatal),
            dead: false,
        };
        let shared = Arc::new(Shared {
            inbox: Arc::new(Inbox::new(QUEUE_MAX)),
            instant,
            core: Mutex::new(core),
            deciding: Mutex::new(()),
            publishing: Mutex::new(()),
            health: Mutex::new(Health { space: LogSpace::Plenty, reason: None }),
        });
        shared.reserve_log_space(&mut lock(&shared.core));
        let deciding = DecidingThread { shared: Arc::clone(&shared) };
        let appending = AppendThread { shared: Arc::clone(&shared), work: batches };
        let threads =
            vec![std::thread::spawn(move || deciding.run()), std::thread::spawn(move || appending.run())];
        Sequencer { shared, threads }
    }

    /// Hands in a command; its reply is given once what it reveals is durable. If the command cannot be taken,
    /// that is said at once.
    pub fn submit(&self, submission: Submission<ReplyTo>) {
        match self.shared.inbox.submit(submission) {
            Ok(()) => self.shared.serve(),
            Err((to, why)) => to(Err(why), Delivery::default()),
        }
    }

    /// Hands in a command, and waits for its reply. `None` if the sequencer died meanwhile: it may have
    /// happened.
    pub fn call(
        &self,
        command: Command,
        correlation: u128,
        document: Option<Vec<u8>>,
        wait: Option<Wait>,
    ) -> Option<Reply> {
        let (send, receive) = sync_channel(1);
        let to: ReplyTo = Box::new(move |reply, delivery| delivery.settle(send.send(reply).is_ok()));
        let submission = Submission { command, correlation, document, wait, on_decided: None, to };
        match self.idle() {
            Some(core) => self.shared.turn_alone(core, submission),
            None => self.submit(submission),
        }
        receive.recv().ok()
    }

    /// Nobody listens any more for the answer of the waiter with this flag: it goes, and those behind it move up.
    pub fn hang_up(&self, connection: WaiterConnection) {
        connection.close();
        self.shared.inbox.hang_up(connection);
    }

    /// Sends away those who wait: they are told that the shard is about to stop.
    pub fn dismiss(&self) {
        self.shared.inbox.dismiss();
    }

    /// Looks at the state. What `look` returns is done once what it saw is durable.
    pub fn query(&self, query: Query) -> Result<(), Unavailable> {
        self.shared.inbox.query(query)?;
        self.shared.serve();
        Ok(())
    }

    /// Can it grant, durably?
    pub fn health(&self) -> Health {
        lock(&self.shared.health).clone()
    }

    /// Raises the log's floor, as soon as the log is at hand.
    pub fn raise_floor(&self, floor: Seq) {
        self.shared.inbox.raise_floor(floor);
    }

    /// Is nothing else going on? Then the caller may do the turn itself.
    fn idle(&self) -> Option<MutexGuard<'_, Core>> {
        if self.shared.instant || !self.shared.inbox.is_idle() {
            return None;
        }
        let core = self.shared.core.try_lock().ok()?;
        (core.log.is_some() && core.landed.is_empty() && !core.dead).then_some(core)
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        self.shared.inbox.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so; there is nobody to tell again.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a lock guards, if nobody has it.
fn free<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A turn that is left halfway leaves a state that no log will ever give: nothing may be said of it.
struct PanicGuard<'a> {
    shared: &'a Shared,
    /// Whoever hands something in while it unwinds from something else has left no turn.
    unwinds: bool,
}

impl<'a> PanicGuard<'a> {
    fn new(shared: &'a Shared) -> PanicGuard<'a> {
        PanicGuard { shared, unwinds: std::thread::panicking() }
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinds {
            let error = StoreError::new(ErrorKind::Io, "a turn was left halfway, by a panic");
            self.shared.die(&mut lock(&self.shared.core), error);
        }
    }
}

impl Shared {
    /// Sees to it that what is in the inbox is decided.
    fn serve(&self) {
        for _ in 0..TURNS {
            let turned = if self.instant { self.turn_in_memory() } else { self.decide_here() };
            match turned {
                TurnOutcome::Done if self.inbox.has_more() => {}
                TurnOutcome::Done | TurnOutcome::ByAnother => return,
                TurnOutcome::NotHere => break,
            }
        }
        self.inbox.ring();
    }

    /// Decides what is in the inbox. Whoever calls must not be held up: it waits for no lock and no disk.
    fn decide_here(&self) -> TurnOutcome {
        let Some(deciding) = free(&self.deciding) else { return TurnOutcome::ByAnother };
        let _whole = PanicGuard::new(self);
        let soon = |_| {
            let core = free(&self.core);
            if core.is_none() {
                std::hint::spin_loop();
            }
            core
        };
        let Some(mut core) = (0..SPINS).find_map(soon) else { return TurnOutcome::NotHere };
        if core.dead || lock(&self.health).space != LogSpace::Plenty {
            return TurnOutcome::NotHere;
        }
        if core.is_full() && core.log.is_none() {
            // The appending thread has the log, and looks into the inbox when it brings it back: not before this has the core
            // no more. Whoever finds another deciding has handed in before that.
            drop(deciding);
            return TurnOutcome::ByAnother;
        }
        let taken = self.inbox.take(!core.is_full());
        self.decide(&mut core, taken);
        core.send_off();
        let due = core.until_due();
        drop(core);
        drop(deciding);
        self.inbox.wake_within(due);
        TurnOutcome::Done
    }

    /// The whole turn: an append waits for nobody.
    fn turn_in_memory(&self) -> TurnOutcome {
        let Some(publishing) = free(&self.publishing) else { return TurnOutcome::ByAnother };
        let _whole = PanicGuard::new(self);
        let mut core = lock(&self.core);
        if core.dead {
            return TurnOutcome::NotHere;
        }
        let taken = self.inbox.take(!core.is_full());
        self.decide(&mut core, taken);
        if core.has_something() {
            self.append_here(&mut core);
        }
        let core = self.tell(core, &publishing);
        let due = core.until_due();
        drop(core);
        drop(publishing);
        self.inbox.wake_within(due);
        TurnOutcome::Done
    }

    /// Decides what was taken, as much as fits into a batch.
    fn decide(&self, core: &mut Core, taken: Drained) {
        core.begin_turn();
        if taken.dismissed {
            core.shard.dismiss();
        }
        for connection in &taken.closed_connections {
            core.shard.disconnect(connection);
        }
        for (lease, reached) in taken.deliveries {
            core.shard.delivered(lease, reached);
        }
        let mut submissions = taken.submissions;
        while !core.is_full()
            && let Some(submission) = submissions.pop_front()
        {
            core.shard.submit(submission);
        }
        #[cfg(feature = "planted")]
        if planted!(RefuseEarly) {
            for (to, reply) in core.shard.take_refusals() {
                to(reply, Delivery::default());
            }
        }
        self.inbox.put_back(submissions);
        for query in taken.queries {
            let publish = query(&core.shard);
            core.queries.push(publish);
        }
    }

    /// Raises the floor, and looks for room where there was none: that may take a while.
    fn maintain_log(&self, core: &mut Core) {
        if let Some(floor) = self.inbox.take_floor() {
            match &mut core.log {
                Some(log) => raise(&mut **log, floor),
                None => self.inbox.keep_floor(floor),
            }
        }
        if lock(&self.health).space != LogSpace::Plenty {
            self.reserve_log_space(core);
        }
    }

    fn reserve_log_space(&self, core: &mut Core) {
        if let Some(mut log) = core.log.take() {
            self.update_log_space(core, &mut *log);
            core.log = Some(log);
        }
    }

    /// The whole turn, on the caller's thread.
    fn turn_alone(&self, core: MutexGuard<'_, Core>, submission: Submission<ReplyTo>) {
        let _whole = PanicGuard::new(self);
        // Let go before the other, whatever happens.
        let mut core = core;
        core.begin_turn();
        core.shard.submit(submission);
        self.append_here(&mut core);
        drop(core);
        let publishing = lock(&self.publishing);
        let due = self.tell(lock(&self.core), &publishing).until_due();
        drop(publishing);
        self.inbox.wake_within(due);
    }

    /// Ends the turn and appends it on this thread.
    fn append_here(&self, core: &mut Core) {
        let mut landing = core.end_turn();
        let mut log = core.log.take().expect("whoever ends a turn has the log");
        let appended = append(&mut *log, &mut landing);
        self.land(core, landing, &mut *log, appended);
        core.log = Some(log);
    }

    /// An append has ended: its turn may be told, or nothing ever again.
    fn land(
        &self,
        core: &mut Core,
        mut landing: PendingBatch,
        log: &mut dyn LogStore,
        appended: Result<(), StoreError>,
    ) {
        match appended.or_else(|error| if planted!(FailureIgnored) { Ok(()) } else { Err(error) }) {
            Ok(()) => {
                landing.mark = core.mark(&landing, log);
                self.update_log_space(core, log);
            }
            Err(error) => self.die(core, error),
        }
        core.landed.push_back(landing);
    }

    /// From here on nothing is decided and nothing is said. Whoever was not answered yet is let go, and is told what is so when
    /// it asks again after the restart.
    fn die(&self, core: &mut Core, error: StoreError) {
        core.dead = true;
        // Before anybody hears of it: who comes now is turned away.
        self.inbox.close();
        if let Some(fatal) = core.fatal.take() {
            fatal(error);
        }
    }

    /// Sees to it that the log has a batch's worth of room, and a segment behind that.
    fn update_log_space(&self, core: &mut Core, log: &mut dyn LogStore) {
        let health = match log.reserve() {
            Ok(()) => Health { space: LogSpace::Plenty, reason: None },
            Err(error) => {
                let space = if log.capacity().bytes >= BATCH_CAPACITY {
                    LogSpace::Reserve
                } else {
                    LogSpace::Nothing
                };
                Health { space, reason: Some(error.what) }
            }
        };
        core.shard.set_space(health.space);
        let mut known = lock(&self.health);
        if *known != health {
            *known = health;
        }
    }

    /// Tells what has landed, in order: whoever has `publishing` is the only one who tells. The core is let go meanwhile, so
    /// that no turn is held up by it.
    fn tell<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        _in_order: &MutexGuard<'_, ()>,
    ) -> MutexGuard<'a, Core> {
        let mut landed = std::mem::take(&mut core.landed);
        if landed.is_empty() {
            return core;
        }
        if core.dead {
            // Who is dropped may ask for the core.
            drop(core);
            drop(landed);
            return lock(&self.core);
        }
        for landing in &mut landed {
            core.tell_follower(landing);
        }
        drop(core);
        let mut measures: Vec<Measure> = Vec::new();
        for landing in landed.drain(..) {
            let waiters = landing.turn.served;
            for (to, reply, lease) in landing.turn.replies {
                to(reply, Delivery::new(lease, &self.inbox));
            }
            landing.queries.into_iter().for_each(|publish| publish());
            let handed_off = || Measure::HandOff { took: landing.stopwatch.elapsed(), waiters };
            measures.extend((waiters > 0).then(handed_off));
        }
        let mut core = lock(&self.core);
        for measure in measures {
            core.follower.measured(measure);
        }
        if core.landed.is_empty() {
            core.landed = landed;
        }
        core
    }
}

/// What cannot be dropped now will be when the floor is raised next, or the log opened.
fn raise(log: &mut dyn LogStore, floor: Seq) {
    let _ = log.raise_floor(floor);
}

fn append(log: &mut dyn LogStore, landing: &mut PendingBatch) -> Result<(), StoreError> {
    match &landing.turn.sealed {
        Some(sealed) => {
            let stopwatch = Stopwatch::start();
            log.append(sealed.seq, sealed.lsns, &sealed.payload)?;
            let (took, bytes) = (stopwatch.elapsed(), sealed.payload.len());
            landing.measure = Some(Measure::Append { took, bytes, bounds: log.bounds() });
            Ok(())
        }
        None if planted!(QueryUnconfirmed) => Ok(()),
        // Refusals and reads reveal a state too: it must still be this writer's to tell.
        None => log.confirm(),
    }
}

impl Core {
    fn end_turn(&mut self) -> PendingBatch {
        let mut turn = self.shard.end_turn();
        if planted!(AnswerEarly) {
            for (to, reply, _) in turn.replies.drain(..) {
                to(reply, Delivery::default());
            }
        }
        if planted!(EventsEarly) {
            self.follower.landed(&std::mem::take(&mut turn.events));
        }
        let (queries, stopwatch) = (std::mem::take(&mut self.queries), self.stopwatch);
        PendingBatch { turn, queries, mark: None, stopwatch, measure: None }
    }

    /// What comes now is part of a turn: the first of it starts the stopwatch.
    fn begin_turn(&mut self) {
        if !self.has_something() {
            self.stopwatch = Stopwatch::start();
        }
        self.shard.housekeep();
    }

    /// How soon there is something to do; `None` if that is never. Whoever has the log takes what was decided meanwhile.
    fn until_due(&self) -> Option<Span> {
        if self.log.is_some() && self.has_something() { Some(Span(0)) } else { self.shard.until_due() }
    }

    fn has_something(&self) -> bool {
        let (bytes, replies) = self.shard.load();
        bytes > 0 || replies > 0 || self.shard.contended() > 0 || !self.queries.is_empty()
    }

    /// Replies to waiters that were served do not count: they would keep renewals out of every batch of a large
    /// hand-off.
    fn is_full(&self) -> bool {
        let replies = self.shard.load().1.saturating_sub(self.shard.served());
        self.shard.is_full() || replies + self.shard.contended() >= BATCH_COMMANDS
    }

    /// What was decided, to be appended, if the log is here.
    fn next(&mut self) -> Option<Work> {
        if !self.has_something() || self.dead {
            return None;
        }
        let log = self.log.take()?;
        Some((log, self.end_turn()))
    }

    /// Hands what was decided to the appending thread, if the log is here.
    fn send_off(&mut self) {
        if self.work.is_none() {
            return;
        }
        if let (Some(work), Some(sender)) = (self.next(), &self.work) {
            sender.send(work).expect("the appending thread ends after whoever has this");
        }
    }

    /// A moment to take a snapshot of, if enough has been logged since the last.
    fn mark(&mut self, landing: &PendingBatch, log: &dyn LogStore) -> Option<Mark> {
        let sealed = landing.turn.sealed.as_ref()?;
        self.since_mark += sealed.payload.len() as u64;
        if self.since_mark < self.mark_every {
            return None;
        }
        self.since_mark = 0;
        Some(Mark { next: sealed.seq.next(), state: landing.turn.state, extents: log.extents() })
    }

    fn tell_follower(&mut self, landing: &mut PendingBatch) {
        if !landing.turn.events.is_empty() {
            self.follower.landed(&landing.turn.events);
        }
        if !landing.turn.contended.is_empty() {
            self.follower.contended(&landing.turn.contended);
        }
        if let Some(mark) = landing.mark.take() {
            self.follower.marked(mark);
        }
        if let Some(measure) = landing.measure.take() {
            self.follower.measured(measure);
        }
    }
}

struct DecidingThread {
    shared: Arc<Shared>,
}

impl DecidingThread {
    fn run(self) {
        let _ends = ShutdownGuard(&self.shared);
        let _whole = PanicGuard::new(&self.shared);
        // The record that opens the tenure is in the first turn, and comes before everything else.
        while self.turn() {
            // Whatever becomes due while this thread finds out how long it may sleep is told to it.
            self.shared.inbox.retire(NAP);
            let (timeout, full) = self.patience();
            self.shared.inbox.wait(timeout, !full);
        }
    }

    /// How long there is nothing to do, and whether the batch is full.
    fn patience(&self) -> (Duration, bool) {
        let core = lock(&self.shared.core);
        let due = core.shard.until_due().map_or(NAP, |due| Duration::from_millis(due.0)).min(NAP);
        let space = lock(&self.shared.health).space;
        match &core.log {
            _ if !core.landed.is_empty() => (Duration::ZERO, core.is_full()),
            _ if core.is_full() => (NAP, true),
            Some(_) if core.has_something() => (Duration::ZERO, false),
            Some(_) if space != LogSpace::Plenty => (due.min(RETRY), false),
            _ => (due, false),
        }
    }

    /// One turn; says whether there is another. What has landed is told first.
    fn turn(&self) -> bool {
        let publishing = lock(&self.shared.publishing);
        let mut core = self.shared.tell(lock(&self.shared.core), &publishing);
        drop(publishing);
        if core.dead {
            return false;
        }
        self.shared.maintain_log(&mut core);
        let taken = self.shared.inbox.take(!core.is_full());
        let closed = taken.closed;
        self.shared.decide(&mut core, taken);
        let ends = closed && !self.shared.inbox.has_more();
        if ends {
            core.shard.stop();
        }
        if self.shared.instant && core.log.is_some() && core.has_something() {
            self.shared.append_here(&mut core);
        } else {
            core.send_off();
        }
        !(ends && core.log.is_some() && core.landed.is_empty() && !core.has_something())
    }
}

/// Ends the appending thread with the deciding one, whatever ends that. Those who still wait for an answer find that nobody
/// will give one.
struct ShutdownGuard<'a>(&'a Shared);

impl Drop for ShutdownGuard<'_> {
    fn drop(&mut self) {
        let mut core = lock(&self.0.core);
        core.work = None;
        core.shard.stop();
        let left = (self.0.inbox.take(true), core.end_turn(), std::mem::take(&mut core.landed));
        // Who is dropped may ask for the core.
        drop(core);
        drop(left);
    }
}

struct AppendThread {
    shared: Arc<Shared>,
    work: Receiver<Work>,
}

impl AppendThread {
    fn run(self) {
        let _whole = PanicGuard::new(&self.shared);
        while let Ok(work) = self.work.recv() {
            let mut next = Some(work);
            while let Some((log, landing)) = next.take() {
                next = self.append(log, landing);
            }
        }
    }

    /// Appends a turn, and tells what has landed. What was decided meanwhile is the next.
    fn append(&self, mut log: Box<dyn LogStore>, mut landing: PendingBatch) -> Option<Work> {
        let appended = append(&mut *log, &mut landing);
        let publishing = lock(&self.shared.publishing);
        let mut core = lock(&self.shared.core);
        self.shared.land(&mut core, landing, &mut *log, appended);
        drop(self.shared.tell(core, &publishing));
        drop(publishing);
        if let Some(floor) = self.shared.inbox.take_floor() {
            raise(&mut *log, floor);
        }
        let mut core = lock(&self.shared.core);
        core.log = Some(log);
        let next = core.next();
        let due = core.until_due();
        drop(core);
        self.shared.inbox.wake_within(due);
        if self.shared.inbox.needs_the_log() || lock(&self.shared.health).space != LogSpace::Plenty {
            self.shared.inbox.nudge();
        }
        next
    }
}
