//! Limits how many connections subscribe to events, in total and per identity.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use engine::limits::ExceededLimit;
use kernel::Identity;

/// The most subscriptions in total.
const SUBSCRIPTIONS_MAX: u64 = 1000;
/// The most subscriptions of one identity.
const SUBSCRIPTIONS_PER_IDENTITY_MAX: u64 = 100;

/// The number of subscriptions, by identity.
#[derive(Default)]
pub(crate) struct Subscribers(Mutex<BTreeMap<Identity, u64>>);

/// One subscription; dropped, it no longer counts.
pub(crate) struct Subscription {
    subscribers: Arc<Subscribers>,
    identity: Identity,
}

impl Subscription {
    /// One more, or the limit that is reached.
    pub(crate) fn begin(
        subscribers: &Arc<Subscribers>,
        identity: &Identity,
    ) -> Result<Subscription, ExceededLimit> {
        let reached = |name, max, is_own| Err(ExceededLimit { name, max, is_own });
        let mut counts = subscribers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.get(identity).copied().unwrap_or_default();
        if own >= SUBSCRIPTIONS_PER_IDENTITY_MAX {
            return reached("subscriptions_per_identity_max", SUBSCRIPTIONS_PER_IDENTITY_MAX, true);
        }
        if counts.values().sum::<u64>() >= SUBSCRIPTIONS_MAX {
            return reached("subscriptions_max", SUBSCRIPTIONS_MAX, false);
        }
        counts.insert(identity.clone(), own + 1);
        Ok(Subscription { subscribers: Arc::clone(subscribers), identity: identity.clone() })
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
