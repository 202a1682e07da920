//! Sends a request until it is answered, over all servers, with one idempotency key.
//!
//! **Invariant.** A mutation that may have been applied is sent again only under the same key, and only while the
//! server still knows that key; what then comes back is the answer to all of its tries. If none comes, the failure
//! is [`Kind::Indeterminate`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::responses::Ready;
use api::{Code, Refusal, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use tokio_rustls::TlsConnector;

use crate::chance;
use crate::clock::BootTime;
use crate::connect::Connector;
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::progress::{Upload, Watcher, download};

/// The longest answer that is taken.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// A body is expected to travel at least so many bytes in a millisecond.
const BYTES_PER_MS: u64 = 1000;
/// The first wait between two tries, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How patient a client is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) connect: Duration,
    pub(crate) answer: Duration,
    pub(crate) tries: usize,
    /// Nothing is sent again once this has passed since it was sent first: the server may have forgotten its key.
    pub(crate) window: Duration,
}

/// What is asked.
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    pub(crate) mutates: bool,
    /// How long the server may think about it, beside the usual.
    pub(crate) wait: Duration,
    /// How long one try may take, where the usual is too long.
    pub(crate) try_max: Option<Duration>,
}

/// What came back.
pub(crate) struct Heard {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Before the request was sent that this answers.
    pub(crate) sent_at: BootTime,
}

/// A try without a final answer.
struct Failed {
    error: Error,
    may_have_happened: bool,
}

struct Server {
    endpoint: Endpoint,
    pool: Pool<Connector, Upload>,
}

/// All servers.
pub(crate) struct Servers {
    all: Vec<Server>,
    /// The one that answered last.
    best: AtomicUsize,
    patience: Patience,
    watcher: Watcher,
}

impl Servers {
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        patience: Patience,
        tls: Option<&TlsConnector>,
        watcher: Watcher,
    ) -> Servers {
        let all = endpoints.into_iter().map(|endpoint| {
            let connector = Connector::new(endpoint.clone(), patience.connect, tls.cloned());
            let pool = Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
            Server { endpoint, pool }
        });
        Servers { all: all.collect(), best: AtomicUsize::new(0), patience, watcher }
    }

    /// The answer, if it is a good one.
    pub(crate) async fn call(&self, mut ask: Ask) -> Result<Heard, Error> {
        if ask.mutates {
            ask.headers.push((header::IDEMPOTENCY_KEY, chance::idempotency_key()));
        }
        let (begun, first) = (BootTime::now(), self.best.load(Ordering::Relaxed));
        let window = self.patience.window + ask.wait;
        let (mut turn, mut ambiguous) = (0, false);
        loop {
            let place = (first + turn) % self.all.len();
            let failed = match self.try_once(&self.all[place], &ask).await {
                Ok(answer) => {
                    self.best.store(place, Ordering::Relaxed);
                    return answer.map_err(|error| error.after(ambiguous));
                }
                Err(failed) => failed,
            };
            ambiguous |= ask.mutates && failed.may_have_happened;
            turn += 1;
            let pause = self.pause(turn);
            if turn >= self.patience.tries.max(self.all.len()) || begun.elapsed() + pause > window {
                let kind = if ambiguous { Kind::Indeterminate } else { Kind::Unavailable };
                return Err(failed.error.with_kind(kind).after(ambiguous));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// An answer that goes on: the first server that begins one. It may take as long as it likes after that.
    pub(crate) async fn open(&self, ask: &Ask) -> Result<Incoming, Error> {
        let first = self.best.load(Ordering::Relaxed);
        let mut failed = Error::new(Kind::Unavailable, "no server was asked");
        for turn in 0..self.all.len() {
            let place = (first + turn) % self.all.len();
            match self.begin(&self.all[place], ask).await {
                Ok(body) => {
                    self.best.store(place, Ordering::Relaxed);
                    return Ok(body);
                }
                Err(error) if error.kind() == Kind::Unavailable => failed = error,
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    async fn begin(&self, server: &Server, ask: &Ask) -> Result<Incoming, Error> {
        let (sent_at, patience) = (BootTime::now(), self.patience.connect + self.patience.answer);
        let begun = tokio::time::timeout(patience, server.pool.request(request(server, ask, &None)?)).await;
        let answer = begun.map_err(|_| broken(server, "no answer in time", false).error)?;
        let answer = answer.map_err(|error| broken(server, causes(&error), false).error)?;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        let heard = tokio::time::timeout(patience, whole(server, answer, &None, sent_at)).await;
        let heard = heard.map_err(|_| broken(server, "no answer in time", false).error)?;
        Err(refused(server, &heard.map_err(|failed| failed.error)?))
    }

    /// A server that was not asked yet is asked at once.
    fn pause(&self, turn: usize) -> Duration {
        if turn < self.all.len() {
            return Duration::ZERO;
        }
        let doublings = u32::try_from(turn - self.all.len()).unwrap_or(u32::MAX).min(10);
        chance::jitter((BACKOFF.0 * 2_u32.pow(doublings)).min(BACKOFF.1))
    }

    /// An answer that is final, good or bad; or why there is none.
    async fn try_once(&self, server: &Server, ask: &Ask) -> Result<Result<Heard, Error>, Failed> {
        let request = match request(server, ask, &self.watcher) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let sent_at = BootTime::now();
        let travel = Duration::from_millis(ask.body.len() as u64 / BYTES_PER_MS);
        let patience = self.patience.connect + self.patience.answer + ask.wait + travel;
        let patience = ask.try_max.map_or(patience, |most| patience.min(most));
        let heard =
            match tokio::time::timeout(patience, exchange(server, request, &self.watcher, sent_at)).await {
                Ok(heard) => heard?,
                Err(_) => return Err(broken(server, "no answer in time", true)),
            };
        if heard.status < 300 {
            return Ok(Ok(heard));
        }
        let error = refused(server, &heard);
        match error.code() {
            Some(Code::Draining | Code::NoSpace) => Err(Failed { error, may_have_happened: false }),
            _ if heard.status >= 500 => Err(Failed { error, may_have_happened: true }),
            _ => Ok(Err(error)),
        }
    }
}

fn broken(server: &Server, why: impl std::fmt::Display, may_have_happened: bool) -> Failed {
    let detail = format!("the server cannot be reached: {why}: server={}", server.endpoint);
    Failed { error: Error::new(Kind::Unavailable, detail), may_have_happened }
}

fn request(server: &Server, ask: &Ask, watcher: &Watcher) -> Result<Request<Upload>, Error> {
    let uri = format!("http://{}{}", server.endpoint.authority(), ask.path);
    let mut request = Request::builder().method(&ask.method).uri(uri);
    for (name, value) in &ask.headers {
        request = request.header(*name, value);
    }
    let request = request.body(Upload::new(ask.body.clone(), watcher));
    request.map_err(|error| Error::new(Kind::Invalid, format!("this cannot be sent: {error}")))
}

async fn exchange(
    server: &Server,
    request: Request<Upload>,
    watcher: &Watcher,
    sent_at: BootTime,
) -> Result<Heard, Failed> {
    let answer = server.pool.request(request).await;
    let answer = answer.map_err(|error| broken(server, causes(&error), !error.is_connect()))?;
    whole(server, answer, watcher, sent_at).await
}

async fn whole(
    server: &Server,
    answer: Response<Incoming>,
    watcher: &Watcher,
    sent_at: BootTime,
) -> Result<Heard, Failed> {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(download(body, watcher), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| broken(server, error, true))?.to_bytes();
    Ok(Heard { status: parts.status.as_u16(), headers: parts.headers, body, sent_at })
}

/// An error with what is behind it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// In the server's words, or by its status if it has none.
fn refused(server: &Server, heard: &Heard) -> Error {
    if let Ok(refusal) = serde_json::from_slice::<Refusal>(&heard.body) {
        return Error::refused(refusal);
    }
    if let Ok(Ready { ready: false, reason }) = serde_json::from_slice(&heard.body) {
        let reason = reason.unwrap_or_default();
        let detail = format!("the server is not ready: reason={reason:?} server={}", server.endpoint);
        return Error::new(Kind::Unavailable, detail);
    }
    let kind = match heard.status {
        401 | 403 => Kind::Denied,
        500.. => Kind::Unavailable,
        _ => Kind::Invalid,
    };
    let what = "an answer that is not lockd's; is it a lockd of this version?";
    Error::new(kind, format!("{what} server={} status={}", server.endpoint, heard.status))
}
