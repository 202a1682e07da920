//! The socket of a connection, its input and its output: shared by the task that reads and the threads that complete calls.
//!
//! **Invariant.** A connection has one call at a time. It is over when its response is written whole; the next call begins
//! after that, so responses have the order of their requests. Both change under the lock of the socket.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::response::Output;
use crate::backend::moment::Clocks;
use crate::http::inline_task::{Completion, Receiver};
use crate::http::short_response::ShortResponse;

/// A socket, with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> Socket for I {}

/// What the reading task and the threads that complete calls share.
pub(super) struct Exchange<I> {
    io: Mutex<Io<I>>,
    /// Timers of the socket are created on threads that are not the runtime's.
    runtime: Handle,
    clocks: Arc<Clocks>,
}

/// The socket, and the state of its one call.
pub(super) struct Io<I> {
    /// `None` once the reading task has ended.
    pub(super) stream: Option<I>,
    /// Received and not parsed yet.
    pub(super) input: Vec<u8>,
    /// The rest of a response that the socket did not take at once.
    output: Option<Output>,
    /// A call is in progress, or its response is not written yet.
    pub(super) is_busy: bool,
    /// When the last call was over.
    pub(super) idle_since: Instant,
    /// No further call: the connection ends with the one in progress.
    pub(super) is_closing: bool,
    /// The socket has failed, or the call.
    pub(super) is_broken: bool,
    /// The reading task.
    reader: Option<Waker>,
}

impl<I: Socket> Exchange<I> {
    pub(super) fn new(stream: I, clocks: &Arc<Clocks>) -> Exchange<I> {
        let io = Io {
            stream: Some(stream),
            input: Vec::new(),
            output: None,
            is_busy: false,
            idle_since: Instant::now(),
            is_closing: false,
            is_broken: false,
            reader: None,
        };
        Exchange { io: Mutex::new(io), runtime: Handle::current(), clocks: Arc::clone(clocks) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Io<I>> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Socket> Io<I> {
    /// Wakes this task when it has something to do that no byte from the client announces.
    pub(super) fn register(&mut self, context: &Context<'_>) {
        if self.reader.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            self.reader = Some(context.waker().clone());
        }
    }

    /// Writes the output as far as the socket takes it. Ready when all of it is written, or the socket has failed.
    pub(super) fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (Some(output), Some(stream)) = (&mut self.output, &mut self.stream) else {
            return Poll::Ready(());
        };
        let mut stream = Pin::new(stream);
        let is_written = loop {
            if output.unwritten().is_empty() {
                break std::task::ready!(stream.as_mut().poll_flush(context)).is_ok();
            }
            match std::task::ready!(stream.as_mut().poll_write(context, output.unwritten())) {
                Ok(0) | Err(_) => break false,
                Ok(written) => output.advance(written),
            }
        };
        self.output = None;
        self.is_busy = false;
        self.is_broken |= !is_written;
        self.idle_since = Instant::now();
        Poll::Ready(())
    }

    /// Whether the reading task has something to do.
    fn needs_reader(&self) -> bool {
        self.output.is_some() || self.is_broken || self.is_closing || !self.input.is_empty()
    }
}

impl<I: Socket> Receiver for Exchange<I> {
    type Output = Option<ShortResponse>;

    fn enter(&self) -> impl Sized {
        self.runtime.enter()
    }

    /// Writes the response, on the thread that has completed the call. If the socket is full, the reading task goes on.
    fn complete(&self, response: Completion<Option<ShortResponse>>) {
        let mut io = self.lock();
        if let Completion::Output(Some(response)) = response {
            io.output = Some(Output::encode(response, self.clocks.unix_ms() / 1000, io.is_closing));
            let _ = io.poll_output(&mut Context::from_waker(Waker::noop()));
        } else {
            (io.is_busy, io.is_broken) = (false, true);
        }
        let reader = if io.needs_reader() { io.reader.clone() } else { None };
        drop(io);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}
