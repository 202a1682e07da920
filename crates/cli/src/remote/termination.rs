//! Signals that end a command whose output a shell evaluates.
//!
//! **What would break it.** `eval "$(timeout 60 lockd client acquire --block 10m orders)"`: a command that a signal ends by
//! default prints nothing, the eval of nothing succeeds, and the script goes on without the lease. SIGKILL cannot be
//! handled.

use std::future::poll_fn;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::child::is_ignored;
use crate::failure::{Failure, failed};

const ENDING: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Waits for a signal that ends the command. Signals that were ignored at start stay ignored, as `nohup` relies on.
pub(super) async fn terminated() -> Failure {
    let mut listening = Vec::new();
    for ending in ENDING.into_iter().filter(|ending| !is_ignored(*ending)) {
        match signal(SignalKind::from_raw(ending as i32)) {
            Ok(signals) => listening.push((ending, signals)),
            Err(error) => return failed("listening for signals", &error),
        }
    }
    let ended_by = poll_fn(|cx| {
        let mut received = listening
            .iter_mut()
            .filter_map(|(ending, signals)| signals.poll_recv(cx).is_ready().then_some(*ending));
        received.next().map_or(Poll::Pending, Poll::Ready)
    });
    let ended_by = ended_by.await;
    // As a shell reports a command that a signal has killed.
    let code = u8::try_from(128 + ended_by as i32).expect("signal numbers are below 128");
    Failure::new(code, format!("ended by {ended_by} before a lease was printed"))
}
