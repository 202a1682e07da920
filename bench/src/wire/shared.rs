//! One connection for many callers: requests that are queued while others are written leave in one write, and replies are
//! handed to the callers that wait for them.
//!
//! A caller appends its request to the output, and wakes the writing task if that was empty. The task lets all callers that
//! can run append theirs first, then writes the output at once. A reading task copies each reply into the mailbox of its
//! caller. Buffers are swapped and kept: a call allocates nothing here. A caller that is alone writes by itself.
//!
//! **Invariant.** A caller gets exactly as many replies as it has sent requests, and no other caller's.
//! Left out: callers that give up. The reply of a dropped call stays in its mailbox, so that its caller may not call again.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::system::{Error, Result};

/// Capacity of the buffer for what is read at once, in bytes.
const READ_BYTES: usize = 64 << 10;

/// How a protocol finds the caller of a reply.
pub trait Protocol: Sized + Send + 'static {
    /// Connects, up to where requests may be sent.
    fn open(address: &str) -> impl Future<Output = Result<(TcpStream, Self)>> + Send;

    /// How many callers may share a connection, each with one request in flight.
    fn callers_max(&self) -> usize;

    /// The first reply of the input: its caller, and its length. `None` if more must arrive first.
    fn reply(&mut self, input: &[u8]) -> Result<Option<(usize, usize)>>;
}

/// The connection that is shared at present. It is opened for the first caller, and closed behind the last.
pub struct Sharing<P: Protocol> {
    current: tokio::sync::Mutex<Weak<Connection<P>>>,
}

impl<P: Protocol> Default for Sharing<P> {
    fn default() -> Sharing<P> {
        Sharing { current: tokio::sync::Mutex::default() }
    }
}

impl<P: Protocol> Sharing<P> {
    /// A further caller of the shared connection to this address.
    pub async fn caller(&self, address: &str) -> Result<Caller<P>> {
        let mut current = self.current.lock().await;
        let usable = |connection: &Arc<Connection<P>>| {
            connection.address == address && connection.link.lock().failure.is_none()
        };
        if let Some(connection) = current.upgrade().filter(usable) {
            return Connection::add_caller(connection);
        }
        let (stream, protocol) = P::open(address).await?;
        let connection = Connection::new(address, stream, protocol);
        *current = Arc::downgrade(&connection);
        Connection::add_caller(connection)
    }
}

/// A connection with its tasks, which end with it.
struct Connection<P: Protocol> {
    address: String,
    link: Arc<Link<P>>,
    tasks: [AbortHandle; 2],
}

/// What callers and tasks share.
struct Link<P: Protocol> {
    state: Mutex<State<P>>,
    stream: OwnedWriteHalf,
    /// There is output.
    queued: Notify,
}

struct State<P: Protocol> {
    protocol: P,
    output: Vec<u8>,
    mailboxes: Vec<Mailbox>,
    failure: Option<String>,
}

/// Where the replies of a caller arrive.
#[derive(Default)]
struct Mailbox {
    replies: Vec<u8>,
    /// Replies that are still to arrive.
    missing: usize,
    waker: Option<Waker>,
}

impl<P: Protocol> Connection<P> {
    fn new(address: &str, stream: TcpStream, protocol: P) -> Arc<Connection<P>> {
        let (reading, writing) = stream.into_split();
        let state =
            State { protocol, output: Vec::with_capacity(4096), mailboxes: Vec::new(), failure: None };
        let link = Arc::new(Link { state: Mutex::new(state), stream: writing, queued: Notify::new() });
        let reader = tokio::spawn(read_replies(reading, Arc::clone(&link)));
        let writer = tokio::spawn(write_requests(Arc::clone(&link)));
        let tasks = [reader.abort_handle(), writer.abort_handle()];
        Arc::new(Connection { address: address.to_string(), link, tasks })
    }

    fn add_caller(connection: Arc<Connection<P>>) -> Result<Caller<P>> {
        let mut state = connection.link.lock();
        let (number, max) = (state.mailboxes.len(), state.protocol.callers_max());
        if number >= max {
            return Err(Error::Unsupported(format!("more than {max} callers of one connection")));
        }
        state.mailboxes.push(Mailbox::default());
        drop(state);
        Ok(Caller { connection, number })
    }
}

impl<P: Protocol> Drop for Connection<P> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// One of the callers of a connection.
pub struct Caller<P: Protocol> {
    connection: Arc<Connection<P>>,
    number: usize,
}

impl<P: Protocol> Caller<P> {
    /// Sends what `encode` appends, so many requests, and replaces `replies` by as many replies. `encode` gets the number of
    /// this caller, which the protocol names for each of the replies.
    pub async fn call(
        &mut self,
        requests: usize,
        replies: &mut Vec<u8>,
        encode: impl FnOnce(usize, &mut P, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let (link, number) = (&*self.connection.link, self.number);
        replies.clear();
        let mut encode = Some(encode);
        poll_fn(|context| {
            let mut state = link.lock();
            if let Some(encode) = encode.take() {
                link.send(&mut state, number, requests, encode)?;
            }
            state.poll_replies(number, replies, context)
        })
        .await
    }
}

impl<P: Protocol> Link<P> {
    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(
        &self,
        state: &mut State<P>,
        number: usize,
        requests: usize,
        encode: impl FnOnce(usize, &mut P, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let was_empty = state.output.is_empty();
        encode(number, &mut state.protocol, &mut state.output)?;
        state.mailboxes[number].missing += requests;
        if state.mailboxes.len() == 1 {
            self.write_alone(state)?;
        } else if was_empty {
            self.queued.notify_one();
        }
        Ok(())
    }

    /// Writes the requests of the only caller, without the writing task, which has nothing to write: all earlier ones have
    /// their replies.
    fn write_alone(&self, state: &mut State<P>) -> Result<()> {
        let written = written(self.stream.try_write(&state.output))?;
        state.output.drain(..written);
        if !state.output.is_empty() {
            self.queued.notify_one();
        }
        Ok(())
    }

    fn fail(&self, error: &Error) {
        let mut state = self.lock();
        state.failure.get_or_insert_with(|| format!("the shared connection has failed: {error:?}"));
        let wakers: Vec<Waker> =
            state.mailboxes.iter_mut().filter_map(|mailbox| mailbox.waker.take()).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<P: Protocol> State<P> {
    /// Takes the replies of a caller, once none is missing.
    fn poll_replies(
        &mut self,
        number: usize,
        replies: &mut Vec<u8>,
        context: &Context<'_>,
    ) -> Poll<Result<()>> {
        let mailbox = &mut self.mailboxes[number];
        if mailbox.missing == 0 {
            std::mem::swap(&mut mailbox.replies, replies);
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = &self.failure {
            return Poll::Ready(Err(Error::Failed(failure.clone())));
        }
        mailbox.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Hands out all whole replies of the input, and returns their length. Adds the callers that wait for nothing more.
    fn distribute(&mut self, input: &[u8], wakers: &mut Vec<Waker>) -> Result<usize> {
        let mut consumed = 0;
        while let Some((number, length)) = self.protocol.reply(&input[consumed..])? {
            let unexpected = || Error::failed("a reply that no caller waits for");
            let mailbox = self.mailboxes.get_mut(number).ok_or_else(unexpected)?;
            mailbox.missing = mailbox.missing.checked_sub(1).ok_or_else(unexpected)?;
            mailbox.replies.extend_from_slice(&input[consumed..consumed + length]);
            if mailbox.missing == 0 {
                wakers.extend(mailbox.waker.take());
            }
            consumed += length;
        }
        Ok(consumed)
    }
}

async fn read_replies<P: Protocol>(mut stream: OwnedReadHalf, link: Arc<Link<P>>) {
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut wakers = Vec::new();
    let error = loop {
        match stream.read_buf(&mut input).await {
            Ok(0) => break Error::failed("the server closed it"),
            Ok(_) => {}
            Err(error) => break error.into(),
        }
        let distributed = link.lock().distribute(&input, &mut wakers);
        // Without the lock, which the callers take first.
        wakers.drain(..).for_each(Waker::wake);
        match distributed {
            Ok(consumed) => drop(input.drain(..consumed)),
            Err(error) => break error,
        }
    };
    link.fail(&error);
}

async fn write_requests<P: Protocol>(link: Arc<Link<P>>) {
    let mut batch = Vec::with_capacity(4096);
    loop {
        link.queued.notified().await;
        // Behind the callers that were woken together with the one that has queued a request.
        tokio::task::yield_now().await;
        batch.clear();
        std::mem::swap(&mut batch, &mut link.lock().output);
        if let Err(error) = write_all(&link.stream, &batch).await {
            return link.fail(&error);
        }
    }
}

async fn write_all(stream: &OwnedWriteHalf, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match written(stream.try_write(bytes))? {
            0 => stream.writable().await?,
            length => bytes = &bytes[length..],
        }
    }
    Ok(())
}

/// How many bytes the socket has taken: none if it is full.
fn written(result: std::io::Result<usize>) -> Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => Ok(other?),
    }
}
