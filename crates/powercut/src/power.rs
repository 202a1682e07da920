//! What is switched off: the process alone, or the disk beneath it as well.
//!
//! A process that is killed loses what it had in memory; what it wrote is in the operating system's, and so is
//! still there. To lose that too, the store is put on an ext4 filesystem on a loop device over the disk that
//! forgets (`forgetful.rs`), and the disk's process is killed first: what the operating system had not written,
//! or the disk not flushed, has nowhere to go any more. The next mount replays ext4's journal, as after a real
//! power cut.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What keeps a store running.
pub(crate) trait Power {
    /// Switches on, if it is off.
    fn on(&mut self, seed: u64) -> Result<(), String>;
    /// Ends the worker, and whatever else runs on this power.
    fn cut(&mut self, worker: &mut Child) -> Result<(), String>;
    /// Where the store is while it is on.
    fn store(&self) -> &Path;
}

/// Nothing but processes.
pub(crate) struct Processes(pub(crate) PathBuf);

impl Power for Processes {
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

/// A filesystem on a disk that forgets.
pub(crate) struct Device {
    dir: PathBuf,
    mounted: PathBuf,
    options: String,
    running: Option<Running>,
}

struct Running {
    disk: Child,
    looped: String,
}

/// How large the disk is.
const DISK_BYTES: u64 = 512 << 20;

impl Device {
    /// Makes the disk, with an empty filesystem on it.
    pub(crate) fn make(dir: &Path, options: &str) -> Result<Device, String> {
        let mounted = dir.join("mounted");
        let made = std::fs::create_dir_all(dir.join("disk"))
            .and_then(|()| std::fs::create_dir_all(&mounted))
            .and_then(|()| std::fs::File::create(dir.join("image")))
            .and_then(|image| image.set_len(DISK_BYTES));
        made.map_err(|error| error.to_string())?;
        let image = dir.join("image");
        let eager = "lazy_itable_init=0,lazy_journal_init=0";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", eager]).arg(image))?;
        Ok(Device { dir: dir.to_path_buf(), mounted, options: options.into(), running: None })
    }

    fn start_disk(&self, seed: u64) -> Result<Child, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("forgetful").arg("--image").arg(self.dir.join("image"));
        command.arg("--mount").arg(self.dir.join("disk")).arg("--seed").arg(seed.to_string());
        let started = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
        let mut disk = started.map_err(|error| error.to_string())?;
        let mut ready = String::new();
        let out = disk.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut ready).map_err(|error| error.to_string())?;
        if ready != "ready\n" {
            let _ = disk.kill().and_then(|()| disk.wait());
            return Err("there is no disk that forgets; it needs root, and --features forgetful".into());
        }
        Ok(disk)
    }

    /// What is left when the disk is gone. The filesystem writes what it still has, into nothing. The loop device
    /// may go a moment later, and the disk after it: the next life has others.
    fn clear_away(&self, looped: &str) -> Result<(), String> {
        run(Command::new("umount").arg(&self.mounted))?;
        run(Command::new("losetup").arg("--detach").arg(looped))?;
        run(Command::new("umount").arg("--lazy").arg(self.dir.join("disk")))
    }
}

impl Power for Device {
    fn on(&mut self, seed: u64) -> Result<(), String> {
        if self.running.is_some() {
            return Ok(());
        }
        let mut disk = self.start_disk(seed)?;
        let image = self.dir.join("disk/image");
        let looped =
            output(Command::new("losetup").args(["--find", "--show"]).arg(image)).inspect_err(|_| {
                let _ = run(Command::new("umount").arg(self.dir.join("disk")));
                let _ = disk.kill().and_then(|()| disk.wait());
            })?;
        self.running = Some(Running { disk, looped: looped.clone() });
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", &self.options]).arg(looped).arg(&self.mounted);
        run(&mut mount)
    }

    fn cut(&mut self, worker: &mut Child) -> Result<(), String> {
        let Some(mut running) = self.running.take() else { return Err("the power is off".into()) };
        let said = |error: std::io::Error| error.to_string();
        running.disk.kill().map_err(said)?;
        running.disk.wait().map_err(said)?;
        worker.kill().map_err(said)?;
        worker.wait().map_err(said)?;
        self.clear_away(&running.looped)
    }

    fn store(&self) -> &Path {
        &self.mounted
    }
}

/// Whatever happened, no mount is left behind.
impl Drop for Device {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = self.clear_away(&running.looped);
            let _ = running.disk.kill().and_then(|()| running.disk.wait());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_string())
}
