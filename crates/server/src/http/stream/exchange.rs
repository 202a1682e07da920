//! The socket of a stream connection, its input and output and its calls in flight: shared by the task that reads and the
//! threads that complete calls.
//!
//! **Invariant.** A call is in the map from its beginning until its reply is in the output: with its response, or without
//! one. What takes it out of the map replies.
//!
//! **Invariant.** Output is written by the first of these: the thread that adds the reply of the last call in flight; the
//! thread that publishes a batch, at its end; the reading task, before it waits. While the reading task runs it is the one.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use engine::limits::ExceededLimit;
use frames::{IN_FLIGHT_MAX, Message, RequestId, Settings};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::request;
use crate::backend::batch_end::{self, AtBatchEnd};
use crate::http::direct::Socket;
use crate::http::inline_task::{Completion, InlineTask, Receiver};
use crate::http::short_response::ShortResponse;
use crate::http::stream_budget::StreamMemory;

/// The output, in bytes, with which a connection begins nothing and replies to no ping.
pub(super) const OUTPUT_MAX: usize = 64 << 10;
/// A buffer that is larger is freed when it is empty. The written part of the output is freed when it is larger.
const KEPT_MAX: usize = 16 << 10;

/// What the reading task and the threads that complete calls share.
pub(super) struct Exchange<I: Socket> {
    io: Mutex<Io<I>>,
    /// Timers of the socket are created on threads that are not the runtime's.
    runtime: Handle,
}

/// The task of a call in flight.
pub(super) type CallTask<I> = Arc<InlineTask<Call<I>>>;

/// A call in flight, and the bytes that are counted for it.
pub(super) struct CallInFlight<I: Socket> {
    task: CallTask<I>,
    bytes: u64,
}

/// A call in flight: the address of its reply.
pub(super) struct Call<I: Socket> {
    pub(super) id: RequestId,
    exchange: Arc<Exchange<I>>,
}

/// A reply in the output.
struct UnsentReply {
    /// The end of its frame, counted from the first byte of the connection.
    end: u64,
    /// The bytes that are counted for its call.
    bytes: u64,
    /// It returns memory to budgets when it is dropped.
    _body: Option<Body>,
}

/// What will write the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputWriter {
    /// The reading task, which runs: before it waits.
    ReadingTask,
    /// The thread that publishes a batch: at its end.
    BatchEnd,
}

/// The socket, and the calls on it.
pub(super) struct Io<I: Socket> {
    /// `None` once the reading task has ended.
    pub(super) stream: Option<I>,
    input: Vec<u8>,
    /// Bytes at the beginning of the input that were handled.
    consumed: usize,
    output: Vec<u8>,
    /// Bytes at the beginning of the output that were written.
    written: usize,
    /// Bytes that were written, and freed since.
    freed: u64,
    /// Replies in the output.
    unsent: VecDeque<UnsentReply>,
    pub(super) calls: BTreeMap<RequestId, CallInFlight<I>>,
    memory: StreamMemory,
    /// What will write the output anyway; `None` if the next reply has to see to it.
    pub(super) writer: Option<OutputWriter>,
    pub(super) last_begun: Option<RequestId>,
    /// When the last frame began or was handled, or the last output was written.
    pub(super) idle_since: Instant,
    /// No further call: the connection ends with those in flight.
    pub(super) is_closing: bool,
    /// The socket has failed.
    pub(super) is_broken: bool,
    /// The reading task.
    reader: Option<Waker>,
}

impl<I: Socket> Exchange<I> {
    pub(super) fn new(stream: I, memory: StreamMemory) -> Arc<Exchange<I>> {
        let mut output = frames::PREFACE.to_vec();
        frames::encode_control(&mut output, &Message::Settings(Settings::DEFAULT));
        let io = Io {
            stream: Some(stream),
            input: Vec::new(),
            consumed: 0,
            output,
            written: 0,
            freed: 0,
            unsent: VecDeque::new(),
            calls: BTreeMap::new(),
            memory,
            writer: None,
            last_begun: None,
            idle_since: Instant::now(),
            is_closing: false,
            is_broken: false,
            reader: None,
        };
        Arc::new(Exchange { io: Mutex::new(io), runtime: Handle::current() })
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

    pub(super) fn input(&self) -> &[u8] {
        &self.input[self.consumed..]
    }

    pub(super) fn received(&mut self, bytes: &[u8]) {
        if self.input().is_empty() {
            // A frame begins.
            self.idle_since = Instant::now();
        }
        self.input.drain(..std::mem::take(&mut self.consumed));
        self.input.extend_from_slice(bytes);
    }

    /// The first frame of the input was handled.
    pub(super) fn consume(&mut self, length: usize) {
        self.consumed += length;
        self.idle_since = Instant::now();
        if self.consumed == self.input.len() {
            self.consumed = 0;
            clear(&mut self.input);
        }
    }

    /// A call with a body of this length begins. An error if there is no memory for it: it is to be refused.
    pub(super) fn begin(
        &mut self,
        id: RequestId,
        task: &CallTask<I>,
        body: usize,
    ) -> Result<(), ExceededLimit> {
        self.last_begun = Some(id);
        let taken = self.memory.take(body);
        let bytes = taken.as_ref().copied().unwrap_or_default();
        self.calls.insert(id, CallInFlight { task: Arc::clone(task), bytes });
        taken.map(drop)
    }

    /// Whether a frame is handled now. One that waits delays those behind it. A cancellation ends a call, and is no output
    /// beside that of the call.
    pub(super) fn takes(&self, message: &Message<'_>) -> bool {
        match message {
            Message::Request(_) => !self.is_backed_up(),
            Message::Ping(_) => self.output_bytes() < OUTPUT_MAX,
            _ => true,
        }
    }

    /// Whether no further call begins.
    pub(super) fn is_backed_up(&self) -> bool {
        self.output_bytes() >= OUTPUT_MAX || self.calls.len() >= IN_FLIGHT_MAX as usize
    }

    /// The task of a call, if it is in flight.
    pub(super) fn call(&self, id: RequestId) -> Option<CallTask<I>> {
        self.calls.get(&id).map(|call| Arc::clone(&call.task))
    }

    /// Replies to a call whose future was dropped.
    pub(super) fn aborted(&mut self, id: RequestId) {
        if let Some(call) = self.calls.remove(&id) {
            self.reply(id, call.bytes, None);
        }
    }

    pub(super) fn pong(&mut self, number: u32) {
        frames::encode_control(&mut self.output, &Message::Pong(number));
    }

    /// No further call begins.
    pub(super) fn go_away(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true) {
            let last = self.last_begun.unwrap_or(RequestId(0));
            frames::encode_control(&mut self.output, &Message::GoAway(last));
        }
    }

    /// Bytes that the client has not taken yet.
    pub(super) fn output_bytes(&self) -> usize {
        self.output.len() - self.written
    }

    /// Bytes in the output, written or not, and replies.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.output.capacity(), self.unsent.len())
    }

    /// Writes the output as far as the socket takes it. Ready when all of it is written, or the socket has failed.
    pub(super) fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.output.is_empty() || self.stream.is_none() {
            return Poll::Ready(());
        }
        let Poll::Ready(is_written) = self.poll_write(context) else {
            let half = self.output.len() / 2;
            if self.written >= KEPT_MAX.max(half) && self.written < self.output.len() {
                self.free_written();
            }
            return Poll::Pending;
        };
        self.written = self.output.len();
        self.free_written();
        self.is_broken |= !is_written;
        self.idle_since = Instant::now();
        Poll::Ready(())
    }

    /// Ready with false if the socket has failed.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(false) };
        let mut stream = Pin::new(stream);
        loop {
            let unwritten = &self.output[self.written..];
            if unwritten.is_empty() {
                return stream.poll_flush(context).map(|flushed| flushed.is_ok());
            }
            match std::task::ready!(stream.as_mut().poll_write(context, unwritten)) {
                Ok(0) | Err(_) => return Poll::Ready(false),
                Ok(written) => self.written += written,
            }
        }
    }

    /// Frees what was written: a client that reads slowly never takes all of it.
    fn free_written(&mut self) {
        self.freed += self.written as u64;
        while let Some(reply) = self.unsent.front()
            && reply.end <= self.freed
        {
            self.memory.give_back(reply.bytes);
            self.unsent.pop_front();
        }
        if self.written == self.output.len() {
            clear(&mut self.output);
        } else {
            self.output.drain(..self.written);
        }
        self.written = 0;
    }

    /// The reading task, if it has something to do that no byte from the client announces.
    fn reader_if_needed(&self) -> Option<Waker> {
        let is_needed =
            !self.output.is_empty() || !self.input().is_empty() || self.is_broken || self.is_closing;
        if is_needed { self.reader.clone() } else { None }
    }

    pub(super) fn poll_shutdown(&mut self, context: &mut Context<'_>) {
        if let Some(stream) = &mut self.stream {
            let _ = Pin::new(stream).poll_shutdown(context);
        }
    }

    /// Takes everything that must not be dropped under the lock.
    pub(super) fn close(&mut self) -> (Vec<CallTask<I>>, Option<I>) {
        self.is_broken = true;
        (std::mem::take(&mut self.calls).into_values().map(|call| call.task).collect(), self.stream.take())
    }

    /// Adds the reply of a call that is over, and for which these bytes are counted.
    fn reply(&mut self, id: RequestId, bytes: u64, response: Option<ShortResponse>) {
        let encoded = response.as_ref().is_some_and(|ShortResponse { head, bytes, .. }| {
            let (status, fields) = (head.status.as_u16(), request::fields(&head.headers));
            frames::encode_response(&mut self.output, id, status, fields, bytes).is_ok()
        });
        if !encoded {
            frames::encode_control(&mut self.output, &Message::Aborted(id));
        }
        let end = self.freed + self.output.len() as u64;
        self.unsent.push_back(UnsentReply { end, bytes, _body: response.map(|response| response.body) });
    }
}

impl<I: Socket> Call<I> {
    pub(super) fn new(id: RequestId, exchange: &Arc<Exchange<I>>) -> Call<I> {
        Call { id, exchange: Arc::clone(exchange) }
    }
}

impl<I: Socket> Receiver for Call<I> {
    type Output = Option<ShortResponse>;

    fn enter(&self) -> impl Sized {
        self.exchange.runtime.enter()
    }

    /// Adds the reply to the output, on the thread that has completed the call.
    fn complete(&self, completion: Completion<Option<ShortResponse>>) {
        let mut io = self.exchange.lock();
        let Some(CallInFlight { task, bytes }) = io.calls.remove(&self.id) else { return };
        let response = match completion {
            Completion::Output(response) => response,
            Completion::Cancelled | Completion::Panicked => None,
        };
        io.reply(self.id, bytes, response);
        let reader = self.exchange.write_or_postpone(&mut io);
        drop(io);
        drop(task);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl<I: Socket> Exchange<I> {
    /// Sees to it that the output is written. Returns the reading task if that has to do it.
    fn write_or_postpone(self: &Arc<Self>, io: &mut Io<I>) -> Option<Waker> {
        if io.writer.is_some() {
            return None;
        }
        if io.calls.is_empty() {
            let _ = io.poll_output(&mut Context::from_waker(Waker::noop()));
            return io.reader_if_needed();
        }
        if !batch_end::postpone(|| Arc::clone(self) as Arc<dyn AtBatchEnd>) {
            return io.reader.clone();
        }
        io.writer = Some(OutputWriter::BatchEnd);
        None
    }
}

impl<I: Socket> AtBatchEnd for Exchange<I> {
    fn run(&self) {
        let entered = self.runtime.enter();
        let mut io = self.lock();
        if io.writer == Some(OutputWriter::ReadingTask) {
            return;
        }
        io.writer = None;
        let _ = io.poll_output(&mut Context::from_waker(Waker::noop()));
        let reader = io.reader_if_needed();
        drop(io);
        drop(entered);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// Empties a buffer, and frees it if it has become large.
fn clear(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT_MAX {
        *buffer = Vec::new();
    }
    buffer.clear();
}
