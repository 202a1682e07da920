//! The `attempt_id` text that an agent comes back with: how old its attempt is.
//!
//! **Invariant.** Whoever shows a text that verifies was given it, as this identity and in this namespace. Nothing is
//! kept for it, and what is asked for may change from one try to the next.
//!
//! **What would break it.** An age that a client can make up: everybody would be the oldest, and wait for everybody.
//! An age taken along to another namespace: its time is another shard's, and may lie far ahead.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kernel::{Age, Identity, Namespace, Time};

use crate::backend::credential::{SECRET_BYTES, StoreKey, constant_time_eq};

/// Longer than what leases hash, whatever the names: the two can never be taken for each other.
const PURPOSE: &[u8] = b"lockd: the age of an attempt";

/// The text for an attempt: `A-`, its moment and its random bits in 32 digits, and a secret.
pub(crate) fn issue(key: &StoreKey, identity: &Identity, namespace: &Namespace, age: Age) -> String {
    let secret = URL_SAFE_NO_PAD.encode(secret(key, identity, namespace, age));
    format!("A-{:016x}{:016x}.{secret}", age.at.0, age.tie)
}

/// The age in a text; `None` if it was not issued here, to this identity, for this namespace.
pub(crate) fn verify(key: &StoreKey, identity: &Identity, namespace: &Namespace, text: &str) -> Option<Age> {
    let (digits, shown) = text.strip_prefix("A-")?.split_once('.')?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if digits.len() != 32 || !plain {
        return None;
    }
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let age = Age { at: Time(number(&digits[..16])?), tie: number(&digits[16..])? };
    let shown: [u8; SECRET_BYTES] = URL_SAFE_NO_PAD.decode(shown).ok()?.try_into().ok()?;
    constant_time_eq(&secret(key, identity, namespace, age), &shown).then_some(age)
}

fn secret(key: &StoreKey, identity: &Identity, namespace: &Namespace, age: Age) -> [u8; SECRET_BYTES] {
    let (identity, namespace) = (identity.as_str().as_bytes(), namespace.as_str().as_bytes());
    let length = (identity.len() as u64).to_be_bytes();
    key.mac(&[PURPOSE, &age.at.0.to_be_bytes(), &age.tie.to_be_bytes(), &length, identity, namespace])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(identity: &str, namespace: &str) -> (Identity, Namespace) {
        (Identity::new(identity).expect("a name"), Namespace::new(namespace).expect("a name"))
    }

    #[test]
    fn what_was_issued_verifies_for_whom_and_where_it_was_issued_and_nowhere_else() {
        let key = StoreKey::new([7; 32]);
        let (ada, here) = names("ada", "prod");
        let age = Age { at: Time(1234), tie: 0xdead_beef };
        let text = issue(&key, &ada, &here, age);
        assert_eq!(verify(&key, &ada, &here, &text), Some(age));
        let (bob, there) = names("bob", "test");
        assert_eq!(verify(&key, &bob, &here, &text), None, "another's");
        assert_eq!(verify(&key, &ada, &there, &text), None, "from elsewhere");
        assert_eq!(verify(&StoreKey::new([8; 32]), &ada, &here, &text), None, "another store's");
        // The boundary between the two names counts.
        let (joined, rest) = names("adap", "rod");
        assert_eq!(verify(&key, &joined, &rest, &text), None);
        let older = text.replacen("00000000000004d2", "0000000000000001", 1);
        assert_ne!(older, text);
        assert_eq!(verify(&key, &ada, &here, &older), None, "nobody makes itself older");
    }

    #[test]
    fn anything_else_is_refused() {
        let key = StoreKey::new([7; 32]);
        let (ada, here) = names("ada", "prod");
        let good = issue(&key, &ada, &here, Age { at: Time(1), tie: 2 });
        let cut = &good[..good.len() - 1];
        for bad in ["", "A-", "A-.", "L-1.2.3", cut, &good[1..], &good.to_uppercase(), &format!("{good}=")] {
            assert_eq!(verify(&key, &ada, &here, bad), None, "{bad}");
        }
        assert_eq!(verify(&key, &ada, &here, &good.replacen("A-0", "A-+", 1)), None);
        assert_eq!(verify(&key, &ada, &here, &format!("A-{}.x", "é".repeat(16))), None, "no panic on text");
    }
}
