//! lockd's stream protocol: requests and responses in frames, on a connection of one caller or of many.
//!
//! Left out: TLS, and the cancellation of requests.

use std::collections::HashMap;

use frames::{Field, Message, Method, RequestId, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Response;
use super::shared::{Caller, Protocol};
use crate::system::{Error, Result};

/// Connects, without Nagle's algorithm, and reads the server's settings.
async fn open(address: &str) -> Result<(TcpStream, Settings)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(frames::PREFACE).await?;
    let mut input = Vec::with_capacity(64);
    loop {
        if let Some(rest) = frames::parse_preface(&input).map_err(Error::failed)?
            && let Some((message, length)) = frames::parse(rest).map_err(Error::failed)?
        {
            let Message::Settings(settings) = message else { return Err(unexpected(&message)) };
            // Nothing follows before the first request.
            return if rest.len() == length { Ok((stream, settings)) } else { Err(unexpected(&message)) };
        }
        if stream.read_buf(&mut input).await? == 0 {
            return Err(Error::failed("the server closed the connection"));
        }
    }
}

/// Appends a request with a JSON body, under this lease if it needs one.
fn encode(id: u32, target: &str, lease: Option<&str>, body: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let lease = lease.map(|lease| (Field::LeaseId, lease.as_bytes()));
    frames::encode_request(out, RequestId(id), Method::Post, target, lease, body).map_err(Error::failed)
}

/// The response in this frame, which is whole.
fn response(frame: &[u8]) -> Result<(RequestId, Response<'_>)> {
    match frames::parse(frame).map_err(Error::failed)? {
        Some((Message::Response(frames::Response { id, status, body, .. }), _)) => {
            Ok((id, Response { status, body }))
        }
        Some((message, _)) => Err(unexpected(&message)),
        None => Err(Error::failed("half a frame")),
    }
}

fn unexpected(message: &Message<'_>) -> Error {
    Error::Failed(format!("unexpected frame: {message:?}"))
}

/// A connection of one caller, with one request in flight.
pub struct Connection {
    stream: TcpStream,
    last: u32,
    output: Vec<u8>,
    input: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub async fn open(address: &str) -> Result<Connection> {
        let (stream, _) = open(address).await?;
        Ok(Connection { stream, last: 0, output: Vec::with_capacity(1024), input: Vec::with_capacity(4096) })
    }

    /// Sends a request, and waits for its response.
    pub async fn post(&mut self, target: &str, lease: Option<&str>, body: &[u8]) -> Result<Response<'_>> {
        self.last += 1;
        self.output.clear();
        encode(self.last, target, lease, body, &mut self.output)?;
        self.stream.write_all(&self.output).await?;
        self.input.clear();
        while frame_length(&self.input).is_none_or(|length| self.input.len() < length) {
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(Error::failed("the server closed the connection"));
            }
        }
        match response(&self.input)? {
            (id, response) if id.0 == self.last => Ok(response),
            (id, _) => Err(Error::Failed(format!("response to {id:?} instead of {}", self.last))),
        }
    }
}

/// The length of the first frame, once it is known.
fn frame_length(input: &[u8]) -> Option<usize> {
    input.first_chunk().map(|length| u32::from_le_bytes(*length) as usize + 4)
}

/// Callers by the numbers of their requests.
pub struct ByNumber {
    last: u32,
    in_flight_max: usize,
    callers: HashMap<RequestId, usize>,
}

impl Protocol for ByNumber {
    async fn open(address: &str) -> Result<(TcpStream, ByNumber)> {
        let (stream, settings) = open(address).await?;
        let in_flight_max = settings.in_flight_max as usize;
        Ok((stream, ByNumber { last: 0, in_flight_max, callers: HashMap::with_capacity(in_flight_max) }))
    }

    fn callers_max(&self) -> usize {
        self.in_flight_max
    }

    fn reply(&mut self, input: &[u8]) -> Result<Option<(usize, usize)>> {
        let Some(length) = frame_length(input).filter(|length| input.len() >= *length) else {
            return Ok(None);
        };
        let (id, _) = response(&input[..length])?;
        let caller = self.callers.remove(&id);
        let caller = caller.ok_or_else(|| Error::Failed(format!("response to {id:?}, not in flight")))?;
        Ok(Some((caller, length)))
    }
}

/// A caller of a connection that others use too, with one request in flight.
pub struct SharedConnection {
    caller: Caller<ByNumber>,
    input: Vec<u8>,
}

impl SharedConnection {
    /// Calls by this caller.
    pub fn new(caller: Caller<ByNumber>) -> SharedConnection {
        SharedConnection { caller, input: Vec::with_capacity(1024) }
    }

    /// Sends a request, and waits for its response.
    pub async fn post(&mut self, target: &str, lease: Option<&str>, body: &[u8]) -> Result<Response<'_>> {
        let encode = |caller, protocol: &mut ByNumber, out: &mut Vec<u8>| {
            protocol.last += 1;
            encode(protocol.last, target, lease, body, out)?;
            protocol.callers.insert(RequestId(protocol.last), caller);
            Ok(())
        };
        self.caller.call(1, &mut self.input, encode).await?;
        Ok(response(&self.input)?.1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::shared::Sharing;
    use super::*;

    const CALLERS: usize = 8;

    /// Reads one request of each caller, and replies in reverse, in segments of any length: with the caller's own body.
    async fn reply_in_reverse(listener: tokio::net::TcpListener) -> Result<()> {
        let (mut stream, _) = listener.accept().await?;
        let mut output = frames::PREFACE.to_vec();
        let settings = Settings { in_flight_max: CALLERS as u32, ..Settings::DEFAULT };
        frames::encode_control(&mut output, &Message::Settings(settings));
        stream.write_all(&output).await?;
        let mut preface = [0; frames::PREFACE.len()];
        stream.read_exact(&mut preface).await?;
        let mut input = Vec::new();
        let mut requests: Vec<(RequestId, Vec<u8>)> = Vec::new();
        while stream.read_buf(&mut input).await? > 0 {
            while let Some((message, length)) = frames::parse(&input).map_err(Error::failed)? {
                let Message::Request(request) = message else { return Err(unexpected(&message)) };
                requests.push((request.id, request.body.to_vec()));
                input.drain(..length);
            }
            if requests.len() < CALLERS {
                continue;
            }
            output.clear();
            for (id, body) in requests.drain(..).rev() {
                frames::encode_response(&mut output, id, 200, [], &body).map_err(Error::failed)?;
            }
            for part in output.chunks(13) {
                stream.write_all(part).await?;
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn callers_of_one_connection_get_their_own_replies_in_any_order() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        let server = tokio::spawn(reply_in_reverse(listener));
        let sharing = Sharing::default();
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            callers.push(SharedConnection::new(sharing.caller(&address).await.expect("a caller")));
        }
        let beyond = sharing.caller(&address).await.map(drop);
        assert!(matches!(beyond, Err(Error::Unsupported(_))), "{beyond:?}");
        let mut tasks = tokio::task::JoinSet::new();
        for (number, mut caller) in callers.into_iter().enumerate() {
            tasks.spawn(async move {
                for call in 0..50 {
                    let body = format!("{number}:{call}");
                    let response = caller.post("/v1/acquire", None, body.as_bytes()).await.expect("a reply");
                    assert_eq!((response.status, response.body), (200, body.as_bytes()));
                }
            });
        }
        let done = async { while tasks.join_next().await.transpose().expect("no panic").is_some() {} };
        tokio::time::timeout(Duration::from_secs(20), done).await.expect("all calls have replies");
        // The connection ends behind its last caller.
        let ended =
            tokio::time::timeout(Duration::from_secs(20), server).await.expect("the end of the stream");
        ended.expect("no panic").expect("requests only");
    }

    #[tokio::test]
    async fn callers_of_a_connection_that_ends_fail() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        let server = tokio::spawn(reply_in_reverse(listener));
        let sharing = Sharing::default();
        let mut caller = SharedConnection::new(sharing.caller(&address).await.expect("a caller"));
        let mut other = SharedConnection::new(sharing.caller(&address).await.expect("a caller"));
        let both = async { tokio::join!(caller.post("/a", None, b""), other.post("/b", None, b"")) };
        let end = async {
            tokio::task::yield_now().await;
            server.abort();
        };
        let (replies, ()) = tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(both, end) })
            .await
            .expect("an end");
        assert!(replies.0.is_err() && replies.1.is_err());
    }
}
