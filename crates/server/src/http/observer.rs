//! Wraps every request: turns the framework's own errors into API errors, echoes the correlation id, counts the request
//! and its duration, and logs it at level debug. Acts of operators are logged at level info, with serial, address and
//! target.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{Code, Refusal, path};
use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::{HeaderValue, Method, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::observe::Stopwatch;
use identity::Role;
use tracing::field::display;
use tracing::{Instrument, Span};

use crate::act_target::{ActTarget, TargetSlot};
use crate::backend::audit_log::RefusedAct;
use crate::backend::metrics::RouteMetrics;
use crate::backend::shards::Backend;
use crate::http::body_budget::BodyMemory;
use crate::http::forward::moved_shard;
use crate::http::openapi::ApiCall;
use crate::http::refusal_log::RequestRefusalLog;
use crate::http::ui;
use crate::parse;
use crate::parse::query::{self, Nothing};
use crate::peer::Peer;
use crate::present::refusals::RefusalResponse;

/// The one act of an operator that is no command.
const RELOAD: &str = "reload";
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
    /// The names of operators' acts, by path and method.
    operator_acts: BTreeMap<(&'static str, &'static str), &'static str>,
    pub(crate) refusals: RequestRefusalLog,
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
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let route = path.and_then(|path| observer.routes.get(path.as_str())).unwrap_or(&observer.unknown);
    let (info, checked) = RequestInfo::new(&request, route.path, request.extensions().get::<Peer>());
    let act = observer.operator_act(&mut request, route.path);
    let memory = observer.body_memory(&request, route.path);
    let response = match checked.and_then(|()| observer.check_query(&request, route.path)) {
        Ok(()) => {
            let request = memory.iter().fold(request, |request, memory| memory.count(request));
            as_api_error(next.run(request).instrument(info.span.clone()).await).await
        }
        Err(refusal) => RefusalResponse(refusal).into_response(),
    };
    let response = memory.iter().fold(response, |response, memory| memory.refuse(response));
    // An act on a shard of another server is logged there, as its operator's.
    if let Some(act) = act.filter(|_| moved_shard(&response).is_none()) {
        act.log(&response, info.correlation.as_ref());
        act.audit(&observer.backend, &response, info.correlation.as_ref());
    }
    observer.finish(route, info, response)
}

/// A request of an operator that changes something.
struct OperatorAct {
    /// The name of the call.
    call: &'static str,
    method: Method,
    /// As it was sent: it names the lease or the namespace.
    path: String,
    peer: Peer,
    target: TargetSlot,
}

impl OperatorAct {
    fn log(&self, response: &Response, correlation: Option<&HeaderValue>) {
        let OperatorAct { method, path, peer, target, .. } = self;
        let (identity, status) = (peer.identity.as_str(), response.status().as_u16());
        let serial = peer.connection.serial().map(display);
        let address = peer.connection.address().map(display);
        let correlation = correlation.and_then(|id| id.to_str().ok());
        let code = response.extensions().get::<Code>().map(|code| code.as_str());
        let nothing = ActTarget::default();
        let target = target.get().unwrap_or(&nothing);
        tracing::info!(
            identity, serial, address, %method, path, status, code, correlation,
            target.namespace = target.namespace.as_deref(),
            target.identity = target.identity.as_deref(),
            target.agent = target.agent.as_deref(),
            target.lease = target.lease.map(display),
            target.resource = target.resource.as_deref(),
            target.resources = target.resources,
            target.paused = target.paused,
            "operator's act"
        );
    }
}

impl OperatorAct {
    /// Records the act in the audit log, unless the record of its command is there already.
    fn audit(&self, backend: &Backend, response: &Response, correlation: Option<&HeaderValue>) {
        let code = response.extensions().get::<Code>().map(|code| code.as_str());
        let Some(audit_log) = backend.audit_log.as_ref().filter(|_| code.is_some() || self.call == RELOAD)
        else {
            return;
        };
        audit_log.record_act(RefusedAct {
            identity: self.peer.identity.as_str().to_string(),
            serial: self.peer.connection.serial().map(ToString::to_string),
            correlation: correlation.and_then(|id| id.to_str().ok()).map(str::to_string),
            call: self.call,
            status: response.status().as_u16(),
            code,
            target: self.target.get().cloned().unwrap_or_default(),
        });
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
        let checked = parse::check_single(headers).and_then(|()| parse::origin(headers).map(drop));
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
        let acts = calls.iter().filter(|call| call.is_operator_act());
        let acts = acts.map(|call| ((call.path, call.verb()), call.name));
        RequestObserver {
            backend: Arc::clone(backend),
            routes: calls
                .iter()
                .map(|call| call.path)
                .chain(ui::PATHS)
                .map(|path| (path, RouteMetrics::new(path)))
                .collect(),
            unknown: RouteMetrics::new(UNKNOWN),
            without_query: without.collect(),
            operator_acts: acts.collect(),
            refusals: RequestRefusalLog::default(),
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
            // The future is large, and `instrument` moves it.
            Ok(()) if info.span.is_disabled() => handle(request).await,
            Ok(()) => Box::pin(handle(request).instrument(info.span.clone())).await,
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
            if code == Code::NoSpace {
                self.refusals.no_space(route.path);
            }
        }
        route.responded(&self.backend.metrics, status, took);
        tracing::debug!(parent: &span, status, code = code.map(Code::as_str), ms = took.as_secs_f64() * 1000.0, "responded");
        response
    }

    /// The memory of the body; `None` if its handler counts it, or has no peer to serve.
    fn body_memory(&self, request: &Request<Body>, route: &str) -> Option<BodyMemory> {
        let peer = request.extensions().get::<Peer>().filter(|_| route != path::UPDATE_STATE)?;
        Some(BodyMemory::new(&self.backend.request_bodies, &peer.identity))
    }

    /// The act, if an operator sends one. Every request for one gets a slot for its target.
    fn operator_act(&self, request: &mut Request<Body>, path: &str) -> Option<OperatorAct> {
        let call = *self.operator_acts.get(&(path, request.method().as_str()))?;
        let target = TargetSlot::default();
        request.extensions_mut().insert(target.clone());
        let peer = request.extensions().get::<Peer>().filter(|peer| peer.role == Role::Operator)?.clone();
        let (method, path) = (request.method().clone(), request.uri().path().to_string());
        Some(OperatorAct { call, method, path, peer, target })
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
