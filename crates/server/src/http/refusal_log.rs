//! Logs refused handshakes, connections and requests: with address and serial, and not more than a few lines per second.
//!
//! **Invariant.** A client cannot fill the log: at most [`LINES_MAX`] lines of at most [`PATH_MAX`] characters of its
//! choice are written per [`WINDOW`], and the next line after that says how many are missing.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use api::Code;
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use identity::Serial;
use tokio::time::Instant;
use tracing::field::display;

use crate::peer::Peer;

const WINDOW: Duration = Duration::from_secs(1);
const LINES_MAX: u32 = 5;
/// The most characters of a path.
const PATH_MAX: usize = 512;

/// The log of one listener.
#[derive(Default)]
pub(crate) struct RefusalLog(Mutex<Window>);

#[derive(Default)]
struct Window {
    began: Option<Instant>,
    lines: u32,
    /// Lines that were left out since the last one.
    suppressed: u64,
}

impl Window {
    /// The number of lines left out before this one; `None` if this one is left out as well.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            (self.began, self.lines) = (Some(now), 0);
        }
        if self.lines >= LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl RefusalLog {
    /// A handshake was refused. The serial is known if the client has shown a certificate that can be read.
    pub(crate) fn handshake(
        &self,
        address: Option<SocketAddr>,
        serial: Option<Serial>,
        why: impl std::fmt::Display,
    ) {
        let Some(suppressed) = self.admit() else { return };
        let (address, serial) = (address.map(display), serial.map(display));
        tracing::info!(address, serial, %why, suppressed, "handshake refused");
    }

    /// A connection was closed because of the limit of this name.
    pub(crate) fn connection(&self, address: Option<SocketAddr>, limit: &'static str) {
        let Some(suppressed) = self.admit() else { return };
        let address = address.map(display);
        tracing::info!(address, limit, suppressed, "connection refused");
    }

    fn request(&self, peer: &Peer, method: &Method, uri: &Uri, response: &Response) {
        let Some(suppressed) = self.admit() else { return };
        let identity = peer.identity.as_str();
        let serial = peer.connection.serial().map(display);
        let address = peer.connection.address().map(display);
        let path: String = uri.path().chars().take(PATH_MAX).collect();
        let status = response.status().as_u16();
        let code = response.extensions().get::<Code>().map(|code| code.as_str());
        tracing::info!(identity, serial, address, %method, path, status, code, suppressed, "request refused");
    }

    fn no_space(&self, path: &'static str) {
        let Some(suppressed) = self.admit() else { return };
        tracing::warn!(path, suppressed, "request refused: no free disk space; free some");
    }

    fn admit(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now())
    }
}

/// The server that carried the request out has logged it: an extension of responses.
#[derive(Clone, Copy)]
struct Logged;

/// Marks a response whose request was logged as its client's, here or by the server that it was forwarded to.
pub(crate) fn logged(mut response: Response) -> Response {
    response.extensions_mut().insert(Logged);
    response
}

/// The log of refused requests of a server.
#[derive(Default)]
pub(crate) struct RequestRefusalLog {
    /// Clients that may not do what they try.
    denied: RefusalLog,
    /// Holders whose lease has ended: ordinary, and so many that they must not suppress the others.
    ended: RefusalLog,
    /// Requests that the disk has no space for, uploads among them.
    full: RefusalLog,
}

impl RequestRefusalLog {
    /// Logs a request that was refused for lack of disk space.
    pub(crate) fn no_space(&self, path: &'static str) {
        self.full.no_space(path);
    }

    /// Logs a response of 401 or 403. The query is not logged.
    pub(crate) fn responded(&self, peer: &Peer, method: &Method, uri: &Uri, response: &Response) {
        let is_refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status());
        if !is_refused || response.extensions().get::<Logged>().is_some() {
            return;
        }
        let log = match response.extensions().get::<Code>() {
            Some(Code::LeaseExpired | Code::LeaseRevoked | Code::StaleEpoch | Code::FencingMismatch) => {
                &self.ended
            }
            _ => &self.denied,
        };
        log.request(peer, method, uri, response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_count() {
        let (mut window, began) = (Window::default(), Instant::now());
        let written = (0..1000).filter(|_| window.admit(began).is_some()).count();
        assert_eq!(written, LINES_MAX as usize);
        assert_eq!(window.admit(began + WINDOW), Some(1000 - u64::from(LINES_MAX)));
        assert_eq!(window.admit(began + WINDOW), Some(0));
    }
}
