//! Elapsed time across restarts, reboots, clones, time namespaces and wrong wall clocks.

use super::machine::{boot_identity, without_offset};
use super::*;
use system::boot::offset_in;

const YEAR_MS: u64 = 365 * 86_400_000;

#[derive(Clone, Copy)]
struct ManualClock {
    boot_clock: u64,
    boot_id: u128,
    unix_ms: u64,
    earliest: u64,
}

impl Clock for ManualClock {
    fn boot_clock(&self) -> Span {
        Span(self.boot_clock)
    }

    fn boot_id(&self) -> u128 {
        self.boot_id
    }

    fn unix_micros(&self) -> u64 {
        self.unix_ms * 1000
    }

    fn earliest_unix_micros(&self) -> u64 {
        self.earliest
    }
}

const WALL_MS: u64 = 1_800_000_000_000;

/// The last batch was sealed when the boot clock of boot 7 was at 50,000.
const SEALED: ClockReading = ClockReading { boot: 7, boot_clock: Span(50_000), unix_ms: WALL_MS };

/// Both clocks `ms` after the last batch.
fn later(ms: u64) -> ManualClock {
    ManualClock { boot_clock: 50_000 + ms, boot_id: 7, unix_ms: WALL_MS + ms, earliest: 0 }
}

/// Opens at once after reading the log, whose last stamp is 2000.
fn opened_at(clock: ManualClock) -> Time {
    Stamps::after(Time(2000), Some(SEALED), clock.boot_clock(), &clock).opened_at()
}

#[test]
fn downtime_counts_within_the_same_boot() {
    let stamps = Stamps::after(Time(2000), Some(SEALED), Span(60_000), &later(10_000));
    assert_eq!(stamps.opened_at(), Time(12_000));
    assert_eq!(stamps.now(&later(10_250)), Time(12_250));
}

#[test]
fn time_continues_from_the_last_stamp_after_a_reboot() {
    let rebooted = |boot_clock| ManualClock { boot_clock, boot_id: 8, ..later(10_000) };
    assert_eq!(opened_at(rebooted(300)), Time(2000));
    // A boot clock further ahead than before the reboot proves nothing.
    assert_eq!(opened_at(rebooted(900_000)), Time(2000));
}

/// A clone of a virtual machine has the boot id of its original. Its boot clock was ahead, and leases ended that
/// their holders had just been granted.
#[test]
fn a_clone_with_the_same_boot_id_is_another_boot() {
    let (boot, original, clone) =
        (b"boot".as_slice(), vec![b"machine-1".to_vec()], vec![b"machine-2".to_vec()]);
    assert_eq!(boot_identity(boot, &original), boot_identity(boot, &original));
    assert_ne!(boot_identity(boot, &original), boot_identity(boot, &clone));
    assert_ne!(boot_identity(b"boot2", &original), boot_identity(boot, &original));
    // The end of one id and the beginning of the next are told apart.
    let split = |a: &str, b: &str| boot_identity(boot, &[a.as_bytes().to_vec(), b.as_bytes().to_vec()]);
    assert_ne!(split("ab", "c"), split("a", "bc"));
    let identity = |machine: &[Vec<u8>]| boot_identity(boot, machine);
    let sealed = ClockReading { boot: identity(&original), ..SEALED };
    let on_clone = ManualClock { boot_id: identity(&clone), ..later(900_000) };
    let stamps = Stamps::after(Time(2000), Some(sealed), on_clone.boot_clock(), &on_clone);
    assert_eq!(stamps.opened_at(), Time(2000));
}

/// A container was restarted in a time namespace whose boot clock is 9000 s ahead: every lease ended at once.
#[test]
fn the_offset_of_a_time_namespace_is_taken_out_of_the_boot_clock() {
    let offset = offset_in("monotonic           0         0\nboottime         9000       500\n");
    assert_eq!(offset, Some(9_000_000_000_500));
    assert_eq!(without_offset(9_050_000_000_500, 9_000_000_000_500), Span(50_000));
    assert_eq!(offset_in("monotonic 0 0\nboottime -5 0\n"), Some(-5_000_000_000));
    assert_eq!(without_offset(1_000_000_000, -5_000_000_000), Span(6000));
    assert_eq!(offset_in("monotonic 0 0\n"), None);
}

/// Even if the boot clock jumps within one boot, leases do not end before the wall clock agrees.
#[test]
fn the_boot_clock_alone_ends_nothing_early() {
    assert_eq!(opened_at(ManualClock { unix_ms: WALL_MS + 1000, ..later(9_000_000) }), Time(3000));
}

#[test]
fn a_wall_clock_that_jumped_ends_nothing_early() {
    assert_eq!(
        opened_at(ManualClock { unix_ms: WALL_MS + YEAR_MS, ..later(10_000) }),
        Time(12_000),
        "forwards"
    );
    assert_eq!(
        opened_at(ManualClock { unix_ms: WALL_MS - YEAR_MS, ..later(10_000) }),
        Time(2000),
        "backwards"
    );
    let rebooted = ManualClock { boot_id: 8, unix_ms: WALL_MS + YEAR_MS, ..later(10_000) };
    assert_eq!(opened_at(rebooted), Time(2000), "forwards in a reboot");
}

/// Recovery took a minute, or a stand-by watched the log for a minute: that minute has passed on any machine.
#[test]
fn the_time_since_the_last_record_was_read_counts_on_any_machine() {
    let elsewhere = ManualClock { boot_id: 8, boot_clock: 90_000, ..later(0) };
    let watched = |read_at| Stamps::after(Time(2000), Some(SEALED), Span(read_at), &elsewhere).opened_at();
    assert_eq!(watched(30_000), Time(62_000));
    assert_eq!(watched(90_000), Time(2000), "nothing was watched");
    assert_eq!(watched(95_000), Time(2000), "never negative");
    assert_eq!(Stamps::after(Time(2000), None, Span(30_000), &elsewhere).opened_at(), Time(62_000));
    // The largest counts, not the sum.
    let stamps = Stamps::after(Time(2000), Some(SEALED), Span(59_000), &later(10_000));
    assert_eq!(stamps.opened_at(), Time(12_000));
}

#[test]
fn time_never_goes_back_even_if_the_clock_does() {
    let clock = ManualClock { boot_clock: 10, ..later(10_000) };
    assert_eq!(opened_at(clock), Time(2000));
    let stamps = Stamps::after(Time(2000), Some(SEALED), Span(60_000), &later(10_000));
    assert_eq!(stamps.now(&ManualClock { boot_clock: 0, ..later(0) }), Time(12_000));
    assert_eq!(
        Stamps::after(Time(0), None, Span(5), &ManualClock { boot_clock: 5, ..later(0) }).opened_at(),
        Time(0)
    );
}

#[test]
fn the_wall_clock_affects_no_stamp_of_a_tenure() {
    let stamps = Stamps::after(Time(2000), Some(SEALED), Span(60_000), &later(10_000));
    assert_eq!(stamps.now(&ManualClock { unix_ms: WALL_MS + YEAR_MS, ..later(10_000) }), Time(12_000));
}

/// A batch was torn, and its LSNs had been returned to no client; the next tenure used them again for other leases, while
/// copies of the torn batch could still turn up.
#[test]
fn an_opening_skips_every_lsn_that_a_torn_batch_may_have_used() {
    let clock = later(0);
    let now = WALL_MS * 1000;
    assert_eq!(opening_lsn(Lsn(9), &clock), Ok(Lsn(now)));
    assert_eq!(opening_lsn(Lsn(now), &clock), Ok(Lsn(now + (1 << 20) + 1)));
    assert_eq!(opening_lsn(Lsn(now - 5), &clock), Ok(Lsn(now - 5 + (1 << 20) + 1)));
}

#[test]
fn a_wall_clock_that_is_certainly_wrong_prevents_opening() {
    let right = ManualClock { earliest: WALL_MS * 1000, ..later(0) };
    assert!(opening_lsn(Lsn(9), &right).is_ok());
    for unix_ms in [0, WALL_MS - 1, (1 << 52) / 1000 + 1] {
        let wrong = ManualClock { unix_ms, ..right };
        assert_eq!(opening_lsn(Lsn(9), &wrong), Err(WrongClock { unix_micros: unix_ms * 1000 }));
    }
}

#[test]
fn this_machine_has_clocks_and_is_past_the_day_of_the_build() {
    let clock = MachineClock::new().expect("Linux");
    assert!(clock.boot_clock() > Span(0) && clock.boot_id() != 0);
    assert_eq!(clock.boot_id(), MachineClock::new().expect("Linux").boot_id());
    let built = clock.earliest_unix_micros();
    assert!(built.is_multiple_of(86_400_000_000), "a day: {built}");
    assert!(opening_lsn(Lsn(0), &clock).is_ok());
}
