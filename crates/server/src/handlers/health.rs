//! Is it alive, can it grant, durably, and what are its figures?

use std::sync::Arc;

use api::tell::Ready;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use crate::backend::metrics;
use crate::backend::shards::App;

pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

pub(crate) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, Json<Ready>) {
    let reason = if app.is_draining() { Some("draining".to_string()) } else { unwell(&app) };
    let status = if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Ready { ready: reason.is_none(), reason }))
}

/// The first shard that cannot take everything says why.
fn unwell(app: &App) -> Option<String> {
    (0..app.shards()).find_map(|shard| {
        let reason = app.engine(shard).sequencer().health().reason?;
        Some(format!("shard {shard}: {reason}"))
    })
}

/// A shard that cannot be asked any more is left out.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let mut shards = Vec::with_capacity(app.shards());
    for shard in 0..app.shards() {
        shards.extend(app.look(shard, |view| (view.kernel.counts(), view.waiters.len())).await);
    }
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], app.metrics.text(&shards))
}
