//! Reads frames.

use crate::field::Fields;
use crate::{BODY_MAX, HEADER, Method, PREFACE, REQUEST_MAX, RESPONSE_MAX, RequestId, Settings, kind};

/// A message of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A call. From the client.
    Request(Request<'a>),
    /// The response to a call. From the server.
    Response(Response<'a>),
    /// The client does not wait for this reply any more: a waiter leaves its queue. The reply is sent all the same.
    Cancel(RequestId),
    /// There is no response to this request: it was cancelled, or whether it was carried out is not known.
    Aborted(RequestId),
    /// The server begins no request after this one, and closes the connection when all are done.
    GoAway(RequestId),
    /// To be answered with the same number. From either side.
    Ping(u32),
    /// The reply to a ping.
    Pong(u32),
    /// What the server takes: its first frame.
    Settings(Settings),
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Above that of the request before.
    pub id: RequestId,
    /// The method.
    pub method: Method,
    /// The path, and the query behind a question mark.
    pub target: &'a str,
    /// The headers.
    pub fields: Fields<'a>,
    /// The body; JSON unless the call takes none.
    pub body: &'a [u8],
}

/// The response to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The number of the request.
    pub id: RequestId,
    /// The status of HTTP.
    pub status: u16,
    /// The headers.
    pub fields: Fields<'a>,
    /// The body; JSON, or empty.
    pub body: &'a [u8],
}

/// Bytes that are no frame of this protocol: the connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed frame: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// The bytes behind the preface. `None` if more must arrive first.
pub fn parse_preface(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let length = bytes.len().min(PREFACE.len());
    if bytes[..length] != PREFACE[..length] {
        return Err(Malformed("another protocol"));
    }
    Ok(bytes.get(PREFACE.len()..))
}

/// Reads the first frame, and returns its length in bytes. `None` if more must arrive first.
pub fn parse(bytes: &[u8]) -> Result<Option<(Message<'_>, usize)>, Malformed> {
    let Some(([a, b, c, d, kind], _)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize + 4;
    let max = match *kind {
        kind::REQUEST => REQUEST_MAX,
        kind::RESPONSE => RESPONSE_MAX,
        kind::SETTINGS => HEADER + 8,
        kind::CANCEL..=kind::PONG => HEADER,
        _ => return Err(Malformed("unknown kind")),
    };
    if length < HEADER || length > max {
        return Err(Malformed("length out of range"));
    }
    let Some(frame) = bytes.get(..length) else { return Ok(None) };
    let (header, payload) = frame.split_at(HEADER);
    let number = u32::from_le_bytes([header[5], header[6], header[7], header[8]]);
    let message = match *kind {
        kind::REQUEST => request(RequestId(number), payload).map(Message::Request),
        kind::RESPONSE => response(RequestId(number), payload).map(Message::Response),
        kind::CANCEL => Some(Message::Cancel(RequestId(number))),
        kind::ABORTED => Some(Message::Aborted(RequestId(number))),
        kind::GO_AWAY => Some(Message::GoAway(RequestId(number))),
        kind::PING => Some(Message::Ping(number)),
        kind::PONG => Some(Message::Pong(number)),
        _ => settings(payload).filter(|_| number == 0).map(Message::Settings),
    };
    Ok(Some((message.ok_or(Malformed("invalid payload"))?, length)))
}

fn request(id: RequestId, payload: &[u8]) -> Option<Request<'_>> {
    let ([method, count, low, high], rest) = payload.split_first_chunk()?;
    let (target, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
    let is_path = target.first() == Some(&b'/') && target.iter().all(u8::is_ascii_graphic);
    let target = std::str::from_utf8(target).ok().filter(|_| is_path)?;
    let (fields, body) = Fields::split(rest, *count)?;
    let method = Method::from_byte(*method)?;
    (body.len() <= BODY_MAX).then_some(Request { id, method, target, fields, body })
}

fn response(id: RequestId, payload: &[u8]) -> Option<Response<'_>> {
    let ([low, high, count], rest) = payload.split_first_chunk()?;
    let (fields, body) = Fields::split(rest, *count)?;
    let status = u16::from_le_bytes([*low, *high]);
    (100..1000).contains(&status).then_some(Response { id, status, fields, body })
}

fn settings(payload: &[u8]) -> Option<Settings> {
    let (request_max, in_flight_max) = payload.split_at_checked(4)?;
    Some(Settings {
        request_max: u32::from_le_bytes(request_max.try_into().ok()?),
        in_flight_max: u32::from_le_bytes(in_flight_max.try_into().ok()?),
    })
}
