//! The digest: what an agent saves across a restart (its ids, leases, attempt and phase).
//!
//! **Invariant.** A digest that is read back was written completely, during the same boot, at most five minutes before.
//! It is a hint and never authority: [`Client::reconcile`] decides whether a lease is still valid.
//!
//! **What would break it.** Writing in place: a crash leaves half a file. Computing its age from a wall clock: setting the
//! clock back makes an old digest fresh. So the age is measured on the boot clock, and a digest of another boot is stale.
//!
//! It contains credentials: the file's mode is 0600.
//!
//! [`Client::reconcile`]: crate::Client::reconcile

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use api::agents::{Intent, Reconcile};
use serde::{Deserialize, Serialize};
use system::file;

use crate::clock::BootTime;

/// An agent's state at the time of saving.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDigest {
    /// The agent's namespace; `default` if missing.
    pub namespace: Option<String>,
    /// The agent's id.
    pub agent_id: String,
    /// The run that saved it.
    pub session_id: String,
    /// The attempt of the last manifest; it carries the attempt's age.
    pub attempt_id: Option<String>,
    /// The leases held.
    pub leases: Vec<DigestLease>,
    /// The agent's own name for what it was doing.
    pub last_phase: String,
    /// Intents that were not carried out yet.
    pub pending: Vec<Intent>,
}

/// A lease in a [`StateDigest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestLease {
    /// The credential.
    pub lease_id: String,
    /// The lease's epoch.
    pub lease_epoch: u64,
    /// Its fencing token.
    pub fencing_token: u64,
}

/// The format on disk.
#[derive(Serialize, Deserialize)]
struct DigestFile {
    version: u32,
    boot_id: String,
    boot_ms: u64,
    digest: StateDigest,
}

/// The format's version.
const VERSION: u32 = 1;
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 16 << 20;

impl StateDigest {
    /// A digest older than this is ignored.
    pub const LIFETIME: Duration = Duration::from_secs(300);

    /// Writes the digest, atomically replacing an earlier one.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        self.save_at(path, &boot_id()?, BootTime::now())
    }

    /// Reads a digest. `None` if the file is missing or stale.
    pub fn load(path: &Path) -> io::Result<Option<StateDigest>> {
        StateDigest::load_at(path, &boot_id()?, BootTime::now())
    }

    /// Removes the file, if it exists.
    pub fn remove(path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The first request after a restart.
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
        let stored = DigestFile { version: VERSION, boot_id: boot_id.to_string(), boot_ms: now.0, digest };
        let bytes = serde_json::to_vec(&stored)?;
        file::replace(path, &bytes, file::OWNER_ONLY)
    }

    fn load_at(path: &Path, boot_id: &str, now: BootTime) -> io::Result<Option<StateDigest>> {
        let bytes = match fs::metadata(path) {
            Ok(metadata) if metadata.len() > BYTES_MAX => {
                return Err(io::Error::other("the file is too long for a digest"));
            }
            Ok(_) => fs::read(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let stored: DigestFile = serde_json::from_slice(&bytes)?;
        if stored.version != VERSION {
            let what = format!("unsupported digest version: version={}", stored.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let age = now.0.checked_sub(stored.boot_ms).filter(|_| stored.boot_id == boot_id);
        let fresh = age.is_some_and(|ms| Duration::from_millis(ms) <= StateDigest::LIFETIME);
        Ok(fresh.then_some(stored.digest))
    }
}

/// Creates a file with mode 0600 and syncs it.
/// Identifies this boot of the machine.
fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn digest() -> StateDigest {
        StateDigest {
            namespace: Some("prod".to_string()),
            agent_id: "coder".to_string(),
            session_id: "run-1".to_string(),
            attempt_id: Some("A-1".to_string()),
            leases: vec![DigestLease { lease_id: "L-1.1.s".to_string(), lease_epoch: 1, fencing_token: 7 }],
            last_phase: "editing".to_string(),
            pending: vec![Intent { predicate: "MUTATES".to_string(), object: "FILE:/x".to_string() }],
        }
    }

    #[test]
    fn a_digest_is_read_back_for_five_minutes_of_the_same_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("digest.json");
        assert_eq!(StateDigest::load(&path).expect("readable"), None, "none yet");
        digest().save(&path).expect("writable");
        assert_eq!(StateDigest::load(&path).expect("readable"), Some(digest()));

        digest().save_at(&path, "boot", BootTime(1_000)).expect("writable");
        let at = |boot: &str, ms| StateDigest::load_at(&path, boot, BootTime(ms)).expect("readable");
        assert_eq!(at("boot", 301_000), Some(digest()), "to the last millisecond");
        assert_eq!(at("boot", 301_001), None, "too old");
        assert_eq!(at("another", 1_000), None, "of another boot");
        assert_eq!(at("boot", 999), None, "from the future");
        StateDigest::remove(&path).expect("removed");
        StateDigest::remove(&path).expect("again");
        assert_eq!(at("boot", 1_000), None);
    }

    #[test]
    fn a_digest_is_replaced_atomically_with_mode_0600() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("digest.json");
        digest().save(&path).expect("writable");
        // A half-written temporary file of a crashed writer: the old digest stays valid.
        fs::write(dir.path().join("digest.json.1.tmp"), b"{\"version\":1,").expect("writable");
        assert_eq!(StateDigest::load(&path).expect("readable"), Some(digest()));
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = StateDigest { last_phase: "testing".to_string(), ..digest() };
        second.save(&path).expect("writable");
        assert_eq!(StateDigest::load(&path).expect("readable"), Some(second));
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 2, "nothing is left behind");
    }

    #[test]
    fn a_malformed_digest_is_an_error_and_not_a_missing_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("digest.json");
        for bad in ["", "{", "{}", r#"{"version":2,"boot_id":"","boot_ms":0,"digest":{}}"#] {
            fs::write(&path, bad).expect("writable");
            assert!(StateDigest::load(&path).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_digest_reconciles_all_its_leases() {
        let request = digest().to_reconcile(true);
        assert_eq!((request.agent_id.as_deref(), request.rebind), (Some("coder"), Some(true)));
        assert_eq!(
            (request.lease_ids, request.namespace),
            (vec!["L-1.1.s".to_string()], Some("prod".to_string()))
        );
    }
}
