//! Reads and writes the PEM sections of an identity file.
//!
//! **Invariant.** No section is ignored: a truncated one, or one with an unknown label, is an error. Text between sections
//! is a comment.

use pem::{EncodeConfig, LineEnding, Pem};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::{Zeroize, Zeroizing};

use crate::certificate::{Certificate, Purpose};
use crate::denylist::Denylist;
use crate::error::Error;
use crate::key::{CaKey, KeyedCertificate, PrivateKey};
use crate::seal::SealedKey;

const CERTIFICATE: &str = "CERTIFICATE";
const PRIVATE_KEY: &str = "PRIVATE KEY";
const EC_PRIVATE_KEY: &str = "EC PRIVATE KEY";
const RSA_PRIVATE_KEY: &str = "RSA PRIVATE KEY";
const SEALED_CA_KEY: &str = "LOCKD ENCRYPTED CA KEY";
const DENYLIST: &str = "LOCKD DENYLIST";
/// Maximum number of sections of a file.
const SECTIONS_MAX: usize = 64;

/// The sections of a file that are not consumed yet.
#[derive(Default)]
pub(crate) struct Sections {
    certificates: Vec<Certificate>,
    keys: Vec<PrivateKey>,
    sealed: Vec<SealedKey>,
    denylist: Denylist,
}

impl Sections {
    pub(crate) fn parse(text: &str) -> Result<Sections, Error> {
        let begun = text.matches("-----BEGIN ").count();
        if begun == 0 {
            return Err(Error::invalid("no PEM section in it: this is no identity file"));
        }
        let found = pem::parse_many(text).map_err(|error| {
            let cause = error.to_string();
            Error::invalid(format!("broken PEM: {}", cause.trim_end_matches('.')))
        })?;
        if found.len() != begun {
            return Err(Error::invalid("a PEM section has no end: the file is cut short"));
        }
        if found.len() > SECTIONS_MAX {
            return Err(Error::invalid(format!("too many PEM sections: max={SECTIONS_MAX}")));
        }
        let mut sections = Sections::default();
        found.into_iter().try_for_each(|section| sections.add(section))?;
        Ok(sections)
    }

    /// A certificate, followed by those of intermediate CAs, with its key from another text.
    pub(crate) fn keyed_chain(certificates: &str, key: &str) -> Result<KeyedCertificate, Error> {
        let mut chain = Sections::parse(certificates)?.certificates.into_iter();
        let own = chain.next().ok_or_else(|| Error::invalid("no certificate in the file"))?;
        let intermediates: Vec<Certificate> = chain.collect();
        if let Some(other) = intermediates.iter().find(|other| other.purpose() != Purpose::Authority) {
            let what = "only certificates of intermediate CAs may follow the first one";
            return Err(Error::invalid(format!("{what}: cn={}", other.name())));
        }
        let key =
            Sections::parse(key)?.keys.pop().ok_or_else(|| Error::invalid("no private key in the file"))?;
        Ok(KeyedCertificate::new(own, key)?.with_intermediates(intermediates))
    }

    fn add(&mut self, section: Pem) -> Result<(), Error> {
        let label = section.tag().to_string();
        let bytes = section.into_contents();
        match label.as_str() {
            CERTIFICATE => self.certificates.push(Certificate::parse(&bytes)?),
            PRIVATE_KEY => self.keys.push(PrivateKey::new(PrivatePkcs8KeyDer::from(bytes).into())?),
            EC_PRIVATE_KEY => self.keys.push(PrivateKey::new(PrivateSec1KeyDer::from(bytes).into())?),
            RSA_PRIVATE_KEY => self.keys.push(PrivateKey::new(PrivatePkcs1KeyDer::from(bytes).into())?),
            SEALED_CA_KEY => self.sealed.push(SealedKey::parse(bytes)?),
            DENYLIST => {
                let text = String::from_utf8(bytes).map_err(|_| Error::invalid("the denylist is no text"))?;
                self.denylist = self.denylist.union(&Denylist::parse(&text)?);
            }
            _ => {
                return Err(Error::invalid(format!(
                    "a PEM section that does not belong here: label={label}"
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn take_ca(&mut self) -> Result<Certificate, Error> {
        self.take_certificate(Purpose::Authority, "CA certificate")
    }

    /// All CA certificates; at least one.
    pub(crate) fn take_cas(&mut self) -> Result<Vec<Certificate>, Error> {
        let is_ca = |certificate: &Certificate| certificate.purpose() == Purpose::Authority;
        let (found, rest) = std::mem::take(&mut self.certificates).into_iter().partition(is_ca);
        self.certificates = rest;
        let found: Vec<Certificate> = found;
        if found.is_empty() {
            let what = format!("no CA certificate in the file: it needs one for {}", Purpose::Authority);
            return Err(Error::invalid(what));
        }
        Ok(found)
    }

    /// The certificates that are no CA's.
    pub(crate) fn take_leaves(self) -> Vec<Certificate> {
        let is_leaf = |certificate: &Certificate| certificate.purpose() != Purpose::Authority;
        self.certificates.into_iter().filter(is_leaf).collect()
    }

    /// The only certificate for that purpose, with its key.
    pub(crate) fn take_keyed(&mut self, purpose: Purpose, what: &str) -> Result<KeyedCertificate, Error> {
        let certificate = self.take_certificate(purpose, what)?;
        let key = self.take_key(&certificate).ok_or_else(|| {
            let advice = "no private key in the file is that of the certificate";
            Error::invalid(format!("{advice}: cn={} serial={}", certificate.name(), certificate.serial()))
        })?;
        KeyedCertificate::new(certificate, key)
    }

    /// The key of that CA, if the file has it.
    pub(crate) fn take_ca_key(&mut self, ca: &Certificate) -> Result<Option<CaKey>, Error> {
        match (self.take_key(ca), self.sealed.pop()) {
            (Some(key), None) => Ok(Some(CaKey::Plain(key))),
            (None, Some(sealed)) => Ok(Some(CaKey::Sealed(sealed))),
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                Err(Error::invalid("the CA key is in the file twice; remove the one in clear"))
            }
        }
    }

    pub(crate) fn take_denylist(&mut self) -> Denylist {
        std::mem::take(&mut self.denylist)
    }

    /// Refuses sections that were not consumed.
    pub(crate) fn finish(self, what: &str) -> Result<(), Error> {
        if let Some(certificate) = self.certificates.first() {
            let values = format!("purpose={} cn={}", certificate.purpose(), certificate.name());
            return Err(Error::invalid(format!("a certificate that does not belong into {what}: {values}")));
        }
        if !self.keys.is_empty() || !self.sealed.is_empty() {
            return Err(Error::invalid(format!("a private key that does not belong into {what}; remove it")));
        }
        if !self.denylist.is_empty() {
            return Err(Error::invalid(format!("a denylist does not belong into {what}; remove it")));
        }
        Ok(())
    }

    fn take_certificate(&mut self, purpose: Purpose, what: &str) -> Result<Certificate, Error> {
        let wanted = |certificate: &Certificate| certificate.purpose() == purpose;
        match self.certificates.iter().filter(|certificate| wanted(certificate)).count() {
            0 => Err(Error::invalid(format!("no {what} in the file: it needs one for {purpose}"))),
            1 => {
                let at = self.certificates.iter().position(wanted).expect("counted");
                Ok(self.certificates.remove(at))
            }
            count => Err(Error::invalid(format!("more than one {what} in the file: count={count}"))),
        }
    }

    fn take_key(&mut self, certificate: &Certificate) -> Option<PrivateKey> {
        let at = self.keys.iter().position(|key| key.public() == certificate.public_key())?;
        Some(self.keys.remove(at))
    }
}

/// Builds the text of a file. It may contain keys, and is zeroized on drop.
pub(crate) struct PemWriter(Zeroizing<String>);

impl PemWriter {
    pub(crate) fn new() -> PemWriter {
        // Enough for most files, so that a reallocation seldom leaves a copy in memory.
        PemWriter(Zeroizing::new(String::with_capacity(64 * 1024)))
    }

    pub(crate) fn certificate(mut self, certificate: &Certificate) -> PemWriter {
        self.section(CERTIFICATE, certificate.der());
        self
    }

    pub(crate) fn certificates(self, certificates: &[Certificate]) -> PemWriter {
        certificates.iter().fold(self, PemWriter::certificate)
    }

    pub(crate) fn keyed(self, keyed: &KeyedCertificate) -> PemWriter {
        self.certificate(keyed.certificate()).key(keyed.key())
    }

    pub(crate) fn ca_key(mut self, key: &CaKey) -> PemWriter {
        match key {
            CaKey::Plain(key) => self.key(key),
            CaKey::Sealed(sealed) => {
                self.section(SEALED_CA_KEY, sealed.as_bytes());
                self
            }
        }
    }

    pub(crate) fn denylist(mut self, denylist: &Denylist) -> PemWriter {
        if !denylist.is_empty() {
            self.section(DENYLIST, denylist.to_string().as_bytes());
        }
        self
    }

    pub(crate) fn finish(self) -> Zeroizing<String> {
        self.0
    }

    fn key(mut self, key: &PrivateKey) -> PemWriter {
        let label = match key.der() {
            PrivateKeyDer::Pkcs1(_) => RSA_PRIVATE_KEY,
            PrivateKeyDer::Sec1(_) => EC_PRIVATE_KEY,
            _ => PRIVATE_KEY,
        };
        self.section(label, key.der().secret_der());
        self
    }

    fn section(&mut self, label: &str, bytes: &[u8]) {
        let section = Pem::new(label, bytes);
        let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
        self.0.push_str(&Zeroizing::new(pem::encode_config(&section, config)));
        section.into_contents().zeroize();
    }
}
