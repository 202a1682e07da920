//! Conflict detection: which leases block a bundle.
//!
//! **Invariant.** Live members of different leases are pairwise compatible. Each member joins a few claim
//! sets and checks a few: if two members overlap, the sets that the later one checks include a set that
//! the earlier one joined. The cost is one step per directory above a path: a name is looked up once, and
//! its node links to the directory above.
//!
//! | | joins | checks |
//! |---|---|---|
//! | a name that is not a path | *at* itself | *at* itself |
//! | `/a/b` | *at* itself; *beneath* `/`, `/a`, `/a/b` | *at* itself; *subtree* of `/`, `/a`, `/a/b` |
//! | `/a/b/*` | *subtree* of `/a/b`; *beneath* `/`, `/a` | *subtree* of `/`, `/a`, `/a/b`; *beneath* `/a/b` |

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::bundle::Bundle;
use crate::expiry::EffectivePhase;
use crate::kernel::Kernel;
use crate::lease::{Lease, LeaseRef, MemberRow};
use crate::node::Node;
use crate::outcome::{Conflict, Rejection};
use crate::party_rows::{NamespaceRow, Session};
use crate::predicate::Class;
use crate::resource::{ClaimSetKind, dirs_above, path_of};
use crate::table::{Parent, RowId};
use crate::text::Namespace;
use crate::units::{Age, LeaseId, Lsn, Time};
use crate::view::LeaseView;

impl Kernel {
    /// The maximum number of claims of expired leases to skip before the next claim counts as it is. It
    /// affects which refusal is given, never whether.
    const EXPIRED_SKIP_MAX: usize = 1024;

    /// The leases that conflict with a bundle at a given time, or `None` if it could be granted.
    pub fn conflict(&self, namespace: &Namespace, bundle: &Bundle, now: Time) -> Option<Conflict> {
        let ns = self.find_namespace(namespace)?;
        match self.expired_blockers(ns, bundle, now) {
            Ok(_) => None,
            Err(Blocked) => Some(self.describe_conflict(ns, bundle, now)),
        }
    }

    /// All leases that conflict with a bundle at a given time, each once. There may be very many.
    pub fn conflicts<'a>(
        &'a self,
        namespace: &Namespace,
        bundle: &'a Bundle,
        now: Time,
    ) -> impl Iterator<Item = LeaseView> + 'a {
        let ns = self.find_namespace(namespace);
        let checked = ns.into_iter().flat_map(move |ns| self.claim_sets_to_check(ns, bundle));
        let leases = checked
            .flat_map(|(node, part, class)| self.nodes[node].value.claims(part).conflicting_with(class));
        let mut seen = BTreeSet::new();
        let blocking = leases.filter(move |lease| {
            let row = &self.leases[*lease];
            self.effective_phase(row, now) != EffectivePhase::Expired && seen.insert(row.lsn)
        });
        blocking.map(move |lease| self.live_view(&self.leases[lease], now))
    }

    /// The expired leases that must be ended before a grant, or the rejection if a live lease conflicts.
    pub(crate) fn check_conflicts(
        &self,
        ns: RowId<NamespaceRow>,
        bundle: &Bundle,
        session: Option<RowId<Session>>,
        now: Time,
    ) -> Result<Vec<LeaseRef>, Rejection> {
        self.expired_blockers(ns, bundle, now).map_err(|Blocked| {
            let session = session.filter(|_| !planted!(OwnLeaseUnnoticed));
            let own = session.and_then(|session| self.own_conflicting_lease(ns, bundle, session, now));
            match own {
                Some(lease) => Rejection::AlreadyHeld(lease),
                None => Rejection::Conflict(Box::new(self.describe_conflict(ns, bundle, now))),
            }
        })
    }

    /// The conflicting leases that have expired, in the order of their timers. More of them than one
    /// command may end block the bundle as well: ticks will end them soon.
    fn expired_blockers(
        &self,
        ns: RowId<NamespaceRow>,
        bundle: &Bundle,
        now: Time,
    ) -> Result<Vec<LeaseRef>, Blocked> {
        if self.is_unclaimed_flat_name(ns, bundle) {
            return Ok(Vec::new());
        }
        let mut expired: BTreeMap<(Option<Time>, Lsn), LeaseRef> = BTreeMap::new();
        let mut work = 0;
        for (node, part, class) in self.claim_sets_to_check(ns, bundle) {
            for lease in self.nodes[node].value.claims(part).conflicting_with(class) {
                let row = &self.leases[lease];
                if self.effective_phase(row, now) != EffectivePhase::Expired {
                    return Err(Blocked);
                }
                if expired.insert((row.timer(), row.lsn), lease).is_none() {
                    work += row.weight;
                    if expired.len() > 1 && work > self.limits().step_max {
                        return Err(Blocked);
                    }
                }
            }
        }
        Ok(expired.into_values().collect())
    }

    /// Fast path for the common case: one flat name without claims, found by one lookup.
    fn is_unclaimed_flat_name(&self, ns: RowId<NamespaceRow>, bundle: &Bundle) -> bool {
        let [member] = bundle.members() else { return false };
        let text = member.resource.as_str();
        let node = self.nodes.find(ns.as_parent(), text);
        path_of(text).is_none()
            && node.is_none_or(|node| self.nodes[node].value.claims(ClaimSetKind::At).is_empty())
    }

    /// Some of the conflicting leases, and the age of the oldest of all.
    fn describe_conflict(&self, ns: RowId<NamespaceRow>, bundle: &Bundle, now: Time) -> Conflict {
        let mut conflict = Conflict { holders: Vec::new(), oldest: Age::YOUNGEST };
        for (node, part, class) in self.claim_sets_to_check(ns, bundle) {
            for held in Class::ALL.into_iter().filter(|held| class.conflicts_with(*held)) {
                let claims = self.nodes[node].value.claims(part).of_class(held);
                self.describe_claims(claims, now, &mut conflict);
            }
        }
        conflict
    }

    /// Claims come oldest first. Expired leases are skipped, up to a limit; beyond it the next claim
    /// counts as live, so that an attempt dies rather than waits wrongly.
    fn describe_claims(&self, claims: impl Iterator<Item = LeaseRef>, now: Time, conflict: &mut Conflict) {
        let mut oldest_found = false;
        for (seen, lease) in claims.enumerate() {
            let row = &self.leases[lease];
            if seen > Kernel::EXPIRED_SKIP_MAX {
                conflict.oldest = conflict.oldest.min(row.wait_age());
                return;
            }
            if self.effective_phase(row, now) == EffectivePhase::Expired {
                continue;
            }
            let (age, id) = (self.wait_age_at(row, now), self.lease_id(row.lsn));
            conflict.oldest = conflict.oldest.min(age);
            oldest_found |= age == row.wait_age();
            if conflict.holders.len() < Conflict::SHOWN_MAX && !conflict.holders.contains(&id) {
                conflict.holders.push(id);
            }
            if oldest_found && conflict.holders.len() >= Conflict::SHOWN_MAX {
                return;
            }
        }
    }

    /// The session's own lease that conflicts with the bundle: the one granted first.
    fn own_conflicting_lease(
        &self,
        ns: RowId<NamespaceRow>,
        bundle: &Bundle,
        session: RowId<Session>,
        now: Time,
    ) -> Option<LeaseId> {
        let mut first: Option<Lsn> = None;
        for (node, part, class) in self.claim_sets_to_check(ns, bundle) {
            for held in Class::ALL.into_iter().filter(|held| class.conflicts_with(*held)) {
                let place = (node.number(), part, held);
                let from = (session.number(), place, Lsn(0));
                let to = (session.number(), place, first.unwrap_or(Lsn::MAX));
                let own = self.session_claims.range(from..=to).map(|(.., lsn)| *lsn);
                let live = own.take(Kernel::EXPIRED_SKIP_MAX).find(|lsn| self.still_blocks(*lsn, now));
                first = live.or(first);
            }
        }
        first.map(|lsn| self.lease_id(lsn))
    }

    pub(crate) fn still_blocks(&self, lsn: Lsn, now: Time) -> bool {
        self.live(lsn)
            .is_some_and(|lease| self.effective_phase(&self.leases[lease], now) != EffectivePhase::Expired)
    }

    /// The age of a lease for wait-die, by its effective phase rather than its row.
    pub(crate) fn wait_age_at(&self, row: &Lease, now: Time) -> Age {
        match self.effective_phase(row, now) {
            EffectivePhase::OnHold { until: Time::NEVER, .. }
            | EffectivePhase::OnHold { rebindable: false, .. } => Age::YOUNGEST,
            _ => row.wait_age(),
        }
    }

    /// Every claim set that a bundle must check, with the class of its own claim: each once, in member
    /// order. Empty sets are left out.
    pub(crate) fn claim_sets_to_check<'a>(
        &'a self,
        ns: RowId<NamespaceRow>,
        bundle: &'a Bundle,
    ) -> impl Iterator<Item = (RowId<Node>, ClaimSetKind, Class)> + 'a {
        let mut seen: BTreeSet<(NonZeroU32, ClaimSetKind, Class)> = BTreeSet::new();
        let several = bundle.members().len() > 1;
        let all = bundle.members().iter().flat_map(move |member| {
            let class = member.predicate.class();
            let (text, subtree) = member.resource.node();
            let subtree = subtree && !planted!(BeneathUnchecked);
            let checked = self.claim_sets_to_check_for_name(ns.as_parent(), text, subtree);
            checked.into_iter().map(move |(node, part)| (node, part, class))
        });
        all.filter(move |(node, part, class)| !several || seen.insert((node.number(), *part, *class)))
    }

    /// The claim sets to check for a name, from the root down: see the table above. Empty sets, nearly all
    /// of them, are left out.
    pub(crate) fn claim_sets_to_check_for_name(
        &self,
        ns: Parent,
        text: &str,
        subtree: bool,
    ) -> Vec<(RowId<Node>, ClaimSetKind)> {
        let node = self.nodes.find(ns, text);
        let nearest = node.or_else(|| dirs_above(text).find_map(|dir| self.nodes.find(ns, dir)));
        let own = node.map(|node| (node, if subtree { ClaimSetKind::Beneath } else { ClaimSetKind::At }));
        let dirs = nearest.into_iter().flat_map(|node| self.path_and_dirs_above(node));
        let checked = own.into_iter().chain(dirs.map(|dir| (dir, ClaimSetKind::Subtree)));
        let is_claimed =
            |(node, part): &(RowId<Node>, ClaimSetKind)| !self.nodes[*node].value.claims(*part).is_empty();
        let mut checked: Vec<_> = checked.filter(is_claimed).collect();
        checked.reverse();
        checked
    }

    /// The claim sets to check for a member of a lease: see the table above.
    pub(crate) fn claim_sets_to_check_for_member(
        &self,
        member: MemberRow,
    ) -> impl Iterator<Item = (RowId<Node>, ClaimSetKind)> {
        let own = if member.subtree { ClaimSetKind::Beneath } else { ClaimSetKind::At };
        let dirs = self.path_and_dirs_above(member.node).map(|dir| (dir, ClaimSetKind::Subtree));
        core::iter::once((member.node, own)).chain(dirs)
    }

    /// The claim sets that a member of a lease has joined: see the table above.
    pub(crate) fn claim_sets_joined_by(
        &self,
        member: MemberRow,
    ) -> impl Iterator<Item = (RowId<Node>, ClaimSetKind)> {
        let own = if member.subtree { ClaimSetKind::Subtree } else { ClaimSetKind::At };
        let dirs = self.path_and_dirs_above(member.node).skip(usize::from(member.subtree));
        core::iter::once((member.node, own)).chain(dirs.map(|dir| (dir, ClaimSetKind::Beneath)))
    }

    /// The node of a path and the nodes of the directories above it; empty for a name that is not a path.
    fn path_and_dirs_above(&self, node: RowId<Node>) -> impl Iterator<Item = RowId<Node>> {
        let path = self.nodes[node].value.is_path().then_some(node);
        core::iter::successors(path, |node| self.nodes[*node].value.above())
    }
}

/// A live lease conflicts, or more expired leases than one command may end.
struct Blocked;
