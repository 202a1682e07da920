//! How long a lease lasts, how often it is renewed, and how much patience a steal needs.
//!
//! Invariant: a [`Policy`] that exists can be kept: the holder gets at least two tries to renew before its
//! lease runs out, and no sum of its values overflows.

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::error::{Error, Result};

/// The four values of the specification, with its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PolicyValues")]
#[expect(
    clippy::struct_field_names,
    reason = "the unit belongs in the name, and the names are the specification's"
)]
pub struct Policy {
    lease_duration_ms: Millis,
    renew_interval_ms: Millis,
    max_clock_skew_ms: Millis,
    steal_grace_ms: Millis,
}

impl Policy {
    /// The specification's defaults.
    pub const DEFAULT: Self = Self {
        lease_duration_ms: 30_000,
        renew_interval_ms: 10_000,
        max_clock_skew_ms: 2_000,
        steal_grace_ms: 1_000,
    };

    /// This policy with the values that are given.
    pub fn with(self, changes: &PolicyChanges) -> Result<Self> {
        PolicyValues {
            lease_duration_ms: changes.lease_duration_ms.unwrap_or(self.lease_duration_ms),
            renew_interval_ms: changes.renew_interval_ms.unwrap_or(self.renew_interval_ms),
            max_clock_skew_ms: changes.max_clock_skew_ms.unwrap_or(self.max_clock_skew_ms),
            steal_grace_ms: changes.steal_grace_ms.unwrap_or(self.steal_grace_ms),
        }
        .try_into()
    }

    /// How long a lease lasts without renewal.
    pub fn lease_duration_ms(&self) -> Millis {
        self.lease_duration_ms
    }

    /// How often the holder renews.
    pub fn renew_interval_ms(&self) -> Millis {
        self.renew_interval_ms
    }

    /// How far a clock may be off before nothing is trusted to it.
    pub fn max_clock_skew_ms(&self) -> Millis {
        self.max_clock_skew_ms
    }

    /// How long after expiry and skew a steal still has to wait.
    pub fn steal_grace_ms(&self) -> Millis {
        self.steal_grace_ms
    }

    /// How long after `lease_expires_at` the lock may be stolen.
    pub fn steal_delay_ms(&self) -> Millis {
        self.max_clock_skew_ms + self.steal_grace_ms
    }

    /// How long a stealer on another boot watches the renewals stand still.
    pub fn watch_ms(&self) -> Millis {
        self.lease_duration_ms + self.steal_grace_ms
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Values that a user set; the rest stay as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyChanges {
    /// How long a lease lasts without renewal.
    pub lease_duration_ms: Option<Millis>,
    /// How often the holder renews.
    pub renew_interval_ms: Option<Millis>,
    /// How far a clock may be off before nothing is trusted to it.
    pub max_clock_skew_ms: Option<Millis>,
    /// How long after expiry and skew a steal still has to wait.
    pub steal_grace_ms: Option<Millis>,
}

/// A policy as it stands in a file, before it is checked.
#[derive(Deserialize)]
#[expect(
    clippy::struct_field_names,
    reason = "the unit belongs in the name, and the names are the specification's"
)]
struct PolicyValues {
    lease_duration_ms: Millis,
    renew_interval_ms: Millis,
    max_clock_skew_ms: Millis,
    steal_grace_ms: Millis,
}

/// A year: far over any use, far under any overflow.
const LONGEST_MS: Millis = 366 * 24 * 3600 * 1000;

impl TryFrom<PolicyValues> for Policy {
    type Error = Error;

    fn try_from(values: PolicyValues) -> Result<Self> {
        let PolicyValues { lease_duration_ms, renew_interval_ms, max_clock_skew_ms, steal_grace_ms } = values;
        let largest = lease_duration_ms.max(max_clock_skew_ms).max(steal_grace_ms);
        if largest > LONGEST_MS {
            return Err(Error::invalid(format!(
                "a policy value is at most {LONGEST_MS} ms (a year): got={largest}"
            )));
        }
        if renew_interval_ms == 0 || renew_interval_ms > lease_duration_ms / 2 {
            return Err(Error::invalid(format!(
                "renew_interval_ms must be at least 1 and at most half of lease_duration_ms, so that one \
                 late renewal does not lose the lock; pass --renew-interval-ms too: \
                 renew_interval_ms={renew_interval_ms} \
                 lease_duration_ms={lease_duration_ms}"
            )));
        }
        Ok(Self { lease_duration_ms, renew_interval_ms, max_clock_skew_ms, steal_grace_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_specifications() {
        let json = serde_json::to_string(&Policy::DEFAULT).expect("plain numbers");
        let expected = r#"{"lease_duration_ms":30000,"renew_interval_ms":10000,"max_clock_skew_ms":2000,"steal_grace_ms":1000}"#;
        assert_eq!(json, expected);
    }

    #[test]
    fn a_policy_that_cannot_be_kept_is_refused() {
        let lease = |lease, renew| PolicyChanges {
            lease_duration_ms: Some(lease),
            renew_interval_ms: Some(renew),
            ..PolicyChanges::default()
        };
        assert!(Policy::DEFAULT.with(&lease(100, 50)).is_ok());
        for (duration, interval) in [(100, 51), (100, 0), (0, 0), (u64::MAX, 1), (LONGEST_MS + 1, 1)] {
            assert!(Policy::DEFAULT.with(&lease(duration, interval)).is_err(), "{duration} {interval}");
        }
    }
}
