//! The kernel's units: log positions, kernel time, epochs, tokens, ages.
//!
//! Each is a type of its own, so that a deadline cannot be passed where a duration is meant. LSNs and
//! times are bounded far below `u64::MAX`, and arithmetic on times saturates; epochs and versions only
//! ever count records, of which there are fewer than 2^53.

use core::fmt;

/// A position in the log of one shard. Strictly increasing, with gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The highest position a record may have: every LSN is exact in an IEEE double, and so in JSON.
    pub const MAX: Lsn = Lsn((1 << 53) - 1);
    /// The highest position at which a log may be opened; the rest is room to write in.
    pub const MAX_OPEN: Lsn = Lsn(1 << 52);
}

/// Kernel time: elapsed milliseconds since the log began, as stamped by its writer. No wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The latest stamp a record may carry.
    pub const MAX: Time = Time((1 << 53) - 1);
    /// A moment that never comes: the end of a hold that only an operator ends.
    pub const NEVER: Time = Time(u64::MAX);

    /// This moment and `span` after it.
    #[must_use]
    pub fn after(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }

    /// How long from this moment until `later`; zero when that has passed.
    pub fn until(self, later: Time) -> Span {
        Span(later.0.saturating_sub(self.0))
    }
}

/// A length of kernel time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

/// Counts the changes of authority inside one lease.
///
/// It starts at 1 and rises by one when authority ends and by one when a rebind gives it back. So it
/// is odd exactly while the holder has authority, and the credential issued last is always odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of a lease just granted.
    pub const FIRST: Epoch = Epoch(1);

    /// Does the holder have authority in this epoch (leaving the deadline aside)?
    pub fn is_authority(self) -> bool {
        self.0 % 2 == 1
    }

    /// The epoch of the credential that was issued last.
    #[must_use]
    pub fn issued(self) -> Epoch {
        if self.is_authority() { self } else { Epoch(self.0.saturating_sub(1)) }
    }

    #[must_use]
    pub(crate) fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// A fencing token: the LSN of the grant or rebind that gave the present authority. It only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl From<Lsn> for Token {
    fn from(lsn: Lsn) -> Token {
        Token(lsn.0)
    }
}

/// One of a store's ordered logs, and the kernel over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u32);

/// A lease's public name: its shard and the LSN of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The shard that granted it.
    pub shard: Shard,
    /// The position of its grant in that shard's log.
    pub lsn: Lsn,
}

impl LeaseId {
    /// `shard << 64 | lsn`, the number that the public id spells in hexadecimal.
    pub fn to_u128(self) -> u128 {
        u128::from(self.shard.0) << 64 | u128::from(self.lsn.0)
    }

    /// The id that is spelled `L-` and 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<LeaseId> {
        let digits = text.strip_prefix("L-").filter(|digits| digits.len() == 32)?;
        let plain = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        LeaseId::from_u128(u128::from_str_radix(digits, 16).ok().filter(|_| plain)?)
    }

    /// The inverse of [`LeaseId::to_u128`]; `None` for a number that no kernel issues.
    pub fn from_u128(number: u128) -> Option<LeaseId> {
        let shard = Shard(u32::try_from(number >> 64).ok()?);
        let lsn = Lsn(u64::try_from(number & u128::from(u64::MAX)).ok()?);
        (lsn <= Lsn::MAX).then_some(LeaseId { shard, lsn })
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every grant shows two of these: the general way to write a number takes several times as long.
        let mut text = *b"L-00000000000000000000000000000000";
        let mut number = self.to_u128();
        for digit in text[2..].iter_mut().rev() {
            *digit = b"0123456789abcdef"[(number & 0xf) as usize];
            number >>= 4;
        }
        f.write_str(core::str::from_utf8(&text).expect("digits are text"))
    }
}

/// How old an attempt or a lease is, for wait-die: the smaller, the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Age {
    /// When the attempt first came, in kernel time.
    pub at: Time,
    /// Random bits that tell apart two attempts of one millisecond.
    pub tie: u64,
}

impl Age {
    /// Younger than everything: whoever meets it may wait.
    pub const YOUNGEST: Age = Age { at: Time::NEVER, tie: u64::MAX };
    /// An attempt older than this counts as new.
    pub const ATTEMPT_MAX: Span = Span(3_600_000);

    /// Does an attempt of this age count as such? One that is too old, or of a time that has not come,
    /// counts as new: it is as old as its arrival.
    pub fn counts_at(self, now: Time) -> bool {
        self.at <= now && self.at.until(now) <= Age::ATTEMPT_MAX
    }
}

/// Counts the commits to one key. Never reused, not even after the key was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    #[must_use]
    pub(crate) fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

/// A hash of a document's content. The kernel compares it and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Etag(pub [u8; 32]);

/// Where a document's bytes are. The kernel keeps it and never looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location(pub u128);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn lease_id_is_shard_and_lsn_in_one_number() {
        let id = LeaseId { shard: Shard(3), lsn: Lsn(0xabc) };
        assert_eq!(id.to_string(), "L-00000000000000030000000000000abc");
        assert_eq!(LeaseId::from_u128(id.to_u128()), Some(id));
        assert_eq!(LeaseId::parse("L-00000000000000030000000000000abc"), Some(id));
        for bad in
            ["", "L-", "L-abc", "l-00000000000000030000000000000abc", "L-0000000000000003000000000000+abc"]
        {
            assert_eq!(LeaseId::parse(bad), None, "{bad}");
        }
        assert_eq!(LeaseId::parse("L-00000000000000030000000000000ABC"), None, "there is one spelling");
    }

    #[test]
    fn numbers_that_no_kernel_issues_are_no_lease_ids() {
        assert_eq!(LeaseId::from_u128(u128::MAX), None);
        assert_eq!(LeaseId::from_u128(u128::from(Lsn::MAX.0) + 1), None);
    }

    #[test]
    fn time_saturates_instead_of_wrapping() {
        assert_eq!(Time(5).after(Span(u64::MAX)), Time::NEVER);
        assert_eq!(Time(5).until(Time(3)), Span(0));
    }

    #[test]
    fn the_last_issued_epoch_is_the_one_before_authority_ended() {
        assert_eq!(Epoch(1).issued(), Epoch(1));
        assert_eq!(Epoch(2).issued(), Epoch(1));
        assert_eq!(Epoch(3).issued(), Epoch(3));
    }
}
