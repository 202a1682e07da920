//! A whole engine under load: hand-off, a million leases, grants during snapshots and through rotations of the log, and a
//! thousand idle shards.
//!
//! `cargo bench -p lockd-engine --bench whole`; arguments after `--` select parts by name (`handoff`, `million`,
//! `snapshot`, `rotation`, `idle`); set `TMPDIR` to choose the disk.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::waiters::{Wait, WaiterConnection};
use engine::{
    Decision, Delivery, Engine, Executor, MachineClock, Options, Reply, ReplyTo, Submission, TenureConfig,
    Workers,
};
use kernel::{
    Action, Command, Event, Granted, Identity, Limits, Lsn, Outcome, Renewal, Response, Span, Store,
};
use sim::fixture::{grant, held, identity, key};
use store::disk::{DiskBlobs, DiskLog, LogOptions};
use store::fs::RealFs;
use store::memory::{MemoryBlobs, MemoryLog};

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let parts: [(&str, fn()); 5] = [
        ("handoff", handoff),
        ("million", million),
        ("snapshot", snapshot),
        ("rotation", rotation),
        ("idle", idle),
    ];
    for (name, part) in parts {
        if picked.is_empty() || picked.iter().any(|picked| picked == name) {
            part();
        }
    }
}

#[derive(Default)]
struct SnapshotCounter {
    snapshots: AtomicUsize,
}

impl EngineObserver for SnapshotCounter {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn durable(&self, _: &[(Lsn, Vec<Event>)]) {}

    fn maintained(&self, news: MaintenanceEvent) {
        match news {
            MaintenanceEvent::Snapshot { .. } => drop(self.snapshots.fetch_add(1, Ordering::Relaxed)),
            MaintenanceEvent::Swept(_) => {}
            MaintenanceEvent::SnapshotDamaged(snapshot) => panic!("{snapshot}"),
            MaintenanceEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn open(dir: &Path, watch: &Arc<SnapshotCounter>, options: Options) -> Engine {
    open_segments(dir, watch, options, LogOptions::SEGMENT_BYTES)
}

fn open_segments(dir: &Path, watch: &Arc<SnapshotCounter>, options: Options, segment_bytes: u64) -> Engine {
    let log = LogOptions { shard: 0, store_id: 1, segment_bytes };
    let log = DiskLog::open(RealFs, &dir.join("log"), log).expect("a sound log").0;
    let blobs = Arc::new(DiskBlobs::open(RealFs, &dir.join("blob")).expect("a sound store"));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let limits = Limits { leases_per_identity_max: 2_000_000, ..Limits::default() };
    let opening = TenureConfig { store, writer: 1, limits, slots: kernel::Slots::ALL };
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let watcher: Arc<dyn EngineObserver> = Arc::clone(watch) as Arc<dyn EngineObserver>;
    let executor: Arc<dyn Executor> = Arc::new(Workers::default());
    Engine::open(Box::new(log), blobs, clock, &opening, options, watcher, &executor).expect("a sound store")
}

/// An asynchronous client: replies arrive with the request's number and the time of arrival.
struct AsyncClient<'a> {
    engine: &'a Engine,
    send: Sender<(usize, Instant, Reply)>,
    receive: Receiver<(usize, Instant, Reply)>,
}

impl<'a> AsyncClient<'a> {
    fn new(engine: &'a Engine) -> AsyncClient<'a> {
        let (send, receive) = channel();
        AsyncClient { engine, send, receive }
    }

    fn submit(&self, number: usize, command: Command, wait: Option<Wait>) {
        let send = self.send.clone();
        let to: ReplyTo = Box::new(move |reply, delivery: Delivery| {
            delivery.settle(send.send((number, Instant::now(), reply)).is_ok());
        });
        self.engine.sequencer().submit(Submission { wait, ..Submission::new(command, to) });
    }

    fn next(&self) -> (usize, Instant, Outcome) {
        let (number, at, reply) = self.receive.recv().expect("a reply");
        match reply.expect("accepted") {
            Decision::Outcome(outcome) => (number, at, outcome),
            Decision::Blocked(blocked) => panic!("{blocked:?}"),
        }
    }
}

fn granted(outcome: &Outcome) -> Granted {
    match outcome {
        Outcome::Applied(Response::Granted(granted), _) => *granted,
        other => panic!("{other:?}"),
    }
}

fn acquire(who: &Identity, name: &str) -> Command {
    Command::by(who, Action::Acquire(grant(key(name), Span(300_000))))
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    per_mille(sorted, percent * 10)
}

fn per_mille(sorted: &[Duration], per_mille: usize) -> Duration {
    sorted[(sorted.len() - 1) * per_mille / 1000]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The durations of bare writes and syncs of a record's size, sorted.
fn bare_sync(dir: &Path) -> Vec<Duration> {
    let file = File::create(dir.join("bare")).expect("a file");
    file.write_all_at(&vec![0; 4 << 20], 0).expect("writable");
    file.sync_all().expect("synced");
    let mut times: Vec<Duration> = (0..2000)
        .map(|n| {
            let start = Instant::now();
            file.write_all_at(&[7; 256], n * 256).expect("writable");
            file.sync_data().expect("synced");
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times
}

/// A key is handed from waiter to waiter.
fn handoff() {
    for waiters in [10, 10_000] {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = open(dir.path(), &Arc::default(), Options::default());
        let client = AsyncClient::new(&engine);
        let who = identity("ada");
        client.submit(0, acquire(&who, "k"), None);
        let mut holder = granted(&client.next().2);
        let wait = || Some(Wait { timeout: Span(3_600_000), connection: WaiterConnection::default() });
        // The inbox is bounded: submit no faster than it is drained.
        for n in 0..waiters {
            client.submit(n, acquire(&who, "k"), wait());
            if n % 1000 == 999 {
                client.submit(usize::MAX, Command::by(&who, Action::Touch(held(&holder))), None);
                client.next();
            }
        }
        let mut times = Vec::new();
        for n in 0..3000 {
            client.submit(n, acquire(&who, "k"), wait());
            client.submit(usize::MAX, Command::by(&who, Action::Touch(held(&holder))), None);
            client.next();
            let start = Instant::now();
            client.submit(usize::MAX, Command::by(&who, Action::Release(held(&holder))), None);
            let (one, two) = (client.next(), client.next());
            let grant = if one.0 == usize::MAX { two } else { one };
            times.push(grant.1 - start);
            holder = granted(&grant.2);
        }
        times.sort_unstable();
        let bare = bare_sync(dir.path());
        println!(
            "hand-off, {waiters} waiting: median {:.0} µs, p99 {:.0} µs; a bare write and sync: median {:.0} µs, p99 {:.0} µs",
            micros(percentile(&times, 50)),
            micros(percentile(&times, 99)),
            micros(percentile(&bare, 50)),
            micros(percentile(&bare, 99))
        );
    }
}

/// This process's resident memory in MB, and its CPU time.
fn resources() -> (f64, Duration) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a VmRSS line");
    let kb: f64 = line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number");
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let ticks: u64 = stat.split_whitespace().skip(13).take(2).map(|n| n.parse::<u64>().expect("ticks")).sum();
    (kb / 1024.0, Duration::from_millis(ticks * 10))
}

fn fill(client: &AsyncClient<'_>, who: &Identity, leases: usize) -> Vec<Granted> {
    let (mut sent, mut all) = (0, Vec::with_capacity(leases));
    while all.len() < leases {
        while sent < leases && sent - all.len() < 2048 {
            client.submit(sent, acquire(who, &format!("resource-{sent:08}")), None);
            sent += 1;
        }
        all.push(granted(&client.next().2));
    }
    all
}

fn renew_all(client: &AsyncClient<'_>, who: &Identity, leases: &[Granted]) {
    let mut in_flight = 0;
    for part in leases.chunks(256) {
        let renewals = part.iter().map(|lease| Renewal { held: held(lease), ttl: None }).collect();
        client.submit(0, Command::by(who, Action::Renew(renewals)), None);
        in_flight += 1;
        if in_flight == 16 {
            client.next();
            in_flight -= 1;
        }
    }
    (0..in_flight).for_each(|_| drop(client.next()));
}

/// A million leases, renewed repeatedly, and a restart.
fn million() {
    let dir = tempfile::tempdir().expect("a directory");
    let watch = Arc::new(SnapshotCounter::default());
    let engine = open(dir.path(), &watch, Options::default());
    let client = AsyncClient::new(&engine);
    let who = identity("ada");
    let start = Instant::now();
    let leases = fill(&client, &who, 1_000_000);
    println!("1 million leases granted in {:.1} s", start.elapsed().as_secs_f64());
    for round in 1..=5 {
        let (start, (_, cpu)) = (Instant::now(), resources());
        renew_all(&client, &who, &leases);
        let (memory, after) = resources();
        let (took, used) = (start.elapsed().as_secs_f64(), after.saturating_sub(cpu).as_secs_f64());
        let snapshots = watch.snapshots.load(Ordering::Relaxed);
        println!(
            "renewal {round} of all leases: {took:.2} s, {used:.2} s of CPU, {memory:.0} MB resident, {snapshots} snapshots so far"
        );
    }
    drop(client);
    drop(engine);
    let start = Instant::now();
    let engine = open(dir.path(), &watch, Options::default());
    engine.sequencer().call(acquire(&who, "after"), 0, None, None).expect("running").expect("accepted");
    println!("restart until the first grant: {:.2} s", start.elapsed().as_secs_f64());
}

/// Grants to 64 callers with and without concurrent snapshots of 200,000 leases.
fn snapshot() {
    let mut p99 = Vec::new();
    for every in [u64::MAX, 4 << 20] {
        let dir = tempfile::tempdir().expect("a directory");
        let watch = Arc::new(SnapshotCounter::default());
        let engine = open(dir.path(), &watch, Options { snapshot_every: every, ..Options::default() });
        let client = AsyncClient::new(&engine);
        let who = identity("ada");
        fill(&client, &who, 200_000);
        let before = watch.snapshots.load(Ordering::Relaxed);
        let times = busy(&client, &who, "busy", 400_000);
        let snapshots = watch.snapshots.load(Ordering::Relaxed) - before;
        println!(
            "64 callers over 200,000 leases, {snapshots} concurrent snapshots: median {:.0} µs, p99 {:.0} µs, longest {:.1} ms",
            micros(percentile(&times, 50)),
            micros(percentile(&times, 99)),
            micros(percentile(&times, 100)) / 1000.0
        );
        p99.push(micros(percentile(&times, 99)));
    }
    println!("p99 with snapshots is {:.2} of that without", p99[1] / p99[0]);
}

/// 64 callers acquire and release; the latencies of the replies, sorted.
fn busy(client: &AsyncClient<'_>, who: &Identity, part: &str, replies: usize) -> Vec<Duration> {
    let mut times = Vec::with_capacity(replies);
    let mut started = vec![Instant::now(); 64];
    (0..64).for_each(|n| client.submit(n, acquire(who, &format!("{part}-{n}")), None));
    for _ in 0..replies {
        let (n, at, outcome) = client.next();
        times.push(at - started[n]);
        started[n] = Instant::now();
        match outcome {
            Outcome::Applied(Response::Granted(lease), _) => {
                client.submit(n, Command::by(who, Action::Release(held(&lease))), None);
            }
            _ => client.submit(n, acquire(who, &format!("{part}-{n}")), None),
        }
    }
    (0..64).for_each(|_| drop(client.next()));
    times.sort_unstable();
    times
}

/// Grants to 64 callers while the log rotates ten times, and in a log that does not rotate.
fn rotation() {
    const SEGMENT: u64 = 4 << 20;
    let mut tail = Vec::new();
    for segment_bytes in [1 << 30, SEGMENT] {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { snapshot_every: u64::MAX, ..Options::default() };
        let engine = open_segments(dir.path(), &Arc::default(), options, segment_bytes);
        let client = AsyncClient::new(&engine);
        let who = identity("ada");
        if segment_bytes > SEGMENT {
            // Past the small first segments, so that the measured part stays within one.
            busy(&client, &who, "first", 200_000);
        }
        let times = busy(&client, &who, "busy", 900_000);
        let segments = std::fs::read_dir(dir.path().join("log")).expect("a log").count();
        println!(
            "64 callers, {segments} files in the log: median {:.0} µs, p99 {:.0} µs, p99.9 {:.0} µs, longest {:.1} ms",
            micros(percentile(&times, 50)),
            micros(percentile(&times, 99)),
            micros(per_mille(&times, 999)),
            micros(percentile(&times, 100)) / 1000.0
        );
        tail.push((micros(percentile(&times, 99)), micros(per_mille(&times, 999))));
    }
    println!(
        "through rotations p99 is {:.2} and p99.9 {:.2} of that without",
        tail[1].0 / tail[0].0,
        tail[1].1 / tail[0].1
    );
}

/// A thousand shards in memory: the time until each has served a request, and what they cost when they are idle.
fn idle() {
    const SHARDS: u32 = 1000;
    let workers = Workers::default();
    let executor: Arc<dyn Executor> = Arc::new(workers.clone());
    let (before, _) = resources();
    let start = Instant::now();
    let engines: Vec<Engine> = (0..SHARDS)
        .map(|shard| {
            let store = Store { shard: kernel::Shard(shard), shards: SHARDS, hash_seed: 1 };
            let opening =
                TenureConfig { store, writer: 1, limits: Limits::default(), slots: kernel::Slots::ALL };
            let clock = Box::new(MachineClock::new().expect("Linux"));
            let (log, blobs) = (Box::new(MemoryLog::default()), Arc::new(MemoryBlobs::default()));
            let watcher = Arc::new(SnapshotCounter::default());
            Engine::open(log, blobs, clock, &opening, Options::default(), watcher, &executor).expect("empty")
        })
        .collect();
    for engine in &engines {
        engine
            .sequencer()
            .call(acquire(&identity("ada"), "k"), 0, None, None)
            .expect("running")
            .expect("free");
    }
    let took = start.elapsed();
    let threads = workers.threads();
    let (after, _) = resources();
    println!(
        "{SHARDS} shards in memory: each served a request after {:.2} s, {threads} threads, {:.0} KiB each",
        took.as_secs_f64(),
        (after - before) * 1024.0 / f64::from(SHARDS)
    );
}
