//! The idempotency key of a request, with a fingerprint of everything else that was sent.
//!
//! **Invariant.** Two requests have the same fingerprint only if they ask for the same: a key that is reused for another
//! request is refused.
//!
//! **What would break it.** A fingerprint of `Debug` output: to rename a field would turn a retry into another request.
//! Two actions of one name: a retry could replay the response to another action.

use api::{Refusal, header};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use kernel::{IdempotencyKey, RequestKey};

use crate::parse::headers::{REQUEST_HEADERS, digest, header_text};

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(header::IDEMPOTENCY_KEY);

/// The idempotency key. `name` is that of the call or the action; `sent` are the parts of the request beside it.
pub(crate) fn key(
    headers: &HeaderMap,
    name: &str,
    sent: &[&[u8]],
) -> Result<Option<IdempotencyKey>, Refusal> {
    key_of_part(headers, name, sent, "")
}

/// The idempotency key of one command of a request that is several: each is stored under a key of its own.
pub(crate) fn key_of_part(
    headers: &HeaderMap,
    name: &str,
    sent: &[&[u8]],
    part: &str,
) -> Result<Option<IdempotencyKey>, Refusal> {
    let Some(key) = header_text(headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    let key = if part.is_empty() { key.to_string() } else { format!("{key}\0{part}") };
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes());
    let headers =
        REQUEST_HEADERS.map(|name| headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default());
    for field in sent.iter().chain(&headers) {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    let mut fingerprint = [0; 16];
    hasher.finalize_xof().fill(&mut fingerprint);
    Ok(Some(IdempotencyKey { key: RequestKey(digest(key.as_bytes())), fingerprint }))
}
