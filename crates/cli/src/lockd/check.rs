//! `lockd store check`: looks for damage in a store, and changes nothing.
//!
//! **Invariant.** Everything that a start of the server reads is read here with the same code: the map of slots, the
//! snapshots, every frame from the floor on, and the state that they lead to; and beyond that every document, and the key
//! against the store. A store without findings starts, and all its documents can be read; a finding says whether the server
//! would start, what is lost, and names the cut that `lockd store cut` accepts, if there is one.

mod bucket;
mod report;
mod shard;
mod state;

use std::io::Write;
use std::path::Path;

use cli::failure::Failure;
use cli::output::{Output, rendered};
use cli::progress::ByteProgress;
use store::disk::{BackupHold, StoreView};
use store::{ErrorKind, Key, StoreError};

use self::bucket::inspect_bucket;
use self::report::{Finding, Report};
use self::shard::ShardCheck;
use crate::args::Check;
use crate::local_store::{LocalStore, StoreArg};
use crate::notice;

const SOUND: u8 = 0;
const DAMAGED: u8 = 1;
/// Also the exit code of wrong usage.
const NOT_INSPECTED: u8 = 2;

/// Checks the store, prints the report, and returns the exit code.
pub(crate) fn check(args: &Check) -> Result<u8, (u8, String)> {
    let output = if args.json { Output::Json } else { args.output };
    let report = match &args.store {
        Some(StoreArg::Bucket(url)) => inspect_bucket(url, &args.bucket, output)?,
        disk => {
            let not_inspected = |failure: Failure| (NOT_INSPECTED, failure.message);
            let local = LocalStore::open(disk.as_ref(), &args.bucket, output).map_err(not_inspected)?;
            let key = args.bucket.key().map_err(not_inspected)?;
            inspect(&local.path, key.as_ref(), output.is_parsed())
                .map_err(|error| (NOT_INSPECTED, error.to_string()))?
        }
    };
    let text = match output {
        Output::Json => report.json(),
        Output::Yaml => rendered(output, &report, String::new),
        Output::Text | Output::Table | Output::Wide => report.text(),
    };
    // A closed pipe is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if report.sound { SOUND } else { DAMAGED })
}

fn inspect(store: &Path, key: Option<&Key>, is_json: bool) -> Result<Report, StoreError> {
    let view = match StoreView::open(store) {
        Ok(view) => view,
        Err(error) => return Ok(Report::new(store, Vec::new(), vec![damaged_parameters(error, store)?])),
    };
    let mut findings = Vec::new();
    if let Err(error) = view.check_map() {
        findings.push(damaged_parameters(error, store)?);
    }
    findings.extend(check_key(&view, store, key)?);
    let hold = BackupHold::take(store);
    if let Err(error) = &hold {
        notice(&format!("documents are not checked: {error}"));
    }
    let progress = ByteProgress::new("checking", is_json);
    let mut bytes = 0;
    for shard in 0..view.file().shards {
        bytes += view.extents(shard)?.iter().map(|extent| extent.bytes).sum::<u64>();
    }
    progress.begin(bytes);
    let mut shards = Vec::new();
    for shard in 0..view.file().shards {
        let (report, found) =
            ShardCheck { view: &view, store, shard, progress: &progress, checks_state: hold.is_ok() }
                .run()?;
        shards.push(report);
        findings.extend(found);
    }
    Ok(Report::new(store, shards, findings))
}

/// The finding about the store key, if there is one.
fn check_key(view: &StoreView, store: &Path, key: Option<&Key>) -> Result<Option<Finding>, StoreError> {
    let path = store.join("store.key");
    let read = key.map_or_else(|| std::fs::read(&path), |key| Ok(key.to_vec()));
    let what = match read.map(<[u8; 32]>::try_from) {
        Ok(Ok(key)) => match view.check_key(&key) {
            Ok(()) => return Ok(None),
            Err(error) if error.kind == ErrorKind::Refused => "the store key belongs to another store",
            // The file `store` is damaged, which is a finding of its own.
            Err(error) => return damaged_parameters(error, store).map(|_| None),
        },
        Ok(Err(_)) => "the store key does not have 32 bytes",
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "the store key is missing",
        Err(error) => {
            return Err(StoreError::io(&error, format_args!("reading a file: file={}", path.display())));
        }
    };
    let advice = "the server does not start, and without the key it would refuse every credential: copy it from a backup, \
                  where it is store/store.key";
    Ok(Some(Finding::of_store(what).at(&path, None).advise(advice)))
}

/// A finding about the file `store` or the map of slots, which never change once they are written; any other failure means
/// that the store cannot be inspected.
fn damaged_parameters(error: StoreError, store: &Path) -> Result<Finding, StoreError> {
    let Some(damage) = error.damage.as_deref().filter(|_| error.kind == ErrorKind::Damaged) else {
        return Err(error);
    };
    let name = damage.file.strip_prefix(store).unwrap_or(&damage.file).display();
    let advice = format!(
        "the server does not start; leases and documents are not lost: copy it from any backup of this store, where it is \
         store/{name}, or restore the store from a backup with `lockd restore`"
    );
    Ok(Finding::damage(None, damage).advise(advice))
}
