//! The router: every path and its handler.

use std::sync::Arc;

use api::{Code, Refusal};
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};

use crate::backend::shards::Backend;
use crate::http::calls;
use crate::http::forward::{Forwarder, ForwardingTls};
use crate::http::observer::{RequestObserver, observe};
use crate::http::openapi::{self, OpenApiDocument};
use crate::http::ui;
use crate::present::refusals::RefusalResponse;

/// The router and its observer.
pub(crate) struct Routes {
    pub(crate) router: Router,
    /// Also observes the calls that bypass the router.
    pub(crate) observer: Arc<RequestObserver>,
    /// Sends requests to the other servers of the store, if there may be any.
    pub(crate) forwarder: Option<Arc<Forwarder>>,
}

/// All paths, to be served, or mounted in another program. Each request needs a [`Peer`](crate::peer::Peer) among its
/// extensions: the authenticated client.
pub fn router(backend: &Arc<Backend>) -> Router {
    Routes::new(backend).router
}

impl Routes {
    pub(crate) fn new(backend: &Arc<Backend>) -> Routes {
        let calls = calls::all();
        let document = OpenApiDocument(openapi::document(&calls, &backend.settings).into());
        let observer = Arc::new(RequestObserver::new(backend, &calls));
        // Every layer costs every request: there is only one.
        let paths = calls.into_iter().fold(Router::new(), |router, call| {
            let is_document = call.path == openapi::PATH;
            let handler =
                if is_document { call.handler.layer(Extension(document.clone())) } else { call.handler };
            router.route(call.path, handler)
        });
        let paths = if backend.settings.ui { paths.merge(ui::routes()) } else { paths };
        let router = paths
            .fallback(async || RefusalResponse(Refusal::new(Code::NotFound, "no such path")))
            .method_not_allowed_fallback(async || {
                RefusalResponse(Refusal::new(Code::MethodNotAllowed, "the path does not support this method"))
            })
            .layer(from_fn_with_state(Arc::clone(&observer), observe))
            .with_state(Arc::clone(backend));
        Routes { router, observer, forwarder: None }
    }

    /// Forwards requests for shards of other servers.
    pub(crate) fn forwarding(self, backend: &Arc<Backend>, tls: Option<Arc<ForwardingTls>>) -> Routes {
        let forwarder = backend.cluster.is_some().then(|| Arc::new(Forwarder::new(backend, tls)));
        Routes { forwarder, ..self }
    }
}
