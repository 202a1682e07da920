//! A connection of the stream protocol, as its callers see it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use frames::{IN_FLIGHT_MAX, Message, PREFACE, Settings, parse, parse_preface};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, oneshot};

use super::driver::Driver;
use super::{Reply, StreamFailure};
use crate::connect::ByteStream;

/// How a connection is tested, and when an unused one is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAlive {
    /// With requests in flight, a ping is sent when nothing was received for this long.
    pub(super) interval: Duration,
    /// The connection is dead if nothing is received for this long after a ping.
    pub(super) timeout: Duration,
    /// A connection without requests is closed after this.
    pub(super) idle: Duration,
}

impl KeepAlive {
    /// As for connections of HTTP.
    pub(super) const DEFAULT: KeepAlive = KeepAlive {
        interval: Duration::from_secs(15),
        timeout: Duration::from_secs(10),
        idle: Duration::from_secs(90),
    };
}

/// What the server has sent first.
pub(super) struct Greeting {
    pub(super) settings: Settings,
    /// The bytes behind its settings.
    pub(super) rest: Vec<u8>,
}

/// What callers send to the connection's task. There are at most as many requests as permits, and one cancellation for each:
/// the channel needs no limit of its own.
pub(super) enum Command {
    Request(NewRequest),
    /// A caller does not wait for its reply any more: its `reply` is closed.
    CallerGone,
}

pub(super) struct NewRequest {
    /// Without a number.
    pub(super) frame: Bytes,
    pub(super) reply: oneshot::Sender<Result<Reply, StreamFailure>>,
    /// One request less may be in flight until this is dropped.
    pub(super) permit: OwnedSemaphorePermit,
}

/// An open connection. It is closed when the last copy is dropped.
#[derive(Clone)]
pub(super) struct Connection {
    commands: mpsc::UnboundedSender<Command>,
    /// Closed when the connection takes no new requests.
    permits: Arc<Semaphore>,
    request_max: usize,
}

impl Connection {
    /// Starts the connection's task.
    pub(super) fn start(
        stream: Pin<Box<dyn ByteStream>>,
        greeting: Greeting,
        keep_alive: KeepAlive,
    ) -> Connection {
        // At its maximum a server may read nothing, pings and cancellations included.
        let in_flight_max = greeting.settings.in_flight_max.min(IN_FLIGHT_MAX).saturating_sub(1);
        let permits = Arc::new(Semaphore::new(in_flight_max as usize));
        let (commands, receiver) = mpsc::unbounded_channel();
        let driver = Driver::new(stream, greeting.rest, receiver, Arc::clone(&permits), keep_alive);
        tokio::spawn(driver.run());
        Connection { commands, permits, request_max: greeting.settings.request_max as usize }
    }

    /// Whether it takes new requests.
    pub(super) fn is_usable(&self) -> bool {
        !self.permits.is_closed() && !self.commands.is_closed()
    }

    /// Sends a request and waits for the reply. `None` if the request is too long for this server, or as many as it takes are in
    /// flight. Dropping the future cancels the request.
    pub(super) async fn exchange(&self, frame: &Bytes) -> Result<Option<Reply>, StreamFailure> {
        if frame.len() > self.request_max {
            return Ok(None);
        }
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(TryAcquireError::NoPermits) => return Ok(None),
            Err(TryAcquireError::Closed) => return Err(StreamFailure::NotBegun),
        };
        let (reply, receiver) = oneshot::channel();
        let request = NewRequest { frame: frame.clone(), reply, permit };
        if self.commands.send(Command::Request(request)).is_err() {
            return Err(StreamFailure::NotBegun);
        }
        let mut waiting = ReplyReceiver { receiver, commands: &self.commands, is_done: false };
        let outcome = (&mut waiting.receiver).await;
        waiting.is_done = true;
        match outcome {
            Ok(reply) => reply.map(Some),
            // The task ended with its runtime.
            Err(_) => Err(StreamFailure::Unknown(Arc::new(io::ErrorKind::BrokenPipe.into()))),
        }
    }
}

/// Cancels its request if it is dropped before the reply is there.
struct ReplyReceiver<'a> {
    receiver: oneshot::Receiver<Result<Reply, StreamFailure>>,
    commands: &'a mpsc::UnboundedSender<Command>,
    is_done: bool,
}

impl Drop for ReplyReceiver<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.receiver.close();
            // If the task has ended, there is nothing to cancel.
            let _ = self.commands.send(Command::CallerGone);
        }
    }
}

/// Exchanges prefaces with the server, and reads its settings. `None` if it speaks another protocol.
pub(super) async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<Option<Greeting>> {
    stream.write_all(PREFACE).await?;
    stream.flush().await?;
    let mut received = Vec::with_capacity(64);
    loop {
        let Ok(behind) = parse_preface(&received) else { return Ok(None) };
        match behind.map_or(Ok(None), parse) {
            Ok(Some((Message::Settings(settings), length))) => {
                let rest = received.split_off(PREFACE.len() + length);
                return Ok(Some(Greeting { settings, rest }));
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Ok(None),
        }
        if stream.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
