//! The server's state of many leases, streamed.
//!
//! **Invariant.** The response is read and sent in parts: a part has at most [`PART_BYTES`] of names and one lease more.
//! The parts of one identity are made one at a time, and other requests are served between any two.
//!
//! **What would break it.** One lease with 128 long names, named a thousand times: read and built at once, the response
//! occupied megabytes and a thread of the server for milliseconds, eight of them at a time.

use std::sync::Arc;

use api::agents::{Bulk, Reconcile, ReconciledLease};
use api::{Code, Refusal};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use engine::Decision;
use futures_util::stream;
use kernel::{Action, Credential, LeaseView, Outcome, Rejection, Shard, State as LeaseState};

use crate::backend::bulk::{CHUNK, IndexedCommand, IndexedDecision, read_leases, submit_all};
use crate::backend::byte_budget::{CountedBody, TakenGuard};
use crate::backend::download::CountedStream;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, OnlyShard};
use crate::parse::bulk::{BulkBody, BulkRequest, check_length};
use crate::parse::idempotency;
use crate::peer::Peer;
use crate::present::bulk::{LeaseTruth, reconciled};
use crate::present::leases::{self, GrantView};
use crate::present::refusals::{RefusalResponse, over_limit, refused, rejected};

/// The longest response, in bytes. A request may name the same lease 10,000 times.
const RESPONSE_BYTES_MAX: usize = 12 << 20;
/// How many bytes of names are in one part, and copied while no request is decided.
const PART_BYTES: usize = 64 << 10;
/// Memory of a part while it is made and sent, in bytes: a lease has up to 128 names of 512 bytes.
const PART_MEMORY: usize = 512 << 10;
/// Memory of a credential in the request, without its text, in bytes.
const ID_BYTES: usize = 32;
/// How many leases the first part has at most. Later parts have twice as many as fitted into the one before.
const FIRST_PART: usize = 32;
const PART_MIN: usize = 4;

pub(crate) async fn reconcile(
    State(backend): State<Arc<Backend>>,
    body: BulkBody<Reconcile>,
) -> Result<Response, RefusalResponse> {
    let mut parts = Parts::new(&backend, body)?;
    let mut first = parts.begin().await?;
    if parts.is_complete() {
        first.extend_from_slice(b"]}");
        return Ok(json(Body::from(first)));
    }
    let taken = parts.take_memory()?;
    let rest = stream::unfold((parts, Some(first)), async |(mut parts, first)| {
        let bytes = match first {
            Some(first) => first,
            None => parts.next().await?,
        };
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(bytes)), (parts, None)))
    });
    let mut response = json(Body::new(CountedBody::new(Body::from_stream(rest), taken)));
    response.extensions_mut().insert(CountedStream);
    Ok(response)
}

fn json(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A response that is made part by part.
struct Parts {
    backend: Arc<Backend>,
    peer: Peer,
    headers: HeaderMap,
    only: Option<OnlyShard>,
    request: Reconcile,
    /// How many leases of the request are done; beyond the last once the end was sent.
    done: usize,
    /// How many leases the next part has at most.
    part: usize,
    /// How many more bytes fit into the response.
    bytes_left: usize,
}

impl Parts {
    fn new(
        backend: &Arc<Backend>,
        BulkBody { peer, headers, only, body: request }: BulkBody<Reconcile>,
    ) -> Result<Parts, Refusal> {
        check_length(&request.lease_ids, only)?;
        let (backend, part, bytes_left) = (Arc::clone(backend), FIRST_PART, RESPONSE_BYTES_MAX);
        Ok(Parts { backend, peer, headers, only, request, done: 0, part, bytes_left })
    }

    /// Takes the memory of the request and of one part.
    fn take_memory(&self) -> Result<TakenGuard, Refusal> {
        let ids = self.request.lease_ids.iter().map(|id| ID_BYTES + id.len()).sum::<usize>();
        let taken = self.backend.responses.take(&self.peer.identity, (PART_MEMORY + ids) as u64);
        taken.map_err(|limit| over_limit(&limit))
    }

    fn is_complete(&self) -> bool {
        self.done >= self.request.lease_ids.len()
    }

    /// The first part: it may refuse the whole request.
    async fn begin(&mut self) -> Result<Vec<u8>, Refusal> {
        let mut json = br#"{"results":["#.to_vec();
        let results = self.results().await?;
        self.write(&mut json, &results);
        Ok(json)
    }

    /// A later part, or the end; `None` behind it.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let leases = self.request.lease_ids.len();
        if self.is_complete() {
            let is_open = std::mem::replace(&mut self.done, leases + 1) == leases;
            return is_open.then(|| b"]}".to_vec());
        }
        // Other connections are served between two parts, also by this thread.
        tokio::task::yield_now().await;
        let results = self.results().await.unwrap_or_else(|refusal| self.all_refused(&refusal));
        let mut json = Vec::new();
        self.write(&mut json, &results);
        Some(json)
    }

    /// The ids of the next part, or of as many as are left.
    fn ids(&self) -> &[String] {
        let rest = &self.request.lease_ids[self.done..];
        &rest[..self.part.min(rest.len())]
    }

    /// The results of the next leases, at least one.
    async fn results(&mut self) -> Result<Vec<ReconciledLease>, Refusal> {
        let _turn = self.backend.turns.take(&self.peer.identity).await;
        let Reconcile { namespace, agent_id, rebind, .. } = &self.request;
        let is_rebinding = *rebind == Some(true);
        // The agent is marked as running once.
        let agent_id = agent_id.clone().filter(|_| self.done == 0);
        let body = Bulk { namespace: namespace.clone(), agent_id, lease_ids: self.ids().to_vec() };
        let (peer, headers, only) = (self.peer.clone(), self.headers.clone(), self.only);
        let mut request = super::begin(&self.backend, BulkBody { peer, headers, only, body }).await?;
        let mut truths = self.read(&request).await;
        // Before anything is rebound: what has a credential that no response carried is not sent again.
        request.check_owned(&truths)?;
        request.ids.truncate(truths.len());
        if is_rebinding {
            rebind_expired(&self.backend, &request, &self.headers, &mut truths).await?;
        }
        let leases = request.ids.iter().zip(&request.credentials).zip(truths);
        let results = leases.map(|((id, credential), truth)| {
            let epoch = credential.as_ref().ok().map(|(credential, _)| credential.epoch);
            reconciled(&self.backend, id, epoch, truth)
        });
        Ok(results.collect())
    }

    /// Appends results, which are done then.
    fn write(&mut self, json: &mut Vec<u8>, results: &[ReconciledLease]) {
        for result in results {
            if self.done > 0 {
                json.push(b',');
            }
            let start = json.len();
            serde_json::to_writer(&mut *json, result).expect("a result is JSON");
            self.bytes_left = self.bytes_left.saturating_sub(json.len() - start);
            self.done += 1;
        }
        self.part = (2 * results.len()).clamp(PART_MIN, CHUNK);
    }

    fn all_refused(&self, refusal: &Refusal) -> Vec<ReconciledLease> {
        let refused = |id: &String| reconciled(&self.backend, id, None, Err(refusal.clone()));
        self.ids().iter().map(refused).collect()
    }

    /// The first leases of a part as they are now, if they belong to the peer: as many as fit into a part.
    async fn read(&mut self, request: &BulkRequest) -> Vec<Result<LeaseTruth, Refusal>> {
        let mut truths: Truths = request.credentials.iter().map(refusal_of).collect();
        let mut left = BytesLeft { response: self.bytes_left, part: PART_BYTES };
        for (shard, leases) in shards_in_order(request) {
            let mut rest = leases.as_slice();
            while !rest.is_empty() && left.part > 0 {
                let read = read_some(&self.backend, request, (shard, rest), &mut truths, &mut left).await;
                rest = &rest[read..];
            }
        }
        if left.response == 0 {
            self.bytes_left = 0;
        }
        truths.into_iter().map_while(|truth| truth).collect()
    }
}

/// For each lease of a part its state, or why it is refused; `None` while it is not read.
type Truths = Vec<Option<Result<LeaseTruth, Refusal>>>;

/// How many more bytes fit.
struct BytesLeft {
    response: usize,
    part: usize,
}

fn refusal_of(credential: &Result<(Credential, Shard), Refusal>) -> Option<Result<LeaseTruth, Refusal>> {
    credential.as_ref().err().map(|refusal| Err(refusal.clone()))
}

/// The leases of each shard. The shard of the first lease is the first: a part has at least one.
fn shards_in_order(request: &BulkRequest) -> Vec<(Shard, Vec<(usize, Credential)>)> {
    let mut shards: Vec<_> = request.by_shard().into_iter().collect();
    shards.sort_by_key(|(_, leases)| leases[0].0);
    shards
}

/// Reads the first of some leases of one shard. Returns their number, at least one.
async fn read_some(
    backend: &Backend,
    request: &BulkRequest,
    (shard, leases): (Shard, &[(usize, Credential)]),
    truths: &mut Truths,
    left: &mut BytesLeft,
) -> usize {
    if left.response == 0 {
        for (index, _) in leases {
            truths[*index] = Some(Err(too_long()));
        }
        return leases.len();
    }
    let ids = leases.iter().map(|(_, credential)| credential.lease).collect();
    match read_leases(backend, shard, ids, left.part).await {
        Ok((views, moment)) => {
            let read = views.len();
            for ((index, _), view) in leases.iter().zip(views) {
                truths[*index] = Some(truth(request, view, moment, left));
            }
            read
        }
        Err(error) => {
            for (index, _) in leases {
                truths[*index] = Some(Err(error.clone().into()));
            }
            leases.len()
        }
    }
}

fn truth(
    request: &BulkRequest,
    view: Result<LeaseView, Rejection>,
    moment: Moment,
    left: &mut BytesLeft,
) -> Result<LeaseTruth, Refusal> {
    let view = view.map_err(|rejection| rejected(&rejection))?;
    if view.identity != request.peer.identity {
        return Err(rejected(&Rejection::NotHeld));
    }
    let bytes = leases::json_bytes(&view);
    left.part = left.part.saturating_sub(bytes);
    if bytes > left.response {
        left.response = 0;
        return Err(too_long());
    }
    left.response -= bytes;
    Ok(LeaseTruth { view, moment, rebound: None })
}

fn too_long() -> Refusal {
    let detail = "the response would be too long; send this lease again in a smaller request";
    Refusal::new(Code::Throttled, detail)
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
