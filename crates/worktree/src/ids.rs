//! Ids, numbers and hashes, validated when they are created.
//!
//! Every text that becomes part of a path is parsed here first, so that no id can name anything outside its
//! directory. All other modules trust these types.

use std::fmt;
use std::str::FromStr;
use system::hex;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A source of random bytes.
pub trait Entropy: Send + Sync {
    /// Fills `bytes` with random ones.
    fn fill(&self, bytes: &mut [u8]);
}

/// The kernel's random number generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        system::random::fill(bytes);
    }
}

/// `len` random bytes in hexadecimal.
pub(crate) fn random_hex(entropy: &dyn Entropy, len: usize) -> String {
    let mut bytes = vec![0; len];
    entropy.fill(&mut bytes);
    hex::encode(&bytes)
}

/// A text id that is safe as one component of a path.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        text_id!($(#[$doc])* $name, |text| safe_component($what, text));
    };
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                let check: fn(&str) -> Result<()> = $check;
                check(text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// The name of a worktree, unique in its repository.
    WorktreeId, "worktree id"
);
text_id!(
    /// One holder's tenure of one lock, from acquire to release.
    SessionId, "session id"
);
text_id!(
    /// One acquire or steal of a lock.
    LockId, "lock id"
);
text_id!(
    /// One snapshot, `<time>-<random>`; sorts by the time at which it was begun. Parsed strictly, so that nothing
    /// else in the directory of snapshots is taken for one.
    SnapshotId, snapshot_id_shape
);
text_id!(
    /// One restore.
    RestoreId, "restore id"
);
text_id!(
    /// One repository; a copy of its directory has the same id.
    RepoId, "repository id"
);

impl SessionId {
    pub(crate) fn random(entropy: &dyn Entropy) -> Self {
        Self(format!("s-{}", random_hex(entropy, 12)))
    }
}

impl LockId {
    pub(crate) fn random(entropy: &dyn Entropy) -> Self {
        Self(format!("l-{}", random_hex(entropy, 12)))
    }
}

impl RestoreId {
    pub(crate) fn random(entropy: &dyn Entropy) -> Self {
        Self(format!("r-{}", random_hex(entropy, 12)))
    }
}

impl RepoId {
    pub(crate) fn random(entropy: &dyn Entropy) -> Self {
        Self(random_hex(entropy, 16))
    }
}

impl SnapshotId {
    /// `began` is an RFC 3339 time; the random part keeps two hosts apart.
    pub(crate) fn new(began: &str, entropy: &dyn Entropy) -> Self {
        Self(format!("{}-{}", id_stamp(began), random_hex(entropy, 4)))
    }

    /// The smallest id of a snapshot begun at an RFC 3339 time.
    pub(crate) fn earliest_at(began: &str) -> Self {
        Self(format!("{}-00000000", id_stamp(began)))
    }
}

/// An RFC 3339 time without punctuation, in lower case.
fn id_stamp(time: &str) -> String {
    let stamp: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    stamp.to_ascii_lowercase()
}

fn safe_component(what: &str, text: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && text.len() <= 64 && text.chars().all(allowed) && !has_reserved_end(text) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a {what} is 1 to 64 of a-z A-Z 0-9 . _ -, begins with a letter or digit, and does not end in .d or \
         .lock: got={text:?}"
    )))
}

/// `20261116t002902483z-ef0d6e14`: the time of an RFC 3339 text, and eight hexadecimal digits.
fn snapshot_id_shape(text: &str) -> Result<()> {
    let shape = b"ddddddddtdddddddddz-hhhhhhhh";
    let fits = |(byte, shape): (u8, &u8)| match shape {
        b'd' => byte.is_ascii_digit(),
        b'h' => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        literal => byte == *literal,
    };
    if text.len() == shape.len() && text.bytes().zip(shape).all(fits) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a snapshot id is a time and eight hexadecimal digits, as in 20261116t002902483z-ef0d6e14: got={text:?}"
    )))
}

/// `<id>.d` and `<id>.lock` stand side by side in `.jvs/locks`, so an id must not end like either.
fn has_reserved_end(text: &str) -> bool {
    [".d", ".lock"].iter().any(|end| text.ends_with(end))
}

/// A name for a snapshot: it begins with a letter, so it is not the beginning of a snapshot id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TagName(String);

impl FromStr for TagName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        safe_component("tag", text)?;
        if text == "head" || !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(Error::invalid(format!(
                "a tag begins with a letter and is not `head`, so that it is never taken for a snapshot id: \
                 got={text:?}"
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for TagName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<TagName> for String {
    fn from(tag: TagName) -> Self {
        tag.0
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of an entry in a worktree's sequence: dense, from 1, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryNumber(pub u64);

impl EntryNumber {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("a sequence cannot outgrow u64"))
    }
}

impl fmt::Display for EntryNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Consecutive entry numbers, both ends included. Written as `[first, last]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct NumberRange {
    /// The smallest number.
    pub first: u64,
    /// The largest number.
    pub last: u64,
}

impl NumberRange {
    /// Whether all numbers of `other` are in this range.
    pub fn contains(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    /// Whether `n` is in this range.
    pub fn has(self, n: u64) -> bool {
        self.first <= n && n <= self.last
    }

    /// Sorted, disjoint ranges with the same numbers. Over `limit` ranges, those with the fewest numbers between
    /// them are merged, so the result may have more numbers.
    pub fn merged(mut ranges: Vec<Self>, limit: usize) -> Vec<Self> {
        ranges.sort_unstable();
        let mut merged: Vec<Self> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.first <= last.last.saturating_add(1) => {
                    last.last = last.last.max(range.last);
                }
                _ => merged.push(range),
            }
        }
        while merged.len() > limit.max(1) {
            let gap = |at: &usize| merged[at + 1].first - merged[*at].last;
            let nearest = (0..merged.len() - 1).min_by_key(gap).expect("there are two at least");
            merged[nearest].last = merged[nearest + 1].last;
            merged.remove(nearest + 1);
        }
        merged
    }
}

impl From<(u64, u64)> for NumberRange {
    fn from((first, last): (u64, u64)) -> Self {
        Self { first, last }
    }
}

impl From<NumberRange> for (u64, u64) {
    fn from(range: NumberRange) -> Self {
        (range.first, range.last)
    }
}

impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}..{}", self.first, self.last) }
    }
}

/// The number of the acquire or steal entry that began a tenure. A later tenure has a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

impl FencingToken {
    /// The entry that this token is the number of.
    pub fn entry(self) -> EntryNumber {
        EntryNumber(self.0)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A BLAKE3 hash, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The predecessor hash of the first entry of a sequence.
    pub const NONE: Self = Self([0; 32]);

    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = blake3::Hash::from_hex(text)
            .map_err(|_| Error::invalid(format!("a hash is 64 hexadecimal digits: got={text:?}")))?;
        Ok(parsed.into())
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The holder's secret. Possession proves the holder; other processes see only [`Nonce::digest`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(String);

impl Nonce {
    pub(crate) fn random(entropy: &dyn Entropy) -> Self {
        Self(random_hex(entropy, 32))
    }

    /// The public hash of the nonce.
    pub fn digest(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_could_leave_their_directory_are_refused() {
        for text in ["", ".", "..", "a/b", "../x", "-x", "a b", "a\n", "x.d", "x.lock", &"a".repeat(65)] {
            assert!(text.parse::<WorktreeId>().is_err(), "accepted {text:?}");
        }
        for text in ["main", "build-7", "a.b_c", &"a".repeat(64)] {
            assert!(text.parse::<WorktreeId>().is_ok(), "refused {text:?}");
        }
    }

    #[test]
    fn merged_ranges_lose_no_number_and_keep_to_the_limit() {
        let range = |first, last| NumberRange { first, last };
        let ranges = vec![range(9, 9), range(1, 2), range(3, 4), range(20, 30), range(4, 5)];
        assert_eq!(NumberRange::merged(ranges.clone(), 8), [range(1, 5), range(9, 9), range(20, 30)]);
        assert_eq!(NumberRange::merged(ranges, 2), [range(1, 9), range(20, 30)]);
        assert!(NumberRange::merged(Vec::new(), 0).is_empty());
    }

    #[test]
    fn a_digest_survives_its_text_form() {
        let digest = Digest::of(b"bytes");
        assert_eq!(digest.to_string().parse::<Digest>().expect("its own text"), digest);
        assert!("zz".parse::<Digest>().is_err());
    }

    #[test]
    fn a_nonce_never_shows_in_debug_output() {
        let nonce = Nonce::random(&SystemEntropy);
        assert_eq!(format!("{nonce:?}"), "Nonce(secret)");
    }
}
