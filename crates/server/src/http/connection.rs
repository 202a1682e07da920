//! What stands between a connection and the calls: who is asking, and whether it is still trusted.
//!
//! Three calls are nearly all that a busy server is asked: to acquire, to keep alive, to release. In their plain form,
//! whole and short and without a query, they go straight to their handlers; everything else, and any other form of these,
//! goes by the router, which makes a dozen allocations on the way. What surrounds them is the same.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::{Code, Refusal, path};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use axum::{BoxError, Extension, Router};
use http_body::Body as _;
use http_body_util::BodyExt;
use identity::{SharedDenylist, UnixTime};
use tower::ServiceExt;

use crate::backend::shards::App;
use crate::handlers::acquire;
use crate::handlers::holder;
use crate::http::observer::Around;
use crate::http::router::Routes;
use crate::http::timeouts::PatientBody;
use crate::parse::Headers;
use crate::parse::query::Query;
use crate::peer::{CertificateCheck, Peer};
use crate::present::refusals::{self, RefusalResponse};

/// A body that is longer goes by the router.
const DIRECT_MAX: u64 = 16 << 10;

/// Where the requests of a connection arrive.
#[derive(Clone)]
pub struct Front(Arc<Inner>);

/// A body as it comes from a connection.
pub trait Received: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static> Received for B {}

struct Inner {
    app: Arc<App>,
    router: Router,
    around: Arc<Around>,
    /// Where there are certificates.
    gate: Option<Gate>,
    peer: Peer,
    /// How long one may do nothing who sends a body.
    stall: Duration,
}

impl Front {
    pub(crate) fn new(
        app: &Arc<App>,
        routes: &Routes,
        gate: Option<&Gate>,
        peer: Peer,
        stall: Duration,
    ) -> Front {
        Front(Arc::new(Inner {
            app: Arc::clone(app),
            router: routes.router.clone(),
            around: Arc::clone(&routes.around),
            gate: gate.cloned(),
            peer,
            stall,
        }))
    }

    /// Everybody is this peer.
    pub fn open(app: &Arc<App>, peer: Peer, stall: Duration) -> Front {
        Front::new(app, &Routes::new(app), None, peer, stall)
    }

    /// Answers one request.
    pub async fn answer<B: Received>(&self, request: Request<B>) -> Response {
        self.0.answer(request).await
    }
}

impl<B: Received> hyper::service::Service<Request<B>> for Front {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let front = Arc::clone(&self.0);
        Box::pin(async move { Ok(front.answer(request).await) })
    }
}

impl Inner {
    async fn answer<B: Received>(&self, request: Request<B>) -> Response {
        if let Err(refusal) = self.gate.as_ref().map_or(Ok(()), |gate| gate.check(&self.peer)) {
            return RefusalResponse(refusal).into_response();
        }
        match Direct::of(&request) {
            Some(direct) => {
                let answer = async |request| direct.answer(self, request).await;
                self.around.direct(direct.path(), &self.peer, request, answer).await
            }
            None => self.by_the_router(request).await,
        }
    }

    fn by_the_router<B: Received>(
        &self,
        request: Request<B>,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        let patient = |body| Body::new(PatientBody::new(body, self.stall));
        let mut request =
            request.map(|body: B| if body.is_end_stream() { Body::empty() } else { patient(body) });
        request.extensions_mut().insert(self.peer.clone());
        if let Some(gate) = &self.gate {
            request.extensions_mut().insert(gate.recheck(&self.peer));
        }
        let answer = self.router.clone().oneshot(request);
        Box::pin(async move {
            match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

/// A call that needs no router.
#[derive(Clone, Copy)]
enum Direct {
    Acquire,
    Keepalive,
    Release,
}

impl Direct {
    fn of<B: Received>(request: &Request<B>) -> Option<Direct> {
        let plain = request.method() == Method::POST && request.uri().query().is_none();
        let short = request.body().size_hint().exact().is_some_and(|length| length <= DIRECT_MAX);
        match request.uri().path() {
            _ if !(plain && short) => None,
            path::ACQUIRE => Some(Direct::Acquire),
            path::KEEPALIVE => Some(Direct::Keepalive),
            path::RELEASE => Some(Direct::Release),
            _ => None,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Direct::Acquire => path::ACQUIRE,
            Direct::Keepalive => path::KEEPALIVE,
            Direct::Release => path::RELEASE,
        }
    }

    async fn answer<B: Received>(self, front: &Inner, request: Request<B>) -> Response {
        let (head, body) = request.into_parts();
        let body = match whole(PatientBody::new(body, front.stall)).await {
            Ok(body) => body,
            Err(refusal) => return RefusalResponse(refusal).into_response(),
        };
        let (app, peer) = (State(Arc::clone(&front.app)), Extension(front.peer.clone()));
        let headers = Headers(head.headers);
        match self {
            Direct::Acquire => {
                let query = Query(acquire::AcquireQuery::default());
                acquire::acquire(app, peer, query, headers, body).await.into_response()
            }
            Direct::Keepalive => holder::keepalive(app, peer, headers, body).await.into_response(),
            Direct::Release => holder::release(app, peer, headers, body).await.into_response(),
        }
    }
}

/// No longer than its length, which is known. Most come in one piece, and are not copied.
async fn whole<B: Received>(mut body: PatientBody<B>) -> Result<Bytes, Refusal> {
    let broken = |error: axum::Error| refusals::truncated(&error);
    let Some(first) = body.frame().await else { return Ok(Bytes::new()) };
    let first = first.map_err(broken)?.into_data().unwrap_or_default();
    if body.is_end_stream() {
        return Ok(first);
    }
    let rest = body.collect().await.map_err(broken)?.to_bytes();
    Ok([first, rest].concat().into())
}

/// Lets nobody in whose certificate was good at the handshake, and is revoked or has run out by now.
#[derive(Clone)]
pub(crate) struct Gate {
    denylist: Arc<SharedDenylist>,
    app: Arc<App>,
}

impl Gate {
    pub(crate) fn new(denylist: &Arc<SharedDenylist>, app: &Arc<App>) -> Gate {
        Gate { denylist: Arc::clone(denylist), app: Arc::clone(app) }
    }

    fn check(&self, peer: &Peer) -> Result<(), Refusal> {
        let refuse = |why: String| Refusal::new(Code::Unauthenticated, why);
        let shown = peer.shown.as_ref().ok_or_else(|| refuse("no certificate was shown".to_string()))?;
        self.denylist.check(shown, self.now()).map_err(|why| refuse(why.to_string()))
    }

    fn now(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_millis(self.app.unix_ms()))
    }

    fn recheck(&self, peer: &Peer) -> CertificateCheck {
        let (gate, peer) = (self.clone(), peer.clone());
        CertificateCheck(Arc::new(move || gate.check(&peer).is_ok()))
    }
}
