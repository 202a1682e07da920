//! Compares the victim's latency during an attack with that of a control run.
//!
//! In a control round the attacker talks to a [`Sink`](crate::lockd::sink::Sink): its own use of the processor is the same,
//! and the victim's server has nothing to do with it. Rounds of both kinds alternate, and each has a p99. **The median of the
//! attack's p99s must be at most three times the median of the control's**: what else the machine does in one round, or what
//! changes slowly, does not decide. If it is more after the first rounds, more rounds are added to them, and all are judged.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Spawn, attack, percentile, report};

/// Rounds of each kind. Together they last as long as an attack.
pub(super) const ROUNDS: u32 = 5;

/// The most rounds of each kind.
const ROUNDS_MAX: u32 = 3 * ROUNDS;

/// The most that the victim's p99 may be, in multiples of the control run's.
const RATIO_MAX: f64 = 3.0;

/// Held by the attack that is compared: two at a time would measure each other.
static RUNNING: Mutex<()> = Mutex::new(());

/// The p99 of each round.
#[derive(Default)]
struct Rounds(Vec<Duration>);

impl Rounds {
    fn add(&mut self, mut took: Vec<Duration>) {
        self.0.push(percentile(&mut took, 99));
    }

    fn median(&mut self) -> Duration {
        percentile(&mut self.0, 50)
    }
}

/// Fails if the victim's p99 is more than three times that of the control rounds.
pub(super) fn assert_fair(name: &str, spawn: Spawn) {
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut control, mut attacked) = (Rounds::default(), Rounds::default());
    let mut ratio = f64::INFINITY;
    for rounds in 1..=ROUNDS_MAX {
        control.add(attack(name, true, spawn));
        attacked.add(attack(name, false, spawn));
        if rounds % ROUNDS == 0 {
            let (with, without) = (attacked.median(), control.median());
            ratio = with.as_secs_f64() / without.as_secs_f64();
            report(&format!(
                "{name}: p99 {with:.1?} in the median of {rounds} rounds, {ratio:.1} of the control run's"
            ));
        }
        if ratio <= RATIO_MAX {
            return;
        }
    }
    panic!("{name}: the victim's p99 is {ratio:.1} times that of the control run");
}
