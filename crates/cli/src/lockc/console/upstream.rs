//! The server behind the console: connections with the caller's identity, used again while they are open.

use std::sync::{Mutex, PoisonError};

use cli::exit_codes::UNAVAILABLE;
use cli::remote::{Failure, client_failure, usage_error};
use cli::untrusted::escape;
use http_body_util::Either;
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lockd_client::Client;

/// The most idle connections that are kept.
const IDLE_MAX: usize = 8;
/// The host that requests name: one that a server without mTLS always allows. With mTLS the name has no meaning, because
/// the server's certificate is verified by its CA.
const SERVER_NAME: &str = "localhost";

/// Headers of a browser that concern this proxy only, or that say who the user is.
const WITHHELD: [&str; 12] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "origin",
    "referer",
    "cookie",
    "x-console-token",
    "x-console-session",
];

type Sender = SendRequest<Either<Incoming, Empty<Bytes>>>;

/// Sends requests to the server.
pub(super) struct Upstream {
    client: Client,
    idle: Mutex<Vec<Sender>>,
}

impl Upstream {
    pub(super) fn new(client: Client) -> Upstream {
        Upstream { client, idle: Mutex::default() }
    }

    /// Fails if the server cannot be reached, or serves no console.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        let request = Request::get("/ui/").body(Either::Right(Empty::new())).expect("its parts are valid");
        let response = self.forward(request).await?;
        match response.status() {
            StatusCode::OK => Ok(()),
            StatusCode::NOT_FOUND => Err(usage_error(
                "the server serves no console: it is older, or its setting --ui is false; `lockc top` needs none",
            )),
            status => Err(Failure::new(
                UNAVAILABLE,
                format!("the server does not serve its console: status={status}"),
            )),
        }
    }

    /// Forwards a browser's request.
    pub(super) async fn send(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Failure> {
        self.forward(request.map(Either::Left)).await
    }

    async fn forward(
        &self,
        mut request: Request<Either<Incoming, Empty<Bytes>>>,
    ) -> Result<Response<Incoming>, Failure> {
        withhold(request.headers_mut());
        request.headers_mut().insert(HOST, HeaderValue::from_static(SERVER_NAME));
        let (mut sender, is_used) = match self.take_idle() {
            Some(sender) => (sender, true),
            None => (self.open().await?, false),
        };
        let mut sent = sender.try_send_request(request).await;
        // The server closed an idle connection before it read the request: nothing was applied.
        if let Some(unsent) = sent.as_mut().err().filter(|_| is_used).and_then(TrySendError::take_message) {
            sender = self.open().await?;
            sent = sender.try_send_request(unsent).await;
        }
        let mut response = sent.map_err(|error| lost(&error.into_error()))?;
        self.keep(sender);
        withhold(response.headers_mut());
        Ok(response)
    }

    async fn open(&self) -> Result<Sender, Failure> {
        let tunnel = self.client.tunnel().await.map_err(client_failure)?;
        let lost =
            |error: hyper::Error| Failure::new(UNAVAILABLE, escape(&format!("no HTTP connection: {error}")));
        let (sender, connection) = http1::handshake(TokioIo::new(tunnel)).await.map_err(lost)?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// A connection whose last response was read to its end.
    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|sender| !sender.is_closed());
        let ready = idle.iter().position(SendRequest::is_ready)?;
        Some(idle.swap_remove(ready))
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is not kept still delivers its response.
        if idle.len() < IDLE_MAX {
            idle.push(sender);
        }
    }
}

fn lost(error: &hyper::Error) -> Failure {
    let what = "the connection to the server was lost; the request may have been applied";
    Failure::new(UNAVAILABLE, escape(&format!("{what}: {error}")))
}

fn withhold(headers: &mut HeaderMap) {
    for name in WITHHELD {
        headers.remove(HeaderName::from_static(name));
    }
    let is_fetch = |name: &HeaderName| name.as_str().starts_with("sec-");
    let fetch: Vec<HeaderName> = headers.keys().filter(|name| is_fetch(name)).cloned().collect();
    for name in fetch {
        headers.remove(name);
    }
}
