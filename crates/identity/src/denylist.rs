//! Revoked certificates, by serial.
//!
//! A [`Denylist`] is plain data; a [`SharedDenylist`] is in use by a running server, and can be replaced while it runs.
//! A TLS verifier checks it once, at a full handshake. Resumed sessions and open connections are not checked again, so a
//! server must call [`SharedDenylist::check`] for every request.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::UnixTime;

use crate::error::Error;
use crate::peer::PeerIdentity;
use crate::serial::Serial;

/// Revoked serials, and serials that were revoked and are explicitly valid again.
///
/// Its text has one serial per line, in hexadecimal; `!` before a serial un-revokes it, and `#` begins a comment. A
/// serial that is both is revoked.
///
/// **Invariant.** No serial is in both sets. A serial leaves a list in force only through an un-revocation:
/// [`Denylist::lost_in`] finds those that would just be missing.
///
/// **What would break it.** A truncated or emptied file, an old backup, or a file written by a tool that does not know
/// the serials of others: each would silently let revoked clients in again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denylist {
    revoked: BTreeSet<Serial>,
    unrevoked: BTreeSet<Serial>,
}

impl Denylist {
    fn new(revoked: BTreeSet<Serial>, unrevoked: &BTreeSet<Serial>) -> Denylist {
        let unrevoked = unrevoked - &revoked;
        Denylist { revoked, unrevoked }
    }

    /// Parses the text of a denylist.
    pub fn parse(text: &str) -> Result<Denylist, Error> {
        let (mut revoked, mut unrevoked) = (BTreeSet::new(), BTreeSet::new());
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().expect("a split has a first part").trim();
            let (set, serial) = match line.strip_prefix('!') {
                Some(serial) => (&mut unrevoked, serial.trim_start()),
                None => (&mut revoked, line),
            };
            if !line.is_empty() {
                let serial = serial.parse::<Serial>();
                set.insert(serial.map_err(|error| Error::invalid(format!("{error} line={}", number + 1)))?);
            }
        }
        Ok(Denylist::new(revoked, &unrevoked))
    }

    /// The entries of both lists. A serial that either list revokes is revoked.
    #[must_use]
    pub fn union(&self, other: &Denylist) -> Denylist {
        Denylist::new(&self.revoked | &other.revoked, &(&self.unrevoked | &other.unrevoked))
    }

    /// The list with these serials revoked.
    #[must_use]
    pub fn with_revoked(&self, serials: &[Serial]) -> Denylist {
        let revoked = self.revoked.iter().chain(serials).copied().collect();
        Denylist::new(revoked, &self.unrevoked)
    }

    /// The list with these serials un-revoked.
    #[must_use]
    pub fn with_unrevoked(&self, serials: &[Serial]) -> Denylist {
        let added: BTreeSet<Serial> = serials.iter().copied().collect();
        Denylist::new(&self.revoked - &added, &(&self.unrevoked | &added))
    }

    /// The serials that this list revokes and `next` neither revokes nor un-revokes.
    pub fn lost_in(&self, next: &Denylist) -> Vec<Serial> {
        self.revoked
            .iter()
            .filter(|serial| !next.contains(**serial))
            .copied()
            .filter(|serial| !next.unrevoked.contains(serial))
            .collect()
    }

    /// The serials that this list revokes and `next` un-revokes.
    pub fn unrevoked_in(&self, next: &Denylist) -> Vec<Serial> {
        self.revoked.intersection(&next.unrevoked).copied().collect()
    }

    /// The serials that this list does not revoke and `next` does.
    pub fn added_in(&self, next: &Denylist) -> Vec<Serial> {
        next.revoked.difference(&self.revoked).copied().collect()
    }

    /// Whether the certificate with this serial is revoked.
    pub fn contains(&self, serial: Serial) -> bool {
        self.revoked.contains(&serial)
    }

    /// Whether the list has no entries.
    pub fn is_empty(&self) -> bool {
        self.revoked.is_empty() && self.unrevoked.is_empty()
    }

    /// The number of revoked serials.
    pub fn len(&self) -> usize {
        self.revoked.len()
    }

    /// The revoked serials, in order.
    pub fn iter(&self) -> impl Iterator<Item = Serial> {
        self.revoked.iter().copied()
    }

    /// The serials that are explicitly not revoked, in order.
    pub fn unrevoked(&self) -> impl Iterator<Item = Serial> {
        self.unrevoked.iter().copied()
    }
}

impl FromIterator<Serial> for Denylist {
    fn from_iter<I: IntoIterator<Item = Serial>>(serials: I) -> Denylist {
        Denylist { revoked: serials.into_iter().collect(), unrevoked: BTreeSet::new() }
    }
}

impl fmt::Display for Denylist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.revoked.iter().try_for_each(|serial| writeln!(f, "{serial}"))?;
        self.unrevoked.iter().try_for_each(|serial| writeln!(f, "!{serial}"))
    }
}

/// Why a certificate that was accepted at the handshake is refused now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateRefusal {
    /// Its serial is on the denylist.
    Revoked(Serial),
    /// It has expired.
    Expired(Serial),
    /// No CA that is trusted now has issued it.
    Distrusted(Serial),
    /// The map of SPIFFE ids gives its id another identity, other rights, or none.
    Changed(Serial),
}

impl fmt::Display for CertificateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateRefusal::Revoked(serial) => write!(f, "the certificate is revoked: serial={serial}"),
            CertificateRefusal::Expired(serial) => {
                write!(f, "the certificate has expired; create a new one: serial={serial}")
            }
            CertificateRefusal::Distrusted(serial) => {
                write!(f, "the certificate's CA is no longer trusted: serial={serial}")
            }
            CertificateRefusal::Changed(serial) => {
                write!(f, "the identity of the certificate has changed; connect again: serial={serial}")
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

    /// The list in use.
    pub fn current(&self) -> Arc<Denylist> {
        self.0.load_full()
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
    fn a_serial_leaves_a_list_only_through_an_un_revocation() {
        let list = |text: &str| Denylist::parse(text).expect("valid");
        let before = list("01\n02\n03\n");
        let after = before.with_unrevoked(&["02".parse().expect("a serial")]);
        assert_eq!(after.to_string(), "01\n03\n!02\n");
        assert_eq!(list(&after.to_string()), after);
        assert!(!after.contains("02".parse().expect("a serial")));
        let shown = |serials: Vec<Serial>| format!("{serials:?}");
        assert_eq!(
            (shown(before.lost_in(&after)), shown(before.unrevoked_in(&after))),
            ("[]".into(), "[02]".into())
        );
        assert_eq!(shown(before.lost_in(&list("03\n! 02 # on leave\n"))), "[01]");
        let again = after.with_revoked(&["02".parse().expect("a serial")]);
        assert_eq!(again.to_string(), before.to_string(), "revoking wins, and leaves no trace of the other");
        assert_eq!(list("!02\n02\n").to_string(), "02\n", "so it does within one text");
        assert_eq!(list("02").union(&list("!02")).to_string(), "02\n", "and between two lists");
    }

    #[test]
    fn a_union_has_the_serials_of_both_lists() {
        let [one, other] = ["01\n02", "02\n03"].map(|text| Denylist::parse(text).expect("valid"));
        assert_eq!(one.union(&other).to_string(), "01\n02\n03\n");
    }
}
