//! Who holds a lock: `host:user:pid:start_time`, and the boot that pid belongs to.
//!
//! The start time tells a process from a later one with the same pid, the boot id tells it from one before
//! a reboot, and the host name from one elsewhere. All of this is for people: a dead holder never permits
//! an early steal, because its children may live on, and a pid seen from a container proves nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::BootId;
use crate::ids::Digest;

/// A process, as `host:user:pid:start_time`; the start time is in clock ticks since its boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HolderId(String);

impl HolderId {
    /// The identity of a process of this machine, or of this one if `pid` is gone already.
    pub fn of_process(pid: u32) -> Self {
        let pid = if start_time(pid).is_some() { pid } else { std::process::id() };
        let start = start_time(pid).unwrap_or(0);
        Self(format!("{}:{}:{pid}:{start}", host_name(), user_name()))
    }

    /// This process.
    pub fn this_process() -> Self {
        Self::of_process(std::process::id())
    }

    /// The process that started this one: for a command that ends while its lock lives on.
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

/// What is known here of a holder's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Whereabouts {
    /// It runs on this machine.
    Running,
    /// It ran in this boot of this machine, and has ended.
    Ended,
    /// Its pid now belongs to another process.
    PidReused,
    /// It ran on this host before a reboot.
    BeforeReboot,
    /// It runs or ran elsewhere, and nothing is known here.
    AnotherHost,
}

impl Whereabouts {
    /// Looks for the process that `holder` names, which was stamped in the boot `boot_id`.
    pub fn of(holder: &HolderId, boot_id: &BootId, this_boot: &BootId) -> Self {
        let Some(parts) = holder.parts() else { return Self::AnotherHost };
        if parts.host != host_name() {
            return Self::AnotherHost;
        }
        if boot_id != this_boot {
            return Self::BeforeReboot;
        }
        match start_time(parts.pid) {
            None => Self::Ended,
            Some(start) if start == parts.start_time => Self::Running,
            Some(_) => Self::PidReused,
        }
    }
}

/// A process, as the temporary files that it makes name it: `<pid space>.<pid>.<start time>`.
///
/// The pid space is this boot seen from this process's pid namespace, hashed. It keeps `doctor` from taking
/// a process of another container for a dead one.
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

    /// A process of this boot that has ended, or will have by the time anyone asks.
    pub fn of_process(boot_id: &BootId, pid: u32, start_time: u64) -> Self {
        Self { space: pid_space(boot_id), pid, start_time }
    }

    /// The maker that a name begins with.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let space = parts.next()?.to_owned();
        Some(Self { space, pid: parts.next()?.parse().ok()?, start_time: parts.next()?.parse().ok()? })
    }

    /// Whether this process has certainly ended; `None` if `observer` cannot know.
    pub fn is_gone(&self, observer: &Self) -> Option<bool> {
        (self.space == observer.space).then(|| start_time(self.pid) != Some(self.start_time))
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

/// The 22nd field of `/proc/<pid>/stat`; the second is a name in parentheses that may hold anything.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
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
    fn a_holder_is_told_from_a_reused_pid_a_reboot_and_another_host() {
        let here = SystemClock::new().boot_id();
        let me = HolderId::this_process();
        assert_eq!(Whereabouts::of(&me, &here, &here), Whereabouts::Running);
        assert_eq!(Whereabouts::of(&with_start(&me, 1), &here, &here), Whereabouts::PidReused);
        assert_eq!(Whereabouts::of(&me, &BootId("earlier".into()), &here), Whereabouts::BeforeReboot);
        let elsewhere = HolderId("no-such-host:me:1:1".into());
        assert_eq!(Whereabouts::of(&elsewhere, &here, &here), Whereabouts::AnotherHost);
    }

    #[test]
    fn a_process_that_ended_is_known_to_have_ended() {
        let mut child = std::process::Command::new("true").spawn().expect("`true` exists");
        let pid = child.id();
        let holder = HolderId::of_process(pid);
        child.wait().expect("our own child");
        let here = SystemClock::new().boot_id();
        assert_eq!(Whereabouts::of(&holder, &here, &here), Whereabouts::Ended);
    }

    #[test]
    fn an_identity_has_four_fields() {
        assert_eq!(HolderId::this_process().as_str().split(':').count(), 4);
    }
}
