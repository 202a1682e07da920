//! The leases of this connection, each under a short handle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::responses::Granted;
use lockd_client::{Lease, LossReason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Identifies a lease towards the agent. Never reused.
pub(super) type Handle = u64;

/// A reservation for one lease; freed on drop.
pub(super) type LeaseSlot = OwnedSemaphorePermit;

/// A snapshot of a lease in the table.
pub(super) struct LeaseInfo {
    pub(super) handle: Handle,
    pub(super) granted: Granted,
    pub(super) remaining: Duration,
}

pub(super) struct LeaseTable {
    slots: Arc<Semaphore>,
    slots_max: u32,
    table: Mutex<LeaseRows>,
}

#[derive(Default)]
struct LeaseRows {
    last: Handle,
    leases: BTreeMap<Handle, (Lease, LeaseSlot)>,
    closed: bool,
}

impl LeaseTable {
    pub(super) fn new(slots_max: u32) -> LeaseTable {
        let slots = Arc::new(Semaphore::new(slots_max as usize));
        LeaseTable { slots, slots_max, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, LeaseRows> {
        self.table.lock().expect("no code panics while holding the lock")
    }

    /// Reserves a slot, before the lease is requested; `None` if the table is full.
    pub(super) fn slot(&self) -> Option<LeaseSlot> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Adds a lease. If the table is closed it is returned, and the caller must release it.
    pub(super) fn add(&self, lease: Lease, slot: LeaseSlot) -> Result<LeaseInfo, (Lease, LeaseSlot)> {
        let mut table = self.table();
        if table.closed {
            return Err((lease, slot));
        }
        table.last += 1;
        let handle = table.last;
        let info = info(handle, &lease);
        table.leases.insert(handle, (lease, slot));
        Ok(info)
    }

    /// Removes a lease, lost or not.
    pub(super) fn take(&self, handle: Handle) -> Option<(Lease, LeaseSlot)> {
        self.table().leases.remove(&handle)
    }

    /// Removes the lost leases.
    pub(super) fn take_lost(&self) -> Vec<(LeaseInfo, LossReason)> {
        let mut lost = Vec::new();
        self.table().leases.retain(|handle, (lease, _)| {
            let why = lease.why_lost();
            lost.extend(why.map(|why| (info(*handle, lease), why)));
            why.is_none()
        });
        lost
    }

    /// The live leases, oldest first.
    pub(super) fn live(&self) -> Vec<LeaseInfo> {
        let table = self.table();
        let live = table.leases.iter().filter(|(_, (lease, _))| lease.is_live());
        live.map(|(handle, (lease, _))| info(*handle, lease)).collect()
    }

    /// The first live lease that matches.
    pub(super) fn find(&self, matches: impl Fn(&Granted) -> bool) -> Option<LeaseInfo> {
        self.live().into_iter().find(|info| matches(&info.granted))
    }

    /// Closes the table to new leases and returns all that it held.
    pub(super) fn close(&self) -> Vec<(Lease, LeaseSlot)> {
        let mut table = self.table();
        table.closed = true;
        std::mem::take(&mut table.leases).into_values().collect()
    }

    /// Waits until every slot is free: no lease is held, and none is in flight.
    pub(super) async fn all_free(&self) {
        // Cannot fail: the semaphore is never closed.
        let _ = self.slots.acquire_many(self.slots_max).await;
    }
}

fn info(handle: Handle, lease: &Lease) -> LeaseInfo {
    LeaseInfo { handle, granted: lease.granted().clone(), remaining: lease.remaining() }
}
