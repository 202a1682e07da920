//! ZooKeeper's protocol: packets of big-endian fields ("jute"), one session on one connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::system::{Error, Result};

/// Codes of operations.
pub mod operation {
    /// Creates a node.
    pub const CREATE: i32 = 1;
    /// Deletes a node.
    pub const DELETE: i32 = 2;
    /// Reads a node's `Stat`.
    pub const EXISTS: i32 = 3;
    /// Replaces a node's data.
    pub const SET_DATA: i32 = 5;
    /// Lists a node's children.
    pub const CHILDREN: i32 = 8;
    /// Extends the session.
    pub const PING: i32 = 11;
    /// Checks a node's version, within a transaction.
    pub const CHECK: i32 = 13;
    /// Several operations, all or none.
    pub const MULTI: i32 = 14;
}

/// Refusals that the bench expects.
pub mod code {
    /// The node does not exist.
    pub const NO_NODE: i32 = -101;
    /// The node exists.
    pub const NODE_EXISTS: i32 = -110;
}

const PING_XID: i32 = -2;
const EVENT_XID: i32 = -1;

/// Writes fields.
#[derive(Default, Clone)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// A 32-bit number.
    #[must_use]
    pub fn int(mut self, value: i32) -> Writer {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A 64-bit number.
    #[must_use]
    pub fn long(mut self, value: i64) -> Writer {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A truth value.
    #[must_use]
    pub fn bool(mut self, value: bool) -> Writer {
        self.0.push(u8::from(value));
        self
    }

    /// Bytes or a text, with its length.
    #[must_use]
    pub fn buffer(mut self, value: &[u8]) -> Writer {
        self.0.extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.0.extend_from_slice(value);
        self
    }

    /// A request to create a node that everyone may change. Flags: 1 ephemeral, 2 sequential.
    #[must_use]
    pub fn create(self, path: &str, data: &[u8], flags: i32) -> Writer {
        let open = self.buffer(path.as_bytes()).buffer(data).int(1).int(31);
        open.buffer(b"world").buffer(b"anyone").int(flags)
    }

    /// The head of one operation of a transaction, or of its end.
    #[must_use]
    pub fn multi_header(self, operation: i32, done: bool) -> Writer {
        self.int(operation).bool(done).int(-1)
    }
}

/// Reads fields; a short packet is an error.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| Error::failed("short packet"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A 32-bit number.
    pub fn int(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into().map_err(Error::failed)?))
    }

    /// A 64-bit number.
    pub fn long(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take(8)?.try_into().map_err(Error::failed)?))
    }

    /// Bytes; a length of -1 means none.
    pub fn buffer(&mut self) -> Result<&'a [u8]> {
        let length = usize::try_from(self.int()?).unwrap_or(0);
        self.take(length)
    }

    /// A text.
    pub fn text(&mut self) -> Result<String> {
        String::from_utf8(self.buffer()?.to_vec()).map_err(Error::failed)
    }

    /// The number of children in a `Stat`, which follows here.
    pub fn children_of_stat(&mut self) -> Result<i32> {
        self.take(8 * 4 + 4 * 3 + 8 + 4)?;
        self.int()
    }
}

/// A response: the error code, 0 if it succeeded, and the fields after it.
pub struct Response {
    /// The error code.
    pub error: i32,
    body: Vec<u8>,
}

impl Response {
    /// The fields.
    pub fn reader(&self) -> Reader<'_> {
        Reader(&self.body)
    }

    /// Refuses every error code.
    pub fn succeeded(self) -> Result<Response> {
        if self.error == 0 { Ok(self) } else { Err(Error::Failed(format!("zookeeper error {}", self.error))) }
    }
}

/// A session.
pub struct Session {
    stream: TcpStream,
    input: Vec<u8>,
    xid: i32,
    events: Vec<String>,
}

impl Session {
    /// Connects, and begins a session with this timeout.
    pub async fn open(address: &str, timeout: Duration) -> Result<Session> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut session = Session { stream, input: Vec::new(), xid: 0, events: Vec::new() };
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let connect = Writer::default().int(0).long(0).int(timeout_ms).long(0).buffer(&[0; 16]).bool(false);
        session.write(&connect.0).await?;
        let packet = session.packet().await?;
        let mut reader = Reader(&packet);
        reader.int()?;
        let granted_ms = reader.int()?;
        if granted_ms != timeout_ms {
            return Err(Error::Failed(format!("session timeout {granted_ms} instead of {timeout_ms} ms")));
        }
        Ok(session)
    }

    /// One request, one response.
    pub async fn call(&mut self, operation: i32, body: Writer) -> Result<Response> {
        let xid = self.send(operation, body).await?;
        self.response(xid).await
    }

    /// Sends a request without waiting.
    pub async fn send(&mut self, operation: i32, body: Writer) -> Result<i32> {
        self.xid += 1;
        let xid = if operation == operation::PING { PING_XID } else { self.xid };
        let mut packet = Writer::default().int(xid).int(operation);
        packet.0.extend_from_slice(&body.0);
        self.write(&packet.0).await?;
        Ok(xid)
    }

    /// The response to the request `xid`; responses come in order of requests.
    pub async fn response(&mut self, xid: i32) -> Result<Response> {
        loop {
            let packet = self.packet().await?;
            let mut reader = Reader(&packet);
            let got = reader.int()?;
            reader.long()?;
            let error = reader.int()?;
            if got == EVENT_XID {
                self.note_event(&mut reader)?;
            } else if got == xid {
                return Ok(Response { error, body: reader.0.to_vec() });
            } else {
                return Err(Error::Failed(format!("response {got} instead of {xid}")));
            }
        }
    }

    /// Waits for a watch of this path to fire.
    pub async fn wait_for(&mut self, path: &str) -> Result<()> {
        loop {
            if let Some(at) = self.events.iter().position(|event| event == path) {
                self.events.swap_remove(at);
                return Ok(());
            }
            let packet = self.packet().await?;
            let mut reader = Reader(&packet);
            let xid = reader.int()?;
            reader.long()?;
            reader.int()?;
            if xid == EVENT_XID {
                self.note_event(&mut reader)?;
            }
        }
    }

    fn note_event(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        reader.int()?;
        reader.int()?;
        self.events.push(reader.text()?);
        Ok(())
    }

    async fn write(&mut self, packet: &[u8]) -> Result<()> {
        let framed = Writer::default().buffer(packet);
        self.stream.write_all(&framed.0).await?;
        Ok(())
    }

    async fn packet(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(length) = self.input.get(..4) {
                let length = u32::from_be_bytes(length.try_into().map_err(Error::failed)?) as usize;
                if self.input.len() >= 4 + length {
                    let packet = self.input[4..4 + length].to_vec();
                    self.input.drain(..4 + length);
                    return Ok(packet);
                }
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
    fn fields_come_back() {
        let written = Writer::default().int(-7).long(1 << 40).bool(true).buffer(b"/a").0;
        let mut reader = Reader(&written);
        assert_eq!((reader.int().expect("int"), reader.long().expect("long")), (-7, 1 << 40));
        assert_eq!(reader.take(1).expect("bool"), [1]);
        assert_eq!(reader.text().expect("text"), "/a");
        assert!(reader.int().is_err(), "the packet ends here");
    }

    #[test]
    fn create_has_the_documented_fields() {
        let body = Writer::default().create("/a", b"d", 3).0;
        let mut reader = Reader(&body);
        assert_eq!(reader.text().expect("path"), "/a");
        assert_eq!(reader.buffer().expect("data"), b"d");
        assert_eq!((reader.int().expect("acls"), reader.int().expect("rights")), (1, 31));
        assert_eq!(reader.text().expect("scheme") + &reader.text().expect("id"), "worldanyone");
        assert_eq!(reader.int().expect("flags"), 3);
    }

    #[test]
    fn a_missing_buffer_is_empty() {
        assert_eq!(Reader(&(-1i32).to_be_bytes()).buffer().expect("none"), b"");
    }

    #[test]
    fn the_children_of_a_stat_are_its_tenth_field() {
        let stat =
            Writer::default().long(1).long(2).long(3).long(4).int(5).int(6).int(7).long(8).int(9).int(10);
        assert_eq!(Reader(&stat.long(11).0).children_of_stat().expect("a stat"), 10);
    }
}
