//! `lockd store copy`: copies a store between disks and buckets, and says what to do next.

use std::path::{Path, PathBuf};

use ::backup::{CopyOptions, CopyReport, KeyLocation, StoreLocation, copy_store};
use cli::failure::{CommandResult, Failure};
use cli::output::{Output, print};
use serde_json::json;
use store::Key;
use store::disk::StoreView;

use crate::backup::{PhaseProgress, failure};
use crate::bucket_flags::{BucketFlags, create_key, read_key};
use crate::local_store::StoreArg;
use crate::notice;

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the copy is complete and verified; 1 it failed, or the store is damaged; 2 wrong usage, or the \
                  target is not empty.\n\n\
                  Examples:\n  \
                  lockd store copy disk:///var/lib/lockd/store s3://locks/prod --store-key-file /etc/lockd/store.key\n  \
                  lockd store copy s3://locks/prod disk:///var/lib/lockd/store --from-key-file /etc/lockd/store.key\n  \
                  lockd store copy s3://locks/prod s3://locks/prod-2"
)]
pub(crate) struct CopyArgs {
    /// Store to copy: `disk:///path`, a path, or the URL of a bucket. No server may have it open.
    #[arg(value_name = "FROM", value_parser = StoreArg::parse)]
    from: StoreArg,
    /// New store: a directory that does not exist or is empty, or a prefix of a bucket without objects.
    #[arg(value_name = "TO", value_parser = StoreArg::parse)]
    to: StoreArg,
    /// File of the key of FROM, if the key is not in the store. `--store-key-file` is that of TO: it is created, unless it
    /// exists with the same key, and TO gets no `store.key`.
    #[arg(long, value_name = "FILE")]
    from_key_file: Option<PathBuf>,
    /// Existing directory for the intermediate copy from one bucket to another, by default that for temporary files.
    #[arg(long = "in", value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    bucket: BucketFlags,
}

/// Copies the store.
pub(crate) fn run(args: &CopyArgs) -> CommandResult {
    let (from, to) = (location(&args.from, &args.bucket)?, location(&args.to, &args.bucket)?);
    let key = match &args.from_key_file {
        Some(path) => Some(read_key(path)?),
        // Both stores have the same key.
        None => args.bucket.existing_key()?,
    };
    if let StoreLocation::Bucket(to) = &to {
        to.check_empty().map_err(failure)?;
    }
    keep_key(&from, key.as_ref(), &args.bucket)?;
    let options = CopyOptions {
        key,
        key_location: args.bucket.key_location(),
        scratch: args.scratch.clone().unwrap_or_else(std::env::temp_dir),
    };
    let progress = PhaseProgress::new(args.output);
    let copied = copy_store(&from, &to, &options, &progress, &mut |what| notice(&what)).map_err(failure)?;
    drop(progress);
    let (from, to) = (shown(&args.from), shown(&args.to));
    print(args.output, &described(&copied, &from, &to), || {
        let key = key_note(args.bucket.key_file(), options.key_location);
        format!(
            "copied and verified: from={from} to={to} {}\n{}",
            summary(&copied),
            next_steps(&to, args.bucket.key_file(), &key)
        )
    })
}

pub(crate) fn location(store: &StoreArg, flags: &BucketFlags) -> Result<StoreLocation, Failure> {
    match store {
        StoreArg::Disk(path) => Ok(StoreLocation::Disk(path.clone())),
        StoreArg::Bucket(url) => flags.store(url).map(StoreLocation::Bucket),
    }
}

/// The key is in its file before the copy needs it. Fails if the file has another key.
fn keep_key(from: &StoreLocation, key: Option<&Key>, flags: &BucketFlags) -> Result<(), Failure> {
    let Some(path) = flags.key_file() else { return Ok(()) };
    let key = match (key, from) {
        (Some(key), StoreLocation::Disk(store)) => checked(store, *key)?,
        (None, StoreLocation::Disk(store)) => checked(store, read_key(&store.join("store.key"))?)?,
        (key, StoreLocation::Bucket(bucket)) => bucket.root(key).map_err(failure)?.key,
    };
    keep_in(path, &key)
}

/// Creates the file of a key, or compares it.
pub(crate) fn keep_in(path: &Path, key: &Key) -> Result<(), Failure> {
    if !path.exists() {
        return create_key(path, key);
    }
    if read_key(path)? == *key {
        return Ok(());
    }
    let what = "the file has another key than the store, and nothing is overwritten; name another file with --store-key-file";
    Err(Failure::new(2, format!("{what}: file={}", path.display())))
}

fn checked(store: &Path, key: Key) -> Result<Key, Failure> {
    let view = StoreView::open(store).map_err(|error| failure(error.into()))?;
    view.check_key(&key).map_err(|error| failure(error.into()))?;
    Ok(key)
}

/// The location as a server takes it.
pub(crate) fn shown(store: &StoreArg) -> String {
    match store {
        StoreArg::Disk(path) => {
            format!("disk://{}", std::path::absolute(path).unwrap_or_else(|_| path.clone()).display())
        }
        StoreArg::Bucket(url) => url.to_string(),
    }
}

pub(crate) fn key_note(file: Option<&PathBuf>, location: KeyLocation) -> String {
    match (file, location) {
        (Some(file), KeyLocation::Outside) => format!(
            "the store key is in {}, and not in the store: keep a copy of it, because without it the store is worthless\n",
            file.display()
        ),
        _ => "the store has its key, store.key: keep it as private as the key\n".to_string(),
    }
}

/// The content of a copy, for people.
pub(crate) fn summary(copied: &CopyReport) -> String {
    format!(
        "leases={} documents={} shards={} batches={} blobs={} bytes={} last_lsn={}",
        copied.leases(),
        copied.documents(),
        copied.shards.len(),
        copied.batches,
        copied.blobs,
        copied.bytes,
        copied.last_lsn()
    )
}

/// The content of a copy, for programs.
fn described(copied: &CopyReport, from: &str, to: &str) -> serde_json::Value {
    json!({
        "from": from,
        "to": to,
        "store_id": format!("{:032x}", copied.store_id),
        "leases": copied.leases(),
        "documents": copied.documents(),
        "shards": copied.shards.len(),
        "batches": copied.batches,
        "blobs": copied.blobs,
        "bytes": copied.bytes,
        "last_lsn": copied.last_lsn(),
    })
}

fn next_steps(to: &str, key_file: Option<&PathBuf>, key_note: &str) -> String {
    let key_flag = key_file.map(|file| format!(" --store-key-file {}", file.display())).unwrap_or_default();
    format!(
        "{key_note}next:\n  \
         1. keep every server of the old store stopped for good: two servers with copies of one store would both grant \
         leases\n  \
         2. start the server: lockd serve --store {to}{key_flag}\n\
         credentials stay valid, and fencing tokens are above all earlier ones\n"
    )
}
