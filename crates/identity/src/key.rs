//! Private keys, alone and with their certificates.
//!
//! **Invariant.** A [`KeyedCertificate`] has the key of its certificate. Keys are zeroized on drop, and never printed.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{CertifiedKey, SigningKey};
use zeroize::Zeroize;

use crate::certificate::Certificate;
use crate::error::Error;
use crate::seal::{Passphrase, SealedKey};

/// A private key.
pub struct PrivateKey {
    der: PrivateKeyDer<'static>,
    /// The public key, in DER (`SubjectPublicKeyInfo`).
    public: Vec<u8>,
}

impl PrivateKey {
    /// Refuses keys that cannot sign.
    pub(crate) fn new(der: PrivateKeyDer<'static>) -> Result<PrivateKey, Error> {
        let mut key = PrivateKey { der, public: Vec::new() };
        let unusable =
            || Error::invalid("a private key cannot be used; P-256, P-384, Ed25519 and RSA are known");
        let signing = key.signing().map_err(|_| unusable())?;
        key.public = signing.public_key().ok_or_else(unusable)?.to_vec();
        Ok(key)
    }

    pub(crate) fn der(&self) -> &PrivateKeyDer<'static> {
        &self.der
    }

    /// The public key, in DER (`SubjectPublicKeyInfo`).
    pub(crate) fn public(&self) -> &[u8] {
        &self.public
    }

    fn signing(&self) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        aws_lc_rs::sign::any_supported_type(&self.der)
    }
}

impl Clone for PrivateKey {
    fn clone(&self) -> PrivateKey {
        PrivateKey { der: self.der.clone_key(), public: self.public.clone() }
    }
}

impl Drop for PrivateKey {
    fn drop(&mut self) {
        self.der.zeroize();
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct KeyedCertificate {
    certificate: Certificate,
    key: PrivateKey,
    /// Certificates of intermediate CAs, from the issuer upwards.
    intermediates: Vec<Certificate>,
}

impl KeyedCertificate {
    pub(crate) fn new(certificate: Certificate, key: PrivateKey) -> Result<KeyedCertificate, Error> {
        if certificate.public_key() != key.public() {
            let what = "the private key is not that of the certificate";
            return Err(Error::invalid(format!("{what}: cn={}", certificate.name())));
        }
        Ok(KeyedCertificate { certificate, key, intermediates: Vec::new() })
    }

    /// Presents these certificates of intermediate CAs too, from the issuer upwards.
    #[must_use]
    pub(crate) fn with_intermediates(self, intermediates: Vec<Certificate>) -> KeyedCertificate {
        KeyedCertificate { intermediates, ..self }
    }

    /// The certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    pub(crate) fn key(&self) -> &PrivateKey {
        &self.key
    }

    pub(crate) fn intermediates(&self) -> &[Certificate] {
        &self.intermediates
    }

    /// The form that rustls needs.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        let signing = self.key.signing().expect("checked when the key was parsed");
        let chain = [&self.certificate].into_iter().chain(&self.intermediates);
        Arc::new(CertifiedKey::new(chain.map(|one| one.der().clone()).collect(), signing))
    }
}

/// The CA's key, as stored in a file.
#[derive(Clone, Debug)]
pub enum CaKey {
    /// In clear text.
    Plain(PrivateKey),
    /// Encrypted by a passphrase.
    Sealed(SealedKey),
}

impl CaKey {
    /// Whether a passphrase is needed.
    pub fn is_sealed(&self) -> bool {
        matches!(self, CaKey::Sealed(_))
    }

    /// The decrypted key. `passphrase` is used only if the key is encrypted.
    pub(crate) fn open(&self, passphrase: Option<&Passphrase>) -> Result<PrivateKey, Error> {
        match self {
            CaKey::Plain(key) => Ok(key.clone()),
            CaKey::Sealed(sealed) => sealed.open(passphrase),
        }
    }
}
