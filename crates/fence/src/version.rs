//! Content and token in one byte string, so that both are replaced together.
//!
//! A header line of 98 bytes, with its newline, then the content verbatim:
//!
//! ```text
//! lockd-fenced 1 token=00001763200000000042 revision=00000000000000000007 content=1 crc32c=bbaa3e68
//! ```
//!
//! `content=0` means that there is no content: only claims so far, or it was removed. The checksum covers the header up
//! to it, and the content.
//!
//! **Invariant.** The revision grows by one with each version, so no two versions of one resource are the same bytes.
//!
//! **What would break it.** Stores that identify a version by a hash of its bytes, as S3 does with an `ETag`. If the token
//! were stored separately: A reads content *x* under token 5, and is paused; B writes *x* under token 6, and the hash
//! stays the same; A's put, conditional on that hash, succeeds. Without the revision the same happens to a delayed put of
//! A if A itself writes *x* again.

use std::fmt::Write as _;

use crate::error::Error;
use crate::token::Token;

/// The longest content, in bytes. Store longer content under a name of its own, and fence that name.
pub const CONTENT_MAX: usize = 64 << 20;
/// The length of the header line, in bytes.
pub(crate) const HEADER: usize = 98;
/// The longest encoded version, in bytes.
pub(crate) const VERSION_MAX: usize = HEADER + CONTENT_MAX;

/// The state of a fenced resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The token of the last write or claim.
    pub token: Token,
    /// The number of writes and claims so far, this one included.
    pub revision: u64,
    /// `None` before the first write, or after a removal.
    pub content: Option<Vec<u8>>,
}

/// A change to the content.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    Write(&'a [u8]),
    Remove,
    /// The content stays, under the new token.
    Claim,
}

impl Version {
    /// The next version, if the token allows one. The caller makes this check and the write one atomic step.
    pub(crate) fn next(current: Option<Version>, token: Token, change: Change<'_>) -> Result<Version, Error> {
        if let Some(newer) = current.as_ref().filter(|current| current.token > token) {
            return Err(Error::Stale { current: Some(newer.token) });
        }
        let revision = current.as_ref().map_or(0, |current| current.revision);
        let revision =
            revision.checked_add(1).ok_or_else(|| invalid("the revision has reached its maximum"))?;
        let content = match change {
            Change::Write(content) => Some(bounded(content)?.to_vec()),
            Change::Remove => None,
            Change::Claim => current.and_then(|current| current.content),
        };
        Ok(Version { token, revision, content })
    }

    /// Encodes the version.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let content = self.content.as_deref();
        let mut bytes = header(self.token, self.revision, content).into_bytes();
        bytes.extend_from_slice(content.unwrap_or_default());
        bytes
    }

    /// Decodes a version. Anything that [`Version::to_bytes`] did not write is refused: treating it as content without a
    /// token would let any writer replace it.
    pub(crate) fn parse(mut bytes: Vec<u8>) -> Result<Version, Error> {
        let (token, revision, present) = fields(&bytes).ok_or_else(|| {
            invalid("the content does not begin with a fencing header; start with an unused name")
        })?;
        let content = bytes.split_off(HEADER);
        let content = (present || !content.is_empty()).then_some(content);
        if header(token, revision, content.as_deref()).as_bytes() != bytes {
            return Err(invalid("wrong checksum: the content was damaged, or written by another program"));
        }
        Ok(Version { token, revision, content })
    }
}

fn bounded(content: &[u8]) -> Result<&[u8], Error> {
    match content.len() {
        0..=CONTENT_MAX => Ok(content),
        length => Err(Error::Invalid(format!("the content is too long: bytes={length} max={CONTENT_MAX}"))),
    }
}

fn header(token: Token, revision: u64, content: Option<&[u8]>) -> String {
    let present = u8::from(content.is_some());
    let mut line = format!("lockd-fenced 1 token={:020} revision={revision:020} content={present}", token.0);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(line.as_bytes()), content.unwrap_or_default());
    writeln!(line, " crc32c={checksum:08x}").expect("writing to a string");
    line
}

/// Token, revision, and whether there is content. Does not check the checksum.
fn fields(bytes: &[u8]) -> Option<(Token, u64, bool)> {
    let line = std::str::from_utf8(bytes.get(..HEADER)?).ok()?;
    let mut words = line.strip_prefix("lockd-fenced 1 token=")?.split(' ');
    let token = words.next()?.parse().ok()?;
    let revision = words.next()?.strip_prefix("revision=")?.parse().ok()?;
    let present = words.next()? == "content=1";
    Some((token, revision, present))
}

fn invalid(what: &str) -> Error {
    Error::Invalid(what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(token: u64, revision: u64, content: Option<&[u8]>) -> Version {
        Version { token: Token(token), revision, content: content.map(<[u8]>::to_vec) }
    }

    #[test]
    fn golden_bytes_are_read_and_written() {
        let golden = b"lockd-fenced 1 token=00001763200000000042 revision=00000000000000000007 content=1 \
            crc32c=bbaa3e68\n{\"cursor\":41}";
        let written = version(1_763_200_000_000_042, 7, Some(br#"{"cursor":41}"#));
        assert_eq!(String::from_utf8_lossy(&written.to_bytes()), String::from_utf8_lossy(golden));
        assert_eq!(Version::parse(golden.to_vec()), Ok(written));
        let none = b"lockd-fenced 1 token=00000000000000000001 revision=00000000000000000001 content=0 \
            crc32c=f5a9f82e\n";
        assert_eq!(String::from_utf8_lossy(&version(1, 1, None).to_bytes()), String::from_utf8_lossy(none));
        assert_eq!(Version::parse(none.to_vec()), Ok(version(1, 1, None)));
    }

    #[test]
    fn extreme_numbers_round_trip() {
        for content in [None, Some(b"".as_slice()), Some(b"\n"), Some(b"\0\xff")] {
            for number in [0, 1, u64::MAX] {
                let written = version(number, number, content);
                assert_eq!(Version::parse(written.to_bytes()), Ok(written));
            }
        }
    }

    #[test]
    fn a_changed_bit_a_missing_end_and_a_longer_one_are_refused() {
        for content in [None, Some(b"content".as_slice())] {
            let bytes = version(5, 3, content).to_bytes();
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(Version::parse(other).is_err(), "bit {bit} of {content:?}");
            }
            for length in 0..bytes.len() {
                assert!(Version::parse(bytes[..length].to_vec()).is_err(), "{length} bytes of {content:?}");
            }
            assert!(Version::parse([&bytes[..], b"x"].concat()).is_err(), "longer than {content:?}");
        }
    }

    #[test]
    fn an_older_token_is_stale_and_an_equal_one_is_not() {
        let next = |current: u64, token: u64| {
            Version::next(Some(version(current, 7, Some(b"old"))), Token(token), Change::Write(b"new"))
        };
        assert_eq!(next(5, 4), Err(Error::Stale { current: Some(Token(5)) }));
        assert_eq!(next(5, 5), Ok(version(5, 8, Some(b"new"))));
        assert_eq!(next(5, 6), Ok(version(6, 8, Some(b"new"))));
    }

    #[test]
    fn a_claim_keeps_the_content_and_content_has_a_bound() {
        let old = || Some(version(5, 7, Some(b"old")));
        assert_eq!(Version::next(old(), Token(6), Change::Claim), Ok(version(6, 8, Some(b"old"))));
        assert_eq!(Version::next(None, Token(6), Change::Claim), Ok(version(6, 1, None)));
        assert_eq!(Version::next(old(), Token(6), Change::Remove), Ok(version(6, 8, None)));
        let long = vec![0; CONTENT_MAX + 1];
        assert!(Version::next(None, Token(6), Change::Write(&long[1..])).is_ok());
        assert!(matches!(Version::next(None, Token(6), Change::Write(&long)), Err(Error::Invalid(_))));
        let last = version(5, u64::MAX, None);
        assert!(matches!(Version::next(Some(last), Token(6), Change::Claim), Err(Error::Invalid(_))));
    }
}
