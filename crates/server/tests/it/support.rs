//! A server in memory, called without a socket. Every response is checked against the server's OpenAPI document.

mod document;
pub(crate) mod log_lines;
pub(crate) mod slow_store;
pub(crate) mod stream_client;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use axum::{Extension, Router};
use identity::{Rights, Role};
use kernel::Identity;
use lockd_server::backend::shards::{Backend, RequestLimits};
use lockd_server::http::connection::ConnectionService;
use lockd_server::http::router::router;
use lockd_server::peer::{Peer, PeerConnection};
use lockd_server::testing::TestClock;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tower::ServiceExt;

use document::OpenApiDocument;

/// The longest that a test waits for a condition.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Awaits a future, and fails after [`DEADLINE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let value = tokio::time::timeout(DEADLINE, future).await;
    value.unwrap_or_else(|_| panic!("not within {DEADLINE:?}: {what}"))
}

#[derive(Clone)]
pub(crate) struct Server {
    backend: Arc<Backend>,
    service: ConnectionService,
    /// If set, requests go through this router instead of the service.
    router: Option<Router>,
    document: Arc<OnceCell<OpenApiDocument>>,
}

pub(crate) struct Raw {
    pub(crate) status: u16,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Raw {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

pub(crate) fn header<'a>(name: &'a str, value: &'a str) -> (&'a str, &'a str) {
    (name, value)
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_as(Role::Operator)
    }

    /// Every client has this role.
    pub(crate) fn start_as(role: Role) -> Server {
        let backend =
            lockd_server::testing::backend(RequestLimits { json_max: 2_000_000, ..RequestLimits::default() });
        Server::of(backend, Peer::anonymous(role))
    }

    /// With other limits.
    pub(crate) fn with_limits(limits: RequestLimits) -> Server {
        Server::of(lockd_server::testing::backend(limits), Peer::anonymous(Role::Operator))
    }

    /// On a clock that the test advances.
    pub(crate) fn start_by(clock: &TestClock) -> Server {
        Server::of(
            lockd_server::testing::backend_with_clock(RequestLimits::default(), clock),
            Peer::anonymous(Role::Operator),
        )
    }

    fn of(backend: Arc<Backend>, peer: Peer) -> Server {
        let service = ConnectionService::unauthenticated(&backend, peer, Duration::from_secs(30));
        Server { backend, service, router: None, document: Arc::default() }
    }

    /// The same server, as it is mounted in another program.
    pub(crate) fn mounted(&self) -> Server {
        let router = router(&self.backend).layer(Extension(Peer::anonymous(Role::Operator)));
        Server { router: Some(router), ..self.clone() }
    }

    /// The same server for another client: a worker, with rights as certificates spell them.
    pub(crate) fn worker(&self, name: &str, rights: &str) -> Server {
        let rights = rights.split(' ').map(|text| text.parse().expect("rights"));
        let peer = Peer {
            identity: Identity::new(name).expect("a name"),
            role: Role::Worker,
            rights: Rights::new(rights).expect("rights").into(),
            certificate: None,
            connection: PeerConnection::default(),
        };
        Server::of(Arc::clone(&self.backend), peer)
    }

    /// Polls a path until its response satisfies the condition; fails after [`DEADLINE`].
    pub(crate) async fn until(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let poll = async {
            loop {
                let (status, body) = self.get(path).await;
                assert_eq!(status, 200, "{body}");
                if condition(&body) {
                    return body;
                }
                tokio::task::yield_now().await;
            }
        };
        within(path, poll).await
    }

    /// Posts JSON, and expects 200.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, reply) = self.post(path, &[], &body.to_string()).await;
        assert_eq!(status, 200, "{path} {body}: {reply}");
        reply
    }

    pub(crate) fn drain(&self) {
        self.backend.drain();
    }

    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> Response<Body> {
        self.response("GET", path, headers, "").await
    }

    async fn response(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_string())).expect("a valid request");
        match &self.router {
            Some(router) => router.clone().oneshot(request).await.expect("it always answers"),
            None => self.service.handle(request).await,
        }
    }

    pub(crate) async fn unread(&self, path: &str, body: &str) -> Response<Body> {
        self.unread_with(path, &[], body).await
    }

    pub(crate) async fn unread_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response<Body> {
        self.response("POST", path, headers, body).await
    }

    pub(crate) async fn unread_get(&self, path: &str) -> Response<Body> {
        self.response("GET", path, &[], "").await
    }

    pub(crate) async fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Raw {
        let raw = self.unchecked(method, path, headers, body).await;
        let kind = raw.header("content-type");
        if let Err(why) = self.document().await.check(method, path, raw.status, kind, &raw.body) {
            panic!("{method} {path}: {} is not as the document says: {why}", raw.status);
        }
        raw
    }

    pub(crate) async fn unchecked(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Raw {
        let (parts, body) = self.response(method, path, headers, body).await.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.expect("it is sent whole").to_vec();
        Raw { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// The server's OpenAPI document.
    pub(crate) async fn document(&self) -> &OpenApiDocument {
        let read =
            async || OpenApiDocument::read(&self.unchecked("GET", "/openapi.json", &[], "").await.body);
        self.document.get_or_init(read).await
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let raw = self.raw("POST", path, headers, body).await;
        (raw.status, serde_json::from_slice(&raw.body).unwrap_or(Value::Null))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let raw = self.raw("GET", path, &[], "").await;
        (raw.status, serde_json::from_slice(&raw.body).unwrap_or(Value::Null))
    }

    pub(crate) async fn acquire(&self, body: Value) -> Value {
        self.acquire_with("", body).await
    }

    pub(crate) async fn acquire_with(&self, query: &str, body: Value) -> Value {
        let (status, reply) = self.post(&format!("/v1/acquire{query}"), &[], &body.to_string()).await;
        assert_eq!(status, 200, "{reply}");
        reply
    }

    pub(crate) async fn release(&self, lease: &Value) {
        let body = json!({"lease_id": lease["lease_id"]}).to_string();
        assert_eq!(self.post("/v1/release", &[], &body).await.0, 200);
    }
}
