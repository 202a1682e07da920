//! A few frames of HTTP/2, written by hand: a client library would not stop reading.

use std::io::{Read, Write};

use crate::lockd::serve::Connection;

/// The types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// The flag of settings and pings that answer others.
const ACK: u8 = 0x01;
/// The status 200, as a head begins with it.
const STATUS_200: u8 = 0x88;

/// The flags of a head without a body, in one frame.
const END_STREAM_AND_HEADERS: u8 = 0x05;
/// The flag of a head in one frame, whose body follows.
const END_HEADERS: u8 = 0x04;
/// The flag of the last frame of a body.
const END_STREAM: u8 = 0x01;
/// The error code of a reset that takes a request back.
const CANCEL: u32 = 8;

/// The connection preface, and settings with an initial window of 0 bytes for each stream.
pub(super) fn preface_with_a_window_of_zero() -> Vec<u8> {
    [PREFACE, &frame(4, 0, 0, &[0, 4, 0, 0, 0, 0])].concat()
}

/// The connection preface, and empty settings.
pub(super) fn preface() -> Vec<u8> {
    [PREFACE, &frame(4, 0, 0, &[])].concat()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A GET on a new stream.
pub(super) fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(1, END_STREAM_AND_HEADERS, stream, &head(0x82, path))
}

/// The head of a POST on a new stream. Its body is to follow.
pub(super) fn begin_post(stream: u32, path: &str) -> Vec<u8> {
    frame(1, END_HEADERS, stream, &head(0x83, path))
}

/// A POST on a new stream, with a header and the first part of a body, of at most 16 KiB.
pub(super) fn begin_upload(stream: u32, path: &str, (name, value): (&str, &str), part: &str) -> Vec<u8> {
    let header = [&[0x00], &text(name)[..], &text(value)].concat();
    let head = [head(0x83, path), header].concat();
    [frame(1, END_HEADERS, stream, &head), frame(0, 0, stream, part.as_bytes())].concat()
}

/// A POST on a new stream with a body of at most 16 KiB.
pub(super) fn post(stream: u32, path: &str, body: &str) -> Vec<u8> {
    [begin_post(stream, path), frame(0, END_STREAM, stream, body.as_bytes())].concat()
}

/// Takes a request back.
pub(super) fn reset(stream: u32) -> Vec<u8> {
    frame(3, 0, stream, &CANCEL.to_be_bytes())
}

/// Reads until a request of the connection has ended: whether its status was 200. `None` if the server hung up.
pub(super) fn next_end(connection: &mut Connection) -> Option<bool> {
    let mut is_ok = true;
    loop {
        let mut head = [0; 9];
        connection.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        connection.0.read_exact(&mut payload).ok()?;
        let (kind, flags) = (head[3], head[4]);
        let reply = match kind {
            DATA if !payload.is_empty() => {
                let length = u32::try_from(payload.len()).expect("short");
                frame(WINDOW_UPDATE, 0, 0, &length.to_be_bytes())
            }
            SETTINGS | PING if flags & ACK == 0 => {
                frame(kind, ACK, 0, if kind == PING { &payload } else { &[] })
            }
            _ => Vec::new(),
        };
        connection.write(&reply)?;
        if kind == HEADERS {
            is_ok = payload.first() == Some(&STATUS_200);
        }
        if kind == RESET || matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            return Some(is_ok && kind != RESET);
        }
    }
}

/// Responds with 200 to every request of a connection, behind the first line of its preface.
pub(in crate::lockd) fn respond(stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    // The rest of the preface.
    stream.read_exact(&mut [0; 8])?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload)?;
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match kind {
            DATA | HEADERS if flags & END_STREAM != 0 => {
                stream.write_all(&frame(HEADERS, END_STREAM_AND_HEADERS, id, &[STATUS_200]))?;
            }
            SETTINGS if flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
            _ => {}
        }
    }
}

/// Indexed `:method` and `:scheme: https`; `:path` and `:authority` as literals that are not indexed.
fn head(method: u8, path: &str) -> Vec<u8> {
    [vec![method, 0x87, 0x04], text(path), vec![0x01], text("lockd")].concat()
}

/// A string without Huffman coding.
fn text(value: &str) -> Vec<u8> {
    let length = u8::try_from(value.len()).expect("below 127");
    [&[length], value.as_bytes()].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
