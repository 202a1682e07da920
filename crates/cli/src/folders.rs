//! Where programs keep what is not put elsewhere: the XDG base directories.

use std::path::PathBuf;

/// Where `lockd serve` keeps its store and its identities; `None` if there is no home.
pub fn data() -> Option<PathBuf> {
    base("XDG_DATA_HOME", ".local/share")
}

/// Where `lockc` keeps what it holds; `None` if there is no home.
pub fn state() -> Option<PathBuf> {
    base("XDG_STATE_HOME", ".local/state")
}

fn base(variable: &str, below_home: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(below_home));
    named.or_else(home).map(|base| base.join("lockd"))
}
