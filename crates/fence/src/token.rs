//! [`Token`]: a fencing token.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use crate::error::Error;

/// A fencing token of a lease. It only grows for each resource, and can be compared with tokens of the same lockd
/// resource only: each fenced file, object or row needs a lockd resource of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses the value of `LOCKD_CLIENT_FENCING_TOKEN`.
impl FromStr for Token {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Token, ParseIntError> {
        text.parse().map(Token)
    }
}

/// A `BIGINT`. lockd's tokens stay far below its maximum; a cast would turn larger ones negative, and thus older.
impl TryFrom<Token> for i64 {
    type Error = Error;

    fn try_from(token: Token) -> Result<i64, Error> {
        let too_large = || Error::Invalid(format!("the token is too large for a BIGINT: token={token}"));
        i64::try_from(token.0).map_err(|_| too_large())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_converted_to_a_bigint_without_loss_or_refused() {
        assert_eq!(i64::try_from(Token(i64::MAX as u64)), Ok(i64::MAX));
        assert!(matches!(i64::try_from(Token(1 << 63)), Err(Error::Invalid(_))));
        assert_eq!("1763200000000000".parse(), Ok(Token(1_763_200_000_000_000)));
        assert!("-1".parse::<Token>().is_err());
    }
}
