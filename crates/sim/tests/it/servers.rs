//! Simulation of whole servers: every response holds, and a run follows from its seed.

use sim::servers::{ServerStats, run};

/// Three simulated minutes.
const SHORT: u64 = 180_000;

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 4] {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let one = run(seed, SHORT, &mut |line| first.push(line));
        let two = run(seed, SHORT, &mut |line| second.push(line));
        assert!(first.len() > 100, "the trace is not empty");
        assert_eq!((first, one), (second, two), "seed {seed}");
    }
}

#[test]
fn every_response_holds_over_many_seeds() {
    let mut all = ServerStats::default();
    for seed in 0..120 {
        let stats = run(seed, SHORT, &mut drop);
        all.add(&stats.unwrap_or_else(|what| {
            panic!("{what}\nto reproduce: cargo run --release -p lockd-sim -- --seed {seed} --hours 0.05")
        }));
    }
    // Every kind of event must have occurred.
    let ServerStats {
        responses,
        grants,
        commits,
        crashes,
        snapshots,
        relocations,
        deadlock_rejections,
        undelivered,
        pipelined,
        undecided,
        out_of_space,
        deposed,
        clean_stops,
        panics,
    } = all;
    for (what, count) in [
        ("responses", responses),
        ("grants", grants),
        ("commits", commits),
        ("crashes", crashes),
        ("snapshots", snapshots),
        ("relocations", relocations),
        ("deadlock rejections", deadlock_rejections),
        ("undelivered", undelivered),
        ("pipelined", pipelined),
        ("undecided", undecided),
        ("out of space", out_of_space),
    ] {
        assert!(count > 100, "{what}: {count}");
    }
    for (what, count) in [("deposed", deposed), ("clean stops", clean_stops), ("panics", panics)] {
        assert!(count > 10, "{what}: {count}");
    }
}
