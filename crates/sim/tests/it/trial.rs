//! The kernel against the model, from a fixed set of seeds. For other seeds: `cargo run -p lockd-sim -- --help`.

use std::thread;

use crate::sized;

const THREADS: u64 = 2;
const STEPS: u64 = 1000;

/// 500,000 commands, or two million with `LOCKD_LONG=1`.
#[test]
fn kernel_and_model_agree_on_random_commands() {
    let seeds = sized(500, 2000);
    let try_seeds = move |thread: u64| {
        let mut steps = 0;
        for seed in (thread..seeds).step_by(usize::try_from(THREADS).expect("a few")) {
            steps += sim::trial::run(seed, STEPS).unwrap_or_else(|what| panic!("{what}")).steps;
        }
        steps
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| thread::spawn(move || try_seeds(thread))).collect();
    let steps: u64 = threads.into_iter().map(|thread| thread.join().expect("no trial failed")).sum();
    assert_eq!(steps, seeds * STEPS);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(sim::trial::run(42, 2000), sim::trial::run(42, 2000));
}
