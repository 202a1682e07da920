//! The XDG base directories: where programs keep files for which no other directory is named.

use std::ffi::OsString;
use std::path::PathBuf;

/// `$XDG_DATA_HOME`, by default `~/.local/share`; `None` without a home directory.
pub fn data_home() -> Option<PathBuf> {
    base("XDG_DATA_HOME", ".local/share", |name| std::env::var_os(name))
}

/// `$XDG_STATE_HOME`, by default `~/.local/state`; `None` without a home directory.
pub fn state_home() -> Option<PathBuf> {
    base("XDG_STATE_HOME", ".local/state", |name| std::env::var_os(name))
}

/// `$XDG_CONFIG_HOME`, by default `~/.config`; `None` without a home directory.
pub fn config_home() -> Option<PathBuf> {
    base("XDG_CONFIG_HOME", ".config", |name| std::env::var_os(name))
}

/// The specification has relative paths ignored; an empty variable counts as unset.
fn base(name: &str, below_home: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(name).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(xdg: Option<&str>, home: Option<&str>) -> Option<PathBuf> {
        base("XDG_DATA_HOME", ".local/share", |name| {
            match name {
                "HOME" => home,
                _ => xdg,
            }
            .map(OsString::from)
        })
    }

    #[test]
    fn the_variable_counts_if_it_is_absolute_and_home_otherwise() {
        let home = Some("/home/ada");
        assert_eq!(data(Some("/data"), home), Some("/data".into()));
        for ignored in [None, Some(""), Some("relative")] {
            assert_eq!(data(ignored, home), Some("/home/ada/.local/share".into()));
        }
        assert_eq!(data(None, None), None);
        assert_eq!(data(None, Some("")), None);
    }
}
