//! The command line of `lockd auth`. Doc comments on arguments are the `--help` texts.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use cli::output::Output as OutputFormat;
use identity::file::Existing;
use identity::{Algorithm, Days, Host, Name, NamespaceRights, Role, Serial};

use super::export::Export;
use super::list::List;
use super::renew::Renew;
use super::trust::TrustArgs;

#[derive(Subcommand)]
pub(crate) enum AuthCommand {
    /// Create an identity file.
    New {
        #[command(subcommand)]
        command: NewCommand,
    },
    /// Issue the certificates of an identity file again, before they expire.
    ///
    /// Name, rights, hosts, key algorithm, trusted CAs and denylist stay; keys, serials and dates are new. Running servers
    /// and clients that use the file take it over within seconds. With --ca-in another CA issues them, and the old one
    /// stays trusted.
    Renew(Renew),
    /// Write a client's identity as PKCS#12, to import it into a browser that opens the console at `/ui/`.
    Export(Export),
    /// Trust another CA too, or one no longer: to replace a CA without an interruption.
    Trust(TrustArgs),
    /// List the issued certificates, with revoked and expired ones marked.
    List(List),
    /// Revoke certificates by serial, by identity file or by name.
    Revoke {
        #[command(subcommand)]
        command: RevokeCommand,
    },
    /// Make revoked client certificates valid again.
    Unrevoke {
        #[command(subcommand)]
        command: UnrevokeCommand,
    },
    /// Show the certificates in an identity file. Private keys are not shown.
    Inspect {
        #[command(subcommand)]
        command: InspectCommand,
    },
    /// Verify an identity file: issuer, purpose, private key, validity period and revocation.
    Verify {
        #[command(subcommand)]
        command: CheckCommand,
    },
}

#[derive(Subcommand)]
pub(crate) enum NewCommand {
    /// Create a CA and a server certificate: writes the server's identity file, and the CA's next to it.
    ///
    /// The CA file is needed to issue client certificates, but not by the server: store it elsewhere. With --server-in or
    /// --ca-in the certificate is issued by an existing CA, as required for a second server of a store.
    Server(NewServer),
    /// Create a client certificate, issued by a server's CA.
    Client(NewClient),
    /// Create a CA alone, to replace another with it.
    Ca(NewCa),
}

#[derive(Subcommand)]
pub(crate) enum RevokeCommand {
    /// Add clients to the denylist in a server's identity file. Needs no CA key.
    ///
    /// A running server that uses the file applies the new list within 5 seconds, without a restart: it closes the
    /// connections of revoked clients and dismisses their waiters. `lockd reload` does it at once.
    #[command(after_help = "Example:\n  \
                            lockd auth revoke client --server-in server.pem 4f0c2e…\n  \
                            lockd auth revoke client --server-in server.pem --in client1.pem\n  \
                            lockd auth revoke client --server-in server.pem --cn worker-1\n\n\
                            `lockd auth list` shows the serials of all issued certificates.")]
    Client(Revoke),
    /// Add servers to the denylist in clients' identity files: those clients refuse to connect to them.
    ///
    /// Running clients that use the files apply the new list within seconds. For clients whose files are elsewhere, give
    /// them the serials in a file with --denylist-path.
    Server(RevokeServer),
}

#[derive(Subcommand)]
pub(crate) enum UnrevokeCommand {
    /// Mark clients in the denylist of a server's identity file as valid again. Needs no CA key.
    ///
    /// A server accepts a denylist that lost serials only if they are marked. A serial that is also in the file of
    /// --denylist-path stays revoked until its line there is removed.
    #[command(after_help = "Example:\n  lockd auth unrevoke client --server-in server.pem 4f0c2e…")]
    Client(Revoke),
}

#[derive(Subcommand)]
pub(crate) enum InspectCommand {
    /// Show a server's identity file.
    #[command(after_help = "Example:\n  lockd auth inspect server --in server.pem")]
    Server(Inspect),
    /// Show a client's identity file.
    #[command(
        after_help = "Example:\n  lockd auth inspect client --in client1.pem --output json | jq -r .serial"
    )]
    Client(Inspect),
}

#[derive(Subcommand)]
pub(crate) enum CheckCommand {
    /// Verify a server's identity file, and list the revoked serials.
    #[command(after_help = "Example:\n  lockd auth verify server --in server.pem")]
    Server(VerifyServer),
    /// Verify a client's identity file as a server with the given file would.
    #[command(after_help = "Example:\n  lockd auth verify client --server-in server.pem --in client1.pem")]
    Client(VerifyClient),
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth new server --out server.pem --cn \"lockd-anywhere\" --hosts \"*\" --ca-pass-prompt\n  \
                        lockd auth new server --server-in server.pem --out standby.pem --cn standby")]
pub(crate) struct NewServer {
    /// File to write the server's identity to.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// File to write the CA to [default: ca.pem next to --out]. An existing CA is written only if this is given.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_out: Option<PathBuf>,
    /// Common name of the server certificate.
    #[arg(long, value_name = "NAME", default_value = "lockd")]
    pub(crate) cn: Name,
    /// Hosts in the server's certificate, separated by commas. curl and other tools verify them; lockd's own clients do not
    /// [default: localhost, 127.0.0.1, `::1` and this machine's host name]
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) hosts: Vec<Host>,
    /// Also store the CA key in the server's file. Anyone who can read that file can then issue client certificates.
    #[arg(long)]
    pub(crate) with_ca_key: bool,
    #[command(flatten)]
    pub(crate) source: CaSource,
    #[command(flatten)]
    pub(crate) pass: PassphraseSource,
    #[command(flatten)]
    pub(crate) kind: CertificateArgs,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth new client --server-in server.pem --out client1.pem --cn worker-1\n  \
                        lockd auth new client --server-in server.pem --out ada.pem --cn ada --role operator --namespace '*:rwpm'")]
pub(crate) struct NewClient {
    /// File to write the client's identity to.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Common name of the client certificate: the client's identity.
    #[arg(long, value_name = "NAME")]
    pub(crate) cn: Name,
    /// Role of the client; operators may also revoke and reclaim leases, and set quotas.
    #[arg(long, value_enum, default_value_t = ClientRole::Worker)]
    pub(crate) role: ClientRole,
    /// Rights in a namespace: r read, w write, p read without a lease, m manual hold (`on_expiry=manual`); `*` is any
    /// namespace. Repeatable.
    #[arg(long, value_name = "NAME:RIGHTS", default_value = "default:rw")]
    pub(crate) namespace: Vec<NamespaceRights>,
    #[command(flatten)]
    pub(crate) source: CaSource,
    #[command(flatten)]
    pub(crate) pass: PassphraseSource,
    #[command(flatten)]
    pub(crate) kind: CertificateArgs,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
}

#[derive(Args)]
#[command(after_help = "Example:\n  lockd auth new ca --out new/ca.pem --ca-pass-prompt")]
pub(crate) struct NewCa {
    /// File to write the CA to.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Common name of the CA certificate.
    #[arg(long, value_name = "NAME", default_value = "lockd CA")]
    pub(crate) cn: Name,
    #[command(flatten)]
    pub(crate) pass: PassphraseSource,
    /// Validity in days.
    #[arg(long, value_name = "N", default_value_t = Days::CA_DEFAULT)]
    pub(crate) days: Days,
    /// Algorithm of the private key.
    #[arg(long, value_enum, default_value_t = KeyAlgorithm::P256)]
    pub(crate) algorithm: KeyAlgorithm,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
}

#[derive(Args)]
pub(crate) struct Revoke {
    /// Identity file of the server.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_in: PathBuf,
    /// File to write the result to; by default it replaces --server-in.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
}

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth revoke server --client-in client1.pem --in stolen-server.pem\n  \
                        lockd auth revoke server --client-in client1.pem --client-in client2.pem 4f0c2e…")]
pub(crate) struct RevokeServer {
    /// Identity file of a client that must refuse the server. Repeatable.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) client_in: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The certificates to revoke.
#[derive(Args)]
#[group(required = true, multiple = true, args = ["serials", "files", "cn"])]
pub(crate) struct Selection {
    /// Serials to revoke, in hexadecimal.
    #[arg(value_name = "HEX-SERIAL")]
    pub(crate) serials: Vec<Serial>,
    /// Identity file, or certificate, to revoke. Repeatable.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Revoke every unexpired certificate that was issued under this name, by the record of issued certificates.
    /// Repeatable.
    #[arg(long, value_name = "NAME")]
    pub(crate) cn: Vec<Name>,
    #[command(flatten)]
    pub(crate) record: RecordSource,
}

/// The record of issued certificates.
#[derive(Args)]
pub(crate) struct RecordSource {
    /// CA file, if it is not next to the server's file: the record is next to it.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_in: Option<PathBuf>,
    /// Record of issued certificates, if it is not next to the CA's key.
    #[arg(long, value_name = "FILE")]
    pub(crate) issued: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// Identity file to show.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) input: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args)]
pub(crate) struct VerifyServer {
    /// Identity file of the server.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Additional denylist: one serial per line, # starts a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) denylist_path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args)]
pub(crate) struct VerifyClient {
    /// Identity file of the server.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_in: PathBuf,
    /// Identity file of the client.
    #[arg(long = "in", value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Additional denylist: one serial per line, # starts a comment.
    #[arg(long, value_name = "FILE")]
    pub(crate) denylist_path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The issuing CA.
#[derive(Args)]
pub(crate) struct CaSource {
    /// Identity file of a server of the CA. The CA key is read from this file, else from ca.pem or ca/ca.pem next to it.
    #[arg(long, value_name = "FILE")]
    pub(crate) server_in: Option<PathBuf>,
    /// CA file, if it is elsewhere.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_in: Option<PathBuf>,
    /// File to record the issued certificate in [default: `issued` next to the file with the CA key].
    #[arg(long, value_name = "FILE")]
    pub(crate) issued: Option<PathBuf>,
}

/// The source of the CA key's passphrase; never the command line, which other processes can read.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct PassphraseSource {
    /// Prompt for the passphrase of the CA key. A new key is encrypted with it.
    #[arg(long = "ca-pass-prompt")]
    pub(crate) prompt: bool,
    /// Read the passphrase from the first line of this file.
    #[arg(long = "ca-pass-file", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Read the passphrase from the first line of this open file descriptor.
    #[arg(long = "ca-pass-fd", value_name = "N")]
    pub(crate) descriptor: Option<u32>,
}

/// The source of an exported file's passphrase; a prompt if none is given.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct ExportPassphrase {
    /// Read the passphrase of the new file from the first line of this file.
    #[arg(long = "pass-file", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Read the passphrase of the new file from the first line of this open file descriptor.
    #[arg(long = "pass-fd", value_name = "N")]
    pub(crate) descriptor: Option<u32>,
}

/// The validity and key algorithm of a certificate.
#[derive(Args)]
pub(crate) struct CertificateArgs {
    /// Validity in days, limited by that of the CA, which is valid for ten years.
    #[arg(long, value_name = "N", default_value_t = Days::DEFAULT)]
    pub(crate) days: Days,
    /// Algorithm of the private key.
    #[arg(long, value_enum, default_value_t = KeyAlgorithm::P256)]
    pub(crate) algorithm: KeyAlgorithm,
}

impl CertificateArgs {
    pub(crate) fn get(&self) -> (Algorithm, Days) {
        (self.algorithm.into(), self.days)
    }
}

#[derive(Args)]
pub(crate) struct WriteArgs {
    /// Overwrite existing files.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

impl WriteArgs {
    pub(crate) fn existing(&self) -> Existing {
        if self.force { Existing::Replace } else { Existing::Keep }
    }
}

#[derive(Args)]
pub(crate) struct Output {
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) output: OutputFormat,
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

impl From<KeyAlgorithm> for Algorithm {
    fn from(algorithm: KeyAlgorithm) -> Algorithm {
        match algorithm {
            KeyAlgorithm::P256 => Algorithm::P256,
            KeyAlgorithm::Ed25519 => Algorithm::Ed25519,
        }
    }
}

impl AuthCommand {
    /// Checks that involve several flags.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match self {
            AuthCommand::New { command: NewCommand::Server(args) } => args.check(),
            AuthCommand::New { command: NewCommand::Client(args) } if args.source.is_none() => {
                Err("a client certificate needs a CA; pass --server-in server.pem or --ca-in ca.pem")
            }
            AuthCommand::List(args) => args.check(),
            _ => Ok(()),
        }
    }
}

impl NewServer {
    /// The hosts that the certificate names.
    pub(crate) fn hosts(&self) -> Vec<Host> {
        if self.hosts.is_empty() {
            return Host::of_this_machine(&system::host_name());
        }
        self.hosts.clone()
    }

    /// The path of the CA file to write, if any.
    pub(crate) fn ca_out(&self) -> Option<PathBuf> {
        let default = || self.source.is_none().then(|| default_ca_file(&self.out));
        self.ca_out.clone().or_else(default)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.ca_out().is_some_and(|ca_out| ca_out == self.out) {
            return Err("--out and the CA file are the same; pass another --ca-out");
        }
        Ok(())
    }
}

impl CaSource {
    pub(crate) fn is_none(&self) -> bool {
        self.server_in.is_none() && self.ca_in.is_none()
    }
}

/// The path of the CA file that `auth new server` writes by default.
pub(crate) fn default_ca_file(server: &Path) -> PathBuf {
    server.with_file_name("ca.pem")
}
