//! What clients know about a lease from its responses.

use std::collections::BTreeSet;

use kernel::{Bundle, Epoch, Identity, Span, Time};

use super::ResponseTime;
use crate::servers::clock::{Machine, TrueTime};
use crate::servers::server::RequestNumber;

/// A lease of which a response reached a client.
pub(super) struct KnownLease {
    pub(super) owner: Option<Identity>,
    pub(super) bundle: Bundle,
    /// The epoch issued last.
    pub(super) epoch: Epoch,
    pub(super) ttl: Span,
    /// The longest TTL that was requested for it.
    pub(super) ttl_max: Span,
    /// It is live at least until then, unless a request ends it.
    pub(super) until: TrueTime,
    /// It has ended after that, if known.
    pub(super) latest: Option<TrueTime>,
    /// The hold after expiry: its resources are not granted again before that has passed too.
    pub(super) hold: Span,
    /// A request that could end its authority has arrived.
    pub(super) may_end: bool,
    /// A request that could free its resources has arrived.
    pub(super) may_free: bool,
    /// An operator was told that it is revoked: only a reclaim frees its resources.
    pub(super) revoked: bool,
    /// A response has shown that its authority has ended.
    pub(super) ended: Option<TrueTime>,
    /// Pending requests that may extend it.
    pub(super) extending: BTreeSet<RequestNumber>,
}

impl KnownLease {
    pub(super) fn new(
        owner: Option<Identity>,
        bundle: Bundle,
        epoch: Epoch,
        ttl: Span,
        reported: ReportedTime,
    ) -> KnownLease {
        KnownLease {
            owner,
            bundle,
            epoch,
            ttl,
            ttl_max: ttl,
            until: reported.earliest(),
            latest: None,
            hold: Span(0),
            may_end: false,
            may_free: false,
            revoked: false,
            ended: None,
            extending: BTreeSet::new(),
        }
    }

    /// Until then its resources are not granted to another lease, unless a request frees them.
    pub(super) fn covers_until(&self) -> TrueTime {
        let covered = self.until.0.saturating_add(self.hold.0);
        TrueTime(if self.revoked { u64::MAX } else { covered })
    }
}

/// A remaining time, as a response reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedTime {
    pub(super) at: TrueTime,
    pub(super) remaining: Span,
    /// The time since the expiry, of a response that was written after it.
    pub(super) overdue: Span,
}

impl ReportedTime {
    pub(super) fn new(response: ResponseTime, deadline: Time) -> ReportedTime {
        let (remaining, overdue) = (response.now.until(deadline), deadline.until(response.now));
        ReportedTime { at: response.at, remaining, overdue }
    }

    /// A time that remains from `at` on.
    pub(super) fn remaining(at: TrueTime, remaining: Span) -> ReportedTime {
        ReportedTime { at, remaining, overdue: Span(0) }
    }

    /// The earliest true time of the expiry, for any drift of the clock that measures it.
    pub(super) fn earliest(self) -> TrueTime {
        let later = self.remaining.0.saturating_sub(self.allowance());
        let earlier = if self.overdue == Span(0) { 0 } else { self.overdue.0 + self.allowance() };
        TrueTime((self.at.0 + later).saturating_sub(earlier))
    }

    /// The latest true time of the expiry, while the server stays up.
    pub(super) fn latest(self) -> TrueTime {
        TrueTime(self.at.0 + self.remaining.0 + self.allowance())
    }

    fn allowance(self) -> u64 {
        (self.remaining.0 + self.overdue.0) * Machine::DRIFT_MAX.unsigned_abs() * 2 / 1_000_000 + 2
    }
}
