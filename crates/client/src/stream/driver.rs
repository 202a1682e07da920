//! The task of a connection: writes requests, reads replies, and notices when the connection is dead.
//!
//! **Invariant.** Every request that was accepted gets exactly one outcome: its reply, [`StreamFailure::NotBegun`] if the server
//! has certainly not begun it, or [`StreamFailure::Unknown`].
//!
//! Memory is bounded: at most as many requests and replies as permits, one frame that is incomplete, and a few pongs.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use frames::{Field, Message, RequestId, Response, encode_control, parse, renumber};
use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior};

use super::connection::{Command, KeepAlive, NewRequest};
use super::{Reply, StreamFailure};
use crate::certificate_error;
use crate::clock::BootTime;
use crate::connect::ByteStream;

/// How many bytes are read at once, at least.
const READ_BYTES: usize = 8 << 10;
/// Buffers above this are freed when they are empty, in bytes.
const BUFFER_KEPT: usize = 64 << 10;
/// The most pongs that wait to be written.
const PONGS_MAX: u32 = 16;
/// The time for the end of TLS to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Driver {
    reader: ReadHalf<Pin<Box<dyn ByteStream>>>,
    writer: WriteHalf<Pin<Box<dyn ByteStream>>>,
    commands: mpsc::UnboundedReceiver<Command>,
    batch: Vec<Command>,
    /// Closed when the server takes no new requests.
    permits: Arc<Semaphore>,
    in_flight: BTreeMap<RequestId, InFlight>,
    last: RequestId,
    input: Vec<u8>,
    output: Output,
    /// What was received until then can still be read.
    failed_write: Option<io::Error>,
    keep_alive: KeepAlive,
    timer: Interval,
    last_read: BootTime,
    last_used: BootTime,
    /// When a ping was sent that nothing was received after.
    pinged_at: Option<BootTime>,
}

struct InFlight {
    reply: oneshot::Sender<Result<Reply, StreamFailure>>,
    is_cancelled: bool,
    _permit: OwnedSemaphorePermit,
}

/// What is to be written. Frames that come while a write is in progress leave with the next one.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    written: usize,
    /// Something was written that may not have left yet.
    is_unflushed: bool,
    pongs: u32,
}

enum Event {
    Commands(usize),
    /// So many bytes of the output were written; none if it was flushed.
    Written(io::Result<Option<usize>>),
    Read(io::Result<usize>),
    Tick,
}

/// Why the task ends: there is nothing left to do, or a failure.
type Ended = Result<(), io::Error>;

impl Driver {
    pub(super) fn new(
        stream: Pin<Box<dyn ByteStream>>,
        input: Vec<u8>,
        commands: mpsc::UnboundedReceiver<Command>,
        permits: Arc<Semaphore>,
        keep_alive: KeepAlive,
    ) -> Driver {
        let (reader, writer) = tokio::io::split(stream);
        let mut timer = tokio::time::interval(keep_alive.interval / 3);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Driver {
            reader,
            writer,
            commands,
            batch: Vec::new(),
            permits,
            in_flight: BTreeMap::new(),
            last: RequestId(0),
            input,
            output: Output::default(),
            failed_write: None,
            keep_alive,
            timer,
            last_read: BootTime::now(),
            last_used: BootTime::now(),
            pinged_at: None,
        }
    }

    pub(super) async fn run(mut self) {
        let ended = match self.receive() {
            Ok(()) => self.serve().await,
            failed => failed,
        };
        self.finish(ended);
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.writer.shutdown()).await;
    }

    async fn serve(&mut self) -> Ended {
        while !self.is_done() {
            let event = self.next_event().await;
            if let Some(ended) = self.handle(event) {
                return ended;
            }
        }
        Ok(())
    }

    /// The server takes no new requests, and has replied to all.
    fn is_done(&self) -> bool {
        self.permits.is_closed() && self.in_flight.is_empty()
    }

    /// What was received comes first: no request is sent on a connection that the server has closed.
    async fn next_event(&mut self) -> Event {
        let Driver { reader, writer, commands, batch, input, output, timer, failed_write, .. } = self;
        let can_write = failed_write.is_none();
        input.reserve(READ_BYTES);
        tokio::select! {
            biased;
            read = reader.read_buf(input) => Event::Read(read),
            count = commands.recv_many(batch, usize::MAX) => Event::Commands(count),
            written = output.write_to(writer), if can_write && (output.has_bytes() || output.is_unflushed) => {
                Event::Written(written)
            }
            _ = timer.tick() => Event::Tick,
        }
    }

    /// Returns how the task ends, if it does.
    fn handle(&mut self, event: Event) -> Option<Ended> {
        let result = match event {
            // All callers are gone.
            Event::Commands(0) => return Some(Ok(())),
            Event::Commands(_) => {
                self.accept();
                Ok(())
            }
            Event::Written(written) => {
                match written {
                    Ok(Some(0)) => self.fail_write(io::ErrorKind::WriteZero.into()),
                    Ok(Some(length)) => self.output.advance(length),
                    Ok(None) => self.output.is_unflushed = false,
                    Err(error) => self.fail_write(error),
                }
                Ok(())
            }
            Event::Read(Ok(0)) => Err(self.failed_write.take().unwrap_or_else(closed_by_server)),
            Event::Read(Ok(_)) => {
                (self.last_read, self.pinged_at) = (BootTime::now(), None);
                self.receive()
            }
            // The alert of a server that refuses the certificate says more than a failed write.
            Event::Read(Err(error)) if certificate_error::is_tls(&error) => Err(error),
            Event::Read(Err(error)) => Err(self.failed_write.take().unwrap_or(error)),
            Event::Tick => return self.tick(),
        };
        result.is_err().then_some(result)
    }

    /// Begins new requests, and cancels those without a caller.
    fn accept(&mut self) {
        let mut is_caller_gone = false;
        for command in std::mem::take(&mut self.batch) {
            match command {
                Command::Request(request) => self.begin(request),
                Command::CallerGone => is_caller_gone = true,
            }
        }
        if is_caller_gone {
            for (id, request) in &mut self.in_flight {
                if request.reply.is_closed() && !request.is_cancelled {
                    request.is_cancelled = true;
                    encode_control(&mut self.output.bytes, &Message::Cancel(*id));
                }
            }
        }
    }

    fn begin(&mut self, request: NewRequest) {
        let NewRequest { frame, reply, permit } = request;
        if reply.is_closed() {
            return;
        }
        if self.permits.is_closed() {
            let _ = reply.send(Err(StreamFailure::NotBegun));
            return;
        }
        self.last = RequestId(self.last.0 + 1);
        if self.last.0 == u32::MAX - 1 {
            // The numbers are used up.
            self.permits.close();
        }
        let start = self.output.bytes.len();
        self.output.bytes.extend_from_slice(&frame);
        renumber(&mut self.output.bytes[start..], self.last);
        self.last_used = BootTime::now();
        self.in_flight.insert(self.last, InFlight { reply, is_cancelled: false, _permit: permit });
    }

    /// Nothing more can be sent, but replies may be on their way.
    fn fail_write(&mut self, error: io::Error) {
        self.failed_write = Some(error);
        self.permits.close();
        self.pinged_at = Some(BootTime::now());
    }

    /// Takes the whole frames from the input.
    fn receive(&mut self) -> Result<(), io::Error> {
        let mut input = std::mem::take(&mut self.input);
        let mut taken = 0;
        while let Some((message, length)) = parse(&input[taken..]).map_err(invalid)? {
            self.take(message)?;
            taken += length;
        }
        input.drain(..taken);
        self.input = if input.is_empty() && input.capacity() > BUFFER_KEPT { Vec::new() } else { input };
        Ok(())
    }

    fn take(&mut self, message: Message<'_>) -> Result<(), io::Error> {
        match message {
            Message::Response(response) => self.settle(response.id, Ok(reply(&response))),
            Message::Aborted(id) => {
                let error = io::Error::other("the server ended the request without a response");
                self.settle(id, Err(StreamFailure::Unknown(Arc::new(error))))
            }
            Message::GoAway(last) => {
                self.permits.close();
                for (_, request) in self.in_flight.split_off(&RequestId(last.0.saturating_add(1))) {
                    let _ = request.reply.send(Err(StreamFailure::NotBegun));
                }
                Ok(())
            }
            Message::Ping(_) if self.output.pongs == PONGS_MAX => Err(invalid("too many pings")),
            Message::Ping(number) => {
                self.output.pongs += 1;
                encode_control(&mut self.output.bytes, &Message::Pong(number));
                Ok(())
            }
            Message::Pong(_) => Ok(()),
            Message::Settings(_) | Message::Request(_) | Message::Cancel(_) => {
                Err(invalid("a frame that a server does not send at this point"))
            }
        }
    }

    fn settle(&mut self, id: RequestId, outcome: Result<Reply, StreamFailure>) -> Result<(), io::Error> {
        let Some(request) = self.in_flight.remove(&id) else {
            return Err(invalid("a reply without a request"));
        };
        self.last_used = BootTime::now();
        // The caller may be gone.
        let _ = request.reply.send(outcome);
        Ok(())
    }

    fn tick(&mut self) -> Option<Ended> {
        if let Some(pinged_at) = self.pinged_at {
            let is_dead = pinged_at.elapsed() >= self.keep_alive.timeout;
            let dead = || io::Error::new(io::ErrorKind::TimedOut, "no reply to a ping");
            return is_dead.then(|| Err(self.failed_write.take().unwrap_or_else(dead)));
        }
        if self.in_flight.is_empty() {
            return (self.last_used.elapsed() >= self.keep_alive.idle).then_some(Ok(()));
        }
        if self.last_read.elapsed() >= self.keep_alive.interval {
            self.pinged_at = Some(BootTime::now());
            encode_control(&mut self.output.bytes, &Message::Ping(0));
        }
        None
    }

    fn finish(&mut self, ended: Ended) {
        self.permits.close();
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Request(request) = command {
                let _ = request.reply.send(Err(StreamFailure::NotBegun));
            }
        }
        let failure = Arc::new(ended.err().unwrap_or_else(closed_by_server));
        for request in std::mem::take(&mut self.in_flight).into_values() {
            let _ = request.reply.send(Err(StreamFailure::Unknown(Arc::clone(&failure))));
        }
    }
}

impl Output {
    fn has_bytes(&self) -> bool {
        self.written < self.bytes.len()
    }

    async fn write_to(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<Option<usize>> {
        if self.has_bytes() {
            return writer.write(&self.bytes[self.written..]).await.map(Some);
        }
        writer.flush().await.map(|()| None)
    }

    fn advance(&mut self, length: usize) {
        self.written += length;
        self.is_unflushed = true;
        if !self.has_bytes() {
            (self.written, self.pongs) = (0, 0);
            self.bytes.clear();
            self.bytes.shrink_to(BUFFER_KEPT);
        }
    }
}

fn reply(response: &Response<'_>) -> Reply {
    let server = response.fields.get(Field::Server);
    Reply {
        status: response.status,
        server: server.map(|server| String::from_utf8_lossy(server).into_owned()),
        body: Bytes::copy_from_slice(response.body),
    }
}

fn closed_by_server() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
