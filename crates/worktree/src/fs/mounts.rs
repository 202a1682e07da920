//! The type of the filesystem that a device number belongs to, from the kernel's table of mounts.

/// Whether a mount in `table`, the text of `/proc/self/mountinfo`, has the device and the type.
pub(super) fn has_type(table: &str, device: u64, wanted: &str) -> bool {
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    table.lines().any(|line| {
        // `36 35 98:0 /root /point options optional-fields - type source super-options`
        let mount_device = line.split(' ').nth(2);
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        mount_device == Some(device.as_str()) && kind == Some(wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_device_and_its_type() {
        let table = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                     40 22 0:41 / /mnt/jfs\\040one rw,nosuid - fuse.juicefs JuiceFS:one rw,user_id=0\n";
        let device = rustix::fs::makedev(0, 41);
        assert!(has_type(table, device, "fuse.juicefs"));
        assert!(!has_type(table, device, "ext4"));
        assert!(!has_type(table, rustix::fs::makedev(8, 1), "fuse.juicefs"));
        assert!(!has_type("torn", device, "fuse.juicefs"));
    }
}
