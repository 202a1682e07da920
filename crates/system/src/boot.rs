//! This boot of this machine: the ids that tell it from other boots and from clones, and the shift of its boot clock.
//!
//! **What would break it.** The boot id alone: clones of a virtual machine that were resumed from one image share it, and
//! their boot clocks differ. The boot clock as a process reads it: a time namespace shifts it.
//!
//! Left out: reading clocks, and what follows from two readings.

use std::io;
use std::path::Path;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Identify the machine among its clones, as far as they exist and can be read. The last is the generation id of a
/// virtual machine, which changes whenever an image of it is resumed. Linux shows it to programs only under QEMU, with
/// the module `qemu_fw_cfg`, and to root; elsewhere the UUID that the hypervisor gives each machine is the nearest to it.
const MACHINE_IDS: [&str; 5] = [
    "/etc/machine-id",
    "/var/lib/dbus/machine-id",
    "/sys/class/dmi/id/product_uuid",
    "/sys/hypervisor/uuid",
    "/sys/firmware/qemu_fw_cfg/by_name/etc/vmgenid_guid/raw",
];

/// The ids of a boot, and the offset of its boot clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The kernel's boot id.
    pub boot_id: Vec<u8>,
    /// The ids of the machine; empty where there is none, or it cannot be read.
    pub machine_ids: [Vec<u8>; 5],
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
    let machine_ids = machine_ids_below(Path::new("/"));
    Ok(time_namespace_offset().map(|offset_ns| Boot { boot_id, machine_ids, offset_ns }))
}

fn machine_ids_below(root: &Path) -> [Vec<u8>; 5] {
    MACHINE_IDS.map(|path| std::fs::read(root.join(&path[1..])).unwrap_or_default())
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

    /// Two machines were resumed from one image: machine id and boot id are equal, and only the hypervisor's ids differ.
    #[test]
    fn each_id_of_a_machine_tells_clones_apart() {
        let root = std::env::temp_dir().join(format!("lockd-boot-{}", std::process::id()));
        let none = machine_ids_below(&root);
        assert_eq!(none, <[Vec<u8>; 5]>::default(), "ids that are missing are empty");
        for path in MACHINE_IDS {
            let file = root.join(&path[1..]);
            std::fs::create_dir_all(file.parent().expect("below the root")).expect("writable");
            let before = machine_ids_below(&root);
            std::fs::write(&file, path).expect("writable");
            assert_ne!(machine_ids_below(&root), before, "{path}");
        }
        std::fs::remove_dir_all(root).expect("ours");
    }

    #[test]
    fn an_offset_is_read_from_the_boot_clocks_line() {
        let table = "monotonic           0         0\nboottime         1000         5\n";
        assert_eq!(offset_in(table), Some(1_000_000_000_005));
        assert_eq!(offset_in("monotonic 0 0\n"), None);
        assert_eq!(offset_in("boottime x 0\n"), None);
    }
}
