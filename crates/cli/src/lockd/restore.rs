//! `lockd restore`: makes a store of a backup, and says what to do next.

use std::path::{Path, PathBuf};

use ::backup::{RestoreOptions, Restored, restore, upload};
use bucket::BucketUrl;
use cli::failure::{CommandResult, Failure};
use cli::output::{Output, print};
use cli::times::{now_unix_ms, unix_ms_text};
use serde_json::json;

use crate::args::named_or_default_store;
use crate::backup::{PhaseProgress, described, failure, summary};
use crate::bucket_flags::{BucketFlags, read_key};
use crate::copy::keep_in;
use crate::local_store::{PrivateDir, StoreArg};

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the store is restored and verified; 1 it failed, or the backup is damaged, and nothing was \
                  written; 2 wrong usage, or the target is not empty.\n\n\
                  Examples:\n  \
                  lockd restore --from /backup/lockd-2026-11-18 --store /var/lib/lockd/store\n  \
                  lockd restore --from /backup/lockd.tar --store disk:///var/lib/lockd/store\n  \
                  lockd restore --from /backup/lockd.tar --store s3://locks/prod-2 --store-key-file /etc/lockd/store.key"
)]
pub(crate) struct RestoreArgs {
    /// Backup: a directory or a .tar file that `lockd backup` has written.
    #[arg(long, value_name = "PATH")]
    from: PathBuf,
    /// Store to create: `disk:///path` or a path, by default the one in the default data directory, which must not exist, or
    /// be empty; or a prefix of a bucket without objects: a bucket is restored into a new prefix.
    #[arg(long, value_name = "STORE", value_parser = StoreArg::parse)]
    store: Option<StoreArg>,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    bucket: BucketFlags,
}

/// Restores the backup.
pub(crate) fn run(args: &RestoreArgs) -> CommandResult {
    let store = match &args.store {
        Some(StoreArg::Bucket(url)) => return to_bucket(args, url),
        Some(StoreArg::Disk(path)) => path.clone(),
        None => named_or_default_store(None).map_err(|what| Failure::new(2, what))?,
    };
    let store = std::path::absolute(&store).unwrap_or(store);
    let progress = PhaseProgress::new(args.output);
    let options = RestoreOptions { now_unix_ms: now_unix_ms() };
    let restored = restore(&args.from, &store, &options, &progress).map_err(failure)?;
    drop(progress);
    if let Some(path) = args.bucket.key_file() {
        move_key(&store.join("store.key"), path)?;
    }
    let mut document = described(&restored.manifest, "store", &store);
    document["owner_uid"] = json!(restored.owner);
    let url = format!("disk://{}", store.display());
    print(args.output, &document, || text(&restored, &url, &store, args.bucket.key_file()))
}

/// Moves the key of a restored store to its file, or compares it with that.
fn move_key(from: &Path, to: &Path) -> CommandResult {
    keep_in(to, &read_key(from)?)?;
    std::fs::remove_file(from)
        .map_err(|error| Failure::new(1, format!("removing a file: {error}: file={}", from.display())))
}

/// Restores to a temporary directory, and copies that to an empty prefix of a bucket.
fn to_bucket(args: &RestoreArgs, url: &BucketUrl) -> CommandResult {
    let bucket = args.bucket.store(url)?;
    bucket.check_empty().map_err(failure)?;
    let dir = PrivateDir::create(&std::env::temp_dir())?;
    let staged = dir.0.join("store");
    let progress = PhaseProgress::new(args.output);
    let options = RestoreOptions { now_unix_ms: now_unix_ms() };
    let restored = restore(&args.from, &staged, &options, &progress).map_err(failure)?;
    let key = read_key(&staged.join("store.key"))?;
    if let Some(path) = args.bucket.key_file() {
        keep_in(path, &key)?;
    }
    let copied = upload(&staged, Some(&key), &bucket, args.bucket.key_location(), &progress);
    let copied = copied.map_err(failure)?;
    drop(progress);
    if copied.shards != restored.manifest.shards {
        let what =
            "the bucket leads to another state than the backup; do not use it, and report this: store=";
        return Err(Failure::new(1, format!("{what}{url}")));
    }
    let url = url.to_string();
    let document = described(&restored.manifest, "store", Path::new(&url));
    print(args.output, &document, || text(&restored, &url, Path::new(&url), args.bucket.key_file()))
}

fn text(restored: &Restored, url: &str, store: &Path, key_file: Option<&PathBuf>) -> String {
    let key = key_file.map(|file| format!(" --store-key-file {}", file.display())).unwrap_or_default();
    let Restored { manifest, owner } = restored;
    let owner = owner.map(|uid| format!(" owner_uid={uid}")).unwrap_or_default();
    let taken_at = unix_ms_text(manifest.created_at_unix_ms);
    format!(
        "restored and verified: store={} {}{owner}\n\
         next:\n  \
         1. keep the old server stopped for good: two servers with this store would both grant leases\n  \
         2. wait until max-ttl has passed since the old server stopped: it may have granted leases after {taken_at}, which \
         this store does not know\n  \
         3. start the server: lockd serve --store {url}{key}\n\
         its fencing tokens are above all earlier ones, provided that the clock of this machine is not behind the old \
         server's\n",
        store.display(),
        summary(manifest),
    )
}
