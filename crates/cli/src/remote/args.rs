//! The command line of `lockd client`. Doc comments on arguments are the `--help` texts.

use std::path::PathBuf;
use std::time::Duration;

use api::requests::{OnExpiry, Resource};
use clap::{ArgAction, Subcommand, ValueEnum};
use lockd_client::SeparateFiles;

use super::agent_commands::{BulkArgs, ManifestArgs, ReconcileArgs, SetAgentArgs};
use super::agents::PREDICATES;
use super::events::EventsArgs;
use super::keys::KeysArgs;
use super::operators::{DeleteNamespaceArgs, PauseArgs, QuotaArgs, ReclaimArgs, RevokeArgs};
use super::views::{LeaseArg, ListArgs, ResourceArg};
use super::{Failure, Output, usage_error};

/// The arguments of `lockd client`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
        lockd run --key orders --block 60s -- ./import-orders   # no variables needed\n  \
        granted=$(lockd client acquire --owner worker-1 --ttl 30s --block 60s orders) && eval \"$granted\"\n  \
        lockd client set orders progress.step=fetch progress.count++ time:progress.updated=NOW\n  \
        lockd client get orders\n  \
        lockd client release orders\n\n\
        The commands read the variables that acquire exports: LOCKD_CLIENT_LEASE_ID is the lease acquired last, and a \
        command that names a key finds an earlier one.")]
pub struct ClientArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) connection: ConnectionArgs,
    /// Format of the output.
    #[arg(long, global = true, env = "LOCKD_CLIENT_OUTPUT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

/// The servers, the client's identity and the namespace.
#[derive(clap::Args)]
pub struct ConnectionArgs {
    /// Server address: `host[:port]`, a URL, or `unix:/path`; a comma-separated list is tried in order.
    #[arg(
        long,
        short,
        global = true,
        env = "LOCKD_CLIENT_SERVER",
        value_name = "SERVER",
        value_delimiter = ',',
        default_value = "localhost:9341"
    )]
    pub server: Vec<String>,
    /// Namespace of the key; `default` if not given.
    #[arg(long, global = true, env = "LOCKD_CLIENT_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Use HTTPS with client certificates for addresses without a scheme; `--mtls=false` uses HTTP.
    #[arg(
        long,
        global = true,
        env = "LOCKD_CLIENT_MTLS",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true"
    )]
    pub mtls: bool,
    /// The identity file, or a directory with tls.crt, tls.key and ca.crt [default: the only client*.pem in the data
    /// directory of `lockd serve`].
    #[arg(long, global = true, env = "LOCKD_CLIENT_IDENTITY", value_name = "PATH")]
    pub identity: Option<PathBuf>,
    /// An identity in three files.
    #[command(flatten)]
    pub tls: TlsFiles,
    /// File of revoked server certificates, one serial per line, in addition to those in the identity file.
    #[arg(long, global = true, env = "LOCKD_CLIENT_DENYLIST_PATH", value_name = "FILE")]
    pub denylist_path: Option<PathBuf>,
    /// Timeout of one request, in addition to `--block` [default: 10s].
    #[arg(long, global = true, env = "LOCKD_CLIENT_TIMEOUT", value_parser = duration)]
    pub timeout: Option<Duration>,
}

/// An identity in three files, instead of an identity file.
#[derive(clap::Args, Clone, Default)]
pub struct TlsFiles {
    /// Certificate, instead of an identity file; needs --tls-key and --tls-ca.
    #[arg(long, global = true, env = "LOCKD_CLIENT_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate in --tls-cert.
    #[arg(long, global = true, env = "LOCKD_CLIENT_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// CAs of servers, with --tls-cert.
    #[arg(long, global = true, env = "LOCKD_CLIENT_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// The three files; `None` if none is named.
    pub fn separate(&self) -> Result<Option<SeparateFiles>, Failure> {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(ca)) => {
                let (certificate, key, ca) = (certificate.clone(), key.clone(), ca.clone());
                Ok(Some(SeparateFiles { certificate, key, ca }))
            }
            _ => Err(usage_error("--tls-cert, --tls-key and --tls-ca belong together; pass all three")),
        }
    }
}

impl ConnectionArgs {
    /// Timeout of one request, without the time that the server may block.
    pub fn answer_timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(10))
    }
}

/// In place of the timeout of one request, for commands that go on until it is over.
#[derive(clap::Args)]
pub(crate) struct FollowTimeout {
    /// How long to follow [default: no limit].
    #[arg(long, env = "LOCKD_CLIENT_TIMEOUT", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Acquire a lease on a key, and print it as exports for the shell.
    Acquire(AcquireArgs),
    /// Renew the lease on a key.
    Keepalive(KeepaliveArgs),
    /// Release the lease on a key; repeating it is harmless.
    #[command(after_help = "Example:\n  lockd client release orders")]
    Release(LeaseKey),
    /// Print the document of a key; nothing if there is none.
    Get(GetArgs),
    /// Replace the document of a key with a file or standard input.
    Update(UpdateArgs),
    /// Remove the document of a key.
    Remove(Remove),
    /// Edit the document of a key; fails if its version changes concurrently.
    Set(SetArgs),
    /// Edit a document in a file, or from standard input to standard output, without a server.
    Edit(EditArgs),
    /// Show the lease, the document version and the waiters of a key.
    #[command(after_help = "Example:\n  lockd client describe orders --output json | jq .waiters")]
    Describe(KeyArg),
    /// Explain why a key is not free: who holds it until when, who waits for it, and the command that resolves it.
    #[command(
        after_help = "Example:\n  lockd client why orders\n  lockd client why orders --output json | jq -r .verdict"
    )]
    Why(KeyArg),
    /// Watch a key: print a line whenever its holder, version or number of waiters changes; or all keys with a prefix.
    Watch(Watch),
    /// List the leases of one namespace, or of all.
    List(ListArgs),
    /// List the keys that have a document, are held, or are waited for.
    Keys(KeysArgs),
    /// Show one lease, also one that has ended.
    Lease(LeaseArg),
    /// Show the leases over a resource, and the number of its waiters.
    Resource(ResourceArg),
    /// Show what happened to a resource within the last hour.
    #[command(after_help = "Example:\n  lockd client history KEY:orders\n  \
                            lockd client history KEY:orders --output json | jq -r .entries[].event")]
    History(ResourceArg),
    /// Show the identity, the role and the rights that the server sees.
    #[command(after_help = "Example:\n  lockd client whoami")]
    Whoami,
    /// Show the waiters, what blocks them, and what was contended recently.
    #[command(visible_alias = "waiters", after_help = "Example:\n  lockd client contention --namespace team")]
    Contention,
    /// Follow the events: grants, releases, expiries, revocations, commits, conflicts.
    Events(EventsArgs),
    /// Activate a reserved lease.
    #[command(after_help = "Example:\n  lockd client activate orders")]
    Activate(LeaseKey),
    /// Take back an expired lease whose resources are on hold, and print it as exports for the shell.
    #[command(after_help = "Example:\n  granted=$(lockd client rebind orders) && eval \"$granted\"")]
    Rebind(LeaseKey),
    /// Record that a lease is in use, against a quota on idle leases.
    #[command(after_help = "Example:\n  lockd client touch orders")]
    Touch(LeaseKey),
    /// Check whether a fencing token is current: exit code 0 if it is, 11 if not.
    Fence(FenceArgs),
    /// Print the metrics of the server.
    #[command(after_help = "Example:\n  lockd client metrics | grep lockd_leases")]
    Metrics,
    /// Print the OpenAPI document of the server.
    #[command(after_help = "Example:\n  lockd client openapi | jq -r '.paths | keys[]'")]
    Openapi,
    #[command(flatten)]
    Administer(AdminVerb),
}

/// The commands of operators and agents.
#[derive(Subcommand)]
pub(crate) enum AdminVerb {
    /// Revoke a lease, or all of an identity or agent: the holder is fenced, and the resources stay blocked. For operators.
    Revoke(RevokeArgs),
    /// Free the resources of a revoked lease. For operators.
    Reclaim(ReclaimArgs),
    /// Stop the grants of an identity or an agent. For operators.
    Pause(PauseArgs),
    /// Resume the grants of an identity or an agent. For operators.
    Resume(PauseArgs),
    /// List the quotas and pauses. For operators.
    #[command(after_help = "Example:\n  lockd client quotas --output json | jq .quotas")]
    Quotas,
    /// Replace the quota of a namespace, an identity, both or all. For operators.
    SetQuota(QuotaArgs),
    /// List the namespaces that the identity may use.
    #[command(after_help = "Example:\n  lockd client namespaces")]
    Namespaces,
    /// Delete a namespace with its documents, ended leases, agents and quotas. For operators.
    DeleteNamespace(DeleteNamespaceArgs),
    /// List the agents of a namespace.
    #[command(after_help = "Example:\n  lockd client agents --namespace team")]
    Agents,
    /// Set the state of an agent.
    SetAgent(SetAgentArgs),
    /// Declare everything that an agent will use, and acquire it as one lease.
    Manifest(ManifestArgs),
    /// Renew several leases by their own TTLs.
    #[command(after_help = "Example:\n  lockd client heartbeat")]
    Heartbeat(BulkArgs),
    /// Release several leases at once.
    #[command(after_help = "Example:\n  lockd client release-all --output json")]
    ReleaseAll(BulkArgs),
    /// Ask the server for the state of several leases.
    Reconcile(ReconcileArgs),
}

#[derive(clap::Args)]
#[command(after_help = "If it fails, its output makes the eval fail with the same exit code.\n\n\
                  Examples:\n  granted=$(lockd client acquire --ttl 30s --block 60s orders) && eval \"$granted\"\n  \
                  lockd client acquire --resource KEY:orders --resource FILE:/etc/app=CONSUMES --on-expiry hold:30s")]
pub(crate) struct AcquireArgs {
    /// Key to acquire; or name resources.
    #[arg(required_unless_present = "resources", conflicts_with = "resources")]
    pub(crate) key: Option<String>,
    /// Resource as KIND:NAME, or KIND:NAME=PREDICATE as in `FILE:/src=CONSUMES`. Repeatable: all are granted together or none.
    #[arg(long = "resource", value_name = "RESOURCE", value_parser = resource)]
    pub(crate) resources: Vec<Resource>,
    #[command(flatten)]
    pub(crate) terms: LeaseTerms,
    /// Reserve only: the lease must be activated before use.
    #[arg(long)]
    pub(crate) reserve: bool,
    /// When the resources become free after the lease expires: `free` at once, `hold:30s` later, `manual` by an operator.
    #[arg(long, value_name = "WHEN", value_parser = on_expiry)]
    pub(crate) on_expiry: Option<OnExpiry>,
    /// Session of the client, for the detection of deadlocks.
    #[arg(long, value_name = "ID", env = "LOCKD_CLIENT_SESSION_ID")]
    pub(crate) session_id: Option<String>,
    /// Data of the holder, up to 1 KiB, shown to clients that may read the lease.
    #[arg(long, value_name = "TEXT")]
    pub(crate) metadata: Option<String>,
}

/// Parses `KIND:NAME` or `KIND:NAME=PREDICATE`. A name may have `=`: only a predicate's name after the last one counts.
fn resource(text: &str) -> Result<Resource, String> {
    let (object, predicate) = match text.rsplit_once('=') {
        Some((object, last)) if PREDICATES.contains(&last) => (object, Some(last.to_string())),
        _ => (text, None),
    };
    match object.split_once(':') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
            Ok(Resource { kind: kind.to_string(), name: name.to_string(), predicate })
        }
        _ => {
            let all = PREDICATES.join(", ");
            Err(format!("write KIND:NAME or KIND:NAME=PREDICATE; PREDICATE is one of {all}"))
        }
    }
}

/// Parses `free`, `manual` or `hold:30s`.
fn on_expiry(text: &str) -> Result<OnExpiry, String> {
    match (text, text.strip_prefix("hold:")) {
        ("free", _) => Ok(OnExpiry::Free),
        ("manual", _) => Ok(OnExpiry::Manual),
        (_, Some(span)) => {
            let ms = u64::try_from(duration(span)?.as_millis());
            ms.map(OnExpiry::HoldMs).map_err(|_| "the time is too long".to_string())
        }
        _ => Err("write free, manual or hold:30s".into()),
    }
}

#[derive(clap::Args)]
#[command(after_help = "This informs: only a check at the resource itself fences a stale holder.\n\n\
                        Example:\n  lockd client fence orders 1794855840898973\n  \
                        lockd run --key orders -- lockd client fence")]
pub(crate) struct FenceArgs {
    /// Key of the lease; `LOCKD_CLIENT_KEY` if not given.
    pub(crate) key: Option<String>,
    /// Fencing token to check.
    #[arg(env = "LOCKD_CLIENT_FENCING_TOKEN")]
    pub(crate) token: Option<u64>,
}

/// The options of an acquire request.
#[derive(clap::Args)]
pub struct LeaseTerms {
    /// Time to live without renewal; the server's default if not given.
    #[arg(long, value_parser = duration, env = "LOCKD_CLIENT_TTL")]
    pub ttl: Option<Duration>,
    /// Maximum time to wait in the queue if the lease cannot be granted at once.
    #[arg(long, value_parser = duration, env = "LOCKD_CLIENT_BLOCK", default_value = "0s")]
    pub block: Duration,
    /// Free-text description of the holder, shown to other clients; the certificate's name if not given.
    #[arg(long, env = "LOCKD_CLIENT_OWNER")]
    pub owner: Option<String>,
}

impl LeaseTerms {
    /// The TTL in milliseconds, as requests carry it.
    pub fn ttl_ms(&self) -> Result<Option<i64>, Failure> {
        let ms = self.ttl.map(|ttl| i64::try_from(ttl.as_millis())).transpose();
        ms.map_err(|_| usage_error("--ttl is too long: its milliseconds do not fit into 63 bits"))
    }
}

/// A key and the credential of the lease on it.
#[derive(clap::Args)]
pub(crate) struct LeaseKey {
    /// Key of the lease; `LOCKD_CLIENT_KEY` if not given.
    pub(crate) key: Option<String>,
    #[command(flatten)]
    pub(crate) lease: LeaseIdArg,
}

#[derive(clap::Args)]
pub(crate) struct LeaseIdArg {
    /// Credential of the lease; if not given, `LOCKD_CLIENT_LEASE_ID`, provided that it belongs to the same key.
    #[arg(long)]
    pub(crate) lease_id: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  lockd client keepalive --ttl 45s orders")]
pub(crate) struct KeepaliveArgs {
    #[command(flatten)]
    pub(crate) held: LeaseKey,
    /// New time to live, from now; the lease's own TTL if not given.
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(clap::Args)]
#[command(
    after_help = "If it fails with a pipe as output, it also prints a line that is not JSON, which `edit` and `update` further \
                        down the pipe reject. With -o FILE, a failure writes nothing.\n\n\
                        Example:\n  lockd client get orders -o checkpoint.json\n  lockd client get --public orders | jq ."
)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) held: LeaseKey,
    /// File to write the document to; `-` is standard output.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "-", value_parser = output_file)]
    pub(crate) out: PathBuf,
    /// Read the last committed document without holding a lease.
    #[arg(long)]
    pub(crate) public: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  echo '{\"step\":\"done\"}' | lockd client update orders --release\n  \
                        lockd client update orders --file checkpoint.json --if-version 7")]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    pub(crate) held: LeaseKey,
    /// File to read the document from; `-` is standard input.
    #[arg(short = 'i', long, value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) only: WriteConditions,
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  lockd client remove orders --if-version 7\n  lockd client remove --release"
)]
pub(crate) struct Remove {
    #[command(flatten)]
    pub(crate) held: LeaseKey,
    #[command(flatten)]
    pub(crate) only: WriteConditions,
}

/// The conditions of a write, and whether it releases the lease.
#[derive(clap::Args)]
pub struct WriteConditions {
    /// Fail unless the key has this version.
    #[arg(long, value_name = "N")]
    pub if_version: Option<u64>,
    /// Fail unless the document has this ETag; an empty value means that there must be no document.
    #[arg(long, value_name = "ETAG")]
    pub if_etag: Option<String>,
    /// Release the lease atomically with the write.
    #[arg(long)]
    pub release: bool,
}

#[derive(clap::Args)]
#[command(after_help = EDITS)]
pub(crate) struct SetArgs {
    /// Key of the document.
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) lease: LeaseIdArg,
    /// Edits, applied in order.
    #[arg(required = true)]
    pub(crate) edits: Vec<String>,
}

#[derive(clap::Args)]
#[command(after_help = EDITS)]
pub(crate) struct EditArgs {
    /// File to edit in place; if not given, standard input is edited to standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Edits, applied in order.
    #[arg(required = true)]
    pub(crate) edits: Vec<String>,
}

const EDITS: &str = "Edits:\n  \
    path=value      numbers, true, false, null and quoted strings are parsed as JSON; anything else is a string\n  \
    path:=JSON      any JSON\n  \
    path++ path--   add or subtract 1; a missing path counts as 0\n  \
    path=+N path=-N add or subtract N\n  \
    rm:path         remove the path; delete:path does the same\n  \
    time:path=NOW   the current time, or a given one as in 2026-11-15T08:42:00Z\n\n\
    Paths: a.b descends, a\\.b is one name, a[0] and a[-1] index arrays, a[+] appends.\n\
    Empty input is read as {}. A get or edit that fails prints a line that is not JSON, which the next command in the \
    pipe rejects; one that is killed prints nothing. set needs no pipe.\n\n\
    Example:\n  lockd client set orders status.counter++ status.step=fetch\n  \
    lockd client get orders -o - | lockd client edit status.counter++ | lockd client update orders";

#[derive(clap::Args)]
pub(crate) struct KeyArg {
    /// Key to show.
    #[arg(env = "LOCKD_CLIENT_KEY")]
    pub(crate) key: String,
}

#[derive(clap::Args)]
#[command(
    after_help = "A key that was never used counts as free. If the server cannot be reached, polling goes on until --timeout.\n\n\
                        Exit codes: 0 the --until condition was met (without --until: watched until --timeout); 1 it was not \
                        met before --timeout; 13 the server was unreachable at --timeout.\n\n\
                        With --prefix it prints the events of all keys that begin with it, as the server reports them; \
                        --until changed ends it with the first.\n\n\
                        Examples:\n  lockd client watch orders\n  \
                        lockd client watch --prefix orders/\n  \
                        lockd client watch orders --until free --timeout 10m && ./start\n  \
                        lockd client watch orders --output json | jq -r .holder"
)]
pub(crate) struct Watch {
    /// Key to watch; `LOCKD_CLIENT_KEY` if not given.
    #[arg(conflicts_with = "prefix")]
    pub(crate) key: Option<String>,
    /// Watch all keys that begin with this; empty: all keys.
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// Polling interval, at least 100ms.
    #[arg(long, value_parser = interval, default_value = "1s")]
    pub(crate) every: Duration,
    /// Condition that ends the watch.
    #[arg(long, value_enum)]
    pub(crate) until: Option<Until>,
    #[command(flatten)]
    pub(crate) follow: FollowTimeout,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// No lease covers the key.
    Free,
    /// A lease covers the key, or it is revoked and not yet reclaimed.
    Held,
    /// The key differs from its first state.
    Changed,
}

/// Parses the file of `-o`. A word that is a format of the output is refused: elsewhere `-o json` means that.
pub fn output_file(text: &str) -> Result<PathBuf, String> {
    if ["text", "json", "yaml", "table", "wide"].contains(&text) {
        return Err(format!(
            "-o is a file: write --output {text} for the format, or -o ./{text} for the file"
        ));
    }
    Ok(text.into())
}

/// Parses `30s`, `5m`, `1h 30m`; a bare number is in seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 30s, 5m or 1h"))
}

/// Parses a polling interval; the minimum bounds the load on the server.
fn interval(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    if every < Duration::from_millis(100) {
        return Err("the minimum is 100ms".into());
    }
    Ok(every)
}
