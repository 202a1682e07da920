//! When the server's certificates expire: for the warning in the log, the metric and readiness.
//!
//! **What is absent.** Certificates: only names and dates are kept here.

use std::sync::{PoisonError, RwLock};

/// When a certificate expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateDate {
    /// Which certificate: the label of the metric.
    pub(crate) which: CertificateUse,
    /// Its common name.
    pub(crate) name: String,
    /// The end of its validity, in Unix seconds.
    pub(crate) not_after: u64,
    /// The file that it is in, as the command that renews it needs it.
    pub(crate) file: String,
}

/// The uses of certificates in a server's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateUse {
    /// Presented to clients.
    Server,
    /// Presented to other servers.
    Forwarding,
    /// The CA that issued the server's certificates.
    Ca,
    /// A CA that is trusted as well.
    OtherCa,
}

impl CertificateUse {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            CertificateUse::Server => "server",
            CertificateUse::Forwarding => "forwarding",
            CertificateUse::Ca => "ca",
            CertificateUse::OtherCa => "other_ca",
        }
    }
}

impl CertificateDate {
    /// Seconds until it expires at the time `now`; negative once it has.
    pub(crate) fn remaining(&self, now: u64) -> i64 {
        self.not_after.cast_signed().saturating_sub(now.cast_signed())
    }

    /// What an operator has to do.
    pub(crate) fn advice(&self) -> String {
        match self.which {
            CertificateUse::Server | CertificateUse::Forwarding => {
                format!("renew it with `lockd auth renew --in {}`", self.file)
            }
            CertificateUse::Ca | CertificateUse::OtherCa => {
                "replace the CA as docs/operating/identities.md describes".to_string()
            }
        }
    }
}

/// The dates of the certificates in use; empty without mutual TLS.
#[derive(Debug, Default)]
pub(crate) struct CertificateDates(RwLock<Vec<CertificateDate>>);

impl CertificateDates {
    pub(crate) fn replace(&self, dates: Vec<CertificateDate>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = dates;
    }

    pub(crate) fn all(&self) -> Vec<CertificateDate> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why no client can trust this server at the time `now`, in Unix seconds.
    pub(crate) fn expired(&self, now: u64) -> Option<String> {
        let blocks = |date: &CertificateDate| {
            matches!(date.which, CertificateUse::Server | CertificateUse::Ca) && date.remaining(now) < 0
        };
        let date = self.all().into_iter().find(blocks)?;
        let (which, advice) = (date.which.as_str(), date.advice());
        Some(format!(
            "the {which} certificate has expired; {advice}: cn={} not_after_unix={}",
            date.name, date.not_after
        ))
    }
}
