//! Certificates that are no longer honoured, by serial.
//!
//! A list is plain data; a [`SharedDenylist`] is the one that a running server goes by, and can be replaced
//! while it runs. A TLS verifier asks it once, at a full handshake. Resumed sessions and open connections
//! never ask again, so a server must: [`SharedDenylist::check`], for every request.

use std::collections::BTreeSet;
use std::fmt;

use arc_swap::ArcSwap;
use rustls::pki_types::UnixTime;

use crate::error::Error;
use crate::peer::PeerIdentity;
use crate::serial::Serial;

/// Revoked serials. As text: one a line, in hexadecimal; `#` begins a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denylist(BTreeSet<Serial>);

impl Denylist {
    /// From its text.
    pub fn parse(text: &str) -> Result<Denylist, Error> {
        let mut serials = BTreeSet::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().expect("the first of a split").trim();
            if !line.is_empty() {
                let serial = line.parse::<Serial>();
                serials
                    .insert(serial.map_err(|error| Error::invalid(format!("{error} line={}", number + 1)))?);
            }
        }
        Ok(Denylist(serials))
    }

    /// What is on either list.
    #[must_use]
    pub fn union(&self, other: &Denylist) -> Denylist {
        Denylist(&self.0 | &other.0)
    }

    /// Whether the certificate with this serial is revoked.
    pub fn contains(&self, serial: Serial) -> bool {
        self.0.contains(&serial)
    }

    /// Whether nothing is revoked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are revoked.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What is revoked, in order.
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

/// Why an identity that once was accepted no longer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its serial is on the list.
    Revoked(Serial),
    /// The certificate has run out.
    Expired(Serial),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Revoked(serial) => write!(f, "the certificate is revoked: serial={serial}"),
            Refused::Expired(serial) => {
                write!(f, "the certificate has expired; ask for a new one: serial={serial}")
            }
        }
    }
}

impl std::error::Error for Refused {}

/// The list that is in force. Asking takes no lock.
#[derive(Debug, Default)]
pub struct SharedDenylist(ArcSwap<Denylist>);

impl SharedDenylist {
    /// Goes by this list, until another replaces it.
    pub fn new(denylist: Denylist) -> SharedDenylist {
        SharedDenylist(ArcSwap::from_pointee(denylist))
    }

    /// From now on this list, in whole, is in force.
    pub fn replace(&self, denylist: Denylist) {
        self.0.store(denylist.into());
    }

    /// Whether the certificate with this serial is revoked.
    pub fn contains(&self, serial: Serial) -> bool {
        self.0.load().contains(serial)
    }

    /// How many are revoked.
    pub fn len(&self) -> usize {
        self.0.load().len()
    }

    /// Whether nothing is revoked.
    pub fn is_empty(&self) -> bool {
        self.0.load().is_empty()
    }

    /// Whether a peer whose handshake is long past is still to be honoured. To be asked for every request.
    pub fn check(&self, peer: &PeerIdentity, now: UnixTime) -> Result<(), Refused> {
        if self.contains(peer.serial) {
            return Err(Refused::Revoked(peer.serial));
        }
        if now > peer.not_after {
            return Err(Refused::Expired(peer.serial));
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
    fn a_bad_line_is_named() {
        let error = Denylist::parse("0a\n# x\nnope\n").expect_err("no serial").to_string();
        assert!(error.contains("serial=nope line=3"), "{error}");
    }

    #[test]
    fn a_union_revokes_what_either_does() {
        let [one, other] = ["01\n02", "02\n03"].map(|text| Denylist::parse(text).expect("valid"));
        assert_eq!(one.union(&other).to_string(), "01\n02\n03\n");
    }
}
