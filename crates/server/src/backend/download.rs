//! Reads documents: finds the version to read, and streams it chunk by chunk.
//!
//! **Invariant.** A stream returns one version from beginning to end. If that version is superseded while it is read,
//! its blob stays until the stream ends.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use engine::Engine;
use engine::document::ReadHold;
use engine::limits::ExceededLimit;
use http_body::Frame;
use kernel::{Credential, Document, Identity, KeyView, Namespace, ResourceName, Shard};
use store::{BlobReader, ErrorKind, StoreError};
use tokio::sync::mpsc;

use crate::backend::byte_budget::{ByteBudget, CountedBody};
use crate::backend::error::BackendError;
use crate::backend::shards::{Backend, ShardView};

/// How much of a document is read at a time.
const CHUNK_BYTES: u64 = 256 << 10;
/// How many chunks are read ahead of the client.
const CHUNKS_AHEAD: usize = 2;
/// Memory of one stream, in bytes: the chunks ahead, the one that is being sent, and the buffer of a connection to a bucket.
pub(crate) const STREAM_BYTES: u64 = CHUNK_BYTES * (CHUNKS_AHEAD as u64 + 2);

/// What allows a client to read a document.
#[derive(Clone)]
pub(crate) enum ReadAccess {
    /// A lease that covers the key, in this namespace.
    Lease {
        /// The identity of the caller.
        identity: Identity,
        credential: Credential,
        namespace: Namespace,
    },
    /// The right to read the last committed version of any key in the namespace.
    Public(Namespace),
}

impl ReadAccess {
    pub(crate) fn shard(&self, backend: &Backend) -> Result<Shard, BackendError> {
        match self {
            ReadAccess::Lease { credential, .. } => backend.shard_of_lease(credential.lease),
            ReadAccess::Public(namespace) => Ok(backend.shard_of(namespace)),
        }
    }

    /// The key's version and document; `None` if the key was never written.
    pub(crate) async fn find(
        &self,
        backend: &Backend,
        shard: Shard,
        key: &ResourceName,
    ) -> Result<Option<KeyView>, BackendError> {
        let (access, key) = (self.clone(), key.clone());
        let query = move |view: &ShardView<'_>| match access {
            ReadAccess::Lease { identity, credential, namespace } => {
                let allowed = view.kernel.may_read(view.now, &identity, credential, &key);
                allowed.map_err(BackendError::Rejected)?;
                match view.kernel.lease_namespace(credential.lease).map_err(BackendError::Rejected)? {
                    own if own == namespace => Ok(view.kernel.key(&namespace, &key)),
                    _ => Err(BackendError::OtherNamespace(namespace)),
                }
            }
            ReadAccess::Public(namespace) => Ok(view.kernel.key(&namespace, &key)),
        };
        backend.query(shard, query).await?
    }
}

/// Why a document is not read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// [`ErrorKind::Gone`] if it was moved or superseded before the first read.
    Store(StoreError),
    /// Too much is being sent.
    OverLimit(ExceededLimit),
    /// Another server owns the shard.
    Backend(BackendError),
}

impl From<BackendError> for ReadError {
    fn from(error: BackendError) -> ReadError {
        ReadError::Backend(error)
    }
}

impl From<StoreError> for ReadError {
    fn from(error: StoreError) -> ReadError {
        ReadError::Store(error)
    }
}

/// Marks a response whose memory is counted by the stream of its document.
#[derive(Clone, Copy)]
pub(crate) struct CountedStream;

/// Reads one version of a document for an identity.
pub(crate) struct DocumentReader {
    engine: Arc<Engine>,
    document: Document,
    /// The range being read, where a store reads all of it by one request.
    blob: Option<Box<dyn BlobReader>>,
    budget: ByteBudget,
    identity: Identity,
}

impl DocumentReader {
    pub(crate) fn new(
        backend: &Backend,
        shard: Shard,
        document: &Document,
        identity: &Identity,
    ) -> Result<DocumentReader, BackendError> {
        let (engine, budget) = (backend.engine(shard)?, backend.responses.clone());
        Ok(DocumentReader { engine, document: *document, blob: None, budget, identity: identity.clone() })
    }

    /// Streams a range. The first chunk is read before this returns, so that the response can still be an error. Its memory
    /// is taken before that, and returned when the body is dropped.
    pub(crate) async fn stream(mut self, mut range: Range<u64>) -> Result<Body, ReadError> {
        let bytes = (range.end - range.start).min(STREAM_BYTES);
        let taken = self.budget.take(&self.identity, bytes).map_err(ReadError::OverLimit)?;
        let hold = self.engine.hold(self.document.location);
        if range.end - range.start > CHUNK_BYTES {
            self.blob = self.engine.open_document(&self.document, range.clone());
        }
        let first = self.read(range.clone()).await?;
        range.start += first.len() as u64;
        let body = if range.is_empty() { Body::from(first) } else { self.stream_rest(first, range, hold) };
        Ok(Body::new(CountedBody::new(body, taken)))
    }

    /// Reads the first chunk of a range. The ranges of successive calls follow each other.
    async fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let (engine, document, mut blob) = (Arc::clone(&self.engine), self.document, self.blob.take());
        let length = usize::try_from((range.end - range.start).min(CHUNK_BYTES)).expect("a chunk is small");
        let read = tokio::task::spawn_blocking(move || {
            let chunk = match &mut blob {
                Some(blob) => blob.read(length),
                None => engine.read_document(&document, range.start, length),
            };
            (chunk, blob)
        });
        let panicked = |_| (Err(StoreError::new(ErrorKind::Io, "the reading thread panicked")), None);
        let (chunk, blob) = read.await.unwrap_or_else(panicked);
        self.blob = blob;
        let chunk = chunk?;
        if chunk.is_empty() && length > 0 {
            return Err(StoreError::new(ErrorKind::Damaged, "the document is shorter than recorded"));
        }
        Ok(chunk)
    }

    fn stream_rest(mut self, first: Vec<u8>, mut range: Range<u64>, hold: Option<ReadHold>) -> Body {
        let (send, receive) = mpsc::channel(CHUNKS_AHEAD);
        tokio::spawn(async move {
            let _until_the_end = hold;
            let mut next = Ok(first);
            loop {
                let failed = next.is_err();
                let chunk = next
                    .map(Bytes::from)
                    .map_err(|error: StoreError| std::io::Error::other(error.to_string()));
                if send.send(chunk).await.is_err() || failed || range.is_empty() {
                    return;
                }
                next = self.read(range.clone()).await;
                range.start += next.as_ref().map_or(0, |chunk| chunk.len() as u64);
            }
        });
        Body::new(ChunkBody(receive))
    }
}

/// A body whose chunks arrive on a channel.
struct ChunkBody(mpsc::Receiver<std::io::Result<Bytes>>);

impl http_body::Body for ChunkBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let chunk = ready!(self.0.poll_recv(context));
        Poll::Ready(chunk.map(|chunk| chunk.map(Frame::data)))
    }
}
