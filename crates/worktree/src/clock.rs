//! Time as a component: wall clock, monotonic clock, boot clock and boot id.
//!
//! Only [`SystemClock`] reads the machine's clocks; tests pass a simulated one. `lease` decides leases.
//!
//! The boot clock (`CLOCK_BOOTTIME`) also counts while the machine is suspended, so a holder that was
//! suspended finds its lease expired. It is comparable only within one boot of one machine, which [`BootId`]
//! identifies: by the boot id together with the machine's ids, because clones of a virtual machine share the
//! first. The offset of a time namespace is taken out.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::ids::{SystemEntropy, random_hex};

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

/// One boot of one machine.
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
    /// The offset that the process's time namespace adds to the boot clock.
    offset_ns: i128,
}

impl SystemClock {
    /// Reads the boot's identity once; it cannot change while this process runs.
    pub fn new() -> Self {
        match system::boot::current() {
            Ok(Some(boot)) => {
                Self { boot_id: boot_identity(&boot.boot_id, &boot.machine_ids), offset_ns: boot.offset_ns }
            }
            // A random identity matches no other process, so stealers fall back to watching.
            _ => Self { boot_id: BootId(random_hex(&SystemEntropy, 16)), offset_ns: 0 },
        }
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
        without_offset(read_ns(ClockId::Boottime), self.offset_ns)
    }

    fn monotonic(&self) -> MonoMs {
        MonoMs(in_ms(read_ns(ClockId::Monotonic)))
    }

    fn boot_id(&self) -> BootId {
        self.boot_id.clone()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock component; callers wait in short steps")]
    fn wait(&self, ms: Millis) {
        std::thread::sleep(Duration::from_millis(ms));
    }
}

fn read_ns(id: ClockId) -> i128 {
    let time = clock_gettime(id);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn in_ms(ns: i128) -> i64 {
    i64::try_from(ns / 1_000_000).unwrap_or(i64::MAX)
}

/// The boot clock of the machine: the one that the process reads, without the offset of its time namespace.
fn without_offset(boot_ns: i128, offset_ns: i128) -> BootMs {
    BootMs(in_ms(boot_ns - offset_ns))
}

/// A hash of the boot id and the machine's ids, each with its length: clones of a virtual machine share the first.
fn boot_identity(boot_id: &[u8], machine_ids: &[Vec<u8>]) -> BootId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"jvs boot identity");
    for id in std::iter::once(boot_id).chain(machine_ids.iter().map(Vec::as_slice)) {
        hasher.update(&(id.len() as u64).to_le_bytes());
        hasher.update(id);
    }
    BootId(system::hex::encode(&hasher.finalize().as_bytes()[..16]))
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

    /// Two hosts were simulated by two time namespaces, one after the other, with boot clocks 8000 s apart. They
    /// were taken for one boot, and a lock was stolen during its lease. Without the offset there is one clock.
    #[test]
    fn the_offset_of_a_time_namespace_is_taken_out() {
        assert_eq!(without_offset(9_000_000_000_000, 8_000_000_000_000), BootMs(1_000_000));
        assert_eq!(without_offset(1_000_000_000, -4_000_000_000), BootMs(5_000));
    }

    /// Two virtual machines were resumed from one image. Their boot ids were equal and their boot clocks were not, so
    /// a lease of 30 s was stolen half a second after it was granted.
    #[test]
    fn clones_of_a_machine_have_boots_of_their_own() {
        let ids = |machine: &[u8]| [machine.to_vec(), Vec::new()];
        let one = boot_identity(b"boot", &ids(b"machine one"));
        assert_ne!(one, boot_identity(b"boot", &ids(b"machine two")));
        assert_ne!(one, boot_identity(b"later boot", &ids(b"machine one")));
        assert_eq!(one, boot_identity(b"boot", &ids(b"machine one")));
        assert_ne!(boot_identity(b"ab", &ids(b"c")), boot_identity(b"a", &ids(b"bc")));
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
