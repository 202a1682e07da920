//! Many leases in one request: heartbeat, release, reconcile. Each lease has a result of its own, in the order of the
//! request.

use std::sync::Arc;

use api::agents::{Bulk, BulkResult, Reconcile, ReconciledLease, Results};
use api::{Code, Refusal};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use engine::{Decision, RENEWALS_MAX};
use kernel::{Action, Credential, LeaseView, Live, Outcome, Rejection, Renewal, Shard, State as LeaseState};

use crate::backend::agents::mark_alive;
use crate::backend::bulk::{IndexedCommand, IndexedDecision, leases_elsewhere, read_leases, submit_all};
use crate::backend::error::BackendError;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, SubmitOptions};
use crate::parse::bulk::{BulkBody, BulkRequest};
use crate::parse::idempotency;
use crate::present::JsonResult;
use crate::present::bulk::{LeaseTruth, reconciled, results};
use crate::present::leases::{self, GrantView};
use crate::present::refusals::{RefusalResponse, other_namespace, over_limit, refused, rejected};

const _: () = assert!(Bulk::MAX <= RENEWALS_MAX, "the heartbeats of one shard are one command");

/// The longest response to a reconcile, in bytes. A request may name the same lease 10,000 times.
const RESPONSE_BYTES_MAX: usize = 12 << 20;
/// Requests with this number of leases take the memory of the longest response until it is built.
const LONG_MIN: usize = 64;
/// How many leases are read at a time: their names are copied while no request is decided.
const READ_MAX: usize = 32;

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
    Ok(results(request.ids, released, |()| (None, None)))
}

pub(crate) async fn reconcile(
    State(backend): State<Arc<Backend>>,
    BulkBody { peer, headers, body }: BulkBody<Reconcile>,
) -> Result<Response, RefusalResponse> {
    let Reconcile { namespace, agent_id, lease_ids, rebind } = body;
    let is_long = lease_ids.len() >= LONG_MIN;
    // Before the credentials are verified: that takes longer than anything else of a refused request.
    let most = if is_long { RESPONSE_BYTES_MAX as u64 } else { 0 };
    let _taken = backend.responses.take(&peer.identity, most).map_err(|limit| over_limit(&limit))?;
    let body = Bulk { namespace, agent_id, lease_ids };
    let request = begin(&backend, BulkBody { peer, headers: headers.clone(), body }).await?;
    let mut truths = read_truths(&backend, &request).await;
    if rebind == Some(true) {
        rebind_expired(&backend, &request, &headers, &mut truths).await?;
    }
    let build = move || reconcile_response(&backend, &request, truths);
    if !is_long {
        return Ok(build());
    }
    // Megabytes of JSON: not on a thread that serves other connections.
    let response = tokio::task::spawn_blocking(build).await;
    Ok(response.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
}

fn reconcile_response(
    backend: &Backend,
    request: &BulkRequest,
    truths: Vec<Result<LeaseTruth, Refusal>>,
) -> Response {
    let leases = request.ids.iter().zip(&request.credentials).zip(truths);
    let results = leases.map(|((id, credential), truth)| {
        let epoch = credential.as_ref().ok().map(|(credential, _)| credential.epoch);
        reconciled(backend, id, epoch, truth)
    });
    Json(Results { results: results.collect::<Vec<ReconciledLease>>() }).into_response()
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

/// Each lease as it is now, if it belongs to the peer.
async fn read_truths(backend: &Backend, request: &BulkRequest) -> Vec<Result<LeaseTruth, Refusal>> {
    let (mut truths, mut bytes_left) = (request.blank_results(), RESPONSE_BYTES_MAX);
    for (shard, leases) in request.by_shard() {
        for chunk in leases.chunks(READ_MAX) {
            read_chunk(backend, request, (shard, chunk), &mut truths, &mut bytes_left).await;
        }
    }
    truths
}

async fn read_chunk(
    backend: &Backend,
    request: &BulkRequest,
    (shard, chunk): (Shard, &[(usize, Credential)]),
    truths: &mut [Result<LeaseTruth, Refusal>],
    bytes_left: &mut usize,
) {
    let ids = chunk.iter().map(|(_, credential)| credential.lease).collect();
    match read_leases(backend, shard, ids).await {
        Ok((views, moment)) => {
            for ((index, _), view) in chunk.iter().zip(views) {
                truths[*index] = truth(request, view, moment, bytes_left);
            }
        }
        Err(error) => {
            for (index, _) in chunk {
                truths[*index] = Err(error.clone().into());
            }
        }
    }
}

/// `bytes_left` is how many more bytes fit into the response.
fn truth(
    request: &BulkRequest,
    view: Result<LeaseView, Rejection>,
    moment: Moment,
    bytes_left: &mut usize,
) -> Result<LeaseTruth, Refusal> {
    let view = view.map_err(|rejection| rejected(&rejection))?;
    if view.identity != request.peer.identity {
        return Err(rejected(&Rejection::NotHeld));
    }
    *bytes_left = bytes_left.checked_sub(leases::json_bytes(&view)).ok_or_else(|| {
        let detail = "the response would be too long; send this lease again in a smaller request";
        Refusal::new(Code::Throttled, detail)
    })?;
    Ok(LeaseTruth { view, moment, rebound: None })
}

/// Rebinds the leases that expired and are on hold. A retry gets the same credentials.
async fn rebind_expired(
    backend: &Arc<Backend>,
    request: &BulkRequest,
    headers: &HeaderMap,
    truths: &mut [Result<LeaseTruth, Refusal>],
) -> Result<(), Refusal> {
    let mut commands = Vec::new();
    for (index, (credential, truth)) in request.credentials.iter().zip(truths.iter()).enumerate() {
        let (Ok((credential, shard)), Ok(truth)) = (credential, truth) else { continue };
        let key = idempotency::key_of_part(headers, "reconcile", &[], &request.ids[index])?;
        // A retry finds a lease that was rebound already active again, and submits the command for its replay.
        let retry =
            key.is_some() && truth.view.state == LeaseState::Active && truth.view.epoch > credential.epoch;
        if truth.view.held_until.is_some() || retry {
            let command = request.command(Action::Rebind(*credential), key);
            commands.push(IndexedCommand { index, shard: *shard, command });
        }
    }
    let source = (&request.peer.connection, request.origin.clone());
    let decisions = submit_all(backend, source, commands.into_iter(), GrantView::read).await;
    for IndexedDecision { index, result } in decisions {
        let Ok(truth) = &mut truths[index] else { continue };
        match result {
            Ok((decision, view)) => note_rebind(backend, truth, &decision, view),
            Err(error) => truth.rebound = Some(Err(error.into())),
        }
    }
    Ok(())
}

fn note_rebind(backend: &Backend, truth: &mut LeaseTruth, decision: &Decision, view: GrantView) {
    truth.moment = view.moment;
    truth.rebound = match leases::granted(decision) {
        Some(granted) => Some(Ok(leases::granted_response(backend, granted, &view))),
        // The lease is active under a later credential: the view shows that.
        None if matches!(decision, Decision::Outcome(Outcome::Rejected(Rejection::StaleEpoch { .. }))) => {
            None
        }
        None => Some(Err(refused(decision, None))),
    };
    if let Some(lease) = view.lease {
        truth.view = lease;
    }
}
