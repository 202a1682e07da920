//! The leases behind the edges of the engine's wait-for graph, in pages: a search for deadlock cycles visits
//! a bounded number of rows at a time, and continues from a cursor.
//!
//! A lease that is live from the first page to the last is on one of them. Exception: a rebind moves a lease
//! within the order of [`Kernel::conflicting_sessions`], possibly to before the cursor; then begin again.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use crate::bundle::Bundle;
use crate::expiry::EffectivePhase;
use crate::kernel::Kernel;
use crate::node::{ClaimKey, MIN_CLAIM_KEY};
use crate::predicate::Class;
use crate::text::{Identity, Namespace, SessionName};
use crate::units::{Age, LeaseId, Lsn, Time};

/// A position among the leases that conflict with a bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConflictCursor {
    /// The number of claim sets that are done.
    set: usize,
    /// The last claim visited in the next set.
    after: Option<(Class, Age, Lsn)>,
}

/// A position among the claims of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCursor(Option<(ClaimKey, Lsn)>);

/// Some rows, and where to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchStep<T, C> {
    /// The rows found.
    pub rows: Vec<T>,
    /// The number of rows visited: those found, and those that were left out.
    pub visited: usize,
    /// Where the next page begins; `None` after the last.
    pub next: Option<C>,
}

impl Kernel {
    /// How many claims of a session are read per row that a page may visit: a lease has one for each directory
    /// above each of its members.
    const CLAIMS_PER_VISIT: usize = 16;

    /// The sessions of leases that conflict with a bundle, from a cursor on; visits at most `max` leases. A
    /// session may be listed repeatedly.
    pub fn conflicting_sessions(
        &self,
        namespace: &Namespace,
        bundle: &Bundle,
        now: Time,
        cursor: ConflictCursor,
        max: usize,
    ) -> SearchStep<(Identity, SessionName), ConflictCursor> {
        let mut page = SearchStep { rows: Vec::new(), visited: 0, next: None };
        let Some(ns) = self.find_namespace(namespace) else { return page };
        let sets = bundle.members().iter().flat_map(|member| {
            member.resource.met().map(move |(name, part)| (name, part, member.predicate.class()))
        });
        let mut after = cursor.after;
        for (set, (name, part, class)) in sets.enumerate().skip(cursor.set) {
            let from = after.take();
            let Some(node) = self.nodes.find(ns.as_parent(), name) else { continue };
            let claims = self.nodes[node].value.claims(part);
            for (claim, lease) in claims.conflicting_after(class, from, &self.leases) {
                if page.visited == max {
                    return page;
                }
                page.visited += 1;
                page.next = Some(ConflictCursor { set, after: Some(claim) });
                let row = &self.leases[lease];
                if self.effective_phase(row, now) != EffectivePhase::Expired {
                    let session = row.optional.as_ref().and_then(|optional| optional.details.session.clone());
                    page.rows.extend(session.map(|session| (self.identity_of(row.account), session)));
                }
            }
        }
        page.next = None;
        page
    }

    /// The leases of a session, from a cursor on; visits at most `max` rows. A lease may be listed
    /// repeatedly.
    pub fn leases_of_session_from(
        &self,
        namespace: &Namespace,
        identity: &Identity,
        session: &SessionName,
        now: Time,
        cursor: SessionCursor,
        max: usize,
    ) -> SearchStep<LeaseId, SessionCursor> {
        let mut page = SearchStep { rows: Vec::new(), visited: 0, next: None };
        let ns = self.find_namespace(namespace);
        let account = ns.and_then(|ns| self.accounts.find(ns.as_parent(), identity.as_str()));
        let session = account.and_then(|account| self.sessions.find(account.as_parent(), session.as_str()));
        let Some(session) = session else { return page };
        let number = session.number();
        let from = match cursor.0 {
            Some((key, lsn)) => Bound::Excluded((number, key, lsn)),
            None => Bound::Included((number, MIN_CLAIM_KEY, Lsn(0))),
        };
        let claims = self.session_claims.range((from, Bound::Unbounded));
        let mut own = claims.take_while(|(other, ..)| *other == number);
        let mut lsns = BTreeSet::new();
        for (_, key, lsn) in own.by_ref().take(max.saturating_mul(Kernel::CLAIMS_PER_VISIT)) {
            lsns.insert(*lsn);
            page.next = Some(SessionCursor(Some((*key, *lsn))));
        }
        page.next = page.next.filter(|_| own.next().is_some());
        page.visited = lsns.len().min(max);
        let live = lsns.into_iter().filter(|lsn| self.still_blocks(*lsn, now));
        page.rows = live.map(|lsn| self.lease_id(lsn)).collect();
        page
    }
}
