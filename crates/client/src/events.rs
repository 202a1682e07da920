//! What happens at the server, as it happens.
//!
//! **Invariant.** A reader sees everything once and in order, or is told [`News::Reset`]. A connection that breaks is made
//! again, from where it was; where nothing was seen before it broke, nobody knows what was missed, and that is a reset.

use std::time::Duration;

use api::agents::Event;
use api::path;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::call::Ask;
use crate::chance;
use crate::client::{Client, get, query};
use crate::error::{Error, Kind};

/// A server says something every 15 s: one that does not is gone.
const SILENCE: Duration = Duration::from_secs(45);
/// How soon a connection that broke is made again.
const AGAIN: Duration = Duration::from_millis(500);
/// The longest event that is taken.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// What a reader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Something happened.
    Happened {
        /// Where to go on from.
        id: String,
        /// What.
        event: Box<Event>,
    },
    /// Some of what happened was missed: read again what you need to know.
    Reset,
}

/// Follows what happens. Dropped, it ends.
pub struct Events {
    client: Client,
    namespace: Option<String>,
    last: Option<String>,
    body: Option<Incoming>,
    /// It was connected before.
    begun: bool,
    buffer: Vec<u8>,
}

impl Client {
    /// Follows what happens from now on, or after an event of this id; in one namespace, or in all that may be read.
    pub async fn events(&self, namespace: Option<&str>, after: Option<&str>) -> Result<Events, Error> {
        let mut events = Events {
            client: self.clone(),
            namespace: namespace.map(ToString::to_string),
            last: after.map(ToString::to_string),
            body: None,
            begun: false,
            buffer: Vec::new(),
        };
        events.connect().await?;
        Ok(events)
    }
}

impl Events {
    /// The next thing that happens. After an error it may be asked again: it goes on from where it was.
    pub async fn next(&mut self) -> Result<News, Error> {
        loop {
            if let Some(block) = self.block() {
                match parse(&block)? {
                    Some(News::Reset) => {
                        self.last = None;
                        return Ok(News::Reset);
                    }
                    Some(News::Happened { id, event }) => {
                        self.last = Some(id.clone());
                        return Ok(News::Happened { id, event });
                    }
                    None => continue,
                }
            }
            if self.buffer.len() > EVENT_BYTES_MAX {
                return Err(Error::new(
                    Kind::Invalid,
                    "an event that is too long; is it a lockd of this version?",
                ));
            }
            if self.body.is_none() {
                tokio::time::sleep(chance::jitter(AGAIN)).await;
                if self.connect().await? {
                    return Ok(News::Reset);
                }
            }
            self.receive().await;
        }
    }

    /// Says whether something may have been missed.
    async fn connect(&mut self) -> Result<bool, Error> {
        let path = query(path::EVENTS, &[("namespace", self.namespace.as_deref())]);
        let headers = self.last.iter().map(|id| ("last-event-id", id.clone())).collect();
        let body = self.client.servers.open(&Ask { headers, ..get(path) }).await?;
        self.buffer.clear();
        self.body = Some(body);
        let missed = self.begun && self.last.is_none();
        self.begun = true;
        Ok(missed)
    }

    async fn receive(&mut self) {
        let Some(body) = &mut self.body else { return };
        match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(Some(Ok(frame))) => self.buffer.extend(frame.into_data().unwrap_or_default()),
            // It has ended, or broken, or nobody is there.
            _ => self.body = None,
        }
    }

    /// The first whole event in the buffer.
    fn block(&mut self) -> Option<Vec<u8>> {
        let end = self.buffer.windows(2).position(|pair| pair == b"\n\n")?;
        Some(self.buffer.drain(..end + 2).collect())
    }
}

/// `None` for what only says that the server is there, and for events of a later version.
fn parse(block: &[u8]) -> Result<Option<News>, Error> {
    let strange = |what: &str| Error::new(Kind::Invalid, format!("an event that cannot be read: {what}"));
    let text = std::str::from_utf8(block).map_err(|error| strange(&error.to_string()))?;
    let field = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        lines.map(|value| value.strip_prefix(' ').unwrap_or(value)).next()
    };
    match (field("event"), field("id"), field("data")) {
        (Some("reset"), ..) => Ok(Some(News::Reset)),
        (Some(_), Some(id), Some(data)) => {
            let event = serde_json::from_str(data).map_err(|error| strange(&error.to_string()))?;
            Ok(Some(News::Happened { id: id.to_string(), event }))
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
        assert_eq!(parse(b"event: reset\ndata: {}\n\n").expect("a reset"), Some(News::Reset));
        let block = b"id: 5.0\nevent: granted\ndata: {\"event\":\"granted\",\"namespace\":\"n\",\"holder\":\"a\",\"resources\":[]}\n\n";
        let Some(News::Happened { id, event }) = parse(block).expect("an event") else { panic!("an event") };
        assert_eq!((id.as_str(), event.namespace.as_str()), ("5.0", "n"));
        assert!(parse(b"id: 5.0\nevent: granted\ndata: {\n\n").is_err());
    }
}
