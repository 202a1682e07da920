//! The command line of `lockd client`. Texts here are what `--help` shows.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Subcommand, ValueEnum};

use super::{Failure, misused};

/// `lockd client`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
        granted=$(lockd client acquire --owner worker-1 --ttl 30s --block 60s orders) && eval \"$granted\"\n  \
        lockd client set orders progress.step=fetch progress.count++ time:progress.updated=NOW\n  \
        lockd client get orders\n  \
        lockd client release orders\n\n\
        What acquire exports is found by the commands after it.")]
pub struct ClientArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// How answers are printed.
    #[arg(long, global = true, env = "LOCKD_CLIENT_OUTPUT", value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

/// Which servers are asked, by whom, and about which namespace.
#[derive(clap::Args)]
pub struct Connection {
    /// The server: `host[:port]`, a URL, or `unix:/path`. Several, by commas, are tried in turn.
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
    /// The namespace of the key; `default` if none is named.
    #[arg(long, global = true, env = "LOCKD_CLIENT_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,
    /// Servers without a scheme speak HTTPS; with `--mtls=false`, HTTP.
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
    /// Who asks [default: the one client*.pem in this folder, or in the data folder of `lockd serve`].
    #[arg(long, global = true, env = "LOCKD_CLIENT_IDENTITY", value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// How long one answer may take, beside `--block` [default: 10s]. Of watch: how long to watch [default: for ever].
    #[arg(long, global = true, env = "LOCKD_CLIENT_TIMEOUT", value_parser = duration)]
    pub timeout: Option<Duration>,
}

impl Connection {
    /// How long one answer may take.
    pub fn answer_timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(10))
    }
}

/// How answers are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people; of acquire, for the shell.
    Text,
    /// One JSON object, as the server sent it.
    Json,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Take a lease over a key, and print it as exports for the shell.
    Acquire(Acquire),
    /// Extend the lease.
    Keepalive(Keepalive),
    /// Give the lease back; again and again, if need be.
    #[command(after_help = "Example:\n  lockd client release orders")]
    Release(HeldKey),
    /// Print the document of a key; nothing if there is none.
    Get(Get),
    /// Replace the document of a key, from a file or standard input.
    Update(Update),
    /// Remove the document of a key.
    Remove(Remove),
    /// Change the document of a key by edits, if nobody else has changed it meanwhile.
    Set(Set),
    /// Change a document in a file, or between standard input and output, by edits. Asks no server.
    Edit(Edit),
    /// Show what is known of a key.
    #[command(after_help = "Example:\n  lockd client describe orders --output json | jq .waiters")]
    Describe(Named),
    /// Say why a key is not free, and what would free it.
    #[command(after_help = "Example:\n  lockd client why orders")]
    Why(Named),
    /// Follow a key: print a line whenever its holder, its version or its waiters change.
    Watch(Watch),
    /// List leases, of one namespace or all.
    #[command(
        after_help = "Example:\n  lockd client list\n  lockd client list --namespace team --output json | jq -r .leases[].owner"
    )]
    List,
    /// Withdraw a lease: its holder is fenced, and the key stays taken until it is reclaimed. For operators.
    #[command(after_help = "Example:\n  lockd client revoke L-0000000000000001000000000000abcd")]
    Revoke(PublicId),
    /// Free what a withdrawn lease covered. For operators.
    #[command(after_help = "Example:\n  lockd client reclaim L-0000000000000001000000000000abcd")]
    Reclaim(PublicId),
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  granted=$(lockd client acquire --ttl 30s --block 60s orders) && eval \"$granted\""
)]
pub(crate) struct Acquire {
    /// The key.
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) terms: Terms,
}

/// How a lease is asked for.
#[derive(clap::Args)]
pub struct Terms {
    /// How long the lease lasts without a renewal; the server's default if it is not said.
    #[arg(long, value_parser = duration, env = "LOCKD_CLIENT_TTL")]
    pub ttl: Option<Duration>,
    /// How long to wait while others hold the key.
    #[arg(long, value_parser = duration, env = "LOCKD_CLIENT_BLOCK", default_value = "0s")]
    pub block: Duration,
    /// For people to read; the certificate's name if it is not said.
    #[arg(long, env = "LOCKD_CLIENT_OWNER")]
    pub owner: Option<String>,
}

impl Terms {
    /// The TTL as servers are told it.
    pub fn ttl_ms(&self) -> Result<Option<i64>, Failure> {
        let ms = self.ttl.map(|ttl| i64::try_from(ttl.as_millis())).transpose();
        ms.map_err(|_| misused("--ttl is longer than can be counted"))
    }
}

/// A key, and the lease over it.
#[derive(clap::Args)]
pub(crate) struct HeldKey {
    /// The key; `LOCKD_CLIENT_KEY` if it is not said.
    pub(crate) key: Option<String>,
    #[command(flatten)]
    pub(crate) lease: LeaseId,
}

#[derive(clap::Args)]
pub(crate) struct LeaseId {
    /// The lease's credential; `LOCKD_CLIENT_LEASE_ID`, if that is of the same key, where it is not said.
    #[arg(long)]
    pub(crate) lease_id: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  lockd client keepalive --ttl 45s orders")]
pub(crate) struct Keepalive {
    #[command(flatten)]
    pub(crate) held: HeldKey,
    /// For how long from now; the lease's own TTL if it is not said.
    #[arg(long, value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(clap::Args)]
#[command(
    after_help = "A get that fails also prints a line that is no JSON, unless to a terminal: `edit` and `update` behind it in a pipe \
                        refuse that. With -o FILE nothing is written.\n\n\
                        Example:\n  lockd client get orders -o checkpoint.json\n  lockd client get --public orders | jq ."
)]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) held: HeldKey,
    /// Where to write it; `-` is standard output.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "-")]
    pub(crate) out: PathBuf,
    /// The last committed document, without a lease.
    #[arg(long)]
    pub(crate) public: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  echo '{\"step\":\"done\"}' | lockd client update orders --release\n  \
                        lockd client update orders --file checkpoint.json --if-version 7")]
pub(crate) struct Update {
    #[command(flatten)]
    pub(crate) held: HeldKey,
    /// Where the document is; `-` is standard input.
    #[arg(short = 'i', long, value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) only: Only,
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  lockd client remove orders --if-version 7\n  lockd client remove --release"
)]
pub(crate) struct Remove {
    #[command(flatten)]
    pub(crate) held: HeldKey,
    #[command(flatten)]
    pub(crate) only: Only,
}

/// When a document is changed, and what happens then.
#[derive(clap::Args)]
pub struct Only {
    /// Refuse unless the key has this version.
    #[arg(long, value_name = "N")]
    pub if_version: Option<u64>,
    /// Refuse unless the document has this hash; empty: unless there is none.
    #[arg(long, value_name = "ETAG")]
    pub if_etag: Option<String>,
    /// Give the lease back with it, in one step.
    #[arg(long)]
    pub release: bool,
}

#[derive(clap::Args)]
#[command(after_help = EDITS)]
pub(crate) struct Set {
    /// The key.
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) lease: LeaseId,
    /// What to change.
    #[arg(required = true)]
    pub(crate) edits: Vec<String>,
}

#[derive(clap::Args)]
#[command(after_help = EDITS)]
pub(crate) struct Edit {
    /// The file to change in place; without one, standard input is read and the result printed.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// What to change.
    #[arg(required = true)]
    pub(crate) edits: Vec<String>,
}

const EDITS: &str = "Edits:\n  \
    path=value      a number, true, false, null or a quoted string is that; anything else is a string\n  \
    path:=JSON      any JSON\n  \
    path++ path--   add or subtract 1; a missing path counts from 0\n  \
    path=+N path=-N add or subtract N\n  \
    rm:path         remove; so does delete:path\n  \
    time:path=NOW   the time now, or one as in 2026-11-15T08:42:00Z\n\n\
    Paths: a.b descends, a\\.b is one name, a[0] and a[-1] index arrays, a[+] appends.\n\
    Empty input is read as {}. A get or edit that fails prints a line that is no JSON, so that the commands behind it in a \
    pipe refuse it; one that is killed prints nothing. set needs no pipe.\n\n\
    Example:\n  lockd client set orders status.counter++ status.step=fetch\n  \
    lockd client get orders -o - | lockd client edit status.counter++ | lockd client update orders";

#[derive(clap::Args)]
pub(crate) struct Named {
    /// The key; `LOCKD_CLIENT_KEY` if it is not said.
    #[arg(env = "LOCKD_CLIENT_KEY")]
    pub(crate) key: String,
}

#[derive(clap::Args)]
#[command(
    after_help = "A key that was never used is free. A server that cannot be reached is asked again, until --timeout.\n\n\
                        Exit codes: 0 it was so (or, without --until, watched until --timeout); 1 it was not so by \
                        --timeout; 13 the server could not be reached by then.\n\n\
                        Examples:\n  lockd client watch orders\n  \
                        lockd client watch orders --until free --timeout 10m && ./start\n  \
                        lockd client watch orders --output json | jq -r .owner"
)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) named: Named,
    /// How often to ask; at least 100ms.
    #[arg(long, value_parser = interval, default_value = "1s")]
    pub(crate) every: Duration,
    /// End when this is so.
    #[arg(long, value_enum)]
    pub(crate) until: Option<Until>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// Nobody holds it.
    Free,
    /// Somebody holds it, or it waits to be reclaimed.
    Held,
    /// Anything is other than it was at first.
    Changed,
}

#[derive(clap::Args)]
pub(crate) struct PublicId {
    /// The lease's public name, as describe and list show it.
    pub(crate) public_id: String,
}

/// `30s`, `5m`, `1h 30m`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 30s, 5m or 1h"))
}

/// A duration that leaves a server in peace.
fn interval(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    if every < Duration::from_millis(100) {
        return Err("the shortest is 100ms".into());
    }
    Ok(every)
}
