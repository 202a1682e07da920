//! The latency of an unrelated renewal while 100,000 waiters are served, time out, or are searched for a deadlock cycle.
//!
//! `cargo bench -p lockd-engine --bench waiting`. The log is in memory: what is measured is how long work on waiters keeps
//! another command from being decided. Compare with the first line, during which there is no such work.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use engine::internals::decider::Decider;
use engine::internals::sequencer::Sequencer;
use engine::internals::shard::Shard;
use engine::waiters::{Wait, WaiterConnection};
use engine::{Decision, Executor, MachineClock, Reply, Submission, TenureConfig, Workers};
use kernel::{
    Action, Bundle, Command, Granted, Kernel, LeaseRequest, Limits, Outcome, Predicate, Renewal, Response,
    SessionName, Slot, Span, Store,
};
use sim::fixture::{grant, held, identity, key, one};
use store::Seq;
use store::memory::MemoryLog;

const MANY: usize = 100_000;

fn main() {
    measure("no work", |_| None);
    measure("shared waiters are served", |shard| {
        let holder = shard.hold("ada", key("hot"), None);
        shard.queue(&one(Predicate::Consumes, "KEY:hot"), LONG);
        Some(Box::new(move |shard| shard.release("ada", &holder)))
    });
    measure("waiters of a subtree are served", |shard| {
        let holder = shard.hold("ada", one(Predicate::Mutates, "FILE:/src/*"), None);
        for n in 0..MANY {
            shard.wait(one(Predicate::Mutates, &format!("FILE:/src/{n}")), None, LONG);
        }
        Some(Box::new(move |shard| shard.release("ada", &holder)))
    });
    measure("waits time out", |shard| {
        shard.hold("ada", key("hot"), None);
        Some(Box::new(|shard| shard.queue(&key("hot"), Duration::from_millis(500))))
    });
    measure("a deadlock search visits two chains of sessions", |shard| {
        let session = |name: &str| SessionName::new(name).expect("a name");
        let half = MANY / 2;
        shard.hold("ada", key("x"), Some(session("x")));
        for n in 0..half {
            shard.hold("ada", key(&format!("a{n}")), Some(session(&format!("a{n}"))));
            shard.hold("ada", key(&format!("b{n}")), Some(session(&format!("b{n}"))));
        }
        // `a0` waits for `a1`, and so on; `b0` waits for `x`, `b1` for `b0`, and so on.
        for n in 0..half - 1 {
            shard.wait(key(&format!("a{}", n + 1)), Some(session(&format!("a{n}"))), LONG);
            let before = if n == 0 { "x".to_string() } else { format!("b{}", n - 1) };
            shard.wait(key(&before), Some(session(&format!("b{n}"))), LONG);
        }
        Some(Box::new(move |shard| shard.wait(key("a0"), Some(session("x")), LONG)))
    });
}

const LONG: Duration = Duration::from_secs(600);
/// How long renewals are measured at least.
const MEASURED_MIN: Duration = Duration::from_secs(1);

/// A shard, and the number of replies to its waiters.
struct BenchShard {
    sequencer: Sequencer,
    settled: Arc<AtomicUsize>,
}

type Work = Box<dyn FnOnce(&BenchShard)>;

/// Prepares a shard, begins the work, and measures renewals for a second.
fn measure(name: &str, prepare: impl FnOnce(&BenchShard) -> Option<Work>) {
    let shard = BenchShard::start();
    let lease = shard.hold("renewer", key("unrelated"), None);
    let work = prepare(&shard);
    shard.settled.store(0, Ordering::Relaxed);
    if let Some(work) = work {
        work(&shard);
    }
    let (mut took, begun) = (Vec::new(), Instant::now());
    while begun.elapsed() < MEASURED_MIN {
        let at = Instant::now();
        let renewal = Renewal { held: held(&lease), ttl: None };
        shard.call("renewer", Action::Renew(vec![renewal])).expect("renewed");
        took.push(at.elapsed());
    }
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!(
        "{name:<46} renewal p50 {:>8.1?}  p99 {:>8.1?}  worst {:>8.1?}  {} renewals, {} waiters settled",
        at(50),
        at(99),
        at(100),
        took.len(),
        shard.settled.load(Ordering::Relaxed)
    );
}

impl BenchShard {
    fn start() -> BenchShard {
        let limits = Limits { ttl_max: Span(3_600_000), ..Limits::default() };
        let store = Store { shards: 1, hash_seed: 7, ..Store::default() };
        let tenure = TenureConfig { store, writer: 1, limits, slots: Slot::all().collect() };
        let clock = MachineClock::new().expect("Linux");
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock), &tenure).expect("a valid clock");
        let executor: Arc<dyn Executor> = Arc::new(Workers::default());
        let sequencer = Sequencer::start(
            Shard::new(decider),
            Box::new(MemoryLog::default()),
            Box::new(()),
            u64::MAX,
            Box::new(|why| panic!("{why:?}")),
            &executor,
        );
        BenchShard { sequencer, settled: Arc::default() }
    }

    fn call(&self, who: &str, action: Action) -> Reply {
        let (send, receive) = sync_channel(1);
        let to = Box::new(move |reply, delivery: engine::Delivery| {
            delivery.settle(true);
            let _ = send.send(reply);
        });
        self.sequencer.submit(Submission::new(Command::by(&identity(who), action), to));
        receive.recv().expect("a reply")
    }

    fn hold(&self, who: &str, bundle: Bundle, session: Option<SessionName>) -> Granted {
        let request = LeaseRequest { session, ..grant(bundle, Span(3_600_000)) };
        match self.call(who, Action::Acquire(request)) {
            Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => granted,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn release(&self, who: &str, lease: &Granted) {
        self.call(who, Action::Release(held(lease))).expect("released");
    }

    /// As many waiters as may be.
    fn queue(&self, bundle: &Bundle, timeout: Duration) {
        for _ in 0..MANY {
            self.wait(bundle.clone(), None, timeout);
        }
    }

    fn wait(&self, bundle: Bundle, session: Option<SessionName>, timeout: Duration) {
        let timeout = Span(u64::try_from(timeout.as_millis()).expect("short"));
        let settled = Arc::clone(&self.settled);
        let to = Box::new(move |_: Reply, delivery: engine::Delivery| {
            delivery.settle(true);
            settled.fetch_add(1, Ordering::Relaxed);
        });
        let request = LeaseRequest { session, ..grant(bundle, Span(3_600_000)) };
        let command = Command::by(&identity("ada"), Action::Acquire(request));
        let wait = Some(Wait { timeout, connection: WaiterConnection::default() });
        self.sequencer.submit(Submission { wait, ..Submission::new(command, to) });
    }
}
