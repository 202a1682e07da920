//! The check of a store in a bucket: of its objects, and then of a copy, like that of a store on disk.

use ::backup::{BackupError, BucketStore, DownloadOptions};
use bucket::BucketUrl;
use cli::failure::Failure;
use cli::output::Output;
use store::ErrorKind;
use store::object::{ObjectLogCheck, ObjectStoreRoot};

use super::report::{BucketReport, Finding, Report, ShardReport};
use super::{NOT_INSPECTED, inspect};
use crate::backup::failure;
use crate::bucket_flags::BucketFlags;
use crate::local_store::LocalStore;

/// How often a log that a server truncates meanwhile is read again.
const ATTEMPTS: u32 = 5;

/// Checks a store in a bucket.
pub(super) fn inspect_bucket(
    url: &BucketUrl,
    flags: &BucketFlags,
    output: Output,
) -> Result<Report, (u8, String)> {
    let not_inspected = |failure: Failure| (NOT_INSPECTED, failure.message);
    let bucket = flags.store(url).map_err(not_inspected)?;
    let key = flags.key().map_err(not_inspected)?;
    let name = url.to_string();
    let root = match bucket.root(key.as_ref()) {
        Ok(root) => root,
        Err(error) => return Ok(Report::new(name.as_ref(), Vec::new(), vec![finding(error)?])),
    };
    let mut found = BucketReport::default();
    let mut findings = Vec::new();
    let mut is_whole = true;
    for shard in 0..root.file.shards {
        let log = read_log(&bucket, shard, &root).map_err(|error| not_inspected(failure(error)))?;
        found.count(&log);
        is_whole &= log.findings.iter().all(|(object, _)| object.starts_with("index/"));
        findings.extend(log.findings.iter().map(|(object, what)| of_object(shard, url, object, what)));
    }
    if !is_whole {
        return Ok(Report::new(name.as_ref(), Vec::new(), findings).of_bucket(found));
    }
    let (shards, copied) = inspect_copy(url, flags, output)?;
    findings.extend(copied);
    // Damage of the state is among the findings.
    if let Ok(blobs) = bucket.blob_use(&root) {
        found.count_blobs(blobs);
    }
    Ok(Report::new(name.as_ref(), shards, findings).of_bucket(found))
}

/// Checks a copy: what `inspect` finds, or the damage that prevents a copy.
fn inspect_copy(
    url: &BucketUrl,
    flags: &BucketFlags,
    output: Output,
) -> Result<(Vec<ShardReport>, Vec<Finding>), (u8, String)> {
    let options = DownloadOptions { key: None, rate: None, keeps_damage: true };
    let copied = LocalStore::copy(url, flags, output, &std::env::temp_dir(), &options);
    let local = match copied.map_err(|failure| (NOT_INSPECTED, failure.message))? {
        Ok(local) => local,
        Err(error) => return Ok((Vec::new(), vec![finding(error)?])),
    };
    let report = inspect(&local.path, None, output.is_parsed());
    let report = report.map_err(|error| (NOT_INSPECTED, error.to_string()))?;
    Ok(report.relocated(&local.path, &url.to_string()))
}

/// A finding about the store; any other failure means that the store cannot be inspected.
fn finding(error: BackupError) -> Result<Finding, (u8, String)> {
    match error {
        BackupError::Damaged(what) => Ok(Finding::of_store(what)),
        BackupError::Refused(what) => Err((NOT_INSPECTED, what)),
        BackupError::Store(error) => match error.damage.as_deref() {
            Some(damage) if error.kind == ErrorKind::Damaged => Ok(Finding::damage(None, damage)),
            _ => Err((NOT_INSPECTED, error.to_string())),
        },
    }
}

fn read_log(bucket: &BucketStore, shard: u32, root: &ObjectStoreRoot) -> Result<ObjectLogCheck, BackupError> {
    for _ in 1..ATTEMPTS {
        match bucket.check_log(shard, root.file.store_id) {
            Err(BackupError::Store(error)) if error.kind == ErrorKind::Gone => {}
            done => return done,
        }
    }
    bucket.check_log(shard, root.file.store_id)
}

fn of_object(shard: u32, url: &BucketUrl, object: &str, what: &str) -> Finding {
    let found = Finding::defect(shard, what).at(format!("{url}/{object}").as_ref(), None);
    if object.starts_with("index/") {
        found.advise("index objects are derived from the batches: delete this one, and the server reads the batches instead")
    } else {
        found
    }
}
