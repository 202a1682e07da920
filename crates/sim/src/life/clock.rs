//! True time, and what machines make of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::clock::Clock;
use kernel::Span;

/// Milliseconds that have really passed since the world began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct True(pub u64);

/// The clocks of one machine, from one boot to the next. Clones are the same machine.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<Hands>>);

struct Hands {
    now: True,
    booted: True,
    /// How long it had been up by then: the log may come to a machine that was started long before.
    up_ms: u64,
    boot_id: u128,
    /// The boot clock runs faster or slower by so many millionths.
    drift: i64,
    /// The wall clock is off by so much.
    wall_micros: i64,
}

impl Machine {
    /// Clocks drift by at most this many millionths.
    pub const DRIFT_MAX: i64 = 500;

    /// A machine that was just started.
    pub fn new(now: True, boot_id: u128, drift: i64) -> Machine {
        Machine(Arc::new(Mutex::new(Hands { now, booted: now, up_ms: 0, boot_id, drift, wall_micros: 0 })))
    }

    /// Time has passed, asleep or awake.
    pub fn set(&self, now: True) {
        self.hands().now = now;
    }

    /// Somebody sets the wall clock.
    pub fn jump(&self, wall_micros: i64) {
        self.hands().wall_micros = wall_micros;
    }

    /// The machine is started again, or another takes its place that has been up for so long: its boot clock has
    /// nothing to do with the one before.
    pub fn reboot(&self, boot_id: u128, up_ms: u64) {
        let mut hands = self.hands();
        (hands.booted, hands.boot_id, hands.up_ms) = (hands.now, boot_id, up_ms);
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for Machine {
    fn boot_clock(&self) -> Span {
        let hands = self.hands();
        let passed = hands.now.0 - hands.booted.0;
        let drifted = passed.cast_signed() + passed.cast_signed() * hands.drift / 1_000_000;
        Span(hands.up_ms + drifted.unsigned_abs())
    }

    fn boot_id(&self) -> u128 {
        self.hands().boot_id
    }

    fn unix_micros(&self) -> u64 {
        let hands = self.hands();
        // 2027, and the true time since.
        let right = 1_800_000_000_000_000 + hands.now.0 * 1000;
        right.saturating_add_signed(hands.wall_micros)
    }
}
