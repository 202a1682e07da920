//! SPIFFE ids as identities: a file that maps `spiffe://…` to a name, a role and namespaces.
//!
//! A certificate of a SPIFFE issuer carries its id as a URI and no role of lockd's. Only ids in the map are accepted; a
//! certificate that carries a role of its own does not need the map.
//!
//! The text has one id per line, then the name, the role and the namespaces, separated by blanks; `#` begins a comment:
//!
//! ```text
//! spiffe://example.org/ns/prod/sa/importer  importer  worker    default:rw,orders:r
//! spiffe://example.org/ns/ops/sa/admin      admin     operator  *:rwpm
//! ```
//!
//! Names of namespaces are percent-encoded as in certificates. `-` means no namespace.

use std::collections::BTreeMap;

use crate::certificate::Name;
use crate::error::Error;
use crate::rights::{Rights, Role};

/// Prefix of SPIFFE ids.
pub(crate) const SCHEME: &str = "spiffe://";
/// Maximum length of an id, in bytes; from the SPIFFE standard.
const ID_BYTES_MAX: usize = 2048;

/// The identities of SPIFFE ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpiffeMap(BTreeMap<String, MappedIdentity>);

/// What an id may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedIdentity {
    pub(crate) name: Name,
    pub(crate) role: Role,
    pub(crate) rights: Rights,
}

impl SpiffeMap {
    /// Parses the text of a map.
    pub fn parse(text: &str) -> Result<SpiffeMap, Error> {
        let mut map = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().expect("a split has a first part").trim();
            if line.is_empty() {
                continue;
            }
            let at = |error: Error| Error::invalid(format!("{error} line={}", index + 1));
            let (id, mapped) = entry(line).map_err(at)?;
            if map.insert(id.to_string(), mapped).is_some() {
                return Err(at(Error::invalid(format!("the id is mapped twice: id={id}"))));
            }
        }
        Ok(SpiffeMap(map))
    }

    pub(crate) fn get(&self, id: &str) -> Option<&MappedIdentity> {
        self.0.get(id)
    }
}

fn entry(line: &str) -> Result<(&str, MappedIdentity), Error> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let &[id, name, role, namespaces] = &columns[..] else {
        let rule = "a line is a SPIFFE id, a name, a role and namespaces, as in spiffe://example.org/a a worker default:rw";
        return Err(Error::invalid(format!("{rule}: columns={}", columns.len())));
    };
    if !id.starts_with(SCHEME) || id.len() > ID_BYTES_MAX {
        return Err(Error::invalid(format!("not a SPIFFE id: id={}", id.escape_debug())));
    }
    let role: Role = role.parse()?;
    if role == Role::Server {
        return Err(Error::invalid("an id is mapped to worker or operator: role=server"));
    }
    let rights = Rights::from_list(if namespaces == "-" { "" } else { namespaces })?;
    Ok((id, MappedIdentity { name: name.parse()?, role, rights }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::Right;

    #[test]
    fn an_id_has_the_name_role_and_rights_of_its_line() {
        let text = "# ours\nspiffe://e/a  ada operator *:rwpm # x\n\nspiffe://e/b bob worker a%20b:r,c:w\nspiffe://e/c eve worker -\n";
        let map = SpiffeMap::parse(text).expect("sound");
        let ada = map.get("spiffe://e/a").expect("mapped");
        assert_eq!((ada.name.as_str(), ada.role), ("ada", Role::Operator));
        let bob = map.get("spiffe://e/b").expect("mapped");
        assert!(bob.rights.allows("a b", Right::Read) && !bob.rights.allows("a b", Right::Write));
        assert!(map.get("spiffe://e/c").expect("mapped").rights.iter().next().is_none());
        assert!(map.get("spiffe://e/").is_none() && map.get("spiffe://e/a/x").is_none());
    }

    #[test]
    fn a_malformed_line_is_refused_with_its_number() {
        for (line, what) in [
            ("spiffe://e/a", "columns=1"),
            ("https://e/a a worker x:r", "not a SPIFFE id"),
            ("spiffe://e/a a server x:r", "worker or operator"),
            ("spiffe://e/a a root x:r", "a role is"),
            ("spiffe://e/a a worker x", "NAME:rw"),
            ("spiffe://e/ok a worker x:r", "mapped twice"),
        ] {
            let error = SpiffeMap::parse(&format!("spiffe://e/ok ok worker x:r\n{line}\n")).expect_err(line);
            assert!(error.to_string().contains(what) && error.to_string().ends_with("line=2"), "{error}");
        }
    }
}
