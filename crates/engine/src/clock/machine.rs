//! The clocks of this machine, and its boot.

use std::io;

use kernel::Span;

use super::Clock;

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineClock {
    boot_id: u128,
    /// The offset that the process's time namespace adds to the boot clock.
    offset_ns: i128,
}

/// The day of the sources, in days since 1970; see `build.rs`.
const BUILD_DAY: &str = env!("LOCKD_BUILD_DAY");

impl MachineClock {
    /// Reads the ids of the boot and of the machine. Where there is no boot id, or the offset of the time namespace
    /// cannot be read, uses a random identity, as if the machine had just booted: kernel time then continues from the
    /// last stamp.
    pub fn new() -> io::Result<MachineClock> {
        Ok(system::boot::current()?.map_or_else(MachineClock::unidentified, |boot| MachineClock {
            boot_id: boot_identity(&boot.boot_id, &boot.machine_ids),
            offset_ns: boot.offset_ns,
        }))
    }

    fn unidentified() -> MachineClock {
        MachineClock { boot_id: u128::from_le_bytes(system::random::bytes()), offset_ns: 0 }
    }
}

impl Clock for MachineClock {
    fn boot_clock(&self) -> Span {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        without_offset(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec), self.offset_ns)
    }

    fn boot_id(&self) -> u128 {
        self.boot_id
    }

    fn unix_micros(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        u64::try_from(time.tv_sec)
            .map_or(0, |seconds| seconds * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000)
    }

    fn earliest_unix_micros(&self) -> u64 {
        let day: u64 = BUILD_DAY.parse().expect("the build script writes a number");
        day * 86_400 * 1_000_000
    }
}

/// A hash of the boot id and the machine's ids, each with its length.
pub(super) fn boot_identity(boot: &[u8], machine: &[Vec<u8>]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"lockd boot identity");
    let machine = if planted!(MachineIgnored) { &[] } else { machine };
    for id in std::iter::once(boot).chain(machine.iter().map(Vec::as_slice)) {
        hasher.update(&(id.len() as u64).to_le_bytes());
        hasher.update(id);
    }
    u128::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// The boot clock of the machine: the one that the process reads, without the offset of its time namespace.
pub(super) fn without_offset(boot_ns: i128, offset_ns: i128) -> Span {
    let offset_ns = if planted!(TimeNamespaceIgnored) { 0 } else { offset_ns };
    Span(u64::try_from((boot_ns - offset_ns) / 1_000_000).unwrap_or(0))
}
