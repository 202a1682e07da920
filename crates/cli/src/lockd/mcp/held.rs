//! The leases of this connection, by a short handle each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::tell::Granted;
use client::{Lease, Lost};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A lease's name between this program and the agent. Never used twice.
pub(super) type Handle = u64;

/// Room for one lease; it is free again when this is dropped.
pub(super) type Slot = OwnedSemaphorePermit;

/// What is known of a lease here.
pub(super) struct Seen {
    pub(super) handle: Handle,
    pub(super) granted: Granted,
    pub(super) remaining: Duration,
}

pub(super) struct Held {
    slots: Arc<Semaphore>,
    slots_max: u32,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: Handle,
    leases: BTreeMap<Handle, (Lease, Slot)>,
    closed: bool,
}

impl Held {
    pub(super) fn new(slots_max: u32) -> Held {
        let slots = Arc::new(Semaphore::new(slots_max as usize));
        Held { slots, slots_max, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics while it has the table")
    }

    /// Room for one more, to be had before it is asked for; `None` if there is none.
    pub(super) fn slot(&self) -> Option<Slot> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Puts a lease away. If the connection is ending the caller has it back, to give it back.
    pub(super) fn keep(&self, lease: Lease, slot: Slot) -> Result<Seen, (Lease, Slot)> {
        let mut table = self.table();
        if table.closed {
            return Err((lease, slot));
        }
        table.last += 1;
        let handle = table.last;
        let seen = seen(handle, &lease);
        table.leases.insert(handle, (lease, slot));
        Ok(seen)
    }

    /// Takes a lease out, lost or not.
    pub(super) fn take(&self, handle: Handle) -> Option<(Lease, Slot)> {
        self.table().leases.remove(&handle)
    }

    /// Takes out those that were lost.
    pub(super) fn take_lost(&self) -> Vec<(Seen, Lost)> {
        let mut lost = Vec::new();
        self.table().leases.retain(|handle, (lease, _)| {
            let why = lease.why_lost();
            lost.extend(why.map(|why| (seen(*handle, lease), why)));
            why.is_none()
        });
        lost
    }

    /// Those that live, the oldest first.
    pub(super) fn live(&self) -> Vec<Seen> {
        let table = self.table();
        let live = table.leases.iter().filter(|(_, (lease, _))| lease.is_live());
        live.map(|(handle, (lease, _))| seen(*handle, lease)).collect()
    }

    /// The first of those that live of which this is so.
    pub(super) fn find(&self, is_it: impl Fn(&Granted) -> bool) -> Option<Seen> {
        self.live().into_iter().find(|seen| is_it(&seen.granted))
    }

    /// From here on nothing is put away any more. What was there is the caller's.
    pub(super) fn close(&self) -> Vec<(Lease, Slot)> {
        let mut table = self.table();
        table.closed = true;
        std::mem::take(&mut table.leases).into_values().collect()
    }

    /// Waits until every slot is free: nothing is held, and nothing is on its way.
    pub(super) async fn all_free(&self) {
        // It is never closed.
        let _ = self.slots.acquire_many(self.slots_max).await;
    }
}

fn seen(handle: Handle, lease: &Lease) -> Seen {
    Seen { handle, granted: lease.granted().clone(), remaining: lease.remaining() }
}
