//! Process identities: the holder of a lock as `host:user:pid:start_time`, and the maker of a temporary file.
//!
//! The start time distinguishes a process from a later one with the same pid, the boot id from one before a
//! reboot, and the host name from one on another host. A holder's identity is informational: an ended holder
//! never permits an early steal, because its children may still run, and a pid seen from a container proves
//! nothing.

use std::fmt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::clock::BootId;
use crate::ids::Digest;

/// A process, as `host:user:pid:start_time`; the start time is in clock ticks since its boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HolderId(String);

impl HolderId {
    /// The identity of a process of this machine, or of this process if `pid` has ended already.
    pub fn of_process(pid: u32) -> Self {
        let pid = if start_time(pid).is_some() { pid } else { std::process::id() };
        let start = start_time(pid).unwrap_or(0);
        Self(format!("{}:{}:{pid}:{start}", host_name(), user_name()))
    }

    /// This process.
    pub fn this_process() -> Self {
        Self::of_process(std::process::id())
    }

    /// The parent process: for a command that ends before its lock is released.
    pub fn parent_process() -> Self {
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
        Self::of_process(parent)
    }

    /// The identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parts(&self) -> Option<Parts<'_>> {
        let mut fields = self.0.rsplitn(4, ':');
        let start_time = fields.next()?.parse().ok()?;
        let pid = fields.next()?.parse().ok()?;
        let _user = fields.next()?;
        Some(Parts { host: fields.next()?, pid, start_time })
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

struct Parts<'a> {
    host: &'a str,
    pid: u32,
    start_time: u64,
}

/// The state of a holder's process, as seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It runs on this machine.
    Running,
    /// It ran in this boot of this machine, and has ended.
    Ended,
    /// The pid now belongs to another process.
    PidReused,
    /// The pid belongs to a process that this user may not inspect: it may be the same one.
    Hidden,
    /// It ran on this host before a reboot.
    BeforeReboot,
    /// It runs or ran on another host; its state is unknown.
    AnotherHost,
}

impl ProcessState {
    /// The state of the process `holder`, which was recorded in the boot `boot_id`.
    pub fn of(holder: &HolderId, boot_id: &BootId, this_boot: &BootId) -> Self {
        let Some(parts) = holder.parts() else { return Self::AnotherHost };
        if parts.host != host_name() {
            return Self::AnotherHost;
        }
        if boot_id != this_boot {
            return Self::BeforeReboot;
        }
        match PidState::with(parts.pid, Path::new(PROC)) {
            PidState::Gone => Self::Ended,
            PidState::Hidden => Self::Hidden,
            PidState::Started(at) if at == parts.start_time => Self::Running,
            PidState::Started(_) => Self::PidReused,
        }
    }
}

/// A process, as named in its temporary files: `<pid space>.<pid>.<start time>`.
///
/// The pid space is a hash of the boot id and the pid namespace. It keeps `doctor` from mistaking a process
/// of another container for one that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maker {
    space: String,
    pid: u32,
    start_time: u64,
}

impl Maker {
    /// This process.
    pub fn this_process(boot_id: &BootId) -> Self {
        let pid = std::process::id();
        Self { space: pid_space(boot_id), pid, start_time: start_time(pid).unwrap_or(0) }
    }

    /// Another process of this boot.
    pub fn of_process(boot_id: &BootId, pid: u32, start_time: u64) -> Self {
        Self { space: pid_space(boot_id), pid, start_time }
    }

    /// The maker that a name begins with.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let space = parts.next()?.to_owned();
        Some(Self { space, pid: parts.next()?.parse().ok()?, start_time: parts.next()?.parse().ok()? })
    }

    /// Whether this process has certainly ended; `None` if `observer` is in another pid space. A process
    /// hidden from this user counts as running.
    pub fn is_gone(&self, observer: &Self) -> Option<bool> {
        (self.space == observer.space).then(|| self.is_gone_from(Path::new(PROC)))
    }

    fn is_gone_from(&self, proc: &Path) -> bool {
        match PidState::with(self.pid, proc) {
            PidState::Gone => true,
            PidState::Hidden => false,
            PidState::Started(at) => at != self.start_time,
        }
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.space, self.pid, self.start_time)
    }
}

fn pid_space(boot_id: &BootId) -> String {
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let whole = format!("{boot_id}:{}", namespace.display());
    Digest::of(whole.as_bytes()).to_string()[..8].to_owned()
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().replace([':', '/'], "_")
}

fn user_name() -> String {
    let uid = rustix::process::getuid().as_raw();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    });
    known.unwrap_or_else(|| format!("uid{uid}"))
}

const PROC: &str = "/proc";

/// The state of a pid, as the kernel reports it.
enum PidState {
    /// No such process.
    Gone,
    /// It exists, but `/proc` does not show it: mounted with `hidepid`, it hides the processes of other
    /// users.
    Hidden,
    /// It exists, with this start time.
    Started(u64),
}

impl PidState {
    fn with(pid: u32, proc: &Path) -> Self {
        if let Some(at) = start_time_in(proc, pid) {
            return Self::Started(at);
        }
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match pid.map(test_kill_process) {
            None | Some(Err(Errno::SRCH)) => Self::Gone,
            Some(_) => Self::Hidden,
        }
    }
}

fn start_time(pid: u32) -> Option<u64> {
    start_time_in(Path::new(PROC), pid)
}

/// The 22nd field of `/proc/<pid>/stat`; the second is a name in parentheses that may hold anything.
fn start_time_in(proc: &Path, pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    fn with_start(holder: &HolderId, start: u64) -> HolderId {
        let (front, _) = holder.as_str().rsplit_once(':').expect("four fields");
        HolderId(format!("{front}:{start}"))
    }

    #[test]
    fn a_holder_is_distinguished_from_a_reused_pid_a_reboot_and_another_host() {
        let here = SystemClock::new().boot_id();
        let me = HolderId::this_process();
        assert_eq!(ProcessState::of(&me, &here, &here), ProcessState::Running);
        assert_eq!(ProcessState::of(&with_start(&me, 1), &here, &here), ProcessState::PidReused);
        assert_eq!(ProcessState::of(&me, &BootId("earlier".into()), &here), ProcessState::BeforeReboot);
        let elsewhere = HolderId("no-such-host:me:1:1".into());
        assert_eq!(ProcessState::of(&elsewhere, &here, &here), ProcessState::AnotherHost);
    }

    #[test]
    fn a_process_that_ended_is_known_to_have_ended() {
        let mut child = std::process::Command::new("true").spawn().expect("`true` exists");
        let pid = child.id();
        let holder = HolderId::of_process(pid);
        child.wait().expect("our own child");
        let here = SystemClock::new().boot_id();
        assert_eq!(ProcessState::of(&holder, &here, &here), ProcessState::Ended);
    }

    /// Where `/proc` was mounted with `hidepid=2`, every process of another user looked as if it had ended,
    /// and `doctor --repair` removed the files that it was using.
    #[test]
    fn a_process_that_proc_hides_is_not_taken_for_one_that_ended() {
        let here = SystemClock::new().boot_id();
        let hiding = Path::new("/proc/self/fdinfo");
        let running = Maker::this_process(&here);
        assert!(!running.is_gone_from(hiding), "hidden, but still running");
        // One more than the largest pid that Linux gives out.
        let ended = Maker::of_process(&here, 4_194_305, 1);
        assert!(ended.is_gone_from(hiding));
        let reused = Maker { start_time: 1, ..running };
        assert!(reused.is_gone_from(Path::new(PROC)));
    }

    #[test]
    fn an_identity_has_four_fields() {
        assert_eq!(HolderId::this_process().as_str().split(':').count(), 4);
    }
}
