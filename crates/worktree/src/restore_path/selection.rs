//! The part of a tree that one path selects: its items, and its lines of a manifest.
//!
//! Hard links are named within the selection. A manifest names the first path of a hard-linked file, which may be
//! outside: so lines are compared by the file that they lead to.

use std::collections::BTreeMap;

use crate::diff::{NodeKind, StoredLine};
use crate::tree::{self, Item, RelPath, Shape, TreeManifest};

/// The items at and below `path`, and the directories above it.
pub(super) fn with_ancestors(items: &[Item], path: &RelPath) -> Vec<Item> {
    let wanted = |item: &&Item| item.path.is_at_or_below(path) || path.is_at_or_below(&item.path);
    let mut selected: Vec<Item> = items.iter().filter(wanted).cloned().collect();
    tree::rename_hard_links(&mut selected);
    selected
}

/// `items`, of which the first is to be moved. Moving a name changes times of its inode, so those of the first are left
/// out, except for the modification time of a file.
pub(super) fn without_times_of_move(mut items: Vec<Item>) -> Vec<Item> {
    if let Some(top) = items.first_mut() {
        top.print.changed = (0, 0);
        if top.shape == Shape::Dir {
            top.print.modified = (0, 0);
        }
    }
    items
}

/// What a name of a manifest is: kind, mode, size, and hash or target.
type Content<'a> = (NodeKind, &'a str, Option<u64>, &'a str);

/// The names at and below `path`, with a hard link as the file that it names.
pub(super) fn contents<'a>(manifest: &'a TreeManifest, path: &RelPath) -> BTreeMap<&'a str, Content<'a>> {
    let (top, below) = (path.to_string(), format!("{path}/"));
    let content = |line: &StoredLine<'a>| (line.kind, line.mode, line.bytes, line.content);
    let all: BTreeMap<&str, Content<'_>> =
        StoredLine::all(manifest).map(|line| (line.path, content(&line))).collect();
    let leads_to = |found: Content<'a>| match found {
        (NodeKind::HardLink, _, _, first) => all.get(first).copied().unwrap_or(found),
        other => other,
    };
    let selected = all.iter().filter(|(name, _)| **name == top || name.starts_with(&below));
    selected.map(|(name, found)| (*name, leads_to(*found))).collect()
}

/// The escaped paths that differ between two selections.
pub(super) fn differing<'a>(
    one: &BTreeMap<&'a str, Content<'a>>,
    other: &BTreeMap<&'a str, Content<'a>>,
) -> Vec<&'a str> {
    let changed = one.iter().filter(|(path, content)| other.get(*path) != Some(content));
    let added = other.keys().filter(|path| !one.contains_key(*path));
    let mut paths: Vec<&str> = changed.map(|(path, _)| *path).chain(added.copied()).collect();
    paths.sort_unstable();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hard_link_is_compared_as_the_file_that_it_names() {
        let manifest = |text: &str| TreeManifest::from_text(text.to_owned());
        let path = RelPath::ROOT.join(b"dir");
        let linked = manifest("d 0755 .\nf 0644 1 aa a\nd 0755 dir\nh a dir/b\nf 0600 1 bb dir2\n");
        let alone = manifest("d 0755 dir\nf 0644 1 aa dir/b\n");
        assert!(differing(&contents(&linked, &path), &contents(&alone, &path)).is_empty());
        let other = manifest("d 0755 dir\nf 0644 1 cc dir/b\nf 0644 1 aa dir/c\n");
        assert_eq!(differing(&contents(&linked, &path), &contents(&other, &path)), ["dir/b", "dir/c"]);
    }
}
