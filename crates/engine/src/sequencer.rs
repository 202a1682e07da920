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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kernel::{Action, Command, Outcome};
use store::{ErrorKind, LogStore, StoreError};

use crate::decider::{Decider, Sealed};

/// How many commands may wait to be decided.
pub const QUEUE_MAX: usize = 4096;
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

/// A command on its way.
struct Submission {
    command: Command,
    correlation: u128,
    document: Option<Vec<u8>>,
    reply: Reply,
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
        let deciding = Deciding { decider, submissions, work, room: Arc::clone(&room) };
        let appending = Appending { log, batches, room, fatal: Some(fatal) };
        let threads =
            vec![std::thread::spawn(move || deciding.run()), std::thread::spawn(move || appending.run())];
        Sequencer { queue: Some(queue), threads }
    }

    /// Hands in a command; `reply` is called with what came of it, once that is durable. If it cannot be
    /// taken, `reply` is called at once.
    pub fn submit(&self, command: Command, correlation: u128, document: Option<Vec<u8>>, reply: Reply) {
        let submission = Submission { command, correlation, document, reply };
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
        let mut next = first;
        while let Some(submission) = next.take() {
            answers.extend(self.decide(submission));
            let full = answers.len() >= BATCH_COMMANDS || self.decider.batch_bytes() >= BATCH_BYTES;
            next = match self.submissions.try_recv() {
                Ok(submission) if !full => Some(submission),
                Ok(submission) => {
                    answers.extend(self.decide(submission));
                    None
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
            };
        }
        Work { sealed: self.decider.seal(), answers }
    }

    fn decide(&mut self, submission: Submission) -> Option<(Reply, Outcome)> {
        let Submission { command, correlation, document, reply } = submission;
        if !self.room.load(Ordering::Acquire) && !gives_back(&command.action) {
            reply(Err(Unavailable::NoSpace));
            return None;
        }
        Some((reply, self.decider.decide(&command, correlation, document).outcome))
    }

    /// Until the next lease is due, but not for ever: the clock may have been asleep.
    fn until_due(&self) -> Duration {
        let due = self.decider.until_due().map_or(Duration::MAX, |span| Duration::from_millis(span.0));
        due.min(Duration::from_secs(5))
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
