//! Responses of S3 and of the XML API of GCS.

use hyper::StatusCode;
use hyper::header::{CONTENT_RANGE, HeaderName};

use super::{HttpResponse, add, add_head, empty, found, xml as xml_response};
use crate::call::Call;
use crate::object::ObjectHead;
use crate::options::Dialect;
use crate::outcome::{Outcome, Page, Refusal, UploadLine, Written};
use crate::text;
use crate::xml::{self, element};

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
const GENERATION: HeaderName = HeaderName::from_static("x-goog-generation");

pub(crate) fn respond(dialect: Dialect, call: Option<&Call>, outcome: Outcome) -> HttpResponse {
    let (bucket, key) = call.map_or(("", ""), |call| (call.bucket.as_str(), call.key.as_str()));
    match outcome {
        Outcome::Written(written) => head_only(dialect, &written.head),
        Outcome::Found { object, range, head } => {
            let mut response = found(&object, range, head);
            add_generation(dialect, &mut response, &object.head);
            response
        }
        Outcome::Page(page) => document("ListBucketResult", &list(bucket, &page)),
        Outcome::Deleted { existed: false } if dialect == Dialect::Gcs => {
            refused(dialect, key, &Refusal::NoSuchKey)
        }
        Outcome::Deleted { .. } | Outcome::Aborted => empty(StatusCode::NO_CONTENT),
        Outcome::DeletedMany(keys) => document("DeleteResult", &deleted(&keys)),
        Outcome::Copied(written) => document("CopyObjectResult", &copied(&written)),
        Outcome::UploadBegun { upload } => {
            document("InitiateMultipartUploadResult", &begun(bucket, key, &upload))
        }
        Outcome::PartStored { etag } => {
            let mut response = empty(StatusCode::OK);
            add(&mut response, hyper::header::ETAG, &etag);
            response
        }
        Outcome::Completed(written) => {
            let body = completed(bucket, key, &written);
            let mut response = document("CompleteMultipartUploadResult", &body);
            add_generation(dialect, &mut response, &written.head);
            response
        }
        Outcome::Uploads(uploads) => document("ListMultipartUploadsResult", &open_uploads(bucket, &uploads)),
        Outcome::Lifecycle(configuration) => xml_response(StatusCode::OK, configuration),
        Outcome::Versioning(enabled) => document("VersioningConfiguration", &versioning(enabled)),
        Outcome::Location => document("LocationConstraint", ""),
        Outcome::Exists => empty(StatusCode::OK),
        Outcome::Refused(refusal) => refused(dialect, key, &refusal),
    }
}

fn head_only(dialect: Dialect, head: &ObjectHead) -> HttpResponse {
    let mut response = empty(StatusCode::OK);
    add_head(&mut response, head);
    add_generation(dialect, &mut response, head);
    response
}

fn add_generation(dialect: Dialect, response: &mut HttpResponse, head: &ObjectHead) {
    if dialect == Dialect::Gcs {
        add(response, GENERATION, &head.generation.to_string());
    }
}

fn document(root: &str, content: &str) -> HttpResponse {
    let text = format!("{}<{root} xmlns=\"{NAMESPACE}\">{content}</{root}>", xml::DECLARATION);
    xml_response(StatusCode::OK, text)
}

fn list(bucket: &str, page: &Page) -> String {
    let mut text = String::with_capacity(256 * (page.objects.len() + 1));
    element(&mut text, "Name", bucket);
    element(&mut text, "Prefix", &page.prefix);
    if let Some(delimiter) = &page.delimiter {
        element(&mut text, "Delimiter", delimiter);
    }
    element(&mut text, "MaxKeys", &page.max.to_string());
    element(&mut text, "KeyCount", &(page.objects.len() + page.common_prefixes.len()).to_string());
    element(&mut text, "IsTruncated", if page.next.is_some() { "true" } else { "false" });
    if let Some(next) = &page.next {
        element(&mut text, "NextContinuationToken", next);
    }
    for (key, head) in &page.objects {
        text.push_str("<Contents>");
        element(&mut text, "Key", key);
        element(&mut text, "LastModified", &text::iso_date(head.modified));
        element(&mut text, "ETag", &head.etag);
        element(&mut text, "Size", &head.size.to_string());
        element(&mut text, "StorageClass", "STANDARD");
        text.push_str("</Contents>");
    }
    for prefix in &page.common_prefixes {
        text.push_str("<CommonPrefixes>");
        element(&mut text, "Prefix", prefix);
        text.push_str("</CommonPrefixes>");
    }
    text
}

fn deleted(keys: &[(String, bool)]) -> String {
    let mut text = String::new();
    for (key, _) in keys {
        text.push_str("<Deleted>");
        element(&mut text, "Key", key);
        text.push_str("</Deleted>");
    }
    text
}

fn copied(written: &Written) -> String {
    let mut text = String::new();
    element(&mut text, "LastModified", &text::iso_date(written.head.modified));
    element(&mut text, "ETag", &written.head.etag);
    text
}

fn begun(bucket: &str, key: &str, upload: &str) -> String {
    let mut text = String::new();
    element(&mut text, "Bucket", bucket);
    element(&mut text, "Key", key);
    element(&mut text, "UploadId", upload);
    text
}

fn completed(bucket: &str, key: &str, written: &Written) -> String {
    let mut text = String::new();
    element(&mut text, "Location", &format!("/{bucket}/{key}"));
    element(&mut text, "Bucket", bucket);
    element(&mut text, "Key", key);
    element(&mut text, "ETag", &written.head.etag);
    text
}

fn open_uploads(bucket: &str, uploads: &[UploadLine]) -> String {
    let mut text = String::new();
    element(&mut text, "Bucket", bucket);
    element(&mut text, "IsTruncated", "false");
    for upload in uploads {
        text.push_str("<Upload>");
        element(&mut text, "Key", &upload.key);
        element(&mut text, "UploadId", &upload.upload);
        element(&mut text, "Initiated", &text::iso_date(upload.begun));
        text.push_str("</Upload>");
    }
    text
}

fn versioning(enabled: bool) -> String {
    let mut text = String::new();
    if enabled {
        element(&mut text, "Status", "Enabled");
    }
    text
}

fn refused(dialect: Dialect, key: &str, refusal: &Refusal) -> HttpResponse {
    let (status, code, message) = explain(dialect, refusal);
    if status == StatusCode::NOT_MODIFIED {
        return empty(status);
    }
    let mut text = format!("{}<Error>", xml::DECLARATION);
    element(&mut text, "Code", code);
    element(&mut text, "Message", message);
    element(&mut text, "Key", key);
    element(&mut text, "RequestId", "0000000000000001");
    text.push_str("</Error>");
    let mut response = xml_response(status, text);
    if let Refusal::InvalidRange(size) = refusal {
        add(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
    }
    response
}

fn explain(dialect: Dialect, refusal: &Refusal) -> (StatusCode, &'static str, &'static str) {
    match refusal {
        Refusal::NoSuchBucket => (StatusCode::NOT_FOUND, "NoSuchBucket", "the bucket does not exist"),
        Refusal::NoSuchKey => (StatusCode::NOT_FOUND, "NoSuchKey", "the key does not exist"),
        Refusal::NoSuchUpload => (StatusCode::NOT_FOUND, "NoSuchUpload", "the upload does not exist"),
        Refusal::AlreadyExists | Refusal::ConditionFailed => (
            StatusCode::PRECONDITION_FAILED,
            "PreconditionFailed",
            "a condition of the request does not hold",
        ),
        Refusal::AlreadyExistsAsConflict => {
            (StatusCode::CONFLICT, "ObjectAlreadyExists", "the object exists")
        }
        Refusal::ConditionalConflict => {
            (StatusCode::CONFLICT, "ConditionalRequestConflict", "a conflicting request is in progress")
        }
        Refusal::NotModified => (StatusCode::NOT_MODIFIED, "NotModified", ""),
        Refusal::InvalidRange(_) => (
            StatusCode::RANGE_NOT_SATISFIABLE,
            "InvalidRange",
            "the range begins behind the end of the object",
        ),
        Refusal::InvalidPart => {
            (StatusCode::BAD_REQUEST, "InvalidPart", "a part is missing or has another etag")
        }
        Refusal::InvalidPartOrder => {
            (StatusCode::BAD_REQUEST, "InvalidPartOrder", "part numbers must ascend")
        }
        Refusal::PartTooSmall => {
            (StatusCode::BAD_REQUEST, "EntityTooSmall", "a part but the last is too small")
        }
        Refusal::BodyTooLarge => (StatusCode::BAD_REQUEST, "EntityTooLarge", "the body is too large"),
        Refusal::AccessDenied => (StatusCode::FORBIDDEN, "AccessDenied", "access denied"),
        Refusal::NoLifecycle => (
            StatusCode::NOT_FOUND,
            "NoSuchLifecycleConfiguration",
            "the lifecycle configuration does not exist",
        ),
        Refusal::Malformed(message) => (StatusCode::BAD_REQUEST, "InvalidArgument", message),
        Refusal::NotImplemented(message) => (StatusCode::NOT_IMPLEMENTED, "NotImplemented", message),
        Refusal::Failure(status) => (*status, failure_code(dialect, *status), "a failure on purpose"),
    }
}

fn failure_code(dialect: Dialect, status: StatusCode) -> &'static str {
    match (dialect, status) {
        (Dialect::S3, StatusCode::SERVICE_UNAVAILABLE) | (_, StatusCode::TOO_MANY_REQUESTS) => "SlowDown",
        (_, StatusCode::SERVICE_UNAVAILABLE) => "ServiceUnavailable",
        _ => "InternalError",
    }
}
