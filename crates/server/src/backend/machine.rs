//! The machine's wall clock and its chance: the one place that a server has them from.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970: for people to read, and for certificates.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub(crate) fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Fills bytes with chance that nobody can guess.
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
