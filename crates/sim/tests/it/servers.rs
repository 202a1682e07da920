//! Simulation of whole servers: every response holds, a run follows from its seed, and the seeds reach every function and
//! every bound of the sequencer.

use sim::servers::{BoundsReached, ServerStats, run};

/// Three simulated minutes.
const SHORT: u64 = 180_000;

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 4, 7] {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let one = run(seed, SHORT, &mut |line| first.push(line));
        let two = run(seed, SHORT, &mut |line| second.push(line));
        assert!(first.len() > 100 || seed == 7 && first.len() > 5, "the trace is not empty");
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
        bounds,
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
    let BoundsReached {
        full_by_bytes,
        full_by_commands,
        hand_off_by_bytes,
        hand_off_by_count,
        inbox_full,
        rotations,
        reserve,
    } = bounds;
    for (what, count) in [
        ("batch full by bytes", full_by_bytes),
        ("batch full by commands", full_by_commands),
        ("hand-off stopped by bytes", hand_off_by_bytes),
        ("hand-off stopped by count", hand_off_by_count),
        ("inbox full", inbox_full),
        ("several segments", rotations),
        ("log space for releases only", reserve),
    ] {
        assert!(count > 0, "{what}");
    }
    let unreached = engine::internals::reach::unreached();
    assert!(unreached.is_empty(), "functions of the sequencer that no seed reached: {unreached:?}");
}
