//! Idempotency: answers kept so that a retried request is applied once.
//!
//! Only accepted commands leave an entry. An entry answers until it lapses and is never dropped before,
//! whatever the pressure: a full table refuses new requests instead. Entries lapse in the order in
//! which they came, a bounded number per command.

use alloc::collections::{BTreeMap, VecDeque};

use crate::command::{Request, RequestKey};
use crate::limits::Limits;
use crate::outcome::Answer;
use crate::text::Identity;
use crate::units::Time;

#[derive(Default)]
pub(crate) struct Requests {
    /// `None` where an entry was taken out before its time.
    queue: VecDeque<Option<Entry>>,
    /// The number of the first in the queue; numbers go up by one.
    first: u64,
    index: BTreeMap<(Identity, RequestKey), u64>,
    per_identity: BTreeMap<Identity, u32>,
}

/// One kept answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose request it was.
    pub identity: Identity,
    /// The key, and what it was used for.
    pub request: Request,
    /// Answers retries until this has passed.
    pub lapses_at: Time,
    /// As it was given the first time.
    pub answer: Answer,
}

impl Requests {
    /// The most entries that lapse with one command.
    pub(crate) const LAPSE_MAX: usize = 256;

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// The entry that answers this key now.
    pub(crate) fn find(&self, identity: &Identity, key: RequestKey, now: Time) -> Option<&Entry> {
        let number = self.index.get(&(identity.clone(), key))?;
        let entry =
            self.queue[self.position(*number)].as_ref().expect("the index names entries in the queue");
        (now <= entry.lapses_at).then_some(entry)
    }

    /// Would there be room for one more, once what is due has lapsed?
    pub(crate) fn has_room(&self, identity: &Identity, limits: &Limits, now: Time) -> bool {
        let mine = self.per_identity.get(identity).copied().unwrap_or(0) as usize;
        let (all_max, mine_max) = (limits.requests_max as usize, limits.requests_per_identity_max as usize);
        if self.len() < all_max && mine < mine_max {
            return true;
        }
        let lapsing = self.lapsing(now).count();
        let lapsing_mine = self.lapsing(now).filter(|entry| entry.identity == *identity).count();
        self.len() - lapsing < all_max && mine - lapsing_mine < mine_max
    }

    /// Drops what is due, up to [`Requests::LAPSE_MAX`].
    pub(crate) fn lapse(&mut self, now: Time) {
        for _ in 0..self.lapsing(now).count() {
            let (identity, key) = self.oldest().map(Entry::key).expect("it was just counted");
            self.remove(&identity, key);
        }
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        self.remove(&entry.identity, entry.request.key);
        *self.per_identity.entry(entry.identity.clone()).or_default() += 1;
        let number = self.first + self.queue.len() as u64;
        self.index.insert(entry.key(), number);
        self.queue.push_back(Some(entry));
    }

    pub(crate) fn remove(&mut self, identity: &Identity, key: RequestKey) {
        let Some(number) = self.index.remove(&(identity.clone(), key)) else { return };
        let position = self.position(number);
        self.queue[position] = None;
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first += 1;
        }
        let count = self.per_identity.get_mut(identity).expect("an identity with entries is counted");
        *count -= 1;
        if *count == 0 {
            self.per_identity.remove(identity);
        }
    }

    /// The one that came first.
    pub(crate) fn oldest(&self) -> Option<&Entry> {
        self.iter().next()
    }

    /// In the order in which they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.queue.iter().flatten()
    }

    /// Those at the front that are due, as many as may lapse at once.
    fn lapsing(&self, now: Time) -> impl Iterator<Item = &Entry> {
        self.iter().take(Requests::LAPSE_MAX).take_while(move |entry| entry.lapses_at < now)
    }

    fn position(&self, number: u64) -> usize {
        usize::try_from(number - self.first).expect("a queue is shorter than memory")
    }
}

impl Entry {
    fn key(&self) -> (Identity, RequestKey) {
        (self.identity.clone(), self.request.key)
    }
}
