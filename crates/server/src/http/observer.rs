//! Around every request: what the framework refuses by itself is said in the words of the API; what the client calls its
//! request is echoed; how long it took is counted, and logged for those who want to see each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{Code, Refusal};
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderValue, Method, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::Stopwatch;
use tracing::{Instrument, Span};

use crate::backend::metrics::RouteMetrics;
use crate::backend::shards::App;
use crate::http::openapi::Call;
use crate::parse;
use crate::parse::query::{self, Nothing};
use crate::peer::Peer;
use crate::present::refusals::RefusalResponse;

/// What is asked for and is not there is one series together.
const UNKNOWN: &str = "unknown";

/// What is around all calls.
pub(crate) struct Around {
    app: Arc<App>,
    /// All calls, by path.
    paths: BTreeMap<&'static str, RouteMetrics>,
    unknown: RouteMetrics,
    /// Calls that take no query, by path and method.
    without_query: BTreeSet<(&'static str, &'static str)>,
}

/// What is known of a request before it is answered.
struct Seen {
    stopwatch: Stopwatch,
    called: Option<HeaderValue>,
    span: Span,
}

pub(crate) async fn around(
    State(around): State<Arc<Around>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().and_then(|route| around.paths.get(route.as_str()));
    let counted = path.unwrap_or(&around.unknown);
    let (seen, sound) = Seen::of(&request, counted.path, request.extensions().get::<Peer>());
    let response = match sound.and_then(|()| around.query(&request, counted.path)) {
        Ok(()) => in_our_words(next.run(request).instrument(seen.span.clone()).await).await,
        Err(refusal) => RefusalResponse(refusal).into_response(),
    };
    around.answered(counted, seen, response)
}

impl Seen {
    /// And whether what the client calls its request can be that.
    fn of<B>(request: &Request<B>, path: &'static str, peer: Option<&Peer>) -> (Seen, Result<(), Refusal>) {
        let sound = parse::correlation(request.headers()).map(|_| ());
        let called = request.headers().get(&parse::CORRELATION_ID).filter(|_| sound.is_ok()).cloned();
        let span = tracing::debug_span!(
            "request",
            method = %request.method(),
            path,
            identity = peer.map(|peer| peer.identity.as_str()),
            correlation = called.as_ref().and_then(|called| called.to_str().ok()),
        );
        (Seen { stopwatch: Stopwatch::start(), called, span }, sound)
    }
}

impl Around {
    pub(crate) fn new(app: &Arc<App>, calls: &[Call]) -> Around {
        let without = calls.iter().filter(|call| !call.takes_query).map(|call| (call.path, call.verb()));
        Around {
            app: Arc::clone(app),
            paths: calls.iter().map(|call| (call.path, RouteMetrics::new(call.path))).collect(),
            unknown: RouteMetrics::new(UNKNOWN),
            without_query: without.collect(),
        }
    }

    /// The same around a call that takes no query and that no router has found.
    pub(crate) async fn direct<B>(
        &self,
        path: &'static str,
        peer: &Peer,
        request: Request<B>,
        answer: impl AsyncFnOnce(Request<B>) -> Response,
    ) -> Response {
        let counted = self.paths.get(path).unwrap_or(&self.unknown);
        let (seen, sound) = Seen::of(&request, path, Some(peer));
        let response = match sound {
            Ok(()) => answer(request).instrument(seen.span.clone()).await,
            Err(refusal) => RefusalResponse(refusal).into_response(),
        };
        self.answered(counted, seen, response)
    }

    fn answered(&self, counted: &RouteMetrics, seen: Seen, mut response: Response) -> Response {
        let Seen { stopwatch, called, span } = seen;
        if let Some(called) = called {
            response.headers_mut().insert(&parse::CORRELATION_ID, called);
        }
        let (status, took) = (response.status().as_u16(), stopwatch.elapsed());
        let code = response.extensions().get::<Code>().copied();
        if let Some(code) = code {
            self.app.metrics.refused(code);
        }
        counted.answered(&self.app.metrics, status, took);
        tracing::debug!(parent: &span, status, code = code.map(Code::as_str), ms = took.as_secs_f64() * 1000.0, "answered");
        response
    }

    /// Who asks for what is not there does not get something else.
    fn query(&self, request: &Request<Body>, path: &str) -> Result<(), Refusal> {
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        if request.uri().query().is_none() || !self.without_query.contains(&(path, method.as_str())) {
            return Ok(());
        }
        query::read::<Nothing>(request.uri()).map(|Nothing {}| ())
    }
}

async fn in_our_words(response: Response) -> Response {
    let status = response.status();
    let ours = response.headers().get("content-type").is_some_and(|kind| kind == "application/json");
    if ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let code = match status.as_u16() {
        413 => Code::DocumentTooLarge,
        405 => Code::MethodNotAllowed,
        404 => Code::NotFound,
        400..500 => Code::InvalidBody,
        _ => Code::Unavailable,
    };
    let (_, body) = response.into_parts();
    let detail = axum::body::to_bytes(body, 4096).await.unwrap_or_default();
    RefusalResponse(Refusal::new(code, String::from_utf8_lossy(&detail).trim().to_string())).into_response()
}
