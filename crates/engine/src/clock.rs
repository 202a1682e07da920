//! The source of stamps: elapsed time, never the wall clock.
//!
//! **Invariant.** Kernel time never runs ahead of the time that has certainly elapsed, and never goes back.
//! Within the boot in which the last tenure began, the boot clock tells how much time has elapsed since.
//! After a reboot that is unknown, and time continues from the last stamp: leases keep their remaining time,
//! so they end late and never early.
//!
//! The wall clock has one use: the LSN at which a log is opened is at least the Unix time in microseconds, so
//! that fencing tokens increase even if a store is wiped.

use std::fmt;

use kernel::{Lsn, Span, Tenure, Time};

/// The clocks of a machine.
pub trait Clock: Send {
    /// Milliseconds since boot, including suspend.
    fn boot_clock(&self) -> Span;
    /// Unique to this boot of the machine.
    fn boot_id(&self) -> u128;
    /// Microseconds since 1970, by the wall clock.
    fn unix_micros(&self) -> u64;
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
    /// Continues after the previous tenure, if any, whose last stamp was `last`.
    pub fn after(before: Option<&Tenure>, last: Time, clock: &dyn Clock) -> Stamps {
        let boot_clock = clock.boot_clock();
        let same_boot =
            before.filter(|tenure| tenure.open.boot_id == clock.boot_id() || planted!(ForeignBootClock));
        let passed = same_boot.map(|tenure| {
            let since = boot_clock.0.saturating_sub(tenure.open.boot_clock.0);
            tenure.opened_at.after(Span(since))
        });
        let by_wall = before.filter(|_| planted!(WallClock)).map(|tenure| {
            tenure.opened_at.after(Span(clock.unix_micros().saturating_sub(tenure.opened_lsn.0) / 1000))
        });
        let passed = passed.or(by_wall);
        Stamps { opened_at: passed.unwrap_or(last).max(last), boot_clock }
    }

    /// Kernel time at the `open`.
    pub fn opened_at(&self) -> Time {
        self.opened_at
    }

    /// The boot clock at the `open`.
    pub fn boot_clock(&self) -> Span {
        self.boot_clock
    }

    /// Kernel time now.
    pub fn now(&self, clock: &dyn Clock) -> Time {
        self.opened_at.after(Span(clock.boot_clock().0.saturating_sub(self.boot_clock.0)))
    }
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

/// A wall clock before this date, 2026-11-01, is wrong.
const BUILT_UNIX_MICROS: u64 = 1_793_491_200_000_000;

/// The LSN at which to open a log whose last record is at `last`.
pub fn opening_lsn(last: Lsn, clock: &dyn Clock) -> Result<Lsn, WrongClock> {
    let unix_micros = clock.unix_micros();
    let last = if planted!(OpeningLsnBack) { Lsn(0) } else { last };
    let lsn = Lsn(unix_micros.max(last.0 + 1));
    if unix_micros < BUILT_UNIX_MICROS || lsn > Lsn::MAX_OPEN {
        return Err(WrongClock { unix_micros });
    }
    Ok(lsn)
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineClock {
    boot_id: u128,
}

impl MachineClock {
    /// Reads the boot id from `/proc`. Where there is none, uses a random one, as if the machine had just
    /// booted: kernel time then continues from the last stamp.
    pub fn new() -> std::io::Result<MachineClock> {
        match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
            Ok(text) => {
                let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
                let boot_id = u128::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
                Ok(MachineClock { boot_id })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(MachineClock { boot_id: u128::from_le_bytes(system::random::bytes()) })
            }
            Err(error) => Err(error),
        }
    }
}

impl Clock for MachineClock {
    fn boot_clock(&self) -> Span {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
        Span(seconds * 1000 + nanos / 1_000_000)
    }

    fn boot_id(&self) -> u128 {
        self.boot_id
    }

    fn unix_micros(&self) -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        u64::try_from(time.tv_sec)
            .map_or(0, |seconds| seconds * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{Limits, Open, Store};

    struct ManualClock {
        boot_clock: u64,
        boot_id: u128,
        unix_micros: u64,
    }

    impl Clock for ManualClock {
        fn boot_clock(&self) -> Span {
            Span(self.boot_clock)
        }

        fn boot_id(&self) -> u128 {
            self.boot_id
        }

        fn unix_micros(&self) -> u64 {
            self.unix_micros
        }
    }

    fn clock(boot_clock: u64, boot_id: u128) -> ManualClock {
        ManualClock { boot_clock, boot_id, unix_micros: BUILT_UNIX_MICROS }
    }

    /// Opened at kernel time 1000, when the boot clock of boot 7 was at 50,000.
    fn tenure() -> Tenure {
        let open = Open {
            store: Store::default(),
            writer: 0,
            term: 1,
            boot_id: 7,
            boot_clock: Span(50_000),
            kernel_version: 1,
            limits: Limits::default(),
        };
        Tenure { open, opened_lsn: Lsn(1), opened_at: Time(1000) }
    }

    #[test]
    fn elapsed_time_counts_within_the_same_boot() {
        let stamps = Stamps::after(Some(&tenure()), Time(2000), &clock(60_000, 7));
        assert_eq!(stamps.opened_at(), Time(11_000));
        assert_eq!(stamps.now(&clock(60_250, 7)), Time(11_250));
    }

    #[test]
    fn time_continues_from_the_last_stamp_after_a_reboot() {
        let stamps = Stamps::after(Some(&tenure()), Time(2000), &clock(300, 8));
        assert_eq!((stamps.opened_at(), stamps.now(&clock(400, 8))), (Time(2000), Time(2100)));
        // Even if the boot clock is further ahead than before the reboot: that proves nothing.
        assert_eq!(Stamps::after(Some(&tenure()), Time(2000), &clock(900_000, 8)).opened_at(), Time(2000));
    }

    #[test]
    fn time_never_goes_back_even_if_the_clock_does() {
        let stamps = Stamps::after(Some(&tenure()), Time(90_000), &clock(60_000, 7));
        assert_eq!(stamps.opened_at(), Time(90_000), "the last stamp was later than the clock can explain");
        assert_eq!(stamps.now(&clock(0, 7)), Time(90_000));
        assert_eq!(Stamps::after(None, Time(0), &clock(5, 7)).opened_at(), Time(0));
    }

    /// The wall clock may jump by hours, or to 2038 and back, without effect on stamps.
    #[test]
    fn the_wall_clock_affects_no_stamp_and_a_wrong_one_prevents_opening() {
        let mut clock = clock(60_000, 7);
        let stamps = Stamps::after(Some(&tenure()), Time(2000), &clock);
        clock.unix_micros = 2_145_916_800_000_000;
        assert_eq!(stamps.now(&clock), Time(11_000));
        assert_eq!(opening_lsn(Lsn(9), &clock), Ok(Lsn(2_145_916_800_000_000)));
        assert_eq!(
            opening_lsn(Lsn(3_000_000_000_000_000), &clock),
            Ok(Lsn(3_000_000_000_000_001)),
            "never decreases"
        );
        for wrong in [0, BUILT_UNIX_MICROS - 1, (1 << 52) + 1] {
            clock.unix_micros = wrong;
            assert_eq!(opening_lsn(Lsn(9), &clock), Err(WrongClock { unix_micros: wrong }));
        }
    }

    #[test]
    fn this_machine_has_clocks() {
        let clock = MachineClock::new().expect("Linux");
        assert!(clock.boot_clock() > Span(0) && clock.boot_id() != 0);
        assert!(opening_lsn(Lsn(0), &clock).is_ok());
    }
}
