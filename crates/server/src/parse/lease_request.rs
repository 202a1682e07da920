//! A request for a lease: namespace and rights, resources, TTL, expiry policy, and how long to wait.

use std::fmt::Display;

use api::{Code, Refusal, requests};
use identity::Right;
use kernel::{
    Bundle, LeaseRequest, Member, Metadata, Namespace, OnExpiry, Owner, Predicate, ResourceName, SessionName,
    Span,
};

use crate::backend::shards::RequestLimits;
use crate::parse;
use crate::peer::Peer;

/// The longest hold after expiry that needs no right of its own.
const HOLD_MAX_WITHOUT_RIGHT: Span = Span(300_000);

/// The predicate of a resource that names none.
const DEFAULT_PREDICATE: &str = "MUTATES";

/// The lease that is requested.
pub(crate) fn grant(
    settings: &RequestLimits,
    peer: &Peer,
    body: &requests::Acquire,
) -> Result<LeaseRequest, Refusal> {
    let namespace = parse::namespace(body.namespace.as_deref())?;
    parse::require_right(peer, &namespace, Right::Write)?;
    let on_expiry = on_expiry(peer, &namespace, body.on_expiry.unwrap_or_default())?;
    let ttl = ttl(settings, body.ttl_seconds, body.ttl_ms)?;
    let owner = body.owner.as_deref().filter(|owner| !owner.is_empty());
    let session = body.session_id.as_deref().map(SessionName::new).transpose();
    let metadata = body.metadata.as_deref().map(|text| Metadata::new(text.as_bytes())).transpose();
    Ok(LeaseRequest {
        namespace,
        bundle: bundle(body)?,
        ttl,
        on_expiry,
        owner: owner.map(Owner::new).transpose().map_err(|error| invalid("owner", &error))?,
        agent: None,
        session: session.map_err(|error| invalid("session_id", &error))?,
        attempt: None,
        reason: None,
        metadata: metadata.map_err(|error| invalid("metadata", &error))?,
    })
}

/// The TTL in the request, or the server's default.
pub(crate) fn ttl(settings: &RequestLimits, seconds: Option<i64>, ms: Option<i64>) -> Result<Span, Refusal> {
    Ok(parse::ttl(seconds, ms, settings.max_ttl)?.unwrap_or(settings.default_ttl))
}

/// How long the request waits, up to the server's limit. Absent, 0 and -1: it does not wait.
pub(crate) fn wait(settings: &RequestLimits, block_seconds: Option<i64>) -> Result<Option<Span>, Refusal> {
    match block_seconds.unwrap_or(0) {
        -1 | 0 => Ok(None),
        seconds => {
            let too_small = |_| Refusal::new(Code::InvalidBody, "block_seconds is below -1");
            let seconds = u64::try_from(seconds).map_err(too_small)?;
            Ok(Some(Span(seconds.saturating_mul(1000)).min(settings.acquire_block)))
        }
    }
}

pub(crate) fn predicate(text: &str) -> Result<Predicate, Refusal> {
    Predicate::parse(text)
        .ok_or_else(|| Refusal::new(Code::InvalidBody, format!("unknown predicate: predicate={text}")))
}

/// A field of the body that is malformed.
pub(crate) fn invalid(field: &str, error: &dyn Display) -> Refusal {
    Refusal::new(Code::InvalidBody, format!("{field}: {error}"))
}

/// A manual hold, and a long one, need a right of their own.
fn on_expiry(peer: &Peer, namespace: &Namespace, policy: requests::OnExpiry) -> Result<OnExpiry, Refusal> {
    match policy {
        requests::OnExpiry::Free => Ok(OnExpiry::Free),
        requests::OnExpiry::HoldMs(ms)
            if Span(ms) <= HOLD_MAX_WITHOUT_RIGHT || planted!(HoldWithoutRight) =>
        {
            Ok(OnExpiry::Hold(Span(ms)))
        }
        requests::OnExpiry::HoldMs(ms) => {
            parse::require_right(peer, namespace, Right::ManualHold)?;
            Ok(OnExpiry::Hold(Span(ms)))
        }
        requests::OnExpiry::Manual => {
            parse::require_right(peer, namespace, Right::ManualHold)?;
            Ok(OnExpiry::Manual)
        }
    }
}

fn bundle(body: &requests::Acquire) -> Result<Bundle, Refusal> {
    let members = match (&body.key, &body.resources) {
        (Some(_), Some(_)) => {
            return Err(Refusal::new(Code::InvalidBody, "both key and resources are set; use one"));
        }
        (None, None) => return Err(Refusal::new(Code::MissingKey, "neither key nor resources is set")),
        (Some(key), None) => return Ok(Bundle::of_key(parse::key(key)?)),
        (None, Some(resources)) => resources.iter().map(member).collect::<Result<Vec<Member>, Refusal>>()?,
    };
    Bundle::merged(members).map_err(|error| invalid("resources", &error))
}

fn member(resource: &requests::Resource) -> Result<Member, Refusal> {
    let name = ResourceName::new(&resource.kind, &resource.name).map_err(|error| {
        let detail = format!("{error}: resource={}:{}", resource.kind, resource.name);
        Refusal::new(Code::InvalidKey, detail)
    })?;
    let text = resource.predicate.as_deref().unwrap_or(DEFAULT_PREDICATE);
    Ok(Member { resource: name, predicate: predicate(text)? })
}
