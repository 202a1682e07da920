//! Compares the victim's latency during an attack with that of a control run.
//!
//! In a control round the attacker talks to a [`Sink`](crate::lockd::sink::Sink): its own use of the processor is the same,
//! and the victim's server has nothing to do with it. Rounds of both kinds alternate, and each has a p99. **The median of the
//! attack's p99s must be at most three times the median of the control's**: what else the machine does in one round, or what
//! changes slowly, does not decide. The first rounds decide if they are within the ratio; otherwise more rounds are added to
//! them, and all together decide, once.
//!
//! Other programs make both latencies longer, and hide what the attack adds. So each verdict says what part of the processor
//! they used: one of a machine that was not quiet proves nothing. It also says the ratio of the first rounds.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::round::{Round, attack, percentile};
use super::{Spawn, report};
use crate::lockd::frame_client::Protocol;

/// Rounds of each kind. Together they last as long as an attack.
pub(super) const ROUNDS: usize = 5;

/// The rounds of each kind if the first ones exceed the ratio.
const ROUNDS_MAX: usize = 15;

/// The most that the victim's p99 may be, in multiples of the control run's.
const RATIO_MAX: f64 = 3.0;

/// The most of the processor that other programs use on a quiet machine.
const OTHERS_MAX: f64 = 0.1;

/// Held by the attack that is compared: two at a time would measure each other.
static RUNNING: Mutex<()> = Mutex::new(());

/// Rounds of both kinds.
#[derive(Default)]
struct Comparison {
    attacked: Vec<Round>,
    control: Vec<Round>,
}

impl Comparison {
    fn run(&mut self, protocol: Protocol, name: &str, spawn: Spawn, rounds: usize) {
        for _ in 0..rounds {
            self.control.push(attack(protocol, name, true, spawn));
            self.attacked.push(attack(protocol, name, false, spawn));
        }
    }

    fn is_fair(&self) -> bool {
        self.ratio() <= RATIO_MAX
    }

    fn ratio(&self) -> f64 {
        median(&self.attacked).as_secs_f64() / median(&self.control).as_secs_f64()
    }

    /// A row of a table: attack, p99, control run's p99, ratio, ratio of the first rounds, rounds, peak memory, others.
    fn row(&self, name: &str, first: f64) -> String {
        let (with, without, ratio) = (median(&self.attacked), median(&self.control), self.ratio());
        let mut others: Vec<f64> =
            self.attacked.iter().chain(&self.control).map(|round| round.others).collect();
        let others = percentile(&mut others, 50);
        let resident = self.attacked.iter().map(|round| round.resident_kib).max().unwrap_or_default() >> 10;
        let rounds = self.attacked.len();
        let noise = if others > OTHERS_MAX { " (not quiet)" } else { "" };
        let verdict = if self.is_fair() { "" } else { " (too much)" };
        format!(
            "| {name} | {with:.1?} | {without:.1?} | {ratio:.1}{verdict} | {first:.1} | {rounds} | {resident} MiB | {:.0} %{noise} |",
            others * 100.0
        )
    }
}

fn median(rounds: &[Round]) -> Duration {
    let mut all: Vec<Duration> = rounds.iter().map(|round| round.p99).collect();
    percentile(&mut all, 50)
}

/// Fails if the victim's p99 is more than three times that of the control rounds.
pub(super) fn assert_fair(protocol: Protocol, name: &str, spawn: Spawn) {
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut comparison = Comparison::default();
    comparison.run(protocol, name, spawn, ROUNDS);
    let first = comparison.ratio();
    if !comparison.is_fair() {
        comparison.run(protocol, name, spawn, ROUNDS_MAX - ROUNDS);
    }
    report(&comparison.row(name, first));
    let ratio = comparison.ratio();
    assert!(comparison.is_fair(), "{name}: the victim's p99 is {ratio:.1} times that of the control run");
}

/// The verdict needs minutes, so that a mistake in it would be noticed by no run of CI.
#[test]
fn a_median_of_more_than_three_times_the_control_runs_is_unfair() {
    let rounds = |p99s: [u64; ROUNDS]| {
        p99s.map(|ms| Round { p99: Duration::from_millis(ms), resident_kib: 0, others: 0.0 }).into()
    };
    let is_fair =
        |attacked, control| Comparison { attacked: rounds(attacked), control: rounds(control) }.is_fair();
    assert!(
        is_fair([6, 6, 6, 90, 90], [2, 2, 2, 2, 2]),
        "two rounds in which the machine did something else"
    );
    assert!(!is_fair([7, 7, 7, 1, 1], [2, 2, 2, 2, 2]));
    assert!(!is_fair([7, 7, 7, 7, 7], [1, 1, 2, 90, 90]), "two such control rounds hide nothing");
}
