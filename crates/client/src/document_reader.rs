//! A document that is being read: in chunks, or collected.
//!
//! **Invariant.** The chunks are those of one version. If the connection breaks, the rest is read with `Range` and `If-Range`:
//! a server that has another version by then sends it whole, and the read fails.

use api::header;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body as _, Bytes, Incoming};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::call::ApiRequest;
use crate::client::Client;
use crate::documents::DocumentState;
use crate::error::{Error, Kind};
use crate::progress::ProgressSink;
use crate::request::malformed_response;

/// The longest document that [`DocumentReader::collect`] accepts, in bytes.
const COLLECT_BYTES_MAX: u64 = 1 << 30;
/// The status of a response with a part of a document.
const PARTIAL: u16 = 206;

/// A document that is being read.
pub struct DocumentReader {
    /// The key's version.
    pub version: u64,
    /// The document's hash, `""` if there is none.
    pub etag: String,
    /// The document's length in bytes; `None` if there is no document.
    pub bytes: Option<u64>,
    client: Client,
    request: ApiRequest,
    body: Option<Incoming>,
    /// How many bytes were read.
    offset: u64,
    /// How many connections in a row broke without a chunk.
    breaks: usize,
    sink: ProgressSink,
}

impl DocumentReader {
    pub(crate) async fn open(client: &Client, request: ApiRequest) -> Result<DocumentReader, Error> {
        let response = client.servers.open(&request).await?;
        let text = |name: &str| header_text(&response, name);
        let version = text(header::KEY_VERSION).and_then(|text| text.parse().ok());
        let version = version.ok_or_else(|| invalid("no version"))?;
        let etag = text("etag").unwrap_or_default().trim_matches('"').to_string();
        let bytes = match response.status().as_u16() {
            204 => None,
            _ => Some(response.body().size_hint().exact().ok_or_else(|| invalid("no length"))?),
        };
        let sink = client.servers.progress(bytes.unwrap_or_default());
        let (client, body) = (client.clone(), Some(response.into_body()));
        Ok(DocumentReader { version, etag, bytes, client, request, body, offset: 0, breaks: 0, sink })
    }

    /// The next chunk of the JSON; `None` at its end, and if there is no document. A connection that breaks is opened again.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(bytes) = self.bytes else { return Ok(None) };
        while self.offset < bytes {
            if self.body.is_none() {
                self.body = Some(self.reopen().await?);
            }
            if let Some(chunk) = self.receive().await {
                (self.offset, self.breaks) = (self.offset + chunk.len() as u64, 0);
                if let Some(sink) = &self.sink {
                    sink.moved(chunk.len() as u64);
                }
                return Ok(Some(chunk));
            }
            self.body = None;
            self.breaks += 1;
            if self.breaks >= self.client.servers.policy().attempts_max {
                let detail =
                    format!("the connection broke while the document was read: offset={}", self.offset);
                return Err(Error::new(Kind::Unavailable, detail));
            }
        }
        Ok(None)
    }

    /// Reads the rest into memory; at most 1 GiB.
    pub async fn collect(self) -> Result<DocumentState, Error> {
        self.collect_up_to(COLLECT_BYTES_MAX).await
    }

    /// Reads the rest into memory. Fails without reading it if the document has more than `bytes_max` bytes.
    pub async fn collect_up_to(mut self, bytes_max: u64) -> Result<DocumentState, Error> {
        if self.bytes.is_some_and(|bytes| bytes > bytes_max) {
            let bytes = self.bytes.unwrap_or_default();
            let detail = format!("the document is too long: bytes={bytes} max={bytes_max}");
            return Err(Error::new(Kind::Invalid, detail));
        }
        let capacity = usize::try_from(self.bytes.unwrap_or_default()).unwrap_or_default();
        let mut document = Vec::with_capacity(capacity);
        while let Some(chunk) = self.chunk().await? {
            document.extend_from_slice(&chunk);
        }
        let document = self.bytes.map(|_| document.into());
        Ok(DocumentState { document, version: self.version, etag: self.etag })
    }

    /// Writes the rest to a writer, and returns how many bytes that were.
    pub async fn copy_to(&mut self, writer: &mut (impl AsyncWrite + Unpin)) -> Result<u64, Error> {
        let begin = self.offset;
        let failed = |error| Error::new(Kind::Invalid, format!("the document cannot be written: {error}"));
        while let Some(chunk) = self.chunk().await? {
            writer.write_all(&chunk).await.map_err(failed)?;
        }
        writer.flush().await.map_err(failed)?;
        Ok(self.offset - begin)
    }

    /// `None` if the connection broke, or the server sent nothing for too long.
    async fn receive(&mut self) -> Option<Bytes> {
        let idle = self.client.servers.policy().reply_timeout();
        let body = self.body.as_mut()?;
        loop {
            let frame = tokio::time::timeout(idle, body.frame()).await.ok()??.ok()?;
            if let Ok(chunk) = frame.into_data()
                && !chunk.is_empty()
            {
                return Some(chunk);
            }
        }
    }

    /// Opens the rest of the same version.
    async fn reopen(&self) -> Result<Incoming, Error> {
        let mut request = self.request.again();
        request.headers.push(("range", format!("bytes={}-", self.offset)));
        request.headers.push(("if-range", format!("\"{}\"", self.etag)));
        let response = self.client.servers.open(&request).await?;
        if response.status().as_u16() != PARTIAL {
            let changed = "the document changed while it was read; read it again";
            return Err(Error::new(Kind::Fenced, changed));
        }
        Ok(response.into_body())
    }
}

impl std::fmt::Debug for DocumentReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("DocumentReader");
        shown.field("version", &self.version).field("etag", &self.etag).field("bytes", &self.bytes);
        shown.field("offset", &self.offset).finish_non_exhaustive()
    }
}

fn header_text<'a>(response: &'a Response<Incoming>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

fn invalid(what: &str) -> Error {
    malformed_response(what).with_kind(Kind::Invalid)
}
