//! Liveness, readiness, and metrics.

use std::sync::Arc;
use std::time::Duration;

use api::responses::{self, Ready};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use kernel::Span;

use crate::backend::disk_space::DiskSpace;
use crate::backend::metrics;
use crate::backend::readiness::unready_reason;
use crate::backend::shards::{Backend, ShardView};
use crate::backend::store::TornTail;

pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

pub(crate) async fn readyz(State(backend): State<Arc<Backend>>) -> (StatusCode, Json<Ready>) {
    let reason = unready_reason(&backend).filter(|_| !planted!(ReadyAlways));
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let torn_tails =
        backend.torn_tails.iter().filter(|_| !planted!(TornTailsHidden)).map(torn_tail).collect();
    (status, Json(Ready { ready: reason.is_none(), reason, torn_tails }))
}

fn torn_tail(torn: &TornTail) -> responses::TornTail {
    let TornTail { shard, file, offset, seq, lsns } = torn;
    responses::TornTail {
        shard: shard.0,
        file: file.display().to_string(),
        offset: *offset,
        batch: seq.0,
        first_lsn: lsns.map(|lsns| lsns.first.0),
        last_lsn: lsns.map(|lsns| lsns.last.0),
    }
}

/// Without the shards that no longer run queries.
pub(crate) async fn metrics(State(backend): State<Arc<Backend>>) -> impl IntoResponse {
    let mut shards = Vec::new();
    let mut oldest = Span(0);
    for shard in backend.shards() {
        let query = |view: &ShardView<'_>| {
            let waited = view.waiters.oldest().map_or(Span(0), |age| age.at.until(view.now));
            (view.kernel.counts(), view.waiters.len(), waited)
        };
        if let Ok((counts, waiters, waited)) = backend.query(shard, query).await {
            shards.push((counts, waiters));
            oldest = oldest.max(waited);
        }
    }
    backend.metrics.oldest_waiter(Duration::from_millis(oldest.0));
    backend.metrics.ready(unready_reason(&backend).is_none());
    backend.metrics.disk(backend.directory.as_deref().and_then(|path| DiskSpace::of(path).ok()));
    backend.metrics.limits(&backend.limits_in_use());
    backend.metrics.owned(backend.shards().filter(|shard| backend.owns(*shard)).count());
    backend.metrics.object_requests(backend.object_requests.as_ref());
    backend.metrics.certificates(&backend.certificates.all(), backend.clocks.unix_ms() / 1000);
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], backend.metrics.text(&shards))
}
