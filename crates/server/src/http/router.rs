//! Every path, and what answers it.

use std::sync::Arc;

use api::{Code, Refusal};
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};

use crate::backend::shards::App;
use crate::http::calls;
use crate::http::observer::{Around, around};
use crate::http::openapi::{self, Document};
use crate::present::refusals::RefusalResponse;

/// The calls, to be found by path and method.
pub(crate) struct Routes {
    pub(crate) router: Router,
    /// Also for calls that are answered without the router.
    pub(crate) around: Arc<Around>,
}

/// All of `/v1`, to be served, or mounted in another program. Each request needs a [`Peer`](crate::peer::Peer)
/// among its extensions: who is asking.
pub fn router(app: &Arc<App>) -> Router {
    Routes::new(app).router
}

impl Routes {
    pub(crate) fn new(app: &Arc<App>) -> Routes {
        let calls = calls::all();
        let document = Document(openapi::document(&calls, &app.settings).into());
        let around_all = Arc::new(Around::new(app, &calls));
        // A layer is paid for by every request: there is one.
        let found = calls.into_iter().fold(Router::new(), |router, call| {
            let is_document = call.path == openapi::PATH;
            let handler =
                if is_document { call.handler.layer(Extension(document.clone())) } else { call.handler };
            router.route(call.path, handler)
        });
        let router = found
            .fallback(async || RefusalResponse(Refusal::new(Code::NotFound, "no such path")))
            .method_not_allowed_fallback(async || {
                RefusalResponse(Refusal::new(Code::MethodNotAllowed, "not by this method"))
            })
            .layer(from_fn_with_state(Arc::clone(&around_all), around))
            .with_state(Arc::clone(app));
        Routes { router, around: around_all }
    }
}
