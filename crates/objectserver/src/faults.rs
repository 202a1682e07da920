//! Faults: what a server does wrong on purpose, to which requests, and how often.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hyper::StatusCode;

use crate::call::{Call, Condition, Operation};

/// A fault, limited by its builder methods to a share of the requests.
///
/// Without limits it concerns every request that it can concern: a fault of conditions only conditional writes, a fault
/// of lists only lists, and so on.
#[derive(Debug, Clone)]
pub struct Fault {
    pub(crate) kind: FaultKind,
    probability: f64,
    key_prefix: String,
    operations: Vec<Operation>,
    address: Option<SocketAddr>,
    pub(crate) remaining: Option<u64>,
    /// When the next request may take effect, of a limited rate.
    next: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultKind {
    ConditionsIgnored,
    ConditionsRaced(Duration),
    ExistingIsConflict,
    SpuriousConflict,
    StaleLists(Duration),
    AbsenceCached(Duration),
    AbsentIsDenied,
    ResponseLost,
    ErrorAfter(StatusCode),
    ErrorBefore(StatusCode),
    Denied,
    Delay(Duration),
    RateLimited(Duration),
    Late(Duration),
}

impl Fault {
    fn new(kind: FaultKind) -> Self {
        let (key_prefix, operations) = (String::new(), Vec::new());
        Self { kind, probability: 1.0, key_prefix, operations, address: None, remaining: None, next: None }
    }

    /// Writes take effect without a check of their conditions.
    pub fn conditions_ignored() -> Self {
        Self::new(FaultKind::ConditionsIgnored)
    }

    /// The condition is checked, then `delay` passes, then the write takes effect without a check.
    pub fn conditions_raced(delay: Duration) -> Self {
        Self::new(FaultKind::ConditionsRaced(delay))
    }

    /// A conditional create that finds an object is refused with 409 instead of 412. Azure does so always.
    pub fn existing_is_conflict() -> Self {
        Self::new(FaultKind::ExistingIsConflict)
    }

    /// A conditional write is refused with 409 `ConditionalRequestConflict` and has no effect.
    pub fn spurious_conflict() -> Self {
        Self::new(FaultKind::SpuriousConflict)
    }

    /// Lists show the state of `age` ago.
    pub fn stale_lists(age: Duration) -> Self {
        Self::new(FaultKind::StaleLists(age))
    }

    /// Once a `GET` or `HEAD` has found no object, those of the same key at the same address find none for `duration`.
    pub fn absence_cached(duration: Duration) -> Self {
        Self::new(FaultKind::AbsenceCached(duration))
    }

    /// `GET` and `HEAD` of a missing object are refused with 403, as without the permission to list.
    pub fn absent_is_denied() -> Self {
        Self::new(FaultKind::AbsentIsDenied)
    }

    /// The request takes effect, and the connection is closed without a response.
    pub fn response_lost() -> Self {
        Self::new(FaultKind::ResponseLost)
    }

    /// The request takes effect, and the response has this status (500 to 599, or 429).
    pub fn error_after(status: u16) -> Self {
        Self::new(FaultKind::ErrorAfter(error_status(status)))
    }

    /// The request has no effect, and the response has this status (500 to 599, or 429).
    pub fn error_before(status: u16) -> Self {
        Self::new(FaultKind::ErrorBefore(error_status(status)))
    }

    /// Requests are refused with 403.
    pub fn denied() -> Self {
        Self::new(FaultKind::Denied)
    }

    /// The request waits before it takes effect, in addition to the server's latency.
    pub fn delay(delay: Duration) -> Self {
        Self::new(FaultKind::Delay(delay))
    }

    /// At most this many requests a second take effect, and the others wait for their turn. A real store refuses them with
    /// 503 instead.
    pub fn rate_limited(per_second: u32) -> Self {
        Self::new(FaultKind::RateLimited(Duration::from_secs(1) / per_second.max(1)))
    }

    /// The connection is closed without a response, and the write takes effect later, under its condition at that time.
    pub fn late(delay: Duration) -> Self {
        Self::new(FaultKind::Late(delay))
    }

    /// Concerns a request with this probability only, from 0.0 to 1.0.
    #[must_use]
    pub fn with_probability(self, probability: f64) -> Self {
        Self { probability, ..self }
    }

    /// Concerns only keys that begin with `prefix`; a list if its own prefix does.
    #[must_use]
    pub fn on_keys(self, prefix: &str) -> Self {
        Self { key_prefix: prefix.to_owned(), ..self }
    }

    /// Concerns only these operations.
    #[must_use]
    pub fn on(self, operations: &[Operation]) -> Self {
        Self { operations: operations.to_vec(), ..self }
    }

    /// Concerns only requests that arrive at this one of the server's addresses.
    #[must_use]
    pub fn at(self, address: SocketAddr) -> Self {
        Self { address: Some(address), ..self }
    }

    /// Concerns only the first `count` requests that it would concern.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self { remaining: Some(count), ..self }
    }

    /// How long a request that arrives now has to wait for its turn, at this interval between two of them.
    pub(crate) fn wait(&mut self, now: Instant, interval: Duration) -> Duration {
        let turn = self.next.map_or(now, |next| next.max(now));
        self.next = Some(turn + interval);
        turn - now
    }

    pub(crate) fn probability(&self) -> f64 {
        self.probability
    }

    /// Whether the fault can concern this request, its probability apart.
    pub(crate) fn matches(&self, call: &Call, at: SocketAddr) -> bool {
        self.remaining != Some(0)
            && self.address.is_none_or(|address| address == at)
            && (self.operations.is_empty() || self.operations.contains(&call.operation()))
            && call.concerns(&self.key_prefix)
            && self.kind.matches(call)
    }
}

impl FaultKind {
    fn matches(self, call: &Call) -> bool {
        match self {
            Self::ConditionsIgnored | Self::ConditionsRaced(_) | Self::SpuriousConflict => {
                *call.condition() != Condition::None
            }
            Self::ExistingIsConflict => *call.condition() == Condition::Absent,
            Self::StaleLists(_) => call.operation() == Operation::List,
            Self::AbsenceCached(_) | Self::AbsentIsDenied => {
                matches!(call.operation(), Operation::Get | Operation::Head)
            }
            Self::Late(_) => call.is_write(),
            Self::ResponseLost
            | Self::ErrorAfter(_)
            | Self::ErrorBefore(_)
            | Self::Denied
            | Self::Delay(_)
            | Self::RateLimited(_) => true,
        }
    }
}

fn error_status(status: u16) -> StatusCode {
    let status = StatusCode::from_u16(status).expect("a status has three digits");
    assert!(
        status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS,
        "a failing server responds with 429 or 500 to 599 status={status}"
    );
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_limited_rate_take_turns() {
        let mut fault = Fault::rate_limited(100);
        let (begin, turn) = (crate::clock::now(), Duration::from_millis(10));
        let waits: Vec<Duration> = (0..3).map(|_| fault.wait(begin, turn)).collect();
        assert_eq!(waits, [Duration::ZERO, turn, turn * 2]);
        assert_eq!(fault.wait(begin + turn, turn), turn * 2);
        assert_eq!(fault.wait(begin + turn * 9, turn), Duration::ZERO, "no turn is saved for later");
        assert_eq!(fault.kind, FaultKind::RateLimited(turn));
    }
}
