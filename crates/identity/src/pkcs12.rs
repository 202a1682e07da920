//! A client's identity as PKCS#12, which browsers and operating systems import.
//!
//! Certificates and key are encrypted by PBES2 (RFC 8018): AES-256 in CBC mode, with a key that PBKDF2-HMAC-SHA-256 derives
//! from the passphrase. The file is authenticated by HMAC-SHA-256, as in RFC 7292. OpenSSL 3 writes the same.
//!
//! **What is absent.** Reading: lockd's own identity files are PEM.

use std::num::NonZeroU32;

use aws_lc_rs::cipher::{AES_256, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{digest, hmac, pbkdf2};
use rustls::pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

use crate::bundle::ClientBundle;
use crate::certificate::Certificate;
use crate::error::Error;
use crate::seal::Passphrase;

/// Rounds of both derivations: what each guess at the passphrase costs.
const ROUNDS: u32 = 600_000;
const SALT_BYTES: usize = 16;
/// The block of SHA-256, in bytes.
const BLOCK_BYTES: usize = 64;
/// Selects a key for a MAC in the derivation of RFC 7292.
const MAC_KEY: u8 = 3;

const DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 1];
const ENCRYPTED_DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 6];
const PBES2: &[u64] = &[1, 2, 840, 113_549, 1, 5, 13];
const PBKDF2: &[u64] = &[1, 2, 840, 113_549, 1, 5, 12];
const HMAC_SHA256: &[u64] = &[1, 2, 840, 113_549, 2, 9];
const AES_256_CBC: &[u64] = &[2, 16, 840, 1, 101, 3, 4, 1, 42];
const SHA256: &[u64] = &[2, 16, 840, 1, 101, 3, 4, 2, 1];
const KEY_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 2];
const CERTIFICATE_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 3];
const X509: &[u64] = &[1, 2, 840, 113_549, 1, 9, 22, 1];
const FRIENDLY_NAME: &[u64] = &[1, 2, 840, 113_549, 1, 9, 20];
const LOCAL_KEY_ID: &[u64] = &[1, 2, 840, 113_549, 1, 9, 21];

impl ClientBundle {
    /// The identity as PKCS#12: the client's certificate with its key, and the CA's certificate.
    pub fn to_pkcs12(
        &self,
        passphrase: &Passphrase,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Vec<u8>, Error> {
        let PrivateKeyDer::Pkcs8(key) = self.client().key().der() else {
            let what = "the key is not in the format PKCS#8; convert it with `openssl pkcs8 -topk8 -nodes`";
            return Err(Error::invalid(what));
        };
        let own = self.client().certificate();
        let id = digest::digest(&digest::SHA256, own.der());
        let attributes = attributes(own, id.as_ref());
        let mut bags = certificate_bag(own, &attributes);
        bags.extend(certificate_bag(self.anchors().issuer(), &[]));
        let shrouded = seal(key.secret_pkcs8_der(), passphrase, fill);
        let key_bag = sequence(&[
            oid(KEY_BAG),
            explicit(0, &sequence(&[shrouded.algorithm, octets(&shrouded.bytes)])),
            attributes,
        ]);
        let certificates = seal(&sequence(&[bags]), passphrase, fill);
        let content = sequence(&[oid(DATA), certificates.algorithm, tagged(0x80, &certificates.bytes)]);
        let encrypted = sequence(&[oid(ENCRYPTED_DATA), explicit(0, &sequence(&[integer(0), content]))]);
        let safe = sequence(&[encrypted, data(&sequence(&[key_bag]))]);
        let mac = mac(&safe, passphrase, fill);
        Ok(sequence(&[integer(3), data(&safe), mac]))
    }
}

/// Bytes under a key from the passphrase, and how the key is derived.
struct Sealed {
    algorithm: Vec<u8>,
    bytes: Vec<u8>,
}

fn seal(plain: &[u8], passphrase: &Passphrase, fill: &mut dyn FnMut(&mut [u8])) -> Sealed {
    let (mut salt, mut iv) = ([0; SALT_BYTES], [0; 16]);
    fill(&mut salt);
    fill(&mut iv);
    let mut key = Zeroizing::new([0; 32]);
    let rounds = NonZeroU32::new(ROUNDS).expect("more than none");
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, passphrase.as_bytes(), key.as_mut());
    let mut bytes = plain.to_vec();
    let key = UnboundCipherKey::new(&AES_256, key.as_ref()).expect("a key of 32 bytes");
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).expect("AES in CBC mode is supported");
    let context = EncryptionContext::Iv128(FixedLength::from(iv));
    key.less_safe_encrypt(&mut bytes, context).expect("a text of this length can be encrypted");
    let derivation = [octets(&salt), integer(ROUNDS), algorithm(HMAC_SHA256)];
    let parameters =
        [sequence(&[oid(PBKDF2), sequence(&derivation)]), sequence(&[oid(AES_256_CBC), octets(&iv)])];
    Sealed { algorithm: sequence(&[oid(PBES2), sequence(&parameters)]), bytes }
}

/// Authenticates the content.
fn mac(content: &[u8], passphrase: &Passphrase, fill: &mut dyn FnMut(&mut [u8])) -> Vec<u8> {
    let mut salt = [0; SALT_BYTES];
    fill(&mut salt);
    let key = mac_key(&utf16(passphrase.as_str()), &salt, ROUNDS);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), content);
    let digest = sequence(&[algorithm(SHA256), octets(tag.as_ref())]);
    sequence(&[digest, octets(&salt), integer(ROUNDS)])
}

/// The derivation of RFC 7292, appendix B.2, for a key as long as the hash.
fn mac_key(passphrase: &[u8], salt: &[u8], rounds: u32) -> Zeroizing<Vec<u8>> {
    let repeat = |text: &[u8]| -> Zeroizing<Vec<u8>> {
        let length = text.len().div_ceil(BLOCK_BYTES) * BLOCK_BYTES;
        Zeroizing::new(text.iter().copied().cycle().take(length).collect())
    };
    let start = [&[MAC_KEY; BLOCK_BYTES][..], &repeat(salt), &repeat(passphrase)].concat();
    let mut hash = digest::digest(&digest::SHA256, &Zeroizing::new(start));
    for _ in 1..rounds {
        hash = digest::digest(&digest::SHA256, hash.as_ref());
    }
    Zeroizing::new(hash.as_ref().to_vec())
}

fn certificate_bag(certificate: &Certificate, attributes: &[u8]) -> Vec<u8> {
    let content = sequence(&[oid(X509), explicit(0, &octets(certificate.der()))]);
    sequence(&[oid(CERTIFICATE_BAG), explicit(0, &content), attributes.to_vec()])
}

/// The name that a browser shows, and the id that links the certificate and its key.
fn attributes(own: &Certificate, id: &[u8]) -> Vec<u8> {
    let name: Vec<u8> = own.name().as_str().encode_utf16().flat_map(u16::to_be_bytes).collect();
    let attribute = |kind: &[u64], value: Vec<u8>| sequence(&[oid(kind), tagged(0x31, &value)]);
    let both = [attribute(FRIENDLY_NAME, tagged(0x1e, &name)), attribute(LOCAL_KEY_ID, octets(id))];
    tagged(0x31, &both.concat())
}

/// Big-endian UTF-16 with a zero at the end.
fn utf16(text: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(text.encode_utf16().chain([0]).flat_map(u16::to_be_bytes).collect())
}

fn data(content: &[u8]) -> Vec<u8> {
    sequence(&[oid(DATA), explicit(0, &octets(content))])
}

fn algorithm(kind: &[u64]) -> Vec<u8> {
    const NULL: [u8; 2] = [5, 0];
    sequence(&[oid(kind), NULL.to_vec()])
}

fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tagged(0x30, &parts.concat())
}

fn octets(bytes: &[u8]) -> Vec<u8> {
    tagged(0x04, bytes)
}

fn explicit(number: u8, content: &[u8]) -> Vec<u8> {
    tagged(0xa0 | number, content)
}

fn integer(value: u32) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let zeros = bytes.iter().take(3).take_while(|byte| **byte == 0).count();
    // A leading zero keeps it positive.
    let sign: &[u8] = if bytes[zeros] & 0x80 == 0 { &[] } else { &[0] };
    tagged(0x02, &[sign, &bytes[zeros..]].concat())
}

fn oid(arcs: &[u64]) -> Vec<u8> {
    let mut content = vec![u8::try_from(arcs[0] * 40 + arcs[1]).expect("the first two arcs are small")];
    for arc in &arcs[2..] {
        let groups = (0..5).rev().map(|at| u8::try_from((arc >> (7 * at)) & 0x7f).expect("seven bits"));
        let mut groups: Vec<u8> = groups.skip_while(|group| *group == 0).collect();
        let last = groups.pop().unwrap_or_default();
        content.extend(groups.into_iter().map(|group| group | 0x80).chain([last]));
    }
    tagged(0x06, &content)
}

/// DER: a tag, the length, and the content.
fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let short = u8::try_from(content.len()).ok().filter(|length| *length < 0x80);
    let long: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let length = match short {
        Some(length) => vec![length],
        None => [&[0x80 | u8::try_from(long.len()).expect("at most 8")], long.as_slice()].concat(),
    };
    [&[tag], length.as_slice(), content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_der() {
        assert_eq!(integer(0), [2, 1, 0]);
        assert_eq!(integer(127), [2, 1, 127]);
        assert_eq!(integer(128), [2, 2, 0, 128]);
        assert_eq!(integer(600_000), [2, 3, 9, 0x27, 0xc0]);
        assert_eq!(oid(&[1, 2, 840, 113_549]), [6, 6, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]);
        assert_eq!(tagged(4, &[7; 127])[..2], [4, 127]);
        assert_eq!(tagged(4, &[7; 128])[..3], [4, 0x81, 128]);
        assert_eq!(tagged(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
    }
}
