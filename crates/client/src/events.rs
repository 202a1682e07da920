//! The server's event stream (server-sent events).
//!
//! **Invariant.** A reader gets every event once and in order, or [`StreamItem::Reset`]. A broken connection is reopened
//! after the last event that was read; if none was read yet, events may have been missed, which is a reset.

use std::time::Duration;

use api::agents::Event;
use api::path;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::call::ApiRequest;
use crate::client::Client;
use crate::error::{Error, Kind};
use crate::random;
use crate::request::{get, query};

/// Idle timeout of the stream. The server sends at least a comment every 15 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// Delay before reconnecting, before jitter.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// The longest event that is accepted, in bytes.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// One item of the event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// An event.
    Event {
        /// Pass it as `after` to resume behind this event.
        id: String,
        /// The event itself.
        event: Box<Event>,
    },
    /// Events were missed: read the current state again.
    Reset,
}

/// A subscription to the event stream. Dropping it closes the connection.
pub struct Events {
    client: Client,
    namespace: Option<String>,
    last: Option<String>,
    body: Option<Incoming>,
    /// It has been connected at least once.
    connected_before: bool,
    buffer: Vec<u8>,
}

impl Client {
    /// Subscribes to events from now on, or behind the event with the id `after`; in one namespace, or in all that the
    /// client may read.
    pub async fn events(&self, namespace: Option<&str>, after: Option<&str>) -> Result<Events, Error> {
        let mut events = Events {
            client: self.clone(),
            namespace: namespace.map(ToString::to_string),
            last: after.map(ToString::to_string),
            body: None,
            connected_before: false,
            buffer: Vec::new(),
        };
        events.connect().await?;
        Ok(events)
    }
}

impl Events {
    /// The next item. After an error it may be called again, and resumes where it was.
    pub async fn next(&mut self) -> Result<StreamItem, Error> {
        loop {
            if let Some(block) = self.block() {
                match parse(&block)? {
                    Some(StreamItem::Reset) => {
                        self.last = None;
                        return Ok(StreamItem::Reset);
                    }
                    Some(StreamItem::Event { id, event }) => {
                        self.last = Some(id.clone());
                        return Ok(StreamItem::Event { id, event });
                    }
                    None => continue,
                }
            }
            if self.buffer.len() > EVENT_BYTES_MAX {
                return Err(Error::new(
                    Kind::Invalid,
                    "the event is too long; check that the server is a lockd of this version",
                ));
            }
            if self.body.is_none() {
                tokio::time::sleep(random::jitter(RECONNECT_DELAY)).await;
                if self.connect().await? {
                    return Ok(StreamItem::Reset);
                }
            }
            self.receive().await;
        }
    }

    /// Returns whether events may have been missed.
    async fn connect(&mut self) -> Result<bool, Error> {
        let path = query(path::EVENTS, &[("namespace", self.namespace.as_deref())]);
        let headers = self.last.iter().map(|id| ("last-event-id", id.clone())).collect();
        let response = self.client.servers.open_once(&ApiRequest { headers, ..get(path) }).await?;
        self.buffer.clear();
        self.body = Some(response.into_body());
        let missed = self.connected_before && self.last.is_none();
        self.connected_before = true;
        Ok(missed)
    }

    async fn receive(&mut self) {
        let Some(body) = &mut self.body else { return };
        match tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await {
            Ok(Some(Ok(frame))) => self.buffer.extend(frame.into_data().unwrap_or_default()),
            // The stream ended, the connection broke, or the idle timeout passed.
            _ => self.body = None,
        }
    }

    /// The first whole event in the buffer.
    fn block(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        Some(self.buffer.drain(..end + 2).collect())
    }
}

/// `None` for keep-alive comments, and for events that a later version adds.
fn parse(block: &[u8]) -> Result<Option<StreamItem>, Error> {
    let malformed = |what: &str| Error::new(Kind::Invalid, format!("malformed event: {what}"));
    let text = std::str::from_utf8(block).map_err(|error| malformed(&error.to_string()))?;
    let field = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        lines.map(|value| value.strip_prefix(' ').unwrap_or(value)).next()
    };
    match (field("event"), field("id"), field("data")) {
        (Some("reset"), ..) => Ok(Some(StreamItem::Reset)),
        (Some(_), Some(id), Some(data)) => {
            let event = serde_json::from_str(data).map_err(|error| malformed(&error.to_string()))?;
            Ok(Some(StreamItem::Event { id: id.to_string(), event }))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_comments_are_not() {
        assert_eq!(parse(b":\n\n").expect("a comment"), None);
        assert_eq!(parse(b"event: reset\ndata: {}\n\n").expect("a reset"), Some(StreamItem::Reset));
        let block = b"id: 5.0\nevent: granted\ndata: {\"event\":\"granted\",\"namespace\":\"n\",\"holder\":\"a\",\"resources\":[]}\n\n";
        let Some(StreamItem::Event { id, event }) = parse(block).expect("an event") else {
            panic!("an event")
        };
        assert_eq!((id.as_str(), event.namespace.as_str()), ("5.0", "n"));
        assert!(parse(b"id: 5.0\nevent: granted\ndata: {\n\n").is_err());
    }
}
