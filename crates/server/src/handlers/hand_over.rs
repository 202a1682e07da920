//! `POST /v1/hand_over`: another server of the bucket gets shards of this one.
//!
//! The hand-over is the work of the shard's own thread; this call asks for it, and waits. It is not taken back: a caller that
//! goes away does not stop it.

use std::sync::Arc;
use std::time::Duration;

use api::{Code, Refusal, requests, responses};
use axum::body::Bytes;
use axum::extract::State;
use axum::{Extension, Json};
use kernel::Shard;
use tokio::time::Instant;

use crate::backend::error::BackendError;
use crate::backend::shards::Backend;
use crate::parse;
use crate::peer::Peer;
use crate::present::JsonResult;

/// How often the call looks whether the shards are handed over.
const POLL: Duration = Duration::from_millis(5);
/// How long it waits for the store.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn hand_over(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> JsonResult<responses::HandedOver> {
    parse::require_operator_of(&peer, None)?;
    let fields: requests::HandOver = parse::body(&body)?;
    let shards = shards(&backend, fields.shard.map(Shard))?;
    let Some(cluster) = &backend.cluster else {
        let detail = "the store has one server; only a store in a bucket can have several";
        return Err(Refusal::new(Code::InvalidState, detail).into());
    };
    if !cluster.request_hand_over(&shards) {
        let detail = "no other server of the bucket is known that reads logs of this version; start one, and retry \
                      after the silence";
        return Err(Refusal::new(Code::InvalidState, detail).into());
    }
    let deadline = Instant::now() + TIMEOUT;
    while shards.iter().any(|shard| backend.owns(*shard)) {
        if Instant::now() > deadline {
            return Err(
                Refusal::new(Code::Unavailable, "the store has not taken the record yet; retry").into()
            );
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(Json(responses::HandedOver { shards: shards.iter().map(|shard| shard.0).collect() }))
}

/// The shard that is named, or all that this server owns.
fn shards(backend: &Backend, named: Option<Shard>) -> Result<Vec<Shard>, Refusal> {
    match named {
        None => Ok(backend.shards().filter(|shard| backend.owns(*shard)).collect()),
        Some(shard) if shard.0 >= backend.shard_count() => Err(Refusal::new(Code::NotFound, "no such shard")),
        Some(shard) if !backend.owns(shard) => Err(BackendError::Moved(shard).into()),
        Some(shard) => Ok(vec![shard]),
    }
}
