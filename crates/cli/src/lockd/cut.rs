//! `lockd store cut`: ends a damaged log before its first damaged batch, unless a snapshot contains that batch: then the
//! server would find the log shorter than its snapshot, and refuse to start.

use std::io::Write;
use std::path::Path;

use engine::internals::recovery::snapshots;
use kernel::Shard;
use store::StoreError;
use store::disk::{LockedDir, LogCut, LogOptions, StoreView};
use store::fs::RealFs;

use crate::args::Cut;

const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// Prints what the cut removes, and cuts with `--yes`.
pub(crate) fn cut(args: &Cut) -> Result<(), (u8, String)> {
    let failed = |error: StoreError| (FAILED, error.to_string());
    let view = StoreView::open(&args.store).map_err(failed)?;
    let shard = shard_of(args, view.file().shards)
        .ok_or_else(|| (WRONG_USAGE, format!("not a file of this store: file={}", args.file.display())))?;
    // Locks the store, so that no server uses it during the cut.
    let _lock = LockedDir::lock(&args.store, true).map_err(failed)?;
    let options =
        LogOptions { shard, store_id: view.file().store_id, segment_bytes: LogOptions::SEGMENT_BYTES };
    let dir = args.store.join("log").join(shard.to_string());
    let planned = store::disk::cut(RealFs, &dir, options, &args.file, args.offset).map_err(failed)?;
    if let Some(snapshot) = snapshot_of(&view, shard, &planned).map_err(failed)? {
        let what = "a snapshot contains this batch, and after a cut there the server would not start; restore the store \
                    from a backup";
        return Err((FAILED, format!("{what}: snapshot={snapshot} seq={}", planned.seq.0)));
    }
    // A closed pipe is no failure.
    let _ = writeln!(std::io::stdout(), "{}", describe(&planned, shard));
    if !args.yes {
        return Err((WRONG_USAGE, "nothing was changed; add --yes to cut the log".into()));
    }
    planned.apply().map_err(failed)
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
