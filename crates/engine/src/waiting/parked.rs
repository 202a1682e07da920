//! The reply side of waiters: where each reply goes, its deadline, its idempotency key and its connection.
//!
//! **Invariant.** Every waiter in the wait queues has exactly one entry here, under its ticket, and the three indexes
//! agree with the entries.

use std::collections::{BTreeMap, BTreeSet};

use kernel::{Identity, RequestKey, Time};

use super::connection::WaiterConnection;
use super::queues::Ticket;
use crate::decision::OnDecided;

/// The idempotency key of a request, unique with its identity.
pub(super) type RequestId = (Identity, RequestKey);

/// The reply side of one waiter.
pub(super) struct ParkedRequest<R> {
    pub(super) to: R,
    pub(super) on_decided: Option<OnDecided>,
    /// The number of its connection.
    connection: u64,
    pub(super) deadline: Time,
    /// A retry of the same request takes its place.
    pub(super) request: Option<RequestId>,
}

/// The reply side of all waiters.
pub(super) struct Parked<R> {
    requests: BTreeMap<Ticket, ParkedRequest<R>>,
    deadlines: BTreeSet<(Time, Ticket)>,
    by_request: BTreeMap<RequestId, Ticket>,
    by_connection: BTreeMap<u64, Ticket>,
}

impl<R> Default for Parked<R> {
    fn default() -> Parked<R> {
        Parked {
            requests: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            by_request: BTreeMap::new(),
            by_connection: BTreeMap::new(),
        }
    }
}

impl<R> Parked<R> {
    /// The reply addresses of all waiters.
    pub(super) fn into_replies(self) -> impl Iterator<Item = R> {
        self.requests.into_values().map(|parked| parked.to)
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn insert(
        &mut self,
        ticket: Ticket,
        (to, on_decided): (R, Option<OnDecided>),
        connection: &WaiterConnection,
        deadline: Time,
        request: Option<RequestId>,
    ) {
        if let Some(request) = &request {
            self.by_request.insert(request.clone(), ticket);
        }
        if !planted!(WaitUnbounded) {
            self.deadlines.insert((deadline, ticket));
        }
        let connection = connection.number();
        self.by_connection.insert(connection, ticket);
        self.requests.insert(ticket, ParkedRequest { to, on_decided, connection, deadline, request });
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<ParkedRequest<R>> {
        let parked = self.requests.remove(&ticket)?;
        self.deadlines.remove(&(parked.deadline, ticket));
        self.by_connection.remove(&parked.connection);
        if let Some(request) = &parked.request {
            self.by_request.remove(request);
        }
        Some(parked)
    }

    /// Gives a waiter's place to a retry of its request. Returns where the reply would have gone.
    pub(super) fn replace(
        &mut self,
        ticket: Ticket,
        (to, on_decided): (R, Option<OnDecided>),
        connection: &WaiterConnection,
        deadline: Time,
    ) -> R {
        let parked = self.requests.get_mut(&ticket).expect("every waiter is parked");
        let before = std::mem::replace(&mut parked.to, to);
        parked.on_decided = on_decided;
        self.by_connection.remove(&parked.connection);
        parked.connection = connection.number();
        self.by_connection.insert(parked.connection, ticket);
        self.deadlines.remove(&(parked.deadline, ticket));
        parked.deadline = deadline;
        self.deadlines.insert((deadline, ticket));
        before
    }

    /// The waiter of a request that is being retried.
    pub(super) fn of_request(&self, request: &RequestId) -> Option<Ticket> {
        self.by_request.get(request).copied()
    }

    pub(super) fn of_connection(&self, connection: &WaiterConnection) -> Option<Ticket> {
        self.by_connection.get(&connection.number()).copied()
    }

    /// The earliest deadline of those not taken yet.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes the waiter with the earliest deadline, if that has passed. It stays parked.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Ticket> {
        let due = *self.deadlines.first().filter(|(deadline, _)| *deadline < now)?;
        self.deadlines.remove(&due);
        Some(due.1)
    }

    /// Whether a waiter's deadline has passed.
    pub(super) fn is_due(&self, ticket: Ticket, now: Time) -> bool {
        self.requests.get(&ticket).is_some_and(|parked| parked.deadline < now)
    }

    /// A waiter has moved to another place.
    pub(super) fn relocate(&mut self, from: Ticket, to: Ticket) {
        let Some(parked) = self.requests.remove(&from) else { return };
        self.deadlines.remove(&(parked.deadline, from));
        self.deadlines.insert((parked.deadline, to));
        self.by_connection.insert(parked.connection, to);
        if let Some(request) = &parked.request {
            self.by_request.insert(request.clone(), to);
        }
        self.requests.insert(to, parked);
    }

    /// Removes all.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Ticket, ParkedRequest<R>)> {
        std::mem::take(self).requests.into_iter()
    }
}
