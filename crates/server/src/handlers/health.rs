//! Liveness, readiness, and metrics.

use std::sync::Arc;

use api::responses::{self, Ready};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::backend::metrics;
use crate::backend::shards::Backend;
use crate::backend::store::TornTail;

pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

pub(crate) async fn readyz(State(backend): State<Arc<Backend>>) -> (StatusCode, Json<Ready>) {
    let reason = if backend.is_draining() { Some("draining".to_string()) } else { unready_reason(&backend) };
    let reason = reason.filter(|_| !planted!(ReadyAlways));
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

/// Why the first shard that does not accept every command does not; or why no client can connect.
fn unready_reason(backend: &Backend) -> Option<String> {
    let shard = backend.shards().find_map(|shard| {
        let reason = backend.engine(shard).sequencer().health().reason?;
        Some(format!("shard {}: {reason}", shard.0))
    });
    shard.or_else(|| backend.certificates.expired(backend.clocks.unix_ms() / 1000))
}

/// Without the shards that no longer run queries.
pub(crate) async fn metrics(State(backend): State<Arc<Backend>>) -> impl IntoResponse {
    let mut shards = Vec::new();
    for shard in backend.shards() {
        shards.extend(backend.query(shard, |view| (view.kernel.counts(), view.waiters.len())).await);
    }
    backend.metrics.certificates(&backend.certificates.all(), backend.clocks.unix_ms() / 1000);
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], backend.metrics.text(&shards))
}
