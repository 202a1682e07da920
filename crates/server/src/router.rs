//! Every path, and what answers it.

use std::sync::Arc;

use api::{Code, Refusal};
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};

use crate::app::App;
use crate::calls;
use crate::observe::{Around, around};
use crate::openapi::{self, Document};
use crate::refuse::Refused;

/// All of `/v1`, to be served, or mounted in another program. Each request needs a [`Peer`](crate::peer::Peer)
/// among its extensions: who is asking.
pub fn router(app: Arc<App>) -> Router {
    let calls = calls::all();
    let document = Document(openapi::document(&calls, &app.settings).into());
    let without = calls.iter().filter(|call| !call.takes_query).map(|call| (call.path, call.verb()));
    let around_all = Around {
        app: Arc::clone(&app),
        paths: calls.iter().map(|call| call.path).collect(),
        without_query: without.collect(),
    };
    // A layer is paid for by every request: there is one.
    let routes = calls.into_iter().fold(Router::new(), |router, call| {
        let is_document = call.path == openapi::PATH;
        let handler =
            if is_document { call.handler.layer(Extension(document.clone())) } else { call.handler };
        router.route(call.path, handler)
    });
    routes
        .fallback(async || Refused(Refusal::new(Code::NotFound, "no such path")))
        .method_not_allowed_fallback(async || {
            Refused(Refusal::new(Code::MethodNotAllowed, "not by this method"))
        })
        .layer(from_fn_with_state(Arc::new(around_all), around))
        .with_state(app)
}
