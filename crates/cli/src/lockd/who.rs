//! `lockd store who KEY --at TIME`: who held a key at a past instant, from the log.
//!
//! **Invariant.** The answer is the state that the kernel had at that instant: the newest snapshot before it, and the
//! records up to it. An instant before the first state that can be recovered is refused, not guessed at.

mod instant;

use std::io::Write as _;
use std::path::Path;

use cli::failure::{CommandResult, Failure};
use cli::output::{Output, rendered};
use cli::times::{ms_text, unix_ms_text_precise};
use cli::untrusted::{escape_lines, word};
use kernel::{Kernel, LeaseView, Namespace, ResourceName, Slot, Time};
use serde::Serialize;
use store::Seq;
use store::disk::StoreView;

use self::instant::Instant;
use crate::bucket_flags::BucketFlags;
use crate::local_store::{LocalStore, StoreArg};
use crate::log_replay::{BaseState, LogReplay, ReplayItem};

/// The arguments of `lockd store who`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 the key was held or free; 1 the log does not reach back to that time, or cannot be read; 2 \
                  wrong usage.\n\n\
                  Examples:\n  \
                  lockd store who orders --at 2026-11-18T02:13:04Z\n  \
                  lockd store who orders --at=-10m --store /var/lib/lockd\n  \
                  lockd store who FILE:/repo/src/main.rs --namespace build --at 1794969184 --output json"
)]
pub(crate) struct Who {
    /// Key, or another resource as in `FILE:/path`.
    #[arg(value_name = "KEY")]
    key: String,
    /// The instant: RFC 3339 in UTC, Unix seconds, or a duration before now, as in `-10m`.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = Instant::parse)]
    at: Instant,
    /// Namespace of the key.
    #[arg(long, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Store to read: `disk:///path`, the path of its directory or of the server's data directory, or the URL of a bucket; by
    /// default the one in the default data directory.
    #[arg(long, value_name = "STORE", value_parser = StoreArg::parse)]
    store: Option<StoreArg>,
    #[command(flatten)]
    bucket: BucketFlags,
    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The answer. The JSON form is stable: fields are added, never renamed.
#[derive(Serialize)]
struct Answer {
    namespace: String,
    resource: String,
    at: String,
    at_unix_ms: u64,
    /// Whether a lease with authority covered the resource.
    held: bool,
    /// The leases over the resource, the oldest first; those without authority blocked it.
    leases: Vec<PastLease>,
}

#[derive(Serialize)]
struct PastLease {
    lease: String,
    holder: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    state: &'static str,
    fencing_token: u64,
    granted: String,
    granted_unix_ms: u64,
    /// The deadline as it was then: a later renewal does not count.
    deadline: String,
    deadline_unix_ms: u64,
}

/// A state at an instant.
struct PastState {
    kernel: Kernel,
    now: Time,
}

/// Prints who held the key.
pub(crate) fn who(args: &Who) -> CommandResult {
    let usage = |what: String| Failure::new(2, what);
    let resource = resource(&args.key).map_err(usage)?;
    let namespace = Namespace::new(&args.namespace)
        .map_err(|error| usage(format!("not a namespace: {error}: namespace={}", args.namespace)))?;
    let at_unix_ms = args.at.unix_ms().map_err(usage)?;
    let store = LocalStore::open(args.store.as_ref(), &args.bucket, args.output)?;
    let answer = answer(&store.path, &namespace, &resource, at_unix_ms);
    let answer = answer.map_err(|what| Failure::new(1, what))?;
    let text = match args.output {
        Output::Json => serde_json::to_string(&answer).expect("plain data") + "\n",
        output => rendered(output, &answer, || answer.text()),
    };
    // A closed pipe is no failure.
    let _ = std::io::stdout().write_all(escape_lines(&text).as_bytes());
    Ok(())
}

/// A name without a kind is a key.
fn resource(text: &str) -> Result<ResourceName, String> {
    let kind = text.split_once(':').map_or("", |(kind, _)| kind);
    let has_kind = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_uppercase());
    let parsed = if has_kind { ResourceName::parse(text, None) } else { ResourceName::key(text) };
    parsed.map_err(|error| format!("not a resource: {error}: key={text}"))
}

fn answer(
    store: &Path,
    namespace: &Namespace,
    resource: &ResourceName,
    at_unix_ms: u64,
) -> Result<Answer, String> {
    let view = StoreView::open(store).map_err(|error| error.to_string())?;
    let map = view.map().map_err(|error| error.to_string())?;
    let shard = map.shard(Slot::of(namespace).number());
    let state = state_at(&view, shard, at_unix_ms)?;
    let holders = state.kernel.holders(namespace, resource, state.now);
    let leases: Vec<PastLease> = holders.iter().map(|lease| past_lease(lease, &state, at_unix_ms)).collect();
    Ok(Answer {
        namespace: namespace.as_str().to_string(),
        resource: resource.as_str().to_string(),
        at: unix_ms_text_precise(at_unix_ms),
        at_unix_ms,
        held: leases.iter().any(|lease| lease.state == "active" || lease.state == "reserved"),
        leases,
    })
}

fn past_lease(lease: &LeaseView, state: &PastState, at_unix_ms: u64) -> PastLease {
    let wall = |time: Time| {
        at_unix_ms.saturating_sub(time.until(state.now).0).saturating_add(state.now.until(time).0)
    };
    let (granted_unix_ms, deadline_unix_ms) = (wall(lease.granted_at), wall(lease.deadline));
    PastLease {
        lease: lease.id.to_string(),
        holder: lease.identity.as_str().to_string(),
        owner: lease.details.owner.as_ref().map(|owner| owner.as_str().to_string()),
        agent: lease.details.agent.as_ref().map(|agent| agent.as_str().to_string()),
        state: lease.state.as_str(),
        fencing_token: lease.token.0,
        granted: unix_ms_text_precise(granted_unix_ms),
        granted_unix_ms,
        deadline: unix_ms_text_precise(deadline_unix_ms),
        deadline_unix_ms,
    }
}

/// Replays the log up to the instant.
fn state_at(view: &StoreView, shard: u32, at_unix_ms: u64) -> Result<PastState, String> {
    let mut replay = LogReplay::open(view, shard)?;
    let wall_of = |kernel: &Kernel| kernel.clocks().map_or(u64::MAX, |clocks| clocks.unix_ms);
    let base = replay.begin_at(|kernel| wall_of(kernel) <= at_unix_ms);
    let mut last = None;
    match base {
        Some(base) if wall_of(&base.kernel) <= at_unix_ms => {
            last = Some((wall_of(&base.kernel), base.kernel.now()));
            replay.continue_from(base)?;
        }
        // The log begins before its first snapshot.
        oldest if replay.kernel().is_none() => return Err(before_the_log(oldest, at_unix_ms)),
        _ => {}
    }
    let mut next_now = None;
    while let ReplayItem::Record(timed) = replay.next()? {
        let unix_ms = timed.unix_ms.unwrap_or(0);
        if unix_ms > at_unix_ms {
            next_now = Some(timed.record.now);
            if last.is_none() {
                return Err(before_the_store(unix_ms, at_unix_ms));
            }
            break;
        }
        let lsn = timed.record.lsn;
        replay.apply(&timed.record).ok_or_else(|| {
            format!(
                "the log does not replay with this build; use the lockd version that wrote it: lsn={}",
                lsn.0
            )
        })?;
        last = Some((unix_ms, timed.record.now));
    }
    let (Some((unix_ms, now)), Some(kernel)) = (last, replay.into_kernel()) else {
        return Err("the log is empty".to_string());
    };
    let now = now.after(kernel::Span(at_unix_ms.saturating_sub(unix_ms)));
    // While no server ran, time stood still for leases.
    Ok(PastState { kernel, now: next_now.map_or(now, |next| now.min(next)) })
}

fn before_the_log(oldest: Option<BaseState>, at_unix_ms: u64) -> String {
    let (at, advice) = (unix_ms_text_precise(at_unix_ms), "raise --log-retain, and keep an --audit-log");
    match oldest.and_then(|base| Some((base.kernel.clocks()?.unix_ms, base.next))) {
        Some((unix_ms, Seq(batch))) => format!(
            "the log is retained since a later time; {advice}: at={at} retained_since={} batch={batch}",
            unix_ms_text_precise(unix_ms)
        ),
        None => format!("no state before that time can be recovered from the log; {advice}: at={at}"),
    }
}

fn before_the_store(created_unix_ms: u64, at_unix_ms: u64) -> String {
    let (at, created) = (unix_ms_text_precise(at_unix_ms), unix_ms_text_precise(created_unix_ms));
    format!("the store was created later than that: at={at} created={created}")
}

impl Answer {
    fn text(&self) -> String {
        let head = format!("{} at {}", word(&self.resource), self.at);
        if self.leases.is_empty() {
            return format!("{head}: free\n");
        }
        let line = |lease: &PastLease| {
            let owner =
                lease.owner.as_deref().map(|owner| format!(" owner={}", word(owner))).unwrap_or_default();
            let agent =
                lease.agent.as_deref().map(|agent| format!(" agent={}", word(agent))).unwrap_or_default();
            let left = ms_text(lease.deadline_unix_ms.saturating_sub(self.at_unix_ms));
            let verb = if lease.state == "active" || lease.state == "reserved" { "held" } else { "blocked" };
            format!(
                "{head}: {verb} by {}{owner}{agent} lease={} state={} token={} granted={} deadline={} (in {left})\n",
                word(&lease.holder),
                lease.lease,
                lease.state,
                lease.fencing_token,
                lease.granted,
                lease.deadline
            )
        };
        self.leases.iter().map(line).collect()
    }
}
