//! Every path, and what answers it.

use std::sync::Arc;

use api::{Code, Refusal, path};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::app::App;
use crate::observe::around;
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
        .route("/metrics", get(health::metrics))
        .fallback(async || Refused(Refusal::new(Code::NotFound, "no such path")))
        .method_not_allowed_fallback(async || {
            Refused(Refusal::new(Code::MethodNotAllowed, "not by this method"))
        })
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}
