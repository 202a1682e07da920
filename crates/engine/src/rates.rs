//! Rate limiting of acquire requests, for identities with a rate quota.
//!
//! Counted here and not in the kernel: refused requests count too, and the kernel keeps no trace of a
//! refusal. The counts are reset every second of kernel time.

use std::collections::BTreeMap;

use kernel::{Identity, Namespace, Time};

/// Maximum number of parties counted within one second; requests of further parties are refused.
const PARTIES_MAX: usize = 100_000;

/// Requests per party in the current second of kernel time.
#[derive(Default)]
pub(crate) struct Rates {
    second: u64,
    counts: BTreeMap<(Namespace, Identity), u32>,
}

impl Rates {
    /// Counts one request, and returns whether it is within `max` requests per second.
    pub(crate) fn allow(&mut self, now: Time, namespace: &Namespace, identity: &Identity, max: u32) -> bool {
        let second = now.0 / 1000;
        if self.second != second && !planted!(RateNeverResets) {
            self.second = second;
            self.counts.clear();
        }
        let party = (namespace.clone(), identity.clone());
        if self.counts.len() >= PARTIES_MAX && !self.counts.contains_key(&party) {
            return false;
        }
        let count = self.counts.entry(party).or_default();
        let allowed = *count < max || planted!(RateIgnored);
        *count += u32::from(allowed);
        allowed
    }
}
