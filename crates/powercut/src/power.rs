//! The unit of failure: the process alone, or the disk beneath it as well.
//!
//! A killed process loses its memory; its writes are in the page cache and survive. To lose those too, the store is on
//! an ext4 filesystem on a loop device on the simulated disk (`forgetful.rs`), and the disk's process is killed first:
//! pages that were not written back, and writes that were not flushed, are lost. The next mount replays ext4's journal,
//! as after a real power cut.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The power supply of a worker and of its store.
pub(crate) trait Power {
    /// Switches the power on, if it is off.
    fn on(&mut self, seed: u64) -> Result<(), String>;
    /// Cuts the power: kills the worker, and the disk if it has one.
    fn cut(&mut self, worker: &mut Child) -> Result<(), String>;
    /// The directory of the store while the power is on.
    fn store(&self) -> &Path;
}

/// Kills the process alone; the store is in this directory.
pub(crate) struct ProcessPower(pub(crate) PathBuf);

impl Power for ProcessPower {
    fn on(&mut self, _: u64) -> Result<(), String> {
        std::fs::create_dir_all(&self.0).map_err(|error| error.to_string())
    }

    fn cut(&mut self, worker: &mut Child) -> Result<(), String> {
        worker.kill().map_err(|error| error.to_string())
    }

    fn store(&self) -> &Path {
        &self.0
    }
}

/// Kills the process and the disk: a filesystem on a disk that loses unflushed writes.
pub(crate) struct DiskPower {
    dir: PathBuf,
    mounted: PathBuf,
    options: String,
    running: Option<RunningDisk>,
}

struct RunningDisk {
    disk: Child,
    loop_device: String,
}

/// The size of the disk, in bytes.
const DISK_BYTES: u64 = 512 << 20;

impl DiskPower {
    /// Creates the disk with an empty filesystem.
    pub(crate) fn make(dir: &Path, options: &str) -> Result<DiskPower, String> {
        let mounted = dir.join("mounted");
        let created = std::fs::create_dir_all(dir.join("disk"))
            .and_then(|()| std::fs::create_dir_all(&mounted))
            .and_then(|()| std::fs::File::create(dir.join("image")))
            .and_then(|image| image.set_len(DISK_BYTES));
        created.map_err(|error| error.to_string())?;
        let image = dir.join("image");
        let eager = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", eager]).arg(image))?;
        Ok(DiskPower { dir: dir.to_path_buf(), mounted, options: options.into(), running: None })
    }

    fn start_disk(&self, seed: u64) -> Result<Child, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("forgetful").arg("--image").arg(self.dir.join("image"));
        command.arg("--mount").arg(self.dir.join("disk")).arg("--seed").arg(seed.to_string());
        let started = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
        let mut disk = started.map_err(|error| error.to_string())?;
        let mut ready = String::new();
        let out = disk.stdout.take().expect("stdout is piped");
        BufReader::new(out).read_line(&mut ready).map_err(|error| error.to_string())?;
        if ready != "ready\n" {
            let _ = disk.kill().and_then(|()| disk.wait());
            return Err(
                "cannot start the simulated disk: run as root, and build with --features forgetful".into()
            );
        }
        Ok(disk)
    }

    /// Removes the mounts of a dead disk. The filesystem's remaining writes fail. The loop device and the disk may
    /// disappear later: the next run uses new ones.
    fn unmount(&self, loop_device: &str) -> Result<(), String> {
        run(Command::new("umount").arg(&self.mounted))?;
        run(Command::new("losetup").arg("--detach").arg(loop_device))?;
        run(Command::new("umount").arg("--lazy").arg(self.dir.join("disk")))
    }
}

impl Power for DiskPower {
    fn on(&mut self, seed: u64) -> Result<(), String> {
        if self.running.is_some() {
            return Ok(());
        }
        let mut disk = self.start_disk(seed)?;
        let image = self.dir.join("disk/image");
        let loop_device =
            output(Command::new("losetup").args(["--find", "--show"]).arg(image)).inspect_err(|_| {
                let _ = run(Command::new("umount").arg(self.dir.join("disk")));
                let _ = disk.kill().and_then(|()| disk.wait());
            })?;
        self.running = Some(RunningDisk { disk, loop_device: loop_device.clone() });
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", &self.options]).arg(loop_device).arg(&self.mounted);
        run(&mut mount)
    }

    fn cut(&mut self, worker: &mut Child) -> Result<(), String> {
        let Some(mut running) = self.running.take() else { return Err("the power is already off".into()) };
        let text = |error: std::io::Error| error.to_string();
        running.disk.kill().map_err(text)?;
        running.disk.wait().map_err(text)?;
        worker.kill().map_err(text)?;
        worker.wait().map_err(text)?;
        self.unmount(&running.loop_device)
    }

    fn store(&self) -> &Path {
        &self.mounted
    }
}

/// Leaves no mount behind, also after an error.
impl Drop for DiskPower {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = self.unmount(&running.loop_device);
            let _ = running.disk.kill().and_then(|()| running.disk.wait());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}
