//! The last batches that this writer has appended, so that documents just written are read without a request.
//!
//! **Invariant.** Only batches that are in the log, and at most the allowed number of bytes. A batch leaves when
//! newer ones need its place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::port::{Batch, Seq};

/// The last batches of a log. Clones share them.
#[derive(Clone)]
pub(super) struct RecentBatches {
    bytes_max: usize,
    batches: Arc<Mutex<Batches>>,
}

#[derive(Default)]
struct Batches {
    bytes: usize,
    queue: VecDeque<Batch>,
}

impl Batches {
    fn find(&self, seq: Seq) -> Option<&Batch> {
        let at = self.queue.binary_search_by_key(&seq, |batch| batch.seq).ok()?;
        self.queue.get(at)
    }
}

impl RecentBatches {
    pub(super) fn new(bytes_max: usize) -> RecentBatches {
        RecentBatches { bytes_max, batches: Arc::default() }
    }

    pub(super) fn push(&self, batch: Batch) {
        if batch.payload.len() > self.bytes_max {
            return;
        }
        let mut batches = self.lock();
        batches.bytes += batch.payload.len();
        batches.queue.push_back(batch);
        while batches.bytes > self.bytes_max {
            let oldest = batches.queue.pop_front().expect("some bytes");
            batches.bytes -= oldest.payload.len();
        }
    }

    pub(super) fn get(&self, seq: Seq) -> Option<Batch> {
        self.lock().find(seq).cloned()
    }

    /// A part of the payload of a batch; fewer bytes only at its end.
    pub(super) fn part(&self, seq: Seq, offset: usize, length: usize) -> Option<Vec<u8>> {
        let batches = self.lock();
        let payload = &batches.find(seq)?.payload;
        let (from, to) = (offset.min(payload.len()), offset.saturating_add(length).min(payload.len()));
        Some(payload[from..to].to_vec())
    }

    fn lock(&self) -> MutexGuard<'_, Batches> {
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::LsnRange;

    #[test]
    fn the_newest_batches_are_kept_up_to_the_limit() {
        let recent = RecentBatches::new(10);
        let batch =
            |seq, length| Batch { seq: Seq(seq), lsns: LsnRange::new(seq, seq), payload: vec![7; length] };
        for seq in 0..5 {
            recent.push(batch(seq, 4));
        }
        recent.push(batch(5, 11));
        let kept: Vec<u64> = (0..6).filter(|seq| recent.get(Seq(*seq)).is_some()).collect();
        assert_eq!(kept, [3, 4], "a batch over the limit does not displace the others");
        assert_eq!(recent.get(Seq(4)), Some(batch(4, 4)));
    }
}
