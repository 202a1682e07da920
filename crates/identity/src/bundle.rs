//! The three kinds of identity file: a CA's, a server's, a client's.
//!
//! Invariant: whatever has been read is whole. Every certificate was issued by the CA in the file and has its
//! key and its purpose; nothing is missing and nothing is left over. Dates and revocation are apart, since they
//! change by themselves: `check` of each kind asks for those.
//!
//! Sections may stand in any order: a key is known by the certificate that it fits.

use rustls::pki_types::UnixTime;
use zeroize::Zeroizing;

use crate::certificate::{Certificate, Purpose};
use crate::denylist::{Denylist, Refused};
use crate::error::Error;
use crate::key::{CaKey, KeyedCertificate};
use crate::peer::PeerIdentity;
use crate::rights::Role;
use crate::section::{Sections, Writer};
use crate::trust::Trust;

/// `ca.pem`: the CA's certificate and key.
#[derive(Clone, Debug)]
pub struct CaBundle {
    certificate: Certificate,
    key: CaKey,
}

impl CaBundle {
    /// Of a CA whose key is kept as it is: an encrypted one stays so, and is judged when it is opened.
    pub fn new(certificate: Certificate, key: CaKey) -> CaBundle {
        CaBundle { certificate, key }
    }

    /// Reads the file's text.
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
        Writer::new().certificate(&self.certificate).ca_key(&self.key).finish()
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

/// `server.pem`: what a server shows to clients, and what it shows to other servers when it forwards.
#[derive(Clone, Debug)]
pub struct ServerBundle {
    ca: Certificate,
    ca_key: Option<CaKey>,
    server: KeyedCertificate,
    forwarding: KeyedCertificate,
    denylist: Denylist,
}

impl ServerBundle {
    /// Refuses certificates that the CA did not issue, or that are for something else.
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

    /// Reads the file's text.
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

    /// The same, with the CA's key in it: whoever has the file can make up clients.
    #[must_use]
    pub fn with_ca_key(mut self, key: CaKey) -> ServerBundle {
        self.ca_key = Some(key);
        self
    }

    /// The same, with this denylist instead of its own.
    #[must_use]
    pub fn with_denylist(mut self, denylist: Denylist) -> ServerBundle {
        self.denylist = denylist;
        self
    }

    /// The file's text. It is secret.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let mut writer = Writer::new().certificate(&self.ca);
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

    /// What it shows to clients (`ServerAuth`).
    pub fn server(&self) -> &KeyedCertificate {
        &self.server
    }

    /// What it shows to other servers (`ClientAuth`, role `server`).
    pub fn forwarding(&self) -> &KeyedCertificate {
        &self.forwarding
    }

    /// What is revoked, as far as this file says.
    pub fn denylist(&self) -> &Denylist {
        &self.denylist
    }

    /// What is wrong with it at this moment; nothing, if all is well.
    pub fn check(&self, denylist: &Denylist, now: UnixTime) -> Vec<String> {
        let denylist = self.denylist.union(denylist);
        let own = [self.server.certificate(), self.forwarding.certificate()];
        problems(&self.ca, &own, &denylist, now)
    }

    /// What is wrong with a client of this server's at this moment; nothing, if it would be let in.
    pub fn check_client(&self, client: &ClientBundle, denylist: &Denylist, now: UnixTime) -> Vec<String> {
        let denylist = self.denylist.union(denylist);
        let mut found = problems(&self.ca, &[client.client.certificate()], &denylist, now);
        if client.ca != self.ca {
            found.push("the client's file has another CA: it would not trust this server".to_string());
        }
        found
    }
}

/// `clientX.pem`: what a client shows, and whom it trusts.
#[derive(Clone, Debug)]
pub struct ClientBundle {
    ca: Certificate,
    client: KeyedCertificate,
    identity: PeerIdentity,
}

impl ClientBundle {
    /// Refuses a certificate that the CA did not issue, or that is not for clients.
    pub fn new(ca: Certificate, client: KeyedCertificate) -> Result<ClientBundle, Error> {
        Trust::in_ca(&ca)?.check_issued(client.certificate())?;
        let identity = PeerIdentity::of(client.certificate())?;
        Ok(ClientBundle { ca, client, identity })
    }

    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<ClientBundle, Error> {
        let mut sections = Sections::parse(text)?;
        let ca = sections.take_ca()?;
        let client = sections.take_keyed(Purpose::Client, "client certificate")?;
        sections.finish("a client's file")?;
        ClientBundle::new(ca, client)
    }

    /// The file's text. It is secret. Its own certificate comes first: tools that take one file for certificate and
    /// key, curl among them, use the first that they find.
    pub fn to_pem(&self) -> Zeroizing<String> {
        Writer::new().keyed(&self.client).certificate(&self.ca).finish()
    }

    /// The CA's certificate.
    pub fn ca(&self) -> &Certificate {
        &self.ca
    }

    /// What it shows to servers.
    pub fn client(&self) -> &KeyedCertificate {
        &self.client
    }

    /// Who it is, and what it may do.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }
}

fn problems(ca: &Certificate, own: &[&Certificate], denylist: &Denylist, now: UnixTime) -> Vec<String> {
    let mut found = Vec::new();
    // The TLS library does not look at the dates of a root.
    if now < ca.not_before() || now > ca.not_after() {
        found.push(format!("the CA certificate has expired, or is not valid yet: cn={}", ca.name()));
    }
    let trust = Trust::in_ca(ca).expect("it was tried when the file was read");
    for certificate in own {
        found.extend(trust.check_at(certificate, now).err().map(|error| error.to_string()));
        if denylist.contains(certificate.serial()) {
            found.push(Refused::Revoked(certificate.serial()).to_string());
        }
    }
    found
}
