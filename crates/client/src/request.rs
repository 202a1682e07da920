//! Builds requests and reads responses.

use std::fmt::Write as _;
use std::time::Duration;

use api::path;
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::{ApiRequest, ApiResponse};
use crate::document_body::DocumentBody;
use crate::error::{Error, Kind};

pub(crate) fn get(path: String) -> ApiRequest {
    let (headers, body) = (Vec::new(), DocumentBody::default());
    ApiRequest {
        method: Method::GET,
        path,
        headers,
        body,
        mutates: false,
        wait: Duration::ZERO,
        attempt_timeout: None,
    }
}

pub(crate) fn post(path: &str, body: &impl Serialize) -> ApiRequest {
    let body = serde_json::to_vec(body).expect("API types serialize").into();
    let headers = vec![("content-type", "application/json".to_string())];
    ApiRequest { method: Method::POST, headers, body, mutates: true, ..get(path.to_string()) }
}

pub(crate) fn lease_path(public_id: &str, what: &str) -> String {
    format!("{}/{}{what}", path::LEASES, encode(public_id))
}

pub(crate) fn query(path: &str, fields: &[(&str, Option<&str>)]) -> String {
    let given = fields.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode((*value)?))));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_string() } else { format!("{path}?{}", given.join("&")) }
}

/// Percent-encodes everything but unreserved characters, so that any name is one path segment or query value.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("writing to a string"),
        }
    }
    out
}

pub(crate) fn read<T: DeserializeOwned>(response: &ApiResponse) -> Result<T, Error> {
    serde_json::from_slice(&response.body).map_err(|error| malformed_response(&error.to_string()))
}

/// The status was a success, so the call may have been applied.
pub(crate) fn malformed_response(what: &str) -> Error {
    let detail = "malformed response; check that the server is a lockd of this version";
    Error::new(Kind::Indeterminate, format!("{detail}: reason={what:?}"))
}
