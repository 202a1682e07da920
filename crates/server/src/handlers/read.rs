//! Reads the document of a key: whole, a range, or only a confirmation that the client's version is current.

use std::sync::Arc;

use api::schema_types::{Key, Namespace};
use api::{Code, Refusal, header as wire};
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use identity::Right;
use kernel::{Document, KeyView, Shard};
use serde::Deserialize;
use store::ErrorKind;
use utoipa::IntoParams;

use crate::backend::download::{CountedStream, DocumentReader, ReadAccess, ReadError};
use crate::backend::shards::Backend;
use crate::parse::query::{Flag, Query};
use crate::parse::range::Selection;
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::documents;
use crate::present::etag::etag_text;
use crate::present::refusals::{self, RefusalResponse};

/// How often a read starts again because its document was moved or superseded.
const RETRIES_MAX: usize = 5;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadQuery {
    /// Name of the key.
    #[param(value_type = Key)]
    key: Option<String>,
    /// The namespace, which must be the lease's own; `default` if missing.
    #[param(value_type = Option<Namespace>)]
    namespace: Option<String>,
    /// 1: read the last committed version without a lease.
    public: Option<Flag>,
}

/// Ranges and conditions apply to GET; a POST always returns the whole document.
pub(crate) async fn get(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<ReadQuery>,
    method: Method,
    Headers(headers): Headers,
) -> Result<Response, RefusalResponse> {
    let key = parse::required_key(query.key.as_deref())?;
    let access = access(&backend, &peer, &query, &headers)?;
    let shard = access.shard(&backend)?;
    for _ in 0..RETRIES_MAX {
        let view = access.find(&backend, shard, &key).await?;
        let Some((view, document)) = view.and_then(|view| Some((view, view.document?))) else {
            return Ok(documents::no_document(view));
        };
        let selection = match method {
            Method::GET => Selection::parse(&headers, &etag_text(document.etag), document.bytes),
            _ => Selection::Whole,
        };
        match respond(&backend, shard, &peer, view, &document, selection).await {
            Err(ReadError::Store(error)) if error.kind == ErrorKind::Gone => {}
            Err(error) => return Err(refusals::unread(&error).into()),
            Ok(response) => return Ok(response),
        }
    }
    Err(Refusal::new(Code::Unavailable, "the document changed during each attempt to read it; retry").into())
}

fn access(
    backend: &Backend,
    peer: &Peer,
    query: &ReadQuery,
    headers: &HeaderMap,
) -> Result<ReadAccess, Refusal> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    if !Flag::is_set(query.public) {
        let credential = parse::credential_header(&backend.key, headers)?;
        parse::require_right(peer, &namespace, Right::Read)?;
        return Ok(ReadAccess::Lease { identity: peer.identity.clone(), credential, namespace });
    }
    parse::require_right(peer, &namespace, Right::PublicRead)?;
    // A public read needs no credential, but refuses an invalid one.
    if headers.contains_key(wire::LEASE_ID) {
        parse::credential_header(&backend.key, headers)?;
    }
    Ok(ReadAccess::Public(namespace))
}

async fn respond(
    backend: &Backend,
    shard: Shard,
    peer: &Peer,
    view: KeyView,
    document: &Document,
    selection: Selection,
) -> Result<Response, ReadError> {
    let reader = DocumentReader::new(backend, shard, document, &peer.identity)?;
    let mut response = match selection {
        Selection::NotModified => documents::not_modified(view, document),
        Selection::NotSatisfiable => documents::range_not_satisfiable(document.bytes),
        Selection::Whole => {
            let body = reader.stream(0..document.bytes).await?;
            documents::whole(view, document, body)
        }
        Selection::Range(range) => {
            let body = reader.stream(range.clone()).await?;
            documents::partial(view, document, &range, body)
        }
    };
    response.extensions_mut().insert(CountedStream);
    Ok(response)
}
