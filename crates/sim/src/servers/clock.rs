//! True time, and the clocks of machines that measure it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Clock;
use kernel::Span;

/// True milliseconds since the simulation began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrueTime(pub u64);

/// The clocks of one machine, across reboots. Clones share the machine.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<MachineState>>);

struct MachineState {
    now: TrueTime,
    booted: TrueTime,
    /// Uptime at `booted`, in milliseconds: the log may move to a machine that was started long before.
    up_ms: u64,
    boot_id: u128,
    /// Drift of the boot clock, in parts per million.
    drift: i64,
    /// Offset of the wall clock, in microseconds.
    wall_micros: i64,
}

impl Machine {
    /// Maximum drift of boot clocks, in parts per million.
    pub const DRIFT_MAX: i64 = 500;

    /// A machine that has just booted.
    pub fn new(now: TrueTime, boot_id: u128, drift: i64) -> Machine {
        Machine(Arc::new(Mutex::new(MachineState {
            now,
            booted: now,
            up_ms: 0,
            boot_id,
            drift,
            wall_micros: 0,
        })))
    }

    /// Advances true time.
    pub fn set(&self, now: TrueTime) {
        self.state().now = now;
    }

    /// True time, which only checks may know.
    pub fn true_time(&self) -> TrueTime {
        self.state().now
    }

    /// Sets the offset of the wall clock.
    pub fn jump(&self, wall_micros: i64) {
        self.state().wall_micros = wall_micros;
    }

    /// The machine reboots, or is replaced by one with an uptime of `up_ms`: the new boot clock is unrelated to the
    /// old one.
    pub fn reboot(&self, boot_id: u128, up_ms: u64) {
        let mut state = self.state();
        (state.booted, state.boot_id, state.up_ms) = (state.now, boot_id, up_ms);
    }

    fn state(&self) -> MutexGuard<'_, MachineState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for Machine {
    fn boot_clock(&self) -> Span {
        let state = self.state();
        let passed = state.now.0 - state.booted.0;
        let drifted = passed.cast_signed() + passed.cast_signed() * state.drift / 1_000_000;
        Span(state.up_ms + drifted.unsigned_abs())
    }

    fn boot_id(&self) -> u128 {
        self.state().boot_id
    }

    fn unix_micros(&self) -> u64 {
        let state = self.state();
        // In 2027.
        let right = 1_800_000_000_000_000 + state.now.0 * 1000;
        right.saturating_add_signed(state.wall_micros)
    }
}
