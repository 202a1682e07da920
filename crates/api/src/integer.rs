//! Integer fields that also accept floats without a fraction: some languages write `450` as `450.0`.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// Deserializes an integer, or null.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: TryFrom<i128>>(from: D) -> Result<Option<T>, D::Error> {
    from.deserialize_option(IntegerVisitor(PhantomData))
}

struct IntegerVisitor<T>(PhantomData<T>);

impl<'de, T: TryFrom<i128>> Visitor<'de> for IntegerVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer within {}", std::any::type_name::<T>())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Option<T>, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_none<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<T>, E> {
        T::try_from(number.into()).map(Some).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<T>, E> {
        T::try_from(number.into())
            .map(Some)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Option<T>, E> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the cast saturates, and T refuses the largest value"
        )]
        let integer = (number.fract() == 0.0).then_some(number as i128);
        let value = integer.and_then(|integer| T::try_from(integer).ok());
        value.map(Some).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }
}

#[cfg(test)]
mod tests {
    use crate::agents::Manifest;
    use crate::requests::{Acquire, OnExpiry, Quota};

    fn ttl(text: &str) -> Result<Option<i64>, String> {
        let request: Result<Acquire, _> = serde_json::from_str(&format!(r#"{{"ttl_ms": {text}}}"#));
        request.map(|request| request.ttl_ms).map_err(|error| error.to_string())
    }

    /// Python writes a float as `450.0`. By JSON Schema that is an integer; it was refused.
    #[test]
    fn an_integer_may_be_written_as_a_float() {
        for (text, number) in
            [("450", 450), ("450.0", 450), ("4.5e2", 450), ("-0.0", 0), ("-3", -3), ("1e3", 1000)]
        {
            assert_eq!(ttl(text), Ok(Some(number)), "{text}");
        }
        assert_eq!(ttl("null"), Ok(None));
        for bad in ["450.5", "1e30", "-1e300", "9223372036854775808", "\"450\"", "true", "[450]", "{}"] {
            assert!(ttl(bad).is_err(), "{bad}");
        }
        assert_eq!(serde_json::from_str::<OnExpiry>(r#"{"hold_ms": 5.0}"#).ok(), Some(OnExpiry::HoldMs(5)));
        let manifest = r#"{"agent_id":"a","session_id":"s","intents":[],"ttl_ms":5.0,"wait_ms":7.0}"#;
        let manifest: Manifest = serde_json::from_str(manifest).expect("integers");
        assert_eq!((manifest.ttl_ms, manifest.wait_ms), (Some(5), Some(7)));
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_its_value() {
        let refused = |text: &str| serde_json::from_str::<Quota>(text).expect_err("refused").to_string();
        let error = refused(r#"{"max_leases": 4294967296}"#);
        assert!(
            error.starts_with("invalid value: integer `4294967296`, expected an integer within u32"),
            "{error}"
        );
        let error = refused(r#"{"idle_ms": -1}"#);
        assert!(error.starts_with("invalid value: integer `-1`, expected an integer within u64"), "{error}");
        let most: Quota = serde_json::from_str(r#"{"idle_ms": 18446744073709551615}"#).expect("the maximum");
        assert_eq!(most.idle_ms, Some(u64::MAX));
    }
}
