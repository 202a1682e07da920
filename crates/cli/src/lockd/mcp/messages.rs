//! What came of a call, in words that a model can act on: what is so, and what to do NEXT.
//!
//! Names that others chose cannot begin a new line: nobody can speak here in lockd's name.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use api::agents::{Judged, Reconciled, ResourceState, Verdict};
use api::tell::{Committed, Granted, Lease};
use cli::remote::agents::others;
use cli::remote::told;
use cli::stderr::shown;
use client::{Error, Kind, Lost, State};

use super::held::{Handle, Seen};

/// The most leases that are listed in one answer.
const LISTED_MAX: usize = 20;

/// A lease that was just granted, or that is as good as that.
pub(super) fn granted(seen: &Seen) -> String {
    let Granted { lease_id, public_id, expires_at_unix, namespace, .. } = &seen.granted;
    let until = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(*expires_at_unix));
    format!(
        "GRANTED: you hold {} in namespace {}.\n\
         handle={} fencing_token={} public_id={public_id}\n\
         lease_id={lease_id} (the credential, for reconcile after a restart and for `lockd client`; keep it to yourself)\n\
         It renews itself while this connection lives; without a renewal it ends at {until}.\n\
         NEXT: work, hand the fencing token to whatever checks it, and call release with handle={} when you are done.\n",
        covered(&seen.granted),
        shown(namespace),
        seen.handle,
        seen.granted.fencing_token,
        seen.handle,
    )
}

/// One of the leases of this connection.
pub(super) fn held(seen: &Seen) -> String {
    format!(
        "HELD: handle={} over {} fencing_token={}, confirmed for another {} ms and renewing itself.\n",
        seen.handle,
        covered(&seen.granted),
        seen.granted.fencing_token,
        seen.remaining.as_millis()
    )
}

/// A lease that is no more.
pub(super) fn lost(seen: &Seen, why: Lost) -> String {
    format!(
        "LOST: handle={} over {} fencing_token={}: {why}. Others may be at work there already; do not write under its token.\n",
        seen.handle,
        covered(&seen.granted),
        seen.granted.fencing_token
    )
}

/// A lease that is not the agent's any more.
pub(super) fn gone(found: &Reconciled) -> String {
    let why = found.detail.as_deref().or_else(|| found.view.as_ref().map(|view| view.state.as_str()));
    // The credential is not repeated whole: it is no use any more, and whose it was is enough.
    let name = found.lease_id.split('.').next().unwrap_or_default();
    format!(
        "GONE: public_id={} is not yours any more: {}. NEXT: stop what you do under it, and declare or acquire again.\n",
        shown(name),
        shown(why.unwrap_or("nothing is known of it"))
    )
}

/// What the session has itself is in the way of what it asked for.
pub(super) fn in_its_own_way(seen: &Seen) -> String {
    format!(
        "ALREADY HELD: your own lease handle={} over {} is in the way. NEXT: work under it if it covers what you need; \
         else release it, and ask for all that you need at once.\n",
        seen.handle,
        covered(&seen.granted)
    )
}

/// A manifest that was not granted.
pub(super) fn judged(judged: &Judged, release: &[Seen]) -> String {
    let others = others(judged);
    let backoff = judged.backoff_ms.unwrap_or_default();
    let (what, next) = match judged.verdict {
        Verdict::Paused => {
            let why = shown(judged.detail.as_deref().unwrap_or("grants are stopped"));
            (format!("PAUSED: {why}"), "tell whoever you work for. When that is settled,".to_string())
        }
        Verdict::Die if !release.is_empty() => {
            let handles: Vec<String> = release.iter().map(|seen| format!("handle={}", seen.handle)).collect();
            (
                format!("DIE: in the way: {others}"),
                format!("release {}, wait {backoff} ms,", handles.join(", ")),
            )
        }
        Verdict::Die => (
            format!("DIE: older ones are in the way: {others}"),
            format!("do something else first, or wait {backoff} ms, and then"),
        ),
        Verdict::Wait | Verdict::Granted => (
            format!("WAIT: younger ones are in the way, or came first: {others}"),
            "do something else first, or at once".to_string(),
        ),
    };
    let attempt = &judged.attempt_id;
    format!(
        "{what}. Nothing was granted.\n\
         NEXT: {next} call manifest again with this attempt_id, and with wait_seconds if you have time.\n\
         attempt_id={attempt}\n"
    )
}

/// A call that a server refused, or that did not reach one.
pub(super) fn refused(error: &Error) -> String {
    let next = match error.kind() {
        Kind::Held => "call again with wait_seconds, or do something else first; who_holds shows who has it",
        Kind::Fenced => "stop; what you know is out of date: read again, and acquire again if you must",
        Kind::Expired => "stop; acquire again before you go on",
        Kind::Indeterminate => {
            "it may have happened: look with who_holds, state_get or reconcile before you do it again"
        }
        Kind::Unavailable => "wait a little, and call again",
        Kind::Denied => "do not try again; tell whoever you work for that a right is missing",
        Kind::Invalid => "correct what you sent",
    };
    format!("REFUSED: {}. NEXT: {next}.\n", told(error.clone()).1)
}

/// A call that cannot be meant.
pub(super) fn invalid(what: &str) -> String {
    format!("REFUSED: {}. NEXT: correct what you sent.\n", shown(what))
}

/// There is room for no further lease.
pub(super) fn full(leases_max: u32, live: &[Seen]) -> String {
    format!(
        "REFUSED: this connection has {leases_max} leases, the most at once. NEXT: release some.\n{}",
        list(live)
    )
}

pub(super) fn no_handle(handle: Handle, live: &[Seen]) -> String {
    format!("REFUSED: this connection holds nothing as handle={handle}.\n{}", list(live))
}

pub(super) fn no_lease_of(key: &str) -> String {
    format!(
        "REFUSED: this connection does not hold the key {key:?}. NEXT: acquire it, and read its document again.\n"
    )
}

pub(super) fn not_released(handle: Handle, error: &Error) -> String {
    format!(
        "handle={handle} could not be given back, and runs out by itself: {}. NEXT: do not touch what it covered any more.\n",
        told(error.clone()).1
    )
}

fn list(live: &[Seen]) -> String {
    if live.is_empty() {
        "It holds nothing.\n".into()
    } else {
        live.iter().take(LISTED_MAX).map(held).collect()
    }
}

/// Who has a resource.
pub(super) fn resource(state: &ResourceState, own: &[Seen]) -> String {
    let name = shown(&format!("{}:{}", state.kind, state.name));
    if state.leases.is_empty() {
        return format!("FREE: nobody holds {name}; {} wait.\n", state.waiters);
    }
    let what = match state.state.as_str() {
        "revoking" => "NOT FREE: its lease has ended, and it is kept until an operator or time frees it",
        _ => "HELD",
    };
    let mut text = format!("{what}: {name}; {} wait.\n", state.waiters);
    for lease in state.leases.iter().take(LISTED_MAX) {
        let yours = own.iter().find(|seen| seen.granted.public_id == lease.public_id);
        text += &holder(lease, yours);
    }
    if state.more || state.leases.len() > LISTED_MAX {
        text += "There are others.\n";
    }
    text
}

fn holder(lease: &Lease, yours: Option<&Seen>) -> String {
    let mut text = format!("- by {}", lease.holder);
    if lease.owner != lease.holder {
        write!(text, " owner={:?}", lease.owner).expect("writing to a string");
    }
    if let Some(agent) = &lease.agent_id {
        write!(text, " agent_id={agent:?}").expect("writing to a string");
    }
    let yours = yours.map(|seen| format!(" (this is you: handle={})", seen.handle)).unwrap_or_default();
    let tail = format!(
        " public_id={} fencing_token={} ends in {} ms if it is not renewed",
        lease.public_id, lease.fencing_token, lease.remaining_ms
    );
    shown(&(text + &tail + &yours)) + "\n"
}

/// A document, as it was read.
pub(super) fn document(state: &State, under: Option<&Seen>) -> String {
    let how = match under {
        Some(seen) => format!("read under your lease, handle={}", seen.handle),
        None => "last committed; you do not hold the key, so it may change at any time".into(),
    };
    match &state.document {
        None => format!("There is no document ({how}). version={}\n", state.version),
        Some(document) => format!(
            "version={} etag={} ({how}). The document:\n{}\n",
            state.version,
            state.etag,
            String::from_utf8_lossy(document)
        ),
    }
}

/// A document, as it was written.
pub(super) fn committed(committed: &Committed, released: Option<Handle>) -> String {
    let released = released.map(|handle| format!(" RELEASED handle={handle}.")).unwrap_or_default();
    format!("COMMITTED: version={} etag={}.{released}\n", committed.new_version, committed.new_state_etag)
}

/// What a lease is over.
fn covered(granted: &Granted) -> String {
    let members = granted.resources.iter().flatten().map(|member| {
        let how = member.predicate.as_deref().unwrap_or("MUTATES");
        format!("{how} {}:{}", member.kind, member.name)
    });
    let key = granted.key.iter().map(|key| format!("KEY:{key}"));
    shown(&key.chain(members).collect::<Vec<_>>().join(", "))
}
