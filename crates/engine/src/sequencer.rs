//! Two threads for a shard: one decides, one appends, side by side.
//!
//! **Invariant.** An answer goes out only when the state that it reveals is durable, and answers go out
//! in the order in which they were decided. One append is in flight at a time; what comes in while it
//! runs is decided as the next batch, and costs one sync together.
//!
//! **What would break it.** An append fails and the process goes on: memory is ahead of the log, and the
//! next answer reveals what a restart will not know. So a failed append is fatal: nothing is answered any
//! more, and the owner is told to end the process.
//!
//! Room is made before it is needed. Without it new work is refused and what gives back (releases, revokes,
//! ticks) goes on in what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kernel::{Action, Command, Outcome, Span, Time};
use store::{ErrorKind, LogStore, StoreError};

use crate::decider::{Asked, Decider, Sealed};
use crate::waiters::Ticket;

/// How many commands may wait to be decided.
pub const QUEUE_MAX: usize = 4096;
/// How many may wait for leases; one more is refused as if it did not want to wait.
pub const WAITERS_MAX: usize = 100_000;
/// How many commands one batch takes at the most.
const BATCH_COMMANDS: usize = 1024;
/// A batch that is this large takes no further commands.
const BATCH_BYTES: usize = 1 << 20;
/// How often a log without room is asked again.
const RETRY: Duration = Duration::from_millis(250);

/// Why there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Too many are waiting already: come back later.
    Busy,
    /// The log has no room: nothing new, but what gives back is still taken.
    NoSpace,
    /// The sequencer has ended.
    Stopped,
}

/// Where an outcome goes. Dropped without a call if the sequencer dies before the outcome is durable: it
/// may have happened.
pub type Reply = Box<dyn FnOnce(Result<Outcome, Unavailable>) + Send>;

/// What to do when an append fails: end the process, with a message. Called once.
pub type Fatal = Box<dyn FnOnce(StoreError) + Send>;

/// How long a request for a lease may wait.
#[derive(Clone, Debug)]
pub struct Wait {
    /// At most so long. There is no waiting for ever.
    pub most: Span,
    /// To be set once nobody listens any more: the waiter vanishes before it can be granted anything.
    pub gone: Arc<AtomicBool>,
}

/// A command on its way.
pub struct Submission {
    /// What is asked.
    pub command: Command,
    /// What the client calls it.
    pub correlation: u128,
    /// The content that rides in the log.
    pub document: Option<Vec<u8>>,
    /// For a lease that others may be in the way of.
    pub wait: Option<Wait>,
    /// Where the outcome goes.
    pub reply: Reply,
}

/// A waiter's other half.
struct Parked {
    reply: Reply,
    command: Command,
    correlation: u128,
    until: Time,
}

/// Decided, to be answered when the batch is durable.
struct Work {
    sealed: Option<Sealed>,
    answers: Vec<(Reply, Outcome)>,
}

/// The two threads of a shard. They end when this is dropped, after all that was taken is answered.
pub struct Sequencer {
    queue: Option<SyncSender<Submission>>,
    threads: Vec<JoinHandle<()>>,
}

impl Sequencer {
    /// Starts on a decider that has just been opened, and the log that it was recovered from.
    pub fn start(decider: Decider, log: Box<dyn LogStore>, fatal: Fatal) -> Sequencer {
        let (queue, submissions) = sync_channel(QUEUE_MAX);
        // No buffer: the next batch grows until the append before it has finished.
        let (work, batches) = sync_channel(0);
        let room = Arc::new(AtomicBool::new(true));
        let (parked, patience) = (BTreeMap::new(), BTreeSet::new());
        let deciding = Deciding { decider, submissions, work, room: Arc::clone(&room), parked, patience };
        let appending = Appending { log, batches, room, fatal: Some(fatal) };
        let threads =
            vec![std::thread::spawn(move || deciding.run()), std::thread::spawn(move || appending.run())];
        Sequencer { queue: Some(queue), threads }
    }

    /// Hands in a command; its `reply` is called with what came of it, once that is durable. If it cannot be
    /// taken, that is called at once.
    pub fn submit(&self, submission: Submission) {
        let Some(queue) = &self.queue else { return (submission.reply)(Err(Unavailable::Stopped)) };
        match queue.try_send(submission) {
            Ok(()) => {}
            Err(TrySendError::Full(submission)) => (submission.reply)(Err(Unavailable::Busy)),
            Err(TrySendError::Disconnected(submission)) => (submission.reply)(Err(Unavailable::Stopped)),
        }
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so; there is nobody to tell again.
            let _ = thread.join();
        }
    }
}

struct Deciding {
    decider: Decider,
    submissions: Receiver<Submission>,
    work: SyncSender<Work>,
    room: Arc<AtomicBool>,
    parked: BTreeMap<Ticket, Parked>,
    /// When those who wait have waited long enough.
    patience: BTreeSet<(Time, Ticket)>,
}

impl Deciding {
    fn run(mut self) {
        // The record that opens the tenure comes before everything else.
        if self.work.send(Work { sealed: self.decider.seal(), answers: Vec::new() }).is_err() {
            return;
        }
        loop {
            let first = match self.submissions.recv_timeout(self.until_due()) {
                Ok(submission) => Some(submission),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let work = self.next_batch(first);
            if (work.sealed.is_some() || !work.answers.is_empty()) && self.work.send(work).is_err() {
                return;
            }
        }
    }

    /// All that is waiting, up to a batch's worth.
    fn next_batch(&mut self, first: Option<Submission>) -> Work {
        let mut answers = Vec::new();
        if first.is_none() {
            self.decider.tick();
        }
        self.end_waits(&mut answers);
        let mut next = first;
        while let Some(submission) = next.take() {
            self.decide(submission, &mut answers);
            let full = answers.len() >= BATCH_COMMANDS || self.decider.batch_bytes() >= BATCH_BYTES;
            next = match self.submissions.try_recv() {
                Ok(submission) if !full => Some(submission),
                Ok(submission) => {
                    self.decide(submission, &mut answers);
                    None
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            };
        }
        self.collect_served(&mut answers);
        Work { sealed: self.decider.seal(), answers }
    }

    fn decide(&mut self, submission: Submission, answers: &mut Vec<(Reply, Outcome)>) {
        let Submission { command, correlation, document, wait, reply } = submission;
        if !self.room.load(Ordering::Acquire) && !gives_back(&command.action) {
            return reply(Err(Unavailable::NoSpace));
        }
        let wait = wait.filter(|_| self.parked.len() < WAITERS_MAX);
        if !matches!(command.action, Action::Acquire(_) | Action::Reserve(_)) {
            return answers.push((reply, self.decider.decide(&command, correlation, document).outcome));
        }
        match self.decider.ask(&command, correlation, wait.as_ref().map(|wait| &wait.gone)) {
            Asked::Decided(decided) => answers.push((reply, decided.outcome)),
            Asked::Waiting { ticket, .. } => {
                let until = self.decider.now().after(wait.map_or(Span(0), |wait| wait.most));
                self.patience.insert((until, ticket));
                self.parked.insert(ticket, Parked { reply, command, correlation, until });
            }
        }
    }

    fn collect_served(&mut self, answers: &mut Vec<(Reply, Outcome)>) {
        for (ticket, decided) in self.decider.take_served() {
            let parked = self.unpark(ticket);
            // Nobody waits for the answers of those that are gone.
            answers.extend(parked.zip(decided).map(|(parked, decided)| (parked.reply, decided.outcome)));
        }
    }

    /// Whoever has waited long enough gets one last try, and then the refusal as it stands.
    fn end_waits(&mut self, answers: &mut Vec<(Reply, Outcome)>) {
        self.collect_served(answers);
        while let Some((until, ticket)) = self.patience.first().copied() {
            if until >= self.decider.now() {
                break;
            }
            self.decider.call_off(ticket);
            self.collect_served(answers);
            let Some(parked) = self.unpark(ticket) else { continue };
            match self.decider.ask(&parked.command, parked.correlation, None) {
                Asked::Decided(decided) => answers.push((parked.reply, decided.outcome)),
                Asked::Waiting { .. } => unreachable!("it was not told to wait"),
            }
        }
    }

    fn unpark(&mut self, ticket: Ticket) -> Option<Parked> {
        let parked = self.parked.remove(&ticket)?;
        self.patience.remove(&(parked.until, ticket));
        Some(parked)
    }

    /// Until the next lease is due, but not for ever: the clock may have been asleep.
    fn until_due(&self) -> Duration {
        let due = self.decider.until_due().map_or(Duration::MAX, |span| Duration::from_millis(span.0));
        let waits = self.parked.values().map(|parked| parked.until).min();
        let tired =
            waits.map_or(Duration::MAX, |until| Duration::from_millis(self.decider.now().until(until).0 + 1));
        due.min(tired).min(Duration::from_secs(5))
    }
}

/// What is still taken when the log has no room to spare.
fn gives_back(action: &Action) -> bool {
    matches!(
        action,
        Action::Release(_)
            | Action::Revoke(_)
            | Action::RevokeAll(_)
            | Action::Reclaim(_)
            | Action::Retract(_)
            | Action::Tick
    )
}

struct Appending {
    log: Box<dyn LogStore>,
    batches: Receiver<Work>,
    room: Arc<AtomicBool>,
    fatal: Option<Fatal>,
}

impl Appending {
    fn run(mut self) {
        self.make_room();
        loop {
            let work = match self.batches.recv_timeout(RETRY) {
                Ok(work) => work,
                Err(RecvTimeoutError::Timeout) => {
                    self.make_room();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Some(sealed) = &work.sealed
                && let Err(error) = self.log.append(sealed.seq, sealed.lsns, &sealed.payload)
            {
                // Nobody is answered: whoever asks again after the restart is told what is so.
                drop(work);
                if let Some(fatal) = self.fatal.take() {
                    fatal(error);
                }
                return;
            }
            for (reply, outcome) in work.answers {
                reply(Ok(outcome));
            }
            self.make_room();
        }
    }

    /// A batch's worth, and a segment behind it.
    fn make_room(&mut self) {
        let reserved = self.log.reserve(2 * BATCH_BYTES as u64);
        let full = reserved.is_err_and(|error| error.kind == ErrorKind::NoSpace);
        self.room.store(!full, Ordering::Release);
    }
}
