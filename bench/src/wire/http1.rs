//! HTTP/1.1: one connection, one request at a time. Left out: chunked bodies, redirects, TLS.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Response;
use crate::system::{Error, Result};

/// A connection that is kept alive.
pub struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects, without Nagle's algorithm.
    pub async fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, request: Vec::with_capacity(1024), buffer: Vec::with_capacity(4096) })
    }

    /// Sends a request with a JSON body and these further header lines, each with its line end.
    pub async fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> Result<Response<'_>> {
        use std::io::Write;
        self.request.clear();
        write!(
            self.request,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        )?;
        if body.len() <= 64 << 10 {
            self.request.extend_from_slice(body);
            self.stream.write_all(&self.request).await?;
        } else {
            self.stream.write_all(&self.request).await?;
            self.stream.write_all(body).await?;
        }
        self.receive().await
    }

    /// Sends a request without a body.
    pub async fn get(&mut self, path: &str) -> Result<Response<'_>> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        self.receive().await
    }

    async fn receive(&mut self) -> Result<Response<'_>> {
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(Error::failed("the server closed the connection"));
            }
            if let Some(head) = parse_head(&self.buffer)?
                && self.buffer.len() >= head.length + head.body
            {
                return Ok(Response {
                    status: head.status,
                    body: &self.buffer[head.length..head.length + head.body],
                });
            }
        }
    }
}

struct Head {
    status: u16,
    length: usize,
    body: usize,
}

/// The head of a response, once it is complete.
fn parse_head(bytes: &[u8]) -> Result<Option<Head>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&bytes[..end]).map_err(Error::failed)?;
    let status = text.get(9..12).and_then(|digits| digits.parse().ok());
    let status = status.ok_or_else(|| Error::failed("malformed status line"))?;
    let body = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let body = body.ok_or_else(|| Error::Failed(format!("response without a length: {text}")))?;
    Ok(Some(Head { status, length: end + 4, body }))
}

/// The text of a field of a JSON object, without parsing the rest.
pub fn field<'a>(body: &'a [u8], name: &str) -> Result<&'a str> {
    let text = std::str::from_utf8(body).map_err(Error::failed)?;
    let quoted = format!("\"{name}\":\"");
    let after = text.split_once(&quoted).ok_or_else(|| Error::Failed(format!("no {name} in {text}")))?.1;
    Ok(after.split('"').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_parsed_once_it_is_complete() {
        let text = b"HTTP/1.1 409 Conflict\r\nContent-Length: 5\r\n\r\nhello";
        assert!(parse_head(&text[..30]).expect("sound").is_none());
        let head = parse_head(text).expect("sound").expect("complete");
        assert_eq!((head.status, head.body, &text[head.length..]), (409, 5, &b"hello"[..]));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "a length is required");
    }

    #[test]
    fn a_field_is_found() {
        assert_eq!(field(br#"{"a":"x","lease_id":"L1"}"#, "lease_id").expect("there"), "L1");
        assert!(field(b"{}", "lease_id").is_err());
    }
}
