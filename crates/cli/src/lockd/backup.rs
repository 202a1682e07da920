//! `lockd backup`: copies a store, verifies a copy, and carries out a drill.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::backup::{self as copies, BackupError, BackupOptions, Drill, Manifest, Progress};
use clap::Subcommand;
use cli::failure::{CommandResult, Failure};
use cli::output::{Output, print};
use cli::progress::ByteProgress;
use cli::remote::duration;
use cli::times::{now_unix_ms, unix_ms_text};
use serde_json::json;

use crate::bucket_flags::BucketFlags;
use crate::local_store::{LocalStore, StoreArg};
use crate::notice;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Exit codes: 0 the backup is complete and verified; 1 it failed, or the store is damaged, and there is no backup; \
                  2 wrong usage, or the target exists.\n\n\
                  Examples:\n  \
                  lockd backup --to /backup/lockd-$(date +%F)\n  \
                  lockd backup --store /var/lib/lockd --to /backup/lockd.tar --rate 5MB\n  \
                  lockd backup --store s3://locks/prod --store-key-file /etc/lockd/store.key --to /backup/lockd.tar\n  \
                  lockd backup verify /backup/lockd.tar\n  \
                  lockd backup drill --store /var/lib/lockd"
)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    #[command(flatten)]
    source: SourceArgs,
    /// Directory to create, or file if the name ends with .tar. Nothing is overwritten.
    #[arg(long, value_name = "DIR|FILE.tar", required = true)]
    to: Option<PathBuf>,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(clap::Args)]
struct SourceArgs {
    /// Store to copy: `disk:///path`, the path of its directory or of the server's data directory, or the URL of a bucket,
    /// which is first copied to a temporary directory beside the target; by default the one in the default data directory.
    #[arg(long, value_name = "STORE", value_parser = StoreArg::parse)]
    store: Option<StoreArg>,
    /// Maximum number of bytes copied and verified per second, within a tenth of the time of one processor and of the disk;
    /// `unlimited` for a server that is stopped.
    #[arg(long, value_name = "SIZE", value_parser = rate, default_value = "10MB")]
    rate: u64,
    /// Maximum duration of the copy. Meanwhile the server deletes neither old segments nor replaced documents.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1h")]
    timeout: Duration,
    #[command(flatten)]
    bucket: BucketFlags,
}

#[derive(Subcommand)]
enum BackupCommand {
    /// Verify a backup: every byte, and the state that a server would recover from it.
    ///
    /// A .tar file is unpacked beside itself for that, and the copy is removed.
    #[command(
        after_help = "Exit codes: 0 the backup is whole; 1 it is damaged, or cannot be read; 2 wrong usage.\n\n\
                            Example:\n  lockd backup verify /backup/lockd-2026-11-18"
    )]
    Verify(VerifyArgs),
    /// Take a backup, restore it, open the restored store and grant a lease; then remove all of it.
    ///
    /// The store is only read, and a server may have it open. Needs about twice the size of the store.
    #[command(
        after_help = "Exit codes: 0 a backup of this store can be restored; 1 it cannot; 2 wrong usage.\n\n\
                            Example:\n  lockd backup drill\n  \
                            lockd backup drill --store /var/lib/lockd --in /var/tmp --output json"
    )]
    Drill(Box<DrillArgs>),
}

#[derive(clap::Args)]
struct VerifyArgs {
    /// Backup: a directory or a .tar file.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(clap::Args)]
struct DrillArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Existing directory for the copies, by default the directory for temporary files.
    #[arg(long = "in", value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The rate of a copy that nothing limits.
const UNLIMITED: u64 = u64::MAX;

fn rate(text: &str) -> Result<u64, String> {
    if text == "unlimited" {
        return Ok(UNLIMITED);
    }
    lockd_server::settings::parse_size(text)
        .and_then(|rate| if rate == 0 { Err("the minimum is 1".into()) } else { Ok(rate) })
}

/// Runs the command.
pub(crate) fn run(args: &BackupArgs) -> CommandResult {
    match &args.command {
        None => take(args),
        Some(BackupCommand::Verify(args)) => verify(args),
        Some(BackupCommand::Drill(args)) => drill(args),
    }
}

fn take(args: &BackupArgs) -> CommandResult {
    let to = args.to.as_ref().expect("required");
    yield_to_the_server();
    let absolute = std::path::absolute(to).unwrap_or_else(|_| to.clone());
    let store = args.source.local(args.output, absolute.parent().unwrap_or(&absolute), Some(to))?;
    let progress = PhaseProgress::new(args.output);
    let options = args.source.options(&store)?;
    let taken = copies::take(&store.path, to, &options, &progress, &mut |what| notice(&what));
    let manifest = taken.map_err(failure)?;
    drop(progress);
    if store.copied.as_ref().is_some_and(|copied| copied.shards != manifest.shards) {
        let what = "the backup leads to another state than the bucket; delete it, and report this: path=";
        return Err(Failure::new(1, format!("{what}{}", to.display())));
    }
    let to = std::path::absolute(to).unwrap_or_else(|_| to.clone());
    print(args.output, &described(&manifest, "path", &to), || {
        format!(
            "backed up and verified: path={} {}\n\
             it contains the store key and all documents: keep it as private as the store\n\
             restore it with: lockd restore --from {} --store DIR\n",
            to.display(),
            summary(&manifest),
            to.display()
        )
    })
}

fn verify(args: &VerifyArgs) -> CommandResult {
    let progress = PhaseProgress::new(args.output);
    let manifest = copies::verify(&args.path, &progress).map_err(failure)?;
    drop(progress);
    print(args.output, &described(&manifest, "path", &args.path), || {
        format!("whole: path={} {}\n", args.path.display(), summary(&manifest))
    })
}

fn drill(args: &DrillArgs) -> CommandResult {
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    yield_to_the_server();
    let local = args.source.local(args.output, &scratch, None)?;
    let progress = PhaseProgress::new(args.output);
    let options = args.source.options(&local)?;
    let done = copies::drill(&local.path, &scratch, &options, &progress, &mut |what| notice(&what));
    let Drill { manifest, backup, restore, start, token } = done.map_err(failure)?;
    drop(progress);
    let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let store = args.source.named(&local);
    let mut document = described(&manifest, "store", &store);
    for (name, value) in
        [("backup_ms", ms(backup)), ("restore_ms", ms(restore)), ("start_ms", ms(start)), ("token", token)]
    {
        document[name] = json!(value);
    }
    print(args.output, &document, || {
        format!(
            "drill passed: backed up, restored, opened, and a lease granted: {} token={token} backup_ms={} restore_ms={} \
             start_ms={}\n",
            summary(&manifest),
            ms(backup),
            ms(restore),
            ms(start)
        )
    })
}

impl SourceArgs {
    /// The store; a bucket is copied to `dir`, unless the target of the backup exists.
    fn local(&self, output: Output, dir: &Path, to: Option<&PathBuf>) -> Result<LocalStore, Failure> {
        let is_remote = matches!(self.store, Some(StoreArg::Bucket(_)));
        if let Some(to) = to.filter(|to| is_remote && to.exists()) {
            let what = "the target exists, and nothing is overwritten; choose another name: path=";
            return Err(Failure::new(2, format!("{what}{}", to.display())));
        }
        LocalStore::open_in(self.store.as_ref(), &self.bucket, output, dir, Some(self.rate))
    }

    /// A copy of a bucket is not in use: it is read as fast as possible, and has its key.
    fn options(&self, store: &LocalStore) -> Result<BackupOptions, Failure> {
        let is_local = store.copied.is_none();
        let key = if is_local { self.bucket.key()? } else { None };
        let rate = is_local.then_some(self.rate).filter(|rate| *rate != UNLIMITED);
        Ok(BackupOptions { key, now_unix_ms: now_unix_ms(), rate, timeout: self.timeout })
    }

    /// The store as it was named.
    fn named(&self, store: &LocalStore) -> PathBuf {
        match &self.store {
            Some(StoreArg::Bucket(url)) => url.to_string().into(),
            _ => store.path.clone(),
        }
    }
}

/// The content of a backup, for people.
pub(crate) fn summary(manifest: &Manifest) -> String {
    format!(
        "taken_at={} leases={} documents={} shards={} bytes={} last_lsn={}",
        unix_ms_text(manifest.created_at_unix_ms),
        manifest.leases(),
        manifest.documents(),
        manifest.shards.len(),
        manifest.bytes(),
        manifest.last_lsn()
    )
}

/// The content of a backup, for programs.
pub(crate) fn described(manifest: &Manifest, name: &str, path: &Path) -> serde_json::Value {
    json!({
        name: path.display().to_string(),
        "taken_at_unix_ms": manifest.created_at_unix_ms,
        "lockd_version": manifest.lockd_version,
        "store_id": manifest.store_id,
        "leases": manifest.leases(),
        "documents": manifest.documents(),
        "shards": manifest.shards.len(),
        "files": manifest.files.len(),
        "bytes": manifest.bytes(),
        "last_lsn": manifest.last_lsn(),
    })
}

/// A refused request is wrong usage, and changes nothing.
#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` needs")]
pub(crate) fn failure(error: BackupError) -> Failure {
    let code = if matches!(error, BackupError::Refused(_)) { 2 } else { 1 };
    Failure::new(code, error.to_string())
}

/// Lets a server on the same machine go first: a copy has time.
fn yield_to_the_server() {
    let _ = rustix::process::nice(19);
}

/// A progress bar for each phase.
pub(crate) struct PhaseProgress {
    is_parsed: bool,
    bar: std::cell::RefCell<Option<ByteProgress>>,
}

impl PhaseProgress {
    pub(crate) fn new(output: Output) -> PhaseProgress {
        PhaseProgress { is_parsed: output.is_parsed(), bar: std::cell::RefCell::default() }
    }
}

impl Progress for PhaseProgress {
    fn begin(&self, what: &'static str, bytes: u64) {
        let bar = ByteProgress::new(what, self.is_parsed);
        bar.begin(bytes);
        *self.bar.borrow_mut() = Some(bar);
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*self.bar.borrow() {
            bar.advance(bytes);
        }
    }
}
