//! The delivery of a response that carries a new lease.
//!
//! **Invariant.** A grant is undone only when every response that carries it, the first and each replay, has failed.
//!
//! **What would break it.** A client retries under its idempotency key on a second connection, and the replay arrives.
//! Then the first connection closes. If that undid the grant, a second client would get a lease that the first was
//! told it holds. So the shard counts the responses where they are decided, and each reports exactly once.

use std::sync::Weak;

use kernel::LeaseId;

use super::turn::Shared;

/// One response on its way to a client. Dropped without [`Delivery::confirm`], it has failed.
#[derive(Default)]
#[must_use = "dropping a delivery reports that the response was lost"]
pub struct Delivery {
    /// `None` where the response carries no lease, or one that the client is known to have.
    report: Option<(LeaseId, Weak<Shared>)>,
}

impl Delivery {
    pub(super) fn new(lease: Option<LeaseId>, shared: &Weak<Shared>) -> Delivery {
        Delivery { report: lease.map(|lease| (lease, Weak::clone(shared))) }
    }

    /// The response was handed to its socket. If the network loses it from here on, the lease lasts until its TTL.
    pub fn confirm(mut self) {
        self.report(!planted!(ConfirmedAsLost));
    }

    /// Confirms the delivery if `reached` is true, otherwise reports it as failed.
    pub fn settle(mut self, reached: bool) {
        self.report(reached);
    }

    fn report(&mut self, reached: bool) {
        let Some((lease, shared)) = self.report.take() else { return };
        if let Some(shared) = shared.upgrade() {
            shared.report_delivery(lease, reached);
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.report(false);
    }
}
