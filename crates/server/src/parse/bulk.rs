//! A request that names many leases: the only kind of JSON body that may be long.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::agents::Bulk;
use api::{Code, Refusal};
use axum::Extension;
use axum::extract::{FromRequest, FromRequestParts, Request as HttpRequest};
use axum::http::HeaderMap;
use engine::Origin;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use identity::Right;
use kernel::{Action, AgentName, Command, Credential, IdempotencyKey, Namespace, Shard};
use serde::de::DeserializeOwned;

use crate::backend::shards::{Backend, OnlyShard};
use crate::parse;
use crate::parse::idempotency;
use crate::peer::Peer;
use crate::present::refusals::{self, RefusalResponse};

/// A request whose body is JSON of up to [`Bulk::BODY_MAX`] bytes.
pub(crate) struct BulkBody<T> {
    pub(crate) peer: Peer,
    pub(crate) headers: HeaderMap,
    /// The shard that the request is confined to.
    pub(crate) only: Option<OnlyShard>,
    pub(crate) body: T,
}

impl<T: DeserializeOwned> FromRequest<Arc<Backend>> for BulkBody<T> {
    type Rejection = RefusalResponse;

    async fn from_request(
        request: HttpRequest,
        backend: &Arc<Backend>,
    ) -> Result<BulkBody<T>, RefusalResponse> {
        let (mut parts, body) = request.into_parts();
        let peer = Extension::<Peer>::from_request_parts(&mut parts, backend).await;
        let Extension(peer) = peer.map_err(|error| Refusal::new(Code::Unauthenticated, error.body_text()))?;
        let body = Limited::new(body, Bulk::BODY_MAX).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let detail = format!("the body is longer than the limit: max={}", Bulk::BODY_MAX);
                return Refusal::new(Code::DocumentTooLarge, detail);
            }
            refusals::truncated(&error)
        })?;
        let body = parse::body(&body.to_bytes())?;
        let only = parts.extensions.get::<OnlyShard>().copied();
        Ok(BulkBody { peer, headers: parts.headers, only, body })
    }
}

/// Checks the number of leases in a request. A part of one may have none: it is only for the agent.
pub(crate) fn check_length(ids: &[String], only: Option<OnlyShard>) -> Result<(), Refusal> {
    if (ids.is_empty() && only.is_none()) || ids.len() > Bulk::MAX {
        let detail = format!("lease_ids is empty or longer than the limit: max={}", Bulk::MAX);
        return Err(Refusal::new(Code::InvalidBody, detail));
    }
    Ok(())
}

/// A well-formed bulk request. Each credential is accepted or refused on its own.
pub(crate) struct BulkRequest {
    pub(crate) peer: Peer,
    pub(crate) origin: Origin,
    pub(crate) namespace: Namespace,
    /// Whether the request names the namespace: then every lease must be in it.
    pub(crate) is_namespace_named: bool,
    /// The agent that sends the request. The peer may write in the namespace if there is one.
    pub(crate) agent: Option<AgentName>,
    /// The credentials as they were sent.
    pub(crate) ids: Vec<String>,
    /// For each id its credential and shard, or why it is refused.
    pub(crate) credentials: Vec<Result<(Credential, Shard), Refusal>>,
    /// Whether all leases are of one shard, whose owner carries out the request.
    is_confined: bool,
}

impl BulkRequest {
    pub(crate) fn parse(
        backend: &Backend,
        BulkBody { peer, headers, only, body }: BulkBody<Bulk>,
    ) -> Result<BulkRequest, Refusal> {
        let Bulk { namespace, agent_id, lease_ids: ids } = body;
        check_length(&ids, only)?;
        let is_namespace_named = namespace.is_some();
        let namespace = parse::namespace(namespace.as_deref())?;
        let agent = agent_id.as_deref().map(parse::agent).transpose()?;
        let origin = parse::origin(&headers)?;
        // A malformed key is refused, even by the calls that do not use it.
        idempotency::key(&headers, "bulk", &[])?;
        if agent.is_some() {
            // Without this check, a peer without rights could find out which agents exist.
            parse::require_right(&peer, &namespace, Right::Write)?;
        }
        let located = |id: &String| -> Result<(Credential, Shard), Refusal> {
            let credential = parse::credential(&backend.key, id)?;
            Ok((credential, backend.shard_of_lease(credential.lease)?))
        };
        let credentials = ids.iter().map(located).collect();
        let is_confined = only.is_some();
        Ok(BulkRequest { peer, origin, namespace, is_namespace_named, agent, ids, credentials, is_confined })
    }

    /// Refuses the request as a whole if its shard is another server's: it is sent there.
    pub(crate) fn check_owned<T>(&self, results: &[Result<T, Refusal>]) -> Result<(), Refusal> {
        let is_moved = |refusal: &&Refusal| self.is_confined && refusal.error == Code::Moved;
        let moved = results.iter().filter_map(|result| result.as_ref().err()).find(is_moved);
        moved.map_or(Ok(()), |refusal| Err(refusal.clone()))
    }

    /// The accepted credentials by shard, each with its index in the request.
    pub(crate) fn by_shard(&self) -> BTreeMap<Shard, Vec<(usize, Credential)>> {
        let mut shards: BTreeMap<Shard, Vec<(usize, Credential)>> = BTreeMap::new();
        for (index, credential) in self.credentials.iter().enumerate() {
            if let Ok((credential, shard)) = credential {
                shards.entry(*shard).or_default().push((index, *credential));
            }
        }
        shards
    }

    /// A result for each credential: why it is refused, or a placeholder until its lease was decided or read.
    pub(crate) fn blank_results<T>(&self) -> Vec<Result<T, Refusal>> {
        let undecided = || Refusal::new(Code::Unavailable, "the server failed before it decided; retry");
        let blank = |credential: &Result<_, Refusal>| Err(credential.clone().err().unwrap_or_else(undecided));
        self.credentials.iter().map(blank).collect()
    }

    pub(crate) fn command(&self, action: Action, request: Option<IdempotencyKey>) -> Command {
        Command { identity: Some(self.peer.identity.clone()), request, action }
    }
}
