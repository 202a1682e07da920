//! Writes the document of a key: commits a new version, or removes it.

use std::sync::Arc;

use api::responses;
use api::schema_types::{Key, Namespace};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::{Extension, Json};
use engine::document::DocumentLocation;
use http_body::Body as _;
use identity::Right;
use kernel::{Action, Command, Commit, Credential, Location, Removal, ResourceName, Shard, Write};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::leases::check_namespace;
use crate::backend::shards::{Backend, SubmitOptions};
use crate::backend::upload::{self, DeclaredBody, PlannedWrite, ReceivedContent};
use crate::parse::query::{Flag, Query};
use crate::parse::{self, Conditions, Headers, idempotency};
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::etag::etag_text;
use crate::present::refusals::{RefusalResponse, refused};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteQuery {
    /// Name of the key.
    #[param(value_type = Key)]
    key: Option<String>,
    /// The namespace, which must be the lease's own; `default` if missing.
    #[param(value_type = Option<Namespace>)]
    namespace: Option<String>,
    /// 1: release the lease in the same atomic step.
    release: Option<Flag>,
}

pub(crate) async fn update(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<WriteQuery>,
    Headers(headers): Headers,
    body: Body,
) -> JsonResult<responses::Committed> {
    let key = parse::required_key(query.key.as_deref())?;
    let conditions = parse::conditions(&headers)?;
    let (credential, shard) = match lease(&backend, &peer, &query, &key, &headers).await {
        Ok(found) => found,
        Err(refusal) => {
            upload::discard(declared_body(&headers, &body), body);
            return Err(refusal);
        }
    };
    let release = Flag::is_set(query.release);
    let write = write(credential, key.clone(), &conditions, release);
    let planned = PlannedWrite {
        identity: peer.identity.clone(),
        write: write.clone(),
        request: idempotency::key(&headers, api::path::UPDATE_STATE, &[])?.map(|request| request.key),
        shard,
    };
    let document = upload::receive(&backend, &planned, declared_body(&headers, &body), body).await?;
    let (etag, bytes) = (document.etag, document.bytes);
    let sent: [&[u8]; 3] = [key.as_str().as_bytes(), &etag.0, &[u8::from(release)]];
    let request = idempotency::key(&headers, api::path::UPDATE_STATE, &sent)?;
    let (location, inline, pin) = match document.content {
        ReceivedContent::Inline(bytes) => (Location::default(), Some(bytes), None),
        ReceivedContent::Blob(pin) => (DocumentLocation::Blob(pin.blob()).location(), None, Some(pin)),
    };
    let action = Action::Commit(Commit { write, etag, bytes, location });
    let command = Command { identity: Some(peer.identity), request, action };
    let origin = parse::origin(&headers)?;
    let options = SubmitOptions { document: inline, ..SubmitOptions::new(&peer.connection, origin) };
    let decision = upload::commit(&backend, shard, command, options, pin).await?;
    match decision.response() {
        Some(kernel::Response::Committed(version)) => {
            Ok(Json(responses::Committed { new_version: version.0, new_state_etag: etag_text(etag), bytes }))
        }
        _ => Err(refused(&decision, None).into()),
    }
}

pub(crate) async fn remove(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<WriteQuery>,
    Headers(headers): Headers,
) -> JsonResult<responses::Removed> {
    let key = parse::required_key(query.key.as_deref())?;
    let conditions = parse::conditions(&headers)?;
    let release = Flag::is_set(query.release);
    let sent: [&[u8]; 2] = [key.as_str().as_bytes(), &[u8::from(release)]];
    let request = idempotency::key(&headers, api::path::REMOVE_STATE, &sent)?;
    let (credential, shard) = lease(&backend, &peer, &query, &key, &headers).await?;
    let write = write(credential, key, &conditions, release);
    let action = Action::Remove(Removal { write });
    let command = Command { identity: Some(peer.identity), request, action };
    let options = SubmitOptions::new(&peer.connection, parse::origin(&headers)?);
    let (decision, ()) = backend.submit(shard, command, options, |_, _, _| ()).await?;
    match decision.response() {
        Some(kernel::Response::Removed { removed, version }) => {
            Ok(Json(responses::Removed { removed: *removed, new_version: version.0 }))
        }
        _ => Err(refused(&decision, None).into()),
    }
}

/// The lease in `X-Lease-ID`, in the namespace that the query names, of a peer that may write there.
async fn lease(
    backend: &Backend,
    peer: &Peer,
    query: &WriteQuery,
    key: &ResourceName,
    headers: &HeaderMap,
) -> Result<(Credential, Shard), RefusalResponse> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    let credential = parse::credential_header(&backend.key, headers)?;
    parse::require_right(peer, &namespace, Right::Write)?;
    check_namespace(backend, &peer.identity, credential, (&namespace, key)).await?;
    Ok((credential, backend.shard_of_lease(credential.lease)?))
}

/// The length is that of the connection's framing, or that of the header: not every connection passes the header on, and
/// not every program that mounts the router frames the body.
fn declared_body(headers: &HeaderMap, body: &Body) -> DeclaredBody {
    let header = || headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    DeclaredBody {
        length: body.size_hint().exact().or_else(header),
        expects_continue: headers.contains_key(header::EXPECT),
    }
}

fn write(credential: Credential, key: ResourceName, conditions: &Conditions, release: bool) -> Write {
    let Conditions { token, if_version, if_etag } = *conditions;
    Write { held: credential, key, token, if_version, if_etag, release }
}
