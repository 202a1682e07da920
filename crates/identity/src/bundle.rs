//! The three kinds of identity file: a CA's, a server's, a client's.
//!
//! **Invariant.** A parsed file is complete and consistent. Every certificate was issued by the CA in the file and has its
//! key and the right purpose; nothing is missing or superfluous. Validity dates and revocation change over time, so they
//! are checked separately, by `check`.
//!
//! Sections may be in any order: keys are matched to certificates by their public key.

use rustls::pki_types::UnixTime;
use zeroize::Zeroizing;

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
    ca: Certificate,
    ca_key: Option<CaKey>,
    server: KeyedCertificate,
    forwarding: KeyedCertificate,
    denylist: Denylist,
}

impl ServerBundle {
    /// Refuses certificates of another CA or with another purpose.
    pub fn new(
        ca: Certificate,
        server: KeyedCertificate,
        forwarding: KeyedCertificate,
    ) -> Result<ServerBundle, Error> {
        let trust = Trust::in_ca(&ca)?;
        trust.check_issued(server.certificate())?;
        trust.check_issued(forwarding.certificate())?;
        if PeerIdentity::of(forwarding.certificate())?.role != Role::Server {
            return Err(Error::invalid("the certificate for forwarding does not carry the role server"));
        }
        if server.certificate().purpose() != Purpose::Server {
            return Err(Error::invalid("the server's certificate is not for servers"));
        }
        Ok(ServerBundle { ca, ca_key: None, server, forwarding, denylist: Denylist::default() })
    }

    /// Parses the file's text.
    pub fn parse(text: &str) -> Result<ServerBundle, Error> {
        let mut sections = Sections::parse(text)?;
        let ca = sections.take_ca()?;
        let server = sections.take_keyed(Purpose::Server, "server certificate")?;
        let forwarding = sections.take_keyed(Purpose::Client, "certificate for forwarding")?;
        let ca_key = sections.take_ca_key(&ca)?;
        let denylist = sections.take_denylist();
        sections.finish("a server's file")?;
        let bundle = ServerBundle::new(ca, server, forwarding)?;
        Ok(ServerBundle { ca_key, denylist, ..bundle })
    }

    /// Adds the CA's key: with it, the file suffices to issue client certificates.
    #[must_use]
    pub fn with_ca_key(mut self, key: CaKey) -> ServerBundle {
        self.ca_key = Some(key);
        self
    }

    /// Replaces the denylist.
    #[must_use]
    pub fn with_denylist(mut self, denylist: Denylist) -> ServerBundle {
        self.denylist = denylist;
        self
    }

    /// The file's text. It is secret.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut writer = PemWriter::new().certificate(&self.ca);
        if let Some(key) = &self.ca_key {
            writer = writer.ca_key(key);
        }
        writer.keyed(&self.server).keyed(&self.forwarding).denylist(&self.denylist).finish()
    }

    /// The CA's certificate.
    pub fn ca(&self) -> &Certificate {
        &self.ca
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
    pub fn forwarding(&self) -> &KeyedCertificate {
        &self.forwarding
    }

    /// The denylist in this file.
    pub fn denylist(&self) -> &Denylist {
        &self.denylist
    }

    /// The problems of the file at the time `now`; empty if it is valid.
    pub fn check(&self, denylist: &Denylist, now: UnixTime) -> Vec<String> {
        let denylist = self.denylist.union(denylist);
        let own = [self.server.certificate(), self.forwarding.certificate()];
        problems(&self.ca, &own, &denylist, now)
    }

    /// The problems of a client's file at the time `now`; empty if this server would accept the client.
    pub fn check_client(&self, client: &ClientBundle, denylist: &Denylist, now: UnixTime) -> Vec<String> {
        let denylist = self.denylist.union(denylist);
        let mut found = problems(&self.ca, &[client.client.certificate()], &denylist, now);
        if client.ca != self.ca {
            found.push("the client's file has another CA: it would not trust this server".to_string());
        }
        found
    }
}

/// `clientX.pem`: a client's certificate, and the CA that it trusts.
#[derive(Clone, Debug)]
pub struct ClientBundle {
    ca: Certificate,
    client: KeyedCertificate,
    identity: PeerIdentity,
}

impl ClientBundle {
    /// Refuses a certificate of another CA or with another purpose.
    pub fn new(ca: Certificate, client: KeyedCertificate) -> Result<ClientBundle, Error> {
        Trust::in_ca(&ca)?.check_issued(client.certificate())?;
        let identity = PeerIdentity::of(client.certificate())?;
        Ok(ClientBundle { ca, client, identity })
    }

    /// Parses the file's text.
    pub fn parse(text: &str) -> Result<ClientBundle, Error> {
        let mut sections = Sections::parse(text)?;
        let ca = sections.take_ca()?;
        let client = sections.take_keyed(Purpose::Client, "client certificate")?;
        sections.finish("a client's file")?;
        ClientBundle::new(ca, client)
    }

    /// The file's text. It is secret. The client's certificate comes first: tools that read certificate and key from one
    /// file, such as curl, use the first one.
    pub fn to_pem(&self) -> Zeroizing<String> {
        PemWriter::new().keyed(&self.client).certificate(&self.ca).finish()
    }

    /// The CA's certificate.
    pub fn ca(&self) -> &Certificate {
        &self.ca
    }

    /// The certificate for servers.
    pub fn client(&self) -> &KeyedCertificate {
        &self.client
    }

    /// The identity in the certificate, with its rights.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }
}

fn problems(ca: &Certificate, own: &[&Certificate], denylist: &Denylist, now: UnixTime) -> Vec<String> {
    let mut found = Vec::new();
    // The TLS library does not check the validity dates of a root.
    if now < ca.not_before() || now > ca.not_after() {
        found.push(format!("the CA certificate has expired, or is not valid yet: cn={}", ca.name()));
    }
    let trust = Trust::in_ca(ca).expect("checked when the file was parsed");
    for certificate in own {
        found.extend(trust.check_at(certificate, now).err().map(|error| error.to_string()));
        if denylist.contains(certificate.serial()) {
            found.push(CertificateRefusal::Revoked(certificate.serial()).to_string());
        }
    }
    found
}
