//! The thread of one shard in a cluster: follows its log, takes it over, serves it, and stands down.
//!
//! **Invariant.** The slot has an engine only while that engine has a durable tenure of its own. An engine that was deposed
//! is dropped with its whole state, and the shard is recovered from the store before it is followed again.
//!
//! **When it takes over.** At once, if the log is new or was handed over to this server; otherwise after the silence:
//! neither the log nor the record of a server that owns the shard has changed for that long, as watched by this thread.
//! A log that was handed over to no server in particular is taken by the first follower at once, and by the second a
//! little later.
//!
//! **Polling.** A log is polled four times within the silence while it grows, once within the silence when it has not grown
//! for that long and its owner lives, and sixteen times once its owner is silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use engine::observe::{
    AuditEntry, ContentionEvent, EngineObserver, Fatal, MaintenanceEvent, Measure, RecoverySummary,
};
use engine::{Engine, Follower, RecoveryError};
use kernel::{Close, Event, Lsn, Shard};
use store::StoreError;

use super::ClusterParts;
use super::registry::{LOOKS, Registry};
use super::server_record::ServerId;
use super::shard_slot::ShardSlot;
use super::watched_time::{WatchedTime, boot_clock};

/// A shard that cannot be followed is tried again after this time.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// The time after which a log that this version cannot read is tried again.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);
/// How often the wait for a tenure looks whether the server stops.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Tends one shard.
pub(super) struct Tender {
    shard: Shard,
    parts: Arc<ClusterParts>,
    registry: Arc<Registry>,
    slot: Arc<ShardSlot>,
    stopping: Arc<AtomicBool>,
}

/// A log that is followed.
struct Following {
    follower: Follower,
    log_unchanged: WatchedTime,
    /// The looks since the last poll of a log that does not grow.
    looks_skipped: u32,
}

/// What a look at a followed log calls for.
enum Next {
    TakeOver,
    Look(Duration),
}

impl Tender {
    pub(super) fn new(
        shard: Shard,
        parts: Arc<ClusterParts>,
        registry: Arc<Registry>,
        slot: Arc<ShardSlot>,
        stopping: Arc<AtomicBool>,
    ) -> Tender {
        Tender { shard, parts, registry, slot, stopping }
    }

    /// Tends the shard until the server stops.
    pub(super) fn run(self) {
        let (mut following, mut lost, mut is_woken) = (None, None, true);
        while !self.is_stopping() {
            let Some(rank) = self.registry.rank(self.shard) else {
                // Others follow it. A state that is not kept up is of no use.
                (following, lost) = (None, None);
                is_woken = self.slot.wait(self.registry.interval());
                continue;
            };
            let looked = match &mut following {
                None => self.open(lost.take()).map(|opened| {
                    following = Some(opened);
                    Next::Look(Duration::ZERO)
                }),
                Some(following) if self.may_skip(following, is_woken) => {
                    following.looks_skipped += 1;
                    Ok(Next::Look(self.registry.interval()))
                }
                Some(following) => self.look(following, rank),
            };
            match looked {
                Ok(Next::Look(pause)) => is_woken = self.slot.wait(pause),
                Ok(Next::TakeOver) => {
                    let taken = following.take().expect("it was just looked at");
                    lost = self.take_over(taken.follower);
                }
                Err(error) => {
                    following = None;
                    is_woken = self.slot.wait(self.pause_after(&error));
                }
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn pause_after(&self, error: &RecoveryError) -> Duration {
        let shard = self.shard.0;
        if error.is_denied() {
            tracing::warn!(shard, %error, "the bucket denies access to the log of the shard; it is read again");
            return FAILED_PAUSE;
        }
        if error.is_transient() {
            tracing::debug!(shard, %error, "the shard cannot be followed; its log is opened again");
            return self.registry.interval().min(FAILED_PAUSE);
        }
        tracing::error!(shard, %error, "the shard cannot be followed by this version; it is not taken over");
        UNREADABLE_PAUSE
    }

    /// Whether a look need not poll the log: it has not grown for the silence, and its owner lives. A request that came for
    /// the shard, and a hand-over to this server, are reasons to poll.
    fn may_skip(&self, following: &Following, is_woken: bool) -> bool {
        let Following { follower, log_unchanged, looks_skipped } = following;
        let term = follower.tenure().map(|tenure| tenure.open.term);
        let has_live_owner = term.is_some_and(|term| !self.registry.is_silent(self.shard, term));
        !is_woken
            && *looks_skipped + 1 < LOOKS
            && log_unchanged.is_silent()
            && follower.closed().is_none()
            && has_live_owner
            && !self.registry.is_handed_to_this(self.shard)
    }

    /// Reads what was appended since the last poll.
    fn look(&self, following: &mut Following, rank: usize) -> Result<Next, RecoveryError> {
        let silence = self.registry.silence();
        following.looks_skipped = 0;
        let Following { follower, log_unchanged, .. } = following;
        let has_grown = follower.poll(false)?;
        log_unchanged.look(boot_clock(), has_grown);
        let delay = self.registry.interval() * u32::try_from(rank).unwrap_or(u32::MAX);
        let term = follower.tenure().map_or(0, |tenure| tenure.open.term);
        let watched = log_unchanged.watched();
        let may_try = match (follower.tenure(), follower.closed()) {
            (_, Some(Close { to: Some(to) })) if ServerId(to) == self.registry.id() => true,
            (None, _) | (_, Some(Close { to: None })) => watched >= delay,
            _ => watched >= silence + delay / 2 && self.registry.is_silent(self.shard, term),
        };
        if !may_try {
            // Close to the end of the silence it looks more often.
            let is_suspicious = watched > silence / 2 && self.registry.is_silent(self.shard, term);
            let interval = self.registry.interval();
            return Ok(Next::Look(if is_suspicious { interval / 4 } else { interval }));
        }
        // A log that was truncated past its known end looks unchanged.
        if follower.poll(true)? {
            log_unchanged.look(boot_clock(), true);
            return Ok(Next::Look(Duration::ZERO));
        }
        // The owner may be a server that was never read: of a log that is not open, no server is.
        let is_open = follower.tenure().is_some() && follower.closed().is_none();
        if is_open && !(self.registry.knows_all_servers() && self.registry.is_silent(self.shard, term)) {
            return Ok(Next::Look(self.registry.interval()));
        }
        Ok(Next::TakeOver)
    }

    /// Recovers the log, also after this server has lost it: the state of the engine that lost it is discarded.
    fn open(&self, lost: Option<Arc<Engine>>) -> Result<Following, RecoveryError> {
        let log = (self.parts.open_log)(self.shard.0)?;
        let clock = (self.parts.clock)().map_err(|error| {
            RecoveryError::Store(StoreError::new(store::ErrorKind::Io, format!("the clock: {error}")))
        })?;
        let (blobs, observer) = (Arc::clone(&self.parts.blobs), &*self.parts.observer);
        let follower = match lost {
            Some(lost) => Follower::open_after(lost, log, blobs, clock, self.shard, observer)?,
            None => Follower::open(log, blobs, clock, self.shard, observer)?,
        };
        let mut log_unchanged = WatchedTime::new(self.registry.silence());
        log_unchanged.look(boot_clock(), true);
        Ok(Following { follower, log_unchanged, looks_skipped: 0 })
    }

    /// Opens a tenure, and serves the shard until it is lost, handed over, or the server stops. The engine, if it has lost
    /// its log.
    fn take_over(&self, follower: Follower) -> Option<Arc<Engine>> {
        let shard = self.shard.0;
        let deposed = Arc::new(AtomicBool::new(false));
        let observer = Arc::new(ShardWatch {
            inner: Arc::clone(&self.parts.observer),
            slot: Arc::clone(&self.slot),
            deposed: Arc::clone(&deposed),
        });
        let tenure = &self.parts.tenures[shard as usize];
        let was_clean = follower.tenure().is_none() || follower.closed().is_some();
        let opened = follower.take_over(tenure, self.parts.options.clone(), observer, &self.parts.executor);
        let engine = match opened {
            Ok(engine) => Arc::new(engine),
            Err(error) => {
                tracing::error!(shard, %error, "the shard cannot be taken over; it is tried again");
                self.slot.wait(FAILED_PAUSE);
                return None;
            }
        };
        let Some(term) = self.wait_for_tenure(&engine) else {
            tracing::debug!(shard, "another server has the shard");
            return Some(engine);
        };
        report(shard, term, was_clean, engine.recovery());
        self.parts.observer.served(self.shard);
        self.slot.set(Some(Arc::clone(&engine)));
        self.registry.set_owned(self.shard, term);
        self.serve(&engine, term, &deposed);
        Some(engine)
    }

    /// Waits until the record that begins the tenure is durable; its term. `None` if another server was first.
    fn wait_for_tenure(&self, engine: &Engine) -> Option<u64> {
        let (send, receive) = sync_channel(1);
        let query = engine.sequencer().query(Box::new(move |shard| {
            let term = shard.kernel().tenure().expect("its first record opens it").open.term;
            Box::new(move || {
                let _ = send.send(term);
            })
        }));
        query.ok()?;
        loop {
            match receive.recv_timeout(STOP_POLL) {
                Ok(term) => return Some(term),
                Err(RecvTimeoutError::Disconnected) => return None,
                // The put may land later: then the tenure is one without requests.
                Err(RecvTimeoutError::Timeout) if self.is_stopping() => {
                    engine.sequencer().abandon();
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn serve(&self, engine: &Arc<Engine>, term: u64, deposed: &AtomicBool) {
        loop {
            self.slot.wait(self.registry.interval());
            if deposed.load(Ordering::Acquire) || engine.sequencer().has_ended() {
                return self.stand_down(term);
            }
            if self.is_stopping() {
                return self.hand_over(engine, term, self.registry.successor(self.shard));
            }
            if let Some(to) = self.registry.hand_over_target(self.shard) {
                return self.hand_over(engine, term, Some(to));
            }
            if self.registry.is_superseded(self.shard, term) {
                // An idle owner sends no request that would tell it. This query confirms the log, and so ends the engine.
                let _ = engine.sequencer().query(Box::new(|_| Box::new(|| ())));
            }
        }
    }

    /// The engine has ended. Its state is dropped with it, when the requests in progress have their responses.
    fn stand_down(&self, term: u64) {
        tracing::warn!(
            shard = self.shard.0,
            term,
            "another server has taken the shard over; this one follows it"
        );
        self.slot.set(None);
        self.parts.observer.served(self.shard);
        self.registry.set_lost(self.shard);
    }

    /// Ends the tenure with a record that names the next owner.
    fn hand_over(&self, engine: &Engine, term: u64, to: Option<ServerId>) {
        engine.sequencer().hand_over(Close { to: to.map(|to| to.0) });
        engine.sequencer().wait_until_ended();
        self.slot.set(None);
        self.parts.observer.served(self.shard);
        self.registry.set_handed_over(self.shard, term, to);
        let to = to.map(tracing::field::display);
        tracing::info!(shard = self.shard.0, term, to, "handed the shard over");
    }
}

/// Logs what was recovered, and that the shard is this server's. `was_clean`: the log was new, or its last owner has handed
/// it over.
fn report(shard: u32, term: u64, was_clean: bool, recovery: &RecoverySummary) {
    // Of a bucket, the log itself does not know how its last owner ended.
    let RecoverySummary { snapshot, records, leases, documents, was_clean: _, took } = recovery;
    let (snapshot, ms) = (snapshot.map(|seq| seq.0), took.as_millis());
    let last_stop = if was_clean { "clean" } else { "unclean" };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        shard,
        term,
        records,
        snapshot,
        leases,
        documents,
        ms,
        last_stop,
        "recovered the store"
    );
}

/// Observes an engine that may be deposed.
struct ShardWatch {
    inner: Arc<dyn EngineObserver>,
    slot: Arc<ShardSlot>,
    deposed: Arc<AtomicBool>,
}

impl EngineObserver for ShardWatch {
    fn fatal(&self, why: Fatal) {
        self.inner.fatal(why);
    }

    fn deposed(&self, shard: Shard, why: StoreError) {
        tracing::debug!(shard = shard.0, %why, "deposed");
        self.deposed.store(true, Ordering::Release);
        self.slot.wake();
    }

    fn durable(&self, events: &[(Lsn, Vec<Event>)]) {
        self.inner.durable(events);
    }

    fn audited(&self, shard: Shard, entries: Vec<AuditEntry>) {
        self.inner.audited(shard, entries);
    }

    fn contended(&self, shard: Shard, contended: &[ContentionEvent]) {
        self.inner.contended(shard, contended);
    }

    fn maintained(&self, news: MaintenanceEvent) {
        self.inner.maintained(news);
    }

    fn measured(&self, shard: Shard, measure: Measure) {
        self.inner.measured(shard, measure);
    }
}
