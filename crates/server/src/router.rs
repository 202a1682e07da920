//! Every path, and what answers it.

use std::sync::Arc;

use api::{Code, Refusal, header as wire, path};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::app::App;
use crate::refuse::Refused;
use crate::{acquire, health, holder, operator, state, views};

/// The longest body that is no document.
const BODY_MAX: usize = 1 << 20;

/// All of `/v1`, to be served, or mounted in another program. Each request needs a [`Peer`](crate::peer::Peer)
/// among its extensions: who is asking.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(path::ACQUIRE, post(acquire::acquire))
        .route(path::ACTIVATE, post(holder::activate))
        .route(path::KEEPALIVE, post(holder::keepalive))
        .route(path::RELEASE, post(holder::release))
        .route(path::GET_STATE, get(state::get).post(state::get))
        .route("/v1/get-state", get(state::get).post(state::get))
        .route(path::REMOVE_STATE, post(state::remove))
        .route("/v1/remove-state", post(state::remove))
        .route(path::DESCRIBE, get(views::describe))
        .route(path::LEASES, get(views::leases))
        .route("/v1/leases/{id}", get(views::lease))
        .route("/v1/leases/{id}/rebind", post(acquire::rebind))
        .route("/v1/leases/{id}/touch", post(holder::touch))
        .route("/v1/leases/{id}/revoke", post(operator::revoke_lease))
        .route("/v1/leases/{id}/reclaim", post(operator::reclaim_lease))
        .route(path::FENCE, get(views::fence))
        .route(path::REVOKE, post(operator::revoke))
        .route(path::PAUSE, post(operator::pause))
        .route(path::QUOTAS, get(operator::quotas).put(operator::set_quota))
        .route(path::NAMESPACES, get(views::namespaces))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        // Documents have a limit of their own, and are never whole in memory.
        .route(path::UPDATE_STATE, post(state::update))
        .route("/v1/update-state", post(state::update))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(async || Refused(Refusal::new(Code::NotFound, "no such path")))
        .method_not_allowed_fallback(async || {
            Refused(Refusal::new(Code::MethodNotAllowed, "not by this method"))
        })
        .layer(from_fn(in_our_words))
        .with_state(app)
}

/// What the framework refuses by itself is said in the words of the API; what the client calls its request is echoed.
async fn in_our_words(request: Request, next: Next) -> Response {
    let called = request.headers().get(wire::CORRELATION_ID).cloned();
    let response = next.run(request).await;
    let status = response.status();
    let ours = response.headers().get("content-type").is_some_and(|kind| kind == "application/json");
    let mut response = if (status.is_client_error() || status.is_server_error()) && !ours {
        let code = match status.as_u16() {
            413 => Code::DocumentTooLarge,
            405 => Code::MethodNotAllowed,
            404 => Code::NotFound,
            400..500 => Code::InvalidBody,
            _ => Code::Unavailable,
        };
        let (_, body) = response.into_parts();
        let detail = axum::body::to_bytes(body, 4096).await.unwrap_or_default();
        Refused(Refusal::new(code, String::from_utf8_lossy(&detail).trim().to_string())).into_response()
    } else {
        response
    };
    if let Some(called) = called {
        response.headers_mut().insert(wire::CORRELATION_ID, called);
    }
    response
}
