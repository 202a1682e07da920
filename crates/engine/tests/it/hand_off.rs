//! A hand-off to very many waiters, by the sequencer's threads on a slow log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use engine::internals::decider::Decider;
use engine::internals::sequencer::Sequencer;
use engine::internals::shard::Shard;
use engine::waiters::{Wait, WaiterConnection};
use engine::{Decision, Delivery, Reply, ReplyTo, Submission};
use kernel::{Action, Command, Granted, Kernel, Outcome, Predicate, Renewal, Response, Span};
use sim::fixture::{grant, held, identity, key, one};
use store::memory::MemoryLog;
use store::{Bounds, Extent, LogCapacity, LogReader, LogStore, LsnRange, Seq, StoreError};

use crate::deadline::DEADLINE;
use crate::fixture::{TENURE, TestClock, executor};

const WAITERS: usize = 60_000;
const APPEND_MS: u64 = 100;
/// Five appends: a renewal that had to wait for as many batches would be refused.
const RENEWED_TTL: Span = Span(5 * APPEND_MS);

/// A log whose appends take 100 ms on the shard's clock.
struct SlowLog {
    memory: MemoryLog,
    clock: TestClock,
}

impl LogStore for SlowLog {
    fn bounds(&self) -> Bounds {
        self.memory.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        self.clock.0.fetch_add(APPEND_MS, Ordering::Relaxed);
        self.memory.append(seq, lsns, payload)
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        self.memory.reserve()
    }

    fn capacity(&self) -> LogCapacity {
        self.memory.capacity()
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.memory.raise_floor(floor)
    }

    fn extents(&self) -> Vec<Extent> {
        self.memory.extents()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        self.memory.reader()
    }
}

fn start() -> Arc<Sequencer> {
    let clock = TestClock::default();
    let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock.clone()), &TENURE);
    let shard = Shard::new(decider.expect("a valid clock"));
    let log = Box::new(SlowLog { memory: MemoryLog::default(), clock });
    let on_end = Box::new(|why| panic!("{why:?}"));
    Arc::new(Sequencer::start(shard, log, Box::new(()), u64::MAX, on_end, &executor()))
}

fn granted(reply: &Reply) -> Option<Granted> {
    match reply {
        Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => Some(*granted),
        _ => None,
    }
}

/// Sends replies to the test, with the number of the request.
struct Client {
    sequencer: Arc<Sequencer>,
    send: Sender<(usize, Reply)>,
    replies: Receiver<(usize, Reply)>,
}

impl Client {
    fn submit(&self, number: usize, action: Action, waits: bool) {
        let send = self.send.clone();
        let to = Box::new(move |reply, delivery: Delivery| {
            delivery.settle(send.send((number, reply)).is_ok());
        });
        let wait =
            waits.then(|| Wait { timeout: Span(1_000_000_000), connection: WaiterConnection::default() });
        let command = Command::by(&identity("ada"), action);
        self.sequencer.submit(Submission { wait, ..Submission::new(command, to as ReplyTo) });
    }

    fn next(&self) -> (usize, Granted) {
        let (number, reply) = self.replies.recv_timeout(DEADLINE).expect("a reply");
        (number, granted(&reply).unwrap_or_else(|| panic!("{number} is not granted: {reply:?}")))
    }

    /// Returns when everything submitted so far has been decided.
    fn settle(&self) {
        let (send, done) = channel();
        let query = self.sequencer.query(Box::new(move |_| {
            Box::new(move || {
                let _ = send.send(());
            })
        }));
        query.expect("running");
        done.recv_timeout(DEADLINE).expect("the query is answered");
    }
}

/// Renews a lease again and again, each time as soon as the reply is there.
struct Renewals {
    sequencer: Arc<Sequencer>,
    lease: Granted,
    count: AtomicUsize,
    stops: AtomicBool,
    refused: Mutex<Option<Reply>>,
    ended: Mutex<Sender<()>>,
}

impl Renewals {
    fn renew(self: &Arc<Renewals>) {
        let this = Arc::clone(self);
        let to = Box::new(move |reply: Reply, delivery: Delivery| {
            delivery.confirm();
            let renewed = |results: &Vec<_>| results.iter().all(Result::is_ok);
            let accepted = matches!(&reply,
                Ok(Decision::Outcome(Outcome::Applied(Response::Renewed(results), _))) if renewed(results));
            if !accepted {
                *this.refused.lock().expect("not poisoned") = Some(reply);
            }
            this.count.fetch_add(1, Ordering::Relaxed);
            if accepted && !this.stops.load(Ordering::Relaxed) {
                this.renew();
            } else {
                this.ended.lock().expect("not poisoned").send(()).expect("the test listens");
            }
        });
        let renewal = Renewal { held: held(&self.lease), ttl: None };
        let command = Command::by(&identity("bob"), Action::Renew(vec![renewal]));
        self.sequencer.submit(Submission::new(command, to as ReplyTo));
    }
}

/// One release served 60,000 waiters in one batch, larger than any log takes; bounded by bytes alone, it kept renewals out
/// of the batches, whose leases then expired. And a new request for a lease was decided between the waiters.
#[test]
fn a_hand_off_to_very_many_waiters_neither_delays_renewals_nor_is_overtaken() {
    let sequencer = start();
    let (send, replies) = channel();
    let client = Client { sequencer: Arc::clone(&sequencer), send, replies };
    client.submit(0, Action::Acquire(grant(key("shared"), Span(300_000))), false);
    let holder = client.next().1;
    for waiter in 1..=WAITERS {
        client.submit(
            waiter,
            Action::Acquire(grant(one(Predicate::Consumes, "KEY:shared"), Span(300_000))),
            true,
        );
        if waiter % 1000 == 0 {
            client.settle();
        }
    }
    let own = sequencer.call(
        Command::by(&identity("bob"), Action::Acquire(grant(key("own"), RENEWED_TTL))),
        0,
        None,
        None,
    );
    let lease = granted(&own.expect("running")).expect("free");
    let (ended, renewals_ended) = channel();
    let renewals = Arc::new(Renewals {
        sequencer: Arc::clone(&sequencer),
        lease,
        count: AtomicUsize::new(0),
        stops: AtomicBool::new(false),
        refused: Mutex::new(None),
        ended: Mutex::new(ended),
    });
    renewals.renew();
    let released =
        sequencer.call(Command::by(&identity("ada"), Action::Release(held(&holder))), 0, None, None);
    assert!(released.expect("running").is_ok());
    client.submit(WAITERS + 1, Action::Acquire(grant(key("other"), Span(300_000))), false);
    let leases: BTreeMap<usize, Granted> = (0..=WAITERS).map(|_| client.next()).collect();
    renewals.stops.store(true, Ordering::Relaxed);
    renewals_ended.recv_timeout(DEADLINE).expect("the last renewal has a reply");
    let refused = renewals.refused.lock().expect("not poisoned").take();
    assert!(refused.is_none(), "a renewal was refused: {refused:?}");
    assert!(renewals.count.load(Ordering::Relaxed) >= 15, "the waiters need at least 15 batches");
    let tokens: Vec<u64> = leases.values().map(|lease| lease.token.0).collect();
    assert!(tokens.is_sorted(), "first come, first served, and the new request last");
}
