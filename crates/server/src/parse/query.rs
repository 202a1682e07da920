//! The query of a request, parsed strictly.

use api::{Code, Refusal};
use axum::extract::{FromRequestParts, Query as Lenient};
use axum::http::Uri;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use crate::present::refusals::RefusalResponse;

/// The query of a request. A query that is not UTF-8 is refused: lossy decoding would turn two different names into
/// one.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = RefusalResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, RefusalResponse> {
        Ok(Query(read(&parts.uri)?))
    }
}

/// How the framework's own message begins.
const FRAMEWORK: &str = "Failed to deserialize query string: ";

pub(crate) fn read<T: DeserializeOwned>(uri: &Uri) -> Result<T, Refusal> {
    if !is_utf8(uri.query().unwrap_or_default()) {
        return Err(Refusal::new(Code::InvalidBody, "the query is not valid UTF-8"));
    }
    let read = Lenient::try_from_uri(uri).map(|Lenient(query)| query);
    read.map_err(|error| {
        let text = error.body_text();
        let what = text.strip_prefix(FRAMEWORK).unwrap_or(&text);
        Refusal::new(Code::InvalidBody, format!("the query is not valid: {what}"))
    })
}

fn is_utf8(query: &str) -> bool {
    let (mut bytes, mut rest) = (Vec::with_capacity(query.len()), query.as_bytes());
    while let [first, after @ ..] = rest {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => (b'%', &rest[1..]),
            },
            (byte, after) => (*byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    std::str::from_utf8(&bytes).is_ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// The query of calls that take no parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// A flag: 1 is true, 0 is false; the words `true` and `false` are accepted too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(value_type = u8, minimum = 0, maximum = 1)]
pub(crate) struct Flag(bool);

impl Flag {
    pub(crate) fn is_set(flag: Option<Flag>) -> bool {
        flag == Some(Flag(true))
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Flag, D::Error> {
        match String::deserialize(from)?.as_str() {
            "0" | "false" => Ok(Flag(false)),
            "1" | "true" => Ok(Flag(true)),
            other => Err(serde::de::Error::custom(format!("expected 0 or 1: value={other}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Parameters {
        key: Option<String>,
        public: Option<Flag>,
    }

    async fn parsed(query: &str) -> Result<Parameters, RefusalResponse> {
        let request = axum::http::Request::builder().uri(format!("/?{query}")).body(()).expect("valid");
        Query::from_request_parts(&mut request.into_parts().0, &()).await.map(|Query(parameters)| parameters)
    }

    /// `%ff` and `%fe` were both decoded as U+FFFD: two clients with different keys contended for one.
    #[tokio::test]
    async fn a_name_that_is_not_utf8_is_refused() {
        for bad in ["key=%ff", "key=%fe", "key=a%C3", "key=%ED%A0%80"] {
            assert!(parsed(bad).await.is_err(), "{bad}");
        }
        for (query, key) in
            [("key=%C3%a4", "ä"), ("key=%zz", "%zz"), ("key=a%", "a%"), ("key=a+b%2b", "a b+")]
        {
            let parsed = parsed(query).await.ok().and_then(|parameters| parameters.key);
            assert_eq!(parsed.as_deref(), Some(key), "{query}");
        }
    }

    /// `public=2` was parsed as 0: a client that meant 1 was refused for a missing credential.
    #[tokio::test]
    async fn a_flag_is_0_or_1() {
        for (query, set) in [
            ("", false),
            ("public=0", false),
            ("public=1", true),
            ("public=false", false),
            ("public=true", true),
        ] {
            let parameters = parsed(query).await.unwrap_or_else(|_| panic!("{query}"));
            assert_eq!(Flag::is_set(parameters.public), set, "{query}");
        }
        for bad in
            ["public=2", "public=yes", "public=", "public=01", "public=1&public=1", "public=1&public=true"]
        {
            assert!(parsed(bad).await.is_err(), "{bad}");
        }
    }
}
