//! A document to commit: bytes, a file, or a stream.
//!
//! **Invariant.** A retry sends the same bytes. Bytes and files can be sent again; a stream cannot once its first byte was read,
//! and the request then fails without a retry. A body that ends early has no effect on the server, so that the outcome is
//! indeterminate only if a file or stream was sent to its end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

use crate::clock::BootTime;
use crate::progress::ProgressSink;

/// The length of a chunk, in bytes.
const CHUNK_BYTES: usize = 32 << 10;
/// How many chunks are read ahead.
const CHUNKS_AHEAD: usize = 2;

/// A document to commit. Bytes and texts convert into it.
#[derive(Clone)]
pub struct DocumentBody(Source);

#[derive(Clone)]
enum Source {
    Bytes(Bytes),
    File(Arc<FileSource>),
    Stream(Arc<StreamSource>),
}

struct FileSource {
    file: File,
    start: u64,
    bytes: u64,
    /// An attempt has sent it to its end.
    is_sent: AtomicBool,
    /// Why it could not be read.
    failure: Mutex<Option<String>>,
}

struct StreamSource {
    /// `None` once it is being sent.
    chunks: Mutex<Option<BoxedChunks>>,
    is_sent: AtomicBool,
    /// When the last chunk was sent: a [`BootTime`].
    moved_at: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl DocumentBody {
    /// The content of a regular file, from its current position on. Its length must not change until it is sent. Any other kind of
    /// file is a stream.
    pub fn from_file(mut file: File) -> io::Result<DocumentBody> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(DocumentBody::from_blocking_reader(file));
        }
        let start = io::Seek::stream_position(&mut file)?;
        let bytes = metadata.len().saturating_sub(start);
        let (is_sent, failure) = (AtomicBool::new(bytes == 0), Mutex::default());
        Ok(DocumentBody(Source::File(Arc::new(FileSource { file, start, bytes, is_sent, failure }))))
    }

    /// The file at this path.
    pub fn open(path: impl AsRef<Path>) -> io::Result<DocumentBody> {
        DocumentBody::from_file(File::open(path)?)
    }

    /// All that the reader returns. It cannot be sent again: a connection that breaks fails the call.
    pub fn from_reader(reader: impl AsyncRead + Send + 'static) -> DocumentBody {
        DocumentBody::stream(Box::pin(AsyncChunks(Box::pin(reader))))
    }

    /// The same for a reader that blocks, such as standard input. A thread reads it.
    pub fn from_blocking_reader(reader: impl Read + Send + 'static) -> DocumentBody {
        DocumentBody::stream(Box::pin(BlockingChunks::Unstarted(Some(Box::new(reader)))))
    }

    fn stream(chunks: BoxedChunks) -> DocumentBody {
        let moved_at = AtomicU64::new(BootTime::now().0);
        let (chunks, failure) = (Mutex::new(Some(chunks)), Mutex::default());
        let is_sent = AtomicBool::new(false);
        DocumentBody(Source::Stream(Arc::new(StreamSource { chunks, is_sent, moved_at, failure })))
    }

    /// The length in bytes; `None` for a stream.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match &self.0 {
            Source::Bytes(bytes) => Some(bytes.len() as u64),
            Source::File(file) => Some(file.bytes),
            Source::Stream(_) => None,
        }
    }

    /// The bytes, if they are in memory.
    pub(crate) fn in_memory(&self) -> Option<&Bytes> {
        match &self.0 {
            Source::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// It is a stream of which something was read: it cannot be sent again.
    pub(crate) fn is_spent(&self) -> bool {
        match &self.0 {
            Source::Stream(stream) => lock(&stream.chunks).is_none(),
            _ => false,
        }
    }

    /// The server may have received all of it.
    pub(crate) fn may_be_received(&self) -> bool {
        match &self.0 {
            Source::Stream(stream) => stream.is_sent.load(Ordering::Acquire),
            Source::File(file) => file.is_sent.load(Ordering::Acquire),
            Source::Bytes(_) => true,
        }
    }

    /// When the last chunk of a stream was sent; `None` if it is no stream.
    pub(crate) fn moved_at(&self) -> Option<BootTime> {
        match &self.0 {
            Source::Stream(stream) => Some(BootTime(stream.moved_at.load(Ordering::Acquire))),
            _ => None,
        }
    }

    /// Why it could not be read to its end.
    pub(crate) fn failure(&self) -> Option<String> {
        match &self.0 {
            Source::Bytes(_) => None,
            Source::File(file) => lock(&file.failure).clone(),
            Source::Stream(stream) => lock(&stream.failure).clone(),
        }
    }

    /// The body of one attempt.
    pub(crate) fn upload(&self, progress: &ProgressSink) -> UploadBody {
        let (left, is_large) = (self.bytes(), self.bytes().is_none_or(crate::progress::is_large));
        let sink = progress.clone().filter(|_| is_large);
        if let Some(sink) = &sink {
            match left {
                Some(bytes) => sink.begin(bytes),
                None => sink.begin_unknown(),
            }
        }
        let rest = match &self.0 {
            Source::Bytes(bytes) => Rest::Bytes(bytes.clone()),
            Source::File(file) => Rest::Chunks(Box::pin(file_chunks(file))),
            Source::Stream(stream) => {
                stream.moved_at.store(BootTime::now().0, Ordering::Release);
                Rest::Unstarted
            }
        };
        UploadBody { document: self.clone(), rest, left, sink }
    }

    fn record_failure(&self, error: &io::Error) {
        let failure = match &self.0 {
            Source::Bytes(_) => return,
            Source::File(file) => &file.failure,
            Source::Stream(stream) => &stream.failure,
        };
        *lock(failure) = Some(error.to_string());
    }
}

impl Default for DocumentBody {
    fn default() -> DocumentBody {
        DocumentBody::from(Bytes::new())
    }
}

impl std::fmt::Debug for DocumentBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DocumentBody").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

macro_rules! from_bytes {
    ($($type:ty)*) => {$(
        impl From<$type> for DocumentBody {
            fn from(document: $type) -> DocumentBody {
                DocumentBody(Source::Bytes(document.into()))
            }
        }
    )*};
}

from_bytes! { Bytes Vec<u8> String &'static str &'static [u8] }

/// The body of one attempt. It reports its progress.
pub(crate) struct UploadBody {
    document: DocumentBody,
    rest: Rest,
    /// What is not sent yet, in bytes; `None` if unknown.
    left: Option<u64>,
    sink: ProgressSink,
}

enum Rest {
    /// A stream that is taken when its first chunk is needed: until then it can be sent with another attempt.
    Unstarted,
    Bytes(Bytes),
    Chunks(BoxedChunks),
}

impl UploadBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if let (Rest::Unstarted, Source::Stream(stream)) = (&self.rest, &self.document.0) {
            let chunks = lock(&stream.chunks).take();
            self.rest = chunks.map_or_else(|| Rest::Bytes(Bytes::new()), Rest::Chunks);
        }
        match &mut self.rest {
            Rest::Unstarted => Poll::Ready(None),
            Rest::Bytes(rest) if rest.is_empty() => Poll::Ready(None),
            Rest::Bytes(rest) => {
                let length = if self.sink.is_some() { CHUNK_BYTES.min(rest.len()) } else { rest.len() };
                Poll::Ready(Some(Ok(rest.split_to(length))))
            }
            Rest::Chunks(chunks) => chunks.as_mut().poll_chunk(cx),
        }
    }

    fn moved(&mut self, bytes: u64) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(bytes);
        }
        if let Some(sink) = &self.sink {
            sink.moved(bytes);
        }
        match &self.document.0 {
            Source::Stream(stream) => stream.moved_at.store(BootTime::now().0, Ordering::Release),
            Source::File(file) if self.left == Some(0) => file.is_sent.store(true, Ordering::Release),
            Source::File(_) | Source::Bytes(_) => {}
        }
    }
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match ready!(self.poll_chunk(cx)) {
            Some(Ok(chunk)) => {
                self.moved(chunk.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Some(Err(error)) => {
                self.document.record_failure(&error);
                Poll::Ready(Some(Err(error)))
            }
            None => {
                if let Source::Stream(stream) = &self.document.0 {
                    stream.is_sent.store(true, Ordering::Release);
                    self.sink.iter().for_each(|sink| sink.end());
                }
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A source of chunks, none of them empty.
trait Chunks: Send {
    fn poll_chunk(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>;
}

type BoxedChunks = Pin<Box<dyn Chunks>>;

struct AsyncChunks(Pin<Box<dyn AsyncRead + Send>>);

impl Chunks for AsyncChunks {
    fn poll_chunk(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut buffer = ReadBuf::new(&mut chunk);
        ready!(self.0.as_mut().poll_read(cx, &mut buffer))?;
        let length = buffer.filled().len();
        chunk.truncate(length);
        Poll::Ready((length > 0).then(|| Ok(chunk.into())))
    }
}

/// Read by a thread that starts with the first chunk. A thread that is blocked in a read does not keep the process from ending.
enum BlockingChunks {
    Unstarted(Option<Box<dyn Read + Send>>),
    Started(mpsc::Receiver<io::Result<Bytes>>),
}

impl Chunks for BlockingChunks {
    fn poll_chunk(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if let BlockingChunks::Unstarted(reader) = &mut *self {
            let Some(mut reader) = reader.take() else { return Poll::Ready(None) };
            let (send, chunks) = mpsc::channel(CHUNKS_AHEAD);
            let thread = std::thread::Builder::new().name("document".into());
            thread.spawn(move || read_all(&mut *reader, &send))?;
            *self = BlockingChunks::Started(chunks);
        }
        match &mut *self {
            BlockingChunks::Started(chunks) => chunks.poll_recv(cx),
            BlockingChunks::Unstarted(_) => Poll::Ready(None),
        }
    }
}

/// Reads until the end, an error, or until the receiver is dropped.
fn read_all(reader: &mut dyn Read, send: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = match reader.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => {
                chunk.truncate(length);
                Ok(chunk.into())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = read.is_err();
        if send.blocking_send(read).is_err() || is_last {
            return;
        }
    }
}

fn file_chunks(source: &Arc<FileSource>) -> BlockingChunks {
    let reader = FileReader { source: Arc::clone(source), offset: 0 };
    BlockingChunks::Unstarted(Some(Box::new(reader)))
}

/// Reads at an offset of its own: attempts do not disturb each other.
struct FileReader {
    source: Arc<FileSource>,
    offset: u64,
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.source.bytes - self.offset;
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.source.file.read_at(&mut buffer[..length], self.source.start + self.offset)?;
        if read == 0 && left > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        self.offset += read as u64;
        Ok(read)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
