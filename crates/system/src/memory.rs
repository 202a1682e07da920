//! The memory that a process may use: the machine's, or the limit of its cgroup (version 1 or 2).

use std::path::{Path, PathBuf};

/// The memory of the machine or of the process's cgroup, whichever is less, in bytes. `None` if neither can be read.
pub fn available() -> Option<u64> {
    available_in(Path::new("/"))
}

/// As [`available`], with the files of `/proc` and `/sys` below another root.
pub fn available_in(root: &Path) -> Option<u64> {
    let machine = machine_total(root);
    cgroup_limits(root).into_iter().chain(machine).min()
}

fn machine_total(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limits of the process's cgroup and of every cgroup above it.
fn cgroup_limits(root: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    text.lines()
        .filter_map(hierarchy)
        .flat_map(|(mount, file, path)| limits(root, mount, file, path))
        .collect()
}

/// The mount point, the limit's file and the path of a line `id:controllers:path`, if it is about memory.
fn hierarchy(line: &str) -> Option<(&'static str, &'static str, &str)> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let path = path.trim_start_matches('/');
    if id == "0" && controllers.is_empty() {
        return Some(("sys/fs/cgroup", "memory.max", path));
    }
    let is_memory = controllers.split(',').any(|controller| controller == "memory");
    is_memory.then_some(("sys/fs/cgroup/memory", "memory.limit_in_bytes", path))
}

fn limits(root: &Path, mount: &str, file: &str, path: &str) -> Vec<u64> {
    let mount = root.join(mount);
    let own = mount.join(path);
    // Within a container, the path is often that of the host, and the mount point is the cgroup itself.
    let cgroups: Vec<PathBuf> =
        own.ancestors().take_while(|cgroup| cgroup.starts_with(&mount)).map(Path::to_path_buf).collect();
    cgroups.iter().filter_map(|cgroup| limit(&cgroup.join(file))).collect()
}

/// `max`, or a number beyond any machine's memory, is no limit.
fn limit(file: &Path) -> Option<u64> {
    let bytes: u64 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes > 0 && bytes < 1 << 60).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("below the root")).expect("writable");
            std::fs::write(path, text).expect("writable");
        }
        dir
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\n");

    #[test]
    fn without_a_cgroup_it_is_the_machines_memory() {
        let dir = root(&[MACHINE]);
        assert_eq!(available_in(dir.path()), Some(1 << 30));
        assert_eq!(available_in(Path::new("/nowhere")), None);
    }

    #[test]
    fn the_least_limit_of_a_cgroup_and_those_above_it_counts() {
        let dir = root(&[
            MACHINE,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "268435456\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!(available_in(dir.path()), Some(256 << 20));
    }

    #[test]
    fn a_limit_of_version_1_counts_and_its_absence_is_none() {
        let file = "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes";
        let hierarchy = ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:hugetlb,memory:/docker/x\n");
        let dir = root(&[MACHINE, hierarchy, (file, "134217728\n")]);
        assert_eq!(available_in(dir.path()), Some(128 << 20));
        let dir = root(&[MACHINE, hierarchy, (file, "9223372036854771712\n")]);
        assert_eq!(available_in(dir.path()), Some(1 << 30));
    }

    /// In a container the path names a cgroup of the host, and the container's own is at the mount point.
    #[test]
    fn the_cgroup_at_the_mount_point_counts() {
        let dir = root(&[
            MACHINE,
            ("proc/self/cgroup", "0::/../../kubepods/pod1\n"),
            ("sys/fs/cgroup/memory.max", "268435456\n"),
        ]);
        assert_eq!(available_in(dir.path()), Some(256 << 20));
    }
}
