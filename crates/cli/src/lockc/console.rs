//! `lockc console`: the web console of a server, for a browser on this machine that has no certificate.
//!
//! A proxy on the loopback address forwards the browser's requests with the caller's identity. Every user and every web
//! page of this machine can reach that address, so a request passes only with the session of this console.
//!
//! **Invariant.** Nothing but the console's static files is served without the session. The session is given for a token
//! that is valid once, and that only the caller's terminal and the fragment of the URL ever contain: browsers send a
//! fragment to no one. A request that names another host, or comes from a page of another origin, is refused.
//!
//! **What would break it.** A cookie instead of a header: cookies are shared by all ports of an address, so the server of
//! another user on the same machine would receive it.

mod gate;
mod upstream;

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use api::{Code, Refusal};
use cli::output::{Output, write_stdout};
use cli::remote::{CommandResult, Failure, connect, failed};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use self::gate::{Admission, Gate};
use self::upstream::Upstream;
use crate::args::LockcConsoleArgs;
use crate::notice;

/// The most connections of browsers at a time.
const CONNECTIONS_MAX: usize = 64;

type Body = BoxBody<Bytes, hyper::Error>;

/// Runs until it is interrupted.
pub(crate) async fn console(output: Output, args: &LockcConsoleArgs) -> CommandResult {
    let upstream = Upstream::new(connect(&args.connection)?);
    upstream.check().await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| failed("listening for the browser", &error))?;
    let bound = listener.local_addr().map_err(|error| failed("listening for the browser", &error))?;
    let gate = Gate::new(bound.port());
    announce(output, &gate)?;
    let proxy = Arc::new(Proxy { gate, upstream });
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut interrupted => return Ok(()),
        };
        let (Ok((stream, _)), Ok(permit)) = (accepted, Arc::clone(&permits).try_acquire_owned()) else {
            continue;
        };
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move {
            proxy.serve(stream).await;
            drop(permit);
        });
    }
}

fn announce(output: Output, gate: &Gate) -> Result<(), Failure> {
    let url = gate.url();
    let text = if output.is_parsed() {
        serde_json::json!({ "url": url }).to_string() + "\n"
    } else {
        format!("{url}\n")
    };
    write_stdout(text.as_bytes())?;
    if !output.is_parsed() {
        notice("open this link in a browser on this machine; it can be used once. Ctrl-C ends the console");
    }
    Ok(())
}

/// Answers the requests of browsers.
struct Proxy {
    gate: Gate,
    upstream: Upstream,
}

impl Proxy {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(move |request| {
            let proxy = Arc::clone(&self);
            async move { Ok::<_, Infallible>(proxy.respond(request).await) }
        });
        // A browser that is gone is no failure of the console.
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        match self.gate.admit(request.method(), request.uri(), request.headers()) {
            Admission::Forward => match self.upstream.send(request).await {
                Ok(response) => response.map(BodyExt::boxed),
                Err(failure) => refuse(Code::Unavailable, &failure.message),
            },
            Admission::Session(session) => {
                respond(StatusCode::OK, serde_json::json!({ "session": session }).to_string())
            }
            Admission::Refused(code, why) => refuse(code, why),
        }
    }
}

fn refuse(code: Code, why: &str) -> Response<Body> {
    let status = StatusCode::from_u16(code.status()).expect("every code has a valid status");
    let body = serde_json::to_string(&Refusal::new(code, why)).expect("a refusal serializes");
    respond(status, body)
}

fn respond(status: StatusCode, json: String) -> Response<Body> {
    let body = Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
