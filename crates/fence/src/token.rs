//! What is compared.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use crate::error::Error;

/// A fencing token, as lockd gave it with a lease. It only grows for each resource, and is compared with tokens of
/// the same resource only: what is guarded here has one resource of lockd to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// From what `LOCKD_CLIENT_FENCING_TOKEN` says.
impl FromStr for Token {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Token, ParseIntError> {
        text.parse().map(Token)
    }
}

/// As a `BIGINT`. Tokens of lockd stay far below its bound; a cast would turn others into old ones.
impl TryFrom<Token> for i64 {
    type Error = Error;

    fn try_from(token: Token) -> Result<i64, Error> {
        let too_large = || Error::Invalid(format!("a token is too large for a BIGINT: token={token}"));
        i64::try_from(token.0).map_err(|_| too_large())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_into_a_bigint_whole_or_not_at_all() {
        assert_eq!(i64::try_from(Token(i64::MAX as u64)), Ok(i64::MAX));
        assert!(matches!(i64::try_from(Token(1 << 63)), Err(Error::Invalid(_))));
        assert_eq!("1763200000000000".parse(), Ok(Token(1_763_200_000_000_000)));
        assert!("-1".parse::<Token>().is_err());
    }
}
