//! Receives a document: validates, compacts and hashes its JSON as it arrives, and streams long ones into a blob.
//!
//! **Invariant.** Nothing is stored of a body that is not JSON, too long, or cut off. An upload has at most two buffers
//! of [`BUFFER_BYTES`] in memory, beside the frame that was received last.
//!
//! A document of up to `inline_max` bytes stays in memory and is committed into the log. A longer one is double
//! buffered: a blocking thread hashes and writes one chunk while the next one is compacted into the other buffer. What the
//! blob's writer has in memory is counted with it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use engine::document::{Pin, Upload};
use engine::limits::ExceededLimit;
use engine::{Decision, Engine};
use http_body::Body;
use http_body_util::BodyExt as _;
use jsonstream::{Compactor, JsonError, JsonErrorKind, Limits};
use kernel::{Command, Etag, Identity, Outcome, RequestKey, Shard, Write};
use store::{ErrorKind, StoreError};
use tokio::task::JoinHandle;

use crate::backend::error::BackendError;
use crate::backend::shards::{Backend, ShardView, SubmitOptions};

/// A chunk is written to an idle writer once it is longer than this.
const CHUNK_MIN: usize = 256 << 10;
/// While the writer is busy, the next chunk grows up to this.
const CHUNK_MAX: usize = 320 << 10;
/// How much of a frame is compacted before the chunk's length is checked again.
const PIECE_MAX: usize = 64 << 10;
/// Fits the longest chunk, and the piece that ends it.
const BUFFER_BYTES: usize = CHUNK_MAX + PIECE_MAX;

/// Memory of an upload that is written to a blob, beside that of the blob's writer: two buffers, the frame received last, and
/// a task.
pub(crate) const UPLOAD_BYTES: usize = 2 * BUFFER_BYTES + (256 << 10);

/// How long the rest of a refused body is read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A document that was received whole.
pub(crate) struct ReceivedDocument {
    pub(crate) content: ReceivedContent,
    /// The hash of the compact JSON.
    pub(crate) etag: Etag,
    /// The length of the compact JSON.
    pub(crate) bytes: u64,
}

/// Where a received document is.
pub(crate) enum ReceivedContent {
    /// In memory, to be committed into the log.
    Inline(Vec<u8>),
    /// In a durable blob, which the pin protects from garbage collection until the commit is decided.
    Blob(Pin),
}

/// Why a document was not received.
#[derive(Debug)]
pub(crate) enum UploadError {
    /// The connection failed before the end of the body.
    Truncated(String),
    /// The body is longer than the server accepts.
    TooLarge {
        /// The limit.
        max_bytes: u64,
    },
    /// The body is not JSON.
    InvalidJson(JsonError),
    /// The blob cannot be written.
    Store(StoreError),
    /// The write would be refused.
    Refused(BackendError),
    /// Too many bodies are being received.
    OverLimit(ExceededLimit),
}

/// The write that a body is received for.
pub(crate) struct PlannedWrite {
    pub(crate) identity: Identity,
    pub(crate) write: Write,
    /// The request's idempotency key. The upload of a retry is received even if its lease has ended.
    pub(crate) request: Option<RequestKey>,
    pub(crate) shard: Shard,
}

impl PlannedWrite {
    /// Refuses a write that would be refused now: before anything of its document is stored.
    async fn check(&self, backend: &Backend) -> Result<(), UploadError> {
        let (identity, write, request) = (self.identity.clone(), self.write.clone(), self.request);
        let query = move |view: &ShardView<'_>| {
            let is_retry = request.is_some_and(|key| view.kernel.has_response(view.now, &identity, key));
            if is_retry { Ok(()) } else { view.kernel.may_write(view.now, &identity, &write) }
        };
        let checked = backend.query(self.shard, query).await.map_err(UploadError::Refused)?;
        checked.map_err(|rejection| UploadError::Refused(BackendError::Rejected(rejection)))
    }
}

/// What the head of a request says about its body.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeclaredBody {
    /// The length of the body, if it is known.
    pub(crate) length: Option<u64>,
    /// The client sends the body only after `100 Continue`.
    pub(crate) expects_continue: bool,
}

/// Receives a document. A body that is refused is read on for up to [`DRAIN_TIMEOUT`] and discarded: a client that is
/// still sending when the connection closes gets a connection error instead of the response. A body that is declared
/// too long is refused at once, and discarded while the response is sent.
pub(crate) async fn receive<B: Body<Data = Bytes, Error: Display> + Send + Unpin + 'static>(
    backend: &Backend,
    planned: &PlannedWrite,
    declared: DeclaredBody,
    mut body: B,
) -> Result<ReceivedDocument, UploadError> {
    let max_bytes = backend.settings.json_max;
    if declared.length.is_some_and(|length| length > max_bytes) {
        discard(declared, body);
        return Err(UploadError::TooLarge { max_bytes });
    }
    let received = receive_chunks(backend, planned, &mut body).await;
    if received.is_err() {
        drain(&mut body).await;
    }
    received
}

/// Discards the body of a request that its head refuses, while the response is sent.
pub(crate) fn discard<B: Body<Data = Bytes, Error: Display> + Send + Unpin + 'static>(
    declared: DeclaredBody,
    mut body: B,
) {
    // To read the body would send `100 Continue`.
    if !declared.expects_continue {
        tokio::spawn(async move { drain(&mut body).await });
    }
}

async fn drain<B: Body<Data = Bytes, Error: Display> + Unpin>(body: &mut B) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
}

/// Submits the commit of a received document. A blob whose commit was not applied is deleted.
pub(crate) async fn commit(
    backend: &Backend,
    shard: Shard,
    command: Command,
    options: SubmitOptions,
    pin: Option<Pin>,
) -> Result<Decision, BackendError> {
    // The view closure owns the pin, so that the blob stays pinned until the commit is decided, even if this request is
    // dropped before.
    let (decision, pin) = backend.submit(shard, command, options, move |_, _, _| pin).await?;
    if let Some(pin) = pin
        && !matches!(decision, Decision::Outcome(Outcome::Applied(..)))
    {
        // If this fails, or the shard is another server's now, garbage collection deletes the blob.
        if let Ok(engine) = backend.engine(shard) {
            let _ = tokio::task::spawn_blocking(move || engine.uploads().discard(&pin)).await;
        }
    }
    Ok(decision)
}

async fn receive_chunks<B: Body<Data = Bytes, Error: Display> + Unpin>(
    backend: &Backend,
    planned: &PlannedWrite,
    body: &mut B,
) -> Result<ReceivedDocument, UploadError> {
    let settings = &backend.settings;
    let engine = backend.engine(planned.shard).map_err(UploadError::Refused)?;
    let take = |bytes: usize| backend.request_bodies.take(&planned.identity, bytes as u64);
    let mut _taken = take(settings.inline_max).map_err(UploadError::OverLimit)?;
    let max_bytes = settings.json_max;
    let invalid = |error: JsonError| match error.kind {
        JsonErrorKind::TooLarge => UploadError::TooLarge { max_bytes },
        _ => UploadError::InvalidJson(error),
    };
    let mut compactor = Compactor::new(Limits { bytes_max: max_bytes });
    let (mut chunk, mut writer) = (DocumentChunk::default(), None::<BlobWriter>);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| UploadError::Truncated(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        for piece in data.chunks(PIECE_MAX) {
            chunk.push(&mut compactor, piece).map_err(invalid)?;
            let chunk_max = match &writer {
                None => settings.inline_max,
                Some(writer) if writer.is_idle() => CHUNK_MIN,
                Some(_) => CHUNK_MAX,
            };
            if chunk.length > chunk_max {
                if writer.is_none() && !planted!(UploadUnchecked) {
                    planned.check(backend).await?;
                    _taken = take(UPLOAD_BYTES.saturating_add(engine.uploads().memory_of_one()))
                        .map_err(UploadError::OverLimit)?;
                }
                let (next, buffer) =
                    BlobWriter::write(&engine, writer.take(), || backend.random(), chunk).await?;
                (writer, chunk) = (Some(next), DocumentChunk::reusing(buffer));
            }
        }
    }
    let bytes = compactor.finish().map_err(invalid)?.compact_bytes;
    let (content, etag) = match writer {
        None => {
            let etag = Etag(*blake3::hash(chunk.bytes()).as_bytes());
            (ReceivedContent::Inline(chunk.into_bytes()), etag)
        }
        Some(writer) => writer.finish(chunk).await?,
    };
    Ok(ReceivedDocument { content, etag, bytes })
}

/// Compact JSON that was received and is not written yet.
#[derive(Default)]
struct DocumentChunk {
    /// Longer than its content: to zero it for every piece would cost a tenth of the whole upload.
    buffer: Vec<u8>,
    length: usize,
}

impl DocumentChunk {
    /// An empty chunk in the buffer of an earlier one.
    fn reusing(mut buffer: Vec<u8>) -> DocumentChunk {
        buffer.resize(BUFFER_BYTES.max(buffer.len()), 0);
        DocumentChunk { buffer, length: 0 }
    }

    fn push(&mut self, compactor: &mut Compactor, piece: &[u8]) -> Result<(), JsonError> {
        let needed = self.length + piece.len();
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        self.length += compactor.push_into(piece, &mut self.buffer[self.length..])?;
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.buffer.truncate(self.length);
        self.buffer
    }
}

/// A blob under construction.
struct PartialBlob {
    upload: Upload,
    hasher: blake3::Hasher,
    /// The buffer of the last chunk, to be reused: fresh memory costs a page fault for every page.
    buffer: Vec<u8>,
}

/// Hashes and writes one chunk on a blocking thread. Dropped, it leaves no blob behind.
struct BlobWriter(JoinHandle<Result<PartialBlob, StoreError>>);

impl BlobWriter {
    fn is_idle(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until the previous chunk is written, then starts to write this one. Returns the previous chunk's buffer.
    async fn write(
        engine: &Arc<Engine>,
        previous: Option<BlobWriter>,
        random: impl FnOnce() -> u64,
        chunk: DocumentChunk,
    ) -> Result<(BlobWriter, Vec<u8>), UploadError> {
        let mut blob = match previous {
            Some(writer) => Some(joined(writer.0).await?),
            None => None,
        };
        let buffer = blob.as_mut().map(|blob| std::mem::take(&mut blob.buffer)).unwrap_or_default();
        let (engine, random) = (Arc::clone(engine), if blob.is_none() { random() } else { 0 });
        let writer = BlobWriter(tokio::task::spawn_blocking(move || {
            let (mut upload, mut hasher) = match blob {
                Some(blob) => (blob.upload, blob.hasher),
                None => (engine.uploads().begin(random)?, blake3::Hasher::new()),
            };
            hasher.update(chunk.bytes());
            upload.write(chunk.bytes())?;
            Ok(PartialBlob { upload, hasher, buffer: chunk.buffer })
        }));
        Ok((writer, buffer))
    }

    /// Writes the last chunk, and makes the blob durable.
    async fn finish(self, last: DocumentChunk) -> Result<(ReceivedContent, Etag), UploadError> {
        let PartialBlob { mut upload, mut hasher, .. } = joined(self.0).await?;
        let finish = tokio::task::spawn_blocking(move || {
            hasher.update(last.bytes());
            upload.write(last.bytes())?;
            Ok((ReceivedContent::Blob(upload.finish()?), Etag(*hasher.finalize().as_bytes())))
        });
        joined(finish).await
    }
}

async fn joined<T>(task: JoinHandle<Result<T, StoreError>>) -> Result<T, UploadError> {
    let panicked = |_| Err(StoreError::new(ErrorKind::Io, "the writing thread panicked"));
    task.await.unwrap_or_else(panicked).map_err(UploadError::Store)
}
