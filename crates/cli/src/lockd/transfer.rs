//! `lockd store export` and `lockd store import`: the documents of a store as lines of JSON.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use ::backup::{ExportCounts, ImportOptions};
use cli::failure::{CommandResult, Failure};
use cli::output::{Output, print};
use cli::times::now_unix_ms;
use serde_json::json;

use crate::args::disk_path;
use crate::backup::{PhaseProgress, failure};
use crate::bucket_flags::BucketFlags;
use crate::local_store::{LocalStore, StoreArg};
use crate::notice;

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 all documents are written; 1 it failed, or a document is damaged; 2 wrong usage.\n\n\
                        Examples:\n  \
                        lockd store export --store /var/lib/lockd > documents.jsonl\n  \
                        lockd store export --to documents.jsonl\n  \
                        lockd store export | jq -c 'select(.type == \"document\") | {key, version, state}'"
)]
pub(crate) struct ExportArgs {
    /// Store to export: `disk:///path`, the path of its directory or of the server's data directory, or the URL of a bucket;
    /// by default the one in the default data directory.
    #[arg(long, value_name = "STORE", value_parser = StoreArg::parse)]
    store: Option<StoreArg>,
    #[command(flatten)]
    bucket: BucketFlags,
    /// File to create, by default standard output. Nothing is overwritten.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the store is created; 1 it failed; 2 wrong usage, or the export or the target was refused.\n\n\
                        Example:\n  \
                        lockd store import --from documents.jsonl --store /var/lib/lockd/store\n  \
                        lockd store export --store /srv/old | lockd store import --from - --store /srv/new --shards 4"
)]
pub(crate) struct ImportArgs {
    /// Export to read; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Directory of the store to create: `disk:///path` or a path. It must not exist, or be empty.
    #[arg(long, value_name = "STORE", value_parser = disk_path)]
    store: PathBuf,
    /// Number of shards of the new store.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    shards: u32,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Writes the export.
pub(crate) fn export(args: &ExportArgs) -> CommandResult {
    let local = LocalStore::open(args.store.as_ref(), &args.bucket, Output::Text)?;
    let store = &local.path;
    let Some(to) = &args.to else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        return written(store, &mut out);
    };
    let file = store::private::create_file(to).map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::AlreadyExists { 2 } else { 1 };
        Failure::new(code, format!("the file cannot be created: {error}: file={}", to.display()))
    })?;
    let done = written(store, &mut BufWriter::new(&file)).and_then(|()| {
        file.sync_all()
            .map_err(|error| Failure::new(1, format!("writing a file: {error}: file={}", to.display())))
    });
    if done.is_err() {
        // An incomplete export is refused by an import anyway.
        let _ = std::fs::remove_file(to);
    }
    done
}

fn written(store: &Path, out: &mut dyn Write) -> CommandResult {
    let progress = PhaseProgress::new(Output::Text);
    let counts = ::backup::export(store, now_unix_ms(), out, &progress).map_err(failure)?;
    let ExportCounts { namespaces, documents, leases } = counts;
    notice(&format!(
        "exported: documents={documents} namespaces={namespaces} leases={leases} (for information only)"
    ));
    Ok(())
}

/// Creates a store of an export.
pub(crate) fn import(args: &ImportArgs) -> CommandResult {
    let options = ImportOptions { now_unix_ms, shards: args.shards };
    let progress = PhaseProgress::new(args.output);
    let mut input: Box<dyn BufRead> = if args.from == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let opened = File::open(&args.from);
        Box::new(BufReader::new(opened.map_err(|error| {
            Failure::new(1, format!("the export cannot be read: {error}: file={}", args.from.display()))
        })?))
    };
    let counts = ::backup::import(&mut *input, &args.store, &options, &progress).map_err(failure)?;
    drop(progress);
    let ExportCounts { namespaces, documents, leases } = counts;
    let store = std::path::absolute(&args.store).unwrap_or_else(|_| args.store.clone());
    let document = json!({
        "store": store.display().to_string(), "documents": documents, "namespaces": namespaces, "leases_ignored": leases,
    });
    print(args.output, &document, || {
        format!(
            "imported and verified: store={} documents={documents} namespaces={namespaces}; leases are not imported: \
             leases={leases}\nstart the server: lockd serve --store disk://{}\n",
            store.display(),
            store.display()
        )
    })
}
