//! A parsed certificate.
//!
//! **Invariant.** A [`Certificate`] has one purpose: CA, server or client. Certificates for both sides, for neither, or for
//! any purpose are refused, so that a stolen server certificate cannot be used as a client's. The exception is a workload:
//! SPIFFE issuers write both purposes, so such a certificate is never a server's, and a client's only if its id is mapped.
//!
//! **What is absent.** Verification of issuer and validity. See [`crate::trust`].

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::error::Error;
use crate::serial::Serial;
use crate::spiffe::SCHEME;

/// The purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A CA, which issues other certificates.
    Authority,
    /// A server (`ServerAuth`).
    Server,
    /// A client (`ClientAuth`).
    Client,
    /// A workload of a SPIFFE issuer (`ServerAuth` and `ClientAuth`).
    Workload,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Purpose::Authority => "CA",
            Purpose::Server => "ServerAuth",
            Purpose::Client => "ClientAuth",
            Purpose::Workload => "ServerAuth and ClientAuth",
        })
    }
}

/// A common name; for a client, its identity. 1 to 64 characters, without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Maximum number of characters of a common name.
    pub const CHARS_MAX: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Name, Error> {
        let chars = text.chars().count();
        if chars == 0 || chars > Name::CHARS_MAX || text.chars().any(char::is_control) {
            let rule = format!("a common name has 1 to {} characters, none of them control", Name::CHARS_MAX);
            return Err(Error::invalid(format!("{rule}: cn={}", text.escape_debug())));
        }
        Ok(Name(text.to_string()))
    }
}

/// A certificate with its parsed fields.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    name: Name,
    has_common_name: bool,
    serial: Serial,
    purpose: Purpose,
    not_before: UnixTime,
    not_after: UnixTime,
    hosts: Vec<String>,
    uris: Vec<String>,
    public_key: Vec<u8>,
    algorithm: &'static str,
}

impl Certificate {
    /// Parses a DER certificate.
    pub fn parse(der: &[u8]) -> Result<Certificate, Error> {
        let malformed = |what: &dyn fmt::Display| Error::invalid(format!("not a certificate: {what}"));
        let (rest, x509) = X509Certificate::from_der(der).map_err(|error| malformed(&error))?;
        if !rest.is_empty() {
            return Err(malformed(&"trailing bytes"));
        }
        let (hosts, uris) = alternative_names(&x509)?;
        let common_name = common_name(&x509)?;
        let has_common_name = common_name.is_some();
        let name = common_name.or_else(|| substitute_name(&uris, &hosts));
        Ok(Certificate {
            der: CertificateDer::from(der.to_vec()),
            name: name.ok_or_else(|| Error::invalid(NO_NAME))?,
            has_common_name,
            serial: Serial::from_bytes(x509.raw_serial())
                .ok_or_else(|| Error::invalid("the certificate's serial is 0, or over 20 bytes"))?,
            purpose: purpose(&x509, spiffe_id(&uris).is_some())?,
            not_before: unix_time(x509.validity().not_before.timestamp()),
            not_after: unix_time(x509.validity().not_after.timestamp()),
            hosts,
            uris,
            public_key: x509.public_key().raw.to_vec(),
            algorithm: algorithm(x509.public_key()),
        })
    }

    /// The DER encoding.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The common name; without one, the SPIFFE id or the first host.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The serial number.
    pub fn serial(&self) -> Serial {
        self.serial
    }

    /// The purpose.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Start of validity.
    pub fn not_before(&self) -> UnixTime {
        self.not_before
    }

    /// End of validity, inclusive.
    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }

    /// Host names and addresses, for other tools; lockd ignores them.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The algorithm of the key.
    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// Whether the name is a common name, and so can be an identity.
    pub(crate) fn has_common_name(&self) -> bool {
        self.has_common_name
    }

    /// The SPIFFE id, if there is exactly one.
    pub(crate) fn spiffe_id(&self) -> Option<&str> {
        spiffe_id(&self.uris)
    }

    pub(crate) fn uris(&self) -> &[String] {
        &self.uris
    }

    /// The public key, as DER (`SubjectPublicKeyInfo`).
    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({} cn={:?} serial={})", self.purpose, self.name.0, self.serial)
    }
}

fn extension_error(error: &X509Error) -> Error {
    Error::invalid(format!("the certificate's extensions cannot be read: {error}"))
}

const NO_NAME: &str = "a certificate must have one common name: it is the identity";

/// `None` if there is none.
fn common_name(x509: &X509Certificate<'_>) -> Result<Option<Name>, Error> {
    let mut names = x509.subject().iter_common_name();
    match (names.next(), names.next()) {
        (Some(name), None) => {
            let text = name.as_str().map_err(|_| Error::invalid("the common name is no text"))?;
            text.parse().map(Some)
        }
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(Error::invalid(NO_NAME)),
    }
}

/// A name to show: the end of the SPIFFE id, or the first host.
fn substitute_name(uris: &[String], hosts: &[String]) -> Option<Name> {
    let text = spiffe_id(uris).or(hosts.first().map(String::as_str))?;
    let excess = text.chars().count().saturating_sub(Name::CHARS_MAX);
    text.chars().skip(excess).collect::<String>().parse().ok()
}

fn spiffe_id(uris: &[String]) -> Option<&str> {
    let mut ids = uris.iter().filter(|uri| uri.starts_with(SCHEME));
    match (ids.next(), ids.next()) {
        (Some(id), None) => Some(id),
        _ => None,
    }
}

fn purpose(x509: &X509Certificate<'_>, has_spiffe_id: bool) -> Result<Purpose, Error> {
    if x509.basic_constraints().map_err(|error| extension_error(&error))?.is_some_and(|found| found.value.ca)
    {
        let usage = x509.key_usage().map_err(|error| extension_error(&error))?;
        return if usage.is_none_or(|usage| usage.value.key_cert_sign()) {
            Ok(Purpose::Authority)
        } else {
            Err(Error::invalid("the CA's key usage does not let it sign certificates"))
        };
    }
    let usage = x509.extended_key_usage().map_err(|error| extension_error(&error))?;
    let usage = usage.map_or((false, false, false), |found| {
        (found.value.any, found.value.server_auth, found.value.client_auth)
    });
    match usage {
        (false, true, false) => Ok(Purpose::Server),
        (false, false, true) => Ok(Purpose::Client),
        (false, true, true) if has_spiffe_id => Ok(Purpose::Workload),
        (false, false, false) => Err(Error::invalid(
            "the certificate is for nothing: it needs the extended key usage ServerAuth or ClientAuth",
        )),
        _ => {
            Err(Error::invalid("the certificate is for both sides; ServerAuth and ClientAuth take one each"))
        }
    }
}

/// Hosts and URIs.
fn alternative_names(x509: &X509Certificate<'_>) -> Result<(Vec<String>, Vec<String>), Error> {
    let (mut hosts, mut uris) = (Vec::new(), Vec::new());
    let found = x509.subject_alternative_name().map_err(|error| extension_error(&error))?;
    for name in found.iter().flat_map(|found| &found.value.general_names) {
        match name {
            GeneralName::DNSName(host) => hosts.push((*host).to_string()),
            GeneralName::IPAddress(bytes) => hosts.push(address(bytes)?),
            GeneralName::URI(uri) => uris.push((*uri).to_string()),
            GeneralName::Invalid(..) => {
                return Err(Error::invalid("an alternative name of the certificate cannot be read"));
            }
            _ => {}
        }
    }
    Ok((hosts, uris))
}

fn address(bytes: &[u8]) -> Result<String, Error> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).to_string());
    let v6 = <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).to_string());
    v4.or(v6).map_err(|_| Error::invalid("an address in the certificate has neither 4 nor 16 bytes"))
}

/// Times before 1970 become 1970.
fn unix_time(seconds: i64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn algorithm(key: &SubjectPublicKeyInfo<'_>) -> &'static str {
    let curve = key.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
    match key.algorithm.algorithm.to_id_string().as_str() {
        "1.3.101.112" => "Ed25519",
        "1.2.840.113549.1.1.1" => "RSA",
        "1.2.840.10045.2.1" => match curve.map(|oid| oid.to_id_string()).as_deref() {
            Some("1.2.840.10045.3.1.7") => "P-256",
            Some("1.3.132.0.34") => "P-384",
            _ => "EC",
        },
        _ => "other",
    }
}
