//! How a log gives back what is below its floor.
//!
//! **Invariant.** A batch is deleted only when an object says that the floor is above it, and never if it begins
//! a tenure. Each step may be the last: a floor without deletions is fine, and what is left over is
//! found by the next opening that raises the floor.
//!
//! **What would break it.** To delete before the floor is certain: a taker that slept would find the number
//! of a deleted batch free and nothing that tells it to stand down. To remove an old floor before a
//! higher one is there: whoever lists in between takes the numbers below it for free ones.

use super::index::Entry;
use super::log::ObjectLog;
use super::names;
use super::port::{Answer, ObjectsError};
use crate::port::{ErrorKind, LogStore, Seq, StoreError};

impl ObjectLog {
    /// Raises the floor, then deletes. If only a deletion fails, the floor is raised nevertheless.
    pub(super) fn truncate(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.check_standing()?;
        let bounds = self.bounds();
        if floor > bounds.next {
            let what = format!("a floor above the log: floor={} next={}", floor.0, bounds.next.0);
            return Err(StoreError::new(ErrorKind::Refused, what));
        }
        if floor > bounds.floor {
            if !planted!(DeleteBeforeFloor) {
                self.make_floor(floor)?;
            }
            let dropped = self.index.lock().raise(floor);
            let ordinary = dropped.iter().filter(|(_, entry)| is_ordinary(entry));
            self.dead.extend(ordinary.map(|(seq, _)| *seq));
        }
        self.delete_dead()?;
        if planted!(DeleteBeforeFloor) && floor > bounds.floor {
            self.make_floor(floor)?;
        }
        self.sweep()?;
        self.delete_dead()?;
        self.delete_old_floors()
    }

    fn make_floor(&self, floor: Seq) -> Result<(), StoreError> {
        let name = names::floor(self.shard.options.shard, floor);
        let bytes = self.shard.encode_floor(floor, self.index.lock().chain_before(floor));
        match self.shard.patience.keep_trying(|| self.shard.objects.put_if_absent(&name, &bytes)) {
            // Whoever made it: a floor says the same in everybody's words.
            Err(error) if error.answer != Answer::Taken => Err(error.while_doing("raising the log's floor")),
            _ => Ok(()),
        }
    }

    /// Looks, once, for what earlier writers left below the floor, or what landed there late.
    fn sweep(&mut self) -> Result<(), StoreError> {
        if self.swept {
            return Ok(());
        }
        for seq in self.shard.batches_below(self.bounds().floor)? {
            match self.shard.head(seq) {
                Ok(Some(entry)) if is_ordinary(&entry) => drop(self.dead.insert(seq)),
                // What cannot be read is nobody's to delete.
                Err(error) if error.kind != ErrorKind::Damaged => return Err(error),
                _ => {}
            }
        }
        self.swept = true;
        Ok(())
    }

    fn delete_dead(&mut self) -> Result<(), StoreError> {
        while let Some(seq) = self.dead.first().copied() {
            self.delete(&names::batch(self.shard.options.shard, seq))?;
            self.dead.remove(&seq);
        }
        Ok(())
    }

    /// The highest counts: those below it are not needed.
    fn delete_old_floors(&self) -> Result<(), StoreError> {
        let floors = self.shard.floors()?;
        let old = floors.split_last().map_or(&[][..], |(_, old)| old);
        old.iter().try_for_each(|floor| self.delete(&names::floor(self.shard.options.shard, *floor)))
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        let deleted = self.shard.patience.keep_trying(|| self.shard.objects.delete(name));
        deleted.map_err(|error: ObjectsError| error.while_doing(format!("deleting {name}")))
    }
}

fn is_ordinary(entry: &Entry) -> bool {
    !entry.begins_tenure || planted!(TenureDeleted)
}
