//! Exact decimal arithmetic.
//!
//! **Invariant.** The value is `coefficient / 10^scale`, never rounded: a value that does not fit is not a [`Decimal`].
//! A sum has the larger scale of the two, so `0.10 + 0.2` is `0.30`.
//!
//! **What is absent.** Exponents in results: `1e3 + 1` is `1001`.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    coefficient: i128,
    scale: u32,
}

impl Decimal {
    pub(super) const ZERO: Decimal = Decimal { coefficient: 0, scale: 0 };
    pub(super) const ONE: Decimal = Decimal { coefficient: 1, scale: 0 };

    /// Parses a JSON number; `None` if it has too many digits without an exponent.
    pub(super) fn parse(number: &str) -> Option<Decimal> {
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        let coefficient = digits.parse::<i128>().ok()?;
        let scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent.parse::<i32>().ok()?)?;
        match u32::try_from(scale) {
            Ok(scale) => Decimal { coefficient, scale }.bounded(),
            Err(_) => Decimal { coefficient, scale: 0 }.shifted(scale.unsigned_abs()),
        }
    }

    pub(super) fn plus(self, other: Decimal) -> Option<Decimal> {
        let scale = self.scale.max(other.scale);
        let (a, b) = (self.shifted(scale - self.scale)?, other.shifted(scale - other.scale)?);
        Some(Decimal { coefficient: a.coefficient.checked_add(b.coefficient)?, scale })
    }

    pub(super) fn negated(self) -> Option<Decimal> {
        Some(Decimal { coefficient: self.coefficient.checked_neg()?, scale: self.scale })
    }

    /// The coefficient, followed by `zeroes` zeroes.
    fn shifted(self, zeroes: u32) -> Option<Decimal> {
        let factor = 10_i128.checked_pow(zeroes)?;
        Some(Decimal { coefficient: self.coefficient.checked_mul(factor)?, scale: self.scale })
    }

    /// `None` if the scale is too large to align another number with it.
    fn bounded(self) -> Option<Decimal> {
        10_i128.checked_pow(self.scale).map(|_| self)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = self.scale as usize;
        let digits = format!("{:0>width$}", self.coefficient.unsigned_abs(), width = scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        let sign = if self.coefficient < 0 { "-" } else { "" };
        let point = if scale > 0 { "." } else { "" };
        write!(f, "{sign}{whole}{point}{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        Some(Decimal::parse(a)?.plus(Decimal::parse(b)?)?.to_string())
    }

    #[test]
    fn sums_are_exact() {
        for (a, b, expected) in [
            ("1", "2", "3"),
            ("0.1", "0.2", "0.3"),
            ("0.10", "0.2", "0.30"),
            ("-0.5", "0.5", "0.0"),
            ("-0.05", "0", "-0.05"),
            ("9007199254740993", "1", "9007199254740994"),
            ("1e3", "1", "1001"),
            ("1.5E+2", "0", "150"),
            ("1e-3", "1", "1.001"),
            ("-0", "0", "0"),
            ("-0.0", "1", "1.0"),
            ("99", "-100", "-1"),
            ("170141183460469231731687303715884105726", "1", "170141183460469231731687303715884105727"),
            ("-170141183460469231731687303715884105728", "0", "-170141183460469231731687303715884105728"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for (a, b) in [
            ("170141183460469231731687303715884105727", "1"),
            ("170141183460469231731687303715884105728", "0"),
            ("170141183460469231731687303715884105727", "0.1"),
            ("1e39", "0"),
            ("1e-39", "0"),
            ("1e-39", "1e-39"),
            ("0e-2000000000", "0e-2000000000"),
            ("1e99999999999999999999", "0"),
            ("1e-2147483648", "0"),
            ("1e2147483648", "0"),
        ] {
            assert_eq!(sum(a, b), None, "{a} + {b}");
        }
        assert_eq!(Decimal { coefficient: i128::MIN, scale: 0 }.negated(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sums_of_integers_equal_native_ones(a in any::<i64>(), b in any::<i64>()) {
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), Some((i128::from(a) + i128::from(b)).to_string()));
        }

        #[test]
        fn decimals_round_trip(coefficient in any::<i128>(), scale in 0..39_u32) {
            let decimal = Decimal { coefficient, scale };
            prop_assert_eq!(Decimal::parse(&decimal.to_string()), Some(decimal));
        }
    }
}
