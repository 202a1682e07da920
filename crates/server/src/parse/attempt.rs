//! The `attempt_id` text that an agent sends with each retry: the age of its attempt.
//!
//! **Invariant.** A text verifies only if it was issued to this identity in this namespace. The server stores nothing
//! for it, and the manifest may change from one retry to the next.
//!
//! **What would break it.** An age that a client can forge: every attempt could claim to be the oldest, and would never
//! have to die. An age from another namespace: its time is that of another shard, and may be far in the future.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kernel::{Age, Identity, Namespace, Time};

use crate::backend::credential::{SECRET_BYTES, StoreKey, constant_time_eq};

/// Longer than the 24 bytes that credentials hash, so that the hash of an attempt is never that of a credential.
const PURPOSE: &[u8] = b"lockd: the age of an attempt";

/// The text of an attempt: `A-`, its time and its random tie-breaker in 32 hexadecimal digits, and a keyed hash.
pub(crate) fn issue(key: &StoreKey, identity: &Identity, namespace: &Namespace, age: Age) -> String {
    let secret = URL_SAFE_NO_PAD.encode(secret(key, identity, namespace, age));
    format!("A-{:016x}{:016x}.{secret}", age.at.0, age.tie)
}

/// The age in a text; `None` if it was not issued by this store, to this identity, in this namespace.
pub(crate) fn verify(key: &StoreKey, identity: &Identity, namespace: &Namespace, text: &str) -> Option<Age> {
    let (digits, secret_text) = text.strip_prefix("A-")?.split_once('.')?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if digits.len() != 32 || !plain {
        return None;
    }
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let age = Age { at: Time(number(&digits[..16])?), tie: number(&digits[16..])? };
    let shown: [u8; SECRET_BYTES] = URL_SAFE_NO_PAD.decode(secret_text).ok()?.try_into().ok()?;
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
    fn a_text_verifies_only_for_its_identity_and_namespace() {
        let key = StoreKey::new([7; 32]);
        let (ada, here) = names("ada", "prod");
        let age = Age { at: Time(1234), tie: 0xdead_beef };
        let text = issue(&key, &ada, &here, age);
        assert_eq!(verify(&key, &ada, &here, &text), Some(age));
        let (bob, there) = names("bob", "test");
        assert_eq!(verify(&key, &bob, &here, &text), None, "another identity");
        assert_eq!(verify(&key, &ada, &there, &text), None, "another namespace");
        assert_eq!(verify(&StoreKey::new([8; 32]), &ada, &here, &text), None, "another store");
        // The boundary between the two names is part of the hash.
        let (joined, rest) = names("adap", "rod");
        assert_eq!(verify(&key, &joined, &rest, &text), None);
        let older = text.replacen("00000000000004d2", "0000000000000001", 1);
        assert_ne!(older, text);
        assert_eq!(verify(&key, &ada, &here, &older), None, "a forged age");
    }

    #[test]
    fn a_malformed_text_is_refused() {
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
