//! The source of stamps: elapsed time, never the wall clock.
//!
//! **Invariant.** Kernel time never runs ahead of the time that has certainly elapsed, and never goes back. A tenure
//! continues from the last stamp of the log plus the time that has certainly passed since that record, which is the
//! largest of these:
//!
//! - if the machine is in the same boot as when the record was sealed: the smaller of the advance of the boot clock and
//!   the advance of the wall clock;
//! - the time since this process finished reading the record, on its own boot clock;
//! - zero.
//!
//! After a reboot the elapsed time is unknown, and leases keep their remaining time: they end late and never early.
//!
//! **What would break it.** The boot id alone: clones of a virtual machine share it, and their boot clocks differ. So a
//! boot is identified by the boot id together with the machine's ids. The boot clock as the process reads it: a time
//! namespace shifts it, and a restart in another one would end every lease. So the shift is taken out. A boot clock that
//! still jumps, as in a restored image of a machine: the wall clock has to agree. The wall clock alone: it may be
//! set to any time.
//!
//! The wall clock has one more use: the LSN at which a log is opened is at least the Unix time in microseconds, so
//! that fencing tokens increase even if a store is wiped.

mod machine;

use std::fmt;

use kernel::{ClockReading, Lsn, Span, Time};

use crate::record::BATCH_RECORDS_MAX;
pub use machine::MachineClock;

/// The clocks of a machine.
pub trait Clock: Send {
    /// Milliseconds since boot, including suspend, without the offset of a time namespace.
    fn boot_clock(&self) -> Span;
    /// Identifies this boot of this machine, and no clone of it: [`Clock::boot_clock`] of two processes can be compared
    /// if it is the same.
    fn boot_id(&self) -> u128;
    /// Microseconds since 1970, by the wall clock.
    fn unix_micros(&self) -> u64;
    /// The wall clock is certainly wrong before this time, in microseconds since 1970: the day of the sources that the
    /// program was built from.
    fn earliest_unix_micros(&self) -> u64 {
        0
    }
}

/// Reads all clocks.
pub fn reading(clock: &dyn Clock) -> ClockReading {
    ClockReading {
        boot: clock.boot_id(),
        boot_clock: clock.boot_clock(),
        unix_ms: clock.unix_micros() / 1000,
    }
}

/// Converts the boot clock into kernel time, for one tenure.
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    /// Kernel time at the tenure's `open`.
    opened_at: Time,
    /// The boot clock at the `open`.
    boot_clock: Span,
}

impl Stamps {
    /// Continues after a record with the stamp `last`, whose batch was sealed at `sealed`. This process finished reading
    /// it when its boot clock was at `read_at`.
    pub fn after(last: Time, sealed: Option<ClockReading>, read_at: Span, clock: &dyn Clock) -> Stamps {
        let now = reading(clock);
        let silence = Span(now.boot_clock.0.saturating_sub(read_at.0));
        let downtime = sealed.map_or(Span(0), |sealed| elapsed(sealed, now));
        let silence = if planted!(SilenceIgnored) { Span(0) } else { silence };
        Stamps { opened_at: last.after(downtime.max(silence)), boot_clock: now.boot_clock }
    }

    /// Kernel time at the `open`.
    pub fn opened_at(&self) -> Time {
        self.opened_at
    }

    /// Kernel time now.
    pub fn now(&self, clock: &dyn Clock) -> Time {
        self.opened_at.after(Span(clock.boot_clock().0.saturating_sub(self.boot_clock.0)))
    }
}

/// The time that has certainly elapsed between two readings.
fn elapsed(then: ClockReading, now: ClockReading) -> Span {
    let boot = now.boot_clock.0.saturating_sub(then.boot_clock.0);
    let wall = now.unix_ms.saturating_sub(then.unix_ms);
    if planted!(WallClock) {
        return Span(wall);
    }
    if then.boot != now.boot && !planted!(ForeignBootClock) {
        return Span(0);
    }
    Span(if planted!(BootClockAlone) { boot } else { boot.min(wall) })
}

/// The wall clock is certainly wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongClock {
    /// The wall clock, in microseconds since 1970.
    pub unix_micros: u64,
}

impl fmt::Display for WrongClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.unix_micros / 1_000_000;
        write!(f, "the system clock is wrong; set it, then restart: unix_seconds={seconds}")
    }
}

impl std::error::Error for WrongClock {}

/// The LSN at which to open a log whose last record is at `last`: above every LSN that a torn last batch may have used.
pub fn opening_lsn(last: Lsn, clock: &dyn Clock) -> Result<Lsn, WrongClock> {
    let unix_micros = clock.unix_micros();
    let skipped = if planted!(OpeningLsnDense) { 0 } else { BATCH_RECORDS_MAX };
    let unused = if planted!(OpeningLsnBack) { 0 } else { last.0 + skipped + 1 };
    let lsn = Lsn(unix_micros.max(unused));
    if unix_micros < clock.earliest_unix_micros() || lsn > Lsn::MAX_OPEN {
        return Err(WrongClock { unix_micros });
    }
    Ok(lsn)
}

#[cfg(test)]
mod tests;
