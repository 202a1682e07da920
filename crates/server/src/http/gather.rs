//! Calls that concern several shards, when shards are on several servers: one request for each shard, to its owner, and one
//! response from all of theirs.
//!
//! **Invariant.** A part of a request is confined to one shard, and is refused as a whole if that shard is another server's.
//! An act on all namespaces reaches the shards in order, and its response is the first refusal: as on one server, an act that
//! is refused may have been carried out in earlier shards, and is sent again. A namespace is in one shard, so that no two
//! responses count the same thing.
//!
//! **What is absent.** Lists that are paged by shard (`/v1/leases`, `/v1/namespaces`): a page ends where the shards of its
//! server end, and the cursor of the next page leads to the next server.

mod bulk;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use kernel::{Identity, Paused, Shard};
use serde::de::DeserializeOwned;

use self::bulk::BulkParts;
use crate::backend::byte_budget::TakenGuard;
use crate::backend::error::BackendError;
use crate::backend::shards::{Backend, OnlyShard};
use crate::handlers::contention::WaitersQuery;
use crate::parse;
use crate::present;
use crate::present::refusals::{IntoRefusal as _, RefusalResponse, over_limit};

/// The shard that a request of another server is confined to.
pub(crate) const SHARD: HeaderName = HeaderName::from_static("x-lockd-shard");

/// The longest response of all shards together, in bytes.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// Sends a part of a request, with this body, to the owner of the shard.
pub(crate) type SendPart<'a> = &'a (dyn Fn(Shard, Bytes) -> BoxFuture<'a, Response> + Send + Sync);

/// A request that concerns several shards, and how their responses become one.
pub(crate) enum Gather {
    /// The first refusal, or the last response.
    Acts,
    /// A page of the first shard that has rows left.
    Quotas,
    Contention,
    /// One result for each lease.
    Bulk(BulkParts),
}

impl Gather {
    /// How to carry out a request that concerns several shards; `None` for any other, and for a malformed one.
    pub(crate) fn find(backend: &Backend, head: &Parts, body: &Bytes) -> Option<Gather> {
        let path = head.uri.path();
        match head.method {
            Method::POST if BulkParts::CALLS.contains(&path) => {
                BulkParts::parse(backend, path, body).map(Gather::Bulk)
            }
            _ if backend.shard_count() == 1 => None,
            Method::GET if path == api::path::QUOTAS => Some(Gather::Quotas),
            Method::GET if path == api::path::CONTENTION => {
                let query: WaitersQuery = axum::extract::Query::try_from_uri(&head.uri).ok()?.0;
                query.is_of_all_namespaces().then_some(Gather::Contention)
            }
            Method::PUT if path == api::path::QUOTAS => {
                let quota = parse::operator::quota(&parse::body(body).ok()?).ok()?;
                quota.scope.namespace.is_none().then_some(Gather::Acts)
            }
            Method::POST if path == api::path::PAUSE => {
                let pause = parse::operator::pause(&parse::body(body).ok()?).ok()?;
                let is_of_all = matches!(&pause.whom, Paused::Scope(scope) if scope.namespace.is_none());
                is_of_all.then_some(Gather::Acts)
            }
            _ => None,
        }
    }

    /// Sends a part of the request to each shard, and makes one response of theirs.
    pub(crate) async fn run(
        self,
        backend: &Backend,
        identity: &Identity,
        body: &Bytes,
        send: SendPart<'_>,
    ) -> Response {
        let mut memory = ResponseMemory::new(backend, identity);
        let gathered = match self {
            Gather::Acts => first_refusal(backend, body, send).await,
            Gather::Quotas => first_page(backend, body, &mut memory, send).await,
            Gather::Contention => contention(backend, body, &mut memory, send).await,
            Gather::Bulk(parts) => parts.run(body, &mut memory, send).await,
        };
        gathered.unwrap_or_else(|refusal| *refusal)
    }
}

async fn first_refusal(
    backend: &Backend,
    body: &Bytes,
    send: SendPart<'_>,
) -> Result<Response, Box<Response>> {
    let mut last = None;
    for shard in backend.shards() {
        last = Some(successful(send(shard, body.clone()).await)?);
    }
    last.ok_or_else(failed)
}

async fn first_page(
    backend: &Backend,
    body: &Bytes,
    memory: &mut ResponseMemory,
    send: SendPart<'_>,
) -> Result<Response, Box<Response>> {
    let mut last = None;
    for shard in backend.shards() {
        let page: api::responses::Quotas = memory.read(successful(send(shard, body.clone()).await)?).await?;
        if !page.quotas.is_empty() {
            return Ok(axum::Json(page).into_response());
        }
        last = Some(page);
    }
    last.map(|page| axum::Json(page).into_response()).ok_or_else(failed)
}

async fn contention(
    backend: &Backend,
    body: &Bytes,
    memory: &mut ResponseMemory,
    send: SendPart<'_>,
) -> Result<Response, Box<Response>> {
    let mut parts = Vec::new();
    for shard in backend.shards() {
        parts.push(memory.read(successful(send(shard, body.clone()).await)?).await?);
    }
    Ok(axum::Json(present::contention::merged(parts)).into_response())
}

fn successful(response: Response) -> Result<Response, Box<Response>> {
    if response.status().is_success() { Ok(response) } else { Err(Box::new(response)) }
}

/// The response of a shard cannot be read.
#[expect(clippy::unnecessary_box_returns, reason = "an error of these functions is boxed")]
fn failed() -> Box<Response> {
    Box::new(RefusalResponse(BackendError::QueryFailed.into_refusal()).into_response())
}

/// The memory of responses while they are read.
struct ResponseMemory {
    taken: TakenGuard,
    bytes: usize,
}

impl ResponseMemory {
    fn new(backend: &Backend, identity: &Identity) -> ResponseMemory {
        ResponseMemory { taken: backend.responses.nothing(identity), bytes: 0 }
    }

    /// The content of a response.
    async fn read<T: DeserializeOwned>(&mut self, response: Response) -> Result<T, Box<Response>> {
        let mut body = response.into_body();
        let mut content = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| failed())?.into_data() else { continue };
            self.taken
                .grow(data.len() as u64)
                .map_err(|limit| Box::new(RefusalResponse(over_limit(&limit)).into_response()))?;
            self.bytes += data.len();
            if self.bytes > RESPONSE_BYTES_MAX {
                return Err(failed());
            }
            content.extend_from_slice(&data);
        }
        serde_json::from_slice(&content).map_err(|_| failed())
    }
}

/// The head of a part of a request, as this server handles it and as it is forwarded.
pub(crate) fn confined(head: &Parts, shard: Shard, body: &Bytes) -> Parts {
    let mut head = head.clone();
    head.headers.insert(SHARD, HeaderValue::from(shard.0));
    if head.headers.contains_key(axum::http::header::CONTENT_LENGTH) {
        head.headers.insert(axum::http::header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    head.extensions.insert(OnlyShard(shard));
    head
}

/// The shard that the head of a forwarded request names.
pub(crate) fn only_shard(head: &HeaderMap) -> Option<OnlyShard> {
    let number = head.get(SHARD)?.to_str().ok()?.parse().ok()?;
    Some(OnlyShard(Shard(number)))
}

/// A response with this content.
fn json(content: Vec<u8>) -> Response {
    let kind = (axum::http::header::CONTENT_TYPE, "application/json");
    ([kind], Body::from(content)).into_response()
}
