//! What an agent takes through a restart: who it is, what it held, how old its attempt is, where it was.
//!
//! **Invariant.** What is read back was written whole, by the same start of the machine, at most five minutes before.
//! It is a memory and never authority: whether a lease still stands is what [`Client::reconcile`] says.
//!
//! **What would break it.** To write it in place: a crash leaves half of it. To tell its age by a wall clock: one that
//! was set back makes an old digest new. So its age is told by the boot clock, and another boot's is too old.
//!
//! It holds credentials: the file is its owner's alone.
//!
//! [`Client::reconcile`]: crate::Client::reconcile

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use api::agents::{Intent, Reconcile};
use serde::{Deserialize, Serialize};

use crate::clock::BootTime;

/// What an agent knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Where it works; `default` where it is missing.
    pub namespace: Option<String>,
    /// Its name.
    pub agent_id: String,
    /// Its run.
    pub session_id: String,
    /// How old its attempt is, in the server's words.
    pub attempt_id: Option<String>,
    /// The leases that it held.
    pub leases: Vec<Kept>,
    /// What it was doing.
    pub last_phase: String,
    /// What it still meant to do.
    pub pending: Vec<Intent>,
}

/// A lease that was held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The credential.
    pub lease_id: String,
    /// The epoch of its authority.
    pub lease_epoch: u64,
    /// Its fencing token.
    pub fencing_token: u64,
}

/// As it is on disk.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    boot_id: String,
    boot_ms: u64,
    digest: Digest,
}

/// The form that is written here.
const VERSION: u32 = 1;
/// The longest file that is read.
const BYTES_MAX: u64 = 16 << 20;

impl Digest {
    /// One that is older says nothing any more.
    pub const LIFETIME: Duration = Duration::from_secs(300);

    /// Writes it, in place of an earlier one: all of it, or nothing.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        self.save_at(path, &boot_id()?, BootTime::now())
    }

    /// Reads it back. `None` if there is none, or if it is too old.
    pub fn load(path: &Path) -> io::Result<Option<Digest>> {
        Digest::load_at(path, &boot_id()?, BootTime::now())
    }

    /// Forgets it: what it says is done.
    pub fn remove(path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// What to ask first after a restart.
    pub fn to_reconcile(&self, rebind: bool) -> Reconcile {
        Reconcile {
            namespace: self.namespace.clone(),
            agent_id: Some(self.agent_id.clone()),
            lease_ids: self.leases.iter().map(|lease| lease.lease_id.clone()).collect(),
            rebind: Some(rebind),
        }
    }

    fn save_at(&self, path: &Path, boot_id: &str, now: BootTime) -> io::Result<()> {
        let digest = self.clone();
        let stored = Stored { version: VERSION, boot_id: boot_id.to_string(), boot_ms: now.0, digest };
        let bytes = serde_json::to_vec(&stored)?;
        let mut name =
            path.file_name().ok_or_else(|| io::Error::other("a digest needs a file name"))?.to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let tmp = path.with_file_name(name);
        let written = write_new(&tmp, &bytes).and_then(|()| fs::rename(&tmp, path));
        if written.is_err() {
            let _ = fs::remove_file(&tmp);
        }
        written?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    }

    fn load_at(path: &Path, boot_id: &str, now: BootTime) -> io::Result<Option<Digest>> {
        let bytes = match fs::metadata(path) {
            Ok(metadata) if metadata.len() > BYTES_MAX => {
                return Err(io::Error::other("too long for a digest"));
            }
            Ok(_) => fs::read(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let stored: Stored = serde_json::from_slice(&bytes)?;
        if stored.version != VERSION {
            let what = format!("a digest of another version: version={}", stored.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let age = now.0.checked_sub(stored.boot_ms).filter(|_| stored.boot_id == boot_id);
        let fresh = age.is_some_and(|ms| Duration::from_millis(ms) <= Digest::LIFETIME);
        Ok(fresh.then_some(stored.digest))
    }
}

/// Its owner's alone, and on disk before it has its name.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Tells this start of the machine from every other.
fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn digest() -> Digest {
        Digest {
            namespace: Some("prod".to_string()),
            agent_id: "coder".to_string(),
            session_id: "run-1".to_string(),
            attempt_id: Some("A-1".to_string()),
            leases: vec![Kept { lease_id: "L-1.1.s".to_string(), lease_epoch: 1, fencing_token: 7 }],
            last_phase: "editing".to_string(),
            pending: vec![Intent { predicate: "MUTATES".to_string(), object: "FILE:/x".to_string() }],
        }
    }

    #[test]
    fn a_digest_is_read_back_for_five_minutes_of_the_same_boot() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("digest.json");
        assert_eq!(Digest::load(&path).expect("readable"), None, "none yet");
        digest().save(&path).expect("room");
        assert_eq!(Digest::load(&path).expect("readable"), Some(digest()));

        digest().save_at(&path, "boot", BootTime(1_000)).expect("room");
        let at = |boot: &str, ms| Digest::load_at(&path, boot, BootTime(ms)).expect("readable");
        assert_eq!(at("boot", 301_000), Some(digest()), "to the last millisecond");
        assert_eq!(at("boot", 301_001), None, "too old");
        assert_eq!(at("another", 1_000), None, "nobody knows how old");
        assert_eq!(at("boot", 999), None, "of a time that has not come");
        Digest::remove(&path).expect("it goes");
        Digest::remove(&path).expect("again");
        assert_eq!(at("boot", 1_000), None);
    }

    #[test]
    fn it_is_written_whole_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("digest.json");
        digest().save(&path).expect("room");
        // Another of this name is being written, or was when its writer died: the old one stands.
        fs::write(dir.path().join("digest.json.1.tmp"), b"{\"version\":1,").expect("room");
        assert_eq!(Digest::load(&path).expect("readable"), Some(digest()));
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = Digest { last_phase: "testing".to_string(), ..digest() };
        second.save(&path).expect("room");
        assert_eq!(Digest::load(&path).expect("readable"), Some(second));
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 2, "nothing is left behind");
    }

    #[test]
    fn what_is_no_digest_is_an_error_and_not_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("digest.json");
        for bad in ["", "{", "{}", r#"{"version":2,"boot_id":"","boot_ms":0,"digest":{}}"#] {
            fs::write(&path, bad).expect("room");
            assert!(Digest::load(&path).is_err(), "{bad}");
        }
    }

    #[test]
    fn it_knows_what_to_ask_first() {
        let asked = digest().to_reconcile(true);
        assert_eq!((asked.agent_id.as_deref(), asked.rebind), (Some("coder"), Some(true)));
        assert_eq!(
            (asked.lease_ids, asked.namespace),
            (vec!["L-1.1.s".to_string()], Some("prod".to_string()))
        );
    }
}
