//! The project's CA at work: it makes itself, then servers and clients.
//!
//! Invariant: what is issued has one purpose, a random serial of 16 bytes, and does not outlive its CA.

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

use crate::bundle::{CaBundle, ClientBundle, ServerBundle};
use crate::certificate::{Certificate, Name};
use crate::error::{Error, ErrorKind};
use crate::key::{CaKey, KeyedCertificate, PrivateKey};
use crate::rights::{Rights, Role, to_uris};
use crate::seal::{Cost, Passphrase, SealedKey};
use crate::serial::Serial;

/// A host's clock may be behind ours by this much, and the certificate is good there all the same.
const BACKDATED: Duration = Duration::from_secs(10 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Which kind of key is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA on P-256: every tool understands it.
    #[default]
    P256,
    /// Ed25519.
    Ed25519,
}

/// For how long something is valid: 1 to 36,500 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days(u32);

impl Days {
    /// A CA: ten years.
    pub const OF_CA: Days = Days(3650);
    /// Everything else: a year.
    pub const USUAL: Days = Days(365);
    const MAX: u32 = 36_500;
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

/// When, and by which dice.
pub struct Moment<'a> {
    /// The time on the wall.
    pub now: UnixTime,
    /// Fills with random bytes that nobody can guess.
    pub fill: &'a mut dyn FnMut(&mut [u8]),
}

/// A CA whose key is at hand.
pub struct Authority {
    own: KeyedCertificate,
    /// The same key, as the library that signs wants it.
    pair: Zeroizing<KeyPair>,
}

impl Authority {
    /// A new CA.
    pub fn create(
        name: &Name,
        algorithm: Algorithm,
        days: Days,
        moment: &mut Moment,
    ) -> Result<Authority, Error> {
        let pair = generate(algorithm)?;
        let mut params = blank(name, moment);
        params.not_after = later(moment.now, days);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let made = params.self_signed(&*pair).map_err(|error| unissued(&error))?;
        Authority::new(Certificate::parse(made.der())?, private_key(&pair)?)
    }

    /// A CA from its certificate and key. The passphrase is used only if the key is encrypted.
    pub fn open(ca: &Certificate, key: &CaKey, passphrase: Option<&Passphrase>) -> Result<Authority, Error> {
        Authority::new(ca.clone(), key.open(passphrase)?)
    }

    fn new(certificate: Certificate, key: PrivateKey) -> Result<Authority, Error> {
        let own = KeyedCertificate::new(certificate, key)?;
        let pair = Zeroizing::new(KeyPair::try_from(own.key().der()).map_err(|error| unissued(&error))?);
        let authority = Authority { own, pair };
        authority.issuer()?;
        Ok(authority)
    }

    fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, Error> {
        Issuer::from_ca_cert_der(self.certificate().der(), &*self.pair).map_err(|error| unissued(&error))
    }

    /// The CA's certificate.
    pub fn certificate(&self) -> &Certificate {
        self.own.certificate()
    }

    /// The CA's file: its key in clear, or under a passphrase.
    pub fn to_bundle(
        &self,
        passphrase: Option<(&Passphrase, Cost)>,
        moment: &mut Moment,
    ) -> Result<CaBundle, Error> {
        let key = match passphrase {
            None => CaKey::Plain(self.own.key().clone()),
            Some((passphrase, cost)) => {
                CaKey::Sealed(SealedKey::seal(self.own.key(), passphrase, cost, moment.fill)?)
            }
        };
        Ok(CaBundle::new(self.certificate().clone(), key))
    }

    /// A server's file, without the CA's key.
    pub fn issue_server(
        &self,
        name: &Name,
        hosts: &[Host],
        (algorithm, days): (Algorithm, Days),
        moment: &mut Moment,
    ) -> Result<ServerBundle, Error> {
        let hosts = hosts.iter().map(|host| host.0.clone()).collect();
        let server =
            self.issue(name, ExtendedKeyUsagePurpose::ServerAuth, hosts, (algorithm, days), moment)?;
        let says = uris(Role::Server, &Rights::none());
        let forwarding =
            self.issue(name, ExtendedKeyUsagePurpose::ClientAuth, says, (algorithm, days), moment)?;
        ServerBundle::new(self.certificate().clone(), server, forwarding)
    }

    /// A client's file.
    pub fn issue_client(
        &self,
        name: &Name,
        (role, rights): (Role, &Rights),
        (algorithm, days): (Algorithm, Days),
        moment: &mut Moment,
    ) -> Result<ClientBundle, Error> {
        let says = uris(role, rights);
        let client =
            self.issue(name, ExtendedKeyUsagePurpose::ClientAuth, says, (algorithm, days), moment)?;
        ClientBundle::new(self.certificate().clone(), client)
    }

    fn issue(
        &self,
        name: &Name,
        purpose: ExtendedKeyUsagePurpose,
        alternative_names: Vec<SanType>,
        (algorithm, days): (Algorithm, Days),
        moment: &mut Moment,
    ) -> Result<KeyedCertificate, Error> {
        if moment.now > self.certificate().not_after() {
            let what = "the CA has expired; make a new one with `lockd auth new server`";
            return Err(Error::invalid(format!("{what}: cn={}", self.certificate().name())));
        }
        let pair = generate(algorithm)?;
        let mut params = blank(name, moment);
        params.not_after = later(moment.now, days).min(instant(self.certificate().not_after()));
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.subject_alt_names = alternative_names;
        let made = params.signed_by(&*pair, &self.issuer()?).map_err(|error| unissued(&error))?;
        KeyedCertificate::new(Certificate::parse(made.der())?, private_key(&pair)?)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({:?})", self.certificate())
    }
}

/// What all certificates have in common.
fn blank(name: &Name, moment: &mut Moment) -> CertificateParams {
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
    let unmade =
        |error: &dyn fmt::Display| Error::new(ErrorKind::Io, format!("no key could be made: {error}"));
    let pair = match algorithm {
        Algorithm::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        Algorithm::Ed25519 => {
            // In the first version of PKCS#8: the second, which rcgen would write, OpenSSL 3 does not read.
            let made = Ed25519KeyPair::generate().and_then(|pair| pair.to_pkcs8v1());
            let der = made.map_err(|error| unmade(&error))?;
            let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(der.as_ref()));
            KeyPair::try_from(&der)
        }
    };
    pair.map(Zeroizing::new).map_err(|error| unmade(&error))
}

fn private_key(pair: &KeyPair) -> Result<PrivateKey, Error> {
    PrivateKey::new(PrivatePkcs8KeyDer::from(pair.serialize_der()).into())
}

fn later(now: UnixTime, days: Days) -> OffsetDateTime {
    instant(UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + DAY * days.0))
}

/// What lies beyond the year 9999, where certificates end, is cut off there.
fn instant(time: UnixTime) -> OffsetDateTime {
    const LAST: i64 = 253_402_300_799;
    let seconds = i64::try_from(time.as_secs()).unwrap_or(LAST).min(LAST);
    OffsetDateTime::from_unix_timestamp(seconds).expect("before the year 10000")
}

fn unissued(error: &rcgen::Error) -> Error {
    Error::invalid(format!("no certificate could be made: {error}"))
}
