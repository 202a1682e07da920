//! When a snapshot is due.

/// When marks for snapshots are made: when enough bytes or enough batches were logged.
#[derive(Clone, Copy, Debug)]
pub struct MarkInterval {
    /// Bytes between two marks.
    pub bytes: u64,
    /// Batches between two marks: in an object store each is an object, which a recovery has to read.
    pub batches: u64,
    /// Logged by earlier tenures since the last snapshot. Without that a server that always ends before it has logged a
    /// whole interval would never take a snapshot.
    pub since: LoggedSince,
}

/// How much was logged since the last mark.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoggedSince {
    /// Bytes.
    pub bytes: u64,
    /// Batches.
    pub batches: u64,
}

impl MarkInterval {
    /// Counts a batch. Whether a mark is due after it.
    pub(super) fn count(&mut self, bytes: usize) -> bool {
        reached!();
        self.since.bytes = self.since.bytes.saturating_add(bytes as u64);
        self.since.batches = self.since.batches.saturating_add(1);
        let is_due = self.since.bytes >= self.bytes || self.since.batches >= self.batches;
        if is_due {
            self.since = LoggedSince::default();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a mark after bytes alone, an object store with small batches had a hundred thousand of them to replay.
    #[test]
    fn a_mark_is_due_after_enough_bytes_or_enough_batches_of_all_tenures() {
        let since = LoggedSince { bytes: 0, batches: 2 };
        let mut marks = MarkInterval { bytes: 100, batches: 4, since };
        let due: Vec<bool> =
            [10, 10, 10, 10, 10, 10, 99, 1].iter().map(|bytes| marks.count(*bytes)).collect();
        assert_eq!(due, [false, true, false, false, false, true, false, true]);
    }
}
