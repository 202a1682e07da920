//! `lockd restore`: makes a store of a backup, and says what to do next.

use std::path::{Path, PathBuf};

use ::backup::{RestoreOptions, Restored, restore};
use cli::failure::{CommandResult, Failure};
use cli::output::{Output, print};
use cli::times::{now_unix_ms, unix_ms_text};
use serde_json::json;

use crate::args::{disk_path, named_or_default_store};
use crate::backup::{PhaseProgress, described, failure, summary};

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the store is restored and verified; 1 it failed, or the backup is damaged, and nothing was \
                  written; 2 wrong usage, or the target is not empty.\n\n\
                  Examples:\n  \
                  lockd restore --from /backup/lockd-2026-11-18 --store /var/lib/lockd/store\n  \
                  lockd restore --from /backup/lockd.tar --store disk:///var/lib/lockd/store"
)]
pub(crate) struct RestoreArgs {
    /// Backup: a directory or a .tar file that `lockd backup` has written.
    #[arg(long, value_name = "PATH")]
    from: PathBuf,
    /// Directory of the store to create: `disk:///path` or a path; by default the one in the default data directory. It must
    /// not exist, or be empty.
    #[arg(long, value_name = "STORE", value_parser = disk_path)]
    store: Option<PathBuf>,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Restores the backup.
pub(crate) fn run(args: &RestoreArgs) -> CommandResult {
    let store = named_or_default_store(args.store.as_ref()).map_err(|what| Failure::new(2, what))?;
    let store = std::path::absolute(&store).unwrap_or(store);
    let progress = PhaseProgress::new(args.output);
    let options = RestoreOptions { now_unix_ms: now_unix_ms() };
    let restored = restore(&args.from, &store, &options, &progress).map_err(failure)?;
    drop(progress);
    let mut document = described(&restored.manifest, "store", &store);
    document["owner_uid"] = json!(restored.owner);
    print(args.output, &document, || text(&restored, &store))
}

fn text(restored: &Restored, store: &Path) -> String {
    let Restored { manifest, owner } = restored;
    let owner = owner.map(|uid| format!(" owner_uid={uid}")).unwrap_or_default();
    let taken_at = unix_ms_text(manifest.created_at_unix_ms);
    format!(
        "restored and verified: store={} {}{owner}\n\
         next:\n  \
         1. keep the old server stopped for good: two servers with this store would both grant leases\n  \
         2. wait until max-ttl has passed since the old server stopped: it may have granted leases after {taken_at}, which \
         this store does not know\n  \
         3. start the server: lockd serve --store disk://{}\n\
         its fencing tokens are above all earlier ones, provided that the clock of this machine is not behind the old \
         server's\n",
        store.display(),
        summary(manifest),
        store.display()
    )
}
