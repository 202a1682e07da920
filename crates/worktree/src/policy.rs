//! Lease duration, renew interval, allowed clock skew and steal grace.
//!
//! **Invariant.** Every [`LockPolicy`] is feasible: the holder can renew at least twice before its lease expires,
//! and no sum of its values overflows.

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
pub struct LockPolicy {
    lease_duration_ms: Millis,
    renew_interval_ms: Millis,
    max_clock_skew_ms: Millis,
    steal_grace_ms: Millis,
}

impl LockPolicy {
    /// The specification's defaults.
    pub const DEFAULT: Self = Self {
        lease_duration_ms: 30_000,
        renew_interval_ms: 10_000,
        max_clock_skew_ms: 2_000,
        steal_grace_ms: 1_000,
    };

    /// This policy with some values replaced.
    pub fn with(self, changes: &PolicyChanges) -> Result<Self> {
        PolicyValues {
            lease_duration_ms: changes.lease_duration_ms.unwrap_or(self.lease_duration_ms),
            renew_interval_ms: changes.renew_interval_ms.unwrap_or(self.renew_interval_ms),
            max_clock_skew_ms: changes.max_clock_skew_ms.unwrap_or(self.max_clock_skew_ms),
            steal_grace_ms: changes.steal_grace_ms.unwrap_or(self.steal_grace_ms),
        }
        .try_into()
    }

    /// The duration of a lease without renewal.
    pub fn lease_duration_ms(&self) -> Millis {
        self.lease_duration_ms
    }

    /// The interval between renewals.
    pub fn renew_interval_ms(&self) -> Millis {
        self.renew_interval_ms
    }

    /// The largest clock skew at which locks are still granted.
    pub fn max_clock_skew_ms(&self) -> Millis {
        self.max_clock_skew_ms
    }

    /// The wait after expiry and skew before a steal.
    pub fn steal_grace_ms(&self) -> Millis {
        self.steal_grace_ms
    }

    /// The delay from `lease_expires_at` until the lock may be stolen.
    pub fn steal_delay_ms(&self) -> Millis {
        self.max_clock_skew_ms + self.steal_grace_ms
    }

    /// How long a stealer on another boot must see no renewal.
    pub fn watch_ms(&self) -> Millis {
        self.lease_duration_ms + self.steal_grace_ms
    }
}

impl Default for LockPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Values set by the user; the others keep their defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicyChanges {
    /// The duration of a lease without renewal.
    pub lease_duration_ms: Option<Millis>,
    /// The interval between renewals.
    pub renew_interval_ms: Option<Millis>,
    /// The largest clock skew at which locks are still granted.
    pub max_clock_skew_ms: Option<Millis>,
    /// The wait after expiry and skew before a steal.
    pub steal_grace_ms: Option<Millis>,
}

/// A policy as stored, before it is validated.
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

/// A year: far above any use, far below any overflow.
const LONGEST_MS: Millis = 366 * 24 * 3600 * 1000;

impl TryFrom<PolicyValues> for LockPolicy {
    type Error = Error;

    fn try_from(values: PolicyValues) -> Result<Self> {
        let PolicyValues { lease_duration_ms, renew_interval_ms, max_clock_skew_ms, steal_grace_ms } = values;
        let largest = lease_duration_ms.max(max_clock_skew_ms).max(steal_grace_ms);
        if largest > LONGEST_MS {
            return Err(Error::invalid(format!(
                "policy values must be at most {LONGEST_MS} ms (a year): got={largest}"
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
        let json = serde_json::to_string(&LockPolicy::DEFAULT).expect("plain numbers");
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
        assert!(LockPolicy::DEFAULT.with(&lease(100, 50)).is_ok());
        for (duration, interval) in [(100, 51), (100, 0), (0, 0), (u64::MAX, 1), (LONGEST_MS + 1, 1)] {
            assert!(LockPolicy::DEFAULT.with(&lease(duration, interval)).is_err(), "{duration} {interval}");
        }
    }
}
