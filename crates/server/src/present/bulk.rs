//! The results of bulk requests: one for each lease, in the order of the request.

use api::agents::{BulkResult, ReconciledLease, Results};
use api::{Refusal, responses};
use axum::Json;
use kernel::{Epoch, LeaseView, State as LeaseState};

use crate::backend::moment::Moment;
use crate::backend::shards::Backend;
use crate::present::leases;

/// `deadline` is the wall-clock deadline and the remaining time, both in milliseconds, if the response shows them.
pub(crate) fn results<T>(
    ids: Vec<String>,
    results: Vec<Result<T, Refusal>>,
    deadline: impl Fn(T) -> (Option<u64>, Option<u64>),
) -> Json<Results<BulkResult>> {
    let results = ids.into_iter().zip(results).map(|(lease_id, result)| match result {
        Ok(value) => {
            let (expires_at_unix_ms, remaining_ms) = deadline(value);
            BulkResult { lease_id, ok: true, expires_at_unix_ms, remaining_ms, ..BulkResult::default() }
        }
        Err(Refusal { error, detail, .. }) => {
            BulkResult { lease_id, error: Some(error), detail: Some(detail), ..BulkResult::default() }
        }
    });
    Json(Results { results: results.collect() })
}

/// The state of one lease, for its holder.
pub(crate) struct LeaseTruth {
    pub(crate) view: LeaseView,
    pub(crate) moment: Moment,
    /// The result of a rebind; `None` if there was none.
    pub(crate) rebound: Option<Result<responses::Granted, Refusal>>,
}

/// `epoch` is that of the credential in the request.
pub(crate) fn reconciled(
    backend: &Backend,
    id: &str,
    epoch: Option<Epoch>,
    truth: Result<LeaseTruth, Refusal>,
) -> ReconciledLease {
    let lease_id = id.to_string();
    let LeaseTruth { view, moment, rebound } = match truth {
        Ok(truth) => truth,
        Err(Refusal { error, detail, .. }) => {
            return ReconciledLease {
                lease_id,
                error: Some(error),
                detail: Some(detail),
                ..ReconciledLease::default()
            };
        }
    };
    let live = matches!(view.state, LeaseState::Active | LeaseState::Reserved);
    let (lease, refusal) = match rebound {
        Some(Ok(lease)) => (Some(lease), None),
        Some(Err(refusal)) => (None, Some(refusal)),
        None => (None, None),
    };
    ReconciledLease {
        lease_id,
        ok: refusal.is_none(),
        valid: lease.is_some() || live && epoch == Some(view.epoch),
        error: refusal.as_ref().map(|refusal| refusal.error),
        detail: refusal.map(|refusal| refusal.detail),
        view: Some(leases::public_lease(backend, &view, &moment)),
        lease,
    }
}
