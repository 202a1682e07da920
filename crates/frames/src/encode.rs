//! Writes frames.

use crate::field::Field;
use crate::parse::Message;
use crate::{HEADER, Method, REQUEST_MAX, RESPONSE_MAX, RequestId, kind};

/// A message that does not fit into a frame, or that frames cannot express: it is sent over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unencodable;

impl std::fmt::Display for Unencodable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the message does not fit into a frame, or frames cannot express it")
    }
}

impl std::error::Error for Unencodable {}

/// Appends a request. The fields rise by number. Refused unless the target is a path and all text is visible ASCII.
pub fn encode_request<'a>(
    out: &mut Vec<u8>,
    id: RequestId,
    method: Method,
    target: &str,
    fields: impl IntoIterator<Item = (Field, &'a [u8])>,
    body: &[u8],
) -> Result<(), Unencodable> {
    let target_bytes = u16::try_from(target.len()).map_err(|_| Unencodable)?.to_le_bytes();
    let is_path = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
    if body.len() > crate::BODY_MAX || !is_path {
        return Err(Unencodable);
    }
    frame(out, kind::REQUEST, id, REQUEST_MAX, |out| {
        out.push(method.to_byte());
        let count = out.len();
        out.push(0);
        out.extend_from_slice(&target_bytes);
        out.extend_from_slice(target.as_bytes());
        out[count] = encode_fields(out, fields)?;
        out.extend_from_slice(body);
        Ok(())
    })
}

/// Gives a frame that an encoder wrote another number.
///
/// # Panics
///
/// For fewer bytes than a frame has.
pub fn renumber(frame: &mut [u8], id: RequestId) {
    frame[5..HEADER].copy_from_slice(&id.0.to_le_bytes());
}

/// Appends a response. The fields rise by number. Refused unless their values are visible ASCII.
pub fn encode_response<'a>(
    out: &mut Vec<u8>,
    id: RequestId,
    status: u16,
    fields: impl IntoIterator<Item = (Field, &'a [u8])>,
    body: &[u8],
) -> Result<(), Unencodable> {
    frame(out, kind::RESPONSE, id, RESPONSE_MAX, |out| {
        out.extend_from_slice(&status.to_le_bytes());
        let count = out.len();
        out.push(0);
        out[count] = encode_fields(out, fields)?;
        out.extend_from_slice(body);
        Ok(())
    })
}

/// Appends a message that is neither a request nor a response.
///
/// # Panics
///
/// For a request or a response.
pub fn encode_control(out: &mut Vec<u8>, message: &Message<'_>) {
    let (kind, number, payload) = match message {
        Message::Cancel(id) => (kind::CANCEL, id.0, None),
        Message::Aborted(id) => (kind::ABORTED, id.0, None),
        Message::GoAway(id) => (kind::GO_AWAY, id.0, None),
        Message::Ping(number) => (kind::PING, *number, None),
        Message::Pong(number) => (kind::PONG, *number, None),
        Message::Settings(settings) => (kind::SETTINGS, 0, Some(settings)),
        Message::Request(_) | Message::Response(_) => panic!("a control message is short"),
    };
    let encoded = frame(out, kind, RequestId(number), REQUEST_MAX, |out| {
        if let Some(settings) = payload {
            out.extend_from_slice(&settings.request_max.to_le_bytes());
            out.extend_from_slice(&settings.in_flight_max.to_le_bytes());
        }
        Ok(())
    });
    encoded.expect("a control message is short");
}

/// Appends a frame around what `payload` writes; nothing if that is too long.
fn frame(
    out: &mut Vec<u8>,
    kind: u8,
    id: RequestId,
    max: usize,
    payload: impl FnOnce(&mut Vec<u8>) -> Result<(), Unencodable>,
) -> Result<(), Unencodable> {
    let begin = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    out.extend_from_slice(&id.0.to_le_bytes());
    debug_assert_eq!(out.len() - begin, HEADER);
    let written = payload(out);
    let length = out.len() - begin;
    if written.is_err() || length > max {
        out.truncate(begin);
        return Err(Unencodable);
    }
    let behind = u32::try_from(length - 4).expect("the longest frame has a shorter length");
    out[begin..begin + 4].copy_from_slice(&behind.to_le_bytes());
    Ok(())
}

/// Appends fields, and returns how many.
fn encode_fields<'a>(
    out: &mut Vec<u8>,
    fields: impl IntoIterator<Item = (Field, &'a [u8])>,
) -> Result<u8, Unencodable> {
    let (mut count, mut last) = (0, None);
    for (field, value) in fields {
        let length = u16::try_from(value.len()).map_err(|_| Unencodable)?;
        if last >= Some(field) || !value.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            return Err(Unencodable);
        }
        last = Some(field);
        out.push(field as u8);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(value);
        count += 1;
    }
    Ok(count)
}
