//! The shards of a store: submitting commands to them, and querying their state.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::limits::{LimitUsage, MemoryBudget};
use engine::waiters::{Attempt, Wait, WaiterConnection};
use engine::{Decision, Delivery, Engine, OnDecided, Origin, Reply, ReplyTo, Submission, Unavailable};
use kernel::{Command, Kernel, LeaseId, Namespace, Shard, Slot, Span, Time};
use store::SlotMap;
use tokio::sync::oneshot;

use crate::backend::audit_log::AuditLog;
use crate::backend::blocking_thread;
use crate::backend::boot::OpenStore;
use crate::backend::byte_budget::ByteBudget;
use crate::backend::certificate_dates::CertificateDates;
use crate::backend::cluster::Cluster;
use crate::backend::cluster::shard_slot::ShardSlot;
use crate::backend::credential::StoreKey;
use crate::backend::error::BackendError;
use crate::backend::event_log::EventLog;
use crate::backend::event_log::subscribers::Subscribers;
use crate::backend::history::History;
use crate::backend::memory_plan::Share;
use crate::backend::metrics::Metrics;
use crate::backend::moment::{Clocks, Moment};
use crate::backend::store::{StoreGuard, TornTail};
use crate::backend::turns::Turns;
use crate::peer::PeerConnection;

/// Defaults and limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// TTL for requests that do not specify one.
    pub default_ttl: Span,
    /// Maximum TTL.
    pub max_ttl: Span,
    /// Maximum time that a request waits for a lease.
    pub acquire_block: Span,
    /// Maximum size of a document as received, in bytes.
    pub json_max: u64,
    /// Maximum size of a document that is stored in the log, in bytes.
    pub inline_max: usize,
    /// Memory for request bodies being received.
    pub request_bodies: Share,
    /// Memory for responses being sent.
    pub responses: Share,
    /// Memory for HTTP/2 requests in progress.
    pub requests: Share,
    /// Memory for refusals of HTTP/2 requests that wait to be sent.
    pub request_refusals: Share,
    /// Memory for the histories of resources, in bytes.
    pub history_bytes_max: u64,
    /// Whether the web console is served.
    pub ui: bool,
}

/// Names of the limits on request bodies, in all and per identity.
const REQUEST_BODY_LIMITS: (&str, &str) = ("request_body_bytes_max", "request_body_bytes_per_identity_max");
/// Names of the limits on responses, in all and per identity.
const RESPONSE_LIMITS: (&str, &str) = ("response_bytes_max", "response_bytes_per_identity_max");
/// Names of the limits on HTTP/2 requests in progress, in all and per identity.
const REQUEST_LIMITS: (&str, &str) = ("request_bytes_max", "request_bytes_per_identity_max");
/// Names of the limits on their refusals. No response carries them.
const REFUSAL_LIMITS: (&str, &str) = ("refusal_bytes_max", "refusal_bytes_per_identity_max");

/// Fills a buffer with random bytes.
pub(crate) type FillRandom = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// Clocks, randomness, metrics and settings of a [`Backend`].
pub(crate) struct Components {
    pub(crate) settings: RequestLimits,
    /// Shared with the observer of the shards.
    pub(crate) metrics: Arc<Metrics>,
    /// Shared with the observer of the shards.
    pub(crate) event_log: Arc<EventLog>,
    /// Shared with the shards.
    pub(crate) memory: MemoryBudget,
    /// The directory of the store, if it has one.
    pub(crate) directory: Option<PathBuf>,
    /// Shared with the observer of the shards.
    pub(crate) audit_log: Option<Arc<AuditLog>>,
    /// Shared with the identities, which are reloaded.
    pub(crate) certificates: Arc<CertificateDates>,
    pub(crate) clocks: Clocks,
    pub(crate) random: FillRandom,
}

/// The running shards, and everything else that requests share.
pub struct Backend {
    slots: Vec<Arc<ShardSlot>>,
    /// The other servers of the store, if there may be any.
    pub(crate) cluster: Option<Arc<Cluster>>,
    map: SlotMap,
    pub(crate) key: StoreKey,
    pub(crate) settings: RequestLimits,
    pub(crate) clocks: Arc<Clocks>,
    random: FillRandom,
    draining: AtomicBool,
    /// Torn tails that this start has cut off.
    pub(crate) torn_tails: Vec<TornTail>,
    /// The requests to the object store, if the store is in one.
    pub(crate) object_requests: Option<bucket::RequestCounts>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) event_log: Arc<EventLog>,
    pub(crate) audit_log: Option<Arc<AuditLog>>,
    memory: MemoryBudget,
    /// The directory of the store, if it has one.
    pub(crate) directory: Option<PathBuf>,
    /// When the server's certificates expire.
    pub(crate) certificates: Arc<CertificateDates>,
    pub(crate) subscribers: Arc<Subscribers>,
    /// The recent past of resources and agents.
    pub(crate) history: History,
    /// Memory for request bodies being received.
    pub(crate) request_bodies: ByteBudget,
    /// Memory for responses being sent.
    pub(crate) responses: ByteBudget,
    /// Memory for HTTP/2 requests in progress.
    pub(crate) requests: ByteBudget,
    /// Memory for refusals of HTTP/2 requests that wait to be sent.
    pub(crate) request_refusals: ByteBudget,
    /// The expensive steps of each identity, one at a time.
    pub(crate) turns: Turns,
    /// The most rows that one query has visited.
    query_rows_max: Arc<AtomicU64>,
    /// Dropped last: another process may open the store once its shards have ended.
    _guard: StoreGuard,
}

/// The client, correlation id, document and wait of a command.
pub(crate) struct SubmitOptions {
    /// The connection that the command came by: it is decided only while its client may act.
    pub(crate) connection: PeerConnection,
    /// The correlation id and the certificate, for the audit trail.
    pub(crate) origin: Origin,
    /// The document of a commit, if it is stored in the log.
    pub(crate) document: Option<Vec<u8>>,
    /// The longest wait for a conflicting lease; `None`: do not wait.
    pub(crate) wait: Option<Span>,
    /// The attempt that the request is a retry of.
    pub(crate) attempt: Option<Attempt>,
}

impl SubmitOptions {
    pub(crate) fn new(connection: &PeerConnection, origin: Origin) -> SubmitOptions {
        let origin = Origin { serial: connection.serial().cloned(), ..origin };
        SubmitOptions { connection: connection.clone(), origin, document: None, wait: None, attempt: None }
    }
}

/// The shard that a request is confined to, in requests that concern every namespace when shards are on several servers: an
/// extension of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnlyShard(pub(crate) Shard);

/// The shards whose events a stream has, one of several that together have those of all shards: an extension of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnlyShards(pub(crate) Arc<[Shard]>);

impl Backend {
    pub(crate) fn new(store: OpenStore, components: Components) -> Backend {
        let OpenStore { slots, cluster, key, map, torn_tails, object_requests, guard } = store;
        let Components {
            settings,
            metrics,
            event_log,
            memory,
            directory,
            audit_log,
            certificates,
            clocks,
            random,
        } = components;
        assert!(!slots.is_empty(), "a store has at least one shard");
        let draining = AtomicBool::new(false);
        let history = History::new(settings.history_bytes_max, clocks.unix_ms());
        Backend {
            slots,
            cluster,
            map,
            key,
            settings,
            clocks: Arc::new(clocks),
            random,
            draining,
            torn_tails,
            object_requests,
            metrics,
            event_log,
            audit_log,
            memory,
            directory,
            certificates,
            subscribers: Arc::default(),
            history,
            request_bodies: ByteBudget::new(REQUEST_BODY_LIMITS, settings.request_bodies),
            responses: ByteBudget::new(RESPONSE_LIMITS, settings.responses),
            requests: ByteBudget::new(REQUEST_LIMITS, settings.requests),
            request_refusals: ByteBudget::new(REFUSAL_LIMITS, settings.request_refusals),
            turns: Turns::default(),
            query_rows_max: Arc::default(),
            _guard: guard,
        }
    }

    /// Stops granting leases, and refuses all waiters.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        for engine in self.engines() {
            engine.sequencer().dismiss();
        }
        self.event_log.events.close();
    }

    /// Returns when the turns that run now have ended: an authorization that was withdrawn before counts in every
    /// decision after this.
    pub(crate) fn pass_turn(&self) {
        for engine in self.engines() {
            engine.pass_turn();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Refuses new leases and subscriptions while the server shuts down.
    pub(crate) fn check_not_draining(&self) -> Result<(), BackendError> {
        if self.is_draining() { Err(BackendError::Draining) } else { Ok(()) }
    }

    /// The shard of a namespace: by its slot. The shard's log decides whether it owns the slot.
    pub(crate) fn shard_of(&self, namespace: &Namespace) -> Shard {
        if self.slots.len() == 1 {
            return Shard(0);
        }
        Shard(self.map.shard(Slot::of(namespace).number()))
    }

    /// The shard that granted a lease.
    pub(crate) fn shard_of_lease(&self, lease: LeaseId) -> Result<Shard, BackendError> {
        if lease.shard.0 < self.shard_count() { Ok(lease.shard) } else { Err(BackendError::NoSuchLease) }
    }

    pub(crate) fn shard_count(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("a store numbers its shards with 32 bits")
    }

    /// All shards, in order.
    pub(crate) fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        (0..self.shard_count()).map(Shard)
    }

    /// The shards that a request concerns: all, or the one that it is confined to.
    pub(crate) fn shards_in(&self, only: Option<OnlyShard>) -> impl Iterator<Item = Shard> + use<> {
        self.shards().filter(move |shard| only.is_none_or(|only| only.0 == *shard))
    }

    /// The shard's engine, if this server owns the shard.
    pub(crate) fn engine(&self, shard: Shard) -> Result<Arc<Engine>, BackendError> {
        self.slots[shard.0 as usize].engine().ok_or(BackendError::Moved(shard))
    }

    /// The engines of all shards that this server owns.
    fn engines(&self) -> impl Iterator<Item = Arc<Engine>> {
        self.slots.iter().filter_map(|slot| slot.engine())
    }

    /// Whether another server says that it owns the shard, and has not been silent.
    pub(crate) fn has_live_owner(&self, shard: Shard) -> bool {
        let owner = self.cluster.as_ref().and_then(|cluster| cluster.registry().owner(shard));
        owner.is_some_and(|owner| owner.is_live)
    }

    /// Looks at the log of a shard at once: a request has come for a shard that this server may just have been given.
    pub(crate) fn wake_shard(&self, shard: Shard) {
        self.slots[shard.0 as usize].wake();
    }

    /// Refuses what only the owner of a namespace's shard has in memory; without a namespace, the owner of all shards.
    pub(crate) fn check_owned(&self, namespace: Option<&Namespace>) -> Result<(), BackendError> {
        match namespace {
            _ if self.cluster.is_none() => Ok(()),
            Some(namespace) => self.check_owns(&[self.shard_of(namespace)]),
            None => self.check_owns(&self.shards().collect::<Vec<_>>()),
        }
    }

    /// Refuses if another server owns one of these shards.
    pub(crate) fn check_owns(&self, shards: &[Shard]) -> Result<(), BackendError> {
        let moved = shards.iter().find(|shard| !self.owns(**shard));
        moved.map_or(Ok(()), |shard| Err(BackendError::Moved(*shard)))
    }

    /// Whether this server owns the shard.
    pub(crate) fn owns(&self, shard: Shard) -> bool {
        self.slots[shard.0 as usize].is_owned()
    }

    /// An unpredictable number.
    pub(crate) fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        (self.random)(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Submits a command, and returns its decision once it is durable, with what `view` read from the state in which
    /// it was decided.
    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        shard: Shard,
        command: Command,
        options: SubmitOptions,
        view: impl FnOnce(&Kernel, Moment, &Decision) -> T + Send + 'static,
    ) -> Result<(Decision, T), BackendError> {
        let (decision, view, delivery) = self.submit_for_lease(shard, command, options, view).await?;
        // Only requests for leases have a delivery to report.
        delivery.confirm();
        Ok((decision, view))
    }

    /// Like [`Backend::submit`], for responses that may carry a lease: with their delivery, which the response's body
    /// confirms.
    pub(crate) async fn submit_for_lease<T: Send + 'static>(
        &self,
        shard: Shard,
        command: Command,
        options: SubmitOptions,
        view: impl FnOnce(&Kernel, Moment, &Decision) -> T + Send + 'static,
    ) -> Result<(Decision, T, Delivery), BackendError> {
        let viewed = Arc::new(Mutex::new(None));
        let into = Arc::clone(&viewed);
        let clocks = Arc::clone(&self.clocks);
        let on_decided: OnDecided = Box::new(move |kernel, now, decision| {
            let value = view(kernel, Moment::read(&clocks, now), decision);
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        });
        let SubmitOptions { connection: client, origin, document, wait, attempt } = options;
        let engine = self.engine(shard)?;
        let mut guard = wait.map(|_| WaiterGuard::new(&engine, &client));
        let connection = guard.as_ref().map(|guard| guard.connection.clone());
        let wait = wait.zip(connection).map(|(timeout, connection)| Wait { timeout, connection });
        let (send, receive) = oneshot::channel();
        // A reply that is not received is dropped with its delivery: that reports the failure.
        let to: ReplyTo = Box::new(move |reply, delivery| {
            if planted!(ReplyIsDelivery) {
                delivery.confirm();
                drop(send.send((reply, Delivery::default())));
            } else {
                drop(send.send((reply, delivery)));
            }
        });
        let authorization = client.authorization().clone();
        let (on_decided, may_block) = (Some(on_decided), blocking_thread::may_block());
        let submission =
            Submission { command, origin, document, wait, attempt, authorization, on_decided, may_block, to };
        engine.sequencer().submit(submission);
        let reply = match &mut guard {
            Some(guard) => guard.wait(receive, &client).await,
            None => receive.await.ok(),
        };
        if reply.is_none() && client.authorization().is_withdrawn() {
            return Err(BackendError::Unavailable(Unavailable::Withdrawn));
        }
        let (reply, delivery) = reply.unzip();
        let decision = self.decision(shard, reply)?;
        let viewed = viewed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let viewed = viewed.expect("the view was taken when the command was decided");
        Ok((decision, viewed, delivery.unwrap_or_default()))
    }

    fn decision(&self, shard: Shard, reply: Option<Reply>) -> Result<Decision, BackendError> {
        match reply {
            Some(Ok(decision)) => Ok(decision),
            Some(Err(Unavailable::Stopped)) if self.is_draining() => Err(BackendError::Draining),
            // Another server has the shard, or will have it at once: the request was not carried out.
            // Also one that came between the end of the engine and the moment when the shard's thread noticed it.
            Some(Err(Unavailable::Moved(_) | Unavailable::Deposed | Unavailable::Stopped))
                if self.cluster.is_some() =>
            {
                Err(BackendError::Moved(shard))
            }
            Some(Err(Unavailable::Dismissed(attempt))) => Err(BackendError::Dismissed(attempt)),
            Some(Err(why)) => Err(BackendError::Unavailable(why)),
            None => Err(BackendError::Indeterminate),
        }
    }

    /// Why a shard does not take a query.
    fn unavailable(&self, shard: Shard, why: Unavailable) -> BackendError {
        match why {
            Unavailable::Moved(_) | Unavailable::Deposed if self.cluster.is_some() => {
                BackendError::Moved(shard)
            }
            Unavailable::Stopped if self.cluster.is_some() && !self.is_draining() => {
                BackendError::Moved(shard)
            }
            why => BackendError::Unavailable(why),
        }
    }

    /// A shard in a bucket that fails a query has lost its log: another server can run the query.
    fn query_failed(&self, shard: Shard) -> BackendError {
        if self.cluster.is_some() { BackendError::Moved(shard) } else { BackendError::QueryFailed }
    }

    /// Every limit in bytes, and how much of it is in use.
    pub(crate) fn limits_in_use(&self) -> Vec<LimitUsage> {
        let budgets = [&self.request_bodies, &self.responses, &self.requests, &self.request_refusals];
        let buffers = budgets.map(ByteBudget::usage).into_iter().chain([self.history.usage()]);
        self.memory.usage().into_iter().chain(buffers).collect()
    }

    /// The most rows that one query has visited: while it ran, no request was decided.
    pub fn query_rows_max(&self) -> u64 {
        self.query_rows_max.load(Ordering::Relaxed)
    }

    /// Reads what can no longer change, without waiting until the state around it is durable.
    ///
    /// **What would break it.** To read anything that the caller does not know to be durable already: the response would
    /// reveal a change that a crash undoes.
    pub(crate) async fn peek<T: Send + 'static>(
        &self,
        shard: Shard,
        peek: impl FnOnce(&Kernel) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        let (send, receive) = oneshot::channel();
        let queued = self.engine(shard)?.sequencer().query(Box::new(move |shard| {
            drop(send.send(peek(shard.kernel())));
            Box::new(|| ())
        }));
        queued.map_err(|why| self.unavailable(shard, why))?;
        receive.await.map_err(|_| self.query_failed(shard))
    }

    /// Reads a shard's state. The state that was read is durable when this returns.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        shard: Shard,
        query: impl FnOnce(&ShardView<'_>) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        let (send, receive) = oneshot::channel();
        let (clocks, rows_max) = (Arc::clone(&self.clocks), Arc::clone(&self.query_rows_max));
        let queued = self.engine(shard)?.sequencer().query(Box::new(move |shard| {
            let moment = Moment::read(&clocks, || shard.now());
            let (kernel, waiters) = (shard.kernel(), shard.waiters());
            let view = ShardView { kernel, waiters, now: moment.now, moment, waiters_visited: Cell::new(0) };
            let before = kernel.rows_visited();
            let result = query(&view);
            let rows = kernel.rows_visited() - before + view.waiters_visited.get();
            rows_max.fetch_max(rows, Ordering::Relaxed);
            Box::new(move || drop(send.send(result)))
        }));
        queued.map_err(|why| self.unavailable(shard, why))?;
        receive.await.map_err(|_| self.query_failed(shard))
    }
}

/// A shard's state, as a query sees it.
pub(crate) struct ShardView<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) waiters: &'a engine::waiters::Waiters,
    pub(crate) now: Time,
    pub(crate) moment: Moment,
    waiters_visited: Cell<u64>,
}

impl ShardView<'_> {
    /// Counts waiters that the query visits. The kernel counts its rows itself.
    pub(crate) fn count_waiters(&self, visited: usize) {
        self.waiters_visited.set(self.waiters_visited.get() + visited as u64);
    }
}

/// Removes a waiter from its queue if the request ends before the reply: its connection has closed, or its client may no
/// longer act.
struct WaiterGuard {
    engine: Arc<Engine>,
    connection: WaiterConnection,
    /// The reply has arrived: there is no waiter any more.
    replied: bool,
}

impl WaiterGuard {
    fn new(engine: &Arc<Engine>, client: &PeerConnection) -> WaiterGuard {
        let connection = WaiterConnection::new(client.authorization().clone());
        WaiterGuard { engine: Arc::clone(engine), connection, replied: false }
    }

    /// The reply; `None` if the connection was ended before, or the shard failed.
    async fn wait<T>(&mut self, receive: oneshot::Receiver<T>, client: &PeerConnection) -> Option<T> {
        tokio::select! {
            biased;
            reply = receive => {
                self.replied = true;
                reply.ok()
            }
            _ = client.ended() => None,
        }
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        if !self.replied {
            self.engine.sequencer().disconnect(self.connection.clone());
        }
    }
}
