//! Waits for a lease across refusals, broken connections and restarts of the server, until the caller's block time is over.
//!
//! The first request does not wait: its refusal carries an `attempt_id`. Each later request carries the `attempt_id` of the
//! last refusal, so that the waiter keeps its place in the queue when the server ends the wait or restarts.
//!
//! **Invariant.** No grant of a wait is orphaned while the wait goes on. A request without a reply may have been granted, or
//! may still be queued: it is repeated under the same idempotency key with the same bytes, until a reply settles it. The
//! server returns the grant of an earlier copy, and a repeated copy replaces its queued predecessor. Only then does
//! the next request follow, with a newer `attempt_id`, the remaining block time and a key of its own.
//!
//! **What would break it.** The server logs the grant, and the connection breaks before the response arrives. A *new* request
//! (the remaining block time is shorter now, the `attempt_id` newer) has another key: it is blocked by the waiter's
//! own lease, which is neither renewed nor released, until its TTL ends. A repeated copy that gets 503 `draining` or 429 does not
//! settle the earlier one: a server refuses these before it looks up the key.
//!
//! Without a reply until the block time is over, the error is [`Kind::Indeterminate`](crate::Kind::Indeterminate), and such a lease ends with its TTL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use api::{Code, Hints, header};

use crate::call::{ApiRequest, ApiResponse, Attempts, Servers};
use crate::client::Client;
use crate::clock::{self, BootTime};
use crate::error::Error;
use crate::exchange::AttemptError;
use crate::random;

/// The longest time that one request waits: a server that no longer responds is noticed after it, while the `attempt_id`
/// still counts (`acquire-block` and 15 s after it was issued).
const SLICE: Duration = Duration::from_secs(45);
/// A request that was to wait, but was refused within this time, met a server that does not queue requests.
const IMMEDIATE: Duration = Duration::from_millis(50);
/// The first and the longest delay between requests to such a server, before jitter.
const POLL_DELAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The longest delay that a server may ask for with `retry_after_seconds`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(5);

/// How long to wait for a lease, and what to call meanwhile. A [`Duration`] converts into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// How long to wait in the queue. Zero: do not wait.
    pub block: Duration,
    /// Called when the caller begins to wait, and when its [`WaitStatus`] changes.
    pub on_wait: Option<WaitObserver>,
}

/// What a request waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitStatus {
    /// Identity of the conflicting lease's holder, as of the last refusal.
    pub holder: Option<String>,
    /// Display name that the holder gave itself.
    pub owner: Option<String>,
    /// Queue position: the number of earlier conflicting waiters, as of the last refusal.
    pub position: Option<u64>,
    /// Public ids of conflicting leases, as of the last refusal.
    pub leases: Vec<String>,
    /// Why there is no reply, while no server responds.
    pub unreachable: Option<String>,
    /// Time since the first request.
    pub waited: Duration,
}

/// A function that is called with each new [`WaitStatus`]. It must not block.
#[derive(Clone)]
pub struct WaitObserver(Arc<dyn Fn(&WaitStatus) + Send + Sync>);

impl WaitObserver {
    /// Calls `observe` with each new status.
    pub fn new(observe: impl Fn(&WaitStatus) + Send + Sync + 'static) -> WaitObserver {
        WaitObserver(Arc::new(observe))
    }
}

impl fmt::Debug for WaitObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitObserver")
    }
}

/// Equal if they are clones of one observer.
impl PartialEq for WaitObserver {
    fn eq(&self, other: &WaitObserver) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for WaitObserver {}

impl From<Duration> for Wait {
    fn from(block: Duration) -> Wait {
        Wait { block, on_wait: None }
    }
}

impl WaitStatus {
    pub(crate) fn of_hints(hints: &Hints) -> WaitStatus {
        WaitStatus {
            holder: hints.holder.clone(),
            owner: hints.owner.clone(),
            position: hints.position,
            leases: hints.leases.clone(),
            ..WaitStatus::default()
        }
    }
}

/// A request for a lease that can be repeated: an acquire, or an agent's manifest.
pub(crate) trait LeaseRequest {
    type Outcome;

    /// The request, to wait for up to `queue_time`.
    fn request(&self, queue_time: Duration, attempt_id: Option<&str>) -> ApiRequest;

    /// Reads the reply to it. An error ends the wait.
    fn read(&self, reply: Result<ApiResponse, Error>) -> Result<LeaseReply<Self::Outcome>, Error>;
}

pub(crate) enum LeaseReply<T> {
    /// The wait is over.
    Done(T),
    Blocked(Box<BlockedReply<T>>),
}

/// The request was decided, and not granted.
pub(crate) struct BlockedReply<T> {
    pub(crate) attempt_id: Option<String>,
    pub(crate) status: WaitStatus,
    /// Delay before the next request.
    pub(crate) backoff: Duration,
    /// The result if the block time is over.
    pub(crate) otherwise: Result<T, Error>,
}

impl Client {
    /// Sends the request until it is granted, refused for good, or the block time is over.
    pub(crate) async fn wait_for<R: LeaseRequest>(
        &self,
        request: &R,
        attempt_id: Option<String>,
        wait: &Wait,
    ) -> Result<R::Outcome, Error> {
        Waiter::new(&self.servers, request, attempt_id, wait).run().await
    }
}

struct Waiter<'a, R> {
    servers: &'a Servers,
    lease_request: &'a R,
    wait: &'a Wait,
    started_at: BootTime,
    /// The end of the block time.
    end: BootTime,
    /// No copy of a request is sent or waited for after this.
    last_end: BootTime,
    attempt_id: Option<String>,
    /// It is from a server, and not from the caller.
    is_issued: bool,
    /// A server has refused an `attempt_id`: the next refusal of one is final.
    is_refused: bool,
    /// The last status that was observed.
    status: Option<WaitStatus>,
    /// How many requests in a row were refused at once instead of being queued.
    polls: u32,
}

impl<'a, R: LeaseRequest> Waiter<'a, R> {
    fn new(
        servers: &'a Servers,
        lease_request: &'a R,
        attempt_id: Option<String>,
        wait: &'a Wait,
    ) -> Waiter<'a, R> {
        let (started_at, policy) = (BootTime::now(), servers.policy());
        let end = started_at.after(wait.block);
        let beyond = if wait.block.is_zero() { policy.window } else { policy.reply_timeout() };
        Waiter {
            servers,
            lease_request,
            wait,
            started_at,
            end,
            last_end: end.after(beyond),
            attempt_id,
            is_issued: false,
            is_refused: false,
            status: None,
            polls: 0,
        }
    }

    async fn run(mut self) -> Result<R::Outcome, Error> {
        let mut is_first = true;
        loop {
            let sent_at = BootTime::now();
            let Some(reply) = self.settle(is_first).await? else { continue };
            let blocked = match reply {
                LeaseReply::Done(outcome) => return Ok(outcome),
                LeaseReply::Blocked(blocked) => *blocked,
            };
            self.keep_attempt(blocked.attempt_id);
            let remaining = self.end.remaining();
            let delay = match blocked.backoff {
                Duration::ZERO if !is_first => self.poll_delay(sent_at).min(remaining),
                backoff => backoff,
            };
            is_first = false;
            if remaining.is_zero() || remaining < delay {
                let status = WaitStatus { waited: self.started_at.elapsed(), ..blocked.status };
                return blocked.otherwise.map_err(|error| self.timed_out(error, status));
            }
            self.observe(blocked.status);
            clock::sleep_until(BootTime::now().after(delay)).await;
        }
    }

    /// Sends one request, and repeats it until a reply settles it. `None` if the next request must be a new one.
    async fn settle(&mut self, is_first: bool) -> Result<Option<LeaseReply<R::Outcome>>, Error> {
        let mut attempts = self.servers.attempts();
        let mut request = self.next_request(is_first);
        // A copy of `request` may have been granted.
        let mut ambiguous = false;
        loop {
            request.attempt_timeout = Some(self.last_end.remaining());
            let failed = match attempts.next(&request).await {
                Ok(Err(error)) if error.code() == Some(Code::Throttled) && !self.wait.block.is_zero() => {
                    AttemptError { error, may_be_applied: false, is_final: false }
                }
                Ok(reply) => return self.settled(reply, ambiguous),
                Err(failed) => failed,
            };
            ambiguous |= failed.may_be_applied;
            let delay = self.within_block(attempts.delay().max(retry_after(&failed.error)));
            if self.gives_up(&attempts, &failed, delay) {
                return Err(self.without_reply(failed, ambiguous));
            }
            self.dismissed(&failed.error);
            clock::sleep_until(BootTime::now().after(delay)).await;
            if !ambiguous {
                request = self.next_request(is_first);
            }
        }
    }

    /// A request of its own, with a new idempotency key.
    fn next_request(&self, is_first: bool) -> ApiRequest {
        let queue_time = if is_first { Duration::ZERO } else { self.end.remaining().min(SLICE) };
        let mut request = self.lease_request.request(queue_time, self.attempt_id.as_deref());
        request.headers.push((header::IDEMPOTENCY_KEY, random::idempotency_key()));
        request
    }

    fn settled(
        &mut self,
        reply: Result<ApiResponse, Error>,
        ambiguous: bool,
    ) -> Result<Option<LeaseReply<R::Outcome>>, Error> {
        match reply.as_ref().err().and_then(Error::code) {
            // A copy was granted, and its lease expired before the server could be reached again.
            Some(Code::LeaseExpired) if ambiguous && !self.end.remaining().is_zero() => Ok(None),
            // Not from this store, or of an older format.
            Some(Code::InvalidBody) if self.attempt_id.is_some() && self.is_issued && !self.is_refused => {
                (self.attempt_id, self.is_refused) = (None, true);
                Ok(None)
            }
            _ => self.lease_request.read(reply.map_err(|error| error.after(ambiguous))).map(Some),
        }
    }

    fn gives_up(&self, attempts: &Attempts<'_>, failed: &AttemptError, delay: Duration) -> bool {
        let is_final = failed.is_final && attempts.has_tried_all();
        let is_over = self.end.remaining().is_zero() && attempts.is_exhausted();
        is_final || is_over || self.last_end.remaining() <= delay
    }

    /// The error if no server has replied.
    fn without_reply(&self, failed: AttemptError, ambiguous: bool) -> Error {
        let is_final = failed.is_final;
        let error = failed.into_error(ambiguous);
        if is_final {
            return error;
        }
        let (unreachable, waited) = (Some(error.to_string()), self.started_at.elapsed());
        let last = self.status.clone().unwrap_or_default();
        self.timed_out(error, WaitStatus { unreachable, waited, ..last })
    }

    fn timed_out(&self, error: Error, status: WaitStatus) -> Error {
        if self.wait.block.is_zero() { error } else { error.timed_out_waiting_with(status) }
    }

    /// While there is block time left, the last attempt is made at its end.
    fn within_block(&self, delay: Duration) -> Duration {
        match self.end.remaining() {
            Duration::ZERO => delay,
            remaining => delay.min(remaining),
        }
    }

    /// The delay before the next request: zero, to keep the place, unless the server does not queue requests.
    fn poll_delay(&mut self, sent_at: BootTime) -> Duration {
        if sent_at.elapsed() >= IMMEDIATE {
            self.polls = 0;
            return Duration::ZERO;
        }
        let delay = POLL_DELAY.0 * 2_u32.pow(self.polls.min(10));
        self.polls += 1;
        random::jitter(delay.min(POLL_DELAY.1))
    }

    fn keep_attempt(&mut self, attempt_id: Option<String>) {
        if attempt_id.is_some() {
            (self.attempt_id, self.is_issued) = (attempt_id, true);
        }
    }

    /// A server that stops sends the `attempt_id` for the next request with its refusal.
    fn dismissed(&mut self, error: &Error) {
        self.keep_attempt(error.refusal().and_then(|refusal| refusal.hints.attempt_id.clone()));
        let last = self.status.clone().unwrap_or_default();
        self.observe(WaitStatus { unreachable: Some(error.to_string()), ..last });
    }

    fn observe(&mut self, status: WaitStatus) {
        if self.wait.block.is_zero() || self.status.as_ref() == Some(&status) {
            return;
        }
        if let Some(WaitObserver(observe)) = &self.wait.on_wait {
            observe(&WaitStatus { waited: self.started_at.elapsed(), ..status.clone() });
        }
        self.status = Some(status);
    }
}

/// The delay that a server at its limit asks for; zero for all others, to keep the place.
fn retry_after(error: &Error) -> Duration {
    let throttled = error.refusal().filter(|refusal| refusal.error == Code::Throttled);
    let hint = throttled.and_then(|refusal| refusal.hints.retry_after_seconds);
    hint.map(|seconds| random::jitter(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))).unwrap_or_default()
}
