//! Streams of events of all namespaces, when shards are on several servers: one part from each server, merged.
//!
//! **Invariant.** Each shard is in exactly one part, and each part is the stream of a server that owns all shards of the part
//! for as long as it lasts. When a part ends, because a shard has moved or a server is gone, the whole stream ends: its client
//! comes back and begins with `reset`, as after any event that is no longer in a buffer. So nothing is missed silently.
//!
//! **What would break it.** To resume behind `Last-Event-ID`: one server has that event, the others cannot know what came
//! before it. To go on without a part: its shards would be silent.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use kernel::Shard;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backend::cluster::registry::ShardOwner;
use crate::backend::shards::{Backend, OnlyShards};
use crate::handlers::events::last_event_id;
use crate::http::forward::{Forwarder, moved_shard};
use crate::peer::Peer;
use crate::present::events::RESET;
use crate::present::refusals::RefusalResponse;

/// The shards of a part, in a forwarded request: their numbers, separated by commas.
pub(crate) const SHARDS: HeaderName = HeaderName::from_static("x-lockd-shards");
/// The header of a client that resumes a stream.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The longest event, in bytes: a part with a longer one ends.
const EVENT_BYTES_MAX: usize = 1 << 20;
/// How many pieces of parts wait for the client.
const QUEUE_MAX: usize = 16;

/// Handles a request here, as a part of another.
pub(crate) type Local<'a> = &'a (dyn Fn(Parts) -> BoxFuture<'a, Response> + Send + Sync);

/// A part of a stream: the shards of one server, which is this one if it is not named.
struct StreamPart {
    owner: Option<ShardOwner>,
    shards: Vec<Shard>,
}

/// Whether the request is for events of all namespaces, and another server has some.
pub(crate) fn is_divided(backend: &Backend, head: &Parts) -> bool {
    let names_one =
        head.uri.query().is_some_and(|query| query.split('&').any(|part| part.starts_with("namespace=")));
    head.method == Method::GET
        && head.uri.path() == api::path::EVENTS
        && !names_one
        && backend.check_owned(None).is_err()
}

/// The shards that the head of a forwarded request names.
pub(crate) fn only_shards(head: &HeaderMap) -> Option<OnlyShards> {
    let numbers = head.get(SHARDS)?.to_str().ok()?.split(',');
    let shards: Option<Arc<[Shard]>> = numbers.map(|number| number.parse().ok().map(Shard)).collect();
    shards.map(OnlyShards)
}

/// Opens all parts, and merges them. While shards move, it waits for their owners.
pub(crate) async fn open(
    backend: &Backend,
    forwarder: &Forwarder,
    peer: &Peer,
    head: &Parts,
    local: Local<'_>,
) -> Response {
    let resumes = match last_event_id(&head.headers) {
        Ok(id) => id.is_some(),
        Err(refusal) => return RefusalResponse(refusal).into_response(),
    };
    let deadline = forwarder.deadline();
    loop {
        let missing = match divide(backend, forwarder) {
            Ok(parts) => match open_parts(forwarder, peer, head, local, &parts).await {
                Ok(Some(bodies)) => return merged(bodies, resumes),
                Ok(None) => parts[0].shards[0],
                Err(refused) => return *refused,
            },
            Err(shard) => shard,
        };
        if Instant::now() > deadline {
            return forwarder.refuse(missing);
        }
        forwarder.pause(missing).await;
    }
}

/// The parts, by the owners of all shards. An error is a shard without a known owner.
fn divide(backend: &Backend, forwarder: &Forwarder) -> Result<Vec<StreamPart>, Shard> {
    let mut parts = BTreeMap::new();
    for shard in backend.shards() {
        let owner = if backend.owns(shard) { None } else { Some(forwarder.owner(shard).ok_or(shard)?) };
        let server = owner.as_ref().map(|owner| owner.server);
        let part = parts.entry(server).or_insert_with(|| StreamPart { owner, shards: Vec::new() });
        part.shards.push(shard);
    }
    Ok(parts.into_values().collect())
}

/// The bodies of all parts; `None` if a shard has moved meanwhile. An error is a refusal for the client.
async fn open_parts(
    forwarder: &Forwarder,
    peer: &Peer,
    head: &Parts,
    local: Local<'_>,
    parts: &[StreamPart],
) -> Result<Option<Vec<Body>>, Box<Response>> {
    let mut bodies = Vec::new();
    for part in parts {
        let head = confined(head, &part.shards);
        let response = match &part.owner {
            None => Some(local(head).await).filter(|response| moved_shard(response).is_none()),
            Some(owner) => forwarder.send_once(peer, part.shards[0], owner, &head).await,
        };
        let Some(response) = response else { return Ok(None) };
        if !response.status().is_success() {
            return Err(Box::new(response));
        }
        bodies.push(response.into_body());
    }
    Ok(Some(bodies))
}

/// The head of the request for a part.
fn confined(head: &Parts, shards: &[Shard]) -> Parts {
    let mut head = head.clone();
    let numbers: Vec<String> = shards.iter().map(|shard| shard.0.to_string()).collect();
    head.headers.insert(SHARDS, HeaderValue::try_from(numbers.join(",")).expect("digits and commas"));
    head.headers.remove(LAST_EVENT_ID);
    head.extensions.insert(OnlyShards(shards.into()));
    head
}

/// One stream of all parts, event by event.
fn merged(bodies: Vec<Body>, resumes: bool) -> Response {
    let (send, receive) = mpsc::channel(QUEUE_MAX);
    tokio::spawn(async move {
        if resumes && send.send(Bytes::from_static(RESET.as_bytes())).await.is_err() {
            return;
        }
        let mut parts = JoinSet::new();
        for body in bodies {
            parts.spawn(relay(body, send.clone()));
        }
        // With the first part that ends all do, and so does the stream.
        tokio::select! {
            _ = parts.join_next() => {}
            () = send.closed() => {}
        }
    });
    let chunks = futures_util::stream::unfold(receive, async |mut receive| {
        let chunk = receive.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), receive))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(chunks)).into_response()
}

/// Passes whole events on.
async fn relay(mut body: Body, send: mpsc::Sender<Bytes>) {
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        text.extend_from_slice(&data);
        if let Some(whole) = take_whole_events(&mut text)
            && send.send(whole).await.is_err()
        {
            return;
        }
        if text.len() > EVENT_BYTES_MAX {
            return;
        }
    }
}

/// Takes everything up to the last empty line, which ends an event.
fn take_whole_events(text: &mut Vec<u8>) -> Option<Bytes> {
    let end = text.windows(2).rposition(|two| two == b"\n\n")? + 2;
    Some(text.drain(..end).collect::<Vec<u8>>().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_passed_on_whole() {
        let mut text = b"id: 1.0\ndata: {}\n\nid: 2.0\nda".to_vec();
        assert_eq!(take_whole_events(&mut text).as_deref(), Some(b"id: 1.0\ndata: {}\n\n".as_slice()));
        assert_eq!(take_whole_events(&mut text), None);
        text.extend_from_slice(b"ta: {}\n\n:\n\n");
        assert_eq!(take_whole_events(&mut text).as_deref(), Some(b"id: 2.0\ndata: {}\n\n:\n\n".as_slice()));
        assert!(text.is_empty());
    }

    #[test]
    fn the_shards_of_a_part_are_a_list_of_numbers() {
        let (head, ()) = axum::http::Request::get("/v1/events").body(()).expect("valid").into_parts();
        let shards = [Shard(0), Shard(12)];
        let part = confined(&head, &shards);
        assert_eq!(only_shards(&part.headers), Some(OnlyShards(shards.into())));
        assert_eq!(only_shards(&head.headers), None);
        let mut malformed = HeaderMap::new();
        malformed.insert(SHARDS, HeaderValue::from_static("1,x"));
        assert_eq!(only_shards(&malformed), None);
    }

    /// Parts of several servers, one of which ends: the client would not have noticed that its shards are silent.
    #[tokio::test]
    async fn a_stream_ends_with_the_first_of_its_parts() {
        let (goes_on, receive) = mpsc::channel(1);
        let open = futures_util::stream::unfold(receive, async |mut receive| {
            let chunk: Bytes = receive.recv().await?;
            Some((Ok::<_, std::convert::Infallible>(chunk), receive))
        });
        goes_on.send(Bytes::from_static(b"data: one\n\n")).await.expect("open");
        let response = merged(vec![Body::from_stream(open), Body::from("data: two\n\ndata: cut")], true);
        let text = response.into_body().collect().await.expect("it ends").to_bytes();
        let text = String::from_utf8_lossy(&text);
        assert!(text.starts_with(RESET), "{text}");
        assert!(text.contains("data: two\n\n") && !text.contains("cut"), "{text}");
        drop(goes_on);
    }
}
