//! The CAs that an identity file trusts: usually one, two while a CA is replaced by another.
//!
//! **Invariant.** The first anchor issued the certificates of the file; no anchor is in the list twice.
//!
//! **What is absent.** Verification: see [`crate::trust`].

use crate::certificate::Certificate;
use crate::error::Error;
use crate::serial::Serial;

/// Maximum number of trusted CAs in a file: two for an exchange, the rest for CAs that are distributed as a set.
const ANCHORS_MAX: usize = 8;

/// Trusted CAs; the issuer of the file's own certificates first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustAnchors(Vec<Certificate>);

impl From<Certificate> for TrustAnchors {
    fn from(issuer: Certificate) -> TrustAnchors {
        TrustAnchors(vec![issuer])
    }
}

impl TrustAnchors {
    /// All of these CAs; the first is the issuer of the file's own certificates.
    pub(crate) fn new(
        issuer: Certificate,
        others: impl IntoIterator<Item = Certificate>,
    ) -> Result<TrustAnchors, Error> {
        others.into_iter().try_fold(TrustAnchors::from(issuer), TrustAnchors::with)
    }

    /// Trusts another CA too. A CA that is trusted already is not added again.
    pub fn with(mut self, ca: Certificate) -> Result<TrustAnchors, Error> {
        if self.0.contains(&ca) {
            return Ok(self);
        }
        if self.0.len() == ANCHORS_MAX {
            let what = "too many CAs in one file; remove one with `lockd auth trust --remove`";
            return Err(Error::invalid(format!("{what}: max={ANCHORS_MAX}")));
        }
        self.0.push(ca);
        Ok(self)
    }

    /// Trusts the CAs of another file too.
    pub fn with_all(self, others: &TrustAnchors) -> Result<TrustAnchors, Error> {
        others.iter().cloned().try_fold(self, TrustAnchors::with)
    }

    /// Trusts the CA with this serial no longer. Refuses the issuer of the file's own certificates, and an unknown CA.
    pub fn without(mut self, ca: Serial) -> Result<TrustAnchors, Error> {
        if self.issuer().serial() == ca {
            let what = "the file's own certificates are of this CA; renew them first with `lockd auth renew --ca-in`";
            return Err(Error::invalid(format!("{what}: serial={ca}")));
        }
        let before = self.0.len();
        self.0.retain(|anchor| anchor.serial() != ca);
        if self.0.len() == before {
            return Err(Error::invalid(format!("the file does not trust this CA: serial={ca}")));
        }
        Ok(self)
    }

    /// The CA that issued the file's own certificates.
    pub fn issuer(&self) -> &Certificate {
        &self.0[0]
    }

    /// All of them, the issuer first.
    pub fn iter(&self) -> impl Iterator<Item = &Certificate> {
        self.0.iter()
    }

    /// The others.
    pub fn others(&self) -> &[Certificate] {
        &self.0[1..]
    }

    /// Whether this CA is trusted.
    pub fn contains(&self, ca: &Certificate) -> bool {
        self.0.contains(ca)
    }
}
