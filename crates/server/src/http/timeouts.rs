//! How long a server waits for a client that is in the middle of something.
//!
//! **Invariant.** Who sends a body, or takes an answer, must get on with it: one that does nothing for so long loses its
//! connection. Who waits for a lease does neither, and may.
//!
//! **What would break it.** To tell HTTP/1 from HTTP/2 its first bytes are read, and whoever reads them has no clock: one who
//! connected and said nothing had its connection for ever.
//!
//! No timer runs for what comes and goes at once.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Runs while there is nothing to do but to wait.
struct Timer {
    most: Duration,
    running: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    fn new(most: Duration) -> Timer {
        Timer { most, running: None }
    }

    /// Passes on what is ready. While it is not, the time runs; when it is up, says so.
    fn watch<T>(&mut self, context: &mut Context<'_>, polled: Poll<T>) -> Poll<Result<T, TooSlow>> {
        if let Poll::Ready(value) = polled {
            self.running = None;
            return Poll::Ready(Ok(value));
        }
        let timer = self.running.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.most)));
        timer.as_mut().poll(context).map(|()| Err(TooSlow))
    }
}

/// The time was up.
#[derive(Debug)]
pub(crate) struct TooSlow;

impl std::fmt::Display for TooSlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nothing came for too long")
    }
}

impl std::error::Error for TooSlow {}

/// A body that has to go on coming.
pub(crate) struct PatientBody<B> {
    inner: B,
    timer: Timer,
}

impl<B> PatientBody<B> {
    pub(crate) fn new(inner: B, most: Duration) -> PatientBody<B> {
        PatientBody { inner, timer: Timer::new(most) }
    }
}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin> http_body::Body for PatientBody<B> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        self.timer.watch(context, polled).map(|frame| match frame {
            Ok(frame) => frame.map(|frame| frame.map_err(axum::Error::new)),
            Err(slow) => Some(Err(axum::Error::new(slow))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// So many bytes tell HTTP/1 from HTTP/2: until they are there, nothing else looks at the time.
const PREFACE: usize = 24;

/// A connection whose other end has to begin, and to go on taking what is written.
pub(crate) struct PatientStream<I> {
    inner: I,
    timer: Timer,
    beginning: Option<(Timer, usize)>,
}

impl<I> PatientStream<I> {
    /// It has `first` to begin, and then `most` each time that it is written to.
    pub(crate) fn new(inner: I, first: Duration, most: Duration) -> PatientStream<I> {
        PatientStream { inner, timer: Timer::new(most), beginning: Some((Timer::new(first), 0)) }
    }

    fn taken<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.timer.watch(context, polled).map(|written| written.unwrap_or_else(|slow| Err(late(slow))))
    }
}

fn late(slow: TooSlow) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, slow)
}

impl<I: AsyncRead + Unpin> AsyncRead for PatientStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let Some((timer, read)) = &mut self.beginning else { return polled };
        *read += buffer.filled().len() - before;
        let enough = *read >= PREFACE;
        let watched =
            timer.watch(context, polled).map(|polled| polled.unwrap_or_else(|slow| Err(late(slow))));
        if enough {
            self.beginning = None;
        }
        watched
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PatientStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.taken(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.taken(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.taken(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(context);
        self.taken(context, polled)
    }
}
