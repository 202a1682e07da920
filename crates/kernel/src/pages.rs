//! Lists in pages, and queries that visit a bounded number of rows.
//!
//! **Invariant.** One call visits at most [`PAGE_ROWS`] rows, however many are stored: the caller holds the lock under
//! which commands are decided. Slab entries without a row count as rows, and so do rows that are left out of the
//! result. The rest of a list follows by cursor, in later calls. A row that exists throughout is listed exactly once.
//!
//! **What would break it.** A filter before the bound: a list of one namespace's rows would visit all others in one
//! call.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Bound;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::bundle::Bundle;
use crate::claims::ClaimSet;
use crate::command::Scope;
use crate::expiry::EffectivePhase;
use crate::kernel::Kernel;
use crate::lease::{Lease, LeaseRef};
use crate::node::Node;
use crate::party_rows::Policy;
use crate::resource::{ClaimSetKind, ResourceName};
use crate::slab::Slab;
use crate::text::{AgentName, Namespace};
use crate::units::{Lsn, Time, Token};
use crate::view::{AgentView, Cursor, KeyView, LeaseView};

/// Maximum number of rows that one query visits.
pub const PAGE_ROWS: usize = 256;

/// A page of leases ends once their estimated size reaches this, in bytes.
pub const PAGE_BYTES: u64 = 256 << 10;

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C> {
    /// The rows; there may be none although the list goes on.
    pub rows: Vec<T>,
    /// The position from which the list goes on; `None` at its end.
    pub next: Option<C>,
}

/// Counts the rows that queries visit, for tests and metrics. Not part of the state.
#[derive(Default)]
pub(crate) struct VisitCounter(AtomicU64);

impl VisitCounter {
    pub(crate) fn add(&self, rows: usize) {
        self.0.fetch_add(rows as u64, Ordering::Relaxed);
    }
}

impl Kernel {
    /// The number of rows that queries have visited since the kernel was created.
    pub fn rows_visited(&self) -> u64 {
        self.visits.0.load(Ordering::Relaxed)
    }

    /// Leases that cover resources, from a cursor on, at most `most` of them, in no particular order.
    pub fn leases_page(&self, cursor: Cursor, most: usize, now: Time) -> Page<LeaseView, Cursor> {
        let bytes = |row: &Lease| self.lease_footprint(row);
        self.slab_page(&self.leases, cursor, most, bytes, |row| Some(self.live_view(row, now)))
    }

    /// Documents, from a cursor on, in no particular order.
    pub fn documents_page(&self, cursor: Cursor) -> Page<(Namespace, ResourceName, KeyView), Cursor> {
        self.slab_page(
            self.nodes.rows(),
            cursor,
            PAGE_ROWS,
            |_| 0,
            |row| {
                let document = row.value.document.as_deref().copied()?;
                let view = KeyView { version: row.value.version, document: Some(document) };
                Some((self.namespace_of(row.parent), ResourceName::from_shared(&row.text), view))
            },
        )
    }

    /// Namespaces in use, from a cursor on, at most `most` of them, in no particular order.
    pub fn namespaces_page(&self, cursor: Cursor, most: usize) -> Page<Namespace, Cursor> {
        self.slab_page(
            self.namespaces.rows(),
            cursor,
            most,
            |_| 0,
            |row| Some(Namespace::from_shared(&row.text)),
        )
    }

    /// A namespace's agents after `after`, at most `most` of them, by name.
    pub fn agents_page(
        &self,
        namespace: &Namespace,
        after: Option<&AgentName>,
        most: usize,
        now: Time,
    ) -> Page<AgentView, AgentName> {
        let Some(ns) = self.find_namespace(namespace) else { return Page { rows: Vec::new(), next: None } };
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.as_str()));
        let names = &self.namespaces[ns].value.agents_by_name;
        let mut page = Page { rows: Vec::new(), next: None };
        let mut visited = 0;
        for agent in names.range::<str, _>((from, Bound::Unbounded)).map(|(_, agent)| *agent) {
            let row = &self.agents[agent];
            if visited == PAGE_ROWS || page.rows.len() == most {
                page.next = page.next.or_else(|| after.cloned());
                self.visits.add(visited);
                return page;
            }
            visited += 1;
            page.next = Some(AgentName::from_shared(&row.text));
            if row.value.forget_at.is_none_or(|at| now <= at) {
                page.rows.push(self.agent_view(row));
            }
        }
        self.visits.add(visited);
        Page { next: None, ..page }
    }

    /// A namespace's keys that have a document and begin with `prefix`, after `after`, at most `most` of them, by name.
    pub fn keys_page(
        &self,
        namespace: &Namespace,
        prefix: &str,
        after: Option<&ResourceName>,
        most: usize,
    ) -> Page<(ResourceName, KeyView), ResourceName> {
        let Some(ns) = self.find_namespace(namespace) else { return Page { rows: Vec::new(), next: None } };
        // Only keys have documents: all names in the map are of one kind.
        let prefix = format!("{}:{prefix}", ResourceName::KEY);
        let after = after.map(ResourceName::as_str).filter(|after| *after >= prefix.as_str());
        let from = after.map_or(Bound::Included(prefix.as_str()), Bound::Excluded);
        let documents = self.namespaces[ns].value.documents.range::<str, _>((from, Bound::Unbounded));
        let most = most.min(PAGE_ROWS);
        let listed = documents.take_while(|(text, _)| text.starts_with(&prefix)).take(most);
        let view =
            |node: &Node| KeyView { version: node.version, document: node.document.as_deref().copied() };
        let rows =
            listed.map(|(text, node)| (ResourceName::from_shared(text), view(&self.nodes[*node].value)));
        let rows: Vec<_> = rows.collect();
        self.visits.add(rows.len());
        let next = rows.last().filter(|_| rows.len() == most).map(|(key, _)| key.clone());
        Page { rows, next }
    }

    /// Scopes with a quota or a pause after `after`, in order.
    pub fn policies_page(&self, after: Option<&Scope>) -> Page<(Scope, Policy), Scope> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.policies.0.range((from, Bound::Unbounded)).take(PAGE_ROWS);
        let rows: Vec<_> = rows.map(|(scope, policy)| (scope.clone(), *policy)).collect();
        self.visits.add(rows.len());
        let next = rows.last().filter(|_| rows.len() == PAGE_ROWS).map(|(scope, _)| scope.clone());
        Page { rows, next }
    }

    /// Leases that conflict with a bundle, each once, at most `most`, and whether there may be more.
    pub fn some_conflicts(
        &self,
        namespace: &Namespace,
        bundle: &Bundle,
        most: usize,
        now: Time,
    ) -> (Vec<LeaseView>, bool) {
        let Some(ns) = self.find_namespace(namespace) else { return (Vec::new(), false) };
        let sets = self.claim_sets_to_check(ns, bundle);
        let claims =
            sets.flat_map(|(node, part, class)| self.nodes[node].value.claims(part).conflicting_with(class));
        self.live_among(claims, most, now)
    }

    /// Leases on a resource: on the name itself, or on a subtree that contains it. Oldest first, writers among them for
    /// certain; of very many, only some.
    pub fn holders(&self, namespace: &Namespace, resource: &ResourceName, now: Time) -> Vec<LeaseView> {
        let Some(ns) = self.find_namespace(namespace) else { return Vec::new() };
        let (text, subtree) = resource.node();
        let sets = self.claim_sets_to_check_for_name(ns.as_parent(), text, subtree).into_iter();
        let covering = sets.filter(|(_, part)| *part != ClaimSetKind::Beneath);
        let claims = covering.flat_map(|(node, part)| strictest_first(self.nodes[node].value.claims(part)));
        let (mut holders, _) = self.live_among(claims, PAGE_ROWS, now);
        holders.sort_by_key(|lease| (lease.age, lease.id));
        holders
    }

    /// Whether a live lease with this token covers the resource. Informational: it does not protect a write.
    pub fn is_current(
        &self,
        namespace: &Namespace,
        resource: &ResourceName,
        token: Token,
        now: Time,
    ) -> bool {
        let Some(ns) = self.find_namespace(namespace) else { return false };
        let Some(lease) = self.lease_with_token(token) else { return false };
        let row = &self.leases[lease];
        if self.effective_phase(row, now) != EffectivePhase::Active {
            return false;
        }
        let (text, subtree) = resource.node();
        let mut covering = self.claim_sets_to_check_for_name(ns.as_parent(), text, subtree);
        covering.retain(|(_, part)| *part != ClaimSetKind::Beneath);
        let members = row.members.as_slice().iter();
        self.visits.add(members.len());
        members.flat_map(|member| self.claim_sets_joined_by(*member)).any(|joined| covering.contains(&joined))
    }

    /// A token is the LSN of the lease's grant, or of its last rebind.
    fn lease_with_token(&self, token: Token) -> Option<LeaseRef> {
        let rebound = self.rebound.range((token, Lsn(0))..=(token, Lsn::MAX)).next().map(|(_, lsn)| *lsn);
        let lease = self.live(rebound.unwrap_or(Lsn(token.0)))?;
        (self.leases[lease].token == token).then_some(lease)
    }

    /// The leases among `claims` that have not expired, each once, at most `most`; and whether there may be more.
    fn live_among(
        &self,
        claims: impl Iterator<Item = LeaseRef>,
        most: usize,
        now: Time,
    ) -> (Vec<LeaseView>, bool) {
        let (mut found, mut visited): (Vec<LeaseRef>, usize) = (Vec::new(), 0);
        let mut seen = alloc::collections::BTreeSet::new();
        let mut more = false;
        for lease in claims {
            if visited == PAGE_ROWS || found.len() == most {
                more = true;
                break;
            }
            visited += 1;
            let row = &self.leases[lease];
            if self.effective_phase(row, now) != EffectivePhase::Expired && seen.insert(row.lsn) {
                found.push(lease);
            }
        }
        self.visits.add(visited);
        (found.into_iter().map(|lease| self.live_view(&self.leases[lease], now)).collect(), more)
    }

    /// At most [`PAGE_ROWS`] entries of a slab from a cursor on, at most `most` rows that `view` shows, and no further row
    /// once their `bytes` are [`PAGE_BYTES`].
    fn slab_page<R, T>(
        &self,
        slab: &Slab<R>,
        cursor: Cursor,
        most: usize,
        bytes: impl Fn(&R) -> u64,
        view: impl Fn(&R) -> Option<T>,
    ) -> Page<T, Cursor> {
        let (mut rows, mut at, mut shown) = (Vec::new(), cursor.0, 0);
        let page_rows = if planted!(PageUnbounded) { usize::MAX } else { PAGE_ROWS };
        let entries = slab.entries(cursor.0).take(page_rows);
        for entry in entries {
            if rows.len() == most || (shown >= PAGE_BYTES && !planted!(PageUnbounded)) {
                break;
            }
            at += 1;
            shown += entry.map_or(0, &bytes);
            rows.extend(entry.and_then(&view));
        }
        self.visits.add((at - cursor.0) as usize);
        let next = ((at as usize) < slab.entry_count()).then_some(Cursor(at));
        Page { rows, next }
    }
}

/// The claims of a set: exclusive ones first, then oldest first.
fn strictest_first(claims: &ClaimSet) -> impl Iterator<Item = LeaseRef> {
    crate::predicate::Class::ALL.into_iter().rev().flat_map(|class| claims.of_class(class))
}
