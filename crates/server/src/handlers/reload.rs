//! `POST /v1/reload`: reads the server's identity file and denylist again.

use std::sync::Arc;

use api::responses;
use api::{Code, Refusal};
use axum::{Extension, Json};

use crate::http::reload::Reloader;
use crate::parse;
use crate::peer::Peer;
use crate::present::JsonResult;

pub(crate) async fn reload(
    Extension(peer): Extension<Peer>,
    reloader: Option<Extension<Arc<Reloader>>>,
) -> JsonResult<responses::Reloaded> {
    parse::require_operator_of(&peer, None)?;
    let Some(Extension(reloader)) = reloader else {
        let detail = "only on the Unix socket of a server with mTLS: lockd reload --unix PATH";
        return Err(Refusal::new(Code::Forbidden, detail).into());
    };
    // It reads files, and waits for the shards.
    let outcome = tokio::task::spawn_blocking(move || reloader.reload()).await;
    let outcome = outcome.map_err(|_| Refusal::new(Code::Unavailable, "the reload failed; see the log"))?;
    let summary = outcome.map_err(|error| {
        Refusal::new(Code::InvalidState, format!("reload refused, nothing was changed: {error}"))
    })?;
    Ok(Json(responses::Reloaded {
        revoked: summary.revoked as u64,
        unrevoked: summary.unrevoked as u64,
        connections_closed: summary.closed as u64,
    }))
}
