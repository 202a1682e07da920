//! Time as a component: wall clock, monotonic clock, boot clock and boot id.
//!
//! Only [`SystemClock`] reads the machine's clocks; tests pass a simulated one. `lease` decides leases.
//!
//! The boot clock (`CLOCK_BOOTTIME`) also counts while the machine is suspended, so a holder that was
//! suspended finds its lease expired. It is comparable only within one boot of one kernel in one time
//! namespace, which [`BootId`] identifies.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A duration in milliseconds.
pub type Millis = u64;

macro_rules! instant {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl $name {
            /// `ms` later.
            #[must_use]
            pub fn plus(self, ms: Millis) -> Self {
                Self(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
            }

            /// Milliseconds since `earlier`, or 0 if that is later.
            pub fn since(self, earlier: Self) -> Millis {
                u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
            }
        }
    };
}

instant!(
    /// Unix time in milliseconds.
    UnixMs
);
instant!(
    /// Milliseconds of `CLOCK_BOOTTIME`, comparable only within one [`BootId`].
    BootMs
);
instant!(
    /// Milliseconds of `CLOCK_MONOTONIC`, comparable only within one process.
    MonoMs
);

impl UnixMs {
    /// The time as RFC 3339 text, in UTC.
    pub fn rfc3339(self) -> String {
        let since_epoch = Duration::from_millis(u64::try_from(self.0).unwrap_or(0).min(LAST_PRINTABLE_MS));
        humantime::format_rfc3339_millis(UNIX_EPOCH + since_epoch).to_string()
    }
}

/// 9999-12-31, the last day that the formatter supports.
const LAST_PRINTABLE_MS: u64 = 253_402_300_799_000;

/// One boot of one kernel, in one time namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub String);

impl BootId {
    /// Matches no boot: for a time whose boot is unknown.
    pub fn unknown() -> Self {
        Self(String::new())
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The clocks of one machine.
pub trait Clock: Send + Sync {
    /// The wall clock, which may be wrong or set back.
    fn wall(&self) -> UnixMs;
    /// The boot clock, which only advances.
    fn boot(&self) -> BootMs;
    /// The monotonic clock, which stops while the machine is suspended.
    fn monotonic(&self) -> MonoMs;
    /// The boot that the boot clock counts from.
    fn boot_id(&self) -> BootId;
    /// Sleeps for about `ms`.
    fn wait(&self, ms: Millis);
}

/// This machine's clocks.
#[derive(Clone, Debug)]
pub struct SystemClock {
    boot_id: BootId,
}

impl SystemClock {
    /// Reads the boot id once; it cannot change while this process runs.
    pub fn new() -> Self {
        Self { boot_id: this_boot() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock component")]
    fn wall(&self) -> UnixMs {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    fn boot(&self) -> BootMs {
        BootMs(read_ms(ClockId::Boottime))
    }

    fn monotonic(&self) -> MonoMs {
        MonoMs(read_ms(ClockId::Monotonic))
    }

    fn boot_id(&self) -> BootId {
        self.boot_id.clone()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock component; callers wait in short steps")]
    fn wait(&self, ms: Millis) {
        std::thread::sleep(Duration::from_millis(ms));
    }
}

fn read_ms(id: ClockId) -> i64 {
    let time = clock_gettime(id);
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

/// Where the kernel exposes no boot id, a random one is used: it matches no other process, so stealers fall
/// back to watching.
fn this_boot() -> BootId {
    let Ok(uuid) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") else {
        return BootId(crate::ids::random_hex(&crate::ids::SystemEntropy, 16));
    };
    match boot_clock_offset() {
        Some(offset) => BootId(format!("{}/{offset}", uuid.trim())),
        None => BootId(crate::ids::random_hex(&crate::ids::SystemEntropy, 16)),
    }
}

/// The offset of this process's boot clock, set by its time namespace. Namespaces with the same offset share
/// a clock. Namespace numbers do not help, because the kernel reuses them.
fn boot_clock_offset() -> Option<String> {
    let [ours, childrens] =
        ["time", "time_for_children"].map(|name| std::fs::read_link(format!("/proc/self/ns/{name}")));
    match (ours, childrens) {
        // The kernel has no time namespaces, or hides them: then there is one boot clock.
        (Err(_), Err(_)) => Some("0".to_owned()),
        // Only the offsets of the children's namespace can be read, and it differs from ours.
        (ours, childrens) if ours.as_ref().ok() != childrens.as_ref().ok() => None,
        _ => offset_in(&std::fs::read_to_string("/proc/self/timens_offsets").ok()?),
    }
}

/// The boot clock's line is `boottime <seconds> <nanoseconds>`.
fn offset_in(table: &str) -> Option<String> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix("boottime"))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_as_rfc_3339_and_never_panic() {
        assert_eq!(UnixMs(0).rfc3339(), "1970-01-01T00:00:00.000Z");
        assert_eq!(UnixMs(1_800_000_000_123).rfc3339(), "2027-01-15T08:00:00.123Z");
        assert_eq!(UnixMs(-5).rfc3339(), "1970-01-01T00:00:00.000Z");
        assert!(UnixMs(i64::MAX).rfc3339().starts_with("9999-12-31"));
    }

    #[test]
    fn moments_saturate_instead_of_wrapping() {
        assert_eq!(BootMs(5).plus(u64::MAX), BootMs(i64::MAX));
        assert_eq!(BootMs(5).since(BootMs(9)), 0);
        assert_eq!(BootMs(9).since(BootMs(5)), 4);
    }

    /// Two hosts were simulated by two time namespaces, one after the other. The kernel gave the second the
    /// number of the first, so their boot clocks, 8000 s apart, were taken for one, and a lock was stolen
    /// during its lease.
    #[test]
    fn boot_clocks_are_distinguished_by_their_offset() {
        let table = "monotonic           0         0\nboottime         1000         5\n";
        assert_eq!(offset_in(table).as_deref(), Some("1000.5"));
        assert_eq!(offset_in("monotonic 0 0\n"), None);
    }

    #[test]
    fn the_machines_clocks_do_not_go_back() {
        let clock = SystemClock::new();
        let (boot, monotonic) = (clock.boot(), clock.monotonic());
        clock.wait(1);
        assert!(clock.boot() >= boot);
        assert!(clock.monotonic() >= monotonic);
        assert_eq!(clock.boot_id(), SystemClock::new().boot_id());
    }
}
