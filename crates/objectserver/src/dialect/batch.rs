//! Azure's batch of deletes: a `multipart/mixed` body with one HTTP request in each part.
//!
//! **Invariant.** The parts are numbered from 0 by their `Content-ID`, in order, and the response numbers them alike.
//! **What would break it.** A client that numbers them otherwise: it is refused.

use std::fmt::Write as _;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderValue;

use super::azure::container_and_blob;
use super::{HttpResponse, Received, with_body};
use crate::call::Command;
use crate::outcome::Refusal;

/// The most requests in one batch.
const LIMIT: usize = 256;

const RESPONSE_TYPE: &str = "multipart/mixed; boundary=batchresponse_0";

pub(super) fn deletes(
    request: &Received<'_>,
    container: &str,
    has_bucket: &dyn Fn(&str) -> bool,
) -> Result<Command, Refusal> {
    let content_type = request.header("content-type").unwrap_or_default();
    let boundary = content_type.split_once("boundary=").map(|split| split.1.trim_matches('"'));
    let boundary = boundary.ok_or(Refusal::Malformed("the batch has no boundary"))?;
    let mut keys = Vec::new();
    for part in parts(request.body_text()?, boundary)? {
        let (bucket, key) = container_and_blob(delete_target(part, keys.len())?, has_bucket)?;
        if bucket != container || key.is_empty() {
            return Err(Refusal::Malformed("a part of the batch concerns another container"));
        }
        keys.push(key);
    }
    if keys.is_empty() || keys.len() > LIMIT {
        return Err(Refusal::Malformed("a batch has 1 to 256 requests"));
    }
    Ok(Command::DeleteMany { keys })
}

/// The texts between the boundaries.
fn parts<'a>(body: &'a str, boundary: &str) -> Result<Vec<&'a str>, Refusal> {
    let (between, closing) = (format!("--{boundary}"), "--");
    let mut pieces = body.split(between.as_str()).skip(1).collect::<Vec<_>>();
    let end = pieces.pop().ok_or(Refusal::Malformed("the batch is empty"))?;
    if !end.starts_with(closing) {
        return Err(Refusal::Malformed("the batch has no end"));
    }
    Ok(pieces)
}

/// The path of a part that says `DELETE /path HTTP/1.1` and has the number `index`.
fn delete_target(part: &str, index: usize) -> Result<&str, Refusal> {
    let id = part
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|line| line.0.eq_ignore_ascii_case("content-id"));
    if id.and_then(|id| id.1.trim().parse().ok()) != Some(index) {
        return Err(Refusal::Malformed("the parts of a batch are numbered from 0"));
    }
    let request = part.lines().find_map(|line| line.strip_prefix("DELETE "));
    let target = request.and_then(|line| line.strip_suffix(" HTTP/1.1"));
    let target = target.ok_or(Refusal::NotImplemented("a batch of anything but deletes"))?;
    Ok(target.split('?').next().unwrap_or(target))
}

pub(super) fn respond(keys: &[(String, bool)]) -> HttpResponse {
    let mut body = String::new();
    for (index, (_, existed)) in keys.iter().enumerate() {
        body.push_str("--batchresponse_0\r\nContent-Type: application/http\r\n");
        let _ = write!(body, "Content-ID: {index}\r\n\r\n");
        body.push_str(match existed {
            true => "HTTP/1.1 202 Accepted\r\nx-ms-delete-type-permanent: true\r\n\r\n",
            false => {
                "HTTP/1.1 404 The specified blob does not exist.\r\nx-ms-error-code: BlobNotFound\r\n\r\n"
            }
        });
    }
    body.push_str("--batchresponse_0--\r\n");
    with_body(StatusCode::ACCEPTED, Some(HeaderValue::from_static(RESPONSE_TYPE)), Bytes::from(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: &str =
        "\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\nDELETE /box/a?x=1 HTTP/1.1\r\n\r\n";

    #[test]
    fn a_part_names_its_target_and_its_number() {
        assert_eq!(delete_target(PART, 0), Ok("/box/a"));
        assert!(matches!(delete_target(PART, 1), Err(Refusal::Malformed(_))));
        assert!(matches!(delete_target(&PART.replace("DELETE", "PUT"), 0), Err(Refusal::NotImplemented(_))));
    }

    #[test]
    fn a_batch_without_an_end_is_refused() {
        assert_eq!(parts(&format!("--b{PART}--b--\r\n"), "b").map(|parts| parts.len()), Ok(1));
        assert!(parts(&format!("--b{PART}"), "b").is_err());
        assert!(parts("", "b").is_err());
    }
}
