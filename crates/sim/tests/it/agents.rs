//! Agents under wait-die: no deadlock cycle, no unbounded wait, no starvation. `sim::agents` states the bounds and why
//! they hold.

use sim::agents::{AgentStats, run};

#[test]
fn the_same_seed_gives_the_same_run() {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let one = run(7, 2, &mut |line| first.push(line));
    let two = run(7, 2, &mut |line| second.push(line));
    assert!(first.len() > 100, "the trace is not empty");
    assert_eq!((first, one), (second, two));
}

#[test]
fn no_deadlock_no_unbounded_wait_and_no_starvation() {
    let mut all = AgentStats::default();
    for seed in 0..150 {
        let stats = run(seed, 3, &mut drop);
        all.add(&stats.unwrap_or_else(|what| {
            panic!("{what}\nto reproduce: cargo run --release -p lockd-sim -- --seed {seed} --rounds 3")
        }));
    }
    println!("{all}");
    // Every kind of event must have occurred.
    let AgentStats { tries, grants, deaths, waits, timeouts, oldest, crashes, restarts, in_time, .. } = all;
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
