//! The kernel's units: log positions, kernel time, epochs, tokens, ages.
//!
//! Each is a newtype, so that a deadline cannot be passed where a duration is expected. LSNs and times are
//! bounded far below `u64::MAX`, and arithmetic on times saturates. Epochs and versions count records, of
//! which there are fewer than 2^53.

use core::fmt;

/// A position in the log of one shard. Strictly increasing, with gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The highest LSN of a record: every LSN is exact in an IEEE double, and so in JSON.
    pub const MAX: Lsn = Lsn((1 << 53) - 1);
    /// The highest LSN of an `open` record; the positions above it are reserved for that tenure's records.
    pub const MAX_OPEN: Lsn = Lsn(1 << 52);
}

/// Kernel time: milliseconds elapsed since the log began, as stamped by its writer. Not a wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The latest stamp a record may carry.
    pub const MAX: Time = Time((1 << 53) - 1);
    /// Never: the end of a hold that only an operator ends.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time `span` after this one; saturates.
    #[must_use]
    pub fn after(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }

    /// The span from this time until `later`; zero if `later` has passed.
    pub fn until(self, later: Time) -> Span {
        Span(later.0.saturating_sub(self.0))
    }
}

/// A duration of kernel time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

/// Counts the changes of authority within one lease.
///
/// It starts at 1 and increases by one when authority ends and by one when a rebind restores it. It is
/// therefore odd exactly while the holder has authority, and the credential issued last always has an odd
/// epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of a lease just granted.
    pub const FIRST: Epoch = Epoch(1);

    /// Whether the holder has authority in this epoch, ignoring the deadline.
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

/// A fencing token: the LSN of the grant or rebind that gave the current authority. It only increases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl From<Lsn> for Token {
    fn from(lsn: Lsn) -> Token {
        Token(lsn.0)
    }
}

/// The number of one of a store's ordered logs and of the kernel that applies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(pub u32);

/// A lease's public name: its shard and the LSN of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The shard that granted it.
    pub shard: Shard,
    /// The LSN of its grant in that shard's log.
    pub lsn: Lsn,
}

impl LeaseId {
    /// `shard << 64 | lsn`, the number that the public id spells in hexadecimal.
    pub fn to_u128(self) -> u128 {
        u128::from(self.shard.0) << 64 | u128::from(self.lsn.0)
    }

    /// Parses `L-` followed by 32 lower-case hexadecimal digits.
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
        // Every grant formats two of these, and `{:032x}` takes several times as long.
        let mut text = *b"L-00000000000000000000000000000000";
        let mut number = self.to_u128();
        for digit in text[2..].iter_mut().rev() {
            *digit = b"0123456789abcdef"[(number & 0xf) as usize];
            number >>= 4;
        }
        f.write_str(core::str::from_utf8(&text).expect("hexadecimal digits are UTF-8"))
    }
}

/// The age of an attempt or a lease, for wait-die: smaller is older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Age {
    /// When the attempt was first made, in kernel time.
    pub at: Time,
    /// Random bits that break ties between two attempts of the same millisecond.
    pub tie: u64,
}

impl Age {
    /// Younger than every other age: any attempt may wait for a lease of this age.
    pub const YOUNGEST: Age = Age { at: Time::NEVER, tie: u64::MAX };
    /// An attempt older than this counts as new.
    pub const ATTEMPT_MAX: Span = Span(3_600_000);

    /// Whether an attempt's own age is used. One that is too old, or in the future, counts as new: its age
    /// is then its time of arrival.
    pub fn counts_at(self, now: Time) -> bool {
        self.at <= now && self.at.until(now) <= Age::ATTEMPT_MAX
    }
}

/// The number of commits to one key. Never reused, not even after the key was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    #[must_use]
    pub(crate) fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

/// A hash of a document's content. The kernel only compares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Etag(pub [u8; 32]);

/// Where a document's bytes are stored. Opaque to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The shard that wrote the bytes.
    pub shard: Shard,
    /// The term that wrote the blob; 0 if the bytes are in the log.
    pub term: u64,
    /// The number of the blob in its term, or the LSN of the record with the bytes.
    pub number: u64,
    /// Random bits drawn for the blob; 0 if the bytes are in the log.
    pub random: u64,
}

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
        assert_eq!(
            LeaseId::parse("L-00000000000000030000000000000ABC"),
            None,
            "upper-case digits are not canonical"
        );
    }

    #[test]
    fn numbers_that_no_kernel_issues_are_rejected_as_lease_ids() {
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
