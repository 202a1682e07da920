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

/// The day of the build, in days since 1970; see `build.rs`.
const BUILD_DAY: &str = env!("LOCKD_BUILD_DAY");

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Identify the machine among its clones, as far as they exist and can be read. Linux shows the generation id of a
/// virtual machine to drivers only; the UUID that the hypervisor gives each machine is the nearest to it.
const MACHINE_IDS: [&str; 4] =
    ["/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid", "/sys/hypervisor/uuid"];

impl MachineClock {
    /// Reads the ids of the boot and of the machine. Where there is no boot id, or the offset of the time namespace
    /// cannot be read, uses a random identity, as if the machine had just booted: kernel time then continues from the
    /// last stamp.
    pub fn new() -> io::Result<MachineClock> {
        let boot = match std::fs::read(BOOT_ID) {
            Ok(boot) => Some(boot),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let identified = boot.zip(time_namespace_offset());
        Ok(identified.map_or_else(MachineClock::unidentified, |(boot, offset_ns)| {
            let ids = MACHINE_IDS.map(|path| std::fs::read(path).unwrap_or_default());
            MachineClock { boot_id: boot_identity(&boot, &ids), offset_ns }
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

/// The offset of this process's boot clock in nanoseconds; `None` if it cannot be known.
fn time_namespace_offset() -> Option<i128> {
    let [ours, childrens] =
        ["time", "time_for_children"].map(|name| std::fs::read_link(format!("/proc/self/ns/{name}")));
    match (ours, childrens) {
        // The kernel has no time namespaces, or hides them: then there is one boot clock.
        (Err(_), Err(_)) => Some(0),
        // Only the offsets of the children's namespace can be read, and it differs from ours.
        (ours, childrens) if ours.as_ref().ok() != childrens.as_ref().ok() => None,
        _ => offset_in(&std::fs::read_to_string("/proc/self/timens_offsets").ok()?),
    }
}

/// The boot clock's line is `boottime <seconds> <nanoseconds>`.
pub(super) fn offset_in(table: &str) -> Option<i128> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix("boottime"))?;
    let mut words = line.split_whitespace().map(|word| word.parse::<i128>().ok());
    let (seconds, nanos) = (words.next()??, words.next()??);
    Some(seconds * 1_000_000_000 + nanos)
}
