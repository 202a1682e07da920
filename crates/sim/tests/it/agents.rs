//! Agents under wait-die: no ring, no wait without an end, and nobody starves. `sim::agents` says what is promised, and why.

use sim::agents::{Tally, run};

#[test]
fn the_same_seed_gives_the_same_agents() {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let one = run(7, 2, &mut |line| first.push(line));
    let two = run(7, 2, &mut |line| second.push(line));
    assert!(first.len() > 100, "something happens");
    assert_eq!((first, one), (second, two));
}

#[test]
fn no_ring_no_wait_without_an_end_and_every_attempt_has_its_turn() {
    let mut all = Tally::default();
    for seed in 0..150 {
        let came = run(seed, 3, &mut drop);
        all.add(&came.unwrap_or_else(|what| {
            panic!("{what}\nto see it again: cargo run --release -p sim -- --seed {seed} --rounds 3")
        }));
    }
    println!("{all}");
    // What never happened was not tested.
    let Tally { tries, grants, deaths, waits, timeouts, oldest, crashes, restarts, in_time, .. } = all;
    for (what, count) in [
        ("tries", tries),
        ("grants", grants),
        ("deaths", deaths),
        ("waits", waits),
        ("timeouts", timeouts),
        ("tries of the oldest", oldest),
        ("crashes", crashes),
        ("restarts", restarts),
        ("granted in time", in_time),
    ] {
        assert!(count > 100, "{what}: {count}");
    }
}
