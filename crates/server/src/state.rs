//! The document beside a key: read it, commit it, remove it.
//!
//! A body streams through the compactor. What stays short rides in the log; what grows longer goes into a blob as it
//! comes, and is committed by reference. Nothing is stored of a body that is not JSON, too long, or cut off.

use std::sync::Arc;

use api::words::{Key, Namespace};
use api::{Code, Refusal, header as wire, tell};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use axum::{Extension, Json};
use engine::decider::Said;
use engine::documents::Place;
use engine::uploads::{Pin, Upload};
use http_body_util::BodyExt;
use jsonstream::{Compactor, JsonErrorKind, Limits};
use kernel::{
    Action, Answer, Command, Commit, Document, Etag, Held, KeyView, Location, Outcome, Removal, ResourceName,
    Write,
};
use serde::Deserialize;
use store::{ErrorKind, StoreError};
use utoipa::IntoParams;

use crate::acquire::{not_found, refusal};
use crate::app::{App, Ask};
use identity::Right;

use crate::peer::Peer;
use crate::query::{Flag, Query};
use crate::read::{self, Conditions};
use crate::refuse::{Refused, hex, rejected};

/// How much of a document is read at a time.
const PART: usize = 256 << 10;
/// How often a read begins anew because its document has moved.
const MOVES_MAX: usize = 5;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reading {
    /// The key.
    #[param(value_type = Key)]
    key: Option<String>,
    /// Where, if it is read without a lease; `default` where it is missing.
    #[param(value_type = Option<Namespace>)]
    namespace: Option<String>,
    /// 1: the last committed version, without a lease.
    public: Option<Flag>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Writing {
    /// The key.
    #[param(value_type = Key)]
    key: Option<String>,
    /// Taken, and not needed: the lease says where.
    #[expect(dead_code, reason = "every call that takes a query takes it")]
    #[param(value_type = Option<Namespace>)]
    namespace: Option<String>,
    /// 1: give the lease back in the same record.
    release: Option<Flag>,
}

fn missing_key() -> Refusal {
    Refusal::new(Code::MissingKey, "key= is missing")
}

pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Reading>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let key = read::key(&query.key.ok_or_else(missing_key)?)?;
    let namespace = read::namespace(query.namespace.as_deref())?;
    let public = Flag::is_set(query.public);
    let held = if public {
        read::may(&peer, &namespace, Right::PublicRead)?;
        // Not needed; but whoever shows one that is none should learn of it.
        if headers.contains_key(wire::LEASE_ID) {
            read::lease_header(&app.key, &headers)?;
        }
        None
    } else {
        Some(read::lease_header(&app.key, &headers)?)
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
        match first_part(&app, shard, &document).await {
            Err(error) if error.kind == ErrorKind::Gone => {}
            Err(error) => return Err(unreadable(&error).into()),
            Ok(first) => return Ok(stream(&app, shard, view, document, first)),
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

async fn part(app: &Arc<App>, shard: usize, location: Location, offset: u64) -> Result<Vec<u8>, StoreError> {
    let engine = Arc::clone(app.engine(shard));
    let number = kernel::Shard(u32::try_from(shard).expect("shards are few"));
    let read = tokio::task::spawn_blocking(move || engine.read_document(number, location, offset, PART));
    read.await.unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Io, "the reader failed")))
}

async fn first_part(app: &Arc<App>, shard: usize, document: &Document) -> Result<Vec<u8>, StoreError> {
    part(app, shard, document.location, 0).await
}

/// All of it, for those who have it in their answer.
pub(crate) async fn read_whole(
    app: &Arc<App>,
    shard: usize,
    document: &Document,
) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < document.bytes {
        let next = part(app, shard, document.location, bytes.len() as u64).await;
        let next = next.map_err(|error| unreadable(&error))?;
        if next.is_empty() {
            return Err(Refusal::new(Code::Unavailable, "the document cannot be read: it is too short"));
        }
        bytes.extend_from_slice(&next);
    }
    Ok(bytes)
}

/// Headers first, then the parts one after the other.
fn stream(app: &Arc<App>, shard: usize, view: KeyView, document: Document, first: Vec<u8>) -> Response {
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ETAG, format!("\"{}\"", hex(&document.etag.0)))
        .header(header::CONTENT_LENGTH, document.bytes)
        .header(wire::KEY_VERSION, view.version.0);
    if first.len() as u64 >= document.bytes {
        return response.body(Body::from(first)).expect("its parts are valid");
    }
    let (send, receive) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(2);
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let mut offset = first.len() as u64;
        let mut next = Ok(first);
        loop {
            let failed = next.is_err();
            let piece =
                next.map(Bytes::from).map_err(|error: StoreError| std::io::Error::other(error.to_string()));
            if send.send(piece).await.is_err() || failed || offset >= document.bytes {
                return;
            }
            next = part(&app, shard, document.location, offset).await;
            offset += next.as_ref().map_or(0, |part| part.len() as u64);
        }
    });
    response.body(Body::new(Receiving(receive))).expect("its parts are valid")
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

/// A document that has come in whole.
enum Received {
    Short(Vec<u8>),
    Long(Pin),
}

/// What came in, its hash and its length.
struct Taken {
    received: Received,
    etag: Etag,
    bytes: u64,
}

pub(crate) async fn update(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Writing>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<tell::Committed>, Refused> {
    let key = read::key(&query.key.ok_or_else(missing_key)?)?;
    let held = read::lease_header(&app.key, &headers)?;
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let conditions = read::conditions(&headers)?;
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > app.settings.json_max) {
        return Err(too_large(&app).into());
    }
    let taken = take(&app, shard, body).await?;
    let release = Flag::is_set(query.release);
    let sent: [&[u8]; 3] = [key.as_str().as_bytes(), &taken.etag.0, &[u8::from(release)]];
    let request = read::request(&headers, api::path::UPDATE_STATE, &sent)?;
    let write = write(held, key, &conditions, release);
    let (location, document, pin) = match taken.received {
        Received::Short(bytes) => (Location(0), Some(bytes), None),
        Received::Long(pin) => (Place::Blob(pin.blob()).location(), None, Some(pin)),
    };
    let (etag, bytes) = (taken.etag, taken.bytes);
    let action = Action::Commit(Commit { write, etag, bytes, location });
    let command = Command { identity: Some(peer.identity), request, action };
    let ask = Ask { correlation: read::correlation(&headers)?, document, wait: None };
    // The pin goes with the question, and is dropped when its answer is known.
    let (said, pin) = app.ask(shard, command, ask, move |_, _, _| pin).await?;
    drop(pin);
    match said {
        Said::Outcome(
            Outcome::Applied(Answer::Committed(version), _) | Outcome::Unchanged(Answer::Committed(version)),
        ) => Ok(Json(tell::Committed { new_version: version.0, new_state_etag: hex(&etag.0), bytes })),
        said => Err(refusal(&said, None).into()),
    }
}

fn too_large(app: &App) -> Refusal {
    let detail = format!("a document is at most the limit: max_bytes={}", app.settings.json_max);
    Refusal::new(Code::DocumentTooLarge, detail)
}

/// Takes a body in: validated, compact, hashed; and in a blob once it is too long for the log.
async fn take(app: &Arc<App>, shard: usize, mut body: Body) -> Result<Taken, Refusal> {
    let mut compactor = Compactor::new(Limits { bytes_max: app.settings.json_max });
    let (mut pending, mut hasher, mut upload) = (Vec::new(), blake3::Hasher::new(), None);
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Refusal::new(Code::InvalidBody, format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        compactor.push(&data, &mut pending).map_err(|error| not_json(app, error))?;
        if pending.len() > app.settings.inline_max {
            hasher.update(&pending);
            upload = Some(store(app, shard, upload.take(), std::mem::take(&mut pending)).await?);
        }
    }
    let summary = compactor.finish().map_err(|error| not_json(app, error))?;
    hasher.update(&pending);
    let received = match upload {
        None => Received::Short(pending),
        Some(upload) => {
            let upload = store(app, shard, Some(upload), pending).await?;
            Received::Long(blocking(move || upload.finish()).await?)
        }
    };
    Ok(Taken { received, etag: Etag(*hasher.finalize().as_bytes()), bytes: summary.compact_bytes })
}

fn not_json(app: &App, error: jsonstream::JsonError) -> Refusal {
    match error.kind {
        JsonErrorKind::TooLarge => too_large(app),
        _ => Refusal::new(Code::InvalidJson, error.to_string()),
    }
}

async fn store(
    app: &Arc<App>,
    shard: usize,
    upload: Option<Upload>,
    bytes: Vec<u8>,
) -> Result<Upload, Refusal> {
    let engine = Arc::clone(app.engine(shard));
    blocking(move || {
        let mut upload = match upload {
            Some(upload) => upload,
            None => engine.uploads().begin()?,
        };
        upload.write(&bytes)?;
        Ok(upload)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    match done.unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Io, "the writer failed"))) {
        Ok(value) => Ok(value),
        Err(error) if error.kind == ErrorKind::NoSpace => {
            Err(Refusal::new(Code::NoSpace, format!("the store has no room: {error}")))
        }
        Err(error) => Err(Refusal::new(Code::Unavailable, format!("the document cannot be stored: {error}"))),
    }
}

fn write(held: Held, key: ResourceName, conditions: &Conditions, release: bool) -> Write {
    let Conditions { token, if_version, if_etag } = *conditions;
    Write { held, key, token, if_version, if_etag, release }
}

pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<Writing>,
    headers: HeaderMap,
) -> Result<Json<tell::Removed>, Refused> {
    let key = read::key(&query.key.ok_or_else(missing_key)?)?;
    let held = read::lease_header(&app.key, &headers)?;
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let release = Flag::is_set(query.release);
    let sent: [&[u8]; 2] = [key.as_str().as_bytes(), &[u8::from(release)]];
    let request = read::request(&headers, api::path::REMOVE_STATE, &sent)?;
    let write = write(held, key, &read::conditions(&headers)?, release);
    let command =
        Command { identity: Some(peer.identity), request, action: Action::Remove(Removal { write }) };
    let ask = Ask { correlation: read::correlation(&headers)?, ..Ask::default() };
    let (said, ()) = app.ask(shard, command, ask, |_, _, _| ()).await?;
    match said {
        Said::Outcome(
            Outcome::Applied(Answer::Removed { removed, version }, _)
            | Outcome::Unchanged(Answer::Removed { removed, version }),
        ) => Ok(Json(tell::Removed { removed, new_version: version.0 })),
        said => Err(refusal(&said, None).into()),
    }
}
