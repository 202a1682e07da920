//! How often somebody asks for leases, where a quota says how often it may.
//!
//! Counted here and not in the kernel: requests that are refused count too, and a refusal leaves no trace there. It is
//! forgotten with every second of kernel time.

use std::collections::BTreeMap;

use kernel::{Identity, Namespace, Time};

/// How many are counted in one second; one more is refused.
const PARTIES_MAX: usize = 100_000;

/// Who has asked how often in the second under way.
#[derive(Default)]
pub(crate) struct Rates {
    second: u64,
    counts: BTreeMap<(Namespace, Identity), u32>,
}

impl Rates {
    /// May it ask once more, if it may ask `max` times in a second? If so, it has.
    pub(crate) fn allow(&mut self, now: Time, namespace: &Namespace, identity: &Identity, max: u32) -> bool {
        let second = now.0 / 1000;
        if self.second != second {
            self.second = second;
            self.counts.clear();
        }
        let party = (namespace.clone(), identity.clone());
        if self.counts.len() >= PARTIES_MAX && !self.counts.contains_key(&party) {
            return false;
        }
        let count = self.counts.entry(party).or_default();
        let allowed = *count < max;
        *count += u32::from(allowed);
        allowed
    }
}
