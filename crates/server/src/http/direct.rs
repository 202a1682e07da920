//! Connections that send plain short calls, without hyper: for acquire, keepalive, release and short updates, which are
//! nearly all requests of a busy server.
//!
//! A task reads, recognises a request ([`head`]) and polls its handler once: the command is decided. The thread that makes
//! its batch durable polls the handler again ([`inline_task`](super::inline_task)), and writes the response ([`exchange`]). So a request costs
//! one read, one write, and no thread is woken but by the socket. The handlers, and everything around them, are those of
//! all other connections: only the bytes of HTTP/1.1 are read and written here.
//!
//! **Invariant.** The first request that is not recognised goes to hyper, with all its bytes, and so does everything behind
//! it. A client that disconnects, or whose connection is ended, loses its call in progress: its waiter is removed.
//!
//! **Invariant.** In one turn a connection begins at most [`CALLS_MAX`] calls; then other connections have their turn.
//!
//! **What would break it.** A request that waits for a lease and whose client is not read from meanwhile: it would be granted
//! to a client that is gone. So the task reads on while a call is in progress; what arrives is kept, up to a limit.

mod exchange;
mod head;
mod prefixed;
mod response;

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request};
use http_body_util::Full;
use tokio::io::ReadBuf;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{Instant, Sleep};

pub(crate) use self::exchange::Socket;
use self::exchange::{Exchange, Io};
use self::head::{BODY_MAX, HEAD_MAX, Head, Recogniser, Unrecognised};
pub(crate) use self::prefixed::Prefixed;
use crate::backend::blocking_thread::while_blocking;
use crate::backend::moment::Clocks;
use crate::http::connection::ConnectionService;
use crate::http::inline_task::InlineTask;
use crate::http::lone_caller::LoneCaller;
use crate::http::request_set::ReadBudget;
use crate::http::short_response::ShortResponse;
use crate::present::refusals::Indeterminate;

/// What is read at once, in bytes.
const READ_BYTES: usize = 8 << 10;
/// What is kept while a call is in progress, in bytes.
const INPUT_MAX: usize = HEAD_MAX + BODY_MAX;
/// How long the rest of a body may take before hyper, with its own timeouts, waits for it.
const BODY_TIMEOUT: Duration = Duration::from_millis(250);

/// The most calls that begin in one turn, as many as of an HTTP/2 connection: a client may send hundreds at once.
const CALLS_MAX: usize = 4;

/// How a connection ends here.
pub(crate) enum End<I> {
    /// It is closed.
    Closed,
    /// The client has sent something else: hyper is to serve it.
    Unrecognised(Prefixed<I>),
    /// The connection began with the preface of the stream protocol, which is not in the stream any more.
    Stream(Prefixed<I>),
}

/// Serves a connection while its requests are recognised.
pub(crate) struct DirectConnection<I: Socket> {
    task: Arc<InlineTask<Exchange<I>>>,
    service: ConnectionService,
    /// `None` if the threads of this runtime must not block.
    lone_caller: Option<Arc<LoneCaller>>,
    /// What the socket may read in one turn.
    reading: ReadBudget,
    recogniser: Recogniser,
    idle_timeout: Duration,
    /// Due when the connection may have been idle for too long.
    timer: Pin<Box<Sleep>>,
    /// Since when the body of a request is incomplete.
    partial_since: Option<Instant>,
    /// The connection may still begin with the preface of the stream protocol.
    may_stream: bool,
}

/// What the reading task does next.
enum Step<I> {
    /// Look again.
    Again,
    /// Poll this call.
    Call(Head, Bytes),
    /// Wait.
    Wait,
    End(End<I>),
}

impl<I: Socket> DirectConnection<I> {
    /// `idle_timeout` is the longest time between two requests.
    pub(crate) fn new(
        stream: I,
        service: ConnectionService,
        clocks: &Arc<Clocks>,
        lone_caller: &Arc<LoneCaller>,
        reading: ReadBudget,
        idle_timeout: Duration,
    ) -> DirectConnection<I> {
        let may_block = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        DirectConnection {
            task: InlineTask::new(Exchange::new(stream, clocks)),
            service,
            lone_caller: may_block.then(|| Arc::clone(lone_caller)),
            reading,
            recogniser: Recogniser::default(),
            idle_timeout,
            timer: Box::pin(tokio::time::sleep(idle_timeout)),
            partial_since: None,
            may_stream: true,
        }
    }

    /// Ends the connection after the call in progress, or the one whose body is arriving.
    pub(crate) fn shut_down(self: Pin<&mut Self>) {
        self.task.receiver.lock().is_closing = true;
    }

    fn step(&mut self, context: &mut Context<'_>) -> Step<I> {
        let task = Arc::clone(&self.task);
        let mut io = task.receiver.lock();
        io.register(context);
        if io.poll_output(context).is_pending() {
            return Step::Wait;
        }
        if io.is_broken {
            return Step::End(End::Closed);
        }
        if !io.is_busy {
            if io.is_closing && !self.awaits_body() {
                if let Some(stream) = &mut io.stream {
                    let _ = Pin::new(stream).poll_shutdown(context);
                }
                return Step::End(End::Closed);
            }
            if let Some(step) = self.next_request(&mut io) {
                return step;
            }
        }
        if io.input.len() >= INPUT_MAX {
            return Step::Wait;
        }
        match read(&mut io, context) {
            Poll::Ready(true) => Step::Again,
            Poll::Ready(false) => Step::End(End::Closed),
            Poll::Pending => self.check_timer(&mut io, context),
        }
    }

    /// The request in the input. `None` if more is to be read.
    fn next_request(&mut self, io: &mut Io<I>) -> Option<Step<I>> {
        if io.input.is_empty() {
            return None;
        }
        if self.may_stream {
            match frames::parse_preface(&io.input) {
                Ok(None) => return None,
                Ok(Some(rest)) => return Some(begin_stream(rest.len(), io)),
                Err(_) => self.may_stream = false,
            }
        }
        match self.recogniser.recognise(&io.input) {
            Ok(head) if io.input.len() >= head.length + head.body => {
                self.partial_since = None;
                let end = head.length + head.body;
                let body = Bytes::copy_from_slice(&io.input[head.length..end]);
                io.input.drain(..end);
                if io.input.is_empty() && io.input.capacity() > HEAD_MAX {
                    io.input = Vec::new();
                }
                io.is_busy = true;
                Some(Step::Call(head, body))
            }
            Ok(_) if self.partial_since.is_none() => {
                let now = Instant::now();
                self.partial_since = Some(now);
                self.timer.as_mut().reset(now + BODY_TIMEOUT);
                None
            }
            Ok(_) if self.awaits_body() => None,
            Ok(_) | Err(Unrecognised::Partial | Unrecognised::Other) => Some(hand_over(io)),
        }
    }

    /// Whether the rest of a body may arrive any moment.
    fn awaits_body(&self) -> bool {
        self.partial_since.is_some_and(|since| since.elapsed() < BODY_TIMEOUT)
    }

    fn call(&self, head: Head, body: Bytes) {
        let service = self.service.clone();
        let mut request = Request::new(Full::new(body));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) =
            (Method::POST, head.uri, head.headers);
        let call = async move {
            let response = service.handle(request).await;
            if Indeterminate::is_in(&response) { None } else { ShortResponse::read(response).await }
        };
        // Not within the cooperative budget of the reading task: another thread polls the call too.
        let call = Box::pin(tokio::task::unconstrained(call));
        let connection = Arc::as_ptr(&self.task).addr();
        if self.lone_caller.as_ref().is_some_and(|callers| callers.count(connection)) {
            tokio::task::block_in_place(|| while_blocking(|| self.task.start(call)));
        } else {
            self.task.start(call);
        }
    }

    /// Closes a connection that has been idle for too long.
    fn check_timer(&mut self, io: &mut Io<I>, context: &mut Context<'_>) -> Step<I> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if self.partial_since.is_some() && !io.is_busy {
                return hand_over(io);
            }
            let due = if io.is_busy { now } else { io.idle_since } + self.idle_timeout;
            if due <= now {
                return Step::End(End::Closed);
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
            io.input.extend_from_slice(buffer.filled());
            Poll::Ready(true)
        }
        _ => Poll::Ready(false),
    }
}

/// Ends with what hyper is to serve. Once the connection is closing, hyper begins nothing any more.
fn hand_over<I: Socket>(io: &mut Io<I>) -> Step<I> {
    let input = std::mem::take(&mut io.input);
    match io.stream.take() {
        Some(stream) if !io.is_closing => Step::End(End::Unrecognised(Prefixed::new(input, stream))),
        _ => Step::End(End::Closed),
    }
}

/// Ends behind the preface, with as many bytes as were received after it.
fn begin_stream<I: Socket>(rest: usize, io: &mut Io<I>) -> Step<I> {
    let mut input = std::mem::take(&mut io.input);
    input.drain(..input.len() - rest);
    match io.stream.take() {
        Some(stream) if !io.is_closing => Step::End(End::Stream(Prefixed::new(input, stream))),
        _ => Step::End(End::Closed),
    }
}

impl<I: Socket> Future for DirectConnection<I> {
    type Output = End<I>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End<I>> {
        self.reading.renew();
        let mut calls = 0;
        loop {
            match self.step(context) {
                Step::Again => {}
                Step::Call(head, body) => {
                    self.call(head, body);
                    calls += 1;
                    if calls == CALLS_MAX {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Step::Wait => return Poll::Pending,
                Step::End(end) => return Poll::Ready(end),
            }
        }
    }
}

impl<I: Socket> Drop for DirectConnection<I> {
    fn drop(&mut self) {
        self.task.cancel();
        drop(self.task.receiver.lock().stream.take());
    }
}

#[cfg(test)]
mod tests {
    use identity::Role;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::backend::shards::RequestLimits;
    use crate::peer::Peer;

    /// Requests that are refused at once cost no turn of the log: a hundred in one segment delayed every other connection by
    /// a hundred responses.
    #[tokio::test]
    async fn a_turn_begins_a_few_calls_and_the_others_in_the_next() {
        // More in a row would be held back.
        const COUNT: usize = 16;
        const { assert!(CALLS_MAX <= COUNT / 3, "the bound of a turn is reached here") }
        let backend = crate::testing::backend(RequestLimits::default());
        let service = ConnectionService::unauthenticated(
            &backend,
            Peer::anonymous(Role::Worker),
            Duration::from_secs(30),
        );
        let (mut client, stream) = tokio::io::duplex(64 << 10);
        let request = "POST /v1/release HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
        client.write_all(request.repeat(COUNT).as_bytes()).await.expect("it fits");
        let (clocks, callers) = (&backend.clocks, &Arc::default());
        let connection = DirectConnection::new(
            stream,
            service,
            clocks,
            callers,
            ReadBudget::default(),
            Duration::from_secs(30),
        );
        let mut connection = std::pin::pin!(connection);
        let mut received = Vec::new();
        for turn in 1..=COUNT.div_ceil(CALLS_MAX) {
            let polled = std::future::poll_fn(|context| Poll::Ready(connection.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            let mut part = vec![0; 64 << 10];
            let read = client.read(&mut part).await.expect("responses");
            received.extend_from_slice(&part[..read]);
            let responses = String::from_utf8_lossy(&received).matches("HTTP/1.1 400 ").count();
            assert_eq!(responses, (turn * CALLS_MAX).min(COUNT));
        }
    }
}
