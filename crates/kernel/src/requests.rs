//! Idempotency: stored responses, so that a retried request is applied once.
//!
//! Only applied commands leave an entry. An entry is replayed until it lapses and is never evicted
//! earlier: a full table rejects new requests instead. Entries lapse in the order of their lapse times,
//! which is not always insertion order: an `open` may shorten the window.

use alloc::collections::BTreeMap;

use crate::command::{IdempotencyKey, RequestKey};
use crate::limits::Limits;
use crate::outcome::{BoundedTable, Response};
use crate::text::{Identity, Namespace};
use crate::units::Time;

#[derive(Default)]
pub(crate) struct IdempotencyTable {
    /// Ordered by lapse time, then by insertion.
    entries: BTreeMap<(Time, u64), IdempotencyEntry>,
    index: BTreeMap<(Identity, RequestKey), (Time, u64)>,
    per_identity: BTreeMap<Identity, u32>,
    /// The sequence number of the next entry.
    next: u64,
}

/// One stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyEntry {
    /// The identity that sent the request.
    pub identity: Identity,
    /// The namespace of the request. `None` if it has none, or was stored by a version that did not keep it.
    pub namespace: Option<Namespace>,
    /// The key and the fingerprint of the request.
    pub request: IdempotencyKey,
    /// Replayed until this time has passed.
    pub lapses_at: Time,
    /// The original response.
    pub answer: Response,
}

impl IdempotencyTable {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry for this key, unless it has lapsed.
    pub(crate) fn find(&self, identity: &Identity, key: RequestKey, now: Time) -> Option<&IdempotencyEntry> {
        let position = self.index.get(&(identity.clone(), key))?;
        self.entries.get(position).filter(|entry| {
            now <= entry.lapses_at && !(planted!(RequestLapsesEarly) && now == entry.lapses_at)
        })
    }

    /// The limit that one more entry would exceed after the next [`IdempotencyTable::lapse`].
    pub(crate) fn exceeded(
        &self,
        identity: &Identity,
        limits: &Limits,
        now: Time,
    ) -> Option<(BoundedTable, u32)> {
        let mine = self.per_identity.get(identity).copied().unwrap_or(0) as usize;
        let (all_max, mine_max) = (limits.requests_max as usize, limits.requests_per_identity_max as usize);
        if self.len() < all_max && (mine < mine_max || planted!(RequestShareIgnored)) {
            return None;
        }
        let step = limits.step_max as usize;
        let lapsing = self.lapsing(now, step).count();
        let lapsing_mine = self.lapsing(now, step).filter(|entry| entry.identity == *identity).count();
        if self.len() - lapsing >= all_max {
            return Some((BoundedTable::Requests, limits.requests_max));
        }
        let is_own = mine - lapsing_mine >= mine_max;
        is_own.then_some((BoundedTable::RequestsPerIdentity, limits.requests_per_identity_max))
    }

    /// Removes at most `most` lapsed entries.
    pub(crate) fn lapse(&mut self, now: Time, most: usize) {
        for _ in 0..self.lapsing(now, most).count() {
            let (identity, key) = self.oldest().map(IdempotencyEntry::key).expect("a counted entry exists");
            self.remove(&identity, key);
        }
    }

    pub(crate) fn insert(&mut self, entry: IdempotencyEntry) {
        self.remove(&entry.identity, entry.request.key);
        *self.per_identity.entry(entry.identity.clone()).or_default() += 1;
        let position = (entry.lapses_at, self.next);
        self.next += 1;
        self.index.insert(entry.key(), position);
        self.entries.insert(position, entry);
    }

    pub(crate) fn remove(&mut self, identity: &Identity, key: RequestKey) {
        let Some(position) = self.index.remove(&(identity.clone(), key)) else { return };
        self.entries.remove(&position);
        let count = self.per_identity.get_mut(identity).expect("an identity with entries is counted");
        *count -= 1;
        if *count == 0 {
            self.per_identity.remove(identity);
        }
    }

    /// The entry that lapses first.
    pub(crate) fn oldest(&self) -> Option<&IdempotencyEntry> {
        self.entries.first_key_value().map(|(_, entry)| entry)
    }

    /// All entries, in the order in which they lapse.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &IdempotencyEntry> {
        self.entries.values()
    }

    /// Lapsed entries, at most `most`.
    fn lapsing(&self, now: Time, most: usize) -> impl Iterator<Item = &IdempotencyEntry> {
        self.iter().take(most).take_while(move |entry| entry.lapses_at < now)
    }
}

impl IdempotencyEntry {
    fn key(&self) -> (Identity, RequestKey) {
        (self.identity.clone(), self.request.key)
    }
}
