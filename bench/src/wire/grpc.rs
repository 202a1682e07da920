//! gRPC over HTTP/2: unary calls and streams of messages, on one connection per client.

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use tokio::net::TcpStream;

use crate::system::{Error, Result};

/// Flow-control window, for responses of a megabyte.
const WINDOW: u32 = 4 << 20;

/// A connection.
#[derive(Clone)]
pub struct Channel {
    send: SendRequest<Bytes>,
    authority: String,
}

impl Channel {
    /// Connects; a task serves the connection until the last clone of the channel is dropped.
    pub async fn open(address: &str) -> Result<Channel> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (send, connection) = builder.handshake(stream).await.map_err(Error::failed)?;
        tokio::spawn(connection);
        Ok(Channel { send, authority: address.to_string() })
    }

    /// A call with one request and one response.
    pub async fn call(&mut self, path: &str, message: &[u8]) -> Result<Vec<u8>> {
        let mut stream = self.stream(path).await?;
        stream.send(message, true).await?;
        let response = stream.receive().await?;
        stream.finish().await?;
        response.ok_or_else(|| Error::failed("no response message"))
    }

    /// Opens a stream of messages in both directions.
    pub async fn stream(&mut self, path: &str) -> Result<MessageStream> {
        let request = http::Request::post(format!("http://{}{path}", self.authority))
            .version(http::Version::HTTP_2)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(Error::failed)?;
        let mut ready = self.send.clone().ready().await.map_err(Error::failed)?;
        let (response, send) = ready.send_request(request, false).map_err(Error::failed)?;
        Ok(MessageStream { send, response: Some(response), body: None, input: BytesMut::new() })
    }
}

/// A stream of messages. Dropping it cancels the call.
pub struct MessageStream {
    send: SendStream<Bytes>,
    response: Option<h2::client::ResponseFuture>,
    body: Option<RecvStream>,
    input: BytesMut,
}

impl MessageStream {
    /// Sends a message; `last` ends the request.
    pub async fn send(&mut self, message: &[u8], last: bool) -> Result<()> {
        let mut rest = frame(message);
        while !rest.is_empty() {
            self.send.reserve_capacity(rest.len());
            let free = std::future::poll_fn(|context| self.send.poll_capacity(context)).await;
            let free = free.ok_or_else(|| Error::failed("the stream was closed"))?.map_err(Error::failed)?;
            let part = rest.split_to(free.min(rest.len()));
            self.send.send_data(part, last && rest.is_empty()).map_err(Error::failed)?;
        }
        Ok(())
    }

    /// The next message; nothing at the end of the response.
    pub async fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        self.start().await?;
        loop {
            if let Some(message) = unframe(&mut self.input) {
                return Ok(Some(message));
            }
            let body = self.body.as_mut().ok_or_else(|| Error::failed("no response"))?;
            let Some(data) = body.data().await else { return self.finish().await.map(|()| None) };
            let data = data.map_err(Error::failed)?;
            body.flow_control().release_capacity(data.len()).map_err(Error::failed)?;
            self.input.extend_from_slice(&data);
        }
    }

    /// Reads the trailers, whose status must be 0.
    async fn finish(&mut self) -> Result<()> {
        let body = self.body.as_mut().ok_or_else(|| Error::failed("no response"))?;
        while let Some(data) = body.data().await {
            let _ = body.flow_control().release_capacity(data.map_err(Error::failed)?.len());
        }
        match body.trailers().await.map_err(Error::failed)? {
            Some(trailers) => check(&trailers),
            None => Ok(()),
        }
    }

    async fn start(&mut self) -> Result<()> {
        let Some(response) = self.response.take() else { return Ok(()) };
        let response = response.await.map_err(Error::failed)?;
        check(response.headers())?;
        self.body = Some(response.into_body());
        Ok(())
    }
}

fn check(headers: &http::HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    match text("grpc-status") {
        None | Some("0") => Ok(()),
        Some(status) => {
            Err(Error::Failed(format!("grpc status {status}: {}", text("grpc-message").unwrap_or_default())))
        }
    }
}

/// A message with its prefix: not compressed, and the length.
fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}

/// Takes the first complete message.
fn unframe(input: &mut BytesMut) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(input.get(1..5)?.try_into().ok()?) as usize;
    (input.len() >= 5 + length).then(|| input.split_to(5 + length)[5..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_when_they_are_complete() {
        let whole = frame(b"abc");
        assert_eq!(&whole[..], b"\0\0\0\0\x03abc");
        let mut input = BytesMut::from(&whole[..6]);
        assert_eq!(unframe(&mut input), None);
        input.extend_from_slice(&whole[6..]);
        input.extend_from_slice(b"\0");
        assert_eq!((unframe(&mut input), input.len()), (Some(b"abc".to_vec()), 1));
    }
}
