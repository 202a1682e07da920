//! The project's CA: creates itself, and issues certificates for servers and clients.
//!
//! **Invariant.** An issued certificate has one purpose, a random serial of 16 bytes, and does not outlive its CA.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::anchors::TrustAnchors;
use crate::bundle::{CaBundle, ClientBundle, ServerBundle};
use crate::certificate::{Certificate, Name};
use crate::error::{Error, ErrorKind};
use crate::key::{CaKey, KeyedCertificate, PrivateKey};
use crate::rights::{Rights, Role, to_uris};
use crate::seal::{Cost, Passphrase, SealedKey};
use crate::serial::Serial;

/// Certificates are valid from this long before their creation, for hosts whose clock is behind.
const BACKDATED: Duration = Duration::from_secs(10 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The algorithm of a new key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA on P-256, which every tool supports.
    #[default]
    P256,
    /// Ed25519.
    Ed25519,
}

impl Algorithm {
    /// The algorithm of a certificate's key, for a new key of the same kind.
    fn of(certificate: &Certificate) -> Result<Algorithm, Error> {
        match certificate.algorithm() {
            "P-256" => Ok(Algorithm::P256),
            "Ed25519" => Ok(Algorithm::Ed25519),
            other => {
                let what =
                    "keys of this algorithm are not generated; make a new identity with `lockd auth new`";
                Err(Error::invalid(format!("{what}: algorithm={other}")))
            }
        }
    }
}

/// A validity period: 1 to 36,500 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days(u32);

impl Days {
    /// Default for a CA: ten years.
    pub const CA_DEFAULT: Days = Days(3650);
    /// Default for other certificates: one year.
    pub const DEFAULT: Days = Days(365);
    const MAX: u32 = 36_500;

    /// The validity period of a certificate, in whole days; at least one.
    fn of(certificate: &Certificate) -> Days {
        let (from, until) = (certificate.not_before().as_secs(), certificate.not_after().as_secs());
        let days = until.saturating_sub(from).saturating_sub(BACKDATED.as_secs()).div_ceil(DAY.as_secs());
        Days(u32::try_from(days).unwrap_or(Days::MAX).clamp(1, Days::MAX))
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Days {
    type Err = Error;

    fn from_str(text: &str) -> Result<Days, Error> {
        let days = text.parse().ok().filter(|days| (1..=Days::MAX).contains(days));
        let rule = || Error::invalid(format!("days are a number from 1 to {}: days={text}", Days::MAX));
        days.map(Days).ok_or_else(rule)
    }
}

/// A host that a server's certificate names: a DNS name, with or without `*`, or an address. lockd's own clients do not
/// verify it; curl and other tools do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(SanType);

impl Host {
    /// The hosts of a certificate that is made without naming any: this machine, by every name that a local client
    /// uses. A host name that is no DNS name is left out.
    pub fn of_this_machine(host_name: &str) -> Vec<Host> {
        let mut names = vec!["localhost", "127.0.0.1", "::1"];
        names.extend(Some(host_name).filter(|name| *name != "localhost"));
        names.iter().filter_map(|name| name.parse().ok()).collect()
    }
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Host, Error> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Host(SanType::IpAddress(address)));
        }
        let known = |c: char| c.is_ascii_alphanumeric() || "*.-_".contains(c);
        if text.is_empty() || text.len() > 253 || !text.chars().all(known) {
            let rule = "a host is a DNS name or an address, without a port";
            return Err(Error::invalid(format!("{rule}: host={}", text.escape_debug())));
        }
        Ok(Host(SanType::DnsName(Ia5String::try_from(text).expect("letters, digits and dots"))))
    }
}

/// The time and randomness for issuing certificates.
pub struct IssueContext<'a> {
    /// The current time.
    pub now: UnixTime,
    /// Fills a buffer with cryptographically secure random bytes.
    pub fill: &'a mut dyn FnMut(&mut [u8]),
}

/// A CA with its decrypted key.
pub struct Authority {
    own: KeyedCertificate,
    /// The same key, in the form of the signing library.
    pair: Zeroizing<KeyPair>,
}

impl Authority {
    /// Creates a CA.
    pub fn create(
        name: &Name,
        algorithm: Algorithm,
        days: Days,
        moment: &mut IssueContext,
    ) -> Result<Authority, Error> {
        let pair = generate(algorithm)?;
        let mut params = base_params(name, moment);
        params.not_after = later(moment.now, days);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issued = params.self_signed(&*pair).map_err(|error| issue_error(&error))?;
        Authority::new(Certificate::parse(issued.der())?, private_key(&pair)?)
    }

    /// Opens a CA from its certificate and key. The passphrase is used only if the key is encrypted.
    pub fn open(ca: &Certificate, key: &CaKey, passphrase: Option<&Passphrase>) -> Result<Authority, Error> {
        Authority::new(ca.clone(), key.open(passphrase)?)
    }

    fn new(certificate: Certificate, key: PrivateKey) -> Result<Authority, Error> {
        let own = KeyedCertificate::new(certificate, key)?;
        let pair = Zeroizing::new(KeyPair::try_from(own.key().der()).map_err(|error| issue_error(&error))?);
        let authority = Authority { own, pair };
        authority.issuer()?;
        Ok(authority)
    }

    fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, Error> {
        Issuer::from_ca_cert_der(self.certificate().der(), &*self.pair).map_err(|error| issue_error(&error))
    }

    /// The CA's certificate.
    pub fn certificate(&self) -> &Certificate {
        self.own.certificate()
    }

    /// The CA's identity file, with its key in clear text or encrypted by a passphrase.
    pub fn to_bundle(
        &self,
        passphrase: Option<(&Passphrase, Cost)>,
        moment: &mut IssueContext,
    ) -> Result<CaBundle, Error> {
        let key = match passphrase {
            None => CaKey::Plain(self.own.key().clone()),
            Some((passphrase, cost)) => {
                CaKey::Sealed(SealedKey::seal(self.own.key(), passphrase, cost, moment.fill)?)
            }
        };
        Ok(CaBundle::new(self.certificate().clone(), key))
    }

    /// Issues a server's identity file, without the CA's key.
    pub fn issue_server(
        &self,
        name: &Name,
        hosts: &[Host],
        (algorithm, days): (Algorithm, Days),
        moment: &mut IssueContext,
    ) -> Result<ServerBundle, Error> {
        let hosts = hosts.iter().map(|host| host.0.clone()).collect();
        let server =
            self.issue(name, ExtendedKeyUsagePurpose::ServerAuth, hosts, (algorithm, days), moment)?;
        let forwarding_uris = uris(Role::Server, &Rights::none());
        let forwarding = self.issue(
            name,
            ExtendedKeyUsagePurpose::ClientAuth,
            forwarding_uris,
            (algorithm, days),
            moment,
        )?;
        ServerBundle::new(self.certificate().clone().into(), server, Some(forwarding))
    }

    /// Issues a client's identity file.
    pub fn issue_client(
        &self,
        name: &Name,
        (role, rights): (Role, &Rights),
        (algorithm, days): (Algorithm, Days),
        moment: &mut IssueContext,
    ) -> Result<ClientBundle, Error> {
        let identity_uris = uris(role, rights);
        let client =
            self.issue(name, ExtendedKeyUsagePurpose::ClientAuth, identity_uris, (algorithm, days), moment)?;
        ClientBundle::new(self.certificate().clone().into(), client)
    }

    /// Issues a server's certificates again: names, hosts, key algorithm, denylist and trusted CAs stay; keys, serials and
    /// dates are new. If another CA issued the old ones, that CA stays trusted too.
    pub fn renew_server(
        &self,
        old: &ServerBundle,
        days: Option<Days>,
        moment: &mut IssueContext,
    ) -> Result<ServerBundle, Error> {
        let certificate = old.server().certificate();
        let kind = (Algorithm::of(certificate)?, days.unwrap_or_else(|| Days::of(certificate)));
        let hosts = certificate.hosts().iter().map(|host| host.parse()).collect::<Result<Vec<Host>, _>>()?;
        let renewed = self.issue_server(certificate.name(), &hosts, kind, moment)?;
        let renewed =
            renewed.with_anchors(self.anchors_after(old.anchors())?)?.with_denylist(old.denylist().clone());
        let key = old.ca_key().filter(|_| old.ca() == self.certificate());
        Ok(key.into_iter().cloned().fold(renewed, ServerBundle::with_ca_key))
    }

    /// Issues a client's certificate again: name, role, rights, key algorithm, denylist and trusted CAs stay; key, serial
    /// and dates are new. If another CA issued the old one, that CA stays trusted too.
    pub fn renew_client(
        &self,
        old: &ClientBundle,
        days: Option<Days>,
        moment: &mut IssueContext,
    ) -> Result<ClientBundle, Error> {
        let certificate = old.client().certificate();
        let kind = (Algorithm::of(certificate)?, days.unwrap_or_else(|| Days::of(certificate)));
        let identity = old.identity();
        let who = (identity.role, &identity.rights);
        let renewed = self.issue_client(&identity.name, who, kind, moment)?;
        let renewed = renewed.with_anchors(self.anchors_after(old.anchors())?)?;
        Ok(renewed.with_denylist(old.denylist().clone()))
    }

    /// This CA first, then those that were trusted before.
    fn anchors_after(&self, old: &TrustAnchors) -> Result<TrustAnchors, Error> {
        TrustAnchors::new(self.certificate().clone(), old.iter().cloned())
    }

    fn issue(
        &self,
        name: &Name,
        purpose: ExtendedKeyUsagePurpose,
        alternative_names: Vec<SanType>,
        (algorithm, days): (Algorithm, Days),
        moment: &mut IssueContext,
    ) -> Result<KeyedCertificate, Error> {
        if moment.now > self.certificate().not_after() {
            let what = "the CA has expired; make a new one with `lockd auth new server`";
            return Err(Error::invalid(format!("{what}: cn={}", self.certificate().name())));
        }
        let pair = generate(algorithm)?;
        let mut params = base_params(name, moment);
        params.not_after = later(moment.now, days).min(instant(self.certificate().not_after()));
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.subject_alt_names = alternative_names;
        let issued = params.signed_by(&*pair, &self.issuer()?).map_err(|error| issue_error(&error))?;
        KeyedCertificate::new(Certificate::parse(issued.der())?, private_key(&pair)?)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({:?})", self.certificate())
    }
}

/// The parameters that all certificates share.
fn base_params(name: &Name, moment: &mut IssueContext) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.as_str());
    params.serial_number = Some(SerialNumber::from_slice(Serial::random(moment.fill).as_bytes()));
    let seconds = moment.now.as_secs().saturating_sub(BACKDATED.as_secs());
    params.not_before = instant(UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    params
}

fn uris(role: Role, rights: &Rights) -> Vec<SanType> {
    let text = |uri: String| Ia5String::try_from(uri).expect("percent-encoded");
    to_uris(role, rights).into_iter().map(|uri| SanType::URI(text(uri))).collect()
}

fn generate(algorithm: Algorithm) -> Result<Zeroizing<KeyPair>, Error> {
    let failed =
        |error: &dyn fmt::Display| Error::new(ErrorKind::Io, format!("cannot generate a key: {error}"));
    let pair = match algorithm {
        Algorithm::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        Algorithm::Ed25519 => {
            // In PKCS#8 version 1: OpenSSL 3 does not read version 2, which rcgen would write.
            let generated = Ed25519KeyPair::generate().and_then(|pair| pair.to_pkcs8v1());
            let der = generated.map_err(|error| failed(&error))?;
            let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(der.as_ref()));
            KeyPair::try_from(&der)
        }
    };
    pair.map(Zeroizing::new).map_err(|error| failed(&error))
}

fn private_key(pair: &KeyPair) -> Result<PrivateKey, Error> {
    PrivateKey::new(PrivatePkcs8KeyDer::from(pair.serialize_der()).into())
}

fn later(now: UnixTime, days: Days) -> OffsetDateTime {
    instant(UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + DAY * days.0))
}

/// Capped at the year 9999, the end of X.509 times.
fn instant(time: UnixTime) -> OffsetDateTime {
    const LAST: i64 = 253_402_300_799;
    let seconds = i64::try_from(time.as_secs()).unwrap_or(LAST).min(LAST);
    OffsetDateTime::from_unix_timestamp(seconds).expect("before the year 10000")
}

fn issue_error(error: &rcgen::Error) -> Error {
    Error::invalid(format!("cannot issue a certificate: {error}"))
}
