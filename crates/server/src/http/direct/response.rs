//! A response as bytes of HTTP/1.1.

use std::cell::RefCell;
use std::io::Write as _;

use axum::body::Body;
use axum::http::{StatusCode, header};

use crate::http::short_response::ShortResponse;

/// The capacity for a head.
const HEAD_BYTES: usize = 256;

/// The bytes of a response on their way to the socket.
pub(super) struct Output {
    bytes: Vec<u8>,
    written: usize,
    _body: Body,
}

impl Output {
    /// The bytes to send. `closes`: the connection ends behind it.
    pub(super) fn encode(response: ShortResponse, unix_seconds: u64, closes: bool) -> Output {
        let ShortResponse { head, bytes: content, body } = response;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + content.len());
        status_line(&mut bytes, head.status);
        for (name, value) in head.headers.iter().filter(|(name, _)| *name != header::CONTENT_LENGTH) {
            bytes.extend_from_slice(name.as_str().as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        if closes {
            bytes.extend_from_slice(b"connection: close\r\n");
        }
        if head.status != StatusCode::NO_CONTENT {
            write!(bytes, "content-length: {}\r\n", content.len()).expect("a vector takes it");
        }
        date_line(&mut bytes, unix_seconds);
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&content);
        Output { bytes, written: 0, _body: body }
    }

    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    pub(super) fn advance(&mut self, written: usize) {
        self.written += written;
    }
}

fn status_line(bytes: &mut Vec<u8>, status: StatusCode) {
    if status == StatusCode::OK {
        bytes.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    let reason = status.canonical_reason().unwrap_or("Unknown");
    write!(bytes, "HTTP/1.1 {} {reason}\r\n", status.as_u16()).expect("a vector takes it");
}

thread_local! {
    /// The last line that this thread has written, and its second.
    static DATE: RefCell<(u64, Vec<u8>)> = const { RefCell::new((u64::MAX, Vec::new())) };
}

fn date_line(bytes: &mut Vec<u8>, unix_seconds: u64) {
    DATE.with_borrow_mut(|(second, line)| {
        if *second != unix_seconds {
            let date = httpdate::HttpDate::from(
                std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_seconds),
            );
            (*second, *line) = (unix_seconds, format!("date: {date}\r\n").into_bytes());
        }
        bytes.extend_from_slice(line);
    });
}

#[cfg(test)]
mod tests {
    use axum::response::Response;

    use super::*;

    /// The head that hyper writes for the same response.
    #[tokio::test]
    async fn a_response_is_written_with_length_and_date() {
        let response = Response::builder()
            .status(409)
            .header("content-type", "application/json")
            .header("content-length", "7")
            .body(Body::from("{\"a\":1}"));
        let short = ShortResponse::read(response.expect("valid")).await.expect("in memory");
        let output = Output::encode(short, 784_111_777, false);
        let text = "HTTP/1.1 409 Conflict\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\
            date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n{\"a\":1}";
        assert_eq!(String::from_utf8_lossy(output.unwritten()), text);
    }

    #[tokio::test]
    async fn the_last_response_of_a_connection_says_so() {
        let response = Response::builder().status(204).body(Body::empty()).expect("valid");
        let output = Output::encode(ShortResponse::read(response).await.expect("in memory"), 0, true);
        let text =
            "HTTP/1.1 204 No Content\r\nconnection: close\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(output.unwritten()), text);
    }
}
