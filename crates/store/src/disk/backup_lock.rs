//! The file `backup-lock`: nothing is deleted from a store while a backup reads it.
//!
//! **Invariant.** A segment or a blob is removed only under an exclusive lock on this file, and a backup holds a shared
//! one. So every file that was there when the hold began, or has appeared since, stays until the hold is dropped. The
//! operating system drops the lock of a process that ends, so a crash of either side leaves nothing behind.
//!
//! A deletion never waits: it is postponed. Callers retry in any case, because a crash may precede any deletion: segments
//! are deleted by the next truncation, blobs by the next garbage collection.
//!
//! **What would break it.** A deletion that unlocks the file while another one runs: the lock belongs to the open file,
//! which all deletions of a process share. So they are counted, and the last one unlocks.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::port::{ErrorKind, StoreError};
use crate::private;

const NAME: &str = "backup-lock";
/// How often, and after which pause each time, a backup tries to lock. A deletion holds the lock for one `unlink`.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// Permits deletions in one store, unless a backup reads it. Clones share their state. The default permits all: for a
/// store that cannot be backed up while it is open, such as a simulated one.
#[derive(Clone, Debug, Default)]
pub(super) struct DeletionGuard(Option<Arc<Mutex<DeletionState>>>);

#[derive(Debug)]
struct DeletionState {
    file: File,
    /// Deletions that run; the file is locked while there are any.
    running: usize,
}

/// The right to delete files, until dropped.
pub(super) struct DeletionPermit<'a>(Option<&'a Mutex<DeletionState>>);

impl DeletionGuard {
    /// Creates the file if it is missing.
    pub(super) fn create(store: &Path) -> io::Result<DeletionGuard> {
        let file = private::file_options().write(true).create(true).truncate(false).open(store.join(NAME))?;
        Ok(DeletionGuard(Some(Arc::new(Mutex::new(DeletionState { file, running: 0 })))))
    }

    /// `None` if a backup reads the store, or if that cannot be found out: deletions can wait.
    pub(super) fn permit(&self) -> Option<DeletionPermit<'_>> {
        let Some(shared) = &self.0 else { return Some(DeletionPermit(None)) };
        let mut state = lock(shared);
        if state.running == 0 && !planted!(BackupLockIgnored) {
            state.file.try_lock().ok()?;
        }
        state.running += 1;
        Some(DeletionPermit(Some(shared)))
    }
}

impl Drop for DeletionPermit<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.0.map(lock) else { return };
        state.running -= 1;
        if state.running == 0 {
            // If this fails, deletions and backups are refused until the server ends: nothing is lost.
            let _ = state.file.unlock();
        }
    }
}

fn lock(state: &Mutex<DeletionState>) -> MutexGuard<'_, DeletionState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a store's files from deletion until it is dropped. Any number of processes may hold one.
#[derive(Debug)]
pub struct BackupHold {
    _file: Option<File>,
}

impl BackupHold {
    /// Begins to hold. A store that no server of this version has opened yet has no `backup-lock`: it can be read only
    /// while no process has it open, and none can open it meanwhile.
    pub fn take(store: &Path) -> Result<BackupHold, StoreError> {
        let path = store.join(NAME);
        match File::open(&path) {
            Ok(file) => lock_shared(file, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => BackupHold::take_store_lock(store),
            Err(error) => Err(opening(&error, &path)),
        }
    }

    fn take_store_lock(store: &Path) -> Result<BackupHold, StoreError> {
        let path = store.join("lock");
        let file = match File::open(&path) {
            // No process has ever opened it: a copy.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BackupHold { _file: None }),
            opened => opened.map_err(|error| opening(&error, &path))?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(BackupHold { _file: Some(file) }),
            Err(TryLockError::WouldBlock) => {
                let what = "the store is open in a lockd that cannot be backed up while it runs; stop it, or restart it \
                            with this version: path=";
                Err(StoreError::new(ErrorKind::Refused, format!("{what}{}", store.display())))
            }
            Err(TryLockError::Error(error)) => Err(opening(&error, &path)),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "5 s at most, in a tool that reads")]
fn lock_shared(file: File, path: &Path) -> Result<BackupHold, StoreError> {
    for _ in 0..TRIES {
        match file.try_lock_shared() {
            Ok(()) => return Ok(BackupHold { _file: Some(file) }),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(error)) => return Err(opening(&error, path)),
        }
    }
    let what = "another process keeps the file locked; run the command again: file=";
    Err(StoreError::new(ErrorKind::Refused, format!("{what}{}", path.display())))
}

fn opening(error: &io::Error, path: &Path) -> StoreError {
    StoreError::io(error, "locking a file").with(format_args!("file={}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_may_be_deleted_while_any_backup_holds_the_store() {
        let dir = tempfile::tempdir().expect("a directory");
        let guard = DeletionGuard::create(dir.path()).expect("a directory");
        let first = BackupHold::take(dir.path()).expect("no deletion");
        let second = BackupHold::take(dir.path()).expect("shared");
        assert!(guard.permit().is_none());
        drop(first);
        assert!(guard.permit().is_none(), "the second still reads");
        drop(second);
        assert!(guard.permit().is_some());
    }

    /// The first of two deletions unlocked the file for both, and a backup began in the middle of the second.
    #[test]
    fn a_backup_waits_for_every_deletion() {
        let dir = tempfile::tempdir().expect("a directory");
        let guard = DeletionGuard::create(dir.path()).expect("a directory");
        let backup = File::open(dir.path().join(NAME)).expect("there");
        let clone = guard.clone();
        let (one, two) = (guard.permit().expect("no backup"), clone.permit().expect("no backup"));
        drop(one);
        assert!(backup.try_lock_shared().is_err(), "the second deletion still runs");
        drop(two);
        assert!(backup.try_lock_shared().is_ok());
    }

    #[test]
    fn a_store_of_an_older_version_is_read_only_while_it_is_closed() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(BackupHold::take(dir.path()).is_ok(), "a copy without locks");
        let server = File::create(dir.path().join("lock")).expect("created");
        server.try_lock().expect("free");
        let refused = BackupHold::take(dir.path()).expect_err("open elsewhere");
        assert!(refused.kind == ErrorKind::Refused && refused.what.contains("restart it"), "{refused}");
        drop(server);
        let hold = BackupHold::take(dir.path()).expect("closed");
        let server = File::open(dir.path().join("lock")).expect("there");
        assert!(server.try_lock().is_err(), "no server starts meanwhile");
        drop(hold);
        assert!(server.try_lock().is_ok());
    }
}
