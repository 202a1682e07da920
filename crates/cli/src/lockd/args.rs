//! The command line. Doc comments on arguments are the `--help` texts.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use cli::man_pages::{Completions, Man};
use cli::remote::{self, ClientArgs, Output};

use crate::auth::AuthCommand;
use crate::health::HealthArgs;
use crate::mcp::Mcp;
use crate::reload::ReloadArgs;
use crate::run::RunArgs;
use crate::serve::Serve;

/// Lease authority: leases on named resources, fencing of stale holders, and a document per key.
#[derive(Parser)]
#[command(
    name = "lockd",
    version,
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong usage or invalid input; 10 held by another; 11 fenced or not \
                  held; 12 expired; 13 unavailable; 14 denied; 15 indeterminate (it may have happened). `lockd run` exits with \
                  its command's code, or with 12 if the lease was lost.\n\n\
                  Examples:\n  lockd serve\n  lockd auth new client --server-in server.pem --out client1.pem --cn worker-1\n  \
                  eval \"$(lockd client acquire --server localhost:9341 --ttl 30s orders)\"\n  \
                  lockd run --key orders --ttl 30s --block 10m -- ./import-orders\n  \
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
    /// Run a command while holding a lease.
    Run(Box<RunArgs>),
    /// Serve leases over HTTPS.
    Serve(Box<Serve>),
    /// Inspect and repair a store offline.
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
    /// Check a store for damage: every frame of its logs and every snapshot.
    ///
    /// Read-only: a server may have the store open. Prints one line for each shard, and then the findings: a torn tail,
    /// which the next start of the server cuts off, or damage, with the command that ends the log there if one can.
    Check(Check),
    /// Print every record of the log as one line of JSON: the identity, the command and its time.
    ///
    /// Read-only: a server may have the store open. An incomplete batch at the end of the log, torn by a power failure or
    /// still being written, is reported on standard error. Documents are not printed.
    Dump(Dump),
    /// Cut a damaged log at the place that the server, `check` or `dump` has reported.
    ///
    /// Removes the damaged batch and every batch after it, and keeps their bytes beside the log. Acknowledged changes are
    /// lost: restore a backup instead if there is one. Refuses any place that is not damaged. A torn tail needs no cut: the
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
                        lockd store check --store /var/lib/lockd/store --json | jq '.findings[].cut_command'"
)]
pub(crate) struct Check {
    /// Store to check: `disk:///path`, or the path of its directory; by default the one in the default data directory.
    #[arg(long, value_name = "STORE", value_parser = disk_path)]
    pub(crate) store: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
                        lockd store cut --store /var/lib/lockd /var/lib/lockd/log/0/0000000000000000.seg 18264\n  \
                        lockd store cut --store disk:///var/lib/lockd --yes /var/lib/lockd/log/0/0000000000000000.seg 18264")]
pub(crate) struct Cut {
    /// Store to cut: `disk:///path`, or the path of its directory.
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
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
                        lockd store dump --store /var/lib/lockd\n  \
                        lockd store dump --store disk:///var/lib/lockd --shard 0 --from-lsn 1793491200000000\n  \
                        lockd store dump --store /var/lib/lockd | jq -c 'select(.action == \"revoke\")'")]
pub(crate) struct Dump {
    /// Store to read: `disk:///path`, or the path of its directory.
    #[arg(long, value_name = "STORE", value_parser = disk_path)]
    pub(crate) store: PathBuf,
    /// Print only this shard; by default all shards, in order.
    #[arg(long, value_name = "N")]
    pub(crate) shard: Option<u32>,
    /// First LSN to print.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) from_lsn: u64,
    /// Last LSN to print.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    pub(crate) to_lsn: u64,
}

impl LockdArgs {
    /// Parses the arguments, typed and as matches; exits with a message if they are invalid.
    pub(crate) fn get() -> (LockdArgs, ArgMatches) {
        let matches = LockdArgs::command().try_get_matches();
        let parsed = matches.and_then(|matches| Ok((LockdArgs::from_arg_matches(&matches)?, matches)));
        let (args, matches) = parsed.unwrap_or_else(|refusal| {
            if refusal.use_stderr()
                && let Some(verb) = pipes_a_document()
            {
                remote::poison_output(verb, "wrong usage");
            }
            refusal.exit()
        });
        let checked = match &args.command {
            LockdCommand::Auth { command } => command.check(),
            LockdCommand::Store { command: StoreCommand::Dump(dump) } => dump.check(),
            _ => Ok(()),
        };
        if let Err(what) = checked {
            LockdArgs::command().error(ErrorKind::ValueValidation, what).exit();
        }
        (args, matches)
    }
}

/// The verb of an invalid command line, if a valid one would write a document to standard output.
fn pipes_a_document() -> Option<&'static str> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let of_client = words.first().is_some_and(|word| word == "client");
    ["get", "edit"].into_iter().find(|verb| of_client && words.iter().any(|word| word == verb))
}

impl Dump {
    fn check(&self) -> Result<(), &'static str> {
        if self.from_lsn > self.to_lsn {
            return Err("--from-lsn is greater than --to-lsn");
        }
        Ok(())
    }
}

/// Parses a store URL or path into a directory.
fn disk_path(text: &str) -> Result<PathBuf, String> {
    match text.split_once("://") {
        Some(("disk", path)) if path.starts_with('/') => Ok(path.into()),
        Some(("disk", _)) => Err("the path must be absolute, as in disk:///var/lib/lockd".into()),
        Some((scheme, _)) => {
            Err(format!("only a disk store can be used offline; use disk:///path: scheme={scheme}"))
        }
        None if text.is_empty() => Err("a path is needed, as in disk:///var/lib/lockd".into()),
        None => Ok(text.into()),
    }
}
