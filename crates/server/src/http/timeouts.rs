//! Timeouts of bodies and connections.
//!
//! **Invariant.** A client that stalls while it sends a body or receives a response loses its connection after the idle
//! timeout; so does a client that sends a body more slowly than the minimum rate. A client that waits for a lease does
//! neither, and keeps its connection. The body of a client whose connection is ended fails at once: nothing of it is
//! stored.
//!
//! **What would break it.** An idle timeout alone: a byte just before each timeout keeps an upload, with its file and its
//! buffers, for days. Time in which the server itself does not read the body does not count.
//!
//! **What would break it.** hyper reads the first bytes to tell HTTP/1 from HTTP/2, without a timeout: a client that
//! connects and sends nothing would keep its connection for ever. So the first bytes have a timeout of their own.
//!
//! A timer is created only when a poll returns pending: transfers that never block cost none.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Bytes;
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::http::request_set::ReadBudget;
use crate::peer::{ConnectionEnd, PeerConnection};

/// Runs while the polled operation is pending.
struct IdleTimer {
    timeout: Duration,
    running: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    fn new(timeout: Duration) -> IdleTimer {
        IdleTimer { timeout, running: None }
    }

    /// Passes a ready value on and resets the timer; fails when the operation was pending for the whole timeout.
    fn check<T>(&mut self, context: &mut Context<'_>, polled: Poll<T>) -> Poll<Result<T, IdleTimeout>> {
        if let Poll::Ready(value) = polled {
            self.running = None;
            return Poll::Ready(Ok(value));
        }
        let timer = self.running.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.timeout)));
        timer.as_mut().poll(context).map(|()| Err(IdleTimeout))
    }
}

/// The client was idle for too long.
#[derive(Debug)]
pub(crate) struct IdleTimeout;

impl std::fmt::Display for IdleTimeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("idle timeout, or below the minimum rate")
    }
}

impl std::error::Error for IdleTimeout {}

/// How fast a client must send a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    /// Maximum time without a byte; also what a body may take beyond the time that the minimum rate allows.
    pub(crate) stall_timeout: Duration,
    /// Minimum rate, in bytes per second, on average over the body.
    pub(crate) bytes_per_second_min: u64,
}

/// Measures how long a body waits for its client.
struct BodyTimer {
    limits: BodyLimits,
    /// Since when the body waits, and its timer.
    running: Option<(Instant, Pin<Box<Sleep>>)>,
    /// How long earlier frames waited.
    waited: Duration,
    bytes: u64,
}

impl BodyTimer {
    fn received(&mut self, bytes: usize) {
        if let Some((since, _)) = self.running.take() {
            self.waited += since.elapsed();
        }
        self.bytes += bytes as u64;
    }

    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (_, timer) = self.running.get_or_insert_with(|| {
            let BodyLimits { stall_timeout, bytes_per_second_min } = self.limits;
            let allowed =
                Duration::from_millis(self.bytes.saturating_mul(1000) / bytes_per_second_min.max(1));
            let left = (stall_timeout + allowed).saturating_sub(self.waited);
            (Instant::now(), Box::pin(tokio::time::sleep(stall_timeout.min(left))))
        });
        timer.as_mut().poll(context)
    }
}

/// The connection is ended by the server.
#[derive(Debug)]
struct EndedConnection;

impl std::fmt::Display for EndedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is ended")
    }
}

impl std::error::Error for EndedConnection {}

/// A request body with an idle timeout and a minimum rate, which fails when its connection is ended.
pub(crate) struct TimedBody<B> {
    inner: B,
    timer: BodyTimer,
    connection: PeerConnection,
    /// Waits for the end of the connection; created when the body is first pending.
    ended: Option<Pin<Box<dyn Future<Output = ConnectionEnd> + Send>>>,
}

impl<B> TimedBody<B> {
    pub(crate) fn new(inner: B, limits: BodyLimits, connection: &PeerConnection) -> TimedBody<B> {
        let timer = BodyTimer { limits, running: None, waited: Duration::ZERO, bytes: 0 };
        TimedBody { inner, timer, connection: connection.clone(), ended: None }
    }

    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let connection = &self.connection;
        let ended = self.ended.get_or_insert_with(|| {
            let connection = connection.clone();
            Box::pin(async move { connection.ended().await })
        });
        ended.as_mut().poll(context)
    }
}

impl<B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin> http_body::Body for TimedBody<B> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.connection.end_reason().is_some() {
            return Poll::Ready(Some(Err(axum::Error::new(EndedConnection))));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            self.timer.received(data.map_or(0, Bytes::len));
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        if self.poll_ended(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(EndedConnection))));
        }
        self.timer.poll_timeout(context).map(|()| Some(Err(axum::Error::new(IdleTimeout))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The length of the HTTP/2 preface: until hyper has read that many bytes, it has no timeout.
const PREFACE_BYTES: usize = 24;

/// A connection with a timeout for its first bytes, an idle timeout for writes, and a bound of bytes read in one turn.
pub(crate) struct IdleTimeoutStream<I> {
    inner: I,
    timer: IdleTimer,
    /// The timer of the first bytes and the number of bytes read; `None` once [`PREFACE_BYTES`] were read.
    preface: Option<(IdleTimer, usize)>,
    budget: ReadBudget,
}

impl<I> IdleTimeoutStream<I> {
    /// `preface` is the timeout of the first bytes, `stall` that of each write.
    pub(crate) fn new(
        inner: I,
        preface: Duration,
        stall: Duration,
        budget: ReadBudget,
    ) -> IdleTimeoutStream<I> {
        let (timer, preface) = (IdleTimer::new(stall), Some((IdleTimer::new(preface), 0)));
        IdleTimeoutStream { inner, timer, preface, budget }
    }

    fn check_write<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.timer
            .check(context, polled)
            .map(|written| written.unwrap_or_else(|timeout| Err(timed_out(timeout))))
    }
}

fn timed_out(timeout: IdleTimeout) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, timeout)
}

impl<I: AsyncRead + Unpin> AsyncRead for IdleTimeoutStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.budget.is_used_up() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        self.budget.read(bytes);
        let Some((timer, read)) = &mut self.preface else { return polled };
        *read += bytes;
        let is_complete = *read >= PREFACE_BYTES;
        let checked =
            timer.check(context, polled).map(|read| read.unwrap_or_else(|timeout| Err(timed_out(timeout))));
        if is_complete {
            self.preface = None;
        }
        checked
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.check_write(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.check_write(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.check_write(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(context);
        self.check_write(context, polled)
    }
}
