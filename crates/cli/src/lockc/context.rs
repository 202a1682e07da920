//! What is held, between calls: a file for each context.
//!
//! **Invariant.** The file is whole, for its owner alone, and changed only under a lock by whoever read it under the same
//! lock. The lock is never held while a server is asked or a person thinks: so what an answer means for the file is decided
//! when the lock is taken again, by the credential, never by the key. Without that, `release` in one terminal could forget a
//! lease that another had acquired in the meantime.
//!
//! A lease that was granted is in the file, or was given back. One that is over by this machine's clocks is dropped with a
//! message: a holder has to stop then, whether or not the server still honours it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use cli::file::put_secret;
use cli::folders;
use cli::remote::documents::failed_file;
use cli::remote::{Failure, misused};
use cli::stderr::shown;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use worktree::clock::SystemClock;

use crate::entry::Entry;
use crate::say;

/// More is more than one person can want.
const LEASES_MAX: usize = 1000;
/// Far more than as many leases take.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The leases of one context.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Context {
    pub(crate) current: Option<String>,
    pub(crate) leases: Vec<Entry>,
    /// Keys whose leases were over when the file was read.
    #[serde(skip)]
    over: Vec<String>,
}

impl Context {
    /// The lease over a key, or over the current one.
    pub(crate) fn find(&self, key: Option<&str>) -> Result<Entry, Failure> {
        let known = || {
            let keys: Vec<&str> = self.leases.iter().map(|entry| entry.key.as_str()).collect();
            if keys.is_empty() {
                "nothing is held; `lockc acquire` a key first".to_string()
            } else {
                shown(&format!("keys={}", keys.join(",")))
            }
        };
        let expired = |key: &str| (12, shown(&format!("the lease has expired; acquire it again: key={key}")));
        let Some(key) = key.or(self.current.as_deref()) else {
            return match self.over.last() {
                Some(over) => Err(expired(over)),
                None => Err(misused(format!("no key is the current one; name one: {}", known()))),
            };
        };
        match self.leases.iter().find(|entry| entry.key == key) {
            Some(entry) => Ok(entry.clone()),
            None if self.over.iter().any(|over| over == key) => Err(expired(key)),
            None => Err(misused(format!("no lease of this key is in this context: {} key={key:?}", known()))),
        }
    }

    /// May a lease be added? A key stands for one lease: another server's of the same name is not to be forgotten.
    pub(crate) fn check_room(&self, key: &str, namespace: &str, servers: &[String]) -> Result<(), Failure> {
        match self.leases.iter().find(|entry| entry.key == key) {
            Some(entry) if entry.namespace != namespace || entry.servers != servers => {
                Err(misused(shown(&format!(
                    "this context has a lease of that name elsewhere; use --context NAME: server={} namespace={}",
                    entry.servers.join(","),
                    entry.namespace
                ))))
            }
            None if self.leases.len() >= LEASES_MAX => {
                Err(misused(format!("this context is full; use --context NAME: leases={LEASES_MAX}")))
            }
            _ => Ok(()),
        }
    }

    /// Adds a lease, in place of an older one over the same key, and makes it the current one.
    pub(crate) fn add(&mut self, entry: Entry) -> Result<(), Failure> {
        self.check_room(&entry.key, &entry.namespace, &entry.servers)?;
        self.current = Some(entry.key.clone());
        self.leases.retain(|other| other.key != entry.key);
        self.leases.push(entry);
        Ok(())
    }

    /// The lease, if it is still there.
    pub(crate) fn get_mut(&mut self, lease_id: &str) -> Option<&mut Entry> {
        self.leases.iter_mut().find(|entry| entry.lease_id == lease_id)
    }

    /// Forgets a lease. What is left alone is the current one; among several somebody has to choose.
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
        let is_over = |entry: &&Entry| entry.left(&clock).is_zero();
        let over: Vec<Entry> = self.leases.iter().filter(is_over).cloned().collect();
        for entry in over {
            say(&shown(&format!("a lease has expired, and is dropped from the context: key={}", entry.key)));
            let was_current = self.current.as_deref() == Some(entry.key.as_str());
            self.remove(&entry.lease_id);
            // Whoever meant the lease that is over does not mean another.
            if was_current {
                self.current = None;
            }
            self.over.push(entry.key);
        }
    }
}

/// Where a context is kept.
pub(crate) struct Store {
    folder: PathBuf,
    name: String,
}

impl Store {
    /// Nothing is read or made yet.
    pub(crate) fn open(name: &str) -> Result<Store, Failure> {
        let name = if name.is_empty() { "default" } else { name };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
            return Err(misused(format!(
                "the name of a context has letters, digits, `-`, `_` and `.`: context={name:?}"
            )));
        }
        let folder = folders::state();
        let folder = folder.ok_or_else(|| misused("no home folder; set HOME or XDG_STATE_HOME"))?;
        Ok(Store { folder, name: name.to_string() })
    }

    /// The folder, which is made if it is not there.
    pub(crate) fn folder(&self) -> Result<&PathBuf, Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|error| failed_file("making", &self.folder, &error))?;
        Ok(&self.folder)
    }

    /// Reads the context and, if that succeeds, keeps what was made of it.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Context) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let folder = self.folder()?;
        let path = folder.join(format!("lockc-{}.json", self.name));
        let _lock = self.lock()?;
        let before = read(&path).map_err(|error| failed_file("reading", &path, &error))?;
        let mut context = match before.as_slice() {
            [] => Context::default(),
            text => serde_json::from_slice(text).map_err(|error| {
                let error = io::Error::other(format!("not a context: {error}; move it away to begin anew"));
                failed_file("reading", &path, &error)
            })?,
        };
        context.drop_expired();
        let changed = change(&mut context);
        // What has expired goes, also if what was asked for could not be done.
        let after = serde_json::to_vec(&context).expect("plain data");
        if after != before {
            put_secret(&path, &after).map_err(|error| failed_file("writing", &path, &error))?;
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

/// Nothing if it is not there.
fn read(path: &PathBuf) -> io::Result<Vec<u8>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other("it is longer than any context"));
    }
    Ok(bytes)
}
