//! The headers of a request: credential, correlation id, and the conditions of a write.

use std::convert::Infallible;

use api::{Code, Refusal, header};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header as http};
use engine::Origin;
use kernel::{Credential, Etag, Token, Version};

use crate::backend::credential::StoreKey;
use crate::parse::request::credential;

/// The longest credential, idempotency key and correlation id.
const HEADER_MAX: usize = 256;

static LEASE_ID: HeaderName = HeaderName::from_static(header::LEASE_ID);
static FENCING_TOKEN: HeaderName = HeaderName::from_static(header::FENCING_TOKEN);
static IF_VERSION: HeaderName = HeaderName::from_static(header::IF_VERSION);
static IF_STATE_ETAG: HeaderName = HeaderName::from_static(header::IF_STATE_ETAG);
pub(crate) static CORRELATION_ID: HeaderName = HeaderName::from_static(header::CORRELATION_ID);

/// The headers that change what a request does.
pub(crate) static REQUEST_HEADERS: [&HeaderName; 4] =
    [&LEASE_ID, &FENCING_TOKEN, &IF_VERSION, &IF_STATE_ETAG];

/// Headers that decide what a request does, or whether it may: each at most once. Two values would be understood
/// differently by a proxy, which takes the last, and by a server, which takes the first.
static SINGLE_HEADERS: [HeaderName; 12] = [
    HeaderName::from_static(header::LEASE_ID),
    HeaderName::from_static(header::FENCING_TOKEN),
    HeaderName::from_static(header::IF_VERSION),
    HeaderName::from_static(header::IF_STATE_ETAG),
    HeaderName::from_static(header::IDEMPOTENCY_KEY),
    HeaderName::from_static(header::CORRELATION_ID),
    HeaderName::from_static("last-event-id"),
    http::HOST,
    http::ORIGIN,
    http::CONTENT_TYPE,
    http::RANGE,
    http::IF_RANGE,
];

/// Refuses a request with two values of a header that has one.
pub(crate) fn check_single(headers: &HeaderMap) -> Result<(), Refusal> {
    // No header has two values: nearly every request.
    if headers.len() == headers.keys_len() {
        return Ok(());
    }
    match SINGLE_HEADERS.iter().find(|name| headers.get_all(*name).iter().nth(1).is_some()) {
        Some(name) => {
            Err(Refusal::new(Code::InvalidBody, format!("the header is sent more than once: header={name}")))
        }
        None => Ok(()),
    }
}

/// The headers of a request, moved out of it.
pub(crate) struct Headers(pub(crate) HeaderMap);

impl<S: Sync> FromRequestParts<S> for Headers {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Headers, Infallible> {
        Ok(Headers(std::mem::take(&mut parts.headers)))
    }
}

/// A header of 1 to 256 printable ASCII characters.
pub(crate) fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let printable = |text: &&str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let text = value.to_str().ok().filter(|text| (1..=HEADER_MAX).contains(&text.len())).filter(printable);
    text.map(Some).ok_or_else(|| {
        let detail = format!("the header is not 1 to {HEADER_MAX} printable ASCII characters: header={name}");
        Refusal::new(Code::InvalidBody, detail)
    })
}

/// The credential in `X-Lease-ID`.
pub(crate) fn credential_header(store: &StoreKey, headers: &HeaderMap) -> Result<Credential, Refusal> {
    match header_text(headers, &LEASE_ID)? {
        Some(text) => credential(store, text),
        None => Err(Refusal::new(Code::MissingLeaseId, "the header X-Lease-ID is missing")),
    }
}

/// The origin of a request: the client's correlation id. Its connection adds the certificate.
pub(crate) fn origin(headers: &HeaderMap) -> Result<Origin, Refusal> {
    Ok(header_text(headers, &CORRELATION_ID)?.map(Origin::correlated).unwrap_or_default())
}

/// The first 16 bytes of the BLAKE3 hash.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 16] {
    blake3::hash(bytes).as_bytes()[..16].try_into().expect("sixteen bytes")
}

/// The conditions of a write. An etag of `Some(None)` requires that there be no document.
#[expect(clippy::option_option, reason = "the kernel's own shape: no condition, no document, or this one")]
pub(crate) struct Conditions {
    pub(crate) token: Option<Token>,
    pub(crate) if_version: Option<Version>,
    pub(crate) if_etag: Option<Option<Etag>>,
}

pub(crate) fn conditions(headers: &HeaderMap) -> Result<Conditions, Refusal> {
    let number = |name: &HeaderName| -> Result<Option<u64>, Refusal> {
        let Some(text) = header_text(headers, name)? else { return Ok(None) };
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| plain);
        let invalid =
            || Refusal::new(Code::InvalidBody, format!("the header is not a number: header={name}"));
        number.map(Some).ok_or_else(invalid)
    };
    Ok(Conditions {
        token: number(&FENCING_TOKEN)?.map(Token),
        if_version: number(&IF_VERSION)?.map(Version),
        if_etag: if_etag(headers),
    })
}

/// Quoted or bare; empty: there must be no document. Anything else, of any length and in any encoding, is the etag of no
/// document.
#[expect(clippy::option_option, reason = "as in `Conditions`")]
fn if_etag(headers: &HeaderMap) -> Option<Option<Etag>> {
    let value = headers.get(&IF_STATE_ETAG)?.as_bytes();
    // A compressed response has the weak form of the same etag.
    let value = value.strip_prefix(b"W/").unwrap_or(value);
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    if value.is_empty() {
        return Some(None);
    }
    Some(Some(etag(value).unwrap_or_else(|| unmatched_etag(value))))
}

/// An etag that no document has: documents have the plain hash of their bytes.
fn unmatched_etag(value: &[u8]) -> Etag {
    Etag(blake3::derive_key("lockd etag that matches no document", value))
}

/// 64 hexadecimal digits.
fn etag(digits: &[u8]) -> Option<Etag> {
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(Etag(bytes))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// A client might send the document instead of its etag: no text but the digits may match.
    #[test]
    fn only_the_hash_itself_matches_a_document() {
        let document = r#"{"a":1}"#;
        let hash = Etag(*blake3::hash(document.as_bytes()).as_bytes());
        let digits = system::hex::encode(&hash.0);
        let parsed = |value: &str| {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a header");
            if_etag(&HeaderMap::from_iter([(IF_STATE_ETAG.clone(), value)])).expect("a condition")
        };
        for good in [&digits, &digits.to_uppercase(), &format!("\"{digits}\""), &format!("W/\"{digits}\"")] {
            assert_eq!(parsed(good), Some(hash), "{good}");
        }
        for other in
            [document, "*", "\"", "ä", &digits[1..], &format!("{digits}0"), &format!("{digits}, {digits}")]
        {
            assert!(parsed(other).is_some_and(|etag| etag != hash), "{other}");
        }
        assert_eq!((parsed(""), parsed("\"\"")), (None, None));
    }
}
