//! The sequencer under a model checker: Shuttle runs each scenario with many random schedules of its threads.
//!
//! A lost wake-up is a deadlock here: no timer of the system rescues it, as no thread sleeps. A failing schedule is
//! printed, and can be replayed with `shuttle::replay`. `SCHEDULES=1000000` sets the number of schedules of each
//! scenario.

mod scenarios;
mod world;

/// Schedules of all scenarios together, unless `SCHEDULES` says how many each gets.
const TOTAL: usize = 100_000;

fn explore(scenario: fn()) {
    let asked = std::env::var("SCHEDULES").ok().and_then(|text| text.parse().ok());
    let schedules = asked.unwrap_or(TOTAL.div_ceil(scenarios::COUNT));
    // Half of them with priorities that change a few times (PCT), which reach rare orders of few events sooner.
    shuttle::check_random(scenario, schedules.div_ceil(2));
    shuttle::check_pct(scenario, schedules / 2, 3);
}
