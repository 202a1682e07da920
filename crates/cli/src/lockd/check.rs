//! `lockd store check`: looks for damage in a store, and changes nothing.
//!
//! **Invariant.** Everything that a start of the server reads is read here with the same code: the map of slots, the
//! snapshots, every frame from the floor on. A store without findings starts; a finding says whether the server would
//! start, and names the cut that `lockd store cut` accepts, if there is one.

mod report;
mod shard;

use std::io::Write;
use std::path::{Path, PathBuf};

use cli::progress::ByteProgress;
use store::disk::StoreView;
use store::{ErrorKind, StoreError};
use system::xdg;

use self::report::{Finding, Report};
use self::shard::ShardCheck;
use crate::args::Check;

const SOUND: u8 = 0;
const DAMAGED: u8 = 1;
/// Also the exit code of wrong usage.
const NOT_INSPECTED: u8 = 2;

/// Checks the store, prints the report, and returns the exit code.
pub(crate) fn check(args: &Check) -> Result<u8, (u8, String)> {
    let store = match &args.store {
        Some(path) => path.clone(),
        None => default_store().ok_or((NOT_INSPECTED, "no home directory; pass --store".to_string()))?,
    };
    let report = inspect(&store, args.json).map_err(|error| (NOT_INSPECTED, error.to_string()))?;
    let text = if args.json { report.json() } else { report.text() };
    // A closed pipe is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if report.sound { SOUND } else { DAMAGED })
}

/// The store of a server that was started without settings.
fn default_store() -> Option<PathBuf> {
    xdg::data_home().map(|home| home.join("lockd").join("store"))
}

fn inspect(store: &Path, is_json: bool) -> Result<Report, StoreError> {
    let view = match StoreView::open(store) {
        Ok(view) => view,
        Err(error) => return Ok(Report::new(store, Vec::new(), vec![damage_of(error)?])),
    };
    let mut findings = Vec::new();
    if let Err(error) = view.check_map() {
        findings.push(damage_of(error)?);
    }
    let progress = ByteProgress::new("checking", is_json);
    let mut bytes = 0;
    for shard in 0..view.file().shards {
        bytes += view.extents(shard)?.iter().map(|extent| extent.bytes).sum::<u64>();
    }
    progress.begin(bytes);
    let mut shards = Vec::new();
    for shard in 0..view.file().shards {
        let (report, found) = ShardCheck { view: &view, store, shard, progress: &progress }.run()?;
        shards.push(report);
        findings.extend(found);
    }
    Ok(Report::new(store, shards, findings))
}

/// A finding about a file of the whole store; any other failure means that the store cannot be inspected.
fn damage_of(error: StoreError) -> Result<Finding, StoreError> {
    match &error.damage {
        Some(damage) if error.kind == ErrorKind::Damaged => Ok(Finding::damage(None, damage)),
        _ => Err(error),
    }
}
