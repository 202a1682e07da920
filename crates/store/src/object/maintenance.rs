//! What a log leaves to a background thread: index objects, and the deletion of what is below the floor.
//!
//! **Invariant.** A batch is deleted only after a floor object above it exists, and never if it begins a tenure. A crash
//! after any step is safe: a floor without deletions is valid, and the next tenure that raises the floor finds the
//! leftovers. Nothing here is in the path of an append but the creation of the floor object.
//!
//! **What would break it.** Deleting a batch before the floor exists: a writer that has been asleep would find the number
//! free, and nothing that tells it to step down. Deleting an old floor before a higher one exists: a writer that lists
//! the floors in between takes the numbers below it for free.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::index::{Entry, SharedIndex};
use super::index_page::IndexPage;
use super::names;
use super::port::{ObjectsError, ObjectsErrorKind};
use super::shard_objects::ShardObjects;
use crate::port::{ErrorKind, Seq, StoreError};

/// Maximum number of names in one request to delete objects, and of heads that are read at once.
const NAMES_MAX: usize = 1000;

/// The background work of one log. Clones share it.
#[derive(Clone)]
pub(super) struct Maintenance {
    shard: ShardObjects,
    index: SharedIndex,
    state: Arc<Mutex<MaintenanceState>>,
}

#[derive(Default)]
struct MaintenanceState {
    /// Batches below the floor, not deleted yet.
    to_delete: BTreeSet<Seq>,
    /// Batches that earlier writers left below the floor were added to `to_delete`.
    leftovers_found: bool,
    /// Every batch below is described by an index object, or is below the floor.
    indexed: Seq,
    /// Floors and index objects below this floor were deleted.
    cleaned: Seq,
    /// A thread does the work.
    is_running: bool,
}

impl Maintenance {
    /// For a log whose batches below `indexed` have index objects.
    pub(super) fn new(shard: ShardObjects, index: SharedIndex, indexed: Seq) -> Maintenance {
        // Leftovers are looked for when this tenure raises the floor for the first time.
        let cleaned = index.lock().bounds().floor;
        let state = MaintenanceState { indexed, cleaned, ..MaintenanceState::default() };
        Maintenance { shard, index, state: Arc::new(Mutex::new(state)) }
    }

    /// Whether there is work, which the caller must then do with [`Maintenance::run`]. False while a thread does it.
    pub(super) fn begin(&self) -> bool {
        let bounds = self.index.lock().bounds();
        let mut state = self.lock();
        let has_page = self.page_end(state.indexed.max(bounds.floor)) <= bounds.next;
        let has_work = has_page || !state.to_delete.is_empty() || state.cleaned < bounds.floor;
        has_work && !std::mem::replace(&mut state.is_running, true)
    }

    /// Does the work. After a failure the rest is left to the next call.
    pub(super) fn run(&self) -> Result<(), StoreError> {
        let done = self.create_pages().and_then(|()| self.clean());
        self.lock().is_running = false;
        done
    }

    /// Creates the floor object. Batches below it may then be deleted.
    pub(super) fn create_floor(&self, floor: Seq) -> Result<(), StoreError> {
        let name = names::floor(self.shard.options.shard, floor);
        let bytes = self.shard.encode_floor(floor, self.index.lock().chain_before(floor));
        match self.shard.policy.retry(|| self.shard.objects.put_if_absent(&name, &bytes)) {
            // It does not matter which writer created it: a floor has the same contents for all.
            Err(error) if error.kind != ObjectsErrorKind::Taken => {
                Err(error.into_store_error("raising the log floor", &name))
            }
            _ => Ok(()),
        }
    }

    /// Notes batches that are below the floor now.
    pub(super) fn dropped(&self, dropped: &[(Seq, Entry)]) {
        let deletable = dropped.iter().filter(|(_, entry)| is_deletable(entry));
        self.lock().to_delete.extend(deletable.map(|(seq, _)| *seq));
    }

    /// The end of the index object that begins at `first`.
    fn page_end(&self, first: Seq) -> Seq {
        let batches = self.shard.options.index_batches;
        Seq((first.0 / batches + 1) * batches)
    }

    fn create_pages(&self) -> Result<(), StoreError> {
        loop {
            let bounds = self.index.lock().bounds();
            let first = self.lock().indexed.max(bounds.floor);
            let end = self.page_end(first);
            // The floor may be raised meanwhile.
            let Some((chain, entries)) = self.index.lock().range(first, end) else { return Ok(()) };
            let options = self.shard.options;
            let page = IndexPage { shard: options.shard, store_id: options.store_id, first, chain, entries };
            let (name, bytes) = (names::index_page(options.shard, first), page.encode());
            match self.shard.policy.retry(|| self.shard.objects.put_if_absent(&name, &bytes)) {
                Err(error) if error.kind != ObjectsErrorKind::Taken => {
                    return Err(error.into_store_error("creating an index object", &name));
                }
                _ => self.lock().indexed = end,
            }
        }
    }

    /// Deletes what is below the floor.
    fn clean(&self) -> Result<(), StoreError> {
        self.delete_batches()?;
        let floor = self.index.lock().bounds().floor;
        if self.lock().cleaned >= floor {
            return Ok(());
        }
        self.find_leftovers(floor)?;
        self.delete_batches()?;
        self.delete_old_floors()?;
        self.delete_old_pages(floor)?;
        self.lock().cleaned = floor;
        Ok(())
    }

    /// Finds, once, batches that earlier writers left below the floor, and puts that arrived there late.
    fn find_leftovers(&self, floor: Seq) -> Result<(), StoreError> {
        if self.lock().leftovers_found {
            return Ok(());
        }
        for seqs in self.shard.batches_below(floor)?.chunks(NAMES_MAX) {
            for (seq, head) in seqs.iter().zip(self.shard.heads(seqs)) {
                match head {
                    Ok(Some(entry)) if is_deletable(&entry) => drop(self.lock().to_delete.insert(*seq)),
                    // An unreadable batch may begin a tenure: keep it.
                    Err(error) if error.kind != ErrorKind::Damaged => return Err(error),
                    _ => {}
                }
            }
        }
        self.lock().leftovers_found = true;
        Ok(())
    }

    pub(super) fn delete_batches(&self) -> Result<(), StoreError> {
        loop {
            let seqs: Vec<Seq> = self.lock().to_delete.iter().take(NAMES_MAX).copied().collect();
            if seqs.is_empty() {
                return Ok(());
            }
            let names: Vec<String> =
                seqs.iter().map(|seq| names::batch(self.shard.options.shard, *seq)).collect();
            self.delete(&names)?;
            let mut state = self.lock();
            for seq in seqs {
                state.to_delete.remove(&seq);
            }
        }
    }

    /// Only the highest floor is needed.
    fn delete_old_floors(&self) -> Result<(), StoreError> {
        let floors = self.shard.floors()?;
        let old = floors.split_last().map_or(&[][..], |(_, old)| old);
        let names: Vec<String> =
            old.iter().map(|floor| names::floor(self.shard.options.shard, *floor)).collect();
        self.delete(&names)
    }

    /// An index object is needed while one of its batches is above the floor. It ends where the next begins.
    fn delete_old_pages(&self, floor: Seq) -> Result<(), StoreError> {
        let pages = self.shard.index_pages()?;
        let old = pages.iter().zip(pages.iter().skip(1)).filter(|(_, next)| **next <= floor);
        let names: Vec<String> =
            old.map(|(first, _)| names::index_page(self.shard.options.shard, *first)).collect();
        self.delete(&names)
    }

    fn delete(&self, names: &[String]) -> Result<(), StoreError> {
        for names in names.chunks(NAMES_MAX) {
            let deleted = self.shard.policy.retry(|| self.shard.objects.delete_all(names));
            deleted.map_err(|error: ObjectsError| error.into_store_error("deleting objects", &names[0]))?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, MaintenanceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_deletable(entry: &Entry) -> bool {
    !entry.begins_tenure || planted!(TenureDeleted)
}
