//! The flags of a lock's policy. Each has two spellings: milliseconds, with the specification's name, and a
//! duration such as `30s`.

use std::time::Duration;

use cli::remote::duration;
use worktree::clock::Millis;
use worktree::policy::PolicyChanges;

#[derive(clap::Args)]
pub(crate) struct PolicyArgs {
    /// Lease duration without renewal [default: 30000, or as set by init or worktree add].
    #[arg(long, value_name = "MS")]
    lease_duration_ms: Option<u64>,
    /// The same as a duration, such as 30s or 5m.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "lease_duration_ms")]
    lease_duration: Option<Duration>,
    /// Interval between renewals, at most half the lease duration [default: 10000, or as set by init or
    /// worktree add].
    #[arg(long, value_name = "MS")]
    renew_interval_ms: Option<u64>,
    /// The same as a duration, such as 10s.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "renew_interval_ms")]
    renew_interval: Option<Duration>,
    /// Maximum clock skew [default: 2000, or as set by init or worktree add].
    #[arg(long, value_name = "MS")]
    max_clock_skew_ms: Option<u64>,
    /// The same as a duration, such as 2s.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "max_clock_skew_ms")]
    max_clock_skew: Option<Duration>,
    /// Delay of a steal after expiry and skew [default: 1000, or as set by init or worktree add].
    #[arg(long, value_name = "MS")]
    steal_grace_ms: Option<u64>,
    /// The same as a duration, such as 1s.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "steal_grace_ms")]
    steal_grace: Option<Duration>,
}

impl PolicyArgs {
    /// The values set on the command line.
    pub(crate) fn changes(&self) -> PolicyChanges {
        PolicyChanges {
            lease_duration_ms: self.lease_duration_ms.or(self.lease_duration.map(millis)),
            renew_interval_ms: self.renew_interval_ms.or(self.renew_interval.map(millis)),
            max_clock_skew_ms: self.max_clock_skew_ms.or(self.max_clock_skew.map(millis)),
            steal_grace_ms: self.steal_grace_ms.or(self.steal_grace.map(millis)),
        }
    }
}

/// Too long a duration stays too long, and is refused with the policy's own message.
fn millis(span: Duration) -> Millis {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
