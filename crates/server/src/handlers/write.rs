//! The document beside a key: commit it, remove it.
//!
//! A body streams through the compactor. What stays short rides in the log; what grows longer goes into a blob as it
//! comes, and is committed by reference. Nothing is stored of a body that is not JSON, too long, or cut off.

use std::sync::Arc;
use std::time::Duration;

use api::words::{Key, Namespace};
use api::{Code, Refusal, tell};
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::{Extension, Json};
use engine::decider::Said;
use engine::documents::Place;
use engine::uploads::{Pin, Upload};
use http_body_util::BodyExt;
use jsonstream::{Compactor, JsonErrorKind, Limits};
use kernel::{Action, Answer, Command, Commit, Etag, Held, Location, Outcome, Removal, ResourceName, Write};
use serde::Deserialize;
use store::{ErrorKind, StoreError};
use utoipa::IntoParams;

use crate::backend::shards::{App, Ask};
use crate::handlers::acquire::{not_found, refusal};

use crate::parse::query::{Flag, Query};
use crate::parse::{self, Conditions, Headers};
use crate::peer::Peer;
use crate::present::refusals::{Refused, hex};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Writing {
    /// Name of the key.
    #[param(value_type = Key)]
    key: Option<String>,
    /// Accepted and ignored: the lease determines the namespace.
    #[expect(dead_code, reason = "every call that takes a query takes it")]
    #[param(value_type = Option<Namespace>)]
    namespace: Option<String>,
    /// 1: release the lease in the same atomic step.
    release: Option<Flag>,
}

pub(crate) fn missing_key() -> Refusal {
    Refusal::new(Code::MissingKey, "key= is missing")
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
    Headers(headers): Headers,
    mut body: Body,
) -> Result<Json<tell::Committed>, Refused> {
    let key = parse::key(&query.key.ok_or_else(missing_key)?)?;
    let held = parse::lease_header(&app.key, &headers)?;
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let conditions = parse::conditions(&headers)?;
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > app.settings.json_max) {
        linger(&mut body).await;
        return Err(too_large(&app).into());
    }
    let taken = match take(&app, shard, &mut body).await {
        Ok(taken) => taken,
        Err(refusal) => {
            linger(&mut body).await;
            return Err(refusal.into());
        }
    };
    let release = Flag::is_set(query.release);
    let sent: [&[u8]; 3] = [key.as_str().as_bytes(), &taken.etag.0, &[u8::from(release)]];
    let request = parse::request(&headers, api::path::UPDATE_STATE, &sent)?;
    let write = write(held, key, &conditions, release);
    let (location, document, pin) = match taken.received {
        Received::Short(bytes) => (Location(0), Some(bytes), None),
        Received::Long(pin) => (Place::Blob(pin.blob()).location(), None, Some(pin)),
    };
    let (etag, bytes) = (taken.etag, taken.bytes);
    let action = Action::Commit(Commit { write, etag, bytes, location });
    let command = Command { identity: Some(peer.identity), request, action };
    let ask = Ask { correlation: parse::correlation(&headers)?, document, wait: None };
    // The pin goes with the question, and is dropped when its answer is known.
    let (said, pin) = app.ask(shard, command, ask, move |_, _, _| pin).await?;
    if let Some(pin) = pin
        && !matches!(said, Said::Outcome(Outcome::Applied(..)))
    {
        let engine = Arc::clone(app.engine(shard));
        // What stays, a sweep finds.
        let _ = tokio::task::spawn_blocking(move || engine.uploads().discard(&pin)).await;
    }
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

/// At least so much of a long document is written at a time.
const PIECE_MIN: usize = 256 << 10;
/// While a piece is written the next grows up to this.
const PIECE_MAX: usize = 320 << 10;
/// So much of what was read is taken in between two looks at how much there is.
const STEP: usize = 64 << 10;
/// Two of these are what an upload has in memory, beside what was read last.
const ROOM: usize = PIECE_MAX + STEP;

/// What has come in and is not written yet.
#[derive(Default)]
struct Pending {
    /// Longer than what is in it: to clear it for every read would cost a tenth of the whole.
    room: Vec<u8>,
    filled: usize,
}

impl Pending {
    /// As much room as there can be need of; in that of an earlier piece, if there is one.
    fn reusing(mut room: Vec<u8>) -> Pending {
        room.resize(ROOM.max(room.len()), 0);
        Pending { room, filled: 0 }
    }

    fn push(&mut self, compactor: &mut Compactor, data: &[u8]) -> Result<(), jsonstream::JsonError> {
        let needed = self.filled + data.len();
        if self.room.len() < needed {
            self.room.resize(needed, 0);
        }
        self.filled += compactor.push_into(data, &mut self.room[self.filled..])?;
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        &self.room[..self.filled]
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.room.truncate(self.filled);
        self.room
    }
}

/// Takes a body in: validated, compact, hashed; and in a blob once it is too long for the log.
async fn take(app: &Arc<App>, shard: usize, body: &mut Body) -> Result<Taken, Refusal> {
    let mut compactor = Compactor::new(Limits { bytes_max: app.settings.json_max });
    let (mut pending, mut writer) = (Pending::default(), None::<Writer>);
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Refusal::new(Code::InvalidBody, format!("the body broke off: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        for step in data.chunks(STEP) {
            pending.push(&mut compactor, step).map_err(|error| not_json(app, error))?;
            let most = match &writer {
                None => app.settings.inline_max,
                Some(writer) if writer.is_idle() => PIECE_MIN,
                Some(_) => PIECE_MAX,
            };
            if pending.filled > most {
                let (next, room) = Writer::write(app, shard, writer.take(), pending).await?;
                (writer, pending) = (Some(next), Pending::reusing(room));
            }
        }
    }
    let bytes = compactor.finish().map_err(|error| not_json(app, error))?.compact_bytes;
    let (received, etag) = match writer {
        None => {
            let etag = Etag(*blake3::hash(pending.bytes()).as_bytes());
            (Received::Short(pending.into_bytes()), etag)
        }
        Some(writer) => writer.finish(pending).await?,
    };
    Ok(Taken { received, etag, bytes })
}

/// For so long a body is taken in that is refused already.
const LINGER: Duration = Duration::from_secs(1);

/// Takes in the rest of a body and keeps none of it, for a moment. A client that is still sending when the connection is closed
/// finds it broken, and does not get to the answer.
async fn linger(body: &mut Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(LINGER, rest).await;
}

/// A document that is on its way into a blob.
struct Written {
    upload: Upload,
    hasher: blake3::Hasher,
    /// Of the last piece, to be used again: fresh memory costs a fault for every page.
    room: Vec<u8>,
}

/// Writes and hashes a piece of a document, beside those who take in the next. Dropped, it leaves nothing behind.
struct Writer(tokio::task::JoinHandle<Result<Written, StoreError>>);

impl Writer {
    fn is_idle(&self) -> bool {
        self.0.is_finished()
    }

    /// Begins with the next piece when the one before is written. Gives back room for one more.
    async fn write(
        app: &Arc<App>,
        shard: usize,
        writer: Option<Writer>,
        piece: Pending,
    ) -> Result<(Writer, Vec<u8>), Refusal> {
        let mut before = match writer {
            Some(writer) => Some(done(writer.0).await?),
            None => None,
        };
        let room = before.as_mut().map(|before| std::mem::take(&mut before.room)).unwrap_or_default();
        let engine = Arc::clone(app.engine(shard));
        let writer = Writer(tokio::task::spawn_blocking(move || {
            let (mut upload, mut hasher) = match before {
                Some(before) => (before.upload, before.hasher),
                None => (engine.uploads().begin()?, blake3::Hasher::new()),
            };
            hasher.update(piece.bytes());
            upload.write(piece.bytes())?;
            Ok(Written { upload, hasher, room: piece.room })
        }));
        Ok((writer, room))
    }

    /// The last piece; then all of it is durable.
    async fn finish(self, last: Pending) -> Result<(Received, Etag), Refusal> {
        let Written { mut upload, mut hasher, .. } = done(self.0).await?;
        let finish = tokio::task::spawn_blocking(move || {
            hasher.update(last.bytes());
            upload.write(last.bytes())?;
            Ok((Received::Long(upload.finish()?), Etag(*hasher.finalize().as_bytes())))
        });
        done(finish).await
    }
}

fn not_json(app: &App, error: jsonstream::JsonError) -> Refusal {
    match error.kind {
        JsonErrorKind::TooLarge => too_large(app),
        _ => Refusal::new(Code::InvalidJson, error.to_string()),
    }
}

async fn done<T>(work: tokio::task::JoinHandle<Result<T, StoreError>>) -> Result<T, Refusal> {
    match work.await.unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Io, "the writer failed"))) {
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
    Headers(headers): Headers,
) -> Result<Json<tell::Removed>, Refused> {
    let key = parse::key(&query.key.ok_or_else(missing_key)?)?;
    let held = parse::lease_header(&app.key, &headers)?;
    let shard = app.shard_of_lease(held.lease).ok_or_else(not_found)?;
    let release = Flag::is_set(query.release);
    let sent: [&[u8]; 2] = [key.as_str().as_bytes(), &[u8::from(release)]];
    let request = parse::request(&headers, api::path::REMOVE_STATE, &sent)?;
    let write = write(held, key, &parse::conditions(&headers)?, release);
    let command =
        Command { identity: Some(peer.identity), request, action: Action::Remove(Removal { write }) };
    let ask = Ask { correlation: parse::correlation(&headers)?, ..Ask::default() };
    let (said, ()) = app.ask(shard, command, ask, |_, _, _| ()).await?;
    match said {
        Said::Outcome(
            Outcome::Applied(Answer::Removed { removed, version }, _)
            | Outcome::Unchanged(Answer::Removed { removed, version }),
        ) => Ok(Json(tell::Removed { removed, new_version: version.0 })),
        said => Err(refusal(&said, None).into()),
    }
}
