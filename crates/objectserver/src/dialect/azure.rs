//! Requests of Azure Blob Storage.

use hyper::Method;

use super::{Received, batch, byte_range, split_path};
use crate::call::{Call, ChosenPart, Command, Condition, ListQuery, Start};
use crate::listing;
use crate::outcome::Refusal;
use crate::uploads::blocks_of;
use crate::xml;

pub(crate) fn parse(request: &Received<'_>, has_bucket: &dyn Fn(&str) -> bool) -> Result<Call, Refusal> {
    let (bucket, key) = container_and_blob(request.path, has_bucket)?;
    let command = if key.is_empty() {
        container_command(request, &bucket, has_bucket)?
    } else {
        blob_command(request, &key, has_bucket)?
    };
    Ok(Call { bucket, key, command })
}

/// Splits `/container/blob` or, as emulators have it, `/account/container/blob`.
pub(super) fn container_and_blob(
    path: &str,
    has_bucket: &dyn Fn(&str) -> bool,
) -> Result<(String, String), Refusal> {
    let (first, rest) = split_path(path)?;
    if first.is_empty() {
        return Err(Refusal::NotImplemented("a request without a container"));
    }
    let (second, blob) = rest.split_once('/').unwrap_or((rest.as_str(), ""));
    if !has_bucket(&first) && has_bucket(second) {
        return Ok((second.to_owned(), blob.to_owned()));
    }
    Ok((first, rest))
}

fn container_command(
    request: &Received<'_>,
    container: &str,
    has_bucket: &dyn Fn(&str) -> bool,
) -> Result<Command, Refusal> {
    match (request.method, request.query.get("comp")) {
        (&Method::GET, Some("list")) => list(request),
        (&Method::POST, Some("batch")) => batch::deletes(request, container, has_bucket),
        (&Method::GET | &Method::HEAD, None) => Ok(Command::Exists),
        _ => Err(Refusal::NotImplemented("this request to a container")),
    }
}

fn blob_command(
    request: &Received<'_>,
    key: &str,
    has_bucket: &dyn Fn(&str) -> bool,
) -> Result<Command, Refusal> {
    match (request.method, request.query.get("comp")) {
        (&Method::PUT, None) => put_or_copy(request, has_bucket),
        (&Method::PUT, Some("block")) => Ok(Command::UploadPart {
            upload: blocks_of(key),
            part: request.parameter("blockid")?,
            body: request.body.clone(),
        }),
        (&Method::PUT, Some("blocklist")) => Ok(Command::UploadComplete {
            upload: blocks_of(key),
            parts: chosen_blocks(request.body_text()?)?,
            condition: condition(request)?,
        }),
        (&Method::GET | &Method::HEAD, None) => Ok(Command::Get {
            head: request.method == Method::HEAD,
            range: request.header("x-ms-range").or_else(|| request.header("range")).and_then(byte_range),
            if_match: request.owned_header("if-match"),
            if_none_match: request.owned_header("if-none-match"),
        }),
        (&Method::DELETE, None) => Ok(Command::Delete),
        _ => Err(Refusal::NotImplemented("this request to a blob")),
    }
}

fn put_or_copy(request: &Received<'_>, has_bucket: &dyn Fn(&str) -> bool) -> Result<Command, Refusal> {
    let condition = condition(request)?;
    if let Some(source) = request.header("x-ms-copy-source") {
        let after_scheme = source.split_once("://").map_or(source, |split| split.1);
        let path = after_scheme.find('/').map_or("", |start| &after_scheme[start..]);
        let path = path.split('?').next().unwrap_or_default();
        let (bucket, key) = container_and_blob(path, has_bucket)?;
        return Ok(Command::Copy { bucket, key, condition });
    }
    match request.header("x-ms-blob-type") {
        Some("BlockBlob") => Ok(Command::Put {
            body: request.body.clone(),
            content_type: request.headers.get("x-ms-blob-content-type").cloned(),
            condition,
        }),
        Some(_) => Err(Refusal::NotImplemented("a blob that is not a block blob")),
        None => Err(Refusal::Malformed("the header x-ms-blob-type is missing")),
    }
}

fn condition(request: &Received<'_>) -> Result<Condition, Refusal> {
    match (request.header("if-none-match"), request.header("if-match")) {
        (None, None) => Ok(Condition::None),
        (Some("*"), None) => Ok(Condition::Absent),
        (None, Some(etag)) => Ok(Condition::Etag(etag.to_owned())),
        _ => Err(Refusal::NotImplemented("If-None-Match with anything but *, or both conditions")),
    }
}

/// The blocks of a list. `Committed` blocks are not kept apart from the blob, so only uncommitted ones are supported.
fn chosen_blocks(body: &str) -> Result<Vec<ChosenPart>, Refusal> {
    if !body.contains("<BlockList") {
        return Err(Refusal::Malformed("the list of blocks cannot be parsed"));
    }
    if body.contains("<Committed>") {
        return Err(Refusal::NotImplemented("a list with committed blocks"));
    }
    let tag = if body.contains("<Latest>") { "Latest" } else { "Uncommitted" };
    let names = xml::elements(body, tag).into_iter().map(xml::unescape).collect::<Option<Vec<_>>>();
    let names = names.ok_or(Refusal::Malformed("the list of blocks cannot be parsed"))?;
    Ok(names.into_iter().map(|name| ChosenPart { name, etag: None }).collect())
}

fn list(request: &Received<'_>) -> Result<Command, Refusal> {
    let query = request.query;
    let marker = query.get("marker").filter(|marker| !marker.is_empty());
    let start = match (marker, query.get("startFrom")) {
        (Some(token), _) => listing::resume(token).ok_or(Refusal::Malformed("the marker is unknown"))?,
        (None, Some(from)) => Start::At(from.to_owned()),
        (None, None) => Start::Beginning,
    };
    Ok(Command::List(ListQuery {
        prefix: query.get("prefix").unwrap_or_default().to_owned(),
        delimiter: query.get("delimiter").map(ToOwned::to_owned),
        start,
        max: request.limit("maxresults")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_in_front_of_a_known_container_is_skipped() {
        let known = |name: &str| name == "box";
        let split = |path| container_and_blob(path, &known).expect("UTF-8");
        assert_eq!(split("/box/a/b"), ("box".into(), "a/b".into()));
        assert_eq!(split("/account/box/a/b"), ("box".into(), "a/b".into()));
        assert_eq!(split("/other/a/b"), ("other".into(), "a/b".into()));
        assert_eq!(split("/account/box"), ("box".into(), String::new()));
    }

    #[test]
    fn block_lists_name_uncommitted_blocks_only() {
        let blocks = chosen_blocks("<BlockList><Uncommitted>YQ==</Uncommitted></BlockList>").expect("valid");
        assert_eq!(blocks[0].name, "YQ==");
        let committed = chosen_blocks("<BlockList><Committed>YQ==</Committed></BlockList>");
        assert!(matches!(committed, Err(Refusal::NotImplemented(_))));
        assert!(matches!(chosen_blocks("junk"), Err(Refusal::Malformed(_))));
    }
}
