//! The check of a shard's state: the log is replayed as at a start of the server, and every document that the state refers
//! to is compared with its hash.
//!
//! **Invariant.** No finding is due to a server that uses the store meanwhile: the caller holds a
//! [`BackupHold`](store::disk::BackupHold), so that no document is deleted.

use std::path::Path;
use std::time::Duration;

use ::backup::{BackupError, DocumentDamage, Pace, Quiet, check_documents, recover_shard};
use store::disk::StoreView;
use store::{ErrorKind, StoreError};

use super::report::{Finding, ShardReport};

/// Findings about documents are listed up to this number, in each shard.
const LISTED_MAX: usize = 1000;

/// Counts leases and documents, and returns the findings.
pub(super) fn check_state(
    view: &StoreView,
    store: &Path,
    report: &mut ShardReport,
) -> Result<Vec<Finding>, StoreError> {
    let pace = Pace::start(&Quiet, None, Duration::MAX);
    let shard = report.shard;
    let recovered = match recover_shard(view, shard, &pace) {
        Ok(recovered) => recovered,
        Err(error) => return Ok(vec![Finding::defect(shard, unrecoverable(error)?)]),
    };
    let counts = recovered.kernel.counts();
    (report.leases, report.documents) = (Some(counts.leases as u64), Some(counts.documents as u64));
    let damaged = match check_documents(view, shard, &recovered.kernel, &pace) {
        Ok(damaged) => damaged,
        Err(error) => return Ok(vec![Finding::defect(shard, unrecoverable(error)?)]),
    };
    let listed = damaged.iter().take(LISTED_MAX).map(|damage| finding(shard, store, damage));
    let more = damaged.len().saturating_sub(LISTED_MAX);
    let more = (more > 0).then(|| Finding::defect(shard, format!("{more} more documents cannot be read")));
    Ok(listed.chain(more).collect())
}

/// Any other failure means that the store cannot be inspected, or was changed meanwhile.
fn unrecoverable(error: BackupError) -> Result<String, StoreError> {
    match error {
        BackupError::Damaged(what) | BackupError::Refused(what) => Ok(what),
        BackupError::Store(error) if error.kind == ErrorKind::Damaged => Ok(error.what),
        BackupError::Store(error) => Err(error),
    }
}

fn finding(shard: u32, store: &Path, damage: &DocumentDamage) -> Finding {
    let what = format!("the document of a key cannot be read: {}", damage.what);
    let advice = "the server starts, and leases are not affected, but reading this document fails: write it again with \
                  `lockd client update`, or restore the store from a backup with `lockd restore`";
    let found = Finding::defect(shard, what).advise(advice).of_document(damage);
    match &damage.blob {
        Some(blob) => found.at(&store.join("blob/by-name").join(blob.as_str()), None),
        None => found,
    }
}
