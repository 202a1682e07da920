//! Slows a connection whose requests are refused one after the other.
//!
//! **Invariant.** Of a connection that only gets refusals, the server handles at most as many requests as it carries at a
//! time, per [`DELAY`]. The first [`FREE`] refusals in a row are sent at once, and so is everything else.
//!
//! **What would break it.** A refusal is cheap for its client and for the server, and nothing bounds its rate: four
//! connections beyond a limit of their identity made 200,000 of them per second, and every other client waited for the
//! processors.
//!
//! **What is absent.** Refusals that are part of the work: a lease that another has, one that has ended, a document that is
//! not there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use api::Code;
use axum::response::Response;

/// Refusals in a row that are sent at once.
const FREE: u32 = 16;
/// How long each further one is held back.
const DELAY: Duration = Duration::from_millis(20);

/// The refusals of a connection.
#[derive(Debug, Default)]
pub(crate) struct RefusalPace {
    in_a_row: AtomicU32,
}

impl RefusalPace {
    /// Counts a response, and returns it when it may be sent.
    pub(crate) async fn pace(&self, response: Response) -> Response {
        if self.count(&response) {
            tokio::time::sleep(DELAY).await;
        }
        response
    }

    /// Whether this is one refusal too many.
    fn count(&self, response: &Response) -> bool {
        if response.extensions().get().is_some_and(|code| is_avoidable(*code)) {
            let is_held_back = self.in_a_row.fetch_add(1, Ordering::Relaxed) >= FREE;
            if is_held_back {
                self.in_a_row.store(FREE, Ordering::Relaxed);
            }
            return is_held_back;
        }
        // Most connections never get a refusal: nothing is written then.
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        false
    }
}

/// Whether a client that gets this does something wrong, or goes on although it was told to wait.
fn is_avoidable(code: Code) -> bool {
    matches!(code.status(), 400 | 401 | 405 | 413 | 422 | 429) || code == Code::Forbidden
}

#[cfg(test)]
mod tests {
    use api::Refusal;
    use axum::response::IntoResponse;

    use super::*;
    use crate::present::refusals::RefusalResponse;

    fn refused(code: Code) -> Response {
        RefusalResponse(Refusal::new(code, "")).into_response()
    }

    /// Requests beyond a limit of their identity cost little, and four connections sent 200,000 of them per second: the p99
    /// of another client was 15 ms instead of 4.
    #[test]
    fn refusals_in_a_row_are_held_back_after_the_first_ones() {
        let pace = RefusalPace::default();
        for _ in 0..2 {
            for _ in 0..FREE {
                assert!(!pace.count(&refused(Code::QuotaExceeded)), "the first ones");
            }
            for _ in 0..3 {
                assert!(pace.count(&refused(Code::QuotaExceeded)) && pace.count(&refused(Code::Forbidden)));
            }
            assert!(!pace.count(&().into_response()), "a success, and it begins again");
        }
        for code in [Code::Waiting, Code::LeaseExpired, Code::NotFound, Code::Unavailable] {
            assert!((0..=FREE).all(|_| !pace.count(&refused(code))), "part of the work: {code:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_is_held_back_is_sent_after_the_delay() {
        let (pace, begun) = (RefusalPace::default(), tokio::time::Instant::now());
        for _ in 0..FREE + 3 {
            pace.pace(refused(Code::Throttled)).await;
        }
        assert_eq!(begun.elapsed(), 3 * DELAY);
    }
}
