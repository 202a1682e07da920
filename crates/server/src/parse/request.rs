//! The parts that many requests share: bodies, names, credentials, TTLs, and the rights of the peer.

use api::{Code, Refusal};
use identity::{Right, Role};
use kernel::{AgentName, Credential, LeaseId, Namespace, ResourceName, Span};
use serde::de::DeserializeOwned;

use crate::backend::credential::{StoreKey, Verification};
use crate::peer::Peer;
use crate::present::refusals;

pub(crate) fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|error| Refusal::new(Code::InvalidBody, error.to_string()))
}

/// A namespace, or the default one.
pub(crate) fn namespace(name: Option<&str>) -> Result<Namespace, Refusal> {
    Namespace::new(name.unwrap_or(api::DEFAULT_NAMESPACE))
        .map_err(|error| Refusal::new(Code::InvalidKey, format!("namespace: {error}")))
}

/// A namespace, where none means all of them.
pub(crate) fn optional_namespace(name: Option<&str>) -> Result<Option<Namespace>, Refusal> {
    name.map(|name| namespace(Some(name))).transpose()
}

pub(crate) fn key(name: &str) -> Result<ResourceName, Refusal> {
    ResourceName::key(name).map_err(|error| Refusal::new(Code::InvalidKey, error.to_string()))
}

/// The key in the query, where it is required.
pub(crate) fn required_key(name: Option<&str>) -> Result<ResourceName, Refusal> {
    key(name.ok_or_else(refusals::missing_key)?)
}

/// What the keys of a list begin with; empty for all.
pub(crate) fn key_prefix(prefix: Option<&str>) -> Result<&str, Refusal> {
    let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) else { return Ok("") };
    let refusal = |error| Refusal::new(Code::InvalidKey, format!("prefix: {error}"));
    ResourceName::key(prefix).map_err(refusal)?;
    Ok(prefix)
}

/// A resource in one text: `FILE:/src/main.rs`.
pub(crate) fn resource(name: &str) -> Result<ResourceName, Refusal> {
    ResourceName::parse(name, None)
        .map_err(|error| Refusal::new(Code::InvalidKey, format!("{error}: resource={name}")))
}

/// A credential that this store issued.
pub(crate) fn credential(store: &StoreKey, text: &str) -> Result<Credential, Refusal> {
    match store.verify(text) {
        Verification::Valid(credential) => Ok(credential),
        Verification::Invalid => {
            Err(Refusal::new(Code::NotHeld, "the credential was not issued by this store"))
        }
        Verification::Malformed => Err(Refusal::new(Code::InvalidBody, "lease_id is not a credential")),
    }
}

/// A credential for the lease in the path.
pub(crate) fn credential_of_lease(
    store: &StoreKey,
    text: &str,
    public_id: &str,
) -> Result<Credential, Refusal> {
    let credential = credential(store, text)?;
    if public_id == credential.lease.to_string() { Ok(credential) } else { Err(refusals::wrong_lease()) }
}

/// The public name of a lease.
pub(crate) fn public_id(text: &str) -> Result<LeaseId, Refusal> {
    let is_hex = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    let digits = text.strip_prefix("L-").filter(|digits| digits.len() == 32 && digits.bytes().all(is_hex));
    LeaseId::parse(text).ok_or_else(|| {
        if digits.is_some() {
            // Well formed, and above every id that a kernel issues.
            return refusals::no_such_lease();
        }
        Refusal::new(
            Code::InvalidBody,
            format!("not a lease's public id, L- and 32 hex digits: public_id={text}"),
        )
    })
}

pub(crate) fn agent(name: &str) -> Result<AgentName, Refusal> {
    AgentName::new(name).map_err(|error| Refusal::new(Code::InvalidBody, format!("agent_id: {error}")))
}

/// A TTL in seconds or milliseconds, up to `max`; `None` if the request names neither.
pub(crate) fn ttl(seconds: Option<i64>, ms: Option<i64>, max: Span) -> Result<Option<Span>, Refusal> {
    let ms = match (seconds, ms) {
        (Some(_), Some(_)) => {
            return Err(Refusal::new(Code::InvalidBody, "both ttl_seconds and ttl_ms are set; use one"));
        }
        (Some(seconds), None) => seconds.checked_mul(1000),
        (None, Some(ms)) => Some(ms),
        (None, None) => return Ok(None),
    };
    let ms = ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
    let ttl =
        Span(ms.ok_or_else(|| Refusal::new(Code::InvalidTtl, "the TTL is not positive, or too large"))?);
    if ttl > max {
        let detail = format!("the TTL is above the limit: max_ms={}", max.0);
        return Err(Refusal::new(Code::InvalidTtl, detail));
    }
    Ok(Some(ttl))
}

/// The page size of a list, 1 to `max`; `max` if the request names none.
pub(crate) fn page_limit(limit: Option<usize>, max: usize) -> Result<usize, Refusal> {
    let limit = limit.unwrap_or(max);
    if (1..=max).contains(&limit) {
        return Ok(limit);
    }
    Err(Refusal::new(Code::InvalidBody, format!("limit is not in 1 to {max}: limit={limit}")))
}

/// Refuses a peer whose certificate does not give it the right in the namespace.
pub(crate) fn require_right(peer: &Peer, namespace: &Namespace, right: Right) -> Result<(), Refusal> {
    if peer.rights.allows(namespace.as_str(), right) {
        return Ok(());
    }
    let (right, namespace) = (right.letter(), namespace.as_str());
    let extra = if "rw".contains(right) { String::new() } else { right.to_string() };
    let what = format!("the certificate lacks the right `{right}` in this namespace");
    let remedy = format!(
        "an identity that has it is made with `lockd auth new client --namespace {namespace}:rw{extra}`"
    );
    let detail = format!("{what}; {remedy}: right={right} namespace={namespace}");
    Err(Refusal::new(Code::Forbidden, detail))
}

/// Refuses a peer that is not an operator of the namespace; `None` stands for all namespaces.
pub(crate) fn require_operator_of(peer: &Peer, namespace: Option<&Namespace>) -> Result<(), Refusal> {
    require_operator(peer)?;
    if peer.operates(namespace) {
        return Ok(());
    }
    let detail = match namespace {
        Some(name) => {
            format!("the certificate makes no operator of this namespace: namespace={}", name.as_str())
        }
        None => {
            "this concerns all namespaces, and so needs an operator's certificate for `*`; name a namespace"
                .to_string()
        }
    };
    Err(Refusal::new(Code::Forbidden, detail))
}

/// Refuses a peer that is not an operator.
pub(crate) fn require_operator(peer: &Peer) -> Result<(), Refusal> {
    match peer.role {
        Role::Operator => Ok(()),
        Role::Worker | Role::Server => {
            Err(Refusal::new(Code::Forbidden, "this call is for operators; use an operator's identity file"))
        }
    }
}
