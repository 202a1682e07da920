//! The `lease_id` text that a holder gets: public id, epoch, secret.
//!
//! **Invariant.** Whoever shows a text that verifies was given it, or has the store's key. The secret is a keyed hash
//! of lease and epoch, so nothing has to be kept, and a release can be verified after its history is gone.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kernel::{Credential, Epoch, LeaseId};

/// 32 random bytes, made with the store, shared by all its servers, and never shown.
#[derive(Clone)]
pub struct StoreKey([u8; 32]);

/// A credential that was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Issued here.
    Right(Credential),
    /// Well formed, and not issued here.
    Wrong,
    /// No credential at all.
    Malformed,
}

pub(crate) const SECRET_BYTES: usize = 16;

/// Room for a credential of an early epoch.
const CREDENTIAL_USUAL: usize = 64;

impl StoreKey {
    /// The key in these bytes.
    pub fn new(bytes: [u8; 32]) -> StoreKey {
        StoreKey(bytes)
    }

    /// The text that is issued for a lease in an epoch.
    pub fn issue(&self, held: Credential) -> String {
        let mut text = String::with_capacity(CREDENTIAL_USUAL);
        write!(text, "{}.{}.", held.lease, held.epoch.0).expect("writing to a string");
        URL_SAFE_NO_PAD.encode_string(self.secret(held), &mut text);
        text
    }

    /// What a text is worth.
    pub fn verify(&self, text: &str) -> Shown {
        let Some((held, secret)) = parse(text) else { return Shown::Malformed };
        if constant_time_eq(&self.secret(held), &secret) { Shown::Right(held) } else { Shown::Wrong }
    }

    fn secret(&self, held: Credential) -> [u8; SECRET_BYTES] {
        let mut hashed = [0; 24];
        hashed[..16].copy_from_slice(&held.lease.to_u128().to_be_bytes());
        hashed[16..].copy_from_slice(&held.epoch.0.to_be_bytes());
        let hash = blake3::keyed_hash(&self.0, &hashed);
        hash.as_bytes()[..SECRET_BYTES].try_into().expect("a hash is longer")
    }

    /// A keyed hash. Whoever uses it sees to it that no two purposes hash the same bytes: leases hash 24.
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
    let held =
        Credential { lease: LeaseId::parse(lease)?, epoch: Epoch(epoch.parse().ok().filter(|_| plain)?) };
    let secret = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
    parts.next().is_none().then_some((held, secret))
}

/// Takes as long whether the first byte differs or the last.
pub(crate) fn constant_time_eq(a: &[u8; SECRET_BYTES], b: &[u8; SECRET_BYTES]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel::{Lsn, Shard};

    fn held() -> Credential {
        Credential { lease: LeaseId { shard: Shard(3), lsn: Lsn(1_800_000_000_000_123) }, epoch: Epoch(5) }
    }

    #[test]
    fn what_was_issued_verifies_and_everything_near_it_does_not() {
        let key = StoreKey::new([7; 32]);
        let text = key.issue(held());
        assert_eq!(key.verify(&text), Shown::Right(held()));
        assert_eq!(StoreKey::new([8; 32]).verify(&text), Shown::Wrong, "another store's");
        let other = key.issue(Credential { epoch: Epoch(3), ..held() });
        let secret = |text: &str| text.rsplit('.').next().expect("three parts").to_string();
        assert_ne!(secret(&text), secret(&other), "another epoch, another secret");
        let mixed = text.replace(&secret(&text), &secret(&other));
        assert_eq!(key.verify(&mixed), Shown::Wrong);
    }

    /// For ever: clients keep these texts across upgrades of the server.
    #[test]
    fn the_text_is_this_for_ever() {
        let text = StoreKey::new([7; 32]).issue(held());
        assert_eq!(text, "L-0000000000000003000665172898807b.5.MLVRHVROUhHW1XDqM135Qw");
    }

    #[test]
    fn anything_else_is_malformed() {
        let key = StoreKey::new([7; 32]);
        let good = key.issue(held());
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
            assert_eq!(key.verify(bad), Shown::Malformed, "{bad}");
        }
    }
}
