//! Around every request: what the framework refuses by itself is said in the words of the API; what the client calls its
//! request is echoed; how long it took is counted, and logged for those who want to see each.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::{Code, Refusal, header as wire};
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::stopwatch::Stopwatch;
use tracing::Instrument;

use crate::app::App;
use crate::peer::Peer;
use crate::query::{self, Nothing};
use crate::read;
use crate::refuse::Refused;

/// What is asked for and is not there is one series together.
const UNKNOWN: &str = "unknown";

/// What is around all calls.
pub(crate) struct Around {
    pub(crate) app: Arc<App>,
    /// The paths of all calls.
    pub(crate) paths: BTreeSet<&'static str>,
    /// Calls that take no query, by path and method.
    pub(crate) without_query: BTreeSet<(&'static str, &'static str)>,
}

pub(crate) async fn around(State(around): State<Arc<Around>>, request: Request, next: Next) -> Response {
    let (app, stopwatch) = (&around.app, Stopwatch::start());
    let called = request.headers().get(wire::CORRELATION_ID).cloned();
    let path = request.extensions().get::<MatchedPath>().and_then(|route| around.paths.get(route.as_str()));
    let path = path.copied().unwrap_or(UNKNOWN);
    let span = tracing::debug_span!(
        "request",
        method = %request.method(),
        path,
        identity = request.extensions().get::<Peer>().map(|peer| peer.identity.as_str()),
        correlation = called.as_ref().and_then(|called| called.to_str().ok()),
    );
    let named = read::correlation(request.headers());
    let sound = named.clone().and_then(|_| around.query(&request, path));
    let mut response = match sound {
        Ok(()) => in_our_words(next.run(request).instrument(span.clone()).await).await,
        Err(refusal) => Refused(refusal).into_response(),
    };
    if let Some(called) = called.filter(|_| named.is_ok()) {
        response.headers_mut().insert(wire::CORRELATION_ID, called);
    }
    let (status, took) = (response.status().as_u16(), stopwatch.elapsed());
    let code = response.extensions().get::<Code>().copied();
    if let Some(code) = code {
        app.metrics.refused(code);
    }
    app.metrics.answered(path, status, took);
    tracing::debug!(parent: &span, status, code = code.map(Code::as_str), ms = took.as_secs_f64() * 1000.0, "answered");
    response
}

impl Around {
    /// Who asks for what is not there does not get something else.
    fn query(&self, request: &Request, path: &str) -> Result<(), Refusal> {
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
    Refused(Refusal::new(code, String::from_utf8_lossy(&detail).trim().to_string())).into_response()
}
