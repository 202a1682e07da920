//! Liveness, readiness, and metrics.

use std::sync::Arc;

use api::responses::Ready;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::backend::metrics;
use crate::backend::shards::Backend;

pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

pub(crate) async fn readyz(State(backend): State<Arc<Backend>>) -> (StatusCode, Json<Ready>) {
    let reason = if backend.is_draining() { Some("draining".to_string()) } else { unready_reason(&backend) };
    let reason = reason.filter(|_| !planted!(ReadyAlways));
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Ready { ready: reason.is_none(), reason }))
}

/// Why the first shard that does not accept every command does not.
fn unready_reason(backend: &Backend) -> Option<String> {
    backend.shards().find_map(|shard| {
        let reason = backend.engine(shard).sequencer().health().reason?;
        Some(format!("shard {}: {reason}", shard.0))
    })
}

/// Without the shards that no longer run queries.
pub(crate) async fn metrics(State(backend): State<Arc<Backend>>) -> impl IntoResponse {
    let mut shards = Vec::new();
    for shard in backend.shards() {
        shards.extend(backend.query(shard, |view| (view.kernel.counts(), view.waiters.len())).await);
    }
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], backend.metrics.text(&shards))
}
