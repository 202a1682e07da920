//! Content and token as one run of bytes, so that whatever replaces one replaces both.
//!
//! One line, 98 bytes with its end, and then the content as it is:
//!
//! ```text
//! lockd-fenced 1 token=00001763200000000042 revision=00000000000000000007 content=1 crc32c=bbaa3e68
//! ```
//!
//! `content=0` says that there is none: nothing was written yet under a claim, or it was removed. The checksum is of
//! the line before it and the content.
//!
//! **Invariant.** The revision grows by one with each version, so no two versions of one resource are the same bytes.
//!
//! **What would break it.** Stores that name a version by a hash of its bytes, as S3 does with an `ETag`. Were the token
//! kept beside the bytes: A reads content *x* under token 5, and is paused; B writes *x* under token 6, and the hash
//! stays; A's put on the condition of that hash goes through. Without the revision the same happens to a put of A that
//! is held up while A itself comes back to *x*.

use std::fmt::Write as _;

use crate::error::Error;
use crate::token::Token;

/// The longest content. What is longer goes under a name of its own, and that name is what is fenced.
pub const CONTENT_MAX: usize = 64 << 20;
/// The length of the line before the content.
pub(crate) const HEADER: usize = 98;
/// The longest run of bytes that is a version.
pub(crate) const VERSION_MAX: usize = HEADER + CONTENT_MAX;

/// What a resource holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Of the last write or claim.
    pub token: Token,
    /// How many writes and claims there were before it, and one.
    pub revision: u64,
    /// `None` if nothing was written yet, or it was removed.
    pub content: Option<Vec<u8>>,
}

/// What becomes of the content.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    Write(&'a [u8]),
    Remove,
    /// It stays, under the new token.
    Claim,
}

impl Version {
    /// The version that comes next, if the token allows one: the check, for whoever makes it one step with the write.
    pub(crate) fn next(current: Option<Version>, token: Token, change: Change<'_>) -> Result<Version, Error> {
        if let Some(newer) = current.as_ref().filter(|current| current.token > token) {
            return Err(Error::Stale { current: Some(newer.token) });
        }
        let revision = current.as_ref().map_or(0, |current| current.revision);
        let revision = revision.checked_add(1).ok_or_else(|| invalid("there is no revision after this"))?;
        let content = match change {
            Change::Write(content) => Some(bounded(content)?.to_vec()),
            Change::Remove => None,
            Change::Claim => current.and_then(|current| current.content),
        };
        Ok(Version { token, revision, content })
    }

    /// As it is stored.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let content = self.content.as_deref();
        let mut bytes = header(self.token, self.revision, content).into_bytes();
        bytes.extend_from_slice(content.unwrap_or_default());
        bytes
    }

    /// From what is stored. Whatever was not written whole by [`Version::to_bytes`] is refused: to take it for
    /// something without a token would let anybody write.
    pub(crate) fn parse(mut bytes: Vec<u8>) -> Result<Version, Error> {
        let (token, revision, present) = fields(&bytes).ok_or_else(|| {
            invalid("it does not begin as fenced content does; begin with a name that is not in use")
        })?;
        let content = bytes.split_off(HEADER);
        let content = (present || !content.is_empty()).then_some(content);
        if header(token, revision, content.as_deref()).as_bytes() != bytes {
            return Err(invalid("its checksum is wrong: it was damaged, or written by something else"));
        }
        Ok(Version { token, revision, content })
    }
}

fn bounded(content: &[u8]) -> Result<&[u8], Error> {
    match content.len() {
        0..=CONTENT_MAX => Ok(content),
        length => Err(Error::Invalid(format!("content is too long: bytes={length} most={CONTENT_MAX}"))),
    }
}

fn header(token: Token, revision: u64, content: Option<&[u8]>) -> String {
    let present = u8::from(content.is_some());
    let mut line = format!("lockd-fenced 1 token={:020} revision={revision:020} content={present}", token.0);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(line.as_bytes()), content.unwrap_or_default());
    writeln!(line, " crc32c={checksum:08x}").expect("writing to a string");
    line
}

/// Token, revision, and whether there is content, if the line can be read. The checksum is still to be compared.
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
    fn these_bytes_read_for_ever() {
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
    fn the_ends_of_every_number_go_round() {
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
