//! The three kinds of identity file: a CA's, a server's, a client's.
//!
//! **Invariant.** A parsed file is complete and consistent. Every certificate was issued by a CA in the file and has its
//! key and the right purpose; nothing is missing or superfluous. Validity dates and revocation change over time, so they
//! are checked separately, by `check`.
//!
//! Sections may be in any order: keys are matched to certificates by their public key, and of several CAs the issuer is
//! found by its signature. A file has a second CA while one CA is replaced by another: peers of both are accepted.

use rustls::pki_types::UnixTime;
use zeroize::Zeroizing;

use crate::anchors::TrustAnchors;
use crate::certificate::{Certificate, Purpose};
use crate::denylist::{CertificateRefusal, Denylist};
use crate::error::Error;
use crate::key::{CaKey, KeyedCertificate};
use crate::peer::PeerIdentity;
use crate::rights::Role;
use crate::section::{PemWriter, Sections};
use crate::trust::Trust;

/// `ca.pem`: the CA's certificate and key.
#[derive(Clone, Debug)]
pub struct CaBundle {
    certificate: Certificate,
    key: CaKey,
}

impl CaBundle {
    /// A CA's file. An encrypted key stays encrypted, and is verified when it is opened.
    pub fn new(certificate: Certificate, key: CaKey) -> CaBundle {
        CaBundle { certificate, key }
    }

    /// Parses the file's text.
    pub fn parse(text: &str) -> Result<CaBundle, Error> {
        let mut sections = Sections::parse(text)?;
        let certificate = sections.take_ca()?;
        Trust::in_ca(&certificate)?;
        let key = sections.take_ca_key(&certificate)?;
        let key = key.ok_or_else(|| Error::invalid("the CA's private key is not in the file"))?;
        sections.finish("a CA's file")?;
        Ok(CaBundle { certificate, key })
    }

    /// The file's text. It is secret.
    pub fn to_pem(&self) -> Zeroizing<String> {
        PemWriter::new().certificate(&self.certificate).ca_key(&self.key).finish()
    }

    /// The CA's certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The CA's key.
    pub fn key(&self) -> &CaKey {
        &self.key
    }
}

/// `server.pem`: a server's certificate for clients, and its certificate for forwarding to other servers.
#[derive(Clone, Debug)]
pub struct ServerBundle {
    anchors: TrustAnchors,
    ca_key: Option<CaKey>,
    server: KeyedCertificate,
    forwarding: Option<KeyedCertificate>,
    denylist: Denylist,
}

impl ServerBundle {
    /// Refuses certificates of another CA or with another purpose.
    pub fn new(
        anchors: TrustAnchors,
        server: KeyedCertificate,
        forwarding: Option<KeyedCertificate>,
    ) -> Result<ServerBundle, Error> {
        let trust = Trust::in_anchors(&anchors)?;
        trust.check_issued(&server)?;
        if server.certificate().purpose() != Purpose::Server {
            return Err(Error::invalid("the server's certificate is not for servers"));
        }
        if let Some(forwarding) = &forwarding {
            trust.check_issued(forwarding)?;
            if PeerIdentity::of(forwarding.certificate())?.role != Role::Server {
                return Err(Error::invalid("the certificate for forwarding does not carry the role server"));
            }
        }
        Ok(ServerBundle { anchors, ca_key: None, server, forwarding, denylist: Denylist::default() })
    }

    /// Parses the file's text.
    pub fn parse(text: &str) -> Result<ServerBundle, Error> {
        let mut sections = Sections::parse(text)?;
        let cas = sections.take_cas()?;
        let server = sections.take_keyed(Purpose::Server, "server certificate")?;
        let forwarding = sections.take_keyed(Purpose::Client, "certificate for forwarding")?;
        let anchors = anchors_of(cas, &server)?;
        let ca_key = sections.take_ca_key(anchors.issuer())?;
        let denylist = sections.take_denylist();
        sections.finish("a server's file")?;
        let bundle = ServerBundle::new(anchors, server, Some(forwarding))?;
        Ok(ServerBundle { ca_key, denylist, ..bundle })
    }

    /// From the texts of a certificate, its key and the trusted CAs. It has no certificate for forwarding.
    pub fn from_separate(certificate: &str, key: &str, ca: &str) -> Result<ServerBundle, Error> {
        let server = Sections::keyed_chain(certificate, key)?;
        ServerBundle::new(anchors_of(ca_certificates(ca)?, &server)?, server, None)
    }

    /// Adds the CA's key: with it, the file suffices to issue client certificates.
    #[must_use]
    pub fn with_ca_key(mut self, key: CaKey) -> ServerBundle {
        self.ca_key = Some(key);
        self
    }

    /// Trusts these CAs. Refuses a list without the issuer of the file's own certificates.
    pub fn with_anchors(self, anchors: TrustAnchors) -> Result<ServerBundle, Error> {
        let ServerBundle { ca_key, server, forwarding, denylist, .. } = self;
        Ok(ServerBundle { ca_key, denylist, ..ServerBundle::new(anchors, server, forwarding)? })
    }

    /// Replaces the denylist.
    #[must_use]
    pub fn with_denylist(mut self, denylist: Denylist) -> ServerBundle {
        self.denylist = denylist;
        self
    }

    /// The file's text. It is secret.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut writer = PemWriter::new().certificate(self.ca());
        if let Some(key) = &self.ca_key {
            writer = writer.ca_key(key);
        }
        writer = writer.keyed(&self.server);
        if let Some(forwarding) = &self.forwarding {
            writer = writer.keyed(forwarding);
        }
        writer.certificates(self.anchors.others()).denylist(&self.denylist).finish()
    }

    /// The certificate of the CA that issued the file's own certificates.
    pub fn ca(&self) -> &Certificate {
        self.anchors.issuer()
    }

    /// All CAs whose clients are accepted.
    pub fn anchors(&self) -> &TrustAnchors {
        &self.anchors
    }

    /// The CA's key, if it is in the file.
    pub fn ca_key(&self) -> Option<&CaKey> {
        self.ca_key.as_ref()
    }

    /// The certificate for clients (`ServerAuth`).
    pub fn server(&self) -> &KeyedCertificate {
        &self.server
    }

    /// The certificate for other servers (`ClientAuth`, role `server`).
    pub fn forwarding(&self) -> Option<&KeyedCertificate> {
        self.forwarding.as_ref()
    }

    /// The file's own certificates.
    pub fn own(&self) -> impl Iterator<Item = &KeyedCertificate> {
        [&self.server].into_iter().chain(&self.forwarding)
    }

    /// The denylist in this file.
    pub fn denylist(&self) -> &Denylist {
        &self.denylist
    }

    /// The problems of the file at the time `now`; empty if it is valid.
    pub fn check(&self, denylist: &Denylist, now: UnixTime) -> Vec<String> {
        let denylist = self.denylist.union(denylist);
        problems(&self.anchors, self.own(), &denylist, now)
    }

    /// The problems of a client's file at the time `now`; empty if this server would accept the client, and the client
    /// this server.
    pub fn check_client(&self, client: &ClientBundle, denylist: &Denylist, now: UnixTime) -> Vec<String> {
        let denylist = self.denylist.union(denylist);
        let mut found = problems(&self.anchors, [&client.client], &denylist, now);
        if !client.anchors.contains(self.ca()) {
            found.push("the client's file has another CA: it would not trust this server".to_string());
        }
        let server = self.server.certificate().serial();
        if client.denylist.contains(server) {
            found.push(format!("this server is revoked in the client's file: serial={server}"));
        }
        found
    }
}

/// `clientX.pem`: a client's certificate, the CAs that it trusts, and the servers that it does not.
#[derive(Clone, Debug)]
pub struct ClientBundle {
    anchors: TrustAnchors,
    client: KeyedCertificate,
    identity: PeerIdentity,
    denylist: Denylist,
}

impl ClientBundle {
    /// Refuses a certificate of another CA or with another purpose.
    pub fn new(anchors: TrustAnchors, client: KeyedCertificate) -> Result<ClientBundle, Error> {
        Trust::in_anchors(&anchors)?.check_issued(&client)?;
        let identity = PeerIdentity::of_own(client.certificate())?;
        Ok(ClientBundle { anchors, client, identity, denylist: Denylist::default() })
    }

    /// Parses the file's text.
    pub fn parse(text: &str) -> Result<ClientBundle, Error> {
        let mut sections = Sections::parse(text)?;
        let cas = sections.take_cas()?;
        let client = sections.take_keyed(Purpose::Client, "client certificate")?;
        let denylist = sections.take_denylist();
        sections.finish("a client's file")?;
        let anchors = anchors_of(cas, &client)?;
        Ok(ClientBundle { denylist, ..ClientBundle::new(anchors, client)? })
    }

    /// From the texts of a certificate, its key and the trusted CAs.
    pub(crate) fn from_separate(certificate: &str, key: &str, ca: &str) -> Result<ClientBundle, Error> {
        let client = Sections::keyed_chain(certificate, key)?;
        ClientBundle::new(anchors_of(ca_certificates(ca)?, &client)?, client)
    }

    /// The file's text. It is secret. The client's certificate comes first: tools that read certificate and key from one
    /// file, such as curl, use the first one.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let writer = PemWriter::new().keyed(&self.client).certificate(self.ca());
        writer.certificates(self.anchors.others()).denylist(&self.denylist).finish()
    }

    /// Trusts these CAs. Refuses a list without the issuer of the file's own certificate.
    pub fn with_anchors(self, anchors: TrustAnchors) -> Result<ClientBundle, Error> {
        Ok(ClientBundle { denylist: self.denylist, ..ClientBundle::new(anchors, self.client)? })
    }

    /// Replaces the denylist: the servers with these serials are not trusted.
    #[must_use]
    pub fn with_denylist(mut self, denylist: Denylist) -> ClientBundle {
        self.denylist = denylist;
        self
    }

    /// The certificate of the CA that issued the client's.
    pub fn ca(&self) -> &Certificate {
        self.anchors.issuer()
    }

    /// All CAs whose servers are trusted.
    pub fn anchors(&self) -> &TrustAnchors {
        &self.anchors
    }

    /// The certificate for servers.
    pub fn client(&self) -> &KeyedCertificate {
        &self.client
    }

    /// The identity in the certificate, with its rights.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// Revoked servers.
    pub fn denylist(&self) -> &Denylist {
        &self.denylist
    }
}

/// The certificates in a PEM text that are no CA's: of a client's or server's file, or of a certificate alone.
pub fn leaf_certificates(text: &str) -> Result<Vec<Certificate>, Error> {
    Ok(Sections::parse(text)?.take_leaves())
}

/// The CA certificates in a PEM text: a CA's file, with or without its key, or any identity file.
pub fn ca_certificates(text: &str) -> Result<Vec<Certificate>, Error> {
    Sections::parse(text)?.take_cas()
}

/// The trust anchors of a file, with the issuer of its own certificate first.
fn anchors_of(mut cas: Vec<Certificate>, own: &KeyedCertificate) -> Result<TrustAnchors, Error> {
    let is_issuer = |ca: &Certificate| Trust::in_ca(ca).is_ok_and(|trust| trust.check_issued(own).is_ok());
    let issuer = cas.remove(cas.iter().position(is_issuer).unwrap_or(0));
    TrustAnchors::new(issuer, cas)
}

fn problems<'a>(
    anchors: &TrustAnchors,
    own: impl IntoIterator<Item = &'a KeyedCertificate>,
    denylist: &Denylist,
    now: UnixTime,
) -> Vec<String> {
    let mut found = Vec::new();
    // The TLS library does not check the validity dates of a root.
    for ca in anchors.iter().filter(|ca| now < ca.not_before() || now > ca.not_after()) {
        found.push(format!("the CA certificate has expired, or is not valid yet: cn={}", ca.name()));
    }
    let trust = Trust::in_anchors(anchors).expect("checked when the file was parsed");
    for keyed in own {
        let serial = keyed.certificate().serial();
        found.extend(trust.check_at(keyed, now).err().map(|error| error.to_string()));
        if denylist.contains(serial) {
            found.push(CertificateRefusal::Revoked(serial).to_string());
        }
    }
    found
}
