//! The Redis protocol (RESP 2): commands as arrays of bulk strings, and the replies that the bench's commands have.

use std::collections::VecDeque;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::shared::{Caller, Protocol};
use crate::system::{Error, Result};

/// A reply.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Reply {
    /// `+OK` and the like.
    Status(String),
    /// `-ERR …`.
    Error(String),
    /// `:1`.
    Integer(i64),
    /// A string, or nothing.
    Bulk(Option<Vec<u8>>),
}

/// Appends a command.
pub fn encode(arguments: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// The first reply of some bytes.
struct Frame<'a> {
    kind: u8,
    line: &'a str,
    /// Of a string that is there.
    bulk: Option<&'a [u8]>,
    length: usize,
}

impl Frame<'_> {
    fn number(&self) -> Result<i64> {
        self.line.parse().map_err(|_| Error::Failed(format!("not a number: {}", self.line)))
    }
}

/// Finds the first reply; nothing while it is incomplete.
fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>> {
    let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
    let line = std::str::from_utf8(&bytes[1..end]).map_err(Error::failed)?;
    let mut frame = Frame { kind: bytes[0], line, bulk: None, length: end + 2 };
    if frame.kind == b'$'
        && let Ok(length) = usize::try_from(frame.number()?)
    {
        frame.bulk = bytes.get(end + 2..end + 2 + length);
        frame.length = end + 2 + length + 2;
    }
    Ok((bytes.len() >= frame.length).then_some(frame))
}

/// Parses one reply; returns it with its length, or nothing while it is incomplete.
pub fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some(frame) = split(bytes)? else { return Ok(None) };
    let reply = match frame.kind {
        b'+' => Reply::Status(frame.line.to_string()),
        b'-' => Reply::Error(frame.line.to_string()),
        b':' => Reply::Integer(frame.number()?),
        b'$' => Reply::Bulk(frame.bulk.map(<[u8]>::to_vec)),
        other => return Err(Error::Failed(format!("unexpected reply type {}", char::from(other)))),
    };
    Ok(Some((reply, frame.length)))
}

/// Sends commands, and reads their replies in order.
pub trait Pipeline: Send + 'static {
    /// Queues a command.
    fn queue(&mut self, arguments: &[&[u8]]);

    /// Sends what is queued.
    fn flush(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// The next reply to what was sent; an error reply is an error.
    fn reply(&mut self) -> impl Future<Output = Result<Reply>> + Send;

    /// One command, one reply.
    fn call(&mut self, arguments: &[&[u8]]) -> impl Future<Output = Result<Reply>> + Send {
        self.queue(arguments);
        async {
            self.flush().await?;
            self.reply().await
        }
    }
}

fn checked(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Error(text) => Err(Error::Failed(text)),
        reply => Ok(reply),
    }
}

/// A connection to Redis of one caller.
pub struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Connection {
    /// Connects, without Nagle's algorithm.
    pub async fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, input: Vec::new(), output: Vec::new() })
    }
}

impl Pipeline for Connection {
    fn queue(&mut self, arguments: &[&[u8]]) {
        encode(arguments, &mut self.output);
    }

    async fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    async fn reply(&mut self) -> Result<Reply> {
        loop {
            if let Some((reply, length)) = decode(&self.input)? {
                self.input.drain(..length);
                return checked(reply);
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(Error::failed("the server closed the connection"));
            }
        }
    }
}

/// Callers in the order of their commands, which is that of the replies.
#[derive(Default)]
pub struct InOrder(VecDeque<usize>);

impl Protocol for InOrder {
    async fn open(address: &str) -> Result<(TcpStream, InOrder)> {
        Ok((Connection::open(address).await?.stream, InOrder::default()))
    }

    fn callers_max(&self) -> usize {
        usize::MAX
    }

    fn reply(&mut self, input: &[u8]) -> Result<Option<(usize, usize)>> {
        let Some(frame) = split(input)? else { return Ok(None) };
        let caller = self.0.pop_front().ok_or_else(|| Error::failed("a reply without a command"))?;
        Ok(Some((caller, frame.length)))
    }
}

/// A caller of a connection that others use too.
pub struct SharedConnection {
    caller: Caller<InOrder>,
    output: Vec<u8>,
    /// Commands in the output.
    queued: usize,
    input: Vec<u8>,
    /// Bytes of the input that were returned as replies.
    consumed: usize,
}

impl SharedConnection {
    /// Commands of this caller.
    pub fn new(caller: Caller<InOrder>) -> SharedConnection {
        SharedConnection { caller, output: Vec::new(), queued: 0, input: Vec::new(), consumed: 0 }
    }
}

impl Pipeline for SharedConnection {
    fn queue(&mut self, arguments: &[&[u8]]) {
        encode(arguments, &mut self.output);
        self.queued += 1;
    }

    /// Returns when all replies have arrived.
    async fn flush(&mut self) -> Result<()> {
        let (queued, output) = (std::mem::take(&mut self.queued), &mut self.output);
        self.consumed = 0;
        let encode = |caller, protocol: &mut InOrder, out: &mut Vec<u8>| {
            out.append(output);
            protocol.0.extend(std::iter::repeat_n(caller, queued));
            Ok(())
        };
        self.caller.call(queued, &mut self.input, encode).await
    }

    async fn reply(&mut self) -> Result<Reply> {
        let next = decode(&self.input[self.consumed..])?;
        let (reply, length) = next.ok_or_else(|| Error::failed("a reply without a command"))?;
        self.consumed += length;
        checked(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        encode(&[b"SET", b"k", b""], &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
    }

    #[test]
    fn replies_are_decoded_and_incomplete_ones_wait() {
        let whole = |bytes: &[u8]| decode(bytes).expect("sound");
        assert_eq!(whole(b"+OK\r\n:1\r\n"), Some((Reply::Status("OK".into()), 5)));
        assert_eq!(whole(b":-3\r\n"), Some((Reply::Integer(-3), 5)));
        assert_eq!(whole(b"$-1\r\n"), Some((Reply::Bulk(None), 5)));
        assert_eq!(whole(b"$2\r\nab\r\n"), Some((Reply::Bulk(Some(b"ab".to_vec())), 8)));
        assert_eq!(whole(b"-ERR no\r\n"), Some((Reply::Error("ERR no".into()), 9)));
        for cut in 0..8 {
            assert_eq!(whole(&b"$2\r\nab\r\n"[..cut]), None, "cut at {cut}");
        }
        assert!(decode(b"?x\r\n").is_err());
    }

    #[test]
    fn replies_belong_to_callers_in_the_order_of_commands() {
        let mut callers = InOrder(VecDeque::from([3, 3, 1]));
        let input = b"+OK\r\n$2\r\nab\r\n:1\r\n";
        let mut found = Vec::new();
        let mut at = 0;
        while let Some((caller, length)) = callers.reply(&input[at..]).expect("sound") {
            at += length;
            found.push((caller, length));
        }
        assert_eq!((found, at), (vec![(3, 5), (3, 8), (1, 4)], input.len()));
        assert!(callers.reply(b"+OK\r\n").is_err(), "a reply that no command asked for");
        assert_eq!(callers.reply(b"$2\r\nab").expect("sound"), None);
    }
}
