//! Spare segments: zeroed files that wait to be used, prepared on another thread if the caller provides one.
//!
//! **Invariant.** A spare is complete: every byte of it is zero and durable, so that an append to it allocates nothing.
//! At most one preparation is given out at a time. The log never waits for one: it takes a finished spare, or creates
//! one itself.
//!
//! **What would break it.** Two spares of one name: the log would rename the wrong file. So names are never used twice
//! in a process, and an opening log removes those of earlier processes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::reader::Segments;
use crate::fs::{File, Fs};
use crate::port::{Preparation, StoreError};

/// The names of spares begin with this.
pub(super) const PREFIX: &str = "spare";

/// Bytes that are zeroed between two syncs. An append's sync on the same disk may wait for them.
const PART: usize = 1 << 20;

/// A zeroed file, ready for use.
pub(super) struct Spare<T> {
    pub(super) name: String,
    pub(super) file: T,
    pub(super) length: u64,
}

impl<T: File> Spare<T> {
    /// Fails without side effects.
    pub(super) fn create<F: Fs<File = T>>(files: &Segments<F>, length: u64) -> io::Result<Spare<T>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let name = format!("{PREFIX}-{}", NUMBERS.fetch_add(1, Ordering::Relaxed));
        let path = files.dir.join(&name);
        let file = files.fs.create(&path)?;
        match fill_with_zeros(&file, length) {
            Ok(()) => Ok(Spare { name, file, length }),
            Err(error) => {
                // A partial spare uses up the space that is missing.
                let _ = files.fs.remove(&path);
                Err(error)
            }
        }
    }
}

/// The spares of one log: one to use, and one that may be in preparation.
pub(super) struct Spares<T> {
    ready: Option<Spare<T>>,
    prepared: Arc<Mutex<Prepared<T>>>,
}

enum Prepared<T> {
    Nothing,
    InProgress,
    Ready(Spare<T>),
}

impl<T: File> Spares<T> {
    pub(super) fn new() -> Spares<T> {
        Spares { ready: None, prepared: Arc::new(Mutex::new(Prepared::Nothing)) }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    pub(super) fn take(&mut self) -> Option<Spare<T>> {
        self.ready.take()
    }

    /// Takes over a finished preparation.
    pub(super) fn adopt(&mut self) {
        if self.ready.is_some() {
            return;
        }
        let mut prepared = match self.prepared.try_lock() {
            Ok(prepared) => prepared,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if matches!(*prepared, Prepared::Ready(_)) {
            let spare = std::mem::replace(&mut *prepared, Prepared::Nothing);
            self.ready = if let Prepared::Ready(spare) = spare { Some(spare) } else { None };
        }
    }

    /// Creates a spare now, unless there is one.
    pub(super) fn create<F: Fs<File = T>>(
        &mut self,
        files: &Segments<F>,
        length: u64,
    ) -> Result<(), StoreError> {
        self.adopt();
        if self.ready.is_none() {
            self.ready =
                Some(Spare::create(files, length).map_err(|error| not_created(&error, files, length))?);
        }
        Ok(())
    }

    /// The creation of a spare as work for another thread, unless there is one or it is being created.
    pub(super) fn preparation<F: Fs<File = T>>(
        &mut self,
        files: Segments<F>,
        length: u64,
    ) -> Option<Preparation> {
        self.adopt();
        let is_due = self.ready.is_none() && matches!(*lock(&self.prepared), Prepared::Nothing);
        if !is_due || planted!(PreparationWithheld) {
            return None;
        }
        *lock(&self.prepared) = Prepared::InProgress;
        let prepared = InProgress(Arc::clone(&self.prepared));
        Some(Box::new(move || {
            let spare = Spare::create(&files, length).map_err(|error| not_created(&error, &files, length))?;
            *lock(&prepared.0) = Prepared::Ready(spare);
            Ok(())
        }))
    }
}

/// A preparation that was given out. If it fails or is dropped, another one can be.
struct InProgress<T>(Arc<Mutex<Prepared<T>>>);

impl<T> Drop for InProgress<T> {
    fn drop(&mut self) {
        let mut prepared = lock(&self.0);
        if matches!(*prepared, Prepared::InProgress) {
            *prepared = Prepared::Nothing;
        }
    }
}

fn lock<T>(prepared: &Mutex<T>) -> MutexGuard<'_, T> {
    prepared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// With the bytes that are needed, so that an operator knows how much to free.
fn not_created<F: Fs>(error: &io::Error, files: &Segments<F>, length: u64) -> StoreError {
    let place = format_args!("bytes={length} directory={}", files.dir.display());
    StoreError::io(error, "preallocating a log segment").with(place)
}

/// Syncs after each part, so that few unsynced bytes pile up.
fn fill_with_zeros(file: &impl File, length: u64) -> io::Result<()> {
    let zeros = vec![0; PART];
    let mut at = 0;
    while at < length {
        let part = usize::try_from(length - at).unwrap_or(usize::MAX).min(zeros.len());
        file.write_at(&zeros[..part], at)?;
        file.sync()?;
        at += part as u64;
    }
    Ok(())
}
