//! The `lease_id` text that a holder gets: public id, epoch, secret.
//!
//! **Invariant.** Only the store key can produce a text that verifies. The secret is a keyed hash of lease and epoch:
//! nothing is stored, and a release can be verified after the lease's history was deleted.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kernel::{Credential, Epoch, LeaseId};

/// 32 random bytes, created with the store, shared by all its servers, and never sent or logged.
#[derive(Clone)]
pub struct StoreKey([u8; 32]);

/// The result of verifying a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// Issued with this key.
    Valid(Credential),
    /// Well formed, but not issued with this key.
    Invalid,
    /// Not a credential.
    Malformed,
}

pub(crate) const SECRET_BYTES: usize = 16;

/// Initial capacity: enough for a credential of an early epoch.
const CREDENTIAL_CAPACITY: usize = 64;

impl StoreKey {
    /// The key in these bytes.
    pub fn new(bytes: [u8; 32]) -> StoreKey {
        StoreKey(bytes)
    }

    /// The bytes of the key.
    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The text that is issued for a lease in an epoch.
    pub fn issue(&self, credential: Credential) -> String {
        let mut text = String::with_capacity(CREDENTIAL_CAPACITY);
        write!(text, "{}.{}.", credential.lease, credential.epoch.0).expect("writing to a string");
        URL_SAFE_NO_PAD.encode_string(self.secret(credential), &mut text);
        text
    }

    /// Verifies the text of a credential.
    pub fn verify(&self, text: &str) -> Verification {
        let Some((credential, secret)) = parse(text) else { return Verification::Malformed };
        if constant_time_eq(&self.secret(credential), &secret) {
            Verification::Valid(credential)
        } else {
            Verification::Invalid
        }
    }

    fn secret(&self, credential: Credential) -> [u8; SECRET_BYTES] {
        let mut hashed = [0; 24];
        hashed[..16].copy_from_slice(&credential.lease.to_u128().to_be_bytes());
        hashed[16..].copy_from_slice(&credential.epoch.0.to_be_bytes());
        let hash = blake3::keyed_hash(&self.0, &hashed);
        hash.as_bytes()[..SECRET_BYTES].try_into().expect("a hash is longer")
    }

    /// A keyed hash for other purposes. Callers must hash bytes that no other purpose hashes; leases hash 24, and the
    /// file `store` 36 that begin with its magic.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> [u8; SECRET_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        let mut secret = [0; SECRET_BYTES];
        hasher.finalize_xof().fill(&mut secret);
        secret
    }
}

fn parse(text: &str) -> Option<(Credential, [u8; SECRET_BYTES])> {
    let mut parts = text.split('.');
    let (lease, epoch, secret) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = epoch.bytes().all(|b| b.is_ascii_digit()) && (epoch == "0" || !epoch.starts_with('0'));
    let credential =
        Credential { lease: LeaseId::parse(lease)?, epoch: Epoch(epoch.parse().ok().filter(|_| plain)?) };
    let secret = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
    parts.next().is_none().then_some((credential, secret))
}

/// Takes the same time for every position of the first difference.
pub(crate) fn constant_time_eq(a: &[u8; SECRET_BYTES], b: &[u8; SECRET_BYTES]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{Lsn, Shard};

    fn credential() -> Credential {
        Credential { lease: LeaseId { shard: Shard(3), lsn: Lsn(1_800_000_000_000_123) }, epoch: Epoch(5) }
    }

    #[test]
    fn an_issued_credential_verifies_and_similar_texts_do_not() {
        let key = StoreKey::new([7; 32]);
        let text = key.issue(credential());
        assert_eq!(key.verify(&text), Verification::Valid(credential()));
        assert_eq!(StoreKey::new([8; 32]).verify(&text), Verification::Invalid, "another store's");
        let other = key.issue(Credential { epoch: Epoch(3), ..credential() });
        let secret = |text: &str| text.rsplit('.').next().expect("three parts").to_string();
        assert_ne!(secret(&text), secret(&other), "another epoch, another secret");
        let mixed = text.replace(&secret(&text), &secret(&other));
        assert_eq!(key.verify(&mixed), Verification::Invalid);
    }

    /// Clients keep credentials across upgrades of the server: the text may never change.
    #[test]
    fn golden_text_of_a_credential() {
        let text = StoreKey::new([7; 32]).issue(credential());
        assert_eq!(text, "L-0000000000000003000665172898807b.5.MLVRHVROUhHW1XDqM135Qw");
    }

    #[test]
    fn anything_else_is_malformed() {
        let key = StoreKey::new([7; 32]);
        let good = key.issue(credential());
        for bad in [
            "",
            "L-",
            "orders",
            &good[1..],
            &format!("{good}."),
            &format!("{good}=="),
            &good.replace(".5.", ".05."),
            &good.replace(".5.", ".-5."),
            &good.replace(".5.", "..5."),
            &good.to_uppercase(),
            &good[..good.len() - 1],
        ] {
            assert_eq!(key.verify(bad), Verification::Malformed, "{bad}");
        }
    }
}
