//! A lease that renews itself and knows when it has ended.
//!
//! **Invariant.** [`Lease::is_live`] is true only before the deadline that the server last confirmed, counted on the
//! boot clock from before the request was sent, less a margin for clock drift. After a suspend, an expired lease is
//! reported as lost before it can be used.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Code, responses};
use tokio::sync::{oneshot, watch};

use crate::client::Client;
use crate::clock::{self, BootTime};
use crate::document_body::DocumentBody;
use crate::document_reader::DocumentReader;
use crate::documents::{Conditions, DocumentState};
use crate::error::{Error, Kind};
use crate::random;

/// The safety margin: this fraction of the remaining time, at most this span.
const MARGIN: (u32, Duration) = (20, Duration::from_millis(500));
/// Delay before a failed renewal is retried, before jitter.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Why a lease has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The server reports that it expired.
    Expired,
    /// An operator revoked it.
    Revoked,
    /// It was released, by this client or by another with its credential.
    Released,
    /// No server confirmed a renewal before the deadline.
    Unreachable,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::Expired => "it expired; stop, and acquire again",
            LossReason::Revoked => "an operator revoked it; stop",
            LossReason::Released => "it was released; stop",
            LossReason::Unreachable => "no server confirmed it before its deadline; stop, and acquire again",
        })
    }
}

/// A lease that renews itself. Dropping it releases it in the background.
pub struct Lease {
    shared: Arc<Shared>,
    /// Sending, or dropping it, stops the renewals and releases the lease.
    stop: Option<oneshot::Sender<ReleaseReply>>,
}

type ReleaseReply = oneshot::Sender<Result<(), Error>>;

struct Shared {
    client: Client,
    granted: responses::Granted,
    /// A [`BootTime`], in milliseconds.
    deadline: AtomicU64,
    lost: watch::Sender<Option<LossReason>>,
    /// Of the last renewal, if it failed.
    renewal_error: Mutex<Option<Error>>,
    /// Released together with a commit: not a loss.
    released_by_commit: AtomicBool,
}

impl Lease {
    pub(crate) fn new(
        client: Client,
        granted: responses::Granted,
        sent_at: BootTime,
        remaining: Duration,
    ) -> Lease {
        let deadline = AtomicU64::new(deadline(sent_at, remaining).0);
        let (lost, released_by_commit) = (watch::Sender::new(None), AtomicBool::new(false));
        let renewal_error = Mutex::new(None);
        let shared = Shared { client, granted, deadline, lost, renewal_error, released_by_commit };
        let shared = Arc::new(shared);
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(run(Arc::clone(&shared), sent_at.after(remaining / 3), stopped));
        Lease { shared, stop: Some(stop) }
    }

    /// The server's grant. Its times are as of then.
    pub fn granted(&self) -> &responses::Granted {
        &self.shared.granted
    }

    /// The credential, required by every call under the lease. Keep it secret.
    pub fn credential(&self) -> &str {
        &self.granted().lease_id
    }

    /// The fencing token, to be checked by the protected resource, as [`fence`](crate::fence) does. It only grows for each resource.
    pub fn fencing_token(&self) -> u64 {
        self.granted().fencing_token
    }

    /// Whether work under the lease may continue.
    pub fn is_live(&self) -> bool {
        self.why_lost().is_none()
    }

    /// Why it may not; `None` while it may.
    pub fn why_lost(&self) -> Option<LossReason> {
        let overdue = || self.shared.deadline().remaining().is_zero().then_some(LossReason::Unreachable);
        (*self.shared.lost.borrow()).or_else(overdue)
    }

    /// Why the last renewal failed; `None` if it succeeded. It is retried: the lease is not lost by this alone.
    pub fn renewal_error(&self) -> Option<Error> {
        self.shared.renewal_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long work may continue without another renewal.
    pub fn remaining(&self) -> Duration {
        if self.is_live() { self.shared.deadline().remaining() } else { Duration::ZERO }
    }

    /// Waits until the lease has ended, and returns why.
    pub async fn lost(&self) -> LossReason {
        let mut watched = self.shared.lost.subscribe();
        let lost = watched.wait_for(Option::is_some).await.map(|lost| *lost);
        lost.ok().flatten().unwrap_or(LossReason::Released)
    }

    /// The same, but never returns if a commit released the lease.
    pub(crate) async fn lost_unreleased(&self) -> LossReason {
        let lost = self.lost().await;
        if self.shared.released_by_commit.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        lost
    }

    /// Opens the document of the lease's key.
    pub async fn get_state(&self) -> Result<DocumentReader, Error> {
        let (key, namespace) = (self.live_key()?, Some(self.granted().namespace.as_str()));
        self.shared.client.get_state(key, namespace, self.credential()).await
    }

    /// Reads the document of the lease's key into memory.
    pub async fn read_state(&self) -> Result<DocumentState, Error> {
        self.get_state().await?.collect().await
    }

    /// Commits the document of the lease's key, under its fencing token: bytes, text, a file or a stream.
    pub async fn update_state(
        &self,
        document: impl Into<DocumentBody>,
        conditions: &Conditions,
    ) -> Result<responses::Committed, Error> {
        let fenced = Conditions { fencing_token: Some(self.fencing_token()), ..conditions.clone() };
        let (key, namespace) = (self.live_key()?, Some(self.granted().namespace.as_str()));
        let client = &self.shared.client;
        let committed = client.update_state(key, namespace, self.credential(), document, &fenced).await?;
        if conditions.release {
            self.shared.released_by_commit.store(true, Ordering::Release);
            self.shared.lose(LossReason::Released);
        }
        Ok(committed)
    }

    fn live_key(&self) -> Result<&str, Error> {
        if let Some(lost) = self.why_lost() {
            return Err(lost.into());
        }
        let several = "the lease covers several resources; use the client's call and name the key";
        self.granted().key.as_deref().ok_or_else(|| Error::new(Kind::Invalid, several))
    }

    /// Releases the lease.
    pub async fn release(mut self) -> Result<(), Error> {
        let (send, receive) = oneshot::channel();
        let stop = self.stop.take().expect("only release takes it, once");
        let gone = || Error::new(Kind::Indeterminate, "the runtime ended before the lease was released");
        stop.send(send).map_err(|_| gone())?;
        receive.await.map_err(|_| gone())?
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The credential is secret.
        write!(f, "Lease({}, lost: {:?})", self.granted().public_id, self.why_lost())
    }
}

impl Shared {
    fn deadline(&self) -> BootTime {
        BootTime(self.deadline.load(Ordering::Acquire))
    }

    /// Records why the lease ended; the first reason wins.
    fn lose(&self, why: LossReason) {
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(why);
            first
        });
    }

    /// Renews until a renewal is refused for good.
    async fn renew(&self, mut next: BootTime) -> LossReason {
        loop {
            clock::sleep_until(next).await;
            // A server that hangs must leave time to try another.
            let attempt_timeout = Some(Duration::from_millis(self.granted.ttl_ms) / 4);
            let extended = self.client.extend(&self.granted.lease_id, None, attempt_timeout).await;
            let mut renewal_error = self.renewal_error.lock().unwrap_or_else(PoisonError::into_inner);
            *renewal_error = extended.as_ref().err().cloned();
            drop(renewal_error);
            match extended {
                Ok((extended, sent_at)) => {
                    let remaining = Duration::from_millis(extended.remaining_ms);
                    self.deadline.store(deadline(sent_at, remaining).0, Ordering::Release);
                    next = sent_at.after(remaining / 3).max(BootTime::now().after(Duration::from_millis(1)));
                }
                Err(error) => match fatal(&error) {
                    Some(lost) => return lost,
                    None => next = BootTime::now().after(random::jitter(RETRY_DELAY)),
                },
            }
        }
    }

    /// Waits for the deadline, which renewals move.
    async fn expire(&self) -> LossReason {
        while !self.deadline().remaining().is_zero() {
            clock::sleep_until(self.deadline()).await;
        }
        LossReason::Unreachable
    }
}

fn deadline(sent_at: BootTime, remaining: Duration) -> BootTime {
    let margin = (remaining / MARGIN.0).min(MARGIN.1);
    sent_at.after(remaining.saturating_sub(margin))
}

/// The loss that a refused renewal means; `None` if a retry may succeed.
fn fatal(error: &Error) -> Option<LossReason> {
    match error.code()? {
        Code::LeaseRevoked => Some(LossReason::Revoked),
        Code::LeaseExpired | Code::Retired => Some(LossReason::Expired),
        Code::NotHeld | Code::StaleEpoch => Some(LossReason::Released),
        _ => None,
    }
}

/// Renews a lease until it ends or is stopped, and then releases it.
async fn run(shared: Arc<Shared>, first: BootTime, mut stopped: oneshot::Receiver<ReleaseReply>) {
    let mut ended = shared.lost.subscribe();
    let stop = tokio::select! {
        biased;
        stop = &mut stopped => Some(stop),
        lost = shared.expire() => { shared.lose(lost); None }
        lost = shared.renew(first) => { shared.lose(lost); None }
        _ = ended.wait_for(Option::is_some) => None,
    };
    let stop = match stop {
        Some(stop) => stop,
        None => stopped.await,
    };
    shared.lose(LossReason::Released);
    let released = shared.client.release(&shared.granted.lease_id).await;
    if let Ok(reply) = stop {
        // The caller may have been dropped.
        let _ = reply.send(released);
    }
}
