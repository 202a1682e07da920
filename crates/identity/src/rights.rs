//! Role and rights of an identity: one role, and a subset of four rights for each namespace.
//!
//! Both are in the certificate, as URIs among its alternative names: `lockd:role/worker`, and for each namespace
//! `lockd:ns/<name>:<letters>`. Names are percent-encoded, so that a bare `*`, which means any namespace, differs from a
//! namespace of that name.
//!
//! **What is absent.** Which call needs which right: the server decides that.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::Error;

const ROLE_PREFIX: &str = "lockd:role/";
const NAMESPACE_PREFIX: &str = "lockd:ns/";
/// URIs with this prefix must be understood; others are ignored.
const PREFIX: &str = "lockd:";
/// Maximum length of a namespace's name, in bytes.
const NAMESPACE_BYTES_MAX: usize = 128;
/// Maximum number of namespaces in one certificate, which is sent in every handshake.
const NAMESPACES_MAX: usize = 64;

/// The role of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Acquires, renews and releases leases, and writes documents.
    Worker,
    /// May also revoke and reclaim leases and set quotas.
    Operator,
    /// Another server, which forwards requests of its clients.
    Server,
}

impl Role {
    /// The role's name in certificates.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Worker => "worker",
            Role::Operator => "operator",
            Role::Server => "server",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> Result<Role, Error> {
        let roles = [Role::Worker, Role::Operator, Role::Server];
        roles.into_iter().find(|role| role.as_str() == text).ok_or_else(|| {
            Error::invalid(format!("a role is worker, operator or server: role={}", text.escape_debug()))
        })
    }
}

/// A right in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// `r`: view leases, and read documents under a lease.
    Read,
    /// `w`: acquire leases, and write documents under them.
    Write,
    /// `p`: read documents without a lease.
    PublicRead,
    /// `m`: acquire leases that stay on hold after expiry, manually or for long.
    ManualHold,
}

impl Right {
    /// All rights, in their written order.
    pub const ALL: [Right; 4] = [Right::Read, Right::Write, Right::PublicRead, Right::ManualHold];

    /// The letter of the right.
    pub fn letter(self) -> char {
        match self {
            Right::Read => 'r',
            Right::Write => 'w',
            Right::PublicRead => 'p',
            Right::ManualHold => 'm',
        }
    }
}

/// A set of rights.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RightSet(u8);

impl RightSet {
    /// The empty set.
    pub const NONE: RightSet = RightSet(0);
    /// All four rights.
    pub const ALL: RightSet = RightSet(0b1111);

    /// Whether the set contains the right.
    pub fn contains(self, right: Right) -> bool {
        self.0 & (1 << right as u8) != 0
    }

    /// The union of two sets.
    #[must_use]
    pub fn union(self, other: RightSet) -> RightSet {
        RightSet(self.0 | other.0)
    }
}

impl fmt::Display for RightSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = Right::ALL.into_iter().filter(|right| self.contains(*right)).map(Right::letter);
        f.write_str(&letters.collect::<String>())
    }
}

impl fmt::Debug for RightSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RightSet {
    type Err = Error;

    /// Parses one or more letters in any order, without duplicates.
    fn from_str(letters: &str) -> Result<RightSet, Error> {
        let wrong = || {
            let advice = "rights are letters of r, w, p and m, each at most once";
            Error::invalid(format!("{advice}: rights={}", letters.escape_debug()))
        };
        let mut set = RightSet::NONE;
        for letter in letters.chars() {
            let right = Right::ALL.into_iter().find(|right| right.letter() == letter).ok_or_else(wrong)?;
            if set.contains(right) {
                return Err(wrong());
            }
            set = set.union(RightSet(1 << right as u8));
        }
        if set == RightSet::NONE { Err(wrong()) } else { Ok(set) }
    }
}

/// The scope of rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RightsScope {
    /// Every namespace, including future ones.
    Any,
    /// The namespace of this name.
    Namespace(String),
}

/// Rights in one namespace, or in any; written `orders:rw`, `*:rwpm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRights {
    scope: RightsScope,
    rights: RightSet,
}

impl NamespaceRights {
    /// Refuses invalid namespace names.
    pub fn new(scope: RightsScope, rights: RightSet) -> Result<NamespaceRights, Error> {
        if let RightsScope::Namespace(name) = &scope {
            check_namespace(name)?;
        }
        Ok(NamespaceRights { scope, rights })
    }

    /// The scope.
    pub fn scope(&self) -> &RightsScope {
        &self.scope
    }

    /// The rights.
    pub fn rights(&self) -> RightSet {
        self.rights
    }

    fn to_uri(&self) -> String {
        let name = match &self.scope {
            RightsScope::Any => "*".to_string(),
            RightsScope::Namespace(name) => percent_encode(name),
        };
        format!("{NAMESPACE_PREFIX}{name}:{}", self.rights)
    }

    fn from_uri_tail(tail: &str) -> Result<NamespaceRights, Error> {
        let (name, letters) = split(tail)?;
        let scope =
            if name == "*" { RightsScope::Any } else { RightsScope::Namespace(percent_decode(name)?) };
        NamespaceRights::new(scope, letters.parse()?)
    }
}

impl fmt::Display for NamespaceRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            RightsScope::Any => write!(f, "*:{}", self.rights),
            RightsScope::Namespace(name) => write!(f, "{name}:{}", self.rights),
        }
    }
}

impl FromStr for NamespaceRights {
    type Err = Error;

    /// Parses the form that people write: the name, not encoded, ends at the last colon.
    fn from_str(text: &str) -> Result<NamespaceRights, Error> {
        let (name, letters) = split(text)?;
        let scope = if name == "*" { RightsScope::Any } else { RightsScope::Namespace(name.to_string()) };
        NamespaceRights::new(scope, letters.parse()?)
    }
}

/// The rights of an identity, for each namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    anywhere: RightSet,
    namespaces: BTreeMap<String, RightSet>,
}

impl Rights {
    /// No rights.
    pub fn none() -> Rights {
        Rights::default()
    }

    /// Read and write in the namespace `default`: the default rights of a new client.
    pub fn client_default() -> Rights {
        let rights = "rw".parse().expect("letters of rights");
        Rights { anywhere: RightSet::NONE, namespaces: [("default".to_string(), rights)].into() }
    }

    /// All rights in every namespace.
    pub fn all() -> Rights {
        Rights { anywhere: RightSet::ALL, namespaces: BTreeMap::new() }
    }

    /// The listed rights; duplicates of a namespace are merged.
    pub fn new(listed: impl IntoIterator<Item = NamespaceRights>) -> Result<Rights, Error> {
        let mut rights = Rights::none();
        for one in listed {
            let held = match one.scope {
                RightsScope::Any => &mut rights.anywhere,
                RightsScope::Namespace(name) => rights.namespaces.entry(name).or_default(),
            };
            *held = held.union(one.rights);
        }
        if rights.namespaces.len() > NAMESPACES_MAX {
            let advice = "too many namespaces for one certificate; use *, or several identities";
            return Err(Error::invalid(format!("{advice}: max={NAMESPACES_MAX}")));
        }
        Ok(rights)
    }

    /// Whether the identity has the right in the namespace.
    pub fn allows(&self, namespace: &str, right: Right) -> bool {
        self.anywhere.contains(right)
            || self.namespaces.get(namespace).is_some_and(|rights| rights.contains(right))
    }

    /// The entries in the form of a certificate's URIs, separated by commas.
    pub(crate) fn to_list(&self) -> String {
        let entries = self.iter().map(|one| one.to_uri());
        entries.map(|uri| uri[NAMESPACE_PREFIX.len()..].to_string()).collect::<Vec<_>>().join(",")
    }

    /// Parses the form of [`Rights::to_list`].
    pub(crate) fn from_list(list: &str) -> Result<Rights, Error> {
        let entries = list.split(',').filter(|entry| !entry.is_empty());
        Rights::new(entries.map(NamespaceRights::from_uri_tail).collect::<Result<Vec<_>, _>>()?)
    }

    /// All entries, `*` first.
    pub fn iter(&self) -> impl Iterator<Item = NamespaceRights> {
        let anywhere = (self.anywhere != RightSet::NONE)
            .then_some(NamespaceRights { scope: RightsScope::Any, rights: self.anywhere });
        let named = self.namespaces.iter().map(|(name, rights)| NamespaceRights {
            scope: RightsScope::Namespace(name.clone()),
            rights: *rights,
        });
        anywhere.into_iter().chain(named)
    }
}

/// The URIs for a certificate.
pub(crate) fn to_uris(role: Role, rights: &Rights) -> Vec<String> {
    let namespaces = rights.iter().map(|one| one.to_uri());
    [format!("{ROLE_PREFIX}{role}")].into_iter().chain(namespaces).collect()
}

/// Whether a certificate's URIs say anything about lockd.
pub(crate) fn is_ours(uris: &[String]) -> bool {
    uris.iter().any(|uri| uri.starts_with(PREFIX))
}

/// Role and rights from a certificate's URIs. Foreign URIs are ignored; every `lockd:` URI must be understood.
pub(crate) fn from_uris(uris: &[String]) -> Result<(Role, Rights), Error> {
    let mut roles = Vec::new();
    let mut listed = Vec::new();
    for uri in uris.iter().filter(|uri| uri.starts_with(PREFIX)) {
        if let Some(role) = uri.strip_prefix(ROLE_PREFIX) {
            roles.push(role.parse()?);
        } else if let Some(tail) = uri.strip_prefix(NAMESPACE_PREFIX) {
            listed.push(NamespaceRights::from_uri_tail(tail)?);
        } else {
            let what = "the certificate has a URI that this build does not know";
            return Err(Error::invalid(format!("{what}: uri={}", uri.escape_debug())));
        }
    }
    match roles[..] {
        [role] => Ok((role, Rights::new(listed)?)),
        [] => Err(Error::invalid(
            "the certificate carries no role; make it with `lockd auth new client`, or with a URI lockd:role/worker",
        )),
        _ => Err(Error::invalid("the certificate carries more than one role")),
    }
}

fn split(text: &str) -> Result<(&str, &str), Error> {
    text.rsplit_once(':').ok_or_else(|| {
        let advice = "a namespace and its rights are written NAME:rw, any namespace *:rw";
        Error::invalid(format!("{advice}: namespace={}", text.escape_debug()))
    })
}

fn check_namespace(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > NAMESPACE_BYTES_MAX || name.chars().any(char::is_control) {
        let rule = format!("a namespace has 1 to {NAMESPACE_BYTES_MAX} bytes and no control characters");
        return Err(Error::invalid(format!("{rule}: namespace={}", name.escape_debug())));
    }
    Ok(())
}

fn percent_encode(name: &str) -> String {
    use fmt::Write as _;
    name.bytes().fold(String::with_capacity(name.len()), |mut text, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("writing to a string");
        }
        text
    })
}

fn percent_decode(text: &str) -> Result<String, Error> {
    let wrong = || Error::invalid(format!("not a percent-encoded name: name={}", text.escape_debug()));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit =
                    || rest.next().and_then(|digit| char::from(digit).to_digit(16)).ok_or_else(wrong);
                u8::try_from(digit()? * 16 + digit()?).expect("two digits")
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(listed: &[&str]) -> Rights {
        Rights::new(listed.iter().map(|text| text.parse().expect(text))).expect("few")
    }

    #[test]
    fn rights_hold_where_they_are_given_and_nowhere_else() {
        let rights = rights(&["orders:rw", "*:p", "a:b:m"]);
        let table = [
            ("orders", Right::Read, true),
            ("orders", Right::Write, true),
            ("orders", Right::PublicRead, true),
            ("orders", Right::ManualHold, false),
            ("order", Right::Read, false),
            ("Orders", Right::Read, false),
            ("", Right::Read, false),
            ("*", Right::Read, false),
            ("elsewhere", Right::PublicRead, true),
            ("a:b", Right::ManualHold, true),
            ("a", Right::ManualHold, false),
        ];
        for (namespace, right, allowed) in table {
            assert_eq!(rights.allows(namespace, right), allowed, "{namespace} {right:?}");
        }
    }

    #[test]
    fn nothing_is_allowed_by_default_but_reading_and_writing_in_default() {
        let usual: Vec<_> = Rights::client_default().iter().map(|one| one.to_string()).collect();
        assert_eq!(usual, ["default:rw"]);
        assert!(Right::ALL.iter().all(|right| !Rights::none().allows("default", *right)));
        assert!(Right::ALL.iter().all(|right| Rights::all().allows("any", *right)));
    }

    #[test]
    fn duplicate_namespaces_are_merged() {
        assert_eq!(rights(&["a:r", "a:wm", "*:p", "*:r"]), rights(&["*:rp", "a:rwm"]));
    }

    #[test]
    fn any_name_round_trips_through_uris() {
        let names = ["default", "a b", "*", "%2A", "ä/ö:ü", "a:rw", "..", "日本", "a%"];
        for name in names {
            let held = Rights::new([NamespaceRights::new(
                RightsScope::Namespace(name.into()),
                "pr".parse().expect("letters"),
            )
            .expect(name)])
            .expect("one");
            let uris = to_uris(Role::Worker, &held);
            assert!(uris.iter().all(|uri| uri.is_ascii()), "{uris:?}");
            assert_eq!(from_uris(&uris).expect(name), (Role::Worker, held), "{uris:?}");
        }
    }

    #[test]
    fn any_namespace_differs_from_a_namespace_named_star() {
        let any = from_uris(&["lockd:role/operator".into(), "lockd:ns/*:r".into()]).expect("valid").1;
        let star = from_uris(&["lockd:role/operator".into(), "lockd:ns/%2A:r".into()]).expect("valid").1;
        assert!(any.allows("orders", Right::Read) && any.allows("*", Right::Read));
        assert!(!star.allows("orders", Right::Read) && star.allows("*", Right::Read));
    }

    #[test]
    fn foreign_uris_are_ignored() {
        let uris = ["spiffe://example.org/x", "lockd:role/worker", "https://example.org"].map(String::from);
        assert_eq!(from_uris(&uris).expect("ours is there"), (Role::Worker, Rights::none()));
    }

    #[test]
    fn unknown_uris_are_refused() {
        let worker = "lockd:role/worker";
        let table: &[(&[&str], &str)] = &[
            (&[], "no role"),
            (&["spiffe://example.org/x"], "no role"),
            (&["lockd:ns/a:r"], "no role"),
            (&[worker, "lockd:role/operator"], "more than one role"),
            (&[worker, worker], "more than one role"),
            (&["lockd:role/root"], "worker, operator or server"),
            (&["lockd:role/"], "worker, operator or server"),
            (&["lockd:role/Worker"], "worker, operator or server"),
            (&[worker, "lockd:ns/a"], "NAME:rw"),
            (&[worker, "lockd:ns/a:"], "rights are letters"),
            (&[worker, "lockd:ns/a:x"], "rights are letters"),
            (&[worker, "lockd:ns/a:rr"], "rights are letters"),
            (&[worker, "lockd:ns/a:R"], "rights are letters"),
            (&[worker, "lockd:ns/:r"], "1 to 128 bytes"),
            (&[worker, "lockd:ns/a%0Ab:r"], "control"),
            (&[worker, "lockd:ns/a%2:r"], "percent-encoded"),
            (&[worker, "lockd:ns/a%zz:r"], "percent-encoded"),
            (&[worker, "lockd:ns/%FF:r"], "percent-encoded"),
            (&[worker, "lockd:until/tomorrow"], "does not know"),
        ];
        for (uris, what) in table {
            let uris: Vec<_> = uris.iter().map(ToString::to_string).collect();
            let error = from_uris(&uris).expect_err("refused").to_string();
            assert!(error.contains(what), "{uris:?}: {error}");
        }
    }

    #[test]
    fn the_number_of_namespaces_is_limited() {
        let listed = |count: usize| (0..count).map(|n| format!("n{n}:r").parse().expect("valid"));
        assert!(Rights::new(listed(NAMESPACES_MAX)).is_ok());
        assert!(Rights::new(listed(NAMESPACES_MAX + 1)).is_err());
    }
}
