//! Revoked certificates, by serial.
//!
//! A [`Denylist`] is plain data; a [`SharedDenylist`] is in use by a running server, and can be replaced while it runs.
//! A TLS verifier checks it once, at a full handshake. Resumed sessions and open connections are not checked again, so a
//! server must call [`SharedDenylist::check`] for every request.

use std::collections::BTreeSet;
use std::fmt;

use arc_swap::ArcSwap;
use rustls::pki_types::UnixTime;

use crate::error::Error;
use crate::peer::PeerIdentity;
use crate::serial::Serial;

/// Revoked serials. Its text has one serial per line, in hexadecimal; `#` begins a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denylist(BTreeSet<Serial>);

impl Denylist {
    /// Parses the text of a denylist.
    pub fn parse(text: &str) -> Result<Denylist, Error> {
        let mut serials = BTreeSet::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().expect("a split has a first part").trim();
            if !line.is_empty() {
                let serial = line.parse::<Serial>();
                serials
                    .insert(serial.map_err(|error| Error::invalid(format!("{error} line={}", number + 1)))?);
            }
        }
        Ok(Denylist(serials))
    }

    /// The serials of both lists.
    #[must_use]
    pub fn union(&self, other: &Denylist) -> Denylist {
        Denylist(&self.0 | &other.0)
    }

    /// Whether the certificate with this serial is revoked.
    pub fn contains(&self, serial: Serial) -> bool {
        self.0.contains(&serial)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of revoked serials.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The revoked serials, in order.
    pub fn iter(&self) -> impl Iterator<Item = Serial> {
        self.0.iter().copied()
    }
}

impl FromIterator<Serial> for Denylist {
    fn from_iter<I: IntoIterator<Item = Serial>>(serials: I) -> Denylist {
        Denylist(serials.into_iter().collect())
    }
}

impl fmt::Display for Denylist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|serial| writeln!(f, "{serial}"))
    }
}

/// Why a certificate that was accepted at the handshake is refused now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateRefusal {
    /// Its serial is on the denylist.
    Revoked(Serial),
    /// It has expired.
    Expired(Serial),
}

impl fmt::Display for CertificateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateRefusal::Revoked(serial) => write!(f, "the certificate is revoked: serial={serial}"),
            CertificateRefusal::Expired(serial) => {
                write!(f, "the certificate has expired; create a new one: serial={serial}")
            }
        }
    }
}

impl std::error::Error for CertificateRefusal {}

/// The denylist in use. Checks take no lock.
#[derive(Debug, Default)]
pub struct SharedDenylist(ArcSwap<Denylist>);

impl SharedDenylist {
    /// Uses this list until it is replaced.
    pub fn new(denylist: Denylist) -> SharedDenylist {
        SharedDenylist(ArcSwap::from_pointee(denylist))
    }

    /// Replaces the whole list.
    pub fn replace(&self, denylist: Denylist) {
        self.0.store(denylist.into());
    }

    /// Whether the certificate with this serial is revoked.
    pub fn contains(&self, serial: Serial) -> bool {
        self.0.load().contains(serial)
    }

    /// The number of revoked serials.
    pub fn len(&self) -> usize {
        self.0.load().len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.load().is_empty()
    }

    /// Checks that a peer's certificate is still valid. Call it for every request.
    pub fn check(&self, peer: &PeerIdentity, now: UnixTime) -> Result<(), CertificateRefusal> {
        if self.contains(peer.serial) {
            return Err(CertificateRefusal::Revoked(peer.serial));
        }
        if now > peer.not_after {
            return Err(CertificateRefusal::Expired(peer.serial));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_line_ends_do_not_matter() {
        let list = Denylist::parse("# leavers\n\n 0A1B  # ada\r\nff\n").expect("valid");
        assert_eq!(list.to_string(), "ff\n0a1b\n");
        assert_eq!(Denylist::parse(&list.to_string()).expect("its own text"), list);
        assert!(Denylist::parse("").expect("nothing").is_empty());
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number() {
        let error = Denylist::parse("0a\n# x\nnope\n").expect_err("no serial").to_string();
        assert!(error.contains("serial=nope line=3"), "{error}");
    }

    #[test]
    fn a_union_has_the_serials_of_both_lists() {
        let [one, other] = ["01\n02", "02\n03"].map(|text| Denylist::parse(text).expect("valid"));
        assert_eq!(one.union(&other).to_string(), "01\n02\n03\n");
    }
}
