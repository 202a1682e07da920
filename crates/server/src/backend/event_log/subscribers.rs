//! Limits how many connections subscribe to events, in total and per identity.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kernel::Identity;

/// The most subscriptions in total.
const SUBSCRIPTIONS_MAX: usize = 1000;
/// The most subscriptions of one identity.
const SUBSCRIPTIONS_PER_IDENTITY_MAX: usize = 100;

/// The number of subscriptions, by identity.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<BTreeMap<Identity, usize>>);

/// One subscription; dropped, it no longer counts.
pub(crate) struct Subscription {
    subscribers: Arc<Subscribers>,
    identity: Identity,
}

impl Subscription {
    /// `None` if the limit is reached, in total or for this identity.
    pub(crate) fn begin(subscribers: &Arc<Subscribers>, identity: &Identity) -> Option<Subscription> {
        let mut counts = subscribers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.get(identity).copied().unwrap_or_default();
        if counts.values().sum::<usize>() >= SUBSCRIPTIONS_MAX || own >= SUBSCRIPTIONS_PER_IDENTITY_MAX {
            return None;
        }
        counts.insert(identity.clone(), own + 1);
        Some(Subscription { subscribers: Arc::clone(subscribers), identity: identity.clone() })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut counts = self.subscribers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.identity) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.identity);
            }
        }
    }
}
