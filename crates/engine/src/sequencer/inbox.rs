//! Commands, queries and reports about connections that have arrived and are not decided yet.
//!
//! Bounded: a command that finds it full is refused, or in its place the last one of the identity that has the most here.
//! Requests for leases and other commands are counted apart, so that a thousand requests that wait for a hand-off cannot
//! keep a renewal out.

use std::collections::VecDeque;

use kernel::{Action, Close, LeaseId};
use store::Seq;

use super::fair_queue::FairQueue;
use super::{Query, ReplyTo};
use crate::decision::Unavailable;
use crate::shard::Submission;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::waiting::WaiterConnection;

/// The inbox of a sequencer.
pub(super) struct Inbox {
    max: usize,
    state: Mutex<InboxState>,
}

#[derive(Default)]
struct InboxState {
    submissions: FairQueue,
    queries: Vec<Query>,
    disconnected: VecDeque<WaiterConnection>,
    /// Responses that carry a lease, and whether they were handed to their sockets. At most one for each grant that was
    /// published.
    deliveries: VecDeque<(LeaseId, bool)>,
    /// How many of them failed.
    failed_deliveries: usize,
    is_dismissed: bool,
    floor: Option<Seq>,
    /// The reason why nothing more is accepted.
    closed: Option<Unavailable>,
    /// The record to end the log with, once everything accepted is decided and durable.
    hand_over: Option<Close>,
    /// A worker is about to run a turn.
    is_spawned: bool,
}

/// The capacity of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capacity {
    /// Nothing: the batch is full, and the one before is not durable yet.
    Nothing,
    /// Anything but requests for leases: waiters go first.
    NoLeaseRequests,
    /// Anything.
    Everything,
}

/// The part of the inbox that a turn has taken.
pub(super) struct Arrivals {
    pub(super) submissions: FairQueue,
    pub(super) queries: Vec<Query>,
    pub(super) disconnected: VecDeque<WaiterConnection>,
    pub(super) deliveries: VecDeque<(LeaseId, bool)>,
    pub(super) is_dismissed: bool,
}

/// Whether a command asks for a lease.
pub(super) fn is_lease_request(submission: &Submission<ReplyTo>) -> bool {
    reached!();
    matches!(submission.command.action, Action::Acquire(_) | Action::Reserve(_))
}

impl Inbox {
    pub(super) fn new(max: usize) -> Inbox {
        reached!();
        Inbox { max, state: Mutex::default() }
    }

    /// Adds a command, or returns its reply address with the reason why not. Returns the command of another identity
    /// that it has replaced.
    pub(super) fn submit(
        &self,
        submission: Submission<ReplyTo>,
    ) -> Result<Option<Submission<ReplyTo>>, (ReplyTo, Unavailable)> {
        reached!();
        let mut state = self.lock();
        if let Some(why) = state.closed {
            return Err((submission.to, why));
        }
        let is_full = state.submissions.count(is_lease_request(&submission)) >= self.max;
        let evicted = is_full.then(|| state.submissions.evict_for(&submission)).flatten();
        if is_full && evicted.is_none() {
            return Err((submission.to, Unavailable::Busy));
        }
        state.submissions.push(submission);
        Ok(evicted)
    }

    pub(super) fn query(&self, query: Query) -> Result<(), Unavailable> {
        reached!();
        let mut state = self.lock();
        if let Some(why) = state.closed {
            return Err(why);
        }
        if state.queries.len() >= self.max {
            return Err(Unavailable::Busy);
        }
        state.queries.push(query);
        Ok(())
    }

    /// Returns whether there was capacity. A connection that is closed is also noticed when its waiter would be served.
    pub(super) fn disconnect(&self, connection: WaiterConnection) -> bool {
        reached!();
        let mut state = self.lock();
        let has_room = state.disconnected.len() < self.max;
        if has_room {
            state.disconnected.push_back(connection);
        }
        has_room
    }

    /// Reports what became of a response that carries a lease.
    pub(super) fn report_delivery(&self, lease: LeaseId, reached: bool) {
        reached!();
        let mut state = self.lock();
        state.deliveries.push_back((lease, reached));
        state.failed_deliveries += usize::from(!reached);
    }

    pub(super) fn dismiss(&self) {
        reached!();
        self.lock().is_dismissed = true;
    }

    /// The highest floor counts.
    pub(super) fn raise_floor(&self, floor: Seq) {
        reached!();
        let mut state = self.lock();
        state.floor = state.floor.max(Some(floor));
    }

    pub(super) fn take_floor(&self) -> Option<Seq> {
        reached!();
        self.lock().floor.take()
    }

    pub(super) fn has_floor(&self) -> bool {
        reached!();
        self.lock().floor.is_some()
    }

    /// Whether a worker must be spawned: false if one is about to run a turn.
    pub(super) fn note_spawned(&self) -> bool {
        reached!();
        !std::mem::replace(&mut self.lock().is_spawned, true)
    }

    /// The worker runs a turn now: what arrives from here on needs another.
    pub(super) fn note_started(&self) {
        reached!();
        self.lock().is_spawned = false;
    }

    /// The first reason counts.
    pub(super) fn close(&self) {
        reached!();
        self.lock().closed.get_or_insert(Unavailable::Stopped);
    }

    /// Closes it, and asks for a last record. False if it was closed before: nothing is handed over then.
    pub(super) fn hand_over(&self, close: Close) -> bool {
        reached!();
        let mut state = self.lock();
        if state.closed.is_some() {
            return false;
        }
        state.closed = Some(Unavailable::Moved(close.to));
        state.hand_over = Some(close);
        true
    }

    pub(super) fn take_hand_over(&self) -> Option<Close> {
        reached!();
        self.lock().hand_over.take()
    }

    /// Takes what a turn can take. Whoever takes has `core`, so that what arrived first is decided first. `spare` is an empty
    /// queue to receive what arrives from now on.
    pub(super) fn take(&self, capacity: Capacity, spare: FairQueue) -> Arrivals {
        reached!();
        let mut state = self.lock();
        let takes_commands = capacity != Capacity::Nothing;
        state.failed_deliveries = 0;
        Arrivals {
            submissions: if takes_commands {
                std::mem::replace(&mut state.submissions, spare)
            } else {
                spare
            },
            queries: if takes_commands { std::mem::take(&mut state.queries) } else { Vec::new() },
            disconnected: std::mem::take(&mut state.disconnected),
            deliveries: std::mem::take(&mut state.deliveries),
            is_dismissed: std::mem::take(&mut state.is_dismissed),
        }
    }

    /// Puts back what the batch had no capacity for, in front of what has arrived since. Returns an empty queue, for the next
    /// turn.
    pub(super) fn put_back(&self, mut left: Arrivals) -> FairQueue {
        reached!();
        let mut state = self.lock();
        if !left.submissions.is_empty() {
            left.submissions.append(&mut state.submissions);
            std::mem::swap(&mut left.submissions, &mut state.submissions);
        }
        if !left.disconnected.is_empty() {
            left.disconnected.append(&mut state.disconnected);
            state.disconnected = left.disconnected;
        }
        if !left.deliveries.is_empty() {
            state.failed_deliveries += left.deliveries.iter().filter(|(_, reached)| !reached).count();
            left.deliveries.append(&mut state.deliveries);
            state.deliveries = left.deliveries;
        }
        left.submissions
    }

    /// Whether a turn with this capacity has something to take. Deliveries that succeeded can wait for the next turn.
    pub(super) fn has_work(&self, capacity: Capacity) -> bool {
        reached!();
        let state = self.lock();
        let takeable = match capacity {
            Capacity::Nothing => return false,
            Capacity::NoLeaseRequests => state.submissions.count(false) > 0,
            Capacity::Everything => !state.submissions.is_empty(),
        };
        takeable
            || !state.queries.is_empty()
            || !state.disconnected.is_empty()
            || state.is_dismissed
            || state.failed_deliveries > 0
    }

    /// Whether it is closed, and every command and query was taken.
    pub(super) fn is_exhausted(&self) -> bool {
        reached!();
        let state = self.lock();
        state.closed.is_some() && state.submissions.is_empty() && state.queries.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        reached!();
        lock(&self.state)
    }
}
