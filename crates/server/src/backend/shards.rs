//! The shards of a store, and how they are asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::{Code, Refusal};
use engine::decider::Said;
use engine::engine::Engine;
use engine::sequencer::{Delivery, ReplyTo};
use engine::shard::{Peek, Reply, Submission, Unavailable, Wait};
use kernel::{Command, Kernel, LeaseId, Namespace, Span, Time};
use store::disk::DiskDir;
use tokio::sync::oneshot;

use crate::backend::boot::Opened;
use crate::backend::credential::StoreKey;
use crate::backend::event_log::News;
use crate::backend::metrics::Metrics;
use crate::config::Config;
use crate::handlers::events::Readers;
use crate::present::refusals;

/// What a server is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where a request names no TTL.
    pub default_ttl: Span,
    /// The longest TTL.
    pub max_ttl: Span,
    /// The longest wait.
    pub acquire_block: Span,
    /// The longest document, as it is received.
    pub json_max: u64,
    /// The longest document that is kept in the log.
    pub inline_max: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Config::in_memory().settings()
    }
}

/// Tells the time since 1970.
pub(crate) type Wall = Box<dyn Fn() -> Duration + Send + Sync>;

/// Fills bytes with chance.
pub(crate) type Chance = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// What an app has besides its store.
pub(crate) struct Parts {
    pub(crate) settings: Settings,
    /// The store's watcher counts here.
    pub(crate) metrics: Arc<Metrics>,
    /// The store's watcher tells it here.
    pub(crate) news: Arc<News>,
    pub(crate) wall: Wall,
    pub(crate) chance: Chance,
}

/// Everything that a request needs.
pub struct App {
    engines: Vec<Arc<Engine>>,
    pub(crate) key: StoreKey,
    pub(crate) settings: Settings,
    wall: Wall,
    chance: Chance,
    draining: AtomicBool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) news: Arc<News>,
    /// Those who follow events.
    pub(crate) readers: Arc<Readers>,
    /// Dropped last: others may have the store when its shards have ended.
    _lock: Option<DiskDir>,
}

/// What a command is sent with.
#[derive(Default)]
pub(crate) struct Ask {
    pub(crate) correlation: u128,
    pub(crate) document: Option<Vec<u8>>,
    pub(crate) wait: Option<Span>,
}

impl App {
    pub(crate) fn new(opened: Opened, parts: Parts) -> App {
        let Opened { engines, key, lock } = opened;
        let Parts { settings, metrics, news, wall, chance } = parts;
        assert!(!engines.is_empty(), "a store has at least one shard");
        let draining = AtomicBool::new(false);
        App {
            engines,
            key,
            settings,
            wall,
            chance,
            draining,
            metrics,
            news,
            readers: Arc::default(),
            _lock: lock,
        }
    }

    /// Grants nothing any more; those who wait are told so.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        for engine in &self.engines {
            engine.sequencer().dismiss();
        }
        self.news.events.close();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The shard of a namespace: for ever the first eight bytes of its BLAKE3 hash, modulo the number of shards.
    pub(crate) fn shard_of(&self, namespace: &Namespace) -> usize {
        if self.engines.len() == 1 {
            return 0;
        }
        let hash = blake3::hash(namespace.as_str().as_bytes());
        let first = u64::from_le_bytes(hash.as_bytes()[..8].try_into().expect("eight bytes"));
        usize::try_from(first % self.engines.len() as u64).expect("below the number of shards")
    }

    /// The shard that granted a lease; `None` if there is no such shard.
    pub(crate) fn shard_of_lease(&self, lease: LeaseId) -> Option<usize> {
        let shard = usize::try_from(lease.shard.0).ok()?;
        (shard < self.engines.len()).then_some(shard)
    }

    pub(crate) fn shards(&self) -> usize {
        self.engines.len()
    }

    pub(crate) fn engine(&self, shard: usize) -> &Arc<Engine> {
        &self.engines[shard]
    }

    /// Milliseconds since 1970, by the wall clock: for people to read.
    pub(crate) fn unix_ms(&self) -> u64 {
        u64::try_from((self.wall)().as_millis()).unwrap_or(u64::MAX)
    }

    /// A number that nobody can guess.
    pub(crate) fn chance(&self) -> u64 {
        let mut bytes = [0; 8];
        (self.chance)(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Asks a shard, and looks at the state in which it decided.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        command: Command,
        ask: Ask,
        look: impl FnOnce(&Kernel, Time, &Said) -> T + Send + 'static,
    ) -> Result<(Said, T), Refusal> {
        let (said, looked, delivery) = self.ask_for_lease(shard, command, ask, look).await?;
        // Only requests for leases have a delivery to report.
        delivery.confirm();
        Ok((said, looked))
    }

    /// Like [`App::ask`], for responses that may carry a lease: with their delivery, which the response's body confirms.
    pub(crate) async fn ask_for_lease<T: Send + 'static>(
        &self,
        shard: usize,
        command: Command,
        ask: Ask,
        look: impl FnOnce(&Kernel, Time, &Said) -> T + Send + 'static,
    ) -> Result<(Said, T, Delivery), Refusal> {
        let seen = Arc::new(Mutex::new(None));
        let into = Arc::clone(&seen);
        let peek: Peek = Box::new(move |kernel, now, said| {
            let looked = look(kernel, now, said);
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(looked);
        });
        let mut listening = ask.wait.map(|_| Listening::new(self.engine(shard)));
        let gone = listening.as_ref().map(|listening| Arc::clone(&listening.gone));
        let wait = ask.wait.zip(gone).map(|(most, gone)| Wait { most, gone });
        let (send, receive) = oneshot::channel();
        // A reply that is not received is dropped with its delivery: that reports the failure.
        let to: ReplyTo = Box::new(move |reply, delivery| drop(send.send((reply, delivery))));
        let Ask { correlation, document, .. } = ask;
        let submission = Submission { command, correlation, document, wait, peek: Some(peek), to };
        self.engine(shard).sequencer().submit(submission);
        let reply = receive.await.ok();
        if let Some(listening) = &mut listening {
            listening.heard = true;
        }
        let (reply, delivery) = reply.unzip();
        let said = self.heard(reply)?;
        let looked = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        let looked = looked.expect("whatever is said was decided, and looked at then");
        Ok((said, looked, delivery.unwrap_or_default()))
    }

    fn heard(&self, reply: Option<Reply>) -> Result<Said, Refusal> {
        match reply {
            Some(Ok(said)) => Ok(said),
            Some(Err(Unavailable::Stopped)) if self.is_draining() => {
                Err(Refusal::new(Code::Draining, "the server is about to stop; ask another, or come again"))
            }
            Some(Err(why)) => Err(refusals::unavailable(why)),
            None => Err(Refusal::new(
                Code::Unavailable,
                "the server failed before it knew; it may have happened: ask again with the same idempotency key",
            )),
        }
    }

    /// Looks at a shard's state; what it saw is durable when this returns.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        shard: usize,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (send, receive) = oneshot::channel();
        let looked = self.engine(shard).sequencer().look(Box::new(move |shard| {
            let view = View { kernel: shard.kernel(), waiters: shard.waiters(), now: shard.now() };
            let seen = look(&view);
            Box::new(move || drop(send.send(seen)))
        }));
        looked.map_err(refusals::unavailable)?;
        receive.await.map_err(|_| Refusal::new(Code::Unavailable, "the server failed; ask again"))
    }
}

/// A shard's state, to look at.
pub(crate) struct View<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) waiters: &'a engine::waiters::Waiters,
    pub(crate) now: Time,
}

/// Whoever waits, until its connection is gone: then so is the waiter.
struct Listening {
    engine: Arc<Engine>,
    gone: Arc<AtomicBool>,
    /// The answer has come: nothing waits any more.
    heard: bool,
}

impl Listening {
    fn new(engine: &Arc<Engine>) -> Listening {
        Listening { engine: Arc::clone(engine), gone: Arc::default(), heard: false }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if !self.heard {
            self.engine.sequencer().hang_up(Arc::clone(&self.gone));
        }
    }
}
