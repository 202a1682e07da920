//! Drives one shard: takes commands from many threads, decides them in batches, appends each batch to the log, and
//! publishes its replies once it is durable (group commit).
//!
//! **Invariant.** A reply, a refusal, an event or the result of a query is published only when the batch that it belongs
//! to, and so every state that it reveals, is durable; and batches are published in order. One append is in flight at a
//! time. Commands that arrive during an append form the next batch.
//!
//! **What would break it.** An append fails and the sequencer goes on: the state in memory is ahead of the log, and the
//! next reply reveals what a restart will not know. So a failed append ends the sequencer: nothing is published any more,
//! and its owner ends the process. An append whose outcome is not known yet is repeated with the same bytes until it is.
//!
//! **Who does the work.** There is no thread that belongs to a shard. A thread that submits puts its command into the
//! inbox and tries to run a turn (flat combining): if another thread is deciding, that thread decides the command too.
//! A turn decides what is in the inbox. If the writer (the log) is here, the batch leaves with it: to a
//! worker of the [`Executor`], or the same thread appends, where an append cannot block or the thread may. The thread
//! that has appended a batch publishes it, brings the writer back, and runs the next turn. On a disk it brings the writer
//! back first, and another thread appends the next batch while this one writes its replies to their sockets. A timer runs
//! a turn when something is due.
//!
//! **Why no command is forgotten.** A submitting thread that cannot get `core` returns. The thread that has `core` checks
//! the inbox after it has released `core`, and the thread that brings back the writer runs a turn. All other work is done
//! by workers, which wait for `core`.
//!
//! **Why the writer comes back.** The lock `core` is not fair: a thread that runs one turn after the other could keep the
//! thread with the writer from it, and nothing would become durable. So a thread that runs turns leaves as soon as
//! another brings the writer back; that one runs a turn afterwards.
//!
//! **Locks**, in the order in which they may be taken. None but `observer` is held while a log, a reply, a query's result or
//! an observer is called; a query itself runs under `core`.
//!
//! | lock | guards | taken |
//! |---|---|---|
//! | `observer` | the observer, and the order in which batches are published | by the thread that has appended a batch, while it still has the writer |
//! | `core` | the shard, the batch under way, the writer | tried, by a submitting thread; waited for, by a worker and by the thread that brings back the writer |
//! | `inbox` | what has arrived | by anyone, for a moment; also under `core` |
//! | `health` | whether the log takes commands | as `inbox` |
//! | `ended` | whether the sequencer has ended | as `inbox`; a closing owner waits on it |

mod batch;
mod batch_limits;
mod delivery;
mod fair_queue;
mod inbox;
mod marks;
mod pacing;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use kernel::{Close, Command, Event, Lsn, Span};
use store::{Bounds, LogStore, Seq, StoreError};

pub use self::delivery::Delivery;
pub use self::marks::{LoggedSince, MarkInterval};
use self::turn::{Runner, Shared};
use crate::audit::AuditEntry;
use crate::checkpoint::Mark;
use crate::decision::{ContentionEvent, Reply, Unavailable};
use crate::executor::Executor;
use crate::origin::Origin;
use crate::shard::{LogSpace, Shard, Submission};
use crate::sync::sync_channel;
use crate::waiting::{Wait, WaiterConnection};

/// Maximum number of requests for leases in the inbox, and of other commands, and of queries.
pub const QUEUE_MAX: usize = 4096;

/// Receives a reply, with its delivery, which is to be confirmed once a client has the reply. Dropped without a call if
/// the sequencer ends before the outcome is durable: the command may have been carried out.
pub type ReplyTo = Box<dyn FnOnce(Reply, Delivery) + Send>;

/// Reads the state, and returns what to do once that state is durable.
pub type Query = Box<dyn FnOnce(&Shard<ReplyTo>) -> Publish + Send>;

/// To be done when a state is durable.
pub type Publish = Box<dyn FnOnce() + Send>;

/// Receives the reason why a sequencer ended other than by its owner's wish. Called at most once.
pub type OnEnd = Box<dyn FnOnce(Ended) + Send>;

/// Why a sequencer ended.
#[derive(Debug)]
pub enum Ended {
    /// An append failed, or a turn panicked: the state in memory is ahead of the log. The process must end.
    Failed(StoreError),
    /// Another writer owns the log. The state in memory is to be discarded; the process may go on.
    Deposed(StoreError),
}

/// Observes what has become durable, batch by batch, in order. Must not block.
pub trait BatchObserver: Send {
    /// These events are durable.
    fn durable(&mut self, events: &[(Lsn, Vec<Event>)]);

    /// These audit entries are of durable records. Only audited shards have any.
    fn audited(&mut self, entries: Vec<AuditEntry>);

    /// These requests met conflicting leases; the leases are durable.
    fn contended(&mut self, contended: &[ContentionEvent]) {
        reached!();
        let _ = contended;
    }

    /// The replies of a batch follow, on this thread, until [`BatchObserver::replied`].
    fn replying(&mut self) {
        reached!();
    }

    /// The replies of the batch are published.
    fn replied(&mut self) {
        reached!();
    }

    /// Enough has been logged since the last mark for a snapshot.
    fn marked(&mut self, mark: Mark);

    /// A duration, for metrics.
    fn measured(&mut self, measure: Measure) {
        reached!();
        let _ = measure;
    }
}

/// A duration, for metrics.
#[derive(Clone, Copy, Debug)]
pub enum Measure {
    /// A batch became durable.
    Append {
        /// The time that the log took.
        took: Duration,
        /// The length of its records.
        bytes: usize,
        /// The readable range of the log.
        bounds: Bounds,
    },
    /// Waiters were granted what others released.
    HandOff {
        /// From the first command of the batch to the replies of the waiters.
        took: Duration,
        /// The number of waiters.
        waiters: usize,
    },
}

/// Observes nothing.
impl BatchObserver for () {
    fn durable(&mut self, _: &[(Lsn, Vec<Event>)]) {}

    fn audited(&mut self, _: Vec<AuditEntry>) {}

    fn marked(&mut self, _: Mark) {}
}

/// Whether a sequencer can grant leases durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The commands that the log has space for.
    pub space: LogSpace,
    /// Why it does not take every command, or why an append is being repeated.
    pub reason: Option<String>,
    /// An append is being repeated: whether it happened is not known yet.
    pub is_undecided: bool,
}

/// Settings of a sequencer.
#[derive(Clone, Copy, Debug)]
pub struct SequencerOptions {
    /// When marks for snapshots are made.
    pub marks: MarkInterval,
    /// Minimum interval between two appends.
    pub commit_interval: Span,
}

impl From<u64> for SequencerOptions {
    /// A mark after this many bytes of this tenure, and appends as soon as possible.
    fn from(bytes: u64) -> SequencerOptions {
        reached!();
        let marks = MarkInterval { bytes, batches: u64::MAX, since: LoggedSince::default() };
        SequencerOptions { marks, commit_interval: Span(0) }
    }
}

/// A running shard. Dropping it closes it, and returns when every accepted command has its reply.
pub struct Sequencer {
    shared: Arc<Shared>,
}

impl Sequencer {
    /// Starts a shard that has just been opened, on the log that it was recovered from.
    pub fn start(
        shard: Shard<ReplyTo>,
        log: Box<dyn LogStore>,
        observer: Box<dyn BatchObserver>,
        options: impl Into<SequencerOptions>,
        on_end: OnEnd,
        executor: &Arc<dyn Executor>,
    ) -> Sequencer {
        reached!();
        let sequencer =
            Sequencer { shared: Shared::new(shard, log, observer, options.into(), on_end, executor) };
        // The record that opens the tenure is in the first batch.
        sequencer.shared.spawn_turns();
        sequencer
    }

    /// Submits a command. Its reply is published once what it reveals is durable; if the command cannot be accepted, at
    /// once.
    pub fn submit(&self, submission: Submission<ReplyTo>) {
        reached!();
        let runner = if submission.may_block { Runner::APPENDING } else { self.shared.submitter() };
        self.submit_as(submission, runner);
    }

    /// Submits a command and waits for its reply, appending on this thread if the log is not in use. `None` if the
    /// sequencer ended before the reply: the command may have been carried out.
    pub fn call(
        &self,
        command: Command,
        correlation: u128,
        document: Option<Vec<u8>>,
        wait: Option<Wait>,
    ) -> Option<Reply> {
        reached!();
        let (send, receive) = sync_channel(1);
        let to: ReplyTo = Box::new(move |reply, delivery| delivery.settle(send.send(reply).is_ok()));
        let origin = Origin::from(correlation);
        let submission = Submission { origin, document, wait, ..Submission::new(command, to) };
        self.submit_as(submission, Runner::APPENDING);
        receive.recv().ok()
    }

    fn submit_as(&self, submission: Submission<ReplyTo>, runner: Runner) {
        reached!();
        match self.shared.inbox.submit(submission) {
            Ok(evicted) => {
                if let Some(evicted) = evicted {
                    (evicted.to)(Err(Unavailable::Busy), Delivery::default());
                }
                self.shared.run(runner);
            }
            Err((to, why)) => to(Err(why), Delivery::default()),
        }
    }

    /// The connection of a waiter has closed: the waiter is dropped, and those behind it move up.
    pub fn disconnect(&self, connection: WaiterConnection) {
        reached!();
        connection.close();
        if self.shared.inbox.disconnect(connection) {
            self.shared.spawn_turns();
        }
    }

    /// Replies to all waiters that the shard is about to stop.
    pub fn dismiss(&self) {
        reached!();
        self.shared.inbox.dismiss();
        self.shared.spawn_turns();
    }

    /// Queries the state. The result is returned once that state is durable.
    pub fn query(&self, query: Query) -> Result<(), Unavailable> {
        reached!();
        self.shared.inbox.query(query)?;
        self.shared.run(self.shared.submitter());
        Ok(())
    }

    /// Whether it can grant leases durably.
    pub fn health(&self) -> Health {
        reached!();
        self.shared.health()
    }

    /// Whether a batch is held back, so that it may grow: a timer is set for it.
    pub fn is_holding_back(&self) -> bool {
        reached!();
        self.shared.is_holding_back()
    }

    /// Truncates the log up to `floor`, as soon as the log is not in use.
    pub fn raise_floor(&self, floor: Seq) {
        reached!();
        self.shared.inbox.raise_floor(floor);
        self.shared.spawn_turns();
    }

    /// Accepts no further commands, and ends when every accepted one has its reply. Returns at once.
    pub fn close(&self) {
        reached!();
        self.shared.inbox.close();
        self.shared.spawn_turns();
    }

    /// Hands the log over: accepts no further commands, decides the accepted ones, dismisses the waiters, logs `close` as
    /// the last record of the tenure, and ends. Later commands are refused with [`Unavailable::Moved`]. Returns at once;
    /// false if it was closed before.
    pub fn hand_over(&self, close: Close) -> bool {
        reached!();
        let is_closing = self.shared.inbox.hand_over(close);
        self.shared.spawn_turns();
        is_closing
    }

    /// Returns when it has ended.
    pub fn wait_until_ended(&self) {
        reached!();
        self.shared.wait_until_ended();
    }

    /// Since when the log, on another machine, has been working on an append or a confirmation; `None` if it is idle.
    pub fn busy_for(&self) -> Option<Duration> {
        reached!();
        self.shared.busy_for()
    }

    /// Whether it has ended: closed with every reply sent, failed, or deposed.
    pub fn has_ended(&self) -> bool {
        reached!();
        self.shared.has_ended()
    }

    /// Reads the state at once, between two turns: it may not be durable yet. [`Sequencer::query`] waits until it is.
    pub fn inspect<T>(&self, read: impl FnOnce(&Shard<ReplyTo>) -> T) -> T {
        reached!();
        self.shared.inspect(read)
    }

    /// Ends it as a crash would: nothing more is decided, appended or published.
    pub fn abandon(&self) {
        reached!();
        self.shared.abandon();
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        reached!();
        self.shared.inbox.close();
        self.shared.run(Runner::WORKER);
        self.shared.wait_until_ended();
    }
}
