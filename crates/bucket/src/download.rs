//! An object that is read by one request, as fast as its reader takes the bytes.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::{GetOptions, GetRange};
use store::object::{ObjectRange, ObjectStream, ObjectsError};

use crate::bucket::{Inner, stopped};
use crate::exchange::Response;
use crate::outcome::{self, Effect};

/// The response to a GET. Between two reads nothing is read from the connection.
pub(crate) struct Download {
    bucket: Arc<Inner>,
    /// `None` after the end, and after a failure.
    rest: Option<Rest>,
}

struct Rest {
    body: BoxStream<'static, object_store::Result<Bytes>>,
    /// Received and not yet read.
    piece: Bytes,
}

impl Download {
    pub(crate) fn open(bucket: &Arc<Inner>, range: &ObjectRange) -> Result<Download, ObjectsError> {
        let (client, range) = (Arc::clone(bucket), range.clone());
        let opened = bucket.runtime.block_on(async move { client.open_range(&range).await });
        let body = opened.unwrap_or_else(|| Err(stopped()))?;
        Ok(Download { bucket: Arc::clone(bucket), rest: Some(Rest { body, piece: Bytes::new() }) })
    }
}

impl Inner {
    async fn open_range(
        &self,
        range: &ObjectRange,
    ) -> Result<BoxStream<'static, object_store::Result<Bytes>>, ObjectsError> {
        let end = range.offset.saturating_add(range.length as u64);
        let (path, bounded) = (self.path(&range.name), Some(GetRange::Bounded(range.offset..end)));
        let options = GetOptions { range: bounded, ..GetOptions::default() };
        let get = self.library.objects.get_opts(&path, options);
        self.operation(Effect::Idempotent, &range.name, get).await.map(object_store::GetResult::into_stream)
    }
}

impl Rest {
    /// At most `length` bytes; fewer only at the end.
    async fn read(&mut self, length: usize) -> object_store::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            if self.piece.is_empty() {
                match self.body.next().await {
                    Some(piece) => self.piece = piece?,
                    None => break,
                }
            }
            let taken = self.piece.split_to(self.piece.len().min(length - bytes.len()));
            bytes.extend_from_slice(&taken);
        }
        Ok(bytes)
    }
}

impl ObjectStream for Download {
    /// The time limit is that of each read: the reader may be slow.
    fn read(&mut self, length: usize) -> Result<Vec<u8>, ObjectsError> {
        let Some(mut rest) = self.rest.take() else { return Ok(Vec::new()) };
        let timeout = self.bucket.timeout;
        let read = self.bucket.runtime.block_on(async move {
            let read = tokio::time::timeout(timeout, rest.read(length)).await;
            (rest, read)
        });
        let Some((rest, read)) = read else { return Err(stopped()) };
        let detail = match read {
            Ok(Ok(bytes)) => {
                self.rest = (bytes.len() == length).then_some(rest);
                return Ok(bytes);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no bytes within {} ms", timeout.as_millis()),
        };
        Err(outcome::error(self.bucket.url.provider, Effect::Idempotent, &Response::Missing, &detail))
    }
}
