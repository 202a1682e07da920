//! What the kernel costs, beside a ceiling in the same run: bare hash-map work on the same names.
//!
//! `cargo bench -p kernel` runs all of it; a word after `--` picks the parts whose names contain it.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::disallowed_types, reason = "the ceiling is a plain hash map, never iterated")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kernel::{
    Action, Answer, Bundle, Command, Grant, Granted, Held, Identity, Kernel, Limits, Lsn, Member, Namespace,
    OnExpiry, Open, Outcome, Predicate, Renewal, ResourceName, Snapshot, Span, Store, Time,
};

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

/// A kernel with room for everything, and a log to stamp commands with.
struct World {
    kernel: Kernel,
    lsn: u64,
    now: u64,
    identity: Identity,
    namespace: Namespace,
}

impl World {
    fn new() -> World {
        let limits = Limits {
            leases_max: 50_000_000,
            leases_per_identity_max: 50_000_000,
            ttl_max: Span(1 << 31),
            ..Limits::default()
        };
        let open = Open {
            store: Store { shards: 1, hash_seed: 0x5eed, ..Store::default() },
            writer: 1,
            term: 1,
            boot_id: 0,
            boot_clock: Span(0),
            kernel_version: kernel::KERNEL_VERSION,
            limits,
        };
        let mut world = World {
            kernel: Kernel::new(),
            lsn: 1_700_000_000_000_000,
            now: 0,
            identity: Identity::new("worker-1").expect("a valid name"),
            namespace: Namespace::new("default").expect("a valid name"),
        };
        world.apply(&Command::internal(Action::Open(open)));
        world
    }

    fn apply(&mut self, command: &Command) -> Answer {
        self.lsn += 1;
        match self.kernel.apply(Lsn(self.lsn), Time(self.now), command) {
            Outcome::Applied(answer, _) => answer,
            other => panic!("not applied: {other:?}"),
        }
    }

    fn acquire(&mut self, bundle: Bundle, ttl: u64) -> Granted {
        let grant = Grant {
            namespace: self.namespace.clone(),
            bundle,
            ttl: Span(ttl),
            on_expiry: OnExpiry::Free,
            owner: None,
            agent: None,
            session: None,
            attempt: None,
            reason: None,
            metadata: None,
        };
        match self.apply(&Command::by(&self.identity.clone(), Action::Acquire(grant))) {
            Answer::Granted(granted) => granted,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn release(&mut self, granted: &Granted) {
        let held = Held { lease: granted.lease, epoch: granted.epoch };
        self.apply(&Command::by(&self.identity.clone(), Action::Release(held)));
    }
}

/// Names of 16 bytes.
fn key(n: u64) -> ResourceName {
    ResourceName::key(&format!("key-{n:012}")).expect("a valid name")
}

/// Every number below `n` once, in no order that a cache would like.
fn shuffled(n: u64) -> impl Iterator<Item = u64> + Clone {
    let step = 0x9e37_79b9_7f4a_7c15 | 1;
    let bits = n.next_power_of_two();
    (0..bits).map(move |i| i.wrapping_mul(step) & (bits - 1)).filter(move |i| *i < n)
}

fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

fn cycles() {
    for resources in [1, 10_000, 1_000_000] {
        let rounds = 2_000_000_u64;
        let names: Vec<ResourceName> = (0..resources).map(key).collect();
        let order: Vec<u64> = shuffled(resources).cycle().take(rounds as usize).collect();
        let mut world = World::new();
        // As many others are held all the while, so that the tables are full-sized.
        for n in 0..resources {
            world.acquire(Bundle::of_key(key(resources + n)), 1 << 30);
        }
        let start = Instant::now();
        for (round, n) in order.iter().enumerate() {
            world.now = round as u64 / 1000;
            let granted = world.acquire(Bundle::of_key(names[*n as usize].clone()), 60_000);
            world.release(&granted);
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

/// Two inserts and two removals by the same names: what any store in memory does at least.
fn ceiling(names: &[ResourceName], order: &[u64]) -> f64 {
    let mut leases: HashMap<u64, u64> = HashMap::new();
    let mut owners: HashMap<ResourceName, u64> = names.iter().map(|name| (name.clone(), 0)).collect();
    let start = Instant::now();
    for (lsn, n) in order.iter().enumerate() {
        let name = &names[*n as usize];
        owners.remove(name);
        owners.insert(name.clone(), lsn as u64);
        leases.insert(lsn as u64, *n);
        leases.remove(&(lsn as u64));
    }
    let rate = per_second(order.len() as u64, start.elapsed());
    assert!(leases.is_empty() && owners.len() == names.len());
    rate
}

fn member(predicate: Predicate, text: &str) -> Member {
    Member { resource: ResourceName::parse(text, None).expect("a valid name"), predicate }
}

fn shared_holders() {
    let readers = 1_000_000;
    let mut world = World::new();
    let bundle = Bundle::new(vec![member(Predicate::Consumes, "KEY:shared")]).expect("a valid bundle");
    let start = Instant::now();
    let granted: Vec<Granted> = (0..readers).map(|_| world.acquire(bundle.clone(), 60_000)).collect();
    let up = per_second(readers, start.elapsed());
    let start = Instant::now();
    granted.iter().for_each(|granted| world.release(granted));
    let down = per_second(readers, start.elapsed());
    println!(
        "shared: {readers} readers of one key: {:.2} M acquires/s, {:.2} M releases/s",
        up / 1e6,
        down / 1e6
    );
}

fn manifests() {
    let live = 1_000_000;
    let mut world = World::new();
    for n in 0..live {
        let file = format!("FILE:/repo/{:03}/{:03}/f{n}.rs", n % 1000, n / 1000 % 1000);
        world.acquire(Bundle::new(vec![member(Predicate::Mutates, &file)]).expect("valid"), 1 << 30);
    }
    let rounds = 100_000;
    let start = Instant::now();
    for n in 0..rounds {
        let intents = (0..8).map(|i| {
            let predicate = if i % 2 == 0 { Predicate::Mutates } else { Predicate::Consumes };
            member(predicate, &format!("FILE:/repo/{:03}/{:03}/new{i}.rs", n % 1000, i))
        });
        let granted = world.acquire(Bundle::merged(intents.collect()).expect("valid"), 60_000);
        world.release(&granted);
    }
    let each = start.elapsed().as_secs_f64() / f64::from(rounds) * 1e6;
    println!("manifest: 8 files granted and released, {live} leases live: {each:.1} µs");

    let all = Bundle::new(vec![member(Predicate::Mutates, "FILE:/repo/*")]).expect("valid");
    let start = Instant::now();
    for _ in 0..rounds {
        assert!(world.kernel.conflict(&world.namespace, &all, Time(world.now)).is_some());
    }
    let each = start.elapsed().as_secs_f64() / f64::from(rounds) * 1e6;
    println!("manifest: FILE:/repo/* refused over {live} files: {each:.2} µs");
}

fn heartbeats() {
    let live: u64 = 1_000_000;
    let mut world = World::new();
    let granted: Vec<Granted> = (0..live).map(|n| world.acquire(Bundle::of_key(key(n)), 1 << 30)).collect();
    let order: Vec<u64> = shuffled(live).collect();
    let mut took = Vec::new();
    for batch in order.chunks(10_000).take(50) {
        world.now += 1;
        let commands: Vec<Command> = batch
            .chunks(Action::MAX_BATCH)
            .map(|chunk| {
                let renewal = |n: &u64| Renewal {
                    held: Held { lease: granted[*n as usize].lease, epoch: granted[*n as usize].epoch },
                    ttl: None,
                };
                Command::by(&world.identity, Action::Renew(chunk.iter().map(renewal).collect()))
            })
            .collect();
        let start = Instant::now();
        for command in &commands {
            world.apply(command);
        }
        took.push(start.elapsed());
    }
    took.sort_unstable();
    let median = took[took.len() / 2].as_secs_f64() * 1e3;
    println!("heartbeat: 10,000 leases picked at random of {live}: {median:.1} ms");
}

fn expiries() {
    let live: u64 = 1_000_000;
    let mut world = World::new();
    for n in 0..live {
        world.acquire(Bundle::of_key(key(n)), 1000);
    }
    world.now = 1001;
    let tick = Command::internal(Action::Tick);
    let (mut ticks, mut longest) = (0, Duration::ZERO);
    let start = Instant::now();
    while world.kernel.next_due().is_some_and(|due| due.0 <= world.now) {
        let step = Instant::now();
        world.apply(&tick);
        longest = longest.max(step.elapsed());
        ticks += 1;
    }
    let took = start.elapsed().as_secs_f64();
    println!(
        "expiry: {live} leases of one millisecond: {took:.2} s in {ticks} steps, the longest {longest:.0?}"
    );
}

fn restores() {
    let live: u64 = 1_000_000;
    let mut world = World::new();
    for n in 0..live {
        world.acquire(Bundle::of_key(key(n)), 1 << 30);
    }
    let start = Instant::now();
    let snapshot: Snapshot = world.kernel.snapshot();
    let taken = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let restored = Kernel::restore(&snapshot).expect("a snapshot that was just taken");
    let took = start.elapsed().as_secs_f64();
    assert_eq!(restored.state_hash(), world.kernel.state_hash());
    println!("restore: {live} leases: {took:.2} s (taking the snapshot: {taken:.2} s)");
}

fn memory() {
    let live: u64 = 10_000_000;
    let before = resident_bytes();
    let mut world = World::new();
    let start = Instant::now();
    for n in 0..live {
        world.acquire(Bundle::of_key(key(n)), 1 << 30);
    }
    let rate = per_second(live, start.elapsed());
    let each = (resident_bytes() - before) as f64 / live as f64;
    println!(
        "memory: {live} live leases, names of 16 bytes: {each:.0} bytes each ({:.2} M grants/s)",
        rate / 1e6
    );
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells what is resident");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS is there");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}
