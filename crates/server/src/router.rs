//! Every path, and what answers it.

use std::sync::Arc;

use api::{Code, Refusal};
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::{Extension, Router};

use crate::app::App;
use crate::calls;
use crate::observe::around;
use crate::openapi::{self, Document};
use crate::query::{Nothing, Query};
use crate::refuse::Refused;

/// The longest body that is no document.
const BODY_MAX: usize = 1 << 20;

/// All of `/v1`, to be served, or mounted in another program. Each request needs a [`Peer`](crate::peer::Peer)
/// among its extensions: who is asking.
pub fn router(app: Arc<App>) -> Router {
    let calls = calls::all();
    let document = Document(openapi::document(&calls, &app.settings).into());
    let routes = calls.into_iter().fold(Router::new(), |router, call| {
        let handler =
            if call.takes_query { call.handler } else { call.handler.route_layer(from_fn(no_query)) };
        router.route(call.path, handler)
    });
    routes
        // Documents have a limit of their own, and are never whole in memory.
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(Extension(document))
        .fallback(async || Refused(Refusal::new(Code::NotFound, "no such path")))
        .method_not_allowed_fallback(async || {
            Refused(Refusal::new(Code::MethodNotAllowed, "not by this method"))
        })
        .layer(from_fn_with_state(Arc::clone(&app), around))
        .with_state(app)
}

/// Who asks for what is not there does not get something else.
async fn no_query(Query(Nothing {}): Query<Nothing>, request: Request, next: Next) -> Response {
    next.run(request).await
}
