//! The CA's key, encrypted by a passphrase: Argon2id derives the key, XChaCha20-Poly1305 encrypts.
//!
//! The format, as in `docs/reference/formats.md`:
//!
//! ```text
//!  0  8  magic "lockdcak"
//!  8  4  version, 1
//! 12  4  memory in KiB
//! 16  4  passes
//! 20  4  lanes
//! 24 16  salt
//! 40 24  nonce
//! 64     the encrypted key (PKCS#8, DER), and a tag of 16 bytes
//! ```
//!
//! **Invariant.** The first 64 bytes are authenticated together with the rest, so that any changed bit is detected.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind};
use crate::key::PrivateKey;

const MAGIC: [u8; 8] = *b"lockdcak";
const VERSION: u32 = 1;
const SALT: std::ops::Range<usize> = 24..40;
const NONCE: std::ops::Range<usize> = 40..64;
const HEADER_BYTES: usize = 64;
const TAG_BYTES: usize = 16;
/// Upper bound on the length of an encrypted key, in bytes.
const BYTES_MAX: usize = 16 * 1024;

/// A passphrase; zeroized on drop.
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Minimum number of characters for a new key.
    pub const CHARS_MIN: usize = 12;

    /// Refuses an empty one.
    pub fn new(text: Zeroizing<String>) -> Result<Passphrase, Error> {
        if text.is_empty() {
            return Err(Error::invalid("the passphrase is empty"));
        }
        Ok(Passphrase(text))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Refuses a passphrase that is too short for a new key. An existing key keeps the one that it has.
    pub fn check_length(&self) -> Result<(), Error> {
        if self.0.chars().count() < Passphrase::CHARS_MIN {
            let why = "the passphrase is too short: a copy of the CA's file lets it be guessed offline";
            return Err(Error::invalid(format!("{why}: characters_min={}", Passphrase::CHARS_MIN)));
        }
        Ok(())
    }
}

impl PartialEq for Passphrase {
    fn eq(&self, other: &Passphrase) -> bool {
        *self.0 == *other.0
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(..)")
    }
}

/// The cost of Argon2id: of each guess at the passphrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Memory, in KiB.
    pub memory_kib: u32,
    /// Number of passes over the memory.
    pub passes: u32,
    /// Number of parallel lanes.
    pub lanes: u32,
}

impl Cost {
    /// The second recommendation of RFC 9106: 64 MiB, three passes, four lanes.
    pub const DEFAULT: Cost = Cost { memory_kib: 64 * 1024, passes: 3, lanes: 4 };
    /// Maximum cost that a file may demand: a larger one would be a denial of service.
    const MAX: Cost = Cost { memory_kib: 1024 * 1024, passes: 16, lanes: 16 };

    fn params(self) -> Option<Params> {
        let bounded = self.memory_kib <= Cost::MAX.memory_kib
            && self.passes <= Cost::MAX.passes
            && self.lanes <= Cost::MAX.lanes;
        bounded.then(|| Params::new(self.memory_kib, self.passes, self.lanes, Some(32)).ok()).flatten()
    }
}

/// The CA's key, encrypted.
#[derive(Clone, Debug)]
pub struct SealedKey(Vec<u8>);

impl SealedKey {
    /// Encrypts a key.
    pub(crate) fn seal(
        key: &PrivateKey,
        passphrase: &Passphrase,
        cost: Cost,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<SealedKey, Error> {
        let PrivateKeyDer::Pkcs8(plain) = key.der() else {
            return Err(Error::invalid(
                "only a key in PKCS#8 can be encrypted; convert it with openssl pkcs8",
            ));
        };
        let mut bytes = header(cost);
        fill(&mut bytes[SALT.start..NONCE.end]);
        let secret = derive_key(passphrase, cost, &bytes[SALT])?;
        let payload = Payload { msg: plain.secret_pkcs8_der(), aad: &bytes };
        let encrypted = cipher(&secret).encrypt(&nonce(&bytes), payload).expect("a key is short");
        bytes.extend_from_slice(&encrypted);
        Ok(SealedKey(bytes))
    }

    /// Checks the header; the passphrase is checked when the key is opened.
    pub(crate) fn parse(bytes: Vec<u8>) -> Result<SealedKey, Error> {
        let wrong = |what: &str| Error::invalid(format!("the encrypted CA key cannot be read: {what}"));
        if bytes.len() <= HEADER_BYTES + TAG_BYTES || bytes.len() > BYTES_MAX || bytes[..8] != MAGIC {
            return Err(wrong("it is cut short, or something else"));
        }
        let version = number(&bytes, 8);
        if version != VERSION {
            return Err(wrong(&format!("another build wrote it, use that: version={version}")));
        }
        cost(&bytes).params().ok_or_else(|| wrong("it asks for more memory or time than any key of ours"))?;
        Ok(SealedKey(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn open(&self, passphrase: Option<&Passphrase>) -> Result<PrivateKey, Error> {
        let passphrase = passphrase.ok_or_else(|| {
            Error::new(ErrorKind::PassphraseNeeded, "the CA key is encrypted, and needs its passphrase")
        })?;
        let secret = derive_key(passphrase, cost(&self.0), &self.0[SALT])?;
        let payload = Payload { msg: &self.0[HEADER_BYTES..], aad: &self.0[..HEADER_BYTES] };
        let plain = cipher(&secret).decrypt(&nonce(&self.0), payload).map_err(|_| {
            let what = "the passphrase is wrong, or the encrypted CA key was changed";
            Error::new(ErrorKind::PassphraseWrong, what)
        })?;
        PrivateKey::new(PrivatePkcs8KeyDer::from(plain).into())
    }
}

fn header(cost: Cost) -> Vec<u8> {
    let numbers = [VERSION, cost.memory_kib, cost.passes, cost.lanes];
    let mut bytes = MAGIC.to_vec();
    for number in numbers {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.resize(HEADER_BYTES, 0);
    bytes
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn cost(bytes: &[u8]) -> Cost {
    Cost { memory_kib: number(bytes, 12), passes: number(bytes, 16), lanes: number(bytes, 20) }
}

fn nonce(bytes: &[u8]) -> XNonce {
    XNonce::try_from(&bytes[NONCE]).expect("24 bytes")
}

fn cipher(secret: &[u8; 32]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(secret.into())
}

fn derive_key(passphrase: &Passphrase, cost: Cost, salt: &[u8]) -> Result<Zeroizing<[u8; 32]>, Error> {
    let params = cost.params().ok_or_else(|| Error::invalid("no such cost of a passphrase"))?;
    let mut secret = Zeroizing::new([0; 32]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.0.as_bytes(), salt, &mut *secret)
        .map_err(|error| Error::invalid(format!("the passphrase cannot be used: {error}")))?;
    Ok(secret)
}
