//! The machine's wall clock, randomness and host name: the one place that a server has them from.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970: for people to read, and for certificates.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The machine's host name; empty if it is not UTF-8.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_str().unwrap_or_default().to_string()
}

/// Fills bytes with unpredictable randomness.
pub(crate) fn random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the machine has no randomness: {error}"),
        }
    }
}
