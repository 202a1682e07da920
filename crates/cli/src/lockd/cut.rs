//! `lockd store cut`: ends a damaged log before its first damaged batch, unless a snapshot contains that batch: then the
//! server would find the log shorter than its snapshot, and refuse to start.

use std::path::Path;

use cli::exit_codes::{FAILED, USAGE};
use cli::output::print;
use cli::remote::Failure;
use engine::internals::recovery::snapshots;
use kernel::Shard;
use serde::Serialize;
use store::StoreError;
use store::disk::{LockedDir, LogCut, LogOptions, StoreView};
use store::fs::RealFs;

use crate::args::Cut;

/// Prints what the cut removes, and cuts with `--yes`.
pub(crate) fn cut(args: &Cut) -> Result<(), Failure> {
    let failed = |error: StoreError| Failure::new(FAILED, error.to_string());
    let view = StoreView::open(&args.store).map_err(failed)?;
    let shard = shard_of(args, view.file().shards).ok_or_else(|| {
        Failure::new(USAGE, format!("not a file of this store: file={}", args.file.display()))
    })?;
    // Locks the store, so that no server uses it during the cut.
    let _lock = LockedDir::lock(&args.store, true).map_err(failed)?;
    let options =
        LogOptions { shard, store_id: view.file().store_id, segment_bytes: LogOptions::SEGMENT_BYTES };
    let dir = args.store.join("log").join(shard.to_string());
    let planned = store::disk::cut(RealFs, &dir, options, &args.file, args.offset).map_err(failed)?;
    if let Some(snapshot) = snapshot_of(&view, shard, &planned).map_err(failed)? {
        let what = "a snapshot contains this batch, and after a cut there the server would not start; restore the store \
                    from a backup with `lockd restore`";
        return Err(Failure::new(FAILED, format!("{what}: snapshot={snapshot} seq={}", planned.seq.0)));
    }
    print(args.output, &CutReport::new(&planned, shard, args.yes), || describe(&planned, shard) + "\n")?;
    if !args.yes {
        let failure = Failure::new(USAGE, "nothing was changed; add --yes to cut the log");
        // For programs the report says it.
        return Err(Failure { is_shown: args.output.is_parsed(), ..failure });
    }
    planned.apply().map_err(failed)
}

/// What a cut removes. The JSON form is stable: fields are added, never renamed.
#[derive(Serialize)]
struct CutReport {
    /// Without `--yes` nothing is cut.
    is_confirmed: bool,
    shard: u32,
    /// The first batch that is removed.
    seq: u64,
    /// Its LSNs, if they are readable.
    first_lsn: Option<u64>,
    last_lsn: Option<u64>,
    bytes: u64,
    file: String,
    offset: u64,
    /// Where the removed bytes are kept.
    copies: Vec<String>,
}

impl CutReport {
    fn new(cut: &LogCut<RealFs>, shard: u32, is_confirmed: bool) -> CutReport {
        CutReport {
            is_confirmed,
            shard,
            seq: cut.seq.0,
            first_lsn: cut.lsns.map(|lsns| lsns.first.0),
            last_lsn: cut.lsns.map(|lsns| lsns.last.0),
            bytes: cut.bytes,
            file: cut.file.display().to_string(),
            offset: cut.offset,
            copies: cut.copies().iter().map(|copy| copy.display().to_string()).collect(),
        }
    }
}

/// The name of the newest snapshot, if it contains a batch that the cut removes.
fn snapshot_of(view: &StoreView, shard: u32, cut: &LogCut<RealFs>) -> Result<Option<String>, StoreError> {
    let newest = snapshots(&view.blobs(), Shard(shard))?.pop();
    Ok(newest.filter(|(_, next)| *next > cut.seq).map(|(name, _)| name.to_string()))
}

/// The shard in whose log directory the file is.
fn shard_of(args: &Cut, shards: u32) -> Option<u32> {
    let dir = args.file.parent()?;
    let is_its_directory = |shard: &u32| {
        let known = args.store.join("log").join(shard.to_string());
        same_directory(&known, dir)
    };
    (0..shards).find(is_its_directory)
}

fn same_directory(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

fn describe(cut: &LogCut<RealFs>, shard: u32) -> String {
    let lsns = cut.lsns.map_or("unreadable".into(), |lsns| format!("{}-{}", lsns.first, lsns.last));
    let copies: Vec<String> =
        cut.copies().iter().map(|copy| format!("\n  copy: {}", copy.display())).collect();
    format!(
        "removes all batches from seq={} on: shard={shard} lsns={lsns} bytes={} file={} offset={}{}",
        cut.seq.0,
        cut.bytes,
        cut.file.display(),
        cut.offset,
        copies.concat()
    )
}
