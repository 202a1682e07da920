//! What waits for the deciding thread: commands, queries, and news.
//!
//! Bounded: who comes when it is full is turned away. All that is there is taken at once, so the cost of a
//! hand-over is shared by a batch.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::{LeaseId, Span};
use store::Seq;

use super::{Query, ReplyTo};
use crate::shard::{Submission, Unavailable};
use crate::stopwatch::Stopwatch;
use crate::waiting::WaiterConnection;

/// Nobody is woken to be earlier by less.
const EARLIER: Duration = Duration::from_millis(2);

pub(super) struct Inbox {
    max: usize,
    kept: Mutex<InboxState>,
    arrived: Condvar,
}

#[derive(Default)]
struct InboxState {
    submissions: VecDeque<Submission<ReplyTo>>,
    queries: Vec<Query>,
    closed_connections: Vec<WaiterConnection>,
    /// Responses that carry a lease: whether they were handed to their sockets. As many as there are grants in a few
    /// batches: each turn takes all of them.
    deliveries: Vec<(LeaseId, bool)>,
    dismissed: bool,
    floor: Option<Seq>,
    closed: bool,
    /// For how long the deciding thread sleeps, if it does, and since when.
    asleep: Option<(Duration, Stopwatch)>,
    /// It has to look at the time again.
    nudged: bool,
}

/// What was waiting.
pub(super) struct Drained {
    pub(super) submissions: VecDeque<Submission<ReplyTo>>,
    pub(super) queries: Vec<Query>,
    pub(super) closed_connections: Vec<WaiterConnection>,
    pub(super) deliveries: Vec<(LeaseId, bool)>,
    pub(super) dismissed: bool,
    pub(super) closed: bool,
}

impl InboxState {
    fn has_more(&self) -> bool {
        !self.submissions.is_empty() || !self.queries.is_empty()
    }
}

impl Inbox {
    pub(super) fn new(max: usize) -> Inbox {
        Inbox { max, kept: Mutex::default(), arrived: Condvar::new() }
    }

    /// Or says whom to tell why not. The caller wakes the deciding thread, or does its work.
    pub(super) fn submit(&self, submission: Submission<ReplyTo>) -> Result<(), (ReplyTo, Unavailable)> {
        let mut kept = self.kept();
        if kept.closed {
            return Err((submission.to, Unavailable::Stopped));
        }
        if kept.submissions.len() >= self.max {
            return Err((submission.to, Unavailable::Busy));
        }
        kept.submissions.push_back(submission);
        Ok(())
    }

    /// The caller wakes the deciding thread, or does its work.
    pub(super) fn query(&self, query: Query) -> Result<(), Unavailable> {
        let mut kept = self.kept();
        if kept.closed {
            return Err(Unavailable::Stopped);
        }
        if kept.queries.len() >= self.max {
            return Err(Unavailable::Busy);
        }
        kept.queries.push(query);
        Ok(())
    }

    /// There is something to be taken. Heard also by one that sleeps until a full batch is gone, and does not know that it is.
    pub(super) fn ring(&self) {
        self.nudge();
    }

    /// The deciding thread is about to sleep, for no longer than this.
    pub(super) fn retire(&self, most: Duration) {
        self.kept().asleep = Some((most, Stopwatch::start()));
    }

    /// No faster than they can be taken out: one that does not fit goes when its turn comes.
    pub(super) fn hang_up(&self, connection: WaiterConnection) {
        let mut kept = self.kept();
        if kept.closed_connections.len() < self.max {
            kept.closed_connections.push(connection);
            self.wake(kept);
        }
    }

    /// The next turn takes note of it: nothing is due for it.
    pub(super) fn delivered(&self, lease: LeaseId) {
        self.kept().deliveries.push((lease, true));
    }

    /// The deciding thread undoes the grant, unless another response carries it.
    pub(super) fn undelivered(&self, lease: LeaseId) {
        let mut kept = self.kept();
        kept.deliveries.push((lease, false));
        kept.nudged = true;
        self.wake(kept);
    }

    pub(super) fn dismiss(&self) {
        let mut kept = self.kept();
        kept.dismissed = true;
        self.wake(kept);
    }

    /// Something has changed that the deciding thread has to look at.
    pub(super) fn nudge(&self) {
        let mut kept = self.kept();
        kept.nudged = true;
        self.wake(kept);
    }

    /// What was taken and did not fit goes first next time; the room for it is used again.
    pub(super) fn put_back(&self, mut submissions: VecDeque<Submission<ReplyTo>>) {
        let mut kept = self.kept();
        if !submissions.is_empty() || kept.submissions.capacity() < submissions.capacity() {
            submissions.append(&mut kept.submissions);
            kept.submissions = submissions;
        }
    }

    /// Is there more to be taken?
    pub(super) fn has_more(&self) -> bool {
        self.kept().has_more()
    }

    /// Does the deciding thread have to go on once the log is back?
    pub(super) fn needs_the_log(&self) -> bool {
        let kept = self.kept();
        kept.closed || kept.floor.is_some() || kept.has_more()
    }

    /// The highest counts.
    pub(super) fn raise_floor(&self, floor: Seq) {
        self.keep_floor(floor);
        self.nudge();
    }

    /// For when the log is back.
    pub(super) fn keep_floor(&self, floor: Seq) {
        let mut kept = self.kept();
        kept.floor = kept.floor.max(Some(floor));
    }

    pub(super) fn close(&self) {
        let mut kept = self.kept();
        kept.closed = true;
        self.wake(kept);
    }

    /// Is the deciding thread asleep, with nothing to wake up for?
    pub(super) fn is_idle(&self) -> bool {
        let kept = self.kept();
        kept.asleep.is_some()
            && !kept.nudged
            && kept.submissions.is_empty()
            && kept.queries.is_empty()
            && !kept.closed
    }

    /// Something is due in so long: the deciding thread must not sleep for longer.
    pub(super) fn wake_within(&self, due: Option<Span>) {
        let mut kept = self.kept();
        let sooner = |than: Duration| due.is_some_and(|due| Duration::from_millis(due.0) + EARLIER < than);
        let too_long = |(asleep, since): (Duration, Stopwatch)| {
            sooner(asleep) && sooner(asleep.saturating_sub(since.elapsed()))
        };
        if kept.asleep.is_some_and(too_long) {
            kept.nudged = true;
            self.wake(kept);
        }
    }

    /// Waits until there is something, or so long; for submissions only if they are wanted.
    pub(super) fn wait(&self, timeout: Duration, submissions: bool) {
        let mut kept = self.kept();
        let empty = |kept: &InboxState| {
            let commands = submissions && kept.has_more();
            !commands && kept.closed_connections.is_empty() && !kept.dismissed && !kept.closed && !kept.nudged
        };
        if !timeout.is_zero() && empty(&kept) {
            kept.asleep = Some((timeout, Stopwatch::start()));
            kept = self
                .arrived
                .wait_timeout_while(kept, timeout, |kept| empty(kept))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        kept.asleep = None;
        kept.nudged = false;
    }

    /// Takes all that is there, submissions only if they are wanted. Whoever takes has the core: what came first is
    /// decided first.
    pub(super) fn take(&self, submissions: bool) -> Drained {
        let mut kept = self.kept();
        Drained {
            submissions: if submissions { std::mem::take(&mut kept.submissions) } else { VecDeque::new() },
            queries: if submissions { std::mem::take(&mut kept.queries) } else { Vec::new() },
            closed_connections: std::mem::take(&mut kept.closed_connections),
            deliveries: std::mem::take(&mut kept.deliveries),
            dismissed: std::mem::take(&mut kept.dismissed),
            closed: kept.closed,
        }
    }

    /// The floor to raise, if there is one.
    pub(super) fn take_floor(&self) -> Option<Seq> {
        self.kept().floor.take()
    }

    fn wake(&self, kept: MutexGuard<'_, InboxState>) {
        let asleep = kept.asleep.is_some();
        drop(kept);
        if asleep {
            self.arrived.notify_one();
        }
    }

    fn kept(&self) -> MutexGuard<'_, InboxState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    /// Sleeps for an hour if it is let, on a thread of its own; says whether it came back soon.
    fn comes_back(inbox: &Arc<Inbox>, submissions: bool) -> bool {
        let (send, receive) = channel();
        let inbox = Arc::clone(inbox);
        std::thread::spawn(move || {
            inbox.wait(Duration::from_secs(3600), submissions);
            let _ = send.send(());
        });
        receive.recv_timeout(Duration::from_secs(60)).is_ok()
    }

    /// The batch was full when the deciding thread went to sleep, and gone when somebody rang: it did not hear, for five
    /// seconds.
    #[test]
    fn a_ring_is_heard_by_one_that_wants_no_submissions() {
        let inbox = Arc::new(Inbox::new(1));
        inbox.ring();
        assert!(comes_back(&inbox, false));
    }

    /// Something became due while the deciding thread found out how long it might sleep: it slept for that long.
    #[test]
    fn what_becomes_due_just_before_the_sleep_is_not_slept_through() {
        let inbox = Arc::new(Inbox::new(1));
        inbox.retire(Duration::from_secs(3600));
        inbox.wake_within(Some(Span(10)));
        assert!(comes_back(&inbox, true));
    }
}
