//! The check of one shard: its snapshots, then its log from the floor to the end.
//!
//! **Invariant.** No finding is due to a server that uses the store meanwhile. The floor is read before the snapshots are
//! listed, and the log is read after them: a server that takes snapshots and truncates its log keeps a snapshot above
//! every floor, and no snapshot ends after the log does.
//!
//! **What would break it.** Reporting a file that is gone as damage: a running server deletes snapshots and segments. So
//! the shard is then checked again from its beginning.

use std::path::Path;

use cli::progress::ByteProgress;
use engine::internals::record::decode_batch;
use engine::internals::recovery::{restore, snapshots};
use engine::internals::snapshot::SnapshotError;
use engine::observe::{DamagedSnapshot, SnapshotDamage};
use kernel::Shard;
use store::disk::{LogItem, LogView, StoreView};
use store::frame::frame_len;
use store::{Batch, BlobStore, ErrorKind, Seq, StoreError};

use super::report::{Finding, ShardReport, SnapshotReport};
use super::state::check_state;

/// How often a shard is checked again because a running server has changed it.
const ATTEMPTS: u32 = 5;

/// The check of one shard.
pub(super) struct ShardCheck<'a> {
    pub(super) view: &'a StoreView,
    pub(super) store: &'a Path,
    pub(super) shard: u32,
    pub(super) progress: &'a ByteProgress,
    /// Nothing is deleted meanwhile, so that documents can be checked.
    pub(super) checks_state: bool,
}

impl ShardCheck<'_> {
    /// The report, and the findings. An error means that the shard could not be inspected.
    pub(super) fn run(&self) -> Result<(ShardReport, Vec<Finding>), StoreError> {
        for _ in 1..ATTEMPTS {
            match self.attempt() {
                Err(error) if error.kind == ErrorKind::Gone => {}
                done => return done,
            }
        }
        self.attempt()
    }

    fn attempt(&self) -> Result<(ShardReport, Vec<Finding>), StoreError> {
        let mut report = ShardReport { shard: self.shard, ..ShardReport::default() };
        let mut findings = Vec::new();
        let extents = self.view.extents(self.shard)?;
        report.segments = Some(extents.len());
        report.bytes = extents.iter().map(|extent| extent.bytes).sum();
        let mut log = match self.view.log(self.shard) {
            Ok(log) => log,
            Err(error) => {
                findings.push(self.damage_of_log(error, None)?);
                return Ok((report, findings));
            }
        };
        report.floor = log.floor().0;
        let damaged = self.check_snapshots(&mut report)?;
        let newest = report.snapshots.last().map(|snapshot| Seq(snapshot.next_batch));
        let end = self.read_log(&mut log, &mut report, newest)?;
        let is_intact = !end.iter().any(Finding::is_damage);
        findings.extend(end);
        findings.extend(self.base_of(&report, damaged, is_intact));
        let is_replayable = !findings.iter().any(|finding| finding.is_damage() && !finding.is_survivable());
        if is_replayable && self.checks_state {
            findings.extend(check_state(self.view, self.store, &mut report)?);
        }
        Ok((report, findings))
    }

    /// Reads every snapshot as recovery does, and returns the damaged ones, newest first.
    fn check_snapshots(&self, report: &mut ShardReport) -> Result<Vec<DamagedSnapshot>, StoreError> {
        let blobs = self.view.blobs();
        let mut damaged = Vec::new();
        for (name, next) in snapshots(&blobs, Shard(self.shard))? {
            let restored = restore(&blobs, &name, next)?;
            report.snapshots.push(SnapshotReport {
                name: name.to_string(),
                next_batch: next.0,
                bytes: blobs.len(&name)?,
                readable: restored.is_ok(),
            });
            damaged.extend(restored.err());
        }
        damaged.reverse();
        Ok(damaged)
    }

    /// Reads the log to its end or its first damage, and returns the finding there.
    fn read_log(
        &self,
        log: &mut LogView,
        report: &mut ShardReport,
        newest: Option<Seq>,
    ) -> Result<Option<Finding>, StoreError> {
        let mut counted = 0;
        let found = loop {
            match log.read_next() {
                Ok(LogItem::Batch(batch)) => {
                    let bytes = frame_len(batch.payload.len()) as u64;
                    counted += bytes;
                    self.progress.advance(bytes);
                    report.first_batch = report.first_batch.or(Some(batch.seq.0));
                    (report.last_batch, report.last_lsn) = (Some(batch.seq.0), Some(batch.lsns.last.0));
                    if let Some(finding) = self.undecodable(&batch) {
                        break Some(finding);
                    }
                }
                Ok(LogItem::Torn(torn)) => break Some(Finding::torn_tail(self.shard, &torn)),
                Ok(LogItem::End) => break None,
                Err(error) => break Some(self.damage_of_log(error, newest)?),
            }
        };
        // The rest is preallocated, or was not read.
        self.progress.advance(report.bytes.saturating_sub(counted));
        let last = report.last_batch.map(Seq);
        report.clean_stop = found.is_none() && last.is_some() && log.clean_stop() == last;
        Ok(found)
    }

    fn undecodable(&self, batch: &Batch) -> Option<Finding> {
        let error = decode_batch(&batch.payload, Shard(self.shard)).err()?;
        let what = format!("a batch cannot be decoded: {error}");
        let advice = "the server does not start; start the lockd version that wrote it, or restore the store from a backup \
                      with `lockd restore`";
        Some(Finding::defect(self.shard, what).in_batch(batch.seq.0).advise(advice))
    }

    /// Damage of the log, with the cut that ends it there. `newest` is the end of the newest snapshot.
    fn damage_of_log(&self, error: StoreError, newest: Option<Seq>) -> Result<Finding, StoreError> {
        let Some(damage) = error.damage.as_deref() else { return Err(error) };
        let finding = Finding::damage(Some(self.shard), damage);
        Ok(match self.view.cut_place(self.shard) {
            Ok(place) if newest.is_some_and(|newest| place.seq < newest) => finding.advise(
                "restore the store from a backup with `lockd restore`; the server starts, because a snapshot contains this batch, but \
                 documents in it are lost; after a cut there it would not start",
            ),
            Ok(place) => finding.cut_at(self.store, &place),
            Err(refused) if refused.kind == ErrorKind::Refused => finding,
            Err(damaged) if damaged.kind == ErrorKind::Damaged => finding,
            Err(error) => return Err(error),
        })
    }

    /// Findings about snapshots: the damaged ones, and whether one of the others leads to the end of the log.
    fn base_of(&self, report: &ShardReport, damaged: Vec<DamagedSnapshot>, is_intact: bool) -> Vec<Finding> {
        let continued = |snapshot: &&SnapshotReport| snapshot.readable && snapshot.next_batch >= report.floor;
        let starts = report.floor == 0 || report.snapshots.iter().any(|snapshot| continued(&snapshot));
        let mut findings: Vec<Finding> =
            damaged.into_iter().map(|snapshot| self.damaged_snapshot(snapshot, starts)).collect();
        if !starts && findings.is_empty() {
            let what = "no snapshot reaches the floor of the log";
            findings.push(Finding::defect(self.shard, what).in_batch(report.floor));
        }
        let next = report.last_batch.map_or(report.floor, |last| last + 1);
        let later = report.snapshots.last().filter(|snapshot| is_intact && snapshot.next_batch > next);
        findings.extend(later.map(|snapshot| {
            let what = "the log ends before the newest snapshot does";
            Finding::defect(self.shard, what).at(&self.file_of(&snapshot.name), None).in_batch(next)
        }));
        findings
    }

    fn damaged_snapshot(&self, snapshot: DamagedSnapshot, starts: bool) -> Finding {
        let DamagedSnapshot { name, damage } = snapshot;
        let advice = if starts {
            "the server starts without this snapshot, and its next checkpoint replaces it"
        } else {
            "no snapshot can be read, and the server does not start; restore the store from a backup with `lockd restore`"
        };
        let (offset, what) = match damage {
            SnapshotDamage::Format(SnapshotError::Damaged { offset, what }) => (Some(offset), what),
            other => (None, other.to_string()),
        };
        let what = format!("a snapshot cannot be read: {what}");
        let found = Finding::defect(self.shard, what).at(&self.file_of(name.as_str()), offset).advise(advice);
        if starts { found.survivable() } else { found }
    }

    fn file_of(&self, blob: &str) -> std::path::PathBuf {
        self.store.join("blob/by-name").join(blob)
    }
}
