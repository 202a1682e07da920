//! A CA with its servers and clients, a fixed clock, and deterministic randomness.

use std::time::Duration;

use identity::{
    Algorithm, Authority, ClientBundle, Cost, Days, IssueContext, Name, Passphrase, Rights, Role,
    ServerBundle, UnixTime,
};
use rcgen::{CertificateParams, DnType, Issuer, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use rustls::time_provider::TimeProvider;
use zeroize::Zeroizing;

pub(crate) const DAY: u64 = 24 * 60 * 60;
/// The time of all certificates here: November 2026.
pub(crate) const ISSUED_AT: u64 = 1_794_700_000;

pub(crate) fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// A fixed clock.
#[derive(Debug)]
pub(crate) struct FixedClock(pub(crate) UnixTime);

impl TimeProvider for FixedClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

/// Deterministic random bytes.
pub(crate) struct TestRandom(u64);

impl TestRandom {
    pub(crate) fn new(seed: u64) -> TestRandom {
        TestRandom(seed)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = self.0.to_le_bytes()[7];
        }
    }
}

/// A low cost, to keep tests fast.
pub(crate) const CHEAP: Cost = Cost { memory_kib: 32, passes: 1, lanes: 1 };

pub(crate) fn passphrase(text: &str) -> Passphrase {
    Passphrase::new(Zeroizing::new(text.to_string())).expect("not empty")
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A CA, and issued identity files.
pub(crate) struct Project {
    pub(crate) authority: Authority,
    algorithm: Algorithm,
    random: std::cell::RefCell<TestRandom>,
}

impl Project {
    pub(crate) fn new(seed: u64) -> Project {
        Project::with(seed, Algorithm::P256)
    }

    pub(crate) fn with(seed: u64, algorithm: Algorithm) -> Project {
        let mut random = TestRandom::new(seed);
        let mut moment = IssueContext { now: at(ISSUED_AT), fill: &mut |bytes| random.fill(bytes) };
        let ca = name("project CA");
        let authority = Authority::create(&ca, algorithm, Days::CA_DEFAULT, &mut moment).expect("a CA");
        Project { authority, algorithm, random: random.into() }
    }

    /// Runs `act` with the fixed time and the deterministic randomness.
    pub(crate) fn issue<T>(&self, act: impl FnOnce(&mut IssueContext) -> T) -> T {
        let mut random = self.random.borrow_mut();
        act(&mut IssueContext { now: at(ISSUED_AT), fill: &mut |bytes| random.fill(bytes) })
    }

    pub(crate) fn server(&self) -> ServerBundle {
        let hosts = ["*", "localhost", "127.0.0.1"].map(|host| host.parse().expect("a host"));
        let kind = (self.algorithm, Days::DEFAULT);
        let issued = self.issue(|moment| self.authority.issue_server(&name("lockd"), &hosts, kind, moment));
        issued.expect("a server")
    }

    pub(crate) fn client(&self, cn: &str) -> ClientBundle {
        let (kind, who) = ((self.algorithm, Days::DEFAULT), (Role::Worker, &Rights::client_default()));
        let issued = self.issue(|moment| self.authority.issue_client(&name(cn), who, kind, moment));
        issued.expect("a client")
    }

    /// The CA's file, not encrypted.
    pub(crate) fn ca_pem(&self) -> Zeroizing<String> {
        self.issue(|moment| self.authority.to_bundle(None, moment)).expect("a CA's file").to_pem()
    }

    /// An irregular certificate with its key, as PEM.
    pub(crate) fn irregular(&self, change: impl FnOnce(&mut CertificateParams)) -> String {
        let own = KeyPair::try_from(section(&self.ca_pem(), "PRIVATE KEY")).expect("the CA's key");
        let issuer = Issuer::from_ca_cert_der(self.authority.certificate().der(), own).expect("the CA");
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "odd");
        params.subject_alt_names = vec![SanType::URI("lockd:role/operator".try_into().expect("ASCII"))];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let made = params.signed_by(&key, &issuer).expect("a certificate");
        pem_of("CERTIFICATE", made.der()) + &pem_of("PRIVATE KEY", &key.serialize_der())
    }

    /// The CA's certificate alone, as PEM.
    pub(crate) fn ca_certificate(&self) -> String {
        pem_of("CERTIFICATE", self.authority.certificate().der())
    }
}

pub(crate) fn pem_of(label: &str, bytes: &[u8]) -> String {
    pem::encode(&pem::Pem::new(label, bytes)).replace("\r\n", "\n")
}

/// The sections of a file, as texts.
pub(crate) fn sections(text: &str) -> Vec<String> {
    let found = pem::parse_many(text).expect("PEM");
    found.iter().map(|section| pem_of(section.tag(), section.contents())).collect()
}

/// The content of the first section of that kind.
pub(crate) fn section(text: &str, label: &str) -> Vec<u8> {
    let found = pem::parse_many(text).expect("PEM");
    found.into_iter().find(|section| section.tag() == label).expect(label).into_contents()
}

/// The first certificate and the first key of a text.
pub(crate) fn pair(text: &str) -> (CertificateDer<'static>, Vec<u8>) {
    (section(text, "CERTIFICATE").into(), section(text, "PRIVATE KEY"))
}
