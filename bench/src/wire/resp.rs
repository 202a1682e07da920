//! The Redis protocol (RESP 2): commands as arrays of bulk strings, and the replies that the bench's commands have.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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

/// Parses one reply; returns it with its length, or nothing while it is incomplete.
pub fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
    let line = std::str::from_utf8(&bytes[1..end]).map_err(Error::failed)?;
    let after = end + 2;
    let number = || line.parse::<i64>().map_err(|_| Error::Failed(format!("not a number: {line}")));
    let reply = match bytes[0] {
        b'+' => Reply::Status(line.to_string()),
        b'-' => Reply::Error(line.to_string()),
        b':' => Reply::Integer(number()?),
        b'$' => {
            let Ok(length) = usize::try_from(number()?) else { return Ok(Some((Reply::Bulk(None), after))) };
            if bytes.len() < after + length + 2 {
                return Ok(None);
            }
            let text = bytes[after..after + length].to_vec();
            return Ok(Some((Reply::Bulk(Some(text)), after + length + 2)));
        }
        other => return Err(Error::Failed(format!("unexpected reply type {}", char::from(other)))),
    };
    Ok(Some((reply, after)))
}

/// A connection to Redis.
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

    /// One command, one reply; an error reply is an error.
    pub async fn call(&mut self, arguments: &[&[u8]]) -> Result<Reply> {
        self.queue(arguments);
        self.flush().await?;
        self.reply().await
    }

    /// Queues a command of a pipeline.
    pub fn queue(&mut self, arguments: &[&[u8]]) {
        encode(arguments, &mut self.output);
    }

    /// Sends what is queued.
    pub async fn flush(&mut self) -> Result<()> {
        self.stream.write_all(&self.output).await?;
        self.output.clear();
        Ok(())
    }

    /// The next reply.
    pub async fn reply(&mut self) -> Result<Reply> {
        loop {
            if let Some((reply, length)) = decode(&self.input)? {
                self.input.drain(..length);
                return match reply {
                    Reply::Error(text) => Err(Error::Failed(text)),
                    reply => Ok(reply),
                };
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(Error::failed("the server closed the connection"));
            }
        }
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
}
