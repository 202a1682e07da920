//! What the response to a request means, for each dialect.
//!
//! | response | S3, GCS | Azure |
//! |---|---|---|
//! | 2xx | done | done |
//! | 412, 304 | the name is in use | the name is in use |
//! | 409 | undecided: a concurrent request | the name is in use, if its code is `BlobAlreadyExists`; else undecided |
//! | 404 | no such object; of a put: no such bucket, denied | the same |
//! | 400, 401, 403, other 4xx | denied: a retry cannot help | the same |
//! | 408, 429, 5xx | undecided | undecided |
//! | none | undecided | undecided |
//! | not sent | unavailable | unavailable |

use http::StatusCode;
use store::object::{ObjectsError, ObjectsErrorKind};

use crate::exchange::Response;
use crate::url::Provider;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It reads, or its repetition has no further effect.
    Idempotent,
    /// It creates an object on the condition that there is none.
    Create,
}

/// Why an operation failed; `None` if it succeeded.
pub(crate) fn failure(provider: Provider, effect: Effect, response: &Response) -> Option<ObjectsErrorKind> {
    let (status, code) = match response {
        Response::NotSent => return Some(ObjectsErrorKind::Unavailable),
        Response::Missing => return Some(ObjectsErrorKind::TimedOut),
        Response::Status(status, code) => (*status, code.as_deref()),
    };
    match status.as_u16() {
        200..=299 => None,
        304 | 412 => Some(ObjectsErrorKind::Taken),
        409 if provider == Provider::Azure && code == Some("BlobAlreadyExists") => {
            Some(ObjectsErrorKind::Taken)
        }
        409 => Some(ObjectsErrorKind::Conflict),
        404 if effect == Effect::Idempotent => Some(ObjectsErrorKind::NotFound),
        408 | 429 | 500.. => Some(ObjectsErrorKind::Unavailable),
        _ => Some(ObjectsErrorKind::Denied),
    }
}

/// An error for a failed operation, with what an operator can do about it.
pub(crate) fn error(provider: Provider, effect: Effect, response: &Response, detail: &str) -> ObjectsError {
    // The library failed although the response is good: its body was lost, or is not what it should be.
    let kind = failure(provider, effect, response).unwrap_or(ObjectsErrorKind::TimedOut);
    let status = match response {
        Response::NotSent => "the request was not sent".to_string(),
        Response::Missing => "no response".to_string(),
        Response::Status(status, _) => format!("status={}", status.as_u16()),
    };
    let what = match (status_of(response), effect) {
        (Some(304 | 409 | 412), Effect::Create) => "the object exists, or another request creates it",
        (Some(404), Effect::Create) => "there is no such bucket; create it, or correct the store URL",
        (Some(403), Effect::Idempotent) => {
            "the object store denies access; without the right to list the bucket, S3 answers so for missing objects \
             too: grant s3:ListBucket, see the policy in the documentation"
        }
        (Some(401 | 403), _) => "the object store denies access; check the credentials and the policy",
        (Some(301 | 307 | 308), _) => "the bucket is in another region; name it with --s3-region",
        (Some(400), _) => "the object store does not accept the request; check region and endpoint",
        (None, _) if *response == Response::NotSent && is_about_credentials(detail) => {
            "there are no credentials for the object store; set the variables of the provider, or \
             --s3-credential-process"
        }
        (None, _) if *response == Response::NotSent => "the object store cannot be reached",
        (None, _) => "the object store does not respond",
        _ => "the object store does not answer as expected",
    };
    ObjectsError::new(kind, format!("{what}: {status} {}", first_line(detail)))
}

/// An error that a response of success has in its body, for some of the objects (deletions of S3 and Azure).
pub(crate) fn in_body(detail: &str) -> ObjectsError {
    // The code of S3 is a word, that of Azure a status. A name that contains such a number is no reason.
    let codes = ["(code: AccessDenied)", "(code: 403)"];
    let is_denied = codes.iter().any(|code| detail.contains(code));
    let (kind, what) = if is_denied {
        (ObjectsErrorKind::Denied, "the object store denies the deletion of an object; check the policy")
    } else {
        (ObjectsErrorKind::Unavailable, "the object store did not delete all objects")
    };
    ObjectsError::new(kind, format!("{what}: {}", first_line(detail)))
}

/// The library asks the metadata service of the machine if nothing else has credentials.
fn is_about_credentials(detail: &str) -> bool {
    ["169.254.", "credential", "metadata", "token"].iter().any(|word| detail.contains(word))
}

fn status_of(response: &Response) -> Option<u16> {
    match response {
        Response::Status(status, _) => Some(StatusCode::as_u16(status)),
        Response::NotSent | Response::Missing => None,
    }
}

/// The library's text has several lines, of which the body of the response may be one.
fn first_line(detail: &str) -> String {
    let line: String = detail.lines().next().unwrap_or_default().chars().take(300).collect();
    format!("detail={line:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> Response {
        Response::Status(StatusCode::from_u16(status).expect("a status"), None)
    }

    /// Every row of the table above.
    #[test]
    fn a_conditional_create_is_done_taken_or_undecided() {
        use ObjectsErrorKind::{Conflict, Denied, Taken, TimedOut, Unavailable};
        for provider in Provider::ALL {
            let create = |response: Response| failure(provider, Effect::Create, &response);
            for (response, expected) in [
                (status(200), None),
                (status(201), None),
                (status(412), Some(Taken)),
                (status(304), Some(Taken)),
                (status(409), Some(Conflict)),
                (status(404), Some(Denied)),
                (status(403), Some(Denied)),
                (status(400), Some(Denied)),
                (status(301), Some(Denied)),
                (status(408), Some(Unavailable)),
                (status(429), Some(Unavailable)),
                (status(500), Some(Unavailable)),
                (status(503), Some(Unavailable)),
                (Response::Missing, Some(TimedOut)),
                (Response::NotSent, Some(Unavailable)),
            ] {
                assert_eq!(create(response.clone()), expected, "{provider:?} {response:?}");
            }
            let exists = Response::Status(StatusCode::CONFLICT, Some("BlobAlreadyExists".into()));
            let expected = if provider == Provider::Azure { Taken } else { Conflict };
            assert_eq!(create(exists), Some(expected), "{provider:?}");
        }
    }

    #[test]
    fn a_missing_object_is_told_from_a_missing_right() {
        for provider in Provider::ALL {
            let read = |response: Response| failure(provider, Effect::Idempotent, &response);
            assert_eq!(read(status(404)), Some(ObjectsErrorKind::NotFound));
            assert_eq!(read(status(403)), Some(ObjectsErrorKind::Denied));
        }
        let denied = error(Provider::S3, Effect::Idempotent, &status(403), "x\ny");
        assert!(denied.what.contains("s3:ListBucket") && denied.what.ends_with("detail=\"x\""), "{denied}");
    }

    /// The texts are those of the library. A name with 403 in it, as every log has one, was once taken for a denial.
    #[test]
    fn an_object_that_a_bulk_deletion_leaves_is_denied_or_tried_again() {
        for (detail, expected) in [
            ("request failed for key log/0/1: Access Denied (code: AccessDenied)", ObjectsErrorKind::Denied),
            ("request failed for key log/0/1: Forbidden (code: 403)", ObjectsErrorKind::Denied),
            (
                "request failed for key log/0/0403: We failed (code: InternalError)",
                ObjectsErrorKind::Unavailable,
            ),
            ("request failed for key log/0/0403: Server Busy (code: 503)", ObjectsErrorKind::Unavailable),
        ] {
            assert_eq!(in_body(detail).kind, expected, "{detail}");
        }
    }
}
