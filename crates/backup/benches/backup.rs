//! Backups under load, and a restore of a million leases.
//!
//! `cargo bench -p lockd-backup --bench backup`; arguments after `--` select parts by name (`load`, `million`); set
//! `TMPDIR` to choose the disk, and `RATE` to a number of bytes per second or to `unlimited`.
#![allow(missing_docs, reason = "a benchmark has no public items")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use backup::{BackupOptions, Quiet, RestoreOptions, restore, take};
use engine::observe::{EngineObserver, Fatal, MaintenanceEvent};
use engine::{
    Decision, Delivery, Engine, Executor, MachineClock, Options, ReplyTo, Submission, TenureConfig, Workers,
};
use kernel::{Action, Command, Granted, Limits, Outcome, Response, Span, Store};
use sim::fixture::{grant, held, identity, key};
use store::disk::{DiskDir, LogOptions, StoreFile};

const KEY: [u8; 32] = [7; 32];
const NOW: u64 = 1_700_000_000_000;
const CALLERS: usize = 64;
const ROUNDS: usize = 6;
/// Of a round without a backup; one with a backup lasts until it is taken and verified.
const ROUND: Duration = Duration::from_secs(10);
/// The default of `lockd backup`.
const RATE: u64 = 10_000_000;

fn main() {
    let picked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let parts: [(&str, fn()); 2] = [("load", load), ("million", million)];
    for (name, part) in parts {
        if picked.is_empty() || picked.iter().any(|picked| picked == name) {
            part();
        }
    }
}

struct Observer;

impl EngineObserver for Observer {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn maintained(&self, event: MaintenanceEvent) {
        if let MaintenanceEvent::Failed(error) = event {
            panic!("{error}");
        }
    }
}

fn open(path: &Path) -> (Engine, DiskDir) {
    std::fs::create_dir_all(path).expect("a directory");
    std::fs::write(path.join("store.key"), KEY).expect("writable");
    let dir = DiskDir::open(path, StoreFile { store_id: 5, shards: 1 }, &KEY, true).expect("a store");
    let (log, _) = dir.log(0, LogOptions::SEGMENT_BYTES).expect("a sound log");
    let blobs = Arc::new(dir.blobs().expect("a sound store"));
    let store = Store { shards: 1, hash_seed: 1, ..Store::default() };
    let limits = Limits { leases_per_identity_max: 2_000_000, ..Limits::default() };
    let tenure = TenureConfig { store, writer: 1, limits, slots: kernel::Slots::ALL };
    let executor: Arc<dyn Executor> = Arc::new(Workers::default());
    let clock = Box::new(MachineClock::new().expect("Linux"));
    let engine =
        Engine::open(Box::new(log), blobs, clock, &tenure, Options::default(), Arc::new(Observer), &executor);
    (engine.expect("a sound store"), dir)
}

fn call(engine: &Engine, action: Action) -> Response {
    let command = Command::by(&identity("ada"), action);
    match engine.sequencer().call(command, 0, None, None).expect("running").expect("accepted") {
        Decision::Outcome(Outcome::Applied(response, _)) => response,
        other => panic!("{other:?}"),
    }
}

fn acquire(engine: &Engine, name: &str) -> Granted {
    match call(engine, Action::Acquire(grant(key(name), Span(300_000)))) {
        Response::Granted(granted) => granted,
        other => panic!("{other:?}"),
    }
}

/// Without a limit of the rate, or with the default one.
fn options(default: Option<u64>) -> BackupOptions {
    let rate = match std::env::var("RATE").as_deref() {
        Ok("unlimited") => None,
        Ok(rate) => Some(rate.parse().expect("bytes per second")),
        Err(_) => default,
    };
    BackupOptions { key: None, now_unix_ms: NOW, rate, timeout: Duration::from_secs(3600) }
}

/// 64 callers acquire and release, durably, over 100,000 leases; alternately without a backup and while one is taken and
/// verified, from its first byte to its last.
fn load() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, _dir) = open(&dir.path().join("store"));
    fill(&engine, 100_000);
    let engine = Arc::new(engine);
    let (stopped, pairs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let (engine, stopped, pairs) = (Arc::clone(&engine), Arc::clone(&stopped), Arc::clone(&pairs));
            std::thread::spawn(move || {
                let name = format!("caller-{n}");
                while !stopped.load(Ordering::Relaxed) {
                    let granted = acquire(&engine, &name);
                    call(&engine, Action::Release(held(&granted)));
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // As long as a first backup, which is not counted: caches and the size of the log settle.
    measure(&pairs, Some((dir.path(), ROUNDS)));
    let (mut ratios, mut controls) = (Vec::new(), Vec::new());
    let mut before = measure(&pairs, None);
    for round in 0..ROUNDS {
        // The rate drifts as the machine does: the rounds on both sides count.
        let with = measure(&pairs, Some((dir.path(), round)));
        let after = measure(&pairs, None);
        let without = f64::midpoint(before, after);
        println!("round {round}: {without:.0}/s without, {with:.0}/s with a backup: {:.3}", with / without);
        ratios.push(with / without);
        // What the same comparison shows without any backup.
        let (control, last) = (measure(&pairs, None), measure(&pairs, None));
        controls.push(control / f64::midpoint(after, last));
        before = last;
    }
    stopped.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().expect("no panic");
    }
    report("throughput with a backup running, of that without", ratios);
    report("control: the same without a backup", controls);
}

/// Prints the median, the mean with its standard error, and the extremes.
#[expect(clippy::cast_precision_loss, reason = "few rounds")]
fn report(what: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let median = f64::midpoint(ratios[(ratios.len() - 1) / 2], ratios[ratios.len() / 2]);
    println!(
        "{what}: median {median:.3}, mean {mean:.3} +- {:.3}, {:.3} to {:.3}",
        (variance / count).sqrt(),
        ratios[0],
        ratios[ratios.len() - 1]
    );
}

/// Pairs per second over a round. With a directory, a backup of its store is taken meanwhile, by a thread with the lowest
/// priority, as the command does, and the round lasts until it is done.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn measure(pairs: &AtomicU64, backup: Option<(&Path, usize)>) -> f64 {
    let (begun, before) = (Instant::now(), pairs.load(Ordering::Relaxed));
    let thread = backup.map(|(dir, round)| {
        let dir = dir.to_path_buf();
        std::thread::spawn(move || {
            rustix::process::nice(19).expect("lower than before");
            let to = dir.join(format!("backup-{round}"));
            let manifest =
                take(&dir.join("store"), &to, &options(Some(RATE)), &Quiet, &mut |_| ()).expect("a backup");
            std::fs::remove_dir_all(&to).expect("there");
            manifest.bytes() / 1_000_000
        })
    });
    match thread {
        None => std::thread::sleep(ROUND),
        Some(thread) => {
            let megabytes = thread.join().expect("no panic");
            println!("         a backup of {megabytes} MB in {:.1} s", begun.elapsed().as_secs_f64());
        }
    }
    (pairs.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
}

/// Grants leases, many at a time.
fn fill(engine: &Engine, leases: usize) {
    let (send, receive) = channel();
    for n in 0..leases {
        let send = send.clone();
        let to: ReplyTo = Box::new(move |reply, delivery: Delivery| {
            delivery.settle(send.send(reply.is_ok()).is_ok());
        });
        let command =
            Command::by(&identity("ada"), Action::Acquire(grant(key(&format!("k{n}")), Span(300_000))));
        engine.sequencer().submit(Submission::new(command, to));
        if n >= 1000 {
            assert!(receive.recv().expect("a reply"));
        }
    }
    (0..leases.min(1000)).for_each(|_| assert!(receive.recv().expect("a reply")));
}

/// A million leases: how long a backup, its verification and a restore take.
fn million() {
    let dir = tempfile::tempdir().expect("a directory");
    let (engine, store_dir) = open(&dir.path().join("store"));
    fill(&engine, 1_000_000);
    let to = dir.path().join("backup");
    let begun = Instant::now();
    let manifest =
        take(&dir.path().join("store"), &to, &options(None), &Quiet, &mut |_| ()).expect("a backup");
    println!(
        "backup of {} leases, {} MB, taken and verified in {:.2} s",
        manifest.leases(),
        manifest.bytes() / 1_000_000,
        begun.elapsed().as_secs_f64()
    );
    drop((engine, store_dir));
    let begun = Instant::now();
    restore(&to, &dir.path().join("restored"), &RestoreOptions { now_unix_ms: NOW }, &Quiet)
        .expect("restored");
    println!("restored and verified in {:.2} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let (engine, _dir) = open(&dir.path().join("restored"));
    acquire(&engine, "first");
    println!("opened, and a first lease granted, in {:.2} s", begun.elapsed().as_secs_f64());
}
