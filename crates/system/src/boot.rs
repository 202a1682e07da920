//! This boot of this machine: the ids that tell it from other boots and from clones, and the shift of its boot clock.
//!
//! **What would break it.** The boot id alone: clones of a virtual machine that were resumed from one image share it, and
//! their boot clocks differ. The boot clock as a process reads it: a time namespace shifts it.
//!
//! Left out: reading clocks, and what follows from two readings.

use std::io;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Identify the machine among its clones, as far as they exist and can be read. Linux shows the generation id of a
/// virtual machine to drivers only; the UUID that the hypervisor gives each machine is the nearest to it.
const MACHINE_IDS: [&str; 4] =
    ["/etc/machine-id", "/var/lib/dbus/machine-id", "/sys/class/dmi/id/product_uuid", "/sys/hypervisor/uuid"];

/// The ids of a boot, and the offset of its boot clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The kernel's boot id.
    pub boot_id: Vec<u8>,
    /// The ids of the machine; empty where there is none, or it cannot be read.
    pub machine_ids: [Vec<u8>; 4],
    /// The offset that the process's time namespace adds to `CLOCK_BOOTTIME`, in nanoseconds.
    pub offset_ns: i128,
}

/// This boot; `None` where there is no boot id, or the offset of the time namespace cannot be read.
pub fn current() -> io::Result<Option<Boot>> {
    let boot_id = match std::fs::read(BOOT_ID) {
        Ok(boot_id) => boot_id,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let machine_ids = MACHINE_IDS.map(|path| std::fs::read(path).unwrap_or_default());
    Ok(time_namespace_offset().map(|offset_ns| Boot { boot_id, machine_ids, offset_ns }))
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
pub fn offset_in(table: &str) -> Option<i128> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix("boottime"))?;
    let mut words = line.split_whitespace().map(|word| word.parse::<i128>().ok());
    let (seconds, nanos) = (words.next()??, words.next()??);
    Some(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_boot_is_the_same_each_time() {
        assert_eq!(current().expect("readable"), current().expect("readable"));
    }

    #[test]
    fn an_offset_is_read_from_the_boot_clocks_line() {
        let table = "monotonic           0         0\nboottime         1000         5\n";
        assert_eq!(offset_in(table), Some(1_000_000_000_005));
        assert_eq!(offset_in("monotonic 0 0\n"), None);
        assert_eq!(offset_in("boottime x 0\n"), None);
    }
}
