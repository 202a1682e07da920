//! Requests of S3 (path style) and of the XML API of GCS, which differ in the headers of conditions and copies.

use hyper::Method;

use super::{Received, byte_range, split_path};
use crate::call::{Call, ChosenPart, Command, Condition, ListQuery, Start};
use crate::listing;
use crate::options::Dialect;
use crate::outcome::Refusal;
use crate::xml;

/// The most keys that one request deletes.
const DELETE_LIMIT: usize = 1_000;

/// Parameters that select something else than an object's content.
const UNSUPPORTED: [&str; 10] = [
    "acl",
    "attributes",
    "generation",
    "legal-hold",
    "restore",
    "retention",
    "select",
    "tagging",
    "torrent",
    "versionId",
];

pub(crate) fn parse(request: &Received<'_>, dialect: Dialect) -> Result<Call, Refusal> {
    let (bucket, key) = split_path(request.path)?;
    if bucket.is_empty() {
        return Err(Refusal::NotImplemented("a request without a bucket"));
    }
    if request.query.first_of(&UNSUPPORTED).is_some() {
        return Err(Refusal::NotImplemented("this query parameter"));
    }
    if request.header("x-amz-content-sha256").is_some_and(|value| value.starts_with("STREAMING-")) {
        return Err(Refusal::NotImplemented("a body in signed chunks"));
    }
    let command = if key.is_empty() { bucket_command(request) } else { object_command(request, dialect) };
    Ok(Call { bucket, key, command: command? })
}

fn bucket_command(request: &Received<'_>) -> Result<Command, Refusal> {
    let query = request.query;
    match *request.method {
        Method::HEAD => Ok(Command::Exists),
        Method::POST if query.has("delete") => delete_many(request),
        Method::GET if query.has("uploads") => {
            Ok(Command::UploadList { prefix: query.get("prefix").unwrap_or_default().to_owned() })
        }
        Method::GET if query.has("lifecycle") => Ok(Command::Lifecycle),
        Method::GET if query.has("versioning") => Ok(Command::Versioning),
        Method::GET if query.has("location") => Ok(Command::Location),
        Method::GET if query.get("list-type") == Some("2") => list(request),
        _ => Err(Refusal::NotImplemented("this request to a bucket")),
    }
}

fn object_command(request: &Received<'_>, dialect: Dialect) -> Result<Command, Refusal> {
    let query = request.query;
    match *request.method {
        Method::PUT if query.has("uploadId") => upload_part(request),
        Method::PUT => put_or_copy(request, dialect),
        Method::GET | Method::HEAD => Ok(Command::Get {
            head: *request.method == Method::HEAD,
            range: request.header("range").and_then(byte_range),
            if_match: request.owned_header("if-match"),
            if_none_match: request.owned_header("if-none-match"),
        }),
        Method::DELETE if query.has("uploadId") => {
            Ok(Command::UploadAbort { upload: request.parameter("uploadId")? })
        }
        Method::DELETE => Ok(Command::Delete),
        Method::POST if query.has("uploads") => Ok(Command::UploadBegin),
        Method::POST if query.has("uploadId") => Ok(Command::UploadComplete {
            upload: request.parameter("uploadId")?,
            parts: chosen_parts(request.body_text()?)?,
            condition: condition(request, dialect)?,
        }),
        _ => Err(Refusal::NotImplemented("this request to an object")),
    }
}

fn put_or_copy(request: &Received<'_>, dialect: Dialect) -> Result<Command, Refusal> {
    let condition = condition(request, dialect)?;
    let source = request.header("x-amz-copy-source").or_else(|| request.header("x-goog-copy-source"));
    match source {
        Some(source) => {
            let (bucket, key) = split_path(source)?;
            Ok(Command::Copy { bucket, key, condition })
        }
        None => Ok(Command::Put {
            body: request.body.clone(),
            content_type: request.headers.get("content-type").cloned(),
            condition,
        }),
    }
}

fn condition(request: &Received<'_>, dialect: Dialect) -> Result<Condition, Refusal> {
    if dialect == Dialect::Gcs {
        let generation = request.header("x-goog-if-generation-match").map(str::parse).transpose();
        return match generation.map_err(|_| Refusal::Malformed("the generation is not a number"))? {
            None => Ok(Condition::None),
            Some(0) => Ok(Condition::Absent),
            Some(generation) => Ok(Condition::Generation(generation)),
        };
    }
    match (request.header("if-none-match"), request.header("if-match")) {
        (None, None) => Ok(Condition::None),
        (Some("*"), None) => Ok(Condition::Absent),
        (None, Some(etag)) => Ok(Condition::Etag(etag.to_owned())),
        _ => Err(Refusal::NotImplemented("If-None-Match with anything but *, or both conditions")),
    }
}

fn upload_part(request: &Received<'_>) -> Result<Command, Refusal> {
    if request.headers.contains_key("x-amz-copy-source") {
        return Err(Refusal::NotImplemented("a part that is a copy"));
    }
    let number =
        request.parameter("partNumber")?.parse::<u32>().ok().filter(|number| (1..=10_000).contains(number));
    let part = number.ok_or(Refusal::Malformed("part numbers are 1 to 10000"))?.to_string();
    Ok(Command::UploadPart { upload: request.parameter("uploadId")?, part, body: request.body.clone() })
}

fn chosen_parts(body: &str) -> Result<Vec<ChosenPart>, Refusal> {
    let malformed = Refusal::Malformed("the list of parts cannot be parsed");
    let mut parts = Vec::new();
    let mut last = 0;
    for element in xml::elements(body, "Part") {
        let number = xml::text_of(element, "PartNumber").and_then(|text| text.trim().parse::<u32>().ok());
        let number = number.ok_or(malformed.clone())?;
        if number <= last {
            return Err(Refusal::InvalidPartOrder);
        }
        last = number;
        let etag = xml::text_of(element, "ETag").ok_or(malformed.clone())?;
        parts.push(ChosenPart { name: number.to_string(), etag: Some(etag) });
    }
    if parts.is_empty() { Err(malformed) } else { Ok(parts) }
}

fn delete_many(request: &Received<'_>) -> Result<Command, Refusal> {
    let malformed = Refusal::Malformed("the list of keys cannot be parsed");
    let objects = xml::elements(request.body_text()?, "Object");
    let keys = objects.into_iter().map(|object| xml::text_of(object, "Key")).collect::<Option<Vec<_>>>();
    let keys = keys.ok_or(malformed.clone())?;
    if keys.is_empty() || keys.len() > DELETE_LIMIT {
        return Err(malformed);
    }
    Ok(Command::DeleteMany { keys })
}

fn list(request: &Received<'_>) -> Result<Command, Refusal> {
    let query = request.query;
    let start = match (query.get("continuation-token"), query.get("start-after")) {
        (Some(token), _) => {
            listing::resume(token).ok_or(Refusal::Malformed("the continuation token is unknown"))?
        }
        (None, Some(after)) => Start::After(after.to_owned()),
        (None, None) => Start::Beginning,
    };
    Ok(Command::List(ListQuery {
        prefix: query.get("prefix").unwrap_or_default().to_owned(),
        delimiter: query.get("delimiter").map(ToOwned::to_owned),
        start,
        max: request.limit("max-keys")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_must_ascend_and_be_complete() {
        let part =
            |number| format!("<Part><ETag>&quot;a&quot;</ETag><PartNumber>{number}</PartNumber></Part>");
        let parts = chosen_parts(&format!("<C>{}{}</C>", part(1), part(3))).expect("in order");
        assert_eq!(parts[1].name, "3");
        assert_eq!(parts[1].etag.as_deref(), Some("\"a\""));
        assert_eq!(chosen_parts(&format!("{}{}", part(2), part(1))).err(), Some(Refusal::InvalidPartOrder));
        assert!(matches!(chosen_parts("<C></C>"), Err(Refusal::Malformed(_))));
        assert!(matches!(
            chosen_parts("<Part><PartNumber>1</PartNumber></Part>"),
            Err(Refusal::Malformed(_))
        ));
    }

    #[test]
    fn copy_sources_are_decoded() {
        assert_eq!(split_path("b/a%20b"), Ok(("b".into(), "a b".into())));
        assert_eq!(split_path("b/a%2Fb"), Ok(("b".into(), "a/b".into())));
    }
}
