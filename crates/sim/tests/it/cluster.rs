//! Several whole servers on one simulated object store: each follows the log, takes it over at any moment, serves requests
//! with the real sequencer, takes snapshots and truncates, hands the log over, is deposed and follows again, is paused
//! between any two requests, or is killed. The network loses requests and responses, and carries out changes late or twice; the
//! store denies requests.
//!
//! Every server has a thread, and one thread runs at a time, from one request to the store to the next: so any interleaving
//! of requests can occur, and the same seed repeats it. Nothing here decides when a server should try: safety must not
//! depend on it. Afterwards the journal of the store says what the log is, and every response is compared with it
//! ([`history`]).

mod history;
mod member;

use std::collections::BTreeMap;

use sim::objects::{NetworkFaults, SimObjects};
use sim::rng::Rng;

use crate::object_takeover::scheduler::Scheduler;
use crate::sized;
use history::History;
use member::{COUNTED, Member};

/// Servers that run at the same time.
const SERVERS: usize = 3;

/// Prints the seed of the run if a thread panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

fn run(seed: u64) -> (SimObjects, History) {
    let _seed_on_panic = SeedOnPanic(seed);
    let mut rng = Rng::new(seed);
    let faults = NetworkFaults {
        fault_percent: [0, 5, 15, 30][usize::from(rng.small(4))],
        delay_max: 1 + rng.below(300),
        repeated_percent: [0, 10][usize::from(rng.small(2))],
        denied_percent: [0, 5][usize::from(rng.small(2))],
    };
    let objects = SimObjects::new(rng.number(), faults);
    let (scheduler, history) = (Scheduler::new(SERVERS), History::default());
    std::thread::scope(|scope| {
        for name in 0..SERVERS {
            let member = Member::new(name, rng.number(), &objects, &scheduler, &history);
            scope.spawn(move || member.run());
        }
        scheduler.run(&mut rng);
    });
    (objects, history)
}

/// 120 seeds, or 1,500 with `LOCKD_LONG=1`; `SEEDS=10000 cargo test -p lockd-sim --test it cluster` runs that many.
#[test]
fn every_response_of_several_servers_agrees_with_the_log() {
    let seeds: u64 =
        std::env::var("SEEDS").map_or(sized(120, 1500), |seeds| seeds.parse().expect("a number"));
    let mut counts = BTreeMap::new();
    for seed in 0..seeds {
        let (objects, history) = run(seed);
        history.check(&objects).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        for (what, times) in history.counts() {
            *counts.entry(what).or_insert(0) += times;
        }
    }
    println!("{seeds} seeds: {counts:?}");
    for what in COUNTED {
        let times = counts.get(what).copied().unwrap_or(0);
        assert!(times >= seeds / 40, "too few of {what:?}: {counts:?}");
    }
}

#[test]
fn the_same_seed_repeats_a_run_of_several_servers() {
    for seed in [3, 4, 5] {
        assert_eq!(run(seed).0.journal(), run(seed).0.journal(), "seed {seed}");
    }
}
