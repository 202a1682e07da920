//! The path of one request: receive, understand, count, plan its faults, wait, take effect, respond.
//!
//! **Invariant.** A write whose request was received completely takes effect also if its client goes away, as in a real
//! store. **What would break it.** Awaiting anything between receiving and taking effect on the connection's own task,
//! which is dropped with the connection: a request that is suspended gets a task of its own.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use hyper::Request;
use hyper::body::{Body, Bytes, Incoming};

use crate::absence::AbsenceCache;
use crate::call::{Call, Operation};
use crate::clock;
use crate::counters::Counters;
use crate::dialect::{self, HttpResponse, Received};
use crate::history::{self, History};
use crate::holds::Moment;
use crate::options::ServerOptions;
use crate::outcome::{Outcome, Refusal};
use crate::plan::{FaultTable, Plan};
use crate::store::{Mode, Store};
use crate::text::Query;

/// The largest request body, in bytes.
const BODY_LIMIT: usize = 256 << 20;

/// What all requests of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) store: Store,
    pub(crate) faults: FaultTable,
    pub(crate) absence: AbsenceCache,
    pub(crate) history: History,
    pub(crate) counters: Counters,
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) client: SocketAddr,
    pub(crate) address: SocketAddr,
}

/// The connection is to be closed without a response.
#[derive(Debug)]
pub(crate) struct NoResponse;

impl fmt::Display for NoResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("no response is sent")
    }
}

impl std::error::Error for NoResponse {}

/// Serves one request.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    ends: Ends,
    request: Request<Incoming>,
) -> Result<HttpResponse, NoResponse> {
    let call = receive(&shared, request).await?;
    let response = match call {
        Ok(call) => perform_detached(&shared, ends, call).await?,
        Err(refusal) => dialect::respond(shared.options.dialect, None, Outcome::Refused(refusal)),
    };
    shared.counters.sent(response.body().size_hint().exact().unwrap_or_default());
    Ok(response)
}

/// Receives the body, understands the request and counts it.
async fn receive(shared: &Shared, request: Request<Incoming>) -> Result<Result<Call, Refusal>, NoResponse> {
    let (head, body) = request.into_parts();
    let body = match collect(body).await? {
        Ok(body) => body,
        Err(refusal) => {
            shared.counters.count(Operation::Unknown, 0);
            return Ok(Err(refusal));
        }
    };
    let received_bytes = body.len() as u64;
    let call = match Query::parse(head.uri.query()) {
        None => Err(Refusal::Malformed("the query is not UTF-8")),
        Some(query) => {
            let received = Received {
                method: &head.method,
                path: head.uri.path(),
                query: &query,
                headers: &head.headers,
                body,
            };
            dialect::parse(shared.options.dialect, &received, &|name| shared.store.has_bucket(name))
        }
    };
    let operation = call.as_ref().map_or(Operation::Unknown, Call::operation);
    shared.counters.count(operation, received_bytes);
    Ok(call)
}

async fn collect(body: Incoming) -> Result<Result<Bytes, Refusal>, NoResponse> {
    if body.is_end_stream() {
        return Ok(Ok(Bytes::new()));
    }
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(collected) => Ok(Ok(collected.to_bytes())),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Ok(Err(Refusal::BodyTooLarge)),
        Err(_) => Err(NoResponse),
    }
}

/// Performs a call, on a task of its own if it will be suspended.
async fn perform_detached(shared: &Arc<Shared>, ends: Ends, call: Call) -> Result<HttpResponse, NoResponse> {
    let plan = shared.faults.plan(&call, ends.address);
    if !plan.suspends() {
        return perform(shared, ends, call, plan).await;
    }
    let shared = Arc::clone(shared);
    let task = tokio::spawn(async move { perform(&shared, ends, call, plan).await });
    task.await.unwrap_or(Err(NoResponse))
}

async fn perform(
    shared: &Arc<Shared>,
    ends: Ends,
    call: Call,
    plan: Plan,
) -> Result<HttpResponse, NoResponse> {
    if !plan.delay.is_zero() {
        tokio::time::sleep(plan.delay).await;
    }
    plan.pass_gates(Moment::BeforeEffect).await;
    if let Some(refusal) = refusal_without_effect(&plan) {
        return finish(shared, ends, &call, &plan, Outcome::Refused(refusal));
    }
    if plan.late.is_some() {
        tokio::spawn(perform_late(Arc::clone(shared), ends, call, plan));
        return Err(NoResponse);
    }
    let outcome = take_effect(shared, &call, &plan).await;
    let outcome = disguise(shared, ends, &call, &plan, outcome);
    plan.pass_gates(Moment::BeforeResponse).await;
    finish(shared, ends, &call, &plan, outcome)
}

fn refusal_without_effect(plan: &Plan) -> Option<Refusal> {
    if plan.denied {
        return Some(Refusal::AccessDenied);
    }
    if plan.spurious_conflict {
        return Some(Refusal::ConditionalConflict);
    }
    plan.error_before.map(Refusal::Failure)
}

/// The write of a client that has been sent no response.
async fn perform_late(shared: Arc<Shared>, ends: Ends, call: Call, plan: Plan) {
    tokio::time::sleep(plan.late.unwrap_or_default()).await;
    let outcome = take_effect(&shared, &call, &plan).await;
    shared.history.record(&call, ends.client, ends.address, history::written(&outcome), None);
}

async fn take_effect(shared: &Shared, call: &Call, plan: &Plan) -> Outcome {
    let mut mode = Mode { unconditional: plan.unconditional, list_age: plan.list_age };
    if let Some(delay) = plan.raced {
        if let Err(refusal) = shared.store.check(call) {
            return Outcome::Refused(refusal);
        }
        tokio::time::sleep(delay).await;
        mode.unconditional = true;
    }
    shared.store.apply(call, mode)
}

/// Replaces the true outcome by what a fault pretends.
fn disguise(shared: &Shared, ends: Ends, call: &Call, plan: &Plan, outcome: Outcome) -> Outcome {
    let outcome = match plan.absence_cached {
        Some(duration) => {
            let (now, absent) = (clock::now(), Outcome::Refused(Refusal::NoSuchKey));
            if matches!(outcome, Outcome::Refused(Refusal::NoSuchKey)) {
                shared.absence.remember(ends.address, call, now, duration);
            }
            if shared.absence.holds(ends.address, call, now) { absent } else { outcome }
        }
        None => outcome,
    };
    match outcome {
        Outcome::Refused(Refusal::NoSuchKey) if plan.absent_is_denied => {
            Outcome::Refused(Refusal::AccessDenied)
        }
        Outcome::Refused(Refusal::AlreadyExists) if plan.existing_is_conflict => {
            Outcome::Refused(Refusal::AlreadyExistsAsConflict)
        }
        outcome => outcome,
    }
}

/// Makes the response, or none, and remembers conditional creates.
fn finish(
    shared: &Shared,
    ends: Ends,
    call: &Call,
    plan: &Plan,
    outcome: Outcome,
) -> Result<HttpResponse, NoResponse> {
    let written = history::written(&outcome).cloned();
    let record = |status| shared.history.record(call, ends.client, ends.address, written.as_ref(), status);
    if plan.response_lost {
        record(None);
        return Err(NoResponse);
    }
    let outcome = match plan.error_after {
        Some(status) => Outcome::Refused(Refusal::Failure(status)),
        None => outcome,
    };
    let response = dialect::respond(shared.options.dialect, Some(call), outcome);
    record(Some(response.status().as_u16()));
    Ok(response)
}
