//! Wraps every request: turns the framework's own errors into API errors, echoes the correlation id, counts the request
//! and its duration, and logs it at level debug. Acts of operators are logged at level info, with serial and address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{Code, Refusal};
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderValue, Method, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::observe::Stopwatch;
use identity::Role;
use tracing::field::display;
use tracing::{Instrument, Span};

use crate::backend::metrics::RouteMetrics;
use crate::backend::shards::Backend;
use crate::http::openapi::ApiCall;
use crate::parse;
use crate::parse::query::{self, Nothing};
use crate::peer::Peer;
use crate::present::refusals::RefusalResponse;

/// The route of all unknown paths: they share one metrics series.
const UNKNOWN: &str = "unknown";

/// Wraps all calls.
pub(crate) struct RequestObserver {
    backend: Arc<Backend>,
    /// The metrics of each route, by its path.
    routes: BTreeMap<&'static str, RouteMetrics>,
    unknown: RouteMetrics,
    /// Calls that take no query, by path and method.
    without_query: BTreeSet<(&'static str, &'static str)>,
    /// Acts of operators, by path and method.
    operator_acts: BTreeSet<(&'static str, &'static str)>,
}

/// The state of a request until its response.
struct RequestInfo {
    stopwatch: Stopwatch,
    /// The correlation id, if the client sent a valid one.
    correlation: Option<HeaderValue>,
    span: Span,
}

/// The middleware of the router.
pub(crate) async fn observe(
    State(observer): State<Arc<RequestObserver>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let route = path.and_then(|path| observer.routes.get(path.as_str())).unwrap_or(&observer.unknown);
    let (info, checked) = RequestInfo::new(&request, route.path, request.extensions().get::<Peer>());
    let act = observer.operator_act(&request, route.path);
    let response = match checked.and_then(|()| observer.check_query(&request, route.path)) {
        Ok(()) => as_api_error(next.run(request).instrument(info.span.clone()).await).await,
        Err(refusal) => RefusalResponse(refusal).into_response(),
    };
    if let Some(act) = act {
        act.log(&response, info.correlation.as_ref());
    }
    observer.finish(route, info, response)
}

/// A request of an operator that changes something.
struct OperatorAct {
    method: Method,
    /// As it was sent: it names the lease or the namespace.
    path: String,
    peer: Peer,
}

impl OperatorAct {
    fn log(&self, response: &Response, correlation: Option<&HeaderValue>) {
        let OperatorAct { method, path, peer } = self;
        let (identity, status) = (peer.identity.as_str(), response.status().as_u16());
        let serial = peer.certificate.as_ref().map(|certificate| display(certificate.serial));
        let address = peer.connection.address().map(display);
        let correlation = correlation.and_then(|id| id.to_str().ok());
        let code = response.extensions().get::<Code>().map(|code| code.as_str());
        tracing::info!(identity, serial, address, %method, path, status, code, correlation, "operator's act");
    }
}

impl RequestInfo {
    /// Also checks that no header is ambiguous, and the correlation id.
    fn new<B>(
        request: &Request<B>,
        path: &'static str,
        peer: Option<&Peer>,
    ) -> (RequestInfo, Result<(), Refusal>) {
        let headers = request.headers();
        let checked = parse::check_single(headers).and_then(|()| parse::correlation(headers).map(drop));
        let correlation = request.headers().get(&parse::CORRELATION_ID).filter(|_| checked.is_ok()).cloned();
        let span = tracing::debug_span!(
            "request",
            method = %request.method(),
            path,
            identity = peer.map(|peer| peer.identity.as_str()),
            correlation = correlation.as_ref().and_then(|id| id.to_str().ok()),
        );
        (RequestInfo { stopwatch: Stopwatch::start(), correlation, span }, checked)
    }
}

impl RequestObserver {
    pub(crate) fn new(backend: &Arc<Backend>, calls: &[ApiCall]) -> RequestObserver {
        let without = calls.iter().filter(|call| !call.takes_query).map(|call| (call.path, call.verb()));
        let acts = calls.iter().filter(|call| call.is_operator_act()).map(|call| (call.path, call.verb()));
        RequestObserver {
            backend: Arc::clone(backend),
            routes: calls.iter().map(|call| (call.path, RouteMetrics::new(call.path))).collect(),
            unknown: RouteMetrics::new(UNKNOWN),
            without_query: without.collect(),
            operator_acts: acts.collect(),
        }
    }

    /// Does the same for a call on the fast path, which takes no query.
    pub(crate) async fn observe_direct<B>(
        &self,
        path: &'static str,
        peer: &Peer,
        request: Request<B>,
        handle: impl AsyncFnOnce(Request<B>) -> Response,
    ) -> Response {
        let route = self.routes.get(path).unwrap_or(&self.unknown);
        let (info, checked) = RequestInfo::new(&request, path, Some(peer));
        let response = match checked {
            Ok(()) => handle(request).instrument(info.span.clone()).await,
            Err(refusal) => RefusalResponse(refusal).into_response(),
        };
        self.finish(route, info, response)
    }

    fn finish(&self, route: &RouteMetrics, info: RequestInfo, mut response: Response) -> Response {
        let RequestInfo { stopwatch, correlation, span } = info;
        if let Some(correlation) = correlation {
            response.headers_mut().insert(&parse::CORRELATION_ID, correlation);
        }
        let (status, took) = (response.status().as_u16(), stopwatch.elapsed());
        let code = response.extensions().get::<Code>().copied();
        if let Some(code) = code {
            self.backend.metrics.refused(code);
        }
        route.responded(&self.backend.metrics, status, took);
        tracing::debug!(parent: &span, status, code = code.map(Code::as_str), ms = took.as_secs_f64() * 1000.0, "responded");
        response
    }

    /// The act, if an operator sends one.
    fn operator_act(&self, request: &Request<Body>, path: &str) -> Option<OperatorAct> {
        let peer = request.extensions().get::<Peer>().filter(|peer| peer.role == Role::Operator)?;
        let method = request.method();
        self.operator_acts.contains(&(path, method.as_str())).then(|| {
            let path = request.uri().path().to_string();
            OperatorAct { method: method.clone(), path, peer: peer.clone() }
        })
    }

    /// Refuses query parameters of calls that take none.
    fn check_query(&self, request: &Request<Body>, path: &str) -> Result<(), Refusal> {
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        if request.uri().query().is_none() || !self.without_query.contains(&(path, method.as_str())) {
            return Ok(());
        }
        query::read::<Nothing>(request.uri()).map(|Nothing {}| ())
    }
}

/// Turns an error of the framework into an error of the API.
async fn as_api_error(response: Response) -> Response {
    let status = response.status();
    let is_json = response.headers().get("content-type").is_some_and(|kind| kind == "application/json");
    if is_json || !(status.is_client_error() || status.is_server_error()) {
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
