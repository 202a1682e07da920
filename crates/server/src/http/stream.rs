//! Connections of the stream protocol: short calls in frames, many in flight (`docs/reference/stream.md`).
//!
//! A task reads frames, makes a request of HTTP out of each, and polls its handler once: the command is decided. The thread
//! that makes its batch durable polls the handler again ([`inline_task`](super::inline_task)) and adds the response to the
//! output ([`exchange`]). The handlers, and everything around them, are those of all other connections.
//!
//! **Invariant.** A request has exactly one reply. A client that cancels a request, or disconnects, loses it: its waiter is
//! removed.
//!
//! **Invariant.** A connection keeps at most [`IN_FLIGHT_MAX`](frames::IN_FLIGHT_MAX) calls and little more than one frame
//! of input, and begins nothing while [`OUTPUT_MAX`](exchange::OUTPUT_MAX) of output waits for its client. In one turn it
//! handles at most [`FRAMES_MAX`] frames.
//!
//! **What would break it.** Frames that cost nothing to send and something to reply to: pings without an end, from a client
//! that does not read. Their replies are output too.
//!
//! **What is absent.** Documents, lists and streams of events, which are sent over HTTP; the guard against web pages, since
//! no browser sends the preface.

mod exchange;
mod request;

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use frames::{Message, REQUEST_MAX, RequestId};
use tokio::io::ReadBuf;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{Instant, Sleep};

use self::exchange::{Call, CallTask, Exchange, Io, OutputWriter};
use self::request::{RequestMaker, StreamRequest};
use crate::backend::blocking_thread::while_blocking;
use crate::http::connection::ConnectionService;
use crate::http::direct::Socket;
use crate::http::inline_task::InlineTask;
use crate::http::lone_caller::LoneCaller;
use crate::http::request_set::ReadBudget;

/// What is read at once, in bytes.
const READ_BYTES: usize = 8 << 10;
/// The most frames that are handled in one turn, as many as calls begin on other connections.
const FRAMES_MAX: usize = 4;

/// Requests, one after the other, after which the calls of a connection may block the thread. More than a group of callers
/// sends one by one.
const LONE_REQUESTS: u32 = 16;

/// Serves a connection behind its preface, to its end.
pub(crate) struct StreamConnection<I: Socket> {
    exchange: Arc<Exchange<I>>,
    service: ConnectionService,
    /// `None` if the threads of this runtime must not block.
    lone_caller: Option<Arc<LoneCaller>>,
    /// What the socket may read in one turn.
    reading: ReadBudget,
    requests: RequestMaker,
    /// Requests in a row with which no other was in flight.
    lone_requests: u32,
    idle_timeout: Duration,
    /// Due when the connection may have been idle for too long.
    timer: Pin<Box<Sleep>>,
}

/// A frame of the client, without borrows.
enum Frame {
    Request(Box<StreamRequest>),
    Cancel(RequestId),
    Ping(u32),
    Pong,
    /// A number that does not rise, or what only a server sends.
    Unexpected,
}

/// What the reading task does next.
enum Step<I: Socket> {
    /// Look again.
    Again,
    /// The same, and a frame was handled.
    Handled,
    /// Poll this call.
    Call(CallTask<I>, Box<StreamRequest>),
    /// Drop a call that the client has cancelled.
    Cancel(CallTask<I>),
    /// Wait.
    Wait,
    End,
}

impl<I: Socket> StreamConnection<I> {
    /// `idle_timeout` is the longest time between two frames, and within one.
    pub(crate) fn new(
        stream: I,
        service: &ConnectionService,
        lone_caller: &Arc<LoneCaller>,
        reading: ReadBudget,
        idle_timeout: Duration,
    ) -> StreamConnection<I> {
        let may_block = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        StreamConnection {
            exchange: Exchange::new(stream, service.stream_memory()),
            service: service.without_browsers(),
            lone_caller: may_block.then(|| Arc::clone(lone_caller)),
            reading,
            requests: RequestMaker::default(),
            lone_requests: 0,
            idle_timeout,
            timer: Box::pin(tokio::time::sleep(idle_timeout)),
        }
    }

    /// Begins no further call, and ends the connection behind the last reply.
    pub(crate) fn shut_down(self: Pin<&mut Self>) {
        self.exchange.lock().go_away();
    }

    fn step(&mut self, context: &mut Context<'_>) -> Step<I> {
        let exchange = Arc::clone(&self.exchange);
        let mut io = exchange.lock();
        io.writer = Some(OutputWriter::ReadingTask);
        io.register(context);
        if !io.is_closing
            && !io.is_broken
            && let Some(step) = self.next_frame(&mut io)
        {
            return step;
        }
        // Behind all frames that have arrived: their replies are written together.
        let was_backed_up = io.is_backed_up();
        let is_written = io.poll_output(context).is_ready();
        if io.is_broken {
            return Step::End;
        }
        if io.is_closing && io.calls.is_empty() && is_written {
            io.poll_shutdown(context);
            return Step::End;
        }
        if was_backed_up && !io.is_backed_up() {
            return Step::Again;
        }
        let read = if io.input().len() > REQUEST_MAX { Poll::Pending } else { read(&mut io, context) };
        match read {
            Poll::Ready(true) => Step::Again,
            Poll::Ready(false) => Step::End,
            Poll::Pending => {
                io.writer = None;
                self.check_timer(&mut io, context)
            }
        }
    }

    /// Handles the next frame of the input. `None` if more is to be read, or the frame has to wait.
    fn next_frame(&mut self, io: &mut Io<I>) -> Option<Step<I>> {
        let (frame, length) = match frames::parse(io.input()) {
            Ok(None) => return None,
            Ok(Some((message, _))) if !io.takes(&message) => return None,
            Ok(Some((message, length))) => (self.frame(&message, io.last_begun), length),
            Err(why) => {
                tracing::debug!(%why, "stream connection closed");
                return Some(Step::End);
            }
        };
        io.consume(length);
        Some(match frame {
            Frame::Request(mut request) => {
                let task = InlineTask::new(Call::new(request.id, &self.exchange));
                if let Err(limit) = io.begin(request.id, &task, request.body_length()) {
                    request.refuse(limit);
                }
                Step::Call(task, request)
            }
            Frame::Cancel(id) => io.call(id).map_or(Step::Handled, Step::Cancel),
            Frame::Ping(number) => {
                io.pong(number);
                Step::Handled
            }
            Frame::Pong => Step::Handled,
            Frame::Unexpected => Step::End,
        })
    }

    fn frame(&mut self, message: &Message<'_>, last: Option<RequestId>) -> Frame {
        match message {
            Message::Request(request) if request.id > last.unwrap_or(RequestId(0)) => {
                Frame::Request(Box::new(self.requests.make(request)))
            }
            Message::Cancel(id) => Frame::Cancel(*id),
            Message::Ping(number) => Frame::Ping(*number),
            Message::Pong(_) => Frame::Pong,
            Message::Request(_)
            | Message::Response(_)
            | Message::Aborted(_)
            | Message::GoAway(_)
            | Message::Settings(_) => Frame::Unexpected,
        }
    }

    fn call(&mut self, task: &CallTask<I>, request: Box<StreamRequest>) {
        let call = request.handle(self.service.clone());
        // Not within the cooperative budget of the reading task: another thread polls the call too.
        let call = Box::pin(tokio::task::unconstrained(call));
        if self.is_alone() {
            tokio::task::block_in_place(|| while_blocking(|| task.start(call)));
        } else {
            task.start(call);
        }
    }

    /// Whether the client sends one request after the other, and no other connection sends any: then an append on this thread delays
    /// nothing.
    fn is_alone(&mut self) -> bool {
        let io = self.exchange.lock();
        let has_company = io.calls.len() > 1 || !io.input().is_empty();
        drop(io);
        self.lone_requests = if has_company { 0 } else { self.lone_requests.saturating_add(1) };
        let connection = Arc::as_ptr(&self.exchange).addr();
        let is_lone = self.lone_caller.as_ref().is_some_and(|callers| callers.count(connection));
        is_lone && self.lone_requests > LONE_REQUESTS
    }

    /// A call that another thread is completing has its response: it may have granted a lease.
    fn cancel(&self, task: &CallTask<I>) {
        if task.cancel() {
            self.exchange.lock().aborted(task.receiver.id);
        }
    }

    /// Closes a connection that has been idle for too long, or has sent a part of a frame for too long.
    fn check_timer(&mut self, io: &mut Io<I>, context: &mut Context<'_>) -> Step<I> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let is_busy = io.is_backed_up() || !io.calls.is_empty() && io.input().is_empty();
            let due = if is_busy { now } else { io.idle_since } + self.idle_timeout;
            if due <= now {
                let is_idle = io.calls.is_empty() && io.input().is_empty() && !io.is_closing;
                if !is_idle {
                    return Step::End;
                }
                // A request that is on its way is not begun, and its client can tell.
                io.go_away();
                return Step::Again;
            }
            self.timer.as_mut().reset(due);
        }
        Step::Wait
    }
}

/// Reads once. Ready with false at the end of the stream.
fn read<I: Socket>(io: &mut Io<I>, context: &mut Context<'_>) -> Poll<bool> {
    let Some(stream) = &mut io.stream else { return Poll::Ready(false) };
    let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
    let mut buffer = ReadBuf::uninit(&mut scratch);
    match std::task::ready!(Pin::new(stream).poll_read(context, &mut buffer)) {
        Ok(()) if !buffer.filled().is_empty() => {
            io.received(buffer.filled());
            Poll::Ready(true)
        }
        _ => Poll::Ready(false),
    }
}

impl<I: Socket> Future for StreamConnection<I> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.reading.renew();
        let mut handled = 0;
        loop {
            match self.step(context) {
                Step::Again => continue,
                Step::Handled => {}
                Step::Call(task, request) => self.call(&task, request),
                Step::Cancel(task) => self.cancel(&task),
                Step::Wait => return Poll::Pending,
                Step::End => return Poll::Ready(()),
            }
            handled += 1;
            if handled == FRAMES_MAX {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

impl<I: Socket> Drop for StreamConnection<I> {
    fn drop(&mut self) {
        let (calls, stream) = self.exchange.lock().close();
        // Without the lock: what a call drops may wake others.
        for task in calls {
            task.cancel();
        }
        drop(stream);
    }
}

#[cfg(test)]
mod tests;
