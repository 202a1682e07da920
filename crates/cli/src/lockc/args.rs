//! The command line. Doc comments on arguments are the `--help` texts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use cli::man_pages::{Completions, Man};
use cli::remote::{
    ConnectionArgs, LeaseTerms, Output, WriteConditions, duration, output_file, poison_output,
};
use cli::usage;

use crate::format::Format;
use crate::top::Sort;

/// Work with leases and documents interactively: acquired leases are remembered for later commands.
#[derive(Parser)]
#[command(
    name = "lockc",
    version,
    after_help = "Held leases are stored in one file per context, in $XDG_STATE_HOME/lockd (or ~/.local/state/lockd). The file \
                  contains credentials and has mode 0600. Commands without a key use the current key: the one acquired last, \
                  or selected with `lockc use`. In a second terminal, --context NAME or LOCKC_CONTEXT selects another \
                  context.\n\n\
                  Exit codes: 0 done; 1 failed; 2 wrong usage or invalid input; 10 held by another; 11 fenced or not \
                  held; 12 expired; 13 unavailable; 14 denied; 15 indeterminate (it may have happened).\n\n\
                  Examples:\n  lockc acquire -s localhost:9341 -i client.pem --ttl 5m orders\n  \
                  lockc state get -o dump.yaml\n  lockc state update -i dump.yaml\n  lockc edit\n  lockc release"
)]
pub(crate) struct LockcArgs {
    /// Context that stores the leases.
    #[arg(long, global = true, env = "LOCKC_CONTEXT", value_name = "NAME", default_value = "default")]
    pub(crate) context: String,
    /// Format of the output.
    #[arg(long, global = true, env = "LOCKD_CLIENT_OUTPUT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
    #[command(subcommand)]
    pub(crate) command: LockcCommand,
}

#[derive(Subcommand)]
pub(crate) enum LockcCommand {
    /// Acquire a lease on a key, and make it the current key.
    ///
    /// Later commands on this key use the same server and identity.
    Acquire(Box<LockcAcquireArgs>),
    /// Renew the lease on a key.
    #[command(after_help = "Example:\n  lockc keepalive --ttl 30s")]
    Keepalive {
        /// Key of the lease; the current key if not given.
        key: Option<String>,
        /// New time to live, from now; the last requested TTL if not given.
        #[arg(long, value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Release the lease on a key.
    #[command(after_help = "Example:\n  lockc release\n  lockc release orders")]
    Release {
        /// Key of the lease; the current key if not given.
        key: Option<String>,
    },
    /// Read and write the document of a key.
    State {
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Edit the document of a key in an editor.
    ///
    /// The lease is renewed while the editor runs. The result is committed only if the document has not changed since it was
    /// read; otherwise it is kept in a file, whose path is printed.
    Edit(LockcEditArgs),
    /// Open the web console of a server in a browser on this machine, with your identity.
    ///
    /// Runs a proxy on 127.0.0.1 until it is interrupted, and prints a link that can be used once.
    Console(Box<LockcConsoleArgs>),
    /// Show leases and their waiters live; once, if the output is no terminal.
    Top(Box<LockcTopArgs>),
    /// List the held leases; `*` marks the current key.
    #[command(after_help = "Example:\n  lockc list\n  lockc list --output json | jq -r .leases[].key")]
    List,
    /// Select the current key.
    #[command(after_help = "Example:\n  lockc use orders")]
    Use {
        /// Key of a held lease.
        key: String,
    },
    /// Print a completion script for a shell.
    #[command(
        after_help = "Example:\n  lockc completions bash > ~/.local/share/bash-completion/completions/lockc"
    )]
    Completions(Completions),
    /// Write man pages, one for each command.
    #[command(after_help = "Example:\n  lockc man --out ~/.local/share/man/man1 && man lockc-edit")]
    Man(Man),
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  lockc acquire -s localhost:9341 -i client.pem orders\n  lockc acquire --ttl 5m --block 10m orders"
)]
pub(crate) struct LockcAcquireArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Key to acquire.
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) terms: LeaseTerms,
}

#[derive(clap::Args)]
#[command(
    after_help = "The link contains a token: whoever opens it first acts with your identity until the console ends. A browser \
                  that has your certificate (`lockd auth export --p12`) can open https://SERVER/ui/ instead.\n\n\
                  Example:\n  lockc console -s localhost:9341 -i client.pem\n  lockc console --port 7000"
)]
pub(crate) struct LockcConsoleArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Port on 127.0.0.1; 0 is any free one.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub(crate) port: u16,
}

#[derive(clap::Args)]
#[command(
    after_help = "Keys: up and down (or j and k) select, / filters, s changes the order, r revokes and c reclaims the selected \
                  lease after a confirmation, q quits.\n\n\
                  Example:\n  lockc top -s localhost:9341 -i client.pem\n  lockc top --sort waiters --output json"
)]
pub(crate) struct LockcTopArgs {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Only rows whose resource, holder or namespace contains this.
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Order of the rows.
    #[arg(long, value_enum, default_value_t = Sort::Resource)]
    pub(crate) sort: Sort,
    /// Print once, also to a terminal.
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Subcommand)]
pub(crate) enum StateCommand {
    /// Write the document to a file, as JSON or YAML; nothing if there is none.
    Get(LockcGetArgs),
    /// Replace the document with the content of a JSON or YAML file.
    Update(LockcUpdateArgs),
}

#[derive(clap::Args)]
#[command(
    after_help = "If it fails with a pipe as output, it also prints a line that is not a document, which `state update` further \
                  down the pipe rejects. With -o FILE, a failure writes nothing.\n\n\
                  Example:\n  lockc state get -o dump.yaml\n  lockc state get orders -o - | jq ."
)]
pub(crate) struct LockcGetArgs {
    /// Key of the document; the current key if not given.
    pub(crate) key: Option<String>,
    /// File to write the document to; `-` is standard output.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "-", value_parser = output_file)]
    pub(crate) out: PathBuf,
    /// Format of the output [default: by the file's extension, else JSON].
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
}

#[derive(clap::Args)]
#[command(
    after_help = "YAML is version 1.2: `no`, `on` and dates are strings. YAML that JSON cannot express is rejected, with line \
                        and column.\n\nExample:\n  lockc state update -i dump.yaml\n  \
                        lockc state update orders -i dump.json --if-version 7 --release"
)]
pub(crate) struct LockcUpdateArgs {
    /// Key of the document; the current key if not given.
    pub(crate) key: Option<String>,
    /// File to read the document from; `-` is standard input.
    #[arg(short = 'i', long, value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    /// Format of the input [default: by the file's extension, else JSON].
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    pub(crate) only: WriteConditions,
}

#[derive(clap::Args)]
#[command(
    after_help = "The editor is $VISUAL, else $EDITOR, else vi. If the editor fails or the text is empty, nothing is \
                        committed.\n\nExample:\n  lockc edit\n  EDITOR='code --wait' lockc edit orders --format json"
)]
pub(crate) struct LockcEditArgs {
    /// Key of the document; the current key if not given.
    pub(crate) key: Option<String>,
    /// Format in the editor.
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    pub(crate) format: Format,
}

impl LockcArgs {
    /// Parses the arguments; reports invalid ones.
    pub(crate) fn get() -> Result<LockcArgs, ExitCode> {
        let matches = LockcArgs::described().try_get_matches();
        let parsed = matches.and_then(|matches| LockcArgs::from_arg_matches(&matches));
        parsed.map_err(|refusal| {
            let words: Vec<_> = std::env::args_os().skip(1).collect();
            let of_state = words.iter().any(|word| word == "state") && words.iter().any(|word| word == "get");
            if refusal.use_stderr() && of_state {
                poison_output("lockc state get", "wrong usage");
            }
            if !refusal.use_stderr() {
                refusal.exit();
            }
            let (output, stream) = crate::requested_output();
            let refusal = usage::with_tips(refusal, LockcArgs::described(), &words);
            usage::refuse("lockc", &refusal, output, stream)
        })
    }

    /// The command tree. `-i` is `--identity` for the commands that connect to a named server, and the input file
    /// elsewhere.
    pub(crate) fn described() -> clap::Command {
        let short = |acquire: clap::Command| acquire.mut_arg("identity", |identity| identity.short('i'));
        let with_identity = ["acquire", "console", "top"];
        with_identity.iter().fold(LockcArgs::command(), |command, name| command.mut_subcommand(name, short))
    }
}

impl LockcCommand {
    /// Whether the command writes a document to standard output.
    pub(crate) fn pipes_a_document(&self) -> bool {
        matches!(self, LockcCommand::State { command: StateCommand::Get(get) } if get.out.as_os_str() == "-")
    }
}
