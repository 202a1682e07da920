//! Kernel benchmarks, each beside a ceiling measured in the same run: plain hash-map work on the same
//! names.
//!
//! `cargo bench -p lockd-kernel --bench kernel` runs all of them; words after `--` select benchmarks by name.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::disallowed_types, reason = "the ceiling is a plain hash map, never iterated")]
#![expect(clippy::cast_precision_loss, reason = "results are rounded anyway")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kernel::{
    Action, Bundle, Command, Granted, Kernel, Limits, Outcome, Predicate, Renewal, ResourceName, Response,
    Span,
};
use sim::fixture::{TestKernel, default_namespace, grant, held, identity, member, one};
use sim::rng::Rng;

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let parts: [(&str, fn()); 7] = [
        ("cycle", cycles),
        ("shared", shared_holders),
        ("manifest", manifests),
        ("heartbeat", heartbeats),
        ("expiry", expiries),
        ("restore", restores),
        ("memory", memory),
    ];
    for (name, run) in parts {
        if picked.is_empty() || picked.iter().any(|word| name.contains(word.as_str())) {
            run();
        }
    }
}

/// A TTL that outlasts every benchmark.
const LONG: Span = Span(1 << 31);

/// A kernel with very high limits, and one client that reuses its commands, so that the benchmark measures
/// the kernel and not the construction of commands.
struct Client {
    world: TestKernel,
    acquire: Command,
    release: Command,
}

impl Client {
    fn new() -> Client {
        let limits = Limits {
            leases_max: u32::MAX,
            leases_per_identity_max: u32::MAX,
            ttl_max: LONG,
            ..Limits::default()
        };
        let mut world = TestKernel::new(limits);
        let (who, any) = (identity("worker-1"), Bundle::of_key(name(0)));
        let acquire = Command::by(&who, Action::Acquire(grant(any.clone(), LONG)));
        let first = world.acquire("worker-1", any, LONG).expect("an empty kernel");
        let release = Command::by(&who, Action::Release(held(&first)));
        world.apply(&release);
        Client { world, acquire, release }
    }

    fn acquire(&mut self, bundle: Bundle, ttl: Span) -> Granted {
        let Action::Acquire(grant) = &mut self.acquire.action else {
            unreachable!("constructed as an acquire")
        };
        (grant.bundle, grant.ttl) = (bundle, ttl);
        match self.world.apply(&self.acquire) {
            Outcome::Applied(Response::Granted(granted), _) => granted,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn release(&mut self, granted: &Granted) {
        self.release.action = Action::Release(held(granted));
        let outcome = self.world.apply(&self.release);
        assert!(matches!(outcome, Outcome::Applied(..)), "not released: {outcome:?}");
    }

    fn fill(&mut self, count: u64) -> Vec<Granted> {
        (0..count).map(|n| self.acquire(Bundle::of_key(name(n)), LONG)).collect()
    }
}

/// A key of 16 bytes.
fn name(n: u64) -> ResourceName {
    ResourceName::key(&format!("key-{n:012}")).expect("a valid key")
}

fn per_second(count: usize, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

fn index(rng: &mut Rng, len: usize) -> usize {
    usize::try_from(rng.below(len as u64)).expect("a length fits")
}

fn cycles() {
    let rounds = 2_000_000;
    for resources in [1, 10_000, 1_000_000] {
        let mut client = Client::new();
        // Hold as many other leases throughout, so that the tables have their full size.
        client.fill(resources);
        let names: Vec<ResourceName> = (0..resources).map(|n| name(resources + n)).collect();
        let mut rng = Rng::new(1);
        let order: Vec<usize> = (0..rounds).map(|_| index(&mut rng, names.len())).collect();
        let start = Instant::now();
        for (round, n) in order.iter().enumerate() {
            client.world.now.0 = round as u64 / 1000;
            let granted = client.acquire(Bundle::of_key(names[*n].clone()), Span(60_000));
            client.release(&granted);
        }
        let rate = per_second(rounds, start.elapsed());
        let ceiling = ceiling(&names, &order);
        println!(
            "cycle: acquire + release, {resources} resources: {:.2} M/s; bare hash map {:.2} M/s; ratio {:.2}",
            rate / 1e6,
            ceiling / 1e6,
            rate / ceiling
        );
    }
}

/// Two inserts and two removals by the same names: the minimum work of any in-memory store.
fn ceiling(names: &[ResourceName], order: &[usize]) -> f64 {
    let mut leases: HashMap<usize, usize> = HashMap::new();
    let mut owners: HashMap<ResourceName, usize> = names.iter().map(|name| (name.clone(), 0)).collect();
    let start = Instant::now();
    for (lsn, n) in order.iter().enumerate() {
        let name = &names[*n];
        owners.remove(name);
        owners.insert(name.clone(), lsn);
        leases.insert(lsn, *n);
        leases.remove(&lsn);
    }
    let rate = per_second(order.len(), start.elapsed());
    assert!(leases.is_empty() && owners.len() == names.len());
    rate
}

fn shared_holders() {
    let readers = 1_000_000;
    let mut client = Client::new();
    let bundle = one(Predicate::Consumes, "KEY:shared");
    let start = Instant::now();
    let granted: Vec<Granted> = (0..readers).map(|_| client.acquire(bundle.clone(), LONG)).collect();
    let up = per_second(readers, start.elapsed());
    let start = Instant::now();
    for granted in &granted {
        client.release(granted);
    }
    let down = per_second(readers, start.elapsed());
    println!(
        "shared: {readers} readers of one key: {:.2} M acquires/s, {:.2} M releases/s",
        up / 1e6,
        down / 1e6
    );
}

fn manifests() {
    let (live, rounds) = (1_000_000, 100_000);
    let mut client = Client::new();
    for n in 0..live {
        let file = format!("FILE:/repo/{:03}/{:03}/f{n}.rs", n % 1000, n / 1000 % 1000);
        client.acquire(one(Predicate::Mutates, &file), LONG);
    }
    let manifest = |n: usize| {
        let intent = |i| {
            let predicate = if i % 2 == 0 { Predicate::Mutates } else { Predicate::Consumes };
            member(predicate, &format!("FILE:/repo/{:03}/{i:03}/new{i}.rs", n % 1000))
        };
        Bundle::merged((0..8).map(intent).collect()).expect("a valid bundle")
    };
    let bundles: Vec<Bundle> = (0..rounds).map(manifest).collect();
    let (mut deciding, start) = (Duration::ZERO, Instant::now());
    for bundle in bundles {
        let step = Instant::now();
        let granted = client.acquire(bundle, LONG);
        deciding += step.elapsed();
        client.release(&granted);
    }
    let (grant, both) = (1e6 / per_second(rounds, deciding), 1e6 / per_second(rounds, start.elapsed()));
    println!(
        "manifest: 8 files, {live} leases live: granted in {grant:.1} µs, and released in {:.1} µs",
        both - grant
    );

    let all = one(Predicate::Mutates, "FILE:/repo/*");
    let start = Instant::now();
    for _ in 0..rounds {
        assert!(client.world.kernel.conflict(&default_namespace(), &all, client.world.now).is_some());
    }
    let each = 1e6 / per_second(rounds, start.elapsed());
    println!("manifest: FILE:/repo/* refused over {live} files: {each:.2} µs");
}

fn heartbeats() {
    let (live, batch, batches) = (1_000_000, 10_000, 250);
    let mut client = Client::new();
    let granted = client.fill(live);
    let mut rng = Rng::new(2);
    let took: Vec<Duration> = (0..batches)
        .map(|_| {
            client.world.now.0 += 1;
            let renewal = |_| Renewal { held: held(&granted[index(&mut rng, granted.len())]), ttl: None };
            let renewals: Vec<Renewal> = (0..batch).map(renewal).collect();
            let part = |part: &[Renewal]| Command::by(&identity("worker-1"), Action::Renew(part.to_vec()));
            let commands: Vec<Command> = renewals.chunks(Action::MAX_BATCH).map(part).collect();
            let start = Instant::now();
            for command in &commands {
                assert!(matches!(client.world.apply(command), Outcome::Applied(..)));
            }
            start.elapsed()
        })
        .collect();
    let median = |took: &[Duration]| {
        let mut took = took.to_vec();
        took.sort_unstable();
        took[took.len() / 2].as_secs_f64() * 1e3
    };
    // Leases that are granted and renewed together share timer entries. At the end none do.
    let (first, last) = (median(&took[..50]), median(&took[batches - 50..]));
    println!(
        "heartbeat: {batch} leases picked at random of {live}: {first:.1} ms; \
         once nearly all were moved, {last:.1} ms"
    );
}

fn expiries() {
    let live = 1_000_000;
    let mut client = Client::new();
    for n in 0..live {
        client.acquire(Bundle::of_key(name(n)), Span(1000));
    }
    client.world.now.0 = 1001;
    let (mut ticks, mut longest, start) = (0, Duration::ZERO, Instant::now());
    while client.world.kernel.next_due().is_some_and(|due| due <= client.world.now) {
        let step = Instant::now();
        client.world.tick();
        longest = longest.max(step.elapsed());
        ticks += 1;
    }
    let took = start.elapsed().as_secs_f64();
    assert_eq!(client.world.kernel.counts().leases, 0);
    println!(
        "expiry: {live} leases of one millisecond: {took:.2} s in {ticks} steps, the longest {longest:.0?}"
    );
}

fn restores() {
    let live = 1_000_000;
    let mut client = Client::new();
    client.fill(live);
    let start = Instant::now();
    let snapshot = client.world.kernel.snapshot();
    let taken = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let restored = Kernel::restore(&snapshot).expect("a snapshot that was just taken");
    let took = start.elapsed().as_secs_f64();
    assert_eq!(restored.state_hash(), client.world.kernel.state_hash());
    println!("restore: {live} leases: {took:.2} s (taking the snapshot: {taken:.2} s)");
}

fn memory() {
    let live = 10_000_000;
    let mut client = Client::new();
    let before = resident_bytes();
    let start = Instant::now();
    for n in 0..live {
        client.acquire(Bundle::of_key(name(n)), LONG);
    }
    let each = (resident_bytes() - before) / live;
    let rate = live as f64 / start.elapsed().as_secs_f64();
    println!(
        "memory: {live} live leases, names of 16 bytes: {each} bytes each ({:.2} M grants/s)",
        rate / 1e6
    );
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc/self/status");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the status has a VmRSS line");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}
