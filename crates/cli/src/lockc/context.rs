//! The leases that `lockc` holds, in one file per context.
//!
//! **Invariant.** The file is replaced atomically, has mode 0600, and is read and written under the same file lock. The lock
//! is never held during a request or a prompt. A response is therefore applied to the file as it is when the lock is taken
//! again, and finds its lease by the credential, never by the key.
//!
//! **What would break it.** Applied by key, `release` in one terminal could remove a lease that another terminal has
//! acquired since.
//!
//! A granted lease is in the file, or was released. A lease that has expired by this machine's clocks is dropped with a
//! message: its holder must stop then, whether or not the server still honours it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use cli::exit_codes::EXPIRED;
use cli::remote::documents::failed_file;
use cli::remote::{Failure, usage_error};
use cli::untrusted::escape;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use system::{file, xdg};
use worktree::clock::SystemClock;

use crate::entry::LeaseEntry;
use crate::notice;

/// Maximum number of leases in a context.
const LEASES_MAX: usize = 1000;
/// Maximum size of a context file; [`LEASES_MAX`] leases need far less.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The leases of one context.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct LeaseContext {
    pub(crate) current: Option<String>,
    pub(crate) leases: Vec<LeaseEntry>,
    /// Keys whose leases had expired when the file was read.
    #[serde(skip)]
    expired: Vec<String>,
}

impl LeaseContext {
    /// The lease on `key`, or on the current key.
    pub(crate) fn find(&self, key: Option<&str>) -> Result<LeaseEntry, Failure> {
        let known = || {
            let keys: Vec<&str> = self.leases.iter().map(|entry| entry.key.as_str()).collect();
            if keys.is_empty() {
                "no leases held; acquire one with `lockc acquire KEY`".to_string()
            } else {
                escape(&format!("keys={}", keys.join(",")))
            }
        };
        let lease_expired = |key: &str| {
            let what = format!("the lease has expired; acquire it again: key={key}");
            Failure::new(EXPIRED, escape(&what))
        };
        let Some(key) = key.or(self.current.as_deref()) else {
            return match self.expired.last() {
                Some(key) => Err(lease_expired(key)),
                None => Err(usage_error(format!("no current key; name one: {}", known()))),
            };
        };
        match self.leases.iter().find(|entry| entry.key == key) {
            Some(entry) => Ok(entry.clone()),
            None if self.expired.iter().any(|expired| expired == key) => Err(lease_expired(key)),
            None => {
                Err(usage_error(format!("no lease on this key in this context: {} key={key:?}", known())))
            }
        }
    }

    /// Checks that a lease can be added. A key identifies one lease per context: a lease on the same key at another server
    /// must not be overwritten.
    pub(crate) fn check_can_add(
        &self,
        key: &str,
        namespace: &str,
        servers: &[String],
    ) -> Result<(), Failure> {
        match self.leases.iter().find(|entry| entry.key == key) {
            Some(entry) if entry.namespace != namespace || entry.servers != servers => {
                Err(usage_error(escape(&format!(
                    "this context has a lease on that key at another server or namespace; use --context NAME: server={} \
                     namespace={}",
                    entry.servers.join(","),
                    entry.namespace
                ))))
            }
            None if self.leases.len() >= LEASES_MAX => {
                Err(usage_error(format!("this context is full; use --context NAME: leases={LEASES_MAX}")))
            }
            _ => Ok(()),
        }
    }

    /// Adds a lease, replacing an older one on the same key, and makes its key current.
    pub(crate) fn add(&mut self, entry: LeaseEntry) -> Result<(), Failure> {
        self.check_can_add(&entry.key, &entry.namespace, &entry.servers)?;
        self.current = Some(entry.key.clone());
        self.leases.retain(|other| other.key != entry.key);
        self.leases.push(entry);
        Ok(())
    }

    /// The lease with this credential, if it is still in the context.
    pub(crate) fn get_mut(&mut self, lease_id: &str) -> Option<&mut LeaseEntry> {
        self.leases.iter_mut().find(|entry| entry.lease_id == lease_id)
    }

    /// Removes a lease. If exactly one other remains it becomes current; with several, the user selects one.
    pub(crate) fn remove(&mut self, lease_id: &str) {
        self.leases.retain(|entry| entry.lease_id != lease_id);
        let current = self.current.take().filter(|key| self.leases.iter().any(|entry| entry.key == *key));
        self.current = match (current, self.leases.as_slice()) {
            (None, [only]) => Some(only.key.clone()),
            (current, _) => current,
        };
    }

    fn drop_expired(&mut self) {
        let clock = SystemClock::new();
        let is_expired = |entry: &&LeaseEntry| entry.left(&clock).is_zero();
        let expired: Vec<LeaseEntry> = self.leases.iter().filter(is_expired).cloned().collect();
        for entry in expired {
            notice(&escape(&format!(
                "a lease has expired and is removed from the context: key={}",
                entry.key
            )));
            let was_current = self.current.as_deref() == Some(entry.key.as_str());
            self.remove(&entry.lease_id);
            // A command that meant the expired lease must not run against another one.
            if was_current {
                self.current = None;
            }
            self.expired.push(entry.key);
        }
    }
}

/// The file of one context.
pub(crate) struct ContextStore {
    folder: PathBuf,
    name: String,
}

impl ContextStore {
    /// Checks the name and finds the directory; reads and creates nothing.
    pub(crate) fn open(name: &str) -> Result<ContextStore, Failure> {
        let name = if name.is_empty() { "default" } else { name };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(usage_error(format!(
                "a context name has 1 to 64 letters, digits, `-`, `_` or `.`, and does not start with `.`: context={name:?}"
            )));
        }
        let folder = xdg::state_home().map(|home| home.join("lockd"));
        let folder = folder.ok_or_else(|| usage_error("no home directory; set HOME or XDG_STATE_HOME"))?;
        Ok(ContextStore { folder, name: name.to_string() })
    }

    /// The directory, created with mode 0700 if missing.
    pub(crate) fn folder(&self) -> Result<&PathBuf, Failure> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        created.map_err(|error| failed_file("creating", &self.folder, &error))?;
        Ok(&self.folder)
    }

    /// Reads the context, applies `change`, and writes the result if `change` succeeds.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut LeaseContext) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let folder = self.folder()?;
        let path = folder.join(format!("lockc-{}.json", self.name));
        let _lock = self.lock()?;
        let before = read(&path).map_err(|error| failed_file("reading", &path, &error))?;
        let mut context = match before.as_slice() {
            [] => LeaseContext::default(),
            text => serde_json::from_slice(text).map_err(|error| {
                let error = io::Error::other(format!(
                    "not a context file: {error}; move it away to start with an empty context"
                ));
                failed_file("reading", &path, &error)
            })?,
        };
        context.drop_expired();
        let changed = change(&mut context);
        // Expired leases are removed even if `change` fails.
        let after = serde_json::to_vec(&context).expect("plain data");
        if after != before {
            file::replace(&path, &after, file::OWNER_ONLY)
                .map_err(|error| failed_file("writing", &path, &error))?;
        }
        changed
    }

    fn lock(&self) -> Result<File, Failure> {
        let path = self.folder.join(format!("lockc-{}.lock", self.name));
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let locked = opened.and_then(|file| {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(file)
        });
        locked.map_err(|error| failed_file("locking", &path, &error))
    }
}

/// Reads the file; empty if it does not exist.
fn read(path: &PathBuf) -> io::Result<Vec<u8>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("the file is larger than any context can be"));
    }
    Ok(bytes)
}
