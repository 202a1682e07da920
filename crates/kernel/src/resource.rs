//! Resource names: `KIND:name`, in one canonical spelling.
//!
//! Equal resources have equal spellings, so names are compared and hashed as text. Names of kind `FILE`
//! are paths and are normalised lexically, without touching a file system or following links.
//! `FILE:/dir/*` stands for `/dir` and everything beneath it; every other kind is flat.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::text::{TextError, check_text};

/// A canonical `KIND:name`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

/// Why a resource name is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceError {
    /// The kind is not 1 to 32 of `A-Z`, `0-9` and `_`, beginning with a letter.
    Kind,
    /// The name is empty, too long or contains control characters.
    Name(TextError),
    /// The path is relative and there is no root, or the root is not absolute.
    Relative,
    /// `..` leads above the root.
    AboveRoot,
    /// `*` is used other than as the whole last segment of a path.
    Star,
    /// The path has more than [`ResourceName::MAX_SEGMENTS`] segments.
    TooDeep,
}

impl fmt::Display for ResourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResourceError::Kind => {
                write!(f, "kind must be 1 to 32 of A-Z, 0-9 and _, beginning with a letter")
            }
            ResourceError::Name(error) => write!(f, "name {error}"),
            ResourceError::Relative => write!(f, "relative path without an absolute root"),
            ResourceError::AboveRoot => write!(f, "path leads above its root with '..'"),
            ResourceError::Star => write!(f, "'*' must be the whole last segment of a path"),
            ResourceError::TooDeep => {
                write!(f, "path has too many segments: max={}", ResourceName::MAX_SEGMENTS)
            }
        }
    }
}

impl core::error::Error for ResourceError {}

impl ResourceName {
    /// The maximum length of a name in bytes, without its kind.
    pub const MAX_NAME_BYTES: usize = 512;
    /// The maximum length of a kind in bytes.
    pub const MAX_KIND_BYTES: usize = 32;
    /// The maximum number of segments of a path: a lease on a file claims every directory above it.
    pub const MAX_SEGMENTS: usize = 64;

    /// The kind of plain lockd keys; only keys have documents.
    pub const KEY: &'static str = "KEY";
    /// The kind whose names are paths.
    pub const FILE: &'static str = "FILE";

    /// A plain lockd key. Every character except control characters is data; a key is never parsed as a
    /// path.
    pub fn key(name: &str) -> Result<ResourceName, ResourceError> {
        ResourceName::new(ResourceName::KEY, name)
    }

    /// The resource of this kind and name; a path must be absolute.
    pub fn new(kind: &str, name: &str) -> Result<ResourceName, ResourceError> {
        ResourceName::with_root(kind, name, None)
    }

    /// Like [`ResourceName::new`], but a relative path is resolved against `root` and must stay within it.
    pub fn with_root(kind: &str, name: &str, root: Option<&str>) -> Result<ResourceName, ResourceError> {
        check_flat(kind, name)?;
        if kind != ResourceName::FILE {
            return Ok(ResourceName(spell(kind, name)));
        }
        let path = normalise(name, root)?;
        check_text(&path, ResourceName::MAX_NAME_BYTES).map_err(ResourceError::Name)?;
        Ok(ResourceName(spell(kind, &path)))
    }

    /// Parses `KIND:name`, as manifests spell it.
    pub fn parse(text: &str, root: Option<&str>) -> Result<ResourceName, ResourceError> {
        let (kind, name) = text.split_once(':').ok_or(ResourceError::Kind)?;
        if kind == ResourceName::FILE {
            return ResourceName::with_root(kind, name, root);
        }
        // A flat name is canonical as it stands. Restoring a snapshot parses millions of them, so avoid
        // rebuilding the text.
        check_flat(kind, name)?;
        Ok(ResourceName(text.into()))
    }

    /// The full text: `KIND:name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text before the colon.
    pub fn kind(&self) -> &str {
        self.split().0
    }

    /// The text after the colon.
    pub fn name(&self) -> &str {
        self.split().1
    }

    /// Whether this is a plain lockd key.
    pub fn is_key(&self) -> bool {
        self.kind() == ResourceName::KEY
    }

    /// Whether the two names cover a common resource: equal names do, and `/dir/*` overlaps everything
    /// beneath `/dir`.
    pub fn overlaps(&self, other: &ResourceName) -> bool {
        let ((mine, all_mine), (theirs, all_theirs)) = (self.node(), other.node());
        mine == theirs || (all_mine && is_within(theirs, mine)) || (all_theirs && is_within(mine, theirs))
    }

    /// The claim sets that a holder of this resource, or a waiter for it, joins.
    pub fn claimed(&self) -> impl Iterator<Item = (&str, ClaimSetKind)> {
        let (text, subtree) = self.node();
        claimed(text, subtree)
    }

    /// The claim sets to check for conflicting claims.
    pub fn met(&self) -> impl Iterator<Item = (&str, ClaimSetKind)> {
        let (text, subtree) = self.node();
        met(text, subtree)
    }

    /// The name of its node, and whether it stands for the whole subtree of that node.
    pub(crate) fn node(&self) -> (&str, bool) {
        let text = self.as_str();
        match path_of(text).and_then(|path| path.strip_suffix("/*")) {
            Some(ROOT_PREFIX) => (ROOT, true),
            Some(dir) => (dir, true),
            None => (text, false),
        }
    }

    /// The name of the subtree of `dir`, which is spelled `FILE:/…`.
    pub(crate) fn subtree_of(dir: &str) -> ResourceName {
        let mut text = String::from(dir.strip_suffix('/').unwrap_or(dir));
        text.push_str("/*");
        ResourceName(text.into())
    }

    /// How many claim sets it joins: its own, and one for each directory above it.
    pub(crate) fn weight(&self) -> usize {
        if path_of(&self.0).is_none() { 1 } else { self.claimed().count() }
    }

    pub(crate) fn shared(&self) -> &Arc<str> {
        &self.0
    }

    pub(crate) fn from_shared(text: &Arc<str>) -> ResourceName {
        ResourceName(Arc::clone(text))
    }

    fn split(&self) -> (&str, &str) {
        self.0.split_once(':').expect("a resource name contains a colon")
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const ROOT: &str = "FILE:/";
const ROOT_PREFIX: &str = "FILE:";

/// The three claim sets of a node. If two names overlap, the sets to check for one include a set that the
/// other has joined; the table is in `conflict.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimSetKind {
    /// Claims on the name itself.
    At,
    /// Claims on `name/*`.
    Subtree,
    /// Claims on the name itself or on anything beneath it, except on `name/*`.
    Beneath,
}

/// The claim sets that a name joins; with `subtree`, those of the directory `text` and everything beneath
/// it.
pub(crate) fn claimed(text: &str, subtree: bool) -> impl Iterator<Item = (&str, ClaimSetKind)> {
    let own = if subtree { ClaimSetKind::Subtree } else { ClaimSetKind::At };
    let dirs = path_of(text).into_iter().flat_map(lineage).filter(move |dir| !subtree || *dir != text);
    core::iter::once((text, own)).chain(dirs.map(|dir| (dir, ClaimSetKind::Beneath)))
}

/// The claim sets to check for a name; with `subtree`, for the directory `text` and everything beneath it.
pub(crate) fn met(text: &str, subtree: bool) -> impl Iterator<Item = (&str, ClaimSetKind)> {
    let own = if subtree { ClaimSetKind::Beneath } else { ClaimSetKind::At };
    let above = path_of(text).into_iter().flat_map(lineage).map(|dir| (dir, ClaimSetKind::Subtree));
    above.chain(core::iter::once((text, own)))
}

/// The text, if it is a path: it includes the kind, like `FILE:/a/b`.
pub(crate) fn path_of(text: &str) -> Option<&str> {
    text.starts_with(ROOT_PREFIX).then_some(text)
}

/// The path and its ancestors, from the root down: `FILE:/`, `FILE:/a`, `FILE:/a/b`.
pub(crate) fn lineage(path: &str) -> impl Iterator<Item = &str> {
    let below_root =
        path.bytes().enumerate().skip(ROOT.len()).filter(|(_, b)| *b == b'/').map(|(at, _)| &path[..at]);
    let whole = (path != ROOT).then_some(path);
    core::iter::once(ROOT).chain(below_root).chain(whole)
}

/// The directories above a path, nearest first; none for a name that is not a path.
pub(crate) fn dirs_above(text: &str) -> impl Iterator<Item = &str> {
    core::iter::successors(dir_above(text), |dir| dir_above(dir))
}

pub(crate) fn dir_above(text: &str) -> Option<&str> {
    let path = path_of(text).filter(|path| *path != ROOT)?;
    let dir = &path[..path.rfind('/')?];
    Some(if dir == ROOT_PREFIX { ROOT } else { dir })
}

/// Whether `path` is the directory `dir` or beneath it.
fn is_within(path: &str, dir: &str) -> bool {
    let dir = dir.strip_suffix('/').unwrap_or(dir);
    path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn check_flat(kind: &str, name: &str) -> Result<(), ResourceError> {
    check_kind(kind)?;
    check_text(name, ResourceName::MAX_NAME_BYTES).map_err(ResourceError::Name)
}

fn check_kind(kind: &str) -> Result<(), ResourceError> {
    let plain = kind.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    let starts = kind.bytes().next().is_some_and(|b| b.is_ascii_uppercase());
    if plain && starts && kind.len() <= ResourceName::MAX_KIND_BYTES {
        Ok(())
    } else {
        Err(ResourceError::Kind)
    }
}

fn spell(kind: &str, name: &str) -> Arc<str> {
    let mut text = String::with_capacity(kind.len() + 1 + name.len());
    text.push_str(kind);
    text.push(':');
    text.push_str(name);
    text.into()
}

/// Removes `.` and empty segments and resolves `..`; a trailing slash has no meaning.
fn normalise(path: &str, root: Option<&str>) -> Result<String, ResourceError> {
    let mut segments = Vec::new();
    let mut floor = 0;
    if !path.starts_with('/') {
        let root = root.filter(|root| root.starts_with('/')).ok_or(ResourceError::Relative)?;
        walk(&mut segments, root, 0)?;
        floor = segments.len();
    }
    walk(&mut segments, path, floor)?;
    if segments.len() > ResourceName::MAX_SEGMENTS {
        return Err(ResourceError::TooDeep);
    }
    let above = segments.len().saturating_sub(1);
    let stray = segments[..above].iter().any(|segment| segment.contains('*'));
    let partial = segments.last().is_some_and(|last| last.contains('*') && *last != "*");
    if stray || partial {
        return Err(ResourceError::Star);
    }
    let mut text = String::from("/");
    text.push_str(&segments.join("/"));
    Ok(text)
}

fn walk<'a>(segments: &mut Vec<&'a str>, path: &'a str, floor: usize) -> Result<(), ResourceError> {
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." if segments.len() <= floor => return Err(ResourceError::AboveRoot),
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn file(path: &str) -> Result<ResourceName, ResourceError> {
        ResourceName::new("FILE", path)
    }

    #[test]
    fn paths_have_one_canonical_spelling() {
        for (path, canonical) in [
            ("/a/b", "FILE:/a/b"),
            ("//a///b/", "FILE:/a/b"),
            ("/a/./b/.", "FILE:/a/b"),
            ("/a/x/../b", "FILE:/a/b"),
            ("/", "FILE:/"),
            ("/..a/b...", "FILE:/..a/b..."),
            ("/a/*", "FILE:/a/*"),
            ("/*", "FILE:/*"),
            ("/a/b/../*", "FILE:/a/*"),
        ] {
            assert_eq!(file(path).unwrap().as_str(), canonical, "{path}");
        }
    }

    #[test]
    fn invalid_paths_are_rejected_with_the_matching_error() {
        for (path, error) in [
            ("a/b", ResourceError::Relative),
            ("/..", ResourceError::AboveRoot),
            ("/a/../../b", ResourceError::AboveRoot),
            ("/a*", ResourceError::Star),
            ("/*/b", ResourceError::Star),
            ("/a/**", ResourceError::Star),
            ("", ResourceError::Name(TextError::Empty)),
            ("/a\0b", ResourceError::Name(TextError::Control)),
        ] {
            assert_eq!(file(path), Err(error), "{path}");
        }
        assert_eq!(file(&"/d".repeat(65)), Err(ResourceError::TooDeep));
        assert!(file(&"/d".repeat(64)).is_ok());
    }

    #[test]
    fn relative_paths_stay_within_their_root() {
        let at = |path, root| ResourceName::with_root("FILE", path, Some(root));
        assert_eq!(at("src/../lib.rs", "/repo").unwrap().as_str(), "FILE:/repo/lib.rs");
        assert_eq!(at("/etc", "/repo").unwrap().as_str(), "FILE:/etc");
        assert_eq!(at("../other", "/repo"), Err(ResourceError::AboveRoot));
        assert_eq!(at("a", "repo"), Err(ResourceError::Relative));
        let long = "/".to_string() + &"r".repeat(510);
        assert_eq!(at("ab", &long), Err(ResourceError::Name(TextError::TooLong { max: 512 })));
    }

    #[test]
    fn keys_are_data_and_never_paths() {
        assert_eq!(ResourceName::key("../../etc/*").unwrap().as_str(), "KEY:../../etc/*");
        assert_eq!(
            ResourceName::key(&"k".repeat(513)),
            Err(ResourceError::Name(TextError::TooLong { max: 512 }))
        );
        assert_eq!(ResourceName::new("key", "k"), Err(ResourceError::Kind));
        assert_eq!(ResourceName::parse("nocolon", None), Err(ResourceError::Kind));
        assert_eq!(ResourceName::parse("TABLE:a:b", None).unwrap().name(), "a:b");
    }

    #[test]
    fn a_subtree_overlaps_its_directory_and_everything_beneath_it_only() {
        let overlaps = |a: &str, b: &str| {
            let (a, b) = (file(a).unwrap(), file(b).unwrap());
            assert_eq!(a.overlaps(&b), b.overlaps(&a));
            a.overlaps(&b)
        };
        for inside in ["/dir", "/dir/a", "/dir/a/b", "/dir/*", "/dir/a/*", "/*"] {
            assert!(overlaps("/dir/*", inside), "{inside}");
        }
        for outside in ["/", "/dirt", "/di", "/other/dir", "/dirt/*"] {
            assert!(!overlaps("/dir/*", outside), "{outside}");
        }
        assert!(overlaps("/*", "/") && overlaps("/*", "/x"));
        let key = ResourceName::key("/dir/a").unwrap();
        assert!(!key.overlaps(&file("/dir/*").unwrap()) && !file("/dir/a").unwrap().overlaps(&key));
    }

    /// Conflicts are found through claim sets, overlap is defined on names: both must agree for every pair
    /// of shapes.
    #[test]
    fn names_overlap_exactly_if_one_checks_a_claim_set_of_the_other() {
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/*", "/a/*", "/a/b/*", "/ab/*", "/d/e"];
        let mut names: Vec<ResourceName> = paths.iter().map(|path| file(path).unwrap()).collect();
        names.push(ResourceName::key("/a/b").unwrap());
        names.push(ResourceName::new("TABLE", "/a/*").unwrap());
        for one in &names {
            for other in &names {
                let conflict = one.met().any(|checked| other.claimed().any(|claim| claim == checked));
                assert_eq!(conflict, one.overlaps(other), "{one} and {other}");
            }
        }
    }

    #[test]
    fn lineage_runs_from_the_root_to_the_path() {
        let of = |path| lineage(path).collect::<Vec<_>>();
        assert_eq!(of("FILE:/"), ["FILE:/"]);
        assert_eq!(of("FILE:/a"), ["FILE:/", "FILE:/a"]);
        assert_eq!(of("FILE:/a/bc/d"), ["FILE:/", "FILE:/a", "FILE:/a/bc", "FILE:/a/bc/d"]);
    }

    #[test]
    fn the_directories_above_a_path_are_its_lineage_reversed() {
        for path in ["FILE:/", "FILE:/a", "FILE:/a/bc/d"] {
            let mut upwards: Vec<_> = core::iter::once(path).chain(dirs_above(path)).collect();
            upwards.reverse();
            assert_eq!(upwards, lineage(path).collect::<Vec<_>>());
        }
        assert_eq!(dirs_above("KEY:/a/b").next(), None);
    }

    #[test]
    fn the_name_of_a_subtree_is_rebuilt_from_its_directory() {
        for path in ["/*", "/a/*", "/a/b/*"] {
            let name = file(path).unwrap();
            let (dir, subtree) = name.node();
            assert!(subtree && ResourceName::subtree_of(dir) == name, "{path}");
        }
    }
}
