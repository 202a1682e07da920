//! Many leases in one request: heartbeat, release, reconcile. Each lease has a result of its own, in the order of the
//! request.

mod reconcile;

use std::sync::Arc;

use api::Refusal;
use api::agents::{Bulk, BulkResult, Results};
use axum::extract::State;
use engine::{Decision, RENEWALS_MAX};
use kernel::{Action, Live, Outcome, Rejection, Renewal};

use crate::backend::agents::mark_alive;
use crate::backend::bulk::{IndexedCommand, IndexedDecision, leases_elsewhere, submit_all};
use crate::backend::error::BackendError;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, SubmitOptions};
pub(crate) use crate::handlers::bulk::reconcile::reconcile;
use crate::parse::bulk::{BulkBody, BulkRequest};
use crate::present::JsonResult;
use crate::present::bulk::results;
use crate::present::refusals::{other_namespace, refused, rejected};

const _: () = assert!(Bulk::MAX <= RENEWALS_MAX, "the heartbeats of one shard are one command");

pub(crate) async fn heartbeat(
    State(backend): State<Arc<Backend>>,
    body: BulkBody<Bulk>,
) -> JsonResult<Results<BulkResult>> {
    let request = begin(&backend, body).await?;
    let mut renewed = request.blank_results::<(Live, Moment)>();
    for (shard, leases) in request.by_shard() {
        let renewals =
            leases.iter().map(|(_, credential)| Renewal { held: *credential, ttl: None }).collect();
        let command = request.command(Action::Renew(renewals), None);
        let options = SubmitOptions::new(&request.peer.connection, request.origin.clone());
        let decision = backend.submit(shard, command, options, |_, moment, _| moment).await;
        for (position, (index, _)) in leases.iter().enumerate() {
            renewed[*index] = renewal(&decision, position);
        }
    }
    request.check_owned(&renewed)?;
    let deadline = |(live, moment): (Live, Moment)| {
        let remaining_ms = moment.remaining_ms(&backend.clocks, live.deadline);
        (Some(moment.unix_ms_at(live.deadline)), Some(remaining_ms))
    };
    Ok(results(request.ids, renewed, deadline))
}

/// The result of one lease in the decision on all heartbeats of a shard.
fn renewal(
    decision: &Result<(Decision, Moment), BackendError>,
    position: usize,
) -> Result<(Live, Moment), Refusal> {
    let (decision, moment) = decision.as_ref().map_err(|error| Refusal::from(error.clone()))?;
    let Some(kernel::Response::Renewed(renewed)) = decision.response() else {
        return Err(refused(decision, None));
    };
    match &renewed[position] {
        Ok(live) => Ok((*live, *moment)),
        Err(rejection) => Err(rejected(rejection)),
    }
}

/// Each release is idempotent, also after the lease's history was deleted.
pub(crate) async fn release(
    State(backend): State<Arc<Backend>>,
    body: BulkBody<Bulk>,
) -> JsonResult<Results<BulkResult>> {
    let request = begin(&backend, body).await?;
    let mut released = request.blank_results::<()>();
    let commands = request.by_shard().into_iter().flat_map(|(shard, leases)| {
        let command = |(index, credential)| {
            let command = request.command(Action::Release(credential), None);
            IndexedCommand { index, shard, command }
        };
        leases.into_iter().map(command).collect::<Vec<_>>()
    });
    let source = (&request.peer.connection, request.origin.clone());
    for IndexedDecision { index, result } in submit_all(&backend, source, commands, |_, _, _| ()).await {
        released[index] =
            result.map_err(Refusal::from).and_then(|(decision, ())| match (decision.response(), &decision) {
                (Some(kernel::Response::Released), _)
                | (_, Decision::Outcome(Outcome::Rejected(Rejection::Retired))) => Ok(()),
                _ => Err(refused(&decision, None)),
            });
    }
    request.check_owned(&released)?;
    Ok(results(request.ids, released, |()| (None, None)))
}

/// Parses the request, and marks its agent as running. Leases in another namespace than the named one are refused.
async fn begin(backend: &Backend, body: BulkBody<Bulk>) -> Result<BulkRequest, Refusal> {
    let mut request = BulkRequest::parse(backend, body)?;
    if request.is_namespace_named {
        for index in leases_elsewhere(backend, &request.namespace, request.by_shard()).await? {
            request.credentials[index] = Err(other_namespace(&request.namespace));
        }
    }
    if let Some(agent) = &request.agent {
        mark_alive(backend, &request.peer, &request.namespace, agent, &request.origin).await?;
    }
    Ok(request)
}
