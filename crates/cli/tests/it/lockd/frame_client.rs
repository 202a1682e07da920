//! The client's side of the stream protocol: requests as frames, and what the server replies.

use std::io::Read;

use frames::{Field, Message, Method, RequestId};

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    Http,
    /// Frames, for the calls that they carry.
    Frames,
}

impl Protocol {
    pub(crate) const BOTH: [Protocol; 2] = [Protocol::Http, Protocol::Frames];

    /// The name in the TLS handshake.
    pub(crate) fn alpn(self) -> &'static str {
        match self {
            Protocol::Http => "http/1.1",
            Protocol::Frames => "lockd/1",
        }
    }
}

/// The requests and replies of one connection.
#[derive(Default)]
pub(crate) struct FrameClient {
    received: Vec<u8>,
    has_preface: bool,
    last: u32,
}

/// A frame of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Response { id: u32, status: u16, fields: Vec<(Field, String)>, body: String },
    Aborted(u32),
    GoAway(u32),
    Pong(u32),
}

impl Reply {
    /// The status and the body. Nothing if it is no response.
    pub(crate) fn response(self) -> Option<(u16, String)> {
        match self {
            Reply::Response { status, body, .. } => Some((status, body)),
            Reply::Aborted(_) | Reply::GoAway(_) | Reply::Pong(_) => None,
        }
    }

    /// The value of a field of a response.
    pub(crate) fn field(&self, field: Field) -> Option<&str> {
        let Reply::Response { fields, .. } = self else { return None };
        fields.iter().find(|(one, _)| *one == field).map(|(_, value)| value.as_str())
    }
}

impl FrameClient {
    /// A request in a frame. Nothing for one that is sent over HTTP. Each of the headers ends in `\r\n`.
    pub(crate) fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &str,
        body: &str,
    ) -> Option<Vec<u8>> {
        let method = match method {
            "GET" => Method::Get,
            "POST" => Method::Post,
            _ => return None,
        };
        if !frames::is_carried(method, target) {
            return None;
        }
        let mut fields = Vec::new();
        for line in headers.lines() {
            let (name, value) = line.split_once(": ").expect("a header");
            fields.push((Field::of(&name.to_ascii_lowercase())?, value.as_bytes()));
        }
        fields.sort_unstable_by_key(|(field, _)| *field);
        let mut out = Vec::new();
        let id = RequestId(self.last + 1);
        frames::encode_request(&mut out, id, method, target, fields, body.as_bytes()).ok()?;
        self.last += 1;
        Some(out)
    }

    /// The number of the last request.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// The next frame of the server. Nothing if it hung up, or sent none within the timeout of the socket.
    pub(crate) fn receive(&mut self, stream: &mut impl Read) -> Option<Reply> {
        loop {
            if let Some(reply) = self.take() {
                return Some(reply);
            }
            let mut part = [0; 16 << 10];
            let read = stream.read(&mut part).ok().filter(|read| *read > 0)?;
            self.received.extend_from_slice(&part[..read]);
        }
    }

    fn take(&mut self) -> Option<Reply> {
        if !self.has_preface {
            let rest = frames::parse_preface(&self.received).ok()??.len();
            self.received.drain(..self.received.len() - rest);
            self.has_preface = true;
        }
        loop {
            let (message, length) = frames::parse(&self.received).expect("a frame of the server")?;
            let reply = reply(&message);
            self.received.drain(..length);
            if reply.is_some() {
                return reply;
            }
        }
    }
}

/// A control message in a frame.
pub(crate) fn control(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frames::encode_control(&mut out, message);
    out
}

/// Nothing for settings.
fn reply(message: &Message<'_>) -> Option<Reply> {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).expect("text");
    Some(match message {
        Message::Response(response) => Reply::Response {
            id: response.id.0,
            status: response.status,
            fields: response.fields.into_iter().map(|(field, value)| (field, text(value))).collect(),
            body: text(response.body),
        },
        Message::Aborted(id) => Reply::Aborted(id.0),
        Message::GoAway(id) => Reply::GoAway(id.0),
        Message::Pong(number) => Reply::Pong(*number),
        Message::Settings(_) => return None,
        Message::Request(_) | Message::Cancel(_) | Message::Ping(_) => {
            panic!("a server does not send this: {message:?}")
        }
    })
}
