//! Worlds of real size: default limits, thousands of waiters on few keys, bundles of 128 long names, segments that rotate.
//!
//! Small worlds reach the limits of the kernel; these reach the bounds of the sequencer: a batch that is full by bytes or
//! by commands, hand-offs larger than a batch, a full inbox, a log that takes releases only. [`BoundsReached`] counts them.
//!
//! **Checked.** Waiters of a key are granted in the order of their arrival, also while a hand-off takes several batches.
//! A renewal is accepted while the inbox is full of requests for leases. Without log space a release succeeds. A server
//! at rest has forgotten nothing, and in the end every waiter has its response. A crash at any moment loses nothing that
//! is durable.

use std::collections::BTreeMap;

use engine::internals::decider::BATCH_BYTES;
use engine::internals::shard::LogSpace;
use engine::waiters::{Wait, WaiterConnection};
use engine::{Decision, Reply, Unavailable};
use kernel::{
    Action, Bundle, Command, Granted, LeaseRequest, Limits, Outcome, Predicate, Renewal, Response, Span,
};

use super::ServerStats;
use super::clock::{Machine, TrueTime};
use super::ledger::Ledger;
use super::server::{Backend, RequestNumber, Server, ServerError, ServerRequest, WorldSize};
use super::stats::BoundsReached;
use crate::disk::{FaultPlan, PersistentErrors, SimFs};
use crate::fixture::{grant, held, identity, key, member, one};
use crate::rng::Rng;

/// The length of a segment: few batches of the largest size.
const SEGMENT: u64 = 4 << 20;
/// The TTL of every lease.
const TTL: Span = Span(30_000);
/// The wait of every request that waits.
const WAIT: Span = Span(60_000);
/// The maximum number of commands in a batch, without grants to waiters.
const BATCH_COMMANDS: usize = 1024;
/// The maximum number of waiters that are served in a batch.
const SERVE_MAX: usize = 4096;
/// Requests that arrive while an append is in flight: more than a batch and the inbox take.
const BURST: u64 = 5600;

/// A key that many requests wait for. All requests for one key conflict, or none do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HotKey {
    /// Held exclusively first, and then shared.
    Shared,
    /// Held exclusively, by one after the other.
    Exclusive,
    /// As `Shared`, in bundles with 127 long names.
    InBundles,
}

impl HotKey {
    fn name(self) -> &'static str {
        match self {
            HotKey::Shared => "shared",
            HotKey::Exclusive => "exclusive",
            HotKey::InBundles => "bundles",
        }
    }
}

pub(super) struct LargeWorld<'a> {
    rng: Rng,
    now: TrueTime,
    machine: Machine,
    fs: SimFs,
    server: Option<Server>,
    writers: u128,
    ledger: Ledger,
    next: RequestNumber,
    /// Requests without a response, and the key that they wait for.
    pending: BTreeMap<RequestNumber, Option<HotKey>>,
    /// The last request for each key that was granted.
    served: BTreeMap<HotKey, RequestNumber>,
    /// Leases that were delivered and not released.
    held: Vec<(Option<HotKey>, Granted)>,
    /// The last reply to each request that is neither pending nor a grant.
    refused: BTreeMap<RequestNumber, Result<(), Unavailable>>,
    stats: ServerStats,
    trace: &'a mut dyn FnMut(String),
}

impl<'a> LargeWorld<'a> {
    pub(super) fn new(seed: u64, trace: &'a mut dyn FnMut(String)) -> LargeWorld<'a> {
        LargeWorld {
            rng: Rng::new(seed ^ 0x1a46e),
            now: TrueTime(0),
            machine: Machine::new(TrueTime(0), 1, 0),
            fs: SimFs::new(FaultPlan::default()),
            server: None,
            writers: 0,
            ledger: Ledger::default(),
            next: 1,
            pending: BTreeMap::new(),
            served: BTreeMap::new(),
            held: Vec::new(),
            refused: BTreeMap::new(),
            stats: ServerStats::default(),
            trace,
        }
    }

    pub(super) fn now(&self) -> TrueTime {
        self.now
    }

    pub(super) fn run(&mut self) -> Result<ServerStats, String> {
        let result = self.start().and_then(|()| self.rounds()).and_then(|()| self.finish());
        match result {
            Ok(()) => Ok(self.stats),
            Err(ServerError::Violation(what)) => Err(what),
            Err(ServerError::Store(error)) => Err(format!("the store failed: {error}")),
        }
    }

    fn rounds(&mut self) -> Result<(), ServerError> {
        self.burst()?;
        if self.rng.one_in(2) {
            self.crash()?;
            self.burst()?;
        }
        self.hand_off()?;
        self.check_invariants()?;
        self.hand_over()?;
        self.large_bundles()?;
        self.check_invariants()?;
        self.checkpoint()?;
        if self.rng.one_in(2) {
            self.crash()?;
        }
        self.run_out_of_space(true)?;
        self.run_out_of_space(false)
    }

    fn start(&mut self) -> Result<(), ServerError> {
        self.writers += 1;
        let backend = Backend::Disk(self.fs.clone());
        let size = WorldSize { limits: Limits::default(), segment_bytes: SEGMENT, tries: 1 };
        self.server = Some(Server::start(&size, &backend, &self.machine, self.writers, &mut self.ledger)?);
        self.settle()
    }

    /// The process dies, with jobs not run and an append in flight, or the power fails too.
    fn crash(&mut self) -> Result<(), ServerError> {
        self.trace("crash");
        self.stats.crashes += 1;
        self.server = None;
        self.pending.clear();
        self.served.clear();
        self.held.clear();
        if self.rng.one_in(2) {
            self.fs = self.fs.after_crash(&mut self.rng, FaultPlan::default());
        }
        // Every lease held before has ended then.
        self.pass(TTL.0 + 1);
        self.start()
    }

    fn pass(&mut self, ms: u64) {
        self.now.0 += ms;
        self.machine.set(self.now);
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("it was started")
    }

    fn submit(&mut self, action: Action, waits: Option<HotKey>) -> Result<RequestNumber, ServerError> {
        self.next += 1;
        let number = self.next;
        let command = Command::by(&identity("ada"), action);
        let wait = waits.map(|_| Wait { timeout: WAIT, connection: WaiterConnection::default() });
        self.pending.insert(number, waits);
        let request = ServerRequest { number, command, document: None, wait, attempt: None };
        self.server.as_mut().expect("it was started").submit(request, &mut self.ledger)?;
        self.publish()?;
        self.note_bounds();
        Ok(number)
    }

    fn acquire(
        &mut self,
        request: LeaseRequest,
        waits: Option<HotKey>,
    ) -> Result<RequestNumber, ServerError> {
        self.submit(Action::Acquire(request), waits)
    }

    fn step(&mut self) -> Result<bool, ServerError> {
        let server = self.server.as_mut().expect("it was started");
        let has_run = server.step(&mut self.rng, &mut self.ledger)?;
        self.publish()?;
        self.note_bounds();
        Ok(has_run)
    }

    fn settle(&mut self) -> Result<(), ServerError> {
        // Lost responses are retracted in further batches.
        while self.step()? {}
        let server = self.server();
        server.check_at_rest().map_err(ServerError::Violation)?;
        match self.pending.iter().find(|(_, waits)| waits.is_none()) {
            Some((number, _)) => violation(format!("request {number} has no response from a server at rest")),
            None => Ok(()),
        }
    }

    fn publish(&mut self) -> Result<(), ServerError> {
        for published in self.server().take_replies() {
            self.stats.responses += 1;
            let number = published.number;
            let Some(waited) = self.pending.remove(&number) else { continue };
            let Some(granted) = granted(&published.reply) else {
                self.stats.bounds.inbox_full += u64::from(published.reply == Err(Unavailable::Busy));
                self.refused.insert(number, published.reply.map(drop));
                published.delivery.confirm();
                continue;
            };
            self.stats.grants += 1;
            if let Some(key) = waited {
                self.check_order(key, number)?;
            }
            let is_lost = self.rng.one_in(200);
            published.delivery.settle(!is_lost);
            if is_lost {
                self.stats.undelivered += 1;
            } else {
                self.held.push((waited, granted));
            }
        }
        Ok(())
    }

    /// Requests for one key are granted in the order of their arrival.
    fn check_order(&mut self, key: HotKey, number: RequestNumber) -> Result<(), ServerError> {
        match self.served.insert(key, number) {
            Some(before) if before > number => {
                violation(format!("request {before} for {key:?} was granted before request {number}"))
            }
            _ => Ok(()),
        }
    }

    /// Counts which bounds the batch under way has reached.
    fn note_bounds(&mut self) {
        let server = self.server.as_ref().expect("it was started");
        let bounds = server.inspect(|shard| {
            let (bytes, replies) = shard.load();
            let (to_waiters, waits) = (shard.served(), shard.is_handing_off());
            let commands = replies.saturating_sub(to_waiters) + shard.contended();
            BoundsReached {
                full_by_bytes: u64::from(bytes >= BATCH_BYTES),
                full_by_commands: u64::from(commands >= BATCH_COMMANDS),
                hand_off_by_bytes: u64::from(waits && bytes >= BATCH_BYTES / 2),
                hand_off_by_count: u64::from(waits && to_waiters >= SERVE_MAX),
                ..BoundsReached::default()
            }
        });
        self.stats.bounds.add(&bounds);
    }

    /// Holds a key, and thousands of requests for it arrive during an append.
    fn burst(&mut self) -> Result<(), ServerError> {
        self.trace("burst");
        for hot in [HotKey::Shared, HotKey::Exclusive] {
            self.acquire(grant(key(hot.name()), TTL), None)?;
        }
        self.settle()?;
        for _ in 0..BURST {
            let is_shared = !self.rng.one_in(50);
            let hot = if is_shared { HotKey::Shared } else { HotKey::Exclusive };
            self.acquire(request_for(hot), Some(hot))?;
        }
        let Some((_, holder)) = self.held.last().copied() else { return Ok(()) };
        let renewal = Renewal { held: held(&holder), ttl: None };
        let renewal = self.submit(Action::Renew(vec![renewal]), None)?;
        self.settle()?;
        match self.refused.remove(&renewal) {
            Some(Ok(())) => Ok(()),
            other => violation(format!("a renewal beside a full inbox: {other:?}")),
        }
    }

    /// The key is released: more waiters are served than a batch takes, and further requests arrive during it.
    fn hand_off(&mut self) -> Result<(), ServerError> {
        self.trace("hand-off");
        self.begin_append()?;
        self.release_all(HotKey::Shared)?;
        for _ in 0..30 {
            self.acquire(request_for(HotKey::Shared), Some(HotKey::Shared))?;
            if self.rng.one_in(4) {
                self.step()?;
            }
        }
        self.settle()
    }

    /// An append is in flight from here on: a batch forms behind it.
    fn begin_append(&mut self) -> Result<(), ServerError> {
        let other = format!("other-{}", self.next);
        self.acquire(grant(key(&other), TTL), None).map(drop)
    }

    /// Holder after holder releases its lease.
    fn hand_over(&mut self) -> Result<(), ServerError> {
        self.trace("hand-over");
        for _ in 0..100 {
            self.release_all(HotKey::Exclusive)?;
            self.settle()?;
            let holders = self.held.iter().filter(|(key, _)| *key == Some(HotKey::Exclusive)).count();
            if holders > 1 {
                return violation(format!("{holders} hold an exclusive lease"));
            }
        }
        Ok(())
    }

    /// Releases the leases of this key, and those without one.
    fn release_all(&mut self, hot: HotKey) -> Result<(), ServerError> {
        let released = self.held.extract_if(.., |(key, _)| key.is_none_or(|key| key == hot));
        for (_, lease) in released.collect::<Vec<_>>() {
            self.submit(Action::Release(held(&lease)), None)?;
        }
        Ok(())
    }

    /// Bundles of 128 names: a hand-off fills half a batch, and requests that conflict with nothing a whole one.
    fn large_bundles(&mut self) -> Result<(), ServerError> {
        self.trace("large bundles");
        self.acquire(grant(key(HotKey::InBundles.name()), TTL), None)?;
        self.settle()?;
        for _ in 0..40 {
            let request = large_bundle(self.next, Some(HotKey::InBundles));
            self.acquire(request, Some(HotKey::InBundles))?;
        }
        self.settle()?;
        self.begin_append()?;
        self.release_all(HotKey::InBundles)?;
        while self.step()? {}
        for _ in 0..20 {
            self.acquire(large_bundle(self.next, None), None)?;
        }
        self.settle()
    }

    fn checkpoint(&mut self) -> Result<(), ServerError> {
        self.trace("checkpoint");
        let segments = self.server().segments();
        self.stats.bounds.rotations += u64::from(segments > 1);
        if let Some(plan) = self.server().checkpoint(0)? {
            self.server().raise_floor(plan.floor);
        }
        self.stats.snapshots += 1;
        self.settle()
    }

    /// The disk is full: the log takes releases and nothing else, until there is space again. Whole batches use up the
    /// space for releases too.
    ///
    /// Two batches of a megabyte each were decided with space for the first: the second could not be appended, and a full
    /// disk ended the server.
    fn run_out_of_space(&mut self, is_crowded: bool) -> Result<(), ServerError> {
        self.trace("out of space");
        self.fs.set_errors(PersistentErrors { opening: None, growing: Some(28) });
        let mut refused = false;
        for _ in 0..300 {
            if is_crowded {
                self.two_full_batches()?;
            }
            let number = self.acquire(large_bundle(self.next, None), None)?;
            self.settle()?;
            refused = self.refused.remove(&number) == Some(Err(Unavailable::NoSpace));
            if refused {
                break;
            }
        }
        let space = self.server().health().space;
        let takes_releases = space == LogSpace::Reserve;
        if !refused || !takes_releases && !is_crowded {
            return violation(format!("a full disk leaves {space:?}, refused={refused}"));
        }
        self.stats.bounds.reserve += u64::from(takes_releases);
        if let Some((_, lease)) = self.held.pop().filter(|_| takes_releases) {
            let number = self.submit(Action::Release(held(&lease)), None)?;
            self.settle()?;
            if self.refused.remove(&number) != Some(Ok(())) {
                return violation("a full disk refuses a release".into());
            }
        }
        self.fs.set_errors(PersistentErrors::default());
        self.pass(300);
        self.settle()?;
        match self.server().health().space {
            LogSpace::Plenty => Ok(()),
            space => violation(format!("there is space again, and the log has {space:?}")),
        }
    }

    /// A full batch is in flight, and behind it another becomes full.
    fn two_full_batches(&mut self) -> Result<(), ServerError> {
        // The first commands are in batches of their own: how much of the segment they fill is up to the seed.
        for _ in 0..self.rng.below(48) {
            self.acquire(large_bundle(self.next, None), None)?;
            self.settle()?;
        }
        for _ in 0..18 {
            self.acquire(large_bundle(self.next, None), None)?;
        }
        let mut second = Vec::new();
        for _ in 0..18 {
            self.next += 1;
            self.pending.insert(self.next, None);
            let command = Command::by(&identity("ada"), Action::Acquire(large_bundle(self.next, None)));
            second.push(ServerRequest {
                number: self.next,
                command,
                document: None,
                wait: None,
                attempt: None,
            });
        }
        self.server().submit_during_append(second, BATCH_BYTES);
        while self.step()? {}
        let server = self.server.as_mut().expect("it was started");
        server.flush_arrivals(&mut self.ledger)?;
        self.settle()
    }

    /// Time passes: every waiter is granted its lease, or times out.
    fn finish(&mut self) -> Result<(), ServerError> {
        for _ in 0..=WAIT.0 / 5000 {
            self.pass(5000);
            self.settle()?;
        }
        match self.pending.first_key_value() {
            Some((number, _)) => violation(format!("request {number} still waits after its timeout")),
            None => Ok(()),
        }
    }

    fn check_invariants(&mut self) -> Result<(), ServerError> {
        let checked = self.server().inspect(|shard| kernel::invariants::check(shard.kernel()));
        checked.map_err(ServerError::Violation)
    }

    fn trace(&mut self, what: &str) {
        (self.trace)(format!("{} {what}: {:?}", self.now.0, self.stats));
    }
}

fn violation<T>(what: String) -> Result<T, ServerError> {
    Err(ServerError::Violation(what))
}

fn request_for(hot: HotKey) -> LeaseRequest {
    match hot {
        HotKey::Exclusive => grant(key(hot.name()), TTL),
        _ => grant(one(Predicate::Consumes, &format!("KEY:{}", hot.name())), TTL),
    }
}

/// 128 shared names of about 500 bytes, distinct for each `n`, one of which may be a key that others wait for.
fn large_bundle(n: u64, hot: Option<HotKey>) -> LeaseRequest {
    let hot = hot.map(|hot| member(Predicate::Consumes, &format!("KEY:{}", hot.name())));
    let name = |i: usize| format!("KEY:{}", format!("{n}-{i}-").repeat(500).split_at(500).0);
    let long =
        (0..Bundle::MAX_MEMBERS - usize::from(hot.is_some())).map(|i| member(Predicate::Consumes, &name(i)));
    grant(Bundle::new(long.chain(hot).collect()).expect("distinct members"), TTL)
}

fn granted(reply: &Reply) -> Option<Granted> {
    match reply {
        Ok(Decision::Outcome(
            Outcome::Applied(Response::Granted(granted), _) | Outcome::Unchanged(Response::Granted(granted)),
        )) => Some(*granted),
        _ => None,
    }
}
