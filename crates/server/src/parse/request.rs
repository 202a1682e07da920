//! Takes requests apart: bodies, headers, names. What leaves here cannot be malformed.

use std::convert::Infallible;

use api::{Code, Refusal, header};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use kernel::{AgentName, Etag, Held, Namespace, Request, RequestKey, ResourceName, Span, Token, Version};
use serde::de::DeserializeOwned;

use crate::backend::credential::{Shown, StoreKey};
use identity::{Right, Role};

use crate::peer::Peer;

type Read<T> = Result<T, Refusal>;

/// The longest idempotency key and correlation id.
const HEADER_MAX: usize = 256;

static LEASE_ID: HeaderName = HeaderName::from_static(header::LEASE_ID);
static FENCING_TOKEN: HeaderName = HeaderName::from_static(header::FENCING_TOKEN);
static IF_VERSION: HeaderName = HeaderName::from_static(header::IF_VERSION);
static IF_STATE_ETAG: HeaderName = HeaderName::from_static(header::IF_STATE_ETAG);
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_KEY);
pub(crate) static CORRELATION_ID: HeaderName = HeaderName::from_static(header::CORRELATION_ID);

/// The headers of a request, taken out of it.
pub(crate) struct Headers(pub(crate) HeaderMap);

impl<S: Sync> FromRequestParts<S> for Headers {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Headers, Infallible> {
        Ok(Headers(std::mem::take(&mut parts.headers)))
    }
}

/// A body of this shape.
pub(crate) fn body<T: DeserializeOwned>(bytes: &[u8]) -> Read<T> {
    serde_json::from_slice(bytes).map_err(|error| Refusal::new(Code::InvalidBody, error.to_string()))
}

pub(crate) fn namespace(name: Option<&str>) -> Read<Namespace> {
    Namespace::new(name.unwrap_or(api::DEFAULT_NAMESPACE))
        .map_err(|error| Refusal::new(Code::InvalidKey, format!("namespace: {error}")))
}

pub(crate) fn key(name: &str) -> Read<ResourceName> {
    ResourceName::key(name).map_err(|error| Refusal::new(Code::InvalidKey, error.to_string()))
}

/// A credential that was issued here. A wrong one is nobody's.
pub(crate) fn credential(store: &StoreKey, text: &str) -> Read<Held> {
    match store.verify(text) {
        Shown::Right(held) => Ok(held),
        Shown::Wrong => Err(Refusal::new(Code::NotHeld, "the credential was not issued here")),
        Shown::Malformed => Err(Refusal::new(Code::InvalidBody, "lease_id is not a credential")),
    }
}

pub(crate) fn agent(name: &str) -> Read<AgentName> {
    AgentName::new(name).map_err(|error| Refusal::new(Code::InvalidBody, format!("agent_id: {error}")))
}

/// One of two spellings of a time to live, or neither.
pub(crate) fn ttl(seconds: Option<i64>, ms: Option<i64>) -> Read<Option<Span>> {
    let ms = match (seconds, ms) {
        (Some(_), Some(_)) => {
            return Err(Refusal::new(Code::InvalidBody, "ttl_seconds or ttl_ms, not both"));
        }
        (Some(seconds), None) => seconds.checked_mul(1000),
        (None, ms) => match ms {
            None => return Ok(None),
            some => some,
        },
    };
    let positive = ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
    positive.map(|ms| Some(Span(ms))).ok_or_else(|| {
        Refusal::new(Code::InvalidTtl, "a ttl is more than 0, and no longer than can be counted")
    })
}

pub(crate) fn may(peer: &Peer, namespace: &Namespace, right: Right) -> Read<()> {
    if peer.rights.allows(namespace.as_str(), right) {
        return Ok(());
    }
    let detail =
        format!("the certificate does not allow this: right={right:?} namespace={}", namespace.as_str());
    Err(Refusal::new(Code::Forbidden, detail))
}

pub(crate) fn operator(peer: &Peer) -> Read<()> {
    match peer.role {
        Role::Operator => Ok(()),
        Role::Worker | Role::Server => Err(Refusal::new(Code::Forbidden, "this is for operators")),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Read<Option<&'a str>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let printable = |text: &&str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let text = value.to_str().ok().filter(|text| (1..=HEADER_MAX).contains(&text.len())).filter(printable);
    text.map(Some).ok_or_else(|| {
        Refusal::new(Code::InvalidBody, format!("a header that is too long, empty or no text: {name}"))
    })
}

/// The credential in its header.
pub(crate) fn lease_header(store: &StoreKey, headers: &HeaderMap) -> Read<Held> {
    match text(headers, &LEASE_ID)? {
        Some(text) => credential(store, text),
        None => Err(Refusal::new(Code::MissingLeaseId, "X-Lease-ID is missing")),
    }
}

/// What the client calls the request: a number in hexadecimal as it is, any other text by its hash.
pub(crate) fn correlation(headers: &HeaderMap) -> Read<u128> {
    let Some(text) = text(headers, &CORRELATION_ID)? else { return Ok(0) };
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok()).flatten();
    Ok(number.unwrap_or_else(|| u128::from_be_bytes(digest(text.as_bytes()))))
}

/// The headers that say what is asked, besides the body.
static TELLING: [&HeaderName; 4] = [&LEASE_ID, &FENCING_TOKEN, &IF_VERSION, &IF_STATE_ETAG];

/// The idempotency key, bound to everything else that was sent.
pub(crate) fn request(headers: &HeaderMap, path: &str, sent: &[&[u8]]) -> Read<Option<Request>> {
    part_of_request(headers, path, sent, "")
}

/// The same for one part of a request that is several commands: each is kept under a key of its own.
pub(crate) fn part_of_request(
    headers: &HeaderMap,
    path: &str,
    sent: &[&[u8]],
    part: &str,
) -> Read<Option<Request>> {
    let Some(key) = text(headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    let key = if part.is_empty() { key.to_string() } else { format!("{key}\0{part}") };
    let mut hasher = blake3::Hasher::new();
    hasher.update(path.as_bytes());
    let said =
        TELLING.map(|name| headers.get(name).map(axum::http::HeaderValue::as_bytes).unwrap_or_default());
    for part in sent.iter().chain(&said) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut fingerprint = [0; 16];
    hasher.finalize_xof().fill(&mut fingerprint);
    Ok(Some(Request { key: RequestKey(digest(key.as_bytes())), fingerprint }))
}

fn digest(bytes: &[u8]) -> [u8; 16] {
    blake3::hash(bytes).as_bytes()[..16].try_into().expect("sixteen bytes")
}

/// The conditions of a write. An etag of `Some(None)` asks that there be no document.
#[expect(clippy::option_option, reason = "the kernel's own shape: no condition, no document, or this one")]
pub(crate) struct Conditions {
    pub(crate) token: Option<Token>,
    pub(crate) if_version: Option<Version>,
    pub(crate) if_etag: Option<Option<Etag>>,
}

pub(crate) fn conditions(headers: &HeaderMap) -> Read<Conditions> {
    let number = |name: &HeaderName| -> Read<Option<u64>> {
        let Some(text) = text(headers, name)? else { return Ok(None) };
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| plain);
        let bad = || Refusal::new(Code::InvalidBody, format!("not a number: header={name}"));
        number.map(Some).ok_or_else(bad)
    };
    Ok(Conditions {
        token: number(&FENCING_TOKEN)?.map(Token),
        if_version: number(&IF_VERSION)?.map(Version),
        if_etag: if_etag(headers)?,
    })
}

/// Quoted or bare; empty: there must be no document.
#[expect(clippy::option_option, reason = "as in `Conditions`")]
fn if_etag(headers: &HeaderMap) -> Read<Option<Option<Etag>>> {
    let Some(value) = headers.get(&IF_STATE_ETAG) else { return Ok(None) };
    let bad = || Refusal::new(Code::InvalidBody, "X-If-State-ETag is not an etag");
    let text = value.to_str().map_err(|_| bad())?;
    // A weak tag is that of the same content, which came compressed.
    let text = text.strip_prefix("W/").unwrap_or(text);
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if text.is_empty() {
        return Ok(Some(None));
    }
    etag(text).map(|etag| Some(Some(etag))).ok_or_else(bad)
}

/// 64 hexadecimal digits.
pub(crate) fn etag(text: &str) -> Option<Etag> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(Etag(bytes))
}
