//! The document beside a key, read: whole, in part, or not at all where the reader has it already.
//!
//! A document is streamed part by part, and what is superseded meanwhile is read to its end all the same.

use std::ops::Range;
use std::sync::Arc;

use api::words::{Key, Namespace};
use api::{Code, Refusal, header as wire};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::response::Builder;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::uploads::Hold;
use identity::Right;
use kernel::{Document, KeyView, Location};
use serde::Deserialize;
use store::{ErrorKind, StoreError};
use utoipa::IntoParams;

use crate::backend::shards::App;
use crate::handlers::acquire::not_found;
use crate::handlers::write::missing_key;
use crate::parse::query::{Flag, Query};
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::refusals::{Refused, hex, rejected};

/// How much of a document is read at a time.
const PART: u64 = 256 << 10;
/// How often a read begins anew because its document has moved.
const MOVES_MAX: usize = 5;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reading {
    /// Name of the key.
    #[param(value_type = Key)]
    key: Option<String>,
    /// The namespace, for a read without a lease; `default` if missing.
    #[param(value_type = Option<Namespace>)]
    namespace: Option<String>,
    /// 1: read the last committed version without a lease.
    public: Option<Flag>,
}

/// Ranges and conditions are for GET; by POST it is always all of it.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Reading>,
    method: Method,
    Headers(headers): Headers,
) -> Result<Response, Refused> {
    let key = parse::key(&query.key.ok_or_else(missing_key)?)?;
    let namespace = parse::namespace(query.namespace.as_deref())?;
    let public = Flag::is_set(query.public);
    let held = if public {
        parse::may(&peer, &namespace, Right::PublicRead)?;
        // Not needed; but whoever shows one that is none should learn of it.
        if headers.contains_key(wire::LEASE_ID) {
            parse::lease_header(&app.key, &headers)?;
        }
        None
    } else {
        Some(parse::lease_header(&app.key, &headers)?)
    };
    let shard = match held {
        Some(held) => app.shard_of_lease(held.lease).ok_or_else(not_found)?,
        None => app.shard_of(&namespace),
    };
    for _ in 0..MOVES_MAX {
        let (key, namespace, identity) = (key.clone(), namespace.clone(), peer.identity.clone());
        let view = app.look(shard, move |view| {
            if let Some(held) = held {
                view.kernel.may_read(view.now, &identity, held, &key)?;
                // The lease says where the key is.
                let lease = view.kernel.lease(held.lease, view.now)?;
                return Ok(view.kernel.key(&lease.namespace, &key));
            }
            Ok(view.kernel.key(&namespace, &key))
        });
        let view: Option<KeyView> = view.await?.map_err(|rejection| rejected(&rejection))?;
        let Some((view, document)) = view.and_then(|view| Some((view, view.document?))) else {
            return Ok(nothing(view));
        };
        let wanted = if method == Method::GET { Wanted::of(&headers, &document) } else { Wanted::Whole };
        match wanted.answer(&app, shard, view, document).await {
            Err(error) if error.kind == ErrorKind::Gone => {}
            Err(error) => return Err(unreadable(&error).into()),
            Ok(response) => return Ok(response),
        }
    }
    Err(Refusal::new(Code::Unavailable, "the document moves; come again").into())
}

fn unreadable(error: &StoreError) -> Refusal {
    Refusal::new(Code::Unavailable, format!("the document cannot be read: {error}"))
}

fn nothing(view: Option<KeyView>) -> Response {
    let version = view.map_or(0, |view| view.version.0);
    let response = Response::builder().status(StatusCode::NO_CONTENT).header(wire::KEY_VERSION, version);
    response.body(Body::empty()).expect("its parts are valid")
}

/// What a reader wants of a document.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Whole,
    Part(Range<u64>),
    /// No part of it is there.
    Beyond,
    /// Nothing: the reader has this version.
    Known,
}

impl Wanted {
    fn of(headers: &HeaderMap, document: &Document) -> Wanted {
        let etag = hex(&document.etag.0);
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if text(header::IF_NONE_MATCH).is_some_and(|known| knows(known, &etag)) {
            return Wanted::Known;
        }
        // A part fits only to the version that the reader has the rest of; a weak tag does not tell.
        let fits = text(header::IF_RANGE).is_none_or(|has| has.trim() == format!("\"{etag}\""));
        match text(header::RANGE).filter(|_| fits) {
            Some(range) => part_of(range, document.bytes),
            None => Wanted::Whole,
        }
    }

    async fn answer(
        self,
        app: &Arc<App>,
        shard: usize,
        view: KeyView,
        document: Document,
    ) -> Result<Response, StoreError> {
        let length = document.bytes;
        let head = Response::builder()
            .header(header::ETAG, format!("\"{}\"", hex(&document.etag.0)))
            .header(header::VARY, "accept-encoding")
            .header(wire::KEY_VERSION, view.version.0);
        let (head, part) = match self {
            Wanted::Known => {
                let response = head.status(StatusCode::NOT_MODIFIED).body(Body::empty());
                return Ok(response.expect("its parts are valid"));
            }
            Wanted::Beyond => return Ok(beyond(length)),
            Wanted::Whole => (head, 0..length),
            Wanted::Part(part) => {
                let shown = format!("bytes {}-{}/{length}", part.start, part.end - 1);
                (head.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, shown), part)
            }
        };
        let source = Source { app: Arc::clone(app), shard, location: document.location };
        source.stream(head, part).await
    }
}

/// Is this version among those that the reader has? Weak or strong, it has the same content.
fn knows(known: &str, etag: &str) -> bool {
    let bare = |one: &str| one.trim().trim_start_matches("W/").trim_matches('"') == etag;
    known.trim() == "*" || known.split(',').any(bare)
}

/// `bytes=` and one range. Several, and what is no range at all, may be answered with all of it.
fn part_of(range: &str, length: u64) -> Wanted {
    let Some((from, to)) = range.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::Whole;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (number(from), number(to)) {
        (Some(from), to) if to.is_some() || range.trim().ends_with('-') => {
            let end = to.map_or(length, |to| to.saturating_add(1).min(length));
            if to.is_some_and(|to| to < from) {
                Wanted::Whole
            } else if from >= length {
                Wanted::Beyond
            } else {
                Wanted::Part(from..end)
            }
        }
        (None, Some(0)) if from.trim().is_empty() => Wanted::Beyond,
        (None, Some(last)) if from.trim().is_empty() => Wanted::Part(length.saturating_sub(last)..length),
        _ => Wanted::Whole,
    }
}

fn beyond(length: u64) -> Response {
    let refusal = Refusal::new(Code::InvalidRange, format!("the document is shorter: bytes={length}"));
    let mut response = Refused(refusal).into_response();
    let shown = HeaderValue::from_str(&format!("bytes */{length}")).expect("digits");
    response.headers_mut().insert(header::CONTENT_RANGE, shown);
    response
}

/// Where a document is.
#[derive(Clone)]
struct Source {
    app: Arc<App>,
    shard: usize,
    location: Location,
}

impl Source {
    async fn read(&self, part: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let (engine, location) = (Arc::clone(self.app.engine(self.shard)), self.location);
        let shard = kernel::Shard(u32::try_from(self.shard).expect("shards are few"));
        let length = usize::try_from((part.end - part.start).min(PART)).expect("a part is small");
        let read =
            tokio::task::spawn_blocking(move || engine.read_document(shard, location, part.start, length));
        let read = read.await.unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Io, "the reader failed")))?;
        if read.is_empty() && length > 0 {
            return Err(StoreError::new(ErrorKind::Damaged, "the document is too short"));
        }
        Ok(read)
    }

    /// Headers first, then the parts one after the other.
    async fn stream(self, head: Builder, mut part: Range<u64>) -> Result<Response, StoreError> {
        let hold = self.app.engine(self.shard).hold(self.location);
        let head = head
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT_RANGES, "bytes")
            .header(header::CONTENT_LENGTH, part.end - part.start);
        let first = self.read(part.clone()).await?;
        part.start += first.len() as u64;
        let body = if part.is_empty() { Body::from(first) } else { self.rest(first, part, hold) };
        Ok(head.body(body).expect("its parts are valid"))
    }

    fn rest(self, first: Vec<u8>, mut part: Range<u64>, hold: Option<Hold>) -> Body {
        let (send, receive) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(2);
        tokio::spawn(async move {
            let _until_it_is_read = hold;
            let mut next = Ok(first);
            loop {
                let failed = next.is_err();
                let piece = next
                    .map(Bytes::from)
                    .map_err(|error: StoreError| std::io::Error::other(error.to_string()));
                if send.send(piece).await.is_err() || failed || part.is_empty() {
                    return;
                }
                next = self.read(part.clone()).await;
                part.start += next.as_ref().map_or(0, |read| read.len() as u64);
            }
        });
        Body::new(Receiving(receive))
    }
}

/// All of it, for those who have it in their answer.
pub(crate) async fn read_whole(
    app: &Arc<App>,
    shard: usize,
    document: &Document,
) -> Result<Vec<u8>, Refusal> {
    let source = Source { app: Arc::clone(app), shard, location: document.location };
    let _until_it_is_read = app.engine(shard).hold(document.location);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < document.bytes {
        let next = source.read(bytes.len() as u64..document.bytes).await;
        bytes.extend_from_slice(&next.map_err(|error| unreadable(&error))?);
    }
    Ok(bytes)
}

/// A body from a channel.
struct Receiving(tokio::sync::mpsc::Receiver<Result<Bytes, std::io::Error>>);

impl http_body::Body for Receiving {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        let piece = std::task::ready!(self.0.poll_recv(context));
        std::task::Poll::Ready(piece.map(|piece| piece.map(http_body::Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_meant() {
        for (range, wanted) in [
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=2-5", Wanted::Part(2..6)),
            ("bytes=2-", Wanted::Part(2..10)),
            ("bytes=-3", Wanted::Part(7..10)),
            ("bytes=-30", Wanted::Part(0..10)),
            ("bytes=9-99", Wanted::Part(9..10)),
            ("bytes=10-", Wanted::Beyond),
            ("bytes=10-12", Wanted::Beyond),
            ("bytes=-0", Wanted::Beyond),
            ("bytes=5-2", Wanted::Whole),
            ("bytes=0-1,3-4", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("lines=0-1", Wanted::Whole),
            ("bytes=0-18446744073709551615", Wanted::Part(0..10)),
            ("bytes=0-99999999999999999999", Wanted::Whole),
        ] {
            assert_eq!(part_of(range, 10), wanted, "{range}");
        }
    }

    #[test]
    fn a_version_is_known_by_any_spelling_of_its_tag() {
        for known in ["*", "\"ab\"", "W/\"ab\"", "\"x\", \"ab\"", "ab"] {
            assert!(knows(known, "ab"), "{known}");
        }
        for other in ["", "\"\"", "\"abc\"", "\"a\", \"b\""] {
            assert!(!knows(other, "ab"), "{other}");
        }
    }
}
