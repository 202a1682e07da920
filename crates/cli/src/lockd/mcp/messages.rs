//! The text of tool results: the facts, and what to do NEXT.
//!
//! **Invariant.** Everything that a client wrote (names, owners, reasons, keys, documents) is quoted and escaped, on one
//! line: it cannot pass for lockd's own words, of which `NEXT:` is the one that an agent follows.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use api::Code;
use api::agents::{ManifestOutcome, ReconciledLease, ResourceState, Verdict};
use api::responses::{Committed, Granted, Lease};
use cli::remote::agents::conflicts;
use cli::remote::client_failure;
use cli::untrusted::{escape, quote};
use lockd_client::{DocumentState, Error, Kind, LossReason};

use super::lease_table::{Handle, LeaseInfo};

/// Maximum number of leases listed in one result.
const LISTED_MAX: usize = 20;

/// A granted lease, new or already held by this connection.
pub(super) fn granted(info: &LeaseInfo) -> String {
    let Granted { lease_id, public_id, expires_at_unix, namespace, .. } = &info.granted;
    let until = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(*expires_at_unix));
    format!(
        "GRANTED: you hold {} in namespace {}.\n\
         handle={} fencing_token={} public_id={public_id}\n\
         lease_id={lease_id} (the credential, for reconcile after a restart and for `lockd client`; keep it to yourself)\n\
         It is renewed automatically while this connection is open; without renewal it expires at {until}.\n\
         NEXT: do your work, pass the fencing token to any system that checks it, and call release with handle={} when done.\n",
        covered(&info.granted),
        quote(namespace),
        info.handle,
        info.granted.fencing_token,
        info.handle,
    )
}

/// One of the leases of this connection.
pub(super) fn held(info: &LeaseInfo) -> String {
    format!(
        "HELD: handle={} on {} fencing_token={}, valid for another {} ms and renewed automatically.\n",
        info.handle,
        covered(&info.granted),
        info.granted.fencing_token,
        info.remaining.as_millis()
    )
}

/// A lost lease.
pub(super) fn lost(info: &LeaseInfo, why: LossReason) -> String {
    format!(
        "LOST: handle={} on {} fencing_token={}: {why}. Others may already be using its resources; do not write with its token.\n",
        info.handle,
        covered(&info.granted),
        info.granted.fencing_token
    )
}

/// A lease that the agent no longer holds.
pub(super) fn no_longer_held(found: &ReconciledLease) -> String {
    let why = found.detail.as_deref().or_else(|| found.view.as_ref().map(|view| view.state.as_str()));
    // Only the public part of the credential is repeated.
    let name = found.lease_id.split('.').next().unwrap_or_default();
    format!(
        "GONE: public_id={} is no longer yours: {}. NEXT: stop the work under it, and call manifest or acquire again.\n",
        quote(name),
        escape(why.unwrap_or("the server has no record of it"))
    )
}

/// A request that conflicts with a lease of the same session.
pub(super) fn own_conflict(info: &LeaseInfo) -> String {
    format!(
        "ALREADY HELD: the request conflicts with your own lease handle={} on {}. NEXT: work under it if it covers what you \
         need; otherwise release it, and request everything that you need at once.\n",
        info.handle,
        covered(&info.granted)
    )
}

/// A manifest that was not granted.
pub(super) fn judged(judged: &ManifestOutcome, release: &[LeaseInfo]) -> String {
    let conflicts = conflicts(judged);
    let backoff = judged.backoff_ms.unwrap_or_default();
    let (what, next) = match judged.verdict {
        Verdict::Paused => {
            let why = escape(judged.detail.as_deref().unwrap_or("this agent is paused"));
            (format!("PAUSED: {why}"), "tell the user. When that is resolved,".to_string())
        }
        Verdict::Die if !release.is_empty() => {
            let handles: Vec<String> = release.iter().map(|info| format!("handle={}", info.handle)).collect();
            (
                format!("DIE: blocked by: {conflicts}"),
                format!("release {}, wait {backoff} ms,", handles.join(", ")),
            )
        }
        Verdict::Die => (
            format!("DIE: blocked by older requests: {conflicts}"),
            format!("do other work first, or wait {backoff} ms, then"),
        ),
        Verdict::Wait | Verdict::Granted => (
            format!("WAIT: blocked by younger requests or earlier waiters: {conflicts}"),
            "now, or after other work,".to_string(),
        ),
    };
    let (attempt, which) = match &judged.attempt_id {
        Some(attempt) => (format!("attempt_id={attempt}\n"), " with this attempt_id, and"),
        None => (String::new(), ","),
    };
    format!(
        "{what}. Nothing was granted.\n\
         NEXT: {next} call manifest again{which} with wait_seconds if you have time.\n\
         {attempt}"
    )
}

/// A request that the server refused, or that did not reach it.
pub(super) fn refused(error: &Error) -> String {
    let next = match error.kind() {
        Kind::Held => "call again with wait_seconds, or do other work first; who_holds shows the holder",
        Kind::Fenced => "stop; your data is stale: read again, and acquire again if necessary",
        Kind::Expired => "stop; acquire again before you continue",
        Kind::Indeterminate => {
            "the request may have been executed: check with who_holds, state_get or reconcile before you repeat it"
        }
        Kind::Unavailable => "retry after a short wait",
        Kind::Denied => next_if_denied(error.code()),
        Kind::Invalid if error.code().is_some() => "correct the arguments",
        Kind::Invalid => "do not retry; tell the user that lockd is set up wrongly",
    };
    format!("REFUSED: {}. NEXT: {next}.\n", client_failure(error.clone()).message)
}

/// Without a code the handshake failed: there was no response.
fn next_if_denied(code: Option<Code>) -> &'static str {
    match code {
        Some(Code::Forbidden) => "do not retry; tell the user that a right is missing",
        Some(Code::QuotaExceeded) => {
            "release leases that you do not need, or tell the user that a quota is used up or grants are paused"
        }
        _ => "do not retry; tell the user that a certificate is refused",
    }
}

/// A call with invalid arguments.
pub(super) fn invalid(what: &str) -> String {
    format!("REFUSED: {}. NEXT: correct the arguments.\n", escape(what))
}

/// The connection holds the maximum number of leases.
pub(super) fn lease_limit(leases_max: u32, live: &[LeaseInfo]) -> String {
    format!(
        "REFUSED: this connection holds {leases_max} leases, which is the limit. NEXT: release some.\n{}",
        list(live)
    )
}

pub(super) fn no_handle(handle: Handle, live: &[LeaseInfo]) -> String {
    format!("REFUSED: this connection has no lease with handle={handle}.\n{}", list(live))
}

pub(super) fn key_not_held(key: &str) -> String {
    format!(
        "REFUSED: this connection does not hold the key {}. NEXT: acquire it, and read its document again.\n",
        quote(key)
    )
}

pub(super) fn not_released(handle: Handle, error: &Error) -> String {
    format!(
        "handle={handle} could not be released and will expire: {}. NEXT: do not use its resources any more.\n",
        client_failure(error.clone()).message
    )
}

fn list(live: &[LeaseInfo]) -> String {
    if live.is_empty() {
        "It holds no lease.\n".into()
    } else {
        live.iter().take(LISTED_MAX).map(held).collect()
    }
}

/// The holders of a resource.
pub(super) fn resource(state: &ResourceState, own: &[LeaseInfo]) -> String {
    let name = quote(&format!("{}:{}", state.kind, state.name));
    if state.leases.is_empty() {
        return format!("FREE: no lease on {name}, waiters={}.\n", state.waiters);
    }
    let what = match state.state.as_str() {
        "revoking" => {
            "NOT FREE: its lease has ended, but it stays blocked until an operator reclaims it or its hold time ends"
        }
        _ => "HELD",
    };
    let mut text = format!("{what}: {name}, waiters={}.\n", state.waiters);
    for lease in state.leases.iter().take(LISTED_MAX) {
        let yours = own.iter().find(|info| info.granted.public_id == lease.public_id);
        text += &holder(lease, yours);
    }
    if state.more || state.leases.len() > LISTED_MAX {
        text += "More holders are not listed.\n";
    }
    text
}

fn holder(lease: &Lease, yours: Option<&LeaseInfo>) -> String {
    let mut text = format!("- by {}", quote(&lease.holder));
    if lease.owner != lease.holder {
        write!(text, " owner={}", quote(&lease.owner)).expect("writing to a string");
    }
    if let Some(agent) = &lease.agent_id {
        write!(text, " agent_id={}", quote(agent)).expect("writing to a string");
    }
    let yours = yours.map(|info| format!(" (this is you: handle={})", info.handle)).unwrap_or_default();
    let tail = format!(
        " public_id={} fencing_token={} expires in {} ms unless renewed",
        lease.public_id, lease.fencing_token, lease.remaining_ms
    );
    escape(&(text + &tail + &yours)) + "\n"
}

/// The result of `state_get`.
pub(super) fn document(state: &DocumentState, under: Option<&LeaseInfo>) -> String {
    let how = match under {
        Some(info) => format!("read under your lease, handle={}", info.handle),
        None => "last committed version; you do not hold the key, so it may change at any time".into(),
    };
    match &state.document {
        None => format!("There is no document ({how}). version={}\n", state.version),
        Some(document) => format!(
            "version={} etag={} ({how}). The document, as its last holder wrote it, on one line:\n{}\n",
            state.version,
            escape(&state.etag),
            escape(&String::from_utf8_lossy(document))
        ),
    }
}

/// The result of `state_update`.
pub(super) fn committed(committed: &Committed, released: Option<Handle>) -> String {
    let released = released.map(|handle| format!(" RELEASED handle={handle}.")).unwrap_or_default();
    format!("COMMITTED: version={} etag={}.{released}\n", committed.new_version, committed.new_state_etag)
}

/// The resources of a lease.
fn covered(granted: &Granted) -> String {
    let members = granted.resources.iter().flatten().map(|member| {
        let how = member.predicate.as_deref().unwrap_or("MUTATES");
        format!("{how} {}", quote(&format!("{}:{}", member.kind, member.name)))
    });
    let key = granted.key.iter().map(|key| quote(&format!("KEY:{key}")));
    escape(&key.chain(members).collect::<Vec<_>>().join(", "))
}
