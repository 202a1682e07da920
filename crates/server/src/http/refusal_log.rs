//! Logs refused handshakes and connections: with address and serial, and not more than a few lines per second.
//!
//! **Invariant.** A client without a certificate cannot fill the log: at most [`LINES_MAX`] lines are written per
//! [`WINDOW`], and the next line after that says how many are missing.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use identity::Serial;
use tokio::time::Instant;

use crate::http::connections::ConnectionLimit;

const WINDOW: Duration = Duration::from_secs(1);
const LINES_MAX: u32 = 5;

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
        let (address, serial) = (address.map(tracing::field::display), serial.map(tracing::field::display));
        tracing::info!(address, serial, %why, suppressed, "handshake refused");
    }

    /// A connection was closed because of a limit.
    pub(crate) fn connection(&self, address: Option<SocketAddr>, limit: ConnectionLimit) {
        let Some(suppressed) = self.admit() else { return };
        let (address, limit) = (address.map(tracing::field::display), limit.as_str());
        tracing::info!(address, limit, suppressed, "connection refused");
    }

    fn admit(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now())
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
