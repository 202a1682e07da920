//! Commands and queries over many leases of one request.
//!
//! **Invariant.** Other requests are served after at most [`CHUNK`] leases of one bulk request, and its commands occupy
//! at most [`CHUNK`] entries of a shard's queue.
//!
//! **What would break it.** Ten thousand releases submitted at once: the queue has capacity for fewer than half, the
//! others are refused as if the shard were overloaded, and so is every other client. Ten thousand leases read in one
//! query: the shard decides nothing until it ends. Heartbeats are one command, which the shard itself splits.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{Decision, Origin};
use kernel::{Action, Command, Credential, Kernel, LeaseId, LeaseView, Namespace, Rejection, Shard};
use tokio::task::JoinSet;

use crate::backend::error::BackendError;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, ShardView, SubmitOptions};
use crate::peer::PeerConnection;

/// How many leases are submitted or read at a time: as many as the kernel renews with one record.
pub(crate) const CHUNK: usize = Action::MAX_BATCH;

/// One command of a bulk request.
pub(crate) struct IndexedCommand {
    /// The index of its lease in the request.
    pub(crate) index: usize,
    pub(crate) shard: Shard,
    pub(crate) command: Command,
}

/// The decision of one command of a bulk request, and what was read from the state in which it was decided.
pub(crate) struct IndexedDecision<T> {
    /// The index of its lease in the request.
    pub(crate) index: usize,
    pub(crate) result: Result<(Decision, T), BackendError>,
}

/// Submits commands, [`CHUNK`] at a time, and waits for all decisions. They come in any order.
pub(crate) async fn submit_all<T: Send + 'static>(
    backend: &Arc<Backend>,
    (client, origin): (&PeerConnection, Origin),
    mut commands: impl Iterator<Item = IndexedCommand>,
    view: fn(&Kernel, Moment, &Decision) -> T,
) -> Vec<IndexedDecision<T>> {
    let mut decisions = Vec::new();
    loop {
        let mut pending = JoinSet::new();
        for IndexedCommand { index, shard, command } in commands.by_ref().take(CHUNK) {
            let (backend, options) = (Arc::clone(backend), SubmitOptions::new(client, origin.clone()));
            pending.spawn(async move {
                IndexedDecision { index, result: backend.submit(shard, command, options, view).await }
            });
        }
        if pending.is_empty() {
            return decisions;
        }
        decisions.extend(pending.join_all().await);
    }
}

/// The indexes of leases that are in another namespace. One that is not known is in none: the kernel refuses it.
pub(crate) async fn leases_elsewhere(
    backend: &Backend,
    namespace: &Namespace,
    leases: BTreeMap<Shard, Vec<(usize, Credential)>>,
) -> Result<Vec<usize>, BackendError> {
    let mut elsewhere = Vec::new();
    for (shard, leases) in leases {
        for chunk in leases.chunks(CHUNK) {
            let (chunk, namespace) = (chunk.to_vec(), namespace.clone());
            let found = backend.peek(shard, move |kernel| {
                let is_elsewhere = |(_, credential): &&(usize, Credential)| {
                    kernel.lease_namespace(credential.lease).is_ok_and(|found| found != namespace)
                };
                chunk.iter().filter(is_elsewhere).map(|(index, _)| *index).collect::<Vec<_>>()
            });
            elsewhere.extend(found.await?);
        }
    }
    Ok(elsewhere)
}

/// Reads leases of one shard, at most [`CHUNK`], and the moment at which they were read. Those behind `bytes_max` bytes of
/// names are left out; the first is always read.
pub(crate) async fn read_leases(
    backend: &Backend,
    shard: Shard,
    leases: Vec<LeaseId>,
    bytes_max: usize,
) -> Result<(Vec<Result<LeaseView, Rejection>>, Moment), BackendError> {
    let query = move |view: &ShardView<'_>| {
        let (mut views, mut bytes) = (Vec::new(), 0);
        for lease in leases {
            if !views.is_empty() && bytes >= bytes_max {
                break;
            }
            let lease = view.kernel.lease(lease, view.now);
            bytes += lease.as_ref().map_or(0, name_bytes);
            views.push(lease);
        }
        (views, view.moment)
    };
    backend.query(shard, query).await
}

fn name_bytes(lease: &LeaseView) -> usize {
    lease.members.iter().map(|member| member.resource.name().len()).sum()
}
