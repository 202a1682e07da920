//! Lives of whole servers: what they tell holds, and everything follows from the seed.

use sim::life::{Tally, run};

/// Three simulated minutes.
const SHORT: u64 = 180_000;

#[test]
fn the_same_seed_lives_the_same_life() {
    for seed in [3, 4] {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let one = run(seed, SHORT, &mut |line| first.push(line));
        let two = run(seed, SHORT, &mut |line| second.push(line));
        assert!(first.len() > 100, "something happens");
        assert_eq!((first, one), (second, two), "seed {seed}");
    }
}

#[test]
fn all_that_was_told_holds_over_many_lives() {
    let mut all = Tally::default();
    for seed in 0..120 {
        let lived = run(seed, SHORT, &mut drop);
        all.add(&lived.unwrap_or_else(|what| {
            panic!("{what}\nto see it again: cargo run --release -p sim -- --seed {seed} --hours 0.05")
        }));
    }
    // What never happened was not tested.
    let Tally { turns, answers, grants, commits, deaths, snapshots, moves, dead_ends, undelivered } = all;
    for (what, count) in [
        ("turns", turns),
        ("answers", answers),
        ("grants", grants),
        ("commits", commits),
        ("deaths", deaths),
        ("snapshots", snapshots),
        ("moves", moves),
        ("dead ends", dead_ends),
        ("undelivered", undelivered),
    ] {
        assert!(count > 100, "{what}: {count}");
    }
}
