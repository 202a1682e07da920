//! Responses of Azure Blob Storage.

use hyper::StatusCode;
use hyper::header::{CONTENT_RANGE, ETAG, HeaderName};

use super::{HttpResponse, add, add_head, batch, empty, found, xml as xml_response};
use crate::call::{Call, Condition};
use crate::object::ObjectHead;
use crate::outcome::{Outcome, Page, Refusal};
use crate::text;
use crate::xml::{self, element};

const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
const BLOB_TYPE: HeaderName = HeaderName::from_static("x-ms-blob-type");
const COPY_STATUS: HeaderName = HeaderName::from_static("x-ms-copy-status");
const VERSION: HeaderName = HeaderName::from_static("x-ms-version");

pub(crate) fn respond(call: Option<&Call>, outcome: Outcome) -> HttpResponse {
    let bucket = call.map_or("", |call| call.bucket.as_str());
    let mut response = match outcome {
        Outcome::Written(written) | Outcome::Completed(written) => {
            written_with(StatusCode::CREATED, &written.head)
        }
        Outcome::Copied(written) => {
            let mut response = written_with(StatusCode::ACCEPTED, &written.head);
            add(&mut response, COPY_STATUS, "success");
            response
        }
        Outcome::Found { object, range, head } => {
            let mut response = found(&object, range, head);
            add(&mut response, BLOB_TYPE, "BlockBlob");
            response
        }
        Outcome::Page(page) => xml_response(StatusCode::OK, list(bucket, &page)),
        Outcome::Deleted { existed: true } | Outcome::Aborted => empty(StatusCode::ACCEPTED),
        Outcome::Deleted { existed: false } => refused(&Refusal::NoSuchKey),
        Outcome::DeletedMany(keys) => batch::respond(&keys),
        Outcome::PartStored { etag } => {
            let mut response = empty(StatusCode::CREATED);
            add(&mut response, ETAG, &etag);
            response
        }
        Outcome::Exists => empty(StatusCode::OK),
        Outcome::Refused(Refusal::NoSuchKey) if has_etag_condition(call) => {
            refused(&Refusal::ConditionFailed)
        }
        Outcome::Refused(refusal) => refused(&refusal),
        Outcome::UploadBegun { .. }
        | Outcome::Uploads(_)
        | Outcome::Lifecycle(_)
        | Outcome::Versioning(_)
        | Outcome::Location => refused(&Refusal::NotImplemented("this request")),
    };
    add(&mut response, VERSION, "2023-11-03");
    response
}

/// Azure refuses `If-Match` of a missing blob as a condition that does not hold.
fn has_etag_condition(call: Option<&Call>) -> bool {
    call.is_some_and(|call| matches!(call.condition(), Condition::Etag(_)))
}

fn written_with(status: StatusCode, head: &ObjectHead) -> HttpResponse {
    let mut response = empty(status);
    add_head(&mut response, head);
    response
}

fn list(container: &str, page: &Page) -> String {
    let mut text = format!("{}<EnumerationResults ContainerName=\"", xml::DECLARATION);
    text.push_str(&container.replace(['"', '<', '&'], "_"));
    text.push_str("\">");
    element(&mut text, "Prefix", &page.prefix);
    element(&mut text, "MaxResults", &page.max.to_string());
    if let Some(delimiter) = &page.delimiter {
        element(&mut text, "Delimiter", delimiter);
    }
    text.push_str("<Blobs>");
    for (key, head) in &page.objects {
        text.push_str("<Blob>");
        element(&mut text, "Name", key);
        text.push_str("<Properties>");
        element(&mut text, "Last-Modified", &text::http_date(head.modified));
        element(&mut text, "Etag", head.etag.trim_matches('"'));
        element(&mut text, "Content-Length", &head.size.to_string());
        element(&mut text, "Content-Type", "application/octet-stream");
        element(&mut text, "BlobType", "BlockBlob");
        text.push_str("</Properties></Blob>");
    }
    for prefix in &page.common_prefixes {
        text.push_str("<BlobPrefix>");
        element(&mut text, "Name", prefix);
        text.push_str("</BlobPrefix>");
    }
    text.push_str("</Blobs>");
    element(&mut text, "NextMarker", page.next.as_deref().unwrap_or_default());
    text.push_str("</EnumerationResults>");
    text
}

fn refused(refusal: &Refusal) -> HttpResponse {
    let (status, code, message) = explain(refusal);
    let mut response = if status == StatusCode::NOT_MODIFIED {
        empty(status)
    } else {
        let mut text = format!("{}<Error>", xml::DECLARATION);
        element(&mut text, "Code", code);
        element(&mut text, "Message", message);
        text.push_str("</Error>");
        xml_response(status, text)
    };
    add(&mut response, ERROR_CODE, code);
    if let Refusal::InvalidRange(size) = refusal {
        add(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
    }
    response
}

fn explain(refusal: &Refusal) -> (StatusCode, &'static str, &'static str) {
    match refusal {
        Refusal::NoSuchBucket => (StatusCode::NOT_FOUND, "ContainerNotFound", "the container does not exist"),
        Refusal::NoSuchKey => (StatusCode::NOT_FOUND, "BlobNotFound", "the blob does not exist"),
        Refusal::AlreadyExists | Refusal::AlreadyExistsAsConflict => {
            (StatusCode::CONFLICT, "BlobAlreadyExists", "the blob already exists")
        }
        Refusal::ConditionalConflict => {
            (StatusCode::CONFLICT, "ConditionalRequestConflict", "a conflicting request is in progress")
        }
        Refusal::ConditionFailed => {
            (StatusCode::PRECONDITION_FAILED, "ConditionNotMet", "a condition of the request does not hold")
        }
        Refusal::NotModified => (StatusCode::NOT_MODIFIED, "ConditionNotMet", ""),
        Refusal::InvalidRange(_) => {
            (StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", "the range begins behind the end of the blob")
        }
        Refusal::NoSuchUpload | Refusal::InvalidPart | Refusal::InvalidPartOrder | Refusal::PartTooSmall => {
            (StatusCode::BAD_REQUEST, "InvalidBlockList", "the list names a block that does not exist")
        }
        Refusal::BodyTooLarge => {
            (StatusCode::PAYLOAD_TOO_LARGE, "RequestBodyTooLarge", "the body is too large")
        }
        Refusal::AccessDenied => (StatusCode::FORBIDDEN, "AuthorizationFailure", "access denied"),
        Refusal::NoLifecycle => (StatusCode::NOT_FOUND, "ResourceNotFound", "the resource does not exist"),
        Refusal::Malformed(message) => (StatusCode::BAD_REQUEST, "InvalidInput", message),
        Refusal::NotImplemented(message) => (StatusCode::NOT_IMPLEMENTED, "NotImplemented", message),
        Refusal::Failure(status) => match *status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                (*status, "ServerBusy", "a failure on purpose")
            }
            status => (status, "InternalError", "a failure on purpose"),
        },
    }
}
