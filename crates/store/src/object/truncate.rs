//! Truncation: deletes the batches below the floor.
//!
//! **Invariant.** A batch is deleted only after a floor object above it exists, and never if it begins a
//! tenure. A crash after any step is safe: a floor without deletions is valid, and the next opening that
//! raises the floor finds the leftovers.
//!
//! **What would break it.** Deleting a batch before the floor exists: a writer that has been asleep would
//! find the number free, and nothing that tells it to step down. Deleting an old floor before a higher one
//! exists: a writer that lists the floors in between takes the numbers below it for free.

use super::index::Entry;
use super::log::ObjectLog;
use super::names;
use super::port::{ObjectsError, ObjectsErrorKind};
use crate::port::{ErrorKind, LogStore, Seq, StoreError};

impl ObjectLog {
    /// Raises the floor, then deletes batches. If only a deletion fails, the floor is still raised.
    pub(super) fn truncate(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.check_not_deposed()?;
        let bounds = self.bounds();
        if floor > bounds.next {
            let what =
                format!("the floor is above the end of the log: floor={} next={}", floor.0, bounds.next.0);
            return Err(StoreError::new(ErrorKind::Refused, what));
        }
        if floor > bounds.floor {
            if !planted!(DeleteBeforeFloor) {
                self.create_floor(floor)?;
            }
            let dropped = self.index.lock().raise(floor);
            let deletable = dropped.iter().filter(|(_, entry)| is_deletable(entry));
            self.to_delete.extend(deletable.map(|(seq, _)| *seq));
        }
        self.delete_batches()?;
        if planted!(DeleteBeforeFloor) && floor > bounds.floor {
            self.create_floor(floor)?;
        }
        self.find_leftovers()?;
        self.delete_batches()?;
        self.delete_old_floors()
    }

    fn create_floor(&self, floor: Seq) -> Result<(), StoreError> {
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

    /// Finds, once, batches that earlier writers left below the floor, and puts that arrived there late.
    fn find_leftovers(&mut self) -> Result<(), StoreError> {
        if self.leftovers_found {
            return Ok(());
        }
        for seq in self.shard.batches_below(self.bounds().floor)? {
            match self.shard.head(seq) {
                Ok(Some(entry)) if is_deletable(&entry) => drop(self.to_delete.insert(seq)),
                // An unreadable batch may begin a tenure: keep it.
                Err(error) if error.kind != ErrorKind::Damaged => return Err(error),
                _ => {}
            }
        }
        self.leftovers_found = true;
        Ok(())
    }

    fn delete_batches(&mut self) -> Result<(), StoreError> {
        while let Some(seq) = self.to_delete.first().copied() {
            self.delete(&names::batch(self.shard.options.shard, seq))?;
            self.to_delete.remove(&seq);
        }
        Ok(())
    }

    /// Only the highest floor is needed.
    fn delete_old_floors(&self) -> Result<(), StoreError> {
        let floors = self.shard.floors()?;
        let old = floors.split_last().map_or(&[][..], |(_, old)| old);
        old.iter().try_for_each(|floor| self.delete(&names::floor(self.shard.options.shard, *floor)))
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        let deleted = self.shard.policy.retry(|| self.shard.objects.delete(name));
        deleted.map_err(|error: ObjectsError| error.into_store_error("deleting an object", name))
    }
}

fn is_deletable(entry: &Entry) -> bool {
    !entry.begins_tenure || planted!(TenureDeleted)
}
