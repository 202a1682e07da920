//! The throughput of durable decisions, compared with an upper bound from the same run: a bare loop that
//! appends the same bytes in the same batches and syncs each.
//!
//! `cargo bench -p lockd-engine --bench durable`; arguments after `--` select parts by name (`tasks`, `threads`,
//! `alone`); set `TMPDIR` to choose the disk.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use engine::internals::decider::Decider;
use engine::internals::recovery::replay;
use engine::internals::sequencer::Sequencer;
use engine::internals::shard::Shard;
use engine::{Decision, Delivery, Executor, MachineClock, ReplyTo, Submission, TenureConfig, Workers};
use kernel::{Action, Command, Identity, Kernel, Limits, Outcome, Response, Span, Store};
use sim::fixture::{grant, held, identity, key};
use store::disk::{DiskLog, LogOptions};
use store::fs::RealFs;
use store::{LogStore, Seq};

const SEGMENT: u64 = 256 << 20;

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let parts: [(&str, &str, usize, usize, Drive); 3] = [
        ("tasks", "64 callers, tasks of one event loop", 64, 2000, tasks),
        ("threads", "64 callers, a thread each", 64, 2000, threads),
        ("alone", "1 caller", 1, 3000, threads),
    ];
    for (name, what, callers, rounds, drive) in parts {
        if picked.is_empty() || picked.iter().any(|picked| picked == name) {
            measure(what, callers, rounds, drive);
        }
    }
}

type Drive = fn(&Arc<Sequencer>, usize, usize);

fn measure(what: &str, callers: usize, rounds: usize, drive: Drive) {
    let dir = tempfile::tempdir().expect("a directory");
    let took = run(dir.path(), callers, rounds, drive);
    let batches = batches(dir.path());
    let bare = bare_loop(dir.path(), &batches);
    report(what, callers * rounds, took, &batches, bare);
    recovery(dir.path());
}

fn open(dir: &Path) -> DiskLog<RealFs> {
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes: SEGMENT };
    DiskLog::open(RealFs, &dir.join("log"), options).expect("a sound log").0
}

/// Each caller repeatedly acquires and releases a key of its own.
fn run(dir: &Path, callers: usize, rounds: usize, drive: Drive) -> Duration {
    let mut log = open(dir);
    log.reserve().expect("writable");
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let opening = TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
    let decider = Decider::open(Kernel::new(), Seq(0), clock, &opening).expect("a clock that is right");
    let fatal = Box::new(|why| panic!("{why:?}"));
    let executor: Arc<dyn Executor> = Arc::new(Workers::default());
    let sequencer = Arc::new(Sequencer::start(
        Shard::new(decider),
        Box::new(log),
        Box::new(()),
        u64::MAX,
        fatal,
        &executor,
    ));
    // A spare segment is zeroed before the first reply: exclude that from the measurement.
    let mut first = Cycle::new(usize::MAX, 1);
    let opened = sequencer.call(first.next(None).expect("one round"), 0, None, None);
    opened.expect("running").expect("accepted");
    let start = Instant::now();
    drive(&sequencer, callers, rounds);
    start.elapsed()
}

/// Blocking callers, a thread each.
fn threads(sequencer: &Arc<Sequencer>, callers: usize, rounds: usize) {
    let threads: Vec<_> = (0..callers)
        .map(|caller| {
            let sequencer = Arc::clone(sequencer);
            std::thread::spawn(move || {
                let mut cycle = Cycle::new(caller, rounds);
                let mut next = cycle.next(None);
                while let Some(command) = next.take() {
                    let decision = sequencer.call(command, 0, None, None).expect("running");
                    next = cycle.next(Some(decision.expect("accepted")));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("every caller got its replies");
    }
}

/// Asynchronous callers, like a server's connections.
fn tasks(sequencer: &Arc<Sequencer>, callers: usize, rounds: usize) {
    let (send, receive) = channel();
    let submit = |caller: usize, command: Command| {
        let send = send.clone();
        let to: ReplyTo =
            Box::new(move |reply, delivery: Delivery| delivery.settle(send.send((caller, reply)).is_ok()));
        sequencer.submit(Submission::new(command, to));
    };
    let mut cycles: Vec<Cycle> = (0..callers).map(|caller| Cycle::new(caller, rounds)).collect();
    for (caller, cycle) in cycles.iter_mut().enumerate() {
        submit(caller, cycle.next(None).expect("at least one round"));
    }
    let mut left = callers;
    while left > 0 {
        let (caller, reply) = receive.recv().expect("a reply");
        match cycles[caller].next(Some(reply.expect("accepted"))) {
            Some(command) => submit(caller, command),
            None => left -= 1,
        }
    }
}

/// The commands of one caller.
struct Cycle {
    identity: Identity,
    acquire: Command,
    left: usize,
}

impl Cycle {
    fn new(caller: usize, rounds: usize) -> Cycle {
        let identity = identity(&format!("caller-{caller}"));
        let grant = grant(key(&format!("key-{caller:012}")), Span(60_000));
        Cycle { acquire: Command::by(&identity, Action::Acquire(grant)), identity, left: rounds }
    }

    /// The next command: a release after a grant, an acquire after a release.
    fn next(&mut self, decision: Option<Decision>) -> Option<Command> {
        match decision {
            None => {}
            Some(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => {
                return Some(Command::by(&self.identity, Action::Release(held(&granted))));
            }
            Some(Decision::Outcome(Outcome::Applied(Response::Released, _))) => self.left -= 1,
            Some(other) => panic!("{other:?}"),
        }
        (self.left > 0).then(|| self.acquire.clone())
    }
}

/// The payload sizes of all batches.
fn batches(dir: &Path) -> Vec<usize> {
    let log = open(dir);
    let mut reader = log.reader();
    (0..log.bounds().next.0).map(|seq| reader.read(Seq(seq)).expect("durable").payload.len()).collect()
}

/// Appends the same number of bytes in as many steps to a preallocated file.
fn bare_loop(dir: &Path, batches: &[usize]) -> Duration {
    let file = File::create(dir.join("bare")).expect("a file");
    let zeros = vec![0; 1 << 20];
    let total: usize = batches.iter().map(|bytes| store::frame::frame_len(*bytes)).sum();
    for part in 0..=total / zeros.len() {
        file.write_all_at(&zeros, (part * zeros.len()) as u64).expect("writable");
    }
    file.sync_all().expect("synced");
    let bytes = vec![7; batches.iter().max().copied().unwrap_or(0) + 64];
    let start = Instant::now();
    let mut at = 0;
    for batch in batches {
        let length = store::frame::frame_len(*batch);
        file.write_all_at(&bytes[..length], at).expect("writable");
        file.sync_data().expect("synced");
        at += length as u64;
    }
    start.elapsed()
}

fn report(what: &str, cycles: usize, took: Duration, batches: &[usize], bare: Duration) {
    let cycles = cycles as f64;
    let (ours, ceiling) = (cycles / took.as_secs_f64(), cycles / bare.as_secs_f64());
    let step = |time: Duration| time.as_secs_f64() / batches.len() as f64 * 1e6;
    println!(
        "{what}: {ours:.0} durable acquire + release/s in {} batches; the bare loop {ceiling:.0}/s; ratio {:.2}; \
         a step {:.0} µs against {:.0} µs",
        batches.len(),
        ours / ceiling,
        step(took),
        step(bare)
    );
}

fn recovery(dir: &Path) {
    let log = open(dir);
    let start = Instant::now();
    let mut kernel = Kernel::new();
    replay(&mut kernel, &mut *log.reader(), Seq(0), log.bounds().next).expect("the log replays");
    let records = kernel.last_lsn().0 - kernel.tenure().expect("opened").opened_lsn.0 + 1;
    let rate = records as f64 / start.elapsed().as_secs_f64();
    println!("recovery: {records} records at {:.2} M/s", rate / 1e6);
}
