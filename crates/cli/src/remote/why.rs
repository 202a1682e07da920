//! `why`: why a key is not free, who waits for it, and the command that resolves it.

use api::agents::Waiting;
use api::requests::OnExpiry;
use api::responses::Lease;
use lockd_client::Client;
use serde::Serialize;

use super::args::{Common, KeyArg};
use super::environment::shell_word;
use super::{CommandResult, client_failure, print};
use crate::times::{ms_text, now_unix_ms, unix_ms_text};
use crate::untrusted::{escape, quote, word};

/// Why a key is not free.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum KeyVerdict {
    /// An acquire would be granted.
    Free,
    /// A lease has authority over it.
    Held,
    /// The lease has ended, and blocks the key until it is reclaimed or its hold time ends.
    Blocked,
    /// No lease covers it, and waiters are about to get it.
    WaitedFor,
}

/// The explanation. The JSON form is stable: fields are added, never renamed.
#[derive(Serialize)]
struct Explanation {
    verdict: KeyVerdict,
    key: String,
    namespace: String,
    /// Leases over the key, the oldest first; several if they share it.
    leases: Vec<BlockingLease>,
    /// Waiters in the order of the queue.
    waiters: Vec<Waiter>,
    /// The number of waiters; 100 means 100 or more.
    waiter_count: u64,
    /// Commands that resolve it, the harmless ones first.
    commands: Vec<String>,
}

#[derive(Serialize)]
struct BlockingLease {
    public_id: String,
    holder: String,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    state: String,
    since: String,
    until: String,
    acquired_at_unix_ms: u64,
    expires_at_unix_ms: u64,
    remaining_ms: u64,
    on_expiry: OnExpiry,
    fencing_token: u64,
}

#[derive(Serialize)]
struct Waiter {
    identity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    position: u64,
    age_ms: u64,
}

pub(crate) async fn why(client: &Client, common: &Common, args: &KeyArg) -> CommandResult {
    let namespace = common.connection.namespace.as_deref();
    let state = client.resource(&format!("KEY:{}", args.key), namespace).await.map_err(client_failure)?;
    let mut waiting = Vec::new();
    if state.waiters > 0 {
        let contention = client.contention(Some(&state.namespace)).await.map_err(client_failure)?;
        waiting = contention.waiting;
        waiting
            .retain(|waiting| waiting.resources.iter().any(|one| one.kind == "KEY" && one.name == args.key));
        waiting.sort_by_key(|waiting| (waiting.position, std::cmp::Reverse(waiting.age_ms)));
    }
    let leases: Vec<BlockingLease> = state.leases.iter().map(BlockingLease::new).collect();
    let verdict = match (state.state.as_str(), state.waiters) {
        ("revoking", _) => KeyVerdict::Blocked,
        ("available", 0) => KeyVerdict::Free,
        ("available", _) => KeyVerdict::WaitedFor,
        _ => KeyVerdict::Held,
    };
    let explanation = Explanation {
        commands: commands(verdict, &args.key, common),
        verdict,
        key: args.key.clone(),
        namespace: state.namespace,
        leases,
        waiters: waiting.iter().map(Waiter::new).collect(),
        waiter_count: state.waiters,
    };
    print(common.output, &explanation, || text(&explanation))
}

impl BlockingLease {
    fn new(lease: &Lease) -> BlockingLease {
        BlockingLease {
            public_id: lease.public_id.clone(),
            holder: lease.holder.clone(),
            owner: lease.owner.clone(),
            agent_id: lease.agent_id.clone(),
            state: lease.state.clone(),
            since: unix_ms_text(lease.acquired_at_unix_ms),
            until: unix_ms_text(lease.expires_at_unix_ms),
            acquired_at_unix_ms: lease.acquired_at_unix_ms,
            expires_at_unix_ms: lease.expires_at_unix_ms,
            remaining_ms: lease.remaining_ms,
            on_expiry: lease.on_expiry,
            fencing_token: lease.fencing_token,
        }
    }

    fn text(&self) -> String {
        let facts = format!(
            "holder={} owner={} public_id={}",
            word(&self.holder),
            quote(&self.owner),
            self.public_id
        );
        let agent =
            self.agent_id.as_ref().map(|agent| format!(" agent_id={}", word(agent))).unwrap_or_default();
        let holder = word(&self.holder);
        let since = &self.since;
        let what = if self.state == "revoking" {
            let by = if self.on_expiry == OnExpiry::Free {
                "an operator revoked"
            } else {
                "time or an operator ended"
            };
            let ago = ms_text(now_unix_ms().saturating_sub(self.expires_at_unix_ms));
            format!("{by} the lease of {holder} at {} ({ago} ago), and the key stays blocked", self.until)
        } else {
            let left = ms_text(self.remaining_ms);
            format!("{holder} has it since {since}, until {} (in {left}) unless renewed", self.until)
        };
        format!("{what}: {facts}{agent}")
    }
}

impl Waiter {
    fn new(waiting: &Waiting) -> Waiter {
        let Waiting { identity, agent_id, position, age_ms, .. } = waiting;
        Waiter {
            identity: identity.clone(),
            agent_id: agent_id.clone(),
            position: *position,
            age_ms: *age_ms,
        }
    }
}

/// The commands that resolve a verdict, as a shell reads them.
fn commands(verdict: KeyVerdict, key: &str, common: &Common) -> Vec<String> {
    let key = shell_word(key);
    let namespace = common.connection.namespace.as_deref().filter(|name| *name != api::DEFAULT_NAMESPACE);
    let namespace = namespace.map(|name| format!(" --namespace {}", shell_word(name))).unwrap_or_default();
    let wait = format!("lockd client acquire{namespace} --block 60s {key}");
    let reclaim = format!("lockd client reclaim{namespace} {key}");
    match verdict {
        KeyVerdict::Free => vec![format!("lockd client acquire{namespace} {key}")],
        KeyVerdict::WaitedFor => vec![wait],
        KeyVerdict::Held => vec![wait, format!("lockd client revoke{namespace} {key}"), reclaim],
        KeyVerdict::Blocked => vec![reclaim],
    }
}

fn text(explanation: &Explanation) -> String {
    let Explanation { verdict, key, leases, waiters, waiter_count, commands, .. } = explanation;
    let key = word(key);
    let mut lines = Vec::new();
    let label = match verdict {
        KeyVerdict::Free => {
            lines.push(format!("free: an acquire would be granted: key={key} waiters={waiter_count}"));
            "blocked"
        }
        KeyVerdict::WaitedFor => {
            lines.push(format!("free, with waiters that come first: key={key} waiters={waiter_count}"));
            "blocked"
        }
        KeyVerdict::Held => "held",
        KeyVerdict::Blocked => "blocked",
    };
    lines.extend(
        leases.iter().map(|lease| format!("{label}: {} key={key} waiters={waiter_count}", lease.text())),
    );
    lines.extend(waiters.iter().enumerate().map(|(at, waiter)| {
        let agent =
            waiter.agent_id.as_ref().map(|agent| format!(" agent_id={}", word(agent))).unwrap_or_default();
        format!("waiter {}: {}{agent} for {}", at + 1, word(&waiter.identity), ms_text(waiter.age_ms))
    }));
    match (verdict, commands.as_slice()) {
        (KeyVerdict::Held, [wait, revoke, reclaim]) => {
            lines.push(format!("wait for it: {wait}"));
            lines.push(format!(
                "operators take it away: {revoke}, and once the holder has stopped: {reclaim}"
            ));
        }
        (KeyVerdict::Blocked, [reclaim]) => lines.push(format!("operators free it: {reclaim}")),
        _ => {}
    }
    lines.iter().map(|line| escape(line) + "\n").collect()
}
