//! A lease that keeps itself alive, and knows when it is over.
//!
//! **Invariant.** [`Lease::is_live`] is true only before the deadline that the server last confirmed, counted on the
//! boot clock from before the request was sent, less a margin for clocks that run unevenly. A machine that was asleep
//! finds its leases over before it does anything with them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use api::{Code, responses};
use hyper::body::Bytes;
use tokio::sync::{oneshot, watch};

use crate::chance;
use crate::client::{Client, Conditions, State};
use crate::clock::{self, BootTime};
use crate::error::{Error, Kind};

/// The margin is this part of what remains, and never more than that.
const MARGIN: (u32, Duration) = (20, Duration::from_millis(500));
/// How soon a renewal that failed is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Why a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The server says that it ran out.
    Expired,
    /// An operator withdrew it.
    Revoked,
    /// It was given back, here or by another who has its credential.
    Released,
    /// No server has confirmed it in time.
    Unreachable,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lost::Expired => "it ran out; stop, and acquire again",
            Lost::Revoked => "an operator withdrew it; stop",
            Lost::Released => "it was given back; stop",
            Lost::Unreachable => "no server has confirmed it in time; stop, and acquire again",
        })
    }
}

/// A lease that renews itself. Dropped, it is given back in the background.
pub struct Lease {
    shared: Arc<Shared>,
    /// Whoever sends here, or drops it, ends the lease.
    stop: Option<oneshot::Sender<Answer>>,
}

type Answer = oneshot::Sender<Result<(), Error>>;

struct Shared {
    client: Client,
    granted: responses::Granted,
    /// In milliseconds of the boot clock.
    deadline: AtomicU64,
    lost: watch::Sender<Option<Lost>>,
    /// Its holder gave it back with a commit: that is no loss.
    given_back: AtomicBool,
}

impl Lease {
    pub(crate) fn new(
        client: Client,
        granted: responses::Granted,
        sent_at: BootTime,
        remaining: Duration,
    ) -> Lease {
        let deadline = AtomicU64::new(deadline(sent_at, remaining).0);
        let (lost, given_back) = (watch::Sender::new(None), AtomicBool::new(false));
        let shared = Arc::new(Shared { client, granted, deadline, lost, given_back });
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(keep(Arc::clone(&shared), sent_at.after(remaining / 3), stopped));
        Lease { shared, stop: Some(stop) }
    }

    /// As the server granted it. Its times are of that moment.
    pub fn granted(&self) -> &responses::Granted {
        &self.shared.granted
    }

    /// The credential: for whatever is done under the lease, and for nobody else.
    pub fn credential(&self) -> &str {
        &self.granted().lease_id
    }

    /// Only grows for each resource: to be checked by whatever the lease protects, as [`fence`] does.
    pub fn fencing_token(&self) -> u64 {
        self.granted().fencing_token
    }

    /// May work go on?
    pub fn is_live(&self) -> bool {
        self.why_lost().is_none()
    }

    /// Why it may not.
    pub fn why_lost(&self) -> Option<Lost> {
        let late = || self.shared.deadline().left().is_zero().then_some(Lost::Unreachable);
        (*self.shared.lost.borrow()).or_else(late)
    }

    /// How long work may go on, if nothing is heard of any server.
    pub fn remaining(&self) -> Duration {
        if self.is_live() { self.shared.deadline().left() } else { Duration::ZERO }
    }

    /// Waits until it is over, and tells why.
    pub async fn lost(&self) -> Lost {
        let mut watched = self.shared.lost.subscribe();
        let lost = watched.wait_for(Option::is_some).await.map(|lost| *lost);
        lost.ok().flatten().unwrap_or(Lost::Released)
    }

    /// The same; for ever, if it was given back with a commit.
    pub(crate) async fn taken(&self) -> Lost {
        let lost = self.lost().await;
        if self.shared.given_back.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        lost
    }

    /// The document of its key.
    pub async fn get_state(&self) -> Result<State, Error> {
        self.shared.client.get_state(self.live_key()?, self.credential()).await
    }

    /// Commits the document of its key, under its fencing token.
    pub async fn update_state(
        &self,
        document: impl Into<Bytes>,
        conditions: &Conditions,
    ) -> Result<responses::Committed, Error> {
        let fenced = Conditions { fencing_token: Some(self.fencing_token()), ..conditions.clone() };
        let committed =
            self.shared.client.update_state(self.live_key()?, self.credential(), document, &fenced).await?;
        if conditions.release {
            self.shared.given_back.store(true, Ordering::Release);
            self.shared.lose(Lost::Released);
        }
        Ok(committed)
    }

    fn live_key(&self) -> Result<&str, Error> {
        if let Some(lost) = self.why_lost() {
            return Err(lost.into());
        }
        let several = "the lease is over several resources; name the key, with the client's own call";
        self.granted().key.as_deref().ok_or_else(|| Error::new(Kind::Invalid, several))
    }

    /// Gives it back.
    pub async fn release(mut self) -> Result<(), Error> {
        let (send, receive) = oneshot::channel();
        let stop = self.stop.take().expect("only this and the end of its life take it");
        let gone = || Error::new(Kind::Indeterminate, "the runtime ended before the lease was given back");
        stop.send(send).map_err(|_| gone())?;
        receive.await.map_err(|_| gone())?
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the credential.
        write!(f, "Lease({}, lost: {:?})", self.granted().public_id, self.why_lost())
    }
}

impl Shared {
    fn deadline(&self) -> BootTime {
        BootTime(self.deadline.load(Ordering::Acquire))
    }

    /// The first reason stays.
    fn lose(&self, why: Lost) {
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            lost.get_or_insert(why);
            first
        });
    }

    /// Until it is over.
    async fn renew(&self, mut next: BootTime) -> Lost {
        loop {
            clock::until(next).await;
            // A server that hangs must leave time to ask another.
            let try_max = Some(Duration::from_millis(self.granted.ttl_ms) / 4);
            match self.client.extend(&self.granted.lease_id, None, try_max).await {
                Ok((extended, sent_at)) => {
                    let remaining = Duration::from_millis(extended.remaining_ms);
                    self.deadline.store(deadline(sent_at, remaining).0, Ordering::Release);
                    next = sent_at.after(remaining / 3).max(BootTime::now().after(Duration::from_millis(1)));
                }
                Err(error) => match fatal(&error) {
                    Some(lost) => return lost,
                    None => next = BootTime::now().after(chance::jitter(AGAIN)),
                },
            }
        }
    }

    /// Until its deadline, wherever that moves.
    async fn run_out(&self) -> Lost {
        while !self.deadline().left().is_zero() {
            clock::until(self.deadline()).await;
        }
        Lost::Unreachable
    }
}

fn deadline(sent_at: BootTime, remaining: Duration) -> BootTime {
    let margin = (remaining / MARGIN.0).min(MARGIN.1);
    sent_at.after(remaining.saturating_sub(margin))
}

/// A renewal that is refused like this is refused for ever.
fn fatal(error: &Error) -> Option<Lost> {
    match error.code()? {
        Code::LeaseRevoked => Some(Lost::Revoked),
        Code::LeaseExpired | Code::Retired => Some(Lost::Expired),
        Code::NotHeld | Code::StaleEpoch => Some(Lost::Released),
        _ => None,
    }
}

/// Renews a lease until it is over or stopped, and then gives it back.
async fn keep(shared: Arc<Shared>, first: BootTime, mut stopped: oneshot::Receiver<Answer>) {
    let mut ended = shared.lost.subscribe();
    let stop = tokio::select! {
        biased;
        stop = &mut stopped => Some(stop),
        lost = shared.run_out() => { shared.lose(lost); None }
        lost = shared.renew(first) => { shared.lose(lost); None }
        _ = ended.wait_for(Option::is_some) => None,
    };
    let stop = match stop {
        Some(stop) => stop,
        None => stopped.await,
    };
    shared.lose(Lost::Released);
    let released = shared.client.release(&shared.granted.lease_id).await;
    if let Ok(answer) = stop {
        // Whoever asked may have gone.
        let _ = answer.send(released);
    }
}
