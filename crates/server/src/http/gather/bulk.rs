//! A request for many leases, divided by the shards of its leases.
//!
//! Each lease has a result of its own, in the order of the request. A shard that refuses its part, or that no server owns at
//! the moment, refuses its leases only; but the shard of the agent's namespace is the first, and its refusal is that of the
//! whole request.

use std::collections::BTreeMap;

use api::agents::{Bulk, BulkResult, Reconcile, ReconciledLease, Results};
use api::{Code, Refusal, path};
use axum::body::Bytes;
use axum::response::Response;
use futures_util::future::join_all;
use kernel::Shard;
use serde_json::Value;

use super::{ResponseMemory, SendPart, failed, json, successful};
use crate::backend::shards::Backend;
use crate::parse;

/// A request for many leases, by shard.
pub(crate) struct BulkParts {
    request: Reconcile,
    is_reconcile: bool,
    /// The shard of the agent's namespace, if the request names an agent.
    home: Option<Shard>,
    /// The indexes of each shard's leases in the request.
    shards: BTreeMap<Shard, Vec<usize>>,
}

impl BulkParts {
    /// The calls that name many leases.
    pub(super) const CALLS: [&str; 3] = [path::HEARTBEAT, path::RELEASE_ALL, path::RECONCILE];

    /// `None` for a malformed request, which its handler refuses.
    pub(super) fn parse(backend: &Backend, path: &str, body: &Bytes) -> Option<BulkParts> {
        // A heartbeat and a release have the same fields but for `rebind`.
        let request: Reconcile = parse::body(body).ok()?;
        let is_reconcile = path == path::RECONCILE;
        let is_valid =
            (is_reconcile || request.rebind.is_none()) && (1..=Bulk::MAX).contains(&request.lease_ids.len());
        if !is_valid {
            return None;
        }
        let namespace = backend.shard_of(&parse::namespace(request.namespace.as_deref()).ok()?);
        let home = request.agent_id.is_some().then_some(namespace);
        let mut shards: BTreeMap<Shard, Vec<usize>> =
            home.into_iter().map(|home| (home, Vec::new())).collect();
        for (index, id) in request.lease_ids.iter().enumerate() {
            let lease = parse::credential(&backend.key, id).ok().map(|credential| credential.lease);
            let shard = lease.and_then(|lease| backend.shard_of_lease(lease).ok());
            // Any shard refuses a credential that is none.
            shards.entry(shard.unwrap_or(namespace)).or_default().push(index);
        }
        Some(BulkParts { request, is_reconcile, home, shards })
    }

    pub(super) async fn run(
        self,
        body: &Bytes,
        memory: &mut ResponseMemory,
        send: SendPart<'_>,
    ) -> Result<Response, Box<Response>> {
        if let Some((shard, _)) = self.shards.first_key_value().filter(|_| self.shards.len() == 1) {
            return Ok(send(*shard, body.clone()).await);
        }
        let mut results = vec![Value::Null; self.request.lease_ids.len()];
        if let Some(home) = self.home {
            let response = successful(send(home, self.part(home)).await)?;
            self.place(home, memory.read(response).await?, &mut results)?;
        }
        let others: Vec<Shard> =
            self.shards.keys().copied().filter(|shard| Some(*shard) != self.home).collect();
        let responses = others.iter().map(|shard| send(*shard, self.part(*shard)));
        for (shard, response) in others.iter().zip(join_all(responses).await) {
            let part = match successful(response) {
                Ok(response) => memory.read(response).await?,
                Err(response) => self.refused(*shard, &memory.read(*response).await?),
            };
            self.place(*shard, part, &mut results)?;
        }
        Ok(json(serde_json::to_vec(&Results { results }).map_err(|_| failed())?))
    }

    /// The body of the request to a shard.
    fn part(&self, shard: Shard) -> Bytes {
        let leases = self.shards[&shard].iter().map(|index| self.request.lease_ids[*index].clone()).collect();
        let agent_id = self.request.agent_id.clone().filter(|_| self.home == Some(shard));
        let part = Reconcile { lease_ids: leases, agent_id, ..self.request.clone() };
        serde_json::to_vec(&part).expect("a request serializes").into()
    }

    /// Every lease of the shard, refused.
    fn refused(&self, shard: Shard, refusal: &Refusal) -> Results<Value> {
        // What is moved can be retried here.
        let code = if refusal.error == Code::Moved { Code::Unavailable } else { refusal.error };
        let (error, detail) = (Some(code), Some(refusal.detail.clone()));
        let result = |index: &usize| {
            let (lease_id, error, detail) = (self.request.lease_ids[*index].clone(), error, detail.clone());
            let result = if self.is_reconcile {
                serde_json::to_value(ReconciledLease {
                    lease_id,
                    error,
                    detail,
                    ..ReconciledLease::default()
                })
            } else {
                serde_json::to_value(BulkResult { lease_id, error, detail, ..BulkResult::default() })
            };
            result.expect("a result serializes")
        };
        Results { results: self.shards[&shard].iter().map(result).collect() }
    }

    /// Puts the results of a shard to their places.
    fn place(&self, shard: Shard, part: Results<Value>, results: &mut [Value]) -> Result<(), Box<Response>> {
        let indexes = &self.shards[&shard];
        if part.results.len() != indexes.len() {
            return Err(failed());
        }
        for (index, result) in indexes.iter().zip(part.results) {
            results[*index] = result;
        }
        Ok(())
    }
}
