//! The command line. Texts here are what `--help` shows.

use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use cli::man_pages::{Completions, Man};
use cli::remote::{Connection, Only, Output, Terms, duration, spoil};

use crate::format::Format;

/// Leases and documents by hand: what is acquired is remembered for the commands after it.
#[derive(Parser)]
#[command(
    name = "lockc",
    version,
    after_help = "What is held is kept in a file of its own for each context, in $XDG_STATE_HOME/lockd (or ~/.local/state/lockd): it has \
                  credentials in it, and is for you alone. Commands that name no key use the current one: the one that was \
                  acquired last, or chosen with `lockc use`. In a second terminal, --context NAME or LOCKC_CONTEXT keeps \
                  things apart.\n\n\
                  Exit codes: 0 done; 1 failed; 2 wrong usage or invalid input; 10 held by another; 11 fenced or not \
                  held; 12 expired; 13 unavailable; 14 denied; 15 indeterminate (it may have happened).\n\n\
                  Examples:\n  lockc acquire -s localhost:9341 -i client.pem --ttl 5m orders\n  \
                  lockc state get -o dump.yaml\n  lockc state update -i dump.yaml\n  lockc edit\n  lockc release"
)]
pub(crate) struct Args {
    /// Which context to use.
    #[arg(long, global = true, env = "LOCKC_CONTEXT", value_name = "NAME", default_value = "default")]
    pub(crate) context: String,
    /// How answers are printed.
    #[arg(long, global = true, env = "LOCKD_CLIENT_OUTPUT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Take a lease over a key, and make it the current one.
    ///
    /// The commands after it ask the same server, as the same identity.
    Acquire(Box<Acquire>),
    /// Extend a lease.
    #[command(after_help = "Example:\n  lockc keepalive --ttl 30s")]
    Keepalive {
        /// The key; the current one if it is not said.
        key: Option<String>,
        /// For how long from now; as long as it was last asked for, if it is not said.
        #[arg(long, value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Give a lease back.
    #[command(after_help = "Example:\n  lockc release\n  lockc release orders")]
    Release {
        /// The key; the current one if it is not said.
        key: Option<String>,
    },
    /// Read and write the document beside a key.
    State {
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Change the document of a key in an editor.
    ///
    /// The lease is kept alive meanwhile. What was edited is committed if nobody else has changed the document since; if it
    /// cannot be, it is kept in a file, and its path is told.
    Edit(Edit),
    /// Show what is held; `*` marks the current key.
    #[command(after_help = "Example:\n  lockc list\n  lockc list --output json | jq -r .leases[].key")]
    List,
    /// Make a key the current one.
    #[command(after_help = "Example:\n  lockc use orders")]
    Use {
        /// The key.
        key: String,
    },
    /// Print completions for a shell.
    #[command(
        after_help = "Example:\n  lockc completions bash > ~/.local/share/bash-completion/completions/lockc"
    )]
    Completions(Completions),
    /// Write manual pages, one for each command.
    #[command(after_help = "Example:\n  lockc man --out ~/.local/share/man/man1 && man lockc-edit")]
    Man(Man),
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  lockc acquire -s localhost:9341 -i client.pem orders\n  lockc acquire --ttl 5m --block 10m orders"
)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// The key.
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) terms: Terms,
}

#[derive(Subcommand)]
pub(crate) enum StateCommand {
    /// Write the document to a file, as JSON or YAML; nothing if there is none.
    Get(Get),
    /// Replace the document by what is in a file, JSON or YAML.
    Update(Update),
}

#[derive(clap::Args)]
#[command(
    after_help = "A get that fails also prints a line that is no document, unless to a terminal: `state update` behind it in a pipe \
                  refuses that. With -o FILE nothing is written.\n\n\
                  Example:\n  lockc state get -o dump.yaml\n  lockc state get orders -o - | jq ."
)]
pub(crate) struct Get {
    /// The key; the current one if it is not said.
    pub(crate) key: Option<String>,
    /// Where to write it; `-` is standard output.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "-")]
    pub(crate) out: PathBuf,
    /// JSON or YAML; by default as the file's name says, else JSON.
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
}

#[derive(clap::Args)]
#[command(
    after_help = "YAML is read as version 1.2 has it: no, on and dates are strings. What has no place in JSON is refused, with line and \
                        column.\n\nExample:\n  lockc state update -i dump.yaml\n  \
                        lockc state update orders -i dump.json --if-version 7 --release"
)]
pub(crate) struct Update {
    /// The key; the current one if it is not said.
    pub(crate) key: Option<String>,
    /// Where the document is; `-` is standard input.
    #[arg(short = 'i', long, value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    /// JSON or YAML; by default as the file's name says, else JSON.
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    pub(crate) only: Only,
}

#[derive(clap::Args)]
#[command(
    after_help = "The editor is $VISUAL, or else $EDITOR, or else vi. An editor that fails, and a text that is empty, change \
                        nothing.\n\nExample:\n  lockc edit\n  EDITOR='code --wait' lockc edit orders --format json"
)]
pub(crate) struct Edit {
    /// The key; the current one if it is not said.
    pub(crate) key: Option<String>,
    /// How the document is shown.
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    pub(crate) format: Format,
}

impl Args {
    /// The arguments, or the end of the process with what is wrong with them.
    pub(crate) fn get() -> Args {
        let matches = Args::described().try_get_matches();
        let parsed = matches.and_then(|matches| Args::from_arg_matches(&matches));
        parsed.unwrap_or_else(|refusal| {
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            let of_state = words.iter().any(|word| word == "state") && words.iter().any(|word| word == "get");
            if refusal.use_stderr() && of_state {
                spoil("get", "wrong usage");
            }
            refusal.exit()
        })
    }

    /// `-i` is the identity where one is named, and the input elsewhere.
    pub(crate) fn described() -> clap::Command {
        let short = |acquire: clap::Command| acquire.mut_arg("identity", |identity| identity.short('i'));
        Args::command().mut_subcommand("acquire", short)
    }
}

impl Command {
    /// Does it write a document to standard output?
    pub(crate) fn fills_a_pipe(&self) -> bool {
        matches!(self, Command::State { command: StateCommand::Get(get) } if get.out.as_os_str() == "-")
    }
}
