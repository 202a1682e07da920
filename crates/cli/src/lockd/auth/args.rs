//! The command lines of `lockd auth`. Texts here are what `--help` shows.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use identity::file::Existing;
use identity::{Algorithm, Days, Host, Name, NamespaceRights, Role, Serial};

#[derive(Subcommand)]
pub(crate) enum AuthCommand {
    /// Make an identity file.
    New {
        #[command(subcommand)]
        command: NewCommand,
    },
    /// Revoke certificates.
    Revoke {
        #[command(subcommand)]
        command: RevokeCommand,
    },
    /// Show what is in an identity file. Private keys are not shown.
    Inspect {
        #[command(subcommand)]
        command: InspectCommand,
    },
    /// Check an identity file: issued by its CA, for its purpose, with its key, valid today and not revoked.
    Verify {
        #[command(subcommand)]
        command: CheckCommand,
    },
}

#[derive(Subcommand)]
pub(crate) enum NewCommand {
    /// A CA and a server: writes the server's file, and the CA's beside it.
    ///
    /// The CA's file is needed to make clients, and by no server: keep it apart. With --server-in or --ca-in the
    /// server joins an existing CA instead of a new one, as a second server of a store must.
    Server(NewServer),
    /// A client of a server's CA.
    Client(NewClient),
}

#[derive(Subcommand)]
pub(crate) enum RevokeCommand {
    /// Put serials on the denylist in a server's file. Needs no CA key.
    ///
    /// A running server takes the list over without a restart.
    Client(Revoke),
}

#[derive(Subcommand)]
pub(crate) enum InspectCommand {
    /// A server's file.
    #[command(after_help = "Example:\n  lockd auth inspect server --in server.pem")]
    Server(Inspect),
    /// A client's file.
    #[command(
        after_help = "Example:\n  lockd auth inspect client --in client1.pem --output json | jq -r .serial"
    )]
    Client(Inspect),
}

#[derive(Subcommand)]
pub(crate) enum CheckCommand {
    /// A server's file. Lists what is revoked.
    #[command(after_help = "Example:\n  lockd auth verify server --in server.pem")]
    Server(VerifyServer),
    /// A client's file, as the server with the other file would judge it.
    #[command(after_help = "Example:\n  lockd auth verify client --server-in server.pem --in client1.pem")]
    Client(VerifyClient),
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth new server --out server.pem --cn \"lockd-anywhere\" --hosts \"*\" --ca-pass-prompt\n  \
                        lockd auth new server --server-in server.pem --out standby.pem --cn standby")]
pub(crate) struct NewServer {
    /// Where the server's file goes.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Where the CA's file goes; by default ca.pem beside the server's. An existing CA is written only if this is given.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_out: Option<PathBuf>,
    /// The server's common name.
    #[arg(long, value_name = "NAME", default_value = "lockd")]
    pub(crate) cn: Name,
    /// Hosts in the server's certificate, separated by commas. curl and other tools verify them; lockd's own clients do not
    /// [default: localhost, 127.0.0.1, ::1 and this machine's host name]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) hosts: Vec<Host>,
    /// Put the CA's key into the server's file too. Whoever has the server can then make up clients.
    #[arg(long)]
    pub(crate) with_ca_key: bool,
    #[command(flatten)]
    pub(crate) source: CaSource,
    #[command(flatten)]
    pub(crate) pass: Pass,
    #[command(flatten)]
    pub(crate) kind: Kind,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth new client --server-in server.pem --out client1.pem --cn worker-1\n  \
                        lockd auth new client --server-in server.pem --out ada.pem --cn ada --role operator --namespace '*:rwpm'")]
pub(crate) struct NewClient {
    /// Where the client's file goes.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// The client's common name: its identity.
    #[arg(long, value_name = "NAME")]
    pub(crate) cn: Name,
    /// Operators may also revoke and reclaim leases, and set quotas.
    #[arg(long, value_enum, default_value_t = ClientRole::Worker)]
    pub(crate) role: ClientRole,
    /// What it may do where: r read, w write, p read without a lease, m hold by hand; * is any namespace.
    /// Repeatable.
    #[arg(long, value_name = "NAME:RIGHTS", default_value = "default:rw")]
    pub(crate) namespace: Vec<NamespaceRights>,
    #[command(flatten)]
    pub(crate) source: CaSource,
    #[command(flatten)]
    pub(crate) pass: Pass,
    #[command(flatten)]
    pub(crate) kind: Kind,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth revoke client --server-in server.pem --out server.pem 4f0c2e…\n\n\
                        The serial is what `lockd auth inspect client` shows.")]
pub(crate) struct Revoke {
    /// The server's file.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_in: PathBuf,
    /// Where the changed file goes; by default it replaces --server-in.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Serials, in hexadecimal.
    #[arg(value_name = "HEX-SERIAL", required = true)]
    pub(crate) serials: Vec<Serial>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// The file.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) input: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args)]
pub(crate) struct VerifyServer {
    /// The server's file.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// A denylist beside the one in the server's file: one serial a line, # begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) denylist_path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args)]
pub(crate) struct VerifyClient {
    /// The server's file.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_in: PathBuf,
    /// The client's file.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// A denylist beside the one in the server's file: one serial a line, # begins a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) denylist_path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Which CA.
#[derive(Args)]
pub(crate) struct CaSource {
    /// A server's file of that CA. The CA's key is looked for in it, then in ca.pem beside it.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_in: Option<PathBuf>,
    /// The CA's file, if it is elsewhere.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_in: Option<PathBuf>,
}

/// Where the passphrase of the CA's key comes from: never from the command line.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct Pass {
    /// Ask for the passphrase of the CA's key. A new key is encrypted under it.
    #[arg(long = "ca-pass-prompt")]
    pub(crate) prompt: bool,
    /// Read the passphrase from the first line of this file.
    #[arg(long = "ca-pass-file", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Read the passphrase from the first line of this open file descriptor.
    #[arg(long = "ca-pass-fd", value_name = "N")]
    pub(crate) descriptor: Option<u32>,
}

/// What kind of certificate.
#[derive(Args)]
pub(crate) struct Kind {
    /// How long it is valid; never longer than its CA, which is valid for ten years.
    #[arg(long, value_name = "N", default_value_t = Days::USUAL)]
    pub(crate) days: Days,
    /// The kind of key.
    #[arg(long, value_enum, default_value_t = KeyAlgorithm::P256)]
    pub(crate) algorithm: KeyAlgorithm,
}

impl Kind {
    pub(crate) fn get(&self) -> (Algorithm, Days) {
        let algorithm = match self.algorithm {
            KeyAlgorithm::P256 => Algorithm::P256,
            KeyAlgorithm::Ed25519 => Algorithm::Ed25519,
        };
        (algorithm, self.days)
    }
}

#[derive(Args)]
pub(crate) struct Write {
    /// Replace files that are there already.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

impl Write {
    pub(crate) fn existing(&self) -> Existing {
        if self.force { Existing::Replace } else { Existing::Keep }
    }
}

#[derive(Args)]
pub(crate) struct Output {
    /// How the answer is printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ClientRole {
    Worker,
    Operator,
}

impl From<ClientRole> for Role {
    fn from(role: ClientRole) -> Role {
        match role {
            ClientRole::Worker => Role::Worker,
            ClientRole::Operator => Role::Operator,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum KeyAlgorithm {
    P256,
    Ed25519,
}

impl AuthCommand {
    /// What no single flag can tell.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self {
            AuthCommand::New { command: NewCommand::Server(args) } => args.check(),
            AuthCommand::New { command: NewCommand::Client(args) } if args.source.is_none() => {
                Err("give --server-in server.pem, or --ca-in ca.pem: a client belongs to a CA")
            }
            _ => Ok(()),
        }
    }
}

impl NewServer {
    /// The hosts that the certificate names.
    pub(crate) fn hosts(&self) -> Vec<Host> {
        if self.hosts.is_empty() {
            return Host::of_this_machine(rustix::system::uname().nodename().to_str().unwrap_or_default());
        }
        self.hosts.clone()
    }

    /// Where the CA's file goes, if one is to be written.
    pub(crate) fn ca_out(&self) -> Option<PathBuf> {
        let beside = || self.source.is_none().then(|| beside(&self.out));
        self.ca_out.clone().or_else(beside)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.ca_out().is_some_and(|ca_out| ca_out == self.out) {
            return Err("--out and the CA's file are the same; give another --ca-out");
        }
        Ok(())
    }
}

impl CaSource {
    pub(crate) fn is_none(&self) -> bool {
        self.server_in.is_none() && self.ca_in.is_none()
    }
}

/// Where the CA's file of that server is, unless somebody says otherwise.
pub(crate) fn beside(server: &Path) -> PathBuf {
    server.with_file_name("ca.pem")
}
