//! Strict deserialization: structs from JSON objects only, enums from their documented spellings only.
//!
//! serde's derives accept more than the schema says: an array for a struct, field by field, so that `[]` means `{}`, and
//! `{"free": null}` for `"free"`. Such requests are refused here.

use std::fmt;

use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::integer;
use crate::requests::OnExpiry;

/// Implements serde for structs that derive it with `remote = "Self"`, accepting objects only.
macro_rules! strict_objects {
    ($($name:ident)*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                // The inherent function that `remote` derives, not this one.
                $name::serialize(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                struct ObjectVisitor;

                impl<'de> serde::de::Visitor<'de> for ObjectVisitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        $name::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }

                from.deserialize_map(ObjectVisitor)
            }
        }
    )*};
}
pub(crate) use strict_objects;

impl<'de> Deserialize<'de> for OnExpiry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OnExpiry, D::Error> {
        from.deserialize_any(OnExpiryVisitor)
    }
}

#[derive(Deserialize)]
struct Number(#[serde(deserialize_with = "integer::optional")] Option<u64>);

struct OnExpiryVisitor;

impl<'de> Visitor<'de> for OnExpiryVisitor {
    type Value = OnExpiry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#""free", "manual" or {"hold_ms": n}"#)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<OnExpiry, E> {
        match word {
            "free" => Ok(OnExpiry::Free),
            "manual" => Ok(OnExpiry::Manual),
            _ => Err(E::unknown_variant(word, &["free", "manual"])),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OnExpiry, A::Error> {
        let Some(field) = map.next_key::<String>()? else { return Err(A::Error::missing_field("hold_ms")) };
        if field != "hold_ms" {
            return Err(A::Error::unknown_field(&field, &["hold_ms"]));
        }
        let Number(Some(ms)) = map.next_value()? else {
            return Err(A::Error::invalid_type(Unexpected::Unit, &"an integer"));
        };
        match map.next_key::<String>()? {
            None => Ok(OnExpiry::HoldMs(ms)),
            Some(field) => Err(A::Error::unknown_field(&field, &["hold_ms"])),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::requests::{Acquire, Holder, Keepalive, OnExpiry, Party, Pause, Quota, Resource};

    fn refused<T: serde::de::DeserializeOwned>(text: &str) -> String {
        match serde_json::from_str::<T>(text) {
            Ok(_) => panic!("accepted: {text}"),
            Err(error) => error.to_string(),
        }
    }

    /// `PUT /v1/quotas` with a body of `[]` was read as `{}`, and removed all quotas; `["L-…"]` released a lease.
    #[test]
    fn an_array_is_refused() {
        assert!(refused::<Quota>("[]").starts_with("invalid type: sequence, expected an object"));
        assert!(refused::<Party>(r#"["default", "ada"]"#).contains("expected an object"));
        assert!(refused::<Pause>(r#"[null, "ada", null, true]"#).contains("expected an object"));
        assert!(refused::<Holder>(r#"["L-1"]"#).contains("expected an object"));
        assert!(refused::<Keepalive>(r#"["L-1", 5]"#).contains("expected an object"));
        assert!(refused::<Resource>(r#"["KEY", "k"]"#).contains("expected an object"));
        assert!(refused::<Acquire>(r#"{"resources": [["KEY", "k"]]}"#).contains("expected an object"));
    }

    #[test]
    fn a_request_round_trips() {
        let acquire = Acquire {
            resources: Some(vec![Resource { kind: "KEY".into(), name: "k".into(), predicate: None }]),
            on_expiry: Some(OnExpiry::HoldMs(5)),
            ..Acquire::default()
        };
        let text = serde_json::to_string(&acquire).expect("plain");
        assert_eq!(text, r#"{"resources":[{"kind":"KEY","name":"k"}],"on_expiry":{"hold_ms":5}}"#);
        assert_eq!(serde_json::from_str::<Acquire>(&text).expect("the same"), acquire);
        assert!(refused::<Acquire>(r#"{"colour": "red"}"#).starts_with("unknown field `colour`"));
        assert!(refused::<Acquire>(r#"{"key": "a", "key": "b"}"#).starts_with("duplicate field `key`"));
    }

    #[test]
    fn on_expiry_has_three_spellings() {
        for (text, value) in [
            (r#""free""#, OnExpiry::Free),
            (r#""manual""#, OnExpiry::Manual),
            (r#"{"hold_ms":15000}"#, OnExpiry::HoldMs(15_000)),
        ] {
            assert_eq!(serde_json::from_str::<OnExpiry>(text).expect("known"), value);
            assert_eq!(serde_json::to_string(&value).expect("plain"), text);
        }
        for text in [
            r#"{"free":null}"#,
            r#""hold_ms""#,
            r#""never""#,
            "{}",
            r#"{"hold_ms":-1}"#,
            r#"{"hold_ms":null}"#,
            r#"{"hold_ms":1,"hold_ms":2}"#,
            r#"{"hold_ms":1,"also":2}"#,
            "[5]",
            "5",
            "null",
        ] {
            refused::<OnExpiry>(text);
        }
    }
}
