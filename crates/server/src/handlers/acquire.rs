//! `POST /v1/acquire`, and rebind, whose response is the same.

use std::sync::Arc;

use api::requests;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Response;
use engine::Decision;
use identity::Right;
use kernel::{Action, Command, Shard};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::download::{CountedStream, DocumentReader};
use crate::backend::error::BackendError;
use crate::backend::leases::check_covered;
use crate::backend::shards::{Backend, SubmitOptions};
use crate::parse::attempt::RequestBinding;
use crate::parse::query::{Flag, Query};
use crate::parse::{self, Headers, attempt, idempotency, lease_request};
use crate::peer::Peer;
use crate::present::delivery;
use crate::present::leases::{self, GrantView};
use crate::present::refusals::{self, IntoRefusal as _, RefusalResponse};

/// The capacity for a response over one key.
const GRANT_BYTES: usize = 512;

#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcquireQuery {
    /// 1: include the key's document in the response, as `state`; needs the right `r`.
    include_state: Option<Flag>,
}

pub(crate) async fn acquire(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<AcquireQuery>,
    Headers(headers): Headers,
    body: Bytes,
) -> Result<Response, RefusalResponse> {
    let fields: requests::Acquire = parse::body(&body)?;
    backend
        .check_not_draining()
        .map_err(|error| attempt::kept(error.into_refusal(), fields.attempt_id.as_deref()))?;
    let grant = lease_request::grant(&backend.settings, &peer, &fields)?;
    let include_state = Flag::is_set(query.include_state);
    if include_state {
        // `w`, which the grant needs, does not include `r`.
        parse::require_right(&peer, &grant.namespace, Right::Read)?;
    }
    let wait = lease_request::wait(&backend.settings, fields.block_seconds)?;
    let binding = RequestBinding::new(&backend.key, &peer.identity, &grant);
    let attempt = attempt::presented(&binding, fields.attempt_id.as_deref())?;
    let shard = backend.shard_of(&grant.namespace);
    let reserve = fields.reserve.unwrap_or(false);
    let action = if reserve { Action::Reserve(grant) } else { Action::Acquire(grant) };
    let request = idempotency::key(&headers, api::path::ACQUIRE, &[&body])?;
    let command = Command { identity: Some(peer.identity), request, action };
    let origin = parse::origin(&headers)?;
    let options = SubmitOptions { wait, attempt, ..SubmitOptions::new(&peer.connection, origin) };
    submit_for_lease(&backend, shard, command, options, include_state, Some(&binding)).await
}

pub(crate) async fn rebind(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
    Headers(headers): Headers,
    body: Bytes,
) -> Result<Response, RefusalResponse> {
    let fields: requests::Holder = parse::body(&body)?;
    let credential = parse::credential_of_lease(&backend.key, &fields.lease_id, &id)?;
    if let Some(key) = &fields.key {
        check_covered(&backend, credential, parse::key(key)?).await?;
    }
    let shard = backend.shard_of_lease(credential.lease)?;
    let request = idempotency::key(&headers, "rebind", &[&body])?;
    let command = Command { identity: Some(peer.identity), request, action: Action::Rebind(credential) };
    let options = SubmitOptions::new(&peer.connection, parse::origin(&headers)?);
    submit_for_lease(&backend, shard, command, options, false, None).await
}

async fn submit_for_lease(
    backend: &Backend,
    shard: Shard,
    command: Command,
    options: SubmitOptions,
    include_state: bool,
    binding: Option<&RequestBinding<'_>>,
) -> Result<Response, RefusalResponse> {
    let identity = command.identity.clone().expect("every request has an identity");
    let submitted = backend.submit_for_lease(shard, command, options, GrantView::read).await;
    let (decision, view, delivery) = submitted.map_err(|error| {
        let dismissed = match &error {
            BackendError::Dismissed(attempt) => binding.zip(Some(*attempt)),
            _ => None,
        };
        let refusal = error.into_refusal();
        match dismissed {
            Some((binding, attempt)) => binding.with_attempt(refusal, &attempt),
            None => refusal,
        }
    })?;
    let Some(granted) = leases::granted(&decision) else {
        let refusal = refusals::refused(&decision, view.blocked_by);
        return Err(match (binding, &decision) {
            (Some(binding), Decision::Blocked(blocked)) => binding.with_attempt(refusal, &blocked.attempt),
            _ => refusal,
        }
        .into());
    };
    let response = leases::granted_response(backend, granted, &view);
    let mut body = Vec::with_capacity(GRANT_BYTES);
    serde_json::to_writer(&mut body, &response).expect("a lease serializes");
    if include_state && let Some(document) = view.key.and_then(|key| key.document) {
        let bytes = document.bytes;
        let document = DocumentReader::new(backend, shard, &document, &identity)?.stream(0..bytes).await;
        let document = document.map_err(|error| refusals::unread(&error))?;
        let mut response = delivery::json_with_state(body, document, bytes, delivery);
        response.extensions_mut().insert(CountedStream);
        return Ok(response);
    }
    Ok(delivery::json(body, delivery))
}
