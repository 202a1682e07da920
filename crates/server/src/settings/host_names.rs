//! A list of host names.

use std::ffi::OsStr;
use std::fmt;

use super::{SettingValue, ShownValue, Syntax};

/// Any host.
const ANY: &str = "*";

/// Host names, without ports; `*` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// Parses names that are separated by commas; the empty text has none.
    pub fn parse(text: &str) -> Result<HostNames, String> {
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
        match names.as_slice() {
            [only] if only.is_empty() => Ok(HostNames::default()),
            names if names.iter().all(|name| is_host(name)) => Ok(HostNames(names.to_vec())),
            _ => Err("not host names without ports, separated by commas".to_string()),
        }
    }

    /// Any name.
    pub fn any() -> HostNames {
        HostNames(vec![ANY.to_string()])
    }

    /// Whether any name is listed.
    pub(crate) fn is_any(&self) -> bool {
        self.0.iter().any(|name| name == ANY)
    }

    /// Whether the host is listed.
    pub(crate) fn contains(&self, host: &str) -> bool {
        self.is_any() || self.0.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

fn is_host(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[:]".contains(&byte);
    let is_address = name.starts_with('[') && name.ends_with(']');
    name == ANY || (!name.is_empty() && name.bytes().all(plain) && (is_address || !name.contains(':')))
}

impl fmt::Display for HostNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl SettingValue for HostNames {
    const SYNTAX: Syntax = Syntax::Text;

    fn parse(text: &OsStr) -> Result<HostNames, String> {
        HostNames::parse(text.to_str().ok_or_else(|| "not UTF-8".to_string())?)
    }

    fn value(&self) -> ShownValue {
        if self.0.is_empty() { ShownValue::Unset } else { ShownValue::Text(self.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_separated_by_commas_and_have_no_ports() {
        let names = HostNames::parse("lockd.internal, 10.0.0.1,[fd00::1]").expect("names");
        assert!(
            names.contains("LOCKD.internal") && names.contains("10.0.0.1") && names.contains("[fd00::1]")
        );
        assert!(!names.contains("internal"));
        assert_eq!(HostNames::parse(&names.to_string()), Ok(names));
        assert!(HostNames::parse("*").expect("any").contains("anything"));
        for bad in ["lockd:9341", "a,,b", "https://a", "a b", "a/b", "::1"] {
            assert!(HostNames::parse(bad).is_err(), "{bad}");
        }
    }
}
