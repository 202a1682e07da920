//! Compares the objects of a log with each other: the batches with their numbers, and the index objects with the batches.
//!
//! **Invariant.** Nothing is written. A server may use the log meanwhile: what it deletes is never reported.
//!
//! Why it is needed: an index object takes the place of its batches when a log is opened. So a batch that is missing, or
//! differs from its index object, is found only when it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::index::Entry;
use super::names;
use super::port::{Objects, RetryPolicy};
use super::shard_objects::{ObjectOptions, ShardObjects};
use crate::port::{ErrorKind, Seq, StoreError};

/// Batches whose heads are read at once.
const HEADS_MAX: usize = 1024;
/// Findings are listed up to this number.
const LISTED_MAX: usize = 100;

/// The objects of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectLogCheck {
    /// The floor.
    pub floor: Seq,
    /// The number of batches at or above the floor, and their size in bytes.
    pub batches: u64,
    /// The size of these batches in bytes.
    pub bytes: u64,
    /// The number of index objects.
    pub index_objects: u64,
    /// Objects that are missing, damaged, or disagree with another: the name, and a description.
    pub findings: Vec<(String, &'static str)>,
}

/// Checks the log of one shard. [`ErrorKind::Gone`] if the log was truncated meanwhile: check again.
pub fn check_log(
    objects: Arc<dyn Objects>,
    options: ObjectOptions,
    policy: RetryPolicy,
) -> Result<ObjectLogCheck, StoreError> {
    let shard = ShardObjects { objects, options, policy };
    let floor = shard.highest_floor()?;
    let mut check = LogCheck { shard: &shard, entries: BTreeMap::new(), report: ObjectLogCheck::default() };
    check.report.floor = floor;
    check.batches(floor)?;
    check.index_objects(floor)?;
    if shard.highest_floor()? != floor {
        let what = "the log was truncated while it was read; run the command again";
        return Err(StoreError::new(ErrorKind::Gone, what));
    }
    Ok(check.report)
}

struct LogCheck<'a> {
    shard: &'a ShardObjects,
    /// The batches that can be read.
    entries: BTreeMap<Seq, Entry>,
    report: ObjectLogCheck,
}

impl LogCheck<'_> {
    fn find(&mut self, name: String, what: &'static str) {
        if self.report.findings.len() < LISTED_MAX {
            self.report.findings.push((name, what));
        }
    }

    fn batches(&mut self, floor: Seq) -> Result<(), StoreError> {
        let shard = self.shard.options.shard;
        let seqs = self.shard.batches_from(floor)?;
        let mut next = floor;
        for seqs in seqs.chunks(HEADS_MAX) {
            for (seq, head) in seqs.iter().zip(self.shard.heads(seqs)) {
                if *seq > next {
                    let what = "the batch is missing, and later ones exist";
                    (next.0..seq.0)
                        .take(LISTED_MAX)
                        .for_each(|seq| self.find(names::batch(shard, Seq(seq)), what));
                }
                next = seq.next();
                match head {
                    Ok(Some(entry)) => {
                        self.report.batches += 1;
                        self.report.bytes += entry.bytes;
                        self.entries.insert(*seq, entry);
                    }
                    Ok(None) => self.find(names::batch(shard, *seq), "the batch was listed and is missing"),
                    Err(error) => {
                        let Some(damage) = error.damage else { return Err(error) };
                        self.find(names::batch(shard, *seq), damage.what);
                    }
                }
            }
        }
        self.chain();
        Ok(())
    }

    fn chain(&mut self) {
        let shard = self.shard.options.shard;
        let pairs = self.entries.iter().zip(self.entries.iter().skip(1));
        let is_broken = |((one, before), (other, after)): &((&Seq, &Entry), (&Seq, &Entry))| {
            one.next() == **other && before.crc != after.chain
        };
        let broken: Vec<Seq> = pairs.filter(is_broken).map(|(_, (seq, _))| *seq).collect();
        for seq in broken {
            self.find(names::batch(shard, seq), "the batch does not follow its predecessor");
        }
    }

    fn index_objects(&mut self, floor: Seq) -> Result<(), StoreError> {
        let shard = self.shard.options.shard;
        let firsts = self.shard.index_pages()?;
        self.report.index_objects = firsts.len() as u64;
        for (first, page) in firsts.iter().zip(self.shard.read_pages(&firsts)?) {
            let name = names::index_page(shard, *first);
            let Some(page) = page else {
                self.find(name, "the index object cannot be read");
                continue;
            };
            let numbered = (first.0..).map(Seq).zip(page.entries);
            let mut above = numbered.filter(|(seq, _)| *seq >= floor);
            let what = above.find_map(|(seq, entry)| match self.entries.get(&seq) {
                Some(found) if *found == entry => None,
                Some(_) => Some("the index object disagrees with a batch"),
                None => Some("the index object describes a batch that is missing or cannot be read"),
            });
            if let Some(what) = what {
                self.find(name, what);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{MemoryObjects, ObjectImport, WriterId};
    use crate::port::{Batch, LsnRange};

    fn log() -> MemoryObjects {
        let objects = MemoryObjects::default();
        let options = ObjectOptions { index_batches: 4, ..ObjectOptions::new(0, 7, WriterId(1)) };
        let policy = RetryPolicy::without_pause(1);
        let shared: Arc<dyn Objects> = Arc::new(objects.clone());
        let mut import = ObjectImport::begin(shared, options, policy, Seq(2), 9).expect("no objects");
        for seq in 2..11 {
            let batch = Batch { seq: Seq(seq), lsns: LsnRange::new(seq, seq), payload: vec![1; 20] };
            import.append(&batch).expect("the next one");
        }
        import.finish().expect("space");
        objects
    }

    fn check(objects: &MemoryObjects) -> ObjectLogCheck {
        let options = ObjectOptions::new(0, 7, WriterId(2));
        check_log(Arc::new(objects.clone()), options, RetryPolicy::without_pause(1)).expect("readable")
    }

    #[test]
    fn a_sound_log_has_no_findings() {
        let found = check(&log());
        assert_eq!((found.floor, found.batches, found.index_objects, found.findings), (Seq(2), 9, 2, vec![]));
    }

    #[test]
    fn missing_batches_and_index_objects_that_disagree_are_found() {
        let objects = log();
        objects.delete("log/0/0000000000000005").expect("deleted");
        let findings = check(&objects).findings;
        assert_eq!(
            findings[0],
            ("log/0/0000000000000005".into(), "the batch is missing, and later ones exist")
        );
        assert!(
            findings[1].0 == "index/0/0000000000000004" && findings[1].1.contains("missing"),
            "{findings:?}"
        );
        let objects = log();
        let other = objects.get("index/0/0000000000000002").expect("there");
        objects.put("index/0/0000000000000004", &other).expect("replaced");
        assert_eq!(
            check(&objects).findings,
            [("index/0/0000000000000004".into(), "the index object cannot be read")]
        );
        let objects = log();
        let mut damaged = objects.get("log/0/0000000000000009").expect("there");
        damaged[60] ^= 1;
        objects.put("log/0/0000000000000009", &damaged).expect("replaced");
        assert_eq!(check(&objects).findings[0].0, "log/0/0000000000000009");
    }
}
