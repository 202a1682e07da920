//! The command line. Doc comments on arguments are the `--help` texts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use cli::exit_codes;
use cli::man_pages::{Completions, Man};
use cli::remote::{self, ClientArgs, Output};
use cli::usage;
use system::xdg;

use crate::auth::AuthCommand;
use crate::backup::BackupArgs;
use crate::bucket_flags::BucketFlags;
use crate::copy::CopyArgs;
use crate::cost::CostArgs;
use crate::hand_over::HandOverArgs;
use crate::health::HealthArgs;
use crate::local_store::StoreArg;
use crate::mcp::Mcp;
use crate::probe::ProbeArgs;
use crate::reload::ReloadArgs;
use crate::restore::RestoreArgs;
use crate::run::RunArgs;
use crate::serve::Serve;
use crate::transfer::{ExportArgs, ImportArgs};
use crate::who::Who;

/// Lease authority: leases on named resources, fencing of stale holders, and a document per key.
#[derive(Parser)]
#[command(
    name = "lockd",
    version,
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong usage or invalid input; 10 held by another; 11 fenced or not \
                  held; 12 expired; 13 unavailable; 14 denied; 15 indeterminate (it may have happened). `lockd run` exits with \
                  its command's code, or with 12 if the lease was lost.\n\n\
                  Examples:\n  lockd serve\n  \
                  lockd run --key orders --block 10m -- ./import-orders\n  \
                  granted=$(lockd client acquire --ttl 30s --block 60s orders) && eval \"$granted\"\n  \
                  lockd auth new client --server-in server.pem --out client1.pem --cn worker-1\n  \
                  lockd store dump --store /var/lib/lockd | jq -c 'select(.identity == \"ada\")'"
)]
pub(crate) struct LockdArgs {
    #[command(subcommand)]
    pub(crate) command: LockdCommand,
}

#[derive(Subcommand)]
pub(crate) enum LockdCommand {
    /// Create, renew, list, revoke, inspect and verify the identities of servers and clients.
    ///
    /// Trust is based on certificates, not on host names: an identity file may be moved to another machine.
    Auth {
        #[command(subcommand)]
        command: AuthCommand,
    },
    /// Copy a store, also while a server has it open, and verify the copy.
    ///
    /// Copies logs, snapshots, documents, the map of slots and the store key. The copy is recovered a second time before it
    /// gets its name: a backup that exists can be restored. Runs on the machine of the store, as its user or as root.
    Backup(Box<BackupArgs>),
    /// Acquire leases, and read and write the documents of keys.
    Client(Box<ClientArgs>),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  \
                            lockd completions bash > ~/.local/share/bash-completion/completions/lockd\n  \
                            lockd completions zsh > \"${fpath[1]}/_lockd\"\n  \
                            lockd completions fish > ~/.config/fish/completions/lockd.fish")]
    Completions(Completions),
    /// Show the effective settings of `serve`, and the source of each value.
    ///
    /// The text output is a file that `serve --config` accepts.
    #[command(
        after_help = "Example:\n  lockd config --store mem:// > lockd.toml\n  LOCKD_MAX_TTL=1h lockd config --output json | jq '.[\"max-ttl\"]'"
    )]
    Config(Box<ConfigArgs>),
    /// Check whether a server can grant leases.
    Health(Box<HealthArgs>),
    /// Write man pages, one for each command.
    #[command(after_help = "Example:\n  lockd man --out ~/.local/share/man/man1 && man lockd-run")]
    Man(Man),
    /// Serve leases and documents to an AI agent over the Model Context Protocol.
    Mcp(Box<Mcp>),
    /// Make a server read its identity file and denylist again, at once.
    ///
    /// A server also notices within 5 seconds that they have changed. This command returns when the new state is in force,
    /// or says why it was refused.
    Reload(ReloadArgs),
    /// Make a store of a backup.
    ///
    /// Every file is compared with its hash, and the restored copy is recovered, before the store appears. Leases and
    /// documents are those of the moment of the backup.
    Restore(Box<RestoreArgs>),
    /// Run a command while holding a lease.
    Run(Box<RunArgs>),
    /// Serve leases over HTTPS.
    Serve(Box<Serve>),
    /// Inspect, copy and repair a store offline.
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
}

#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    #[command(flatten)]
    _serve: Serve,
}

#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Check a store for damage: its key, every frame of its logs, every snapshot, the state that they lead to, and every
    /// document.
    ///
    /// Read-only: a server may have the store open. Prints one line for each shard, and then the findings: a torn tail,
    /// which the next start of the server cuts off, or damage, with the command that ends the log there if one can.
    Check(Box<Check>),
    /// Copy a store between disks and buckets, and verify the copy.
    ///
    /// FROM is only read. The copy has the key, the id, all leases and documents, and the log: credentials stay valid, and
    /// fencing tokens still grow. TO appears as a store only after it was recovered to the state of FROM and every document
    /// was read back; a copy that was interrupted is refused by servers and by further copies.
    Copy(Box<CopyArgs>),
    /// Test whether an object store can be trusted with a log, and print a verdict.
    ///
    /// Races conditional creates over every address of the endpoint, and checks lists, deletions, uploads, rights, lifecycle
    /// rules and latency. Creates objects below `probe/` in the prefix, and removes them. A server runs the short form at
    /// each start, and refuses a store that is not fit.
    Probe(Box<ProbeArgs>),
    /// Estimate the requests a month of a store in a bucket, and what they cost.
    Cost(Box<CostArgs>),
    /// Make a server hand its shards over to another server of the bucket.
    ///
    /// Logs a record that names the next owner, and returns when the server no longer owns the shards. Requests wait for the
    /// next owner, some tens of milliseconds; no request that is retried fails. A server that stops does this by itself.
    HandOver(Box<HandOverArgs>),
    /// Write the documents of a store as lines of JSON, and its leases as information.
    ///
    /// Read-only: a server may have the store open. The documents are those of one moment, with their versions and etags.
    /// `lockd store import` creates a store of them; for a copy of everything use `lockd backup`.
    Export(Box<ExportArgs>),
    /// Create a store with the documents of an export.
    ///
    /// Imports documents with their keys, versions and etags, and the version floors of namespaces. Fencing tokens are above
    /// those of the exported store. Leases are not imported, nor are history, agents, quotas and pauses. A line that does not
    /// belong to an export, a changed document or a truncated file is refused, and nothing is created.
    Import(ImportArgs),
    /// Print every record of the log as one line of JSON: the identity, the command, its time and its outcome.
    ///
    /// Read-only: a server may have the store open. An incomplete batch at the end of the log, torn by a power failure or
    /// still being written, is reported on standard error. Documents are not printed. Outcomes and events are replayed from
    /// the oldest snapshot that is kept: records before it are printed without.
    Dump(Box<Dump>),
    /// Print who held a key at a past instant, from the log.
    ///
    /// Read-only: a server may have the store open. Times are those of the server's wall clock. How far back it answers is
    /// the server's setting `--log-retain`.
    Who(Box<Who>),
    /// Cut a damaged log at the place that the server, `check` or `dump` has reported.
    ///
    /// Removes the damaged batch and every batch after it, and keeps their bytes beside the log. Acknowledged changes are
    /// lost: restore a backup with `lockd restore` instead if there is one. Refuses any place that is not damaged. A torn tail needs no cut: the
    /// server cuts it when it starts. The server must be stopped.
    Cut(Cut),
}

#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the store is sound (a torn tail is reported, and is sound); 1 damage was found; 2 wrong usage, \
                        or the store cannot be inspected.\n\n\
                        Examples:\n  \
                        lockd store check\n  \
                        lockd store check --store disk:///var/lib/lockd/store\n  \
                        lockd store check --store /var/lib/lockd/store --output json | jq '.findings[].cut_command'"
)]
pub(crate) struct Check {
    /// Store to check: `disk:///path`, the path of its directory or of the server's data directory, or the URL of a bucket; by
    /// default the one in the default data directory.
    #[arg(long, value_name = "STORE", value_parser = StoreArg::parse)]
    pub(crate) store: Option<StoreArg>,
    #[command(flatten)]
    pub(crate) bucket: BucketFlags,
    /// Print one JSON document; the same as --output json.
    #[arg(long)]
    pub(crate) json: bool,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text, conflicts_with = "json")]
    pub(crate) output: Output,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
                        lockd store cut --store /var/lib/lockd /var/lib/lockd/log/0/0000000000000000.seg 18264\n  \
                        lockd store cut --store disk:///var/lib/lockd --yes /var/lib/lockd/log/0/0000000000000000.seg 18264")]
pub(crate) struct Cut {
    /// Store to cut: `disk:///path`, or the path of its directory or of the server's data directory.
    #[arg(long, value_name = "STORE", value_parser = disk_path)]
    pub(crate) store: PathBuf,
    /// Cut the log; without this, only print what would be removed.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Damaged file, as reported.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Offset of the damage in bytes, as reported.
    #[arg(value_name = "OFFSET")]
    pub(crate) offset: u64,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
                        lockd store dump --store /var/lib/lockd\n  \
                        lockd store dump --store disk:///var/lib/lockd --shard 0 --from-lsn 1793491200000000\n  \
                        lockd store dump --store /var/lib/lockd --correlation job-4711\n  \
                        lockd store dump --store /var/lib/lockd | jq -c 'select(.action == \"revoke\")'")]
pub(crate) struct Dump {
    /// Store to read: `disk:///path`, the path of its directory or of the server's data directory, or the URL of a bucket; by
    /// default the one in the default data directory.
    #[arg(long, value_name = "STORE", value_parser = StoreArg::parse)]
    pub(crate) store: Option<StoreArg>,
    #[command(flatten)]
    pub(crate) bucket: BucketFlags,
    /// Print only this shard; by default all shards, in order.
    #[arg(long, value_name = "N")]
    pub(crate) shard: Option<u32>,
    /// First LSN to print.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) from_lsn: u64,
    /// Last LSN to print.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    pub(crate) to_lsn: u64,
    /// Print only the records of requests with this correlation id, as the client sent it in `X-Correlation-Id`.
    ///
    /// The output shows 32 hexadecimal digits: the id itself if it is that, with or without dashes, otherwise the start of
    /// its BLAKE3 hash. Either is accepted here.
    #[arg(long, value_name = "ID", value_parser = correlation)]
    pub(crate) correlation: Option<u128>,
    /// Format of the output. Each record is a line of JSON in all formats but `yaml`.
    #[arg(long, value_enum, default_value_t = Output::Json)]
    pub(crate) output: Output,
}

impl LockdArgs {
    /// Parses the arguments, typed and as matches; reports invalid ones.
    pub(crate) fn get() -> Result<(LockdArgs, ArgMatches), ExitCode> {
        let matches = LockdArgs::command().try_get_matches();
        let parsed = matches.and_then(|matches| Ok((LockdArgs::from_arg_matches(&matches)?, matches)));
        let (args, matches) = parsed.map_err(|refusal| {
            if !refusal.use_stderr() {
                refusal.exit();
            }
            let (output, stream) = crate::requested_output();
            fail_reader_of_output(output);
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            let refusal = usage::with_tips(refusal, LockdArgs::command(), &words);
            usage::refuse("lockd", &refusal, output, stream)
        })?;
        let checked = match &args.command {
            LockdCommand::Auth { command } => command.check(),
            LockdCommand::Store { command: StoreCommand::Dump(dump) } => dump.check(),
            _ => Ok(()),
        };
        if let Err(what) = checked {
            let refusal = LockdArgs::command().error(ErrorKind::ValueValidation, what);
            let (output, stream) = crate::requested_output();
            return Err(usage::refuse("lockd", &refusal, output, stream));
        }
        Ok((args, matches))
    }
}

/// Makes the command fail that reads the output of this one, although the command line is invalid: a pipe that expects a
/// document, or the eval of what acquire prints. Mistyped names count: an eval of nothing would succeed.
fn fail_reader_of_output(output: Output) {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let is_other_command = words.first().is_some_and(|first| {
        first != "client" && LockdArgs::command().get_subcommands().any(|sub| sub.get_name() == first)
    });
    let is_meant = |verb: &&str| !is_other_command && words.iter().any(|word| usage::is_similar(word, verb));
    if ["acquire", "rebind", "manifest"].iter().any(is_meant) && !output.is_parsed() {
        return remote::fail_eval(exit_codes::USAGE);
    }
    let of_client = words.first().is_some_and(|word| word == "client");
    let is_verb = |verb: &&str| of_client && words.iter().any(|word| word == verb);
    if let Some(verb) = ["get", "edit"].into_iter().find(is_verb) {
        remote::poison_output(verb, "wrong usage");
    }
}

impl Dump {
    fn check(&self) -> Result<(), &'static str> {
        if self.from_lsn > self.to_lsn {
            return Err("--from-lsn is greater than --to-lsn");
        }
        Ok(())
    }
}

/// Parses a correlation id, as the API accepts it.
fn correlation(text: &str) -> Result<u128, String> {
    let is_valid = (1..=256).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !is_valid {
        return Err("a correlation id is 1 to 256 printable ASCII characters".into());
    }
    Ok(engine::correlation_id(text))
}

/// The named store, or the one of a server that was started without settings.
pub(crate) fn named_or_default_store(named: Option<&PathBuf>) -> Result<PathBuf, String> {
    let default = || xdg::data_home().map(|home| home.join("lockd").join("store"));
    named.cloned().or_else(default).ok_or_else(|| "no home directory; pass --store".to_string())
}

/// Parses a store URL, or the path of a store or of a server's data directory, into the directory of the store.
pub(crate) fn disk_path(text: &str) -> Result<PathBuf, String> {
    let path = store_path(text)?;
    // In a data directory `store` is the directory of the store; in a store it is a file.
    let within = path.join("store");
    Ok(if within.is_dir() { within } else { path })
}

fn store_path(text: &str) -> Result<PathBuf, String> {
    match text.split_once("://") {
        Some(("disk" | "pebble", path)) if path.starts_with('/') => Ok(path.into()),
        Some(("disk" | "pebble", _)) => Err("the path must be absolute, as in disk:///var/lib/lockd".into()),
        Some((scheme, _)) => {
            Err(format!("only a store on disk can be used here; use disk:///path: scheme={scheme}"))
        }
        None if text.is_empty() => Err("a path is needed, as in disk:///var/lib/lockd".into()),
        None => Ok(text.into()),
    }
}
