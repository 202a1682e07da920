//! The index of a worktree: the metadata that its files had when its last snapshot was taken.
//!
//! A file whose inode, size, mode, owner, modification and change times are those of the index, and whose times
//! are older than the start of that snapshot, still has the bytes that the snapshot stored. Times have steps: a
//! file that changed within a step of the start is not trusted.
//!
//! **Invariant.** The index only saves work. It is not synced, a damaged one is ignored, and what it claims was
//! true of one snapshot for ever: it never becomes wrong, only useless.
//!
//! **What would break it.** A change that leaves no trace in the metadata: a clock that is set back to the
//! nanosecond of an earlier change, or a write through a memory mapping of a page that was never written back.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use crate::atomic::{self, DIR_MODE};
use crate::clock::UnixMs;
use crate::error::{ErrorContext, Result};
use crate::fs::{Durability, ensure_dir};
use crate::ids::{Digest, SnapshotId, WorktreeId};
use crate::repo::Repo;
use crate::tree::{Fingerprint, Item, RelPath, Shape};

/// The metadata of a worktree's files at the start of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileIndex {
    /// The snapshot that stored the files.
    pub(crate) snapshot_id: SnapshotId,
    /// The filesystem's time before the files were scanned.
    pub(crate) started_at: UnixMs,
    /// Sorted by path.
    prints: Vec<(RelPath, IndexedPrint)>,
}

/// The metadata of a name. Without the device, whose number may change with each mount, and the blocks, which change
/// with writeback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexedPrint {
    inode: u64,
    size: u64,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, u64),
    changed: (i64, u64),
}

impl FileIndex {
    /// Of `items`, which were scanned after `started_at` and are sorted by path, those that `is_stored` accepts.
    pub(crate) fn new(
        snapshot_id: SnapshotId,
        started_at: UnixMs,
        items: &[Item],
        is_stored: impl Fn(&RelPath) -> bool,
    ) -> Self {
        let settled = |item: &&Item| is_settled(&item.print, started_at) && is_stored(&item.path);
        let print = |item: &Item| (item.path.clone(), IndexedPrint::of(&item.print));
        Self { snapshot_id, started_at, prints: items.iter().filter(settled).map(print).collect() }
    }

    /// Whether the snapshot has each of `items`, which are sorted by path, as it is now.
    pub(crate) fn unchanged(&self, items: &[Item]) -> Vec<bool> {
        let mut prints = self.prints.iter().peekable();
        let mut is_unchanged = |item: &Item| {
            while prints.next_if(|(path, _)| *path < item.path).is_some() {}
            let print = prints.next_if(|(path, _)| *path == item.path).map(|(_, print)| *print);
            is_settled(&item.print, self.started_at) && print == Some(IndexedPrint::of(&item.print))
        };
        items.iter().map(&mut is_unchanged).collect()
    }

    fn encode(&self) -> String {
        let mut text = String::with_capacity(128 * self.prints.len());
        writeln!(text, "jvs-index 1 {} {}", self.snapshot_id, self.started_at.0).expect("a string");
        for (path, print) in &self.prints {
            writeln!(text, "{print} {path}").expect("a string");
        }
        let digest = Digest::of(text.as_bytes());
        writeln!(text, "end {digest}").expect("a string");
        text
    }

    /// `None` unless `text` is a whole index.
    fn decode(text: &str) -> Option<Self> {
        let end = text.rfind("end ")?;
        let (body, end) = text.split_at(end);
        if end.strip_prefix("end ")?.strip_suffix('\n')?.parse::<Digest>().ok()?
            != Digest::of(body.as_bytes())
        {
            return None;
        }
        let mut lines = body.lines();
        let mut head = lines.next()?.strip_prefix("jvs-index 1 ")?.split(' ');
        let (snapshot_id, started_at) = (head.next()?.parse().ok()?, UnixMs(head.next()?.parse().ok()?));
        let mut prints = lines.map(decode_line).collect::<Option<Vec<_>>>()?;
        // Earlier versions sorted the lines by their escaped paths.
        if !prints.is_sorted_by(|(one, _), (other, _)| one < other) {
            prints.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        }
        Some(Self { snapshot_id, started_at, prints })
    }
}

fn decode_line(line: &str) -> Option<(RelPath, IndexedPrint)> {
    let mut words = line.split(' ');
    let mut word = || words.next();
    let time = |text: &str| {
        let (seconds, nanos) = text.split_once('.')?;
        Some((seconds.parse().ok()?, nanos.parse().ok()?))
    };
    let print = IndexedPrint {
        inode: word()?.parse().ok()?,
        size: word()?.parse().ok()?,
        mode: u32::from_str_radix(word()?, 8).ok()?,
        owner: (word()?.parse().ok()?, word()?.parse().ok()?),
        modified: time(word()?)?,
        changed: time(word()?)?,
    };
    Some((RelPath::from_escaped(word()?), print))
}

impl Repo {
    /// The index of a worktree; none if there is none, or if it is damaged.
    pub(crate) fn file_index(&self, worktree: &WorktreeId) -> Option<FileIndex> {
        let bytes = self.env.fs.read(&self.layout.index(worktree)).ok()?;
        FileIndex::decode(std::str::from_utf8(&bytes).ok()?)
    }

    /// Replaces the index of a worktree.
    /// It lists names, so only users who may list the worktree, by the permission bits `dir_mode`, may read it.
    pub(crate) fn write_file_index(
        &self,
        worktree: &WorktreeId,
        index: &FileIndex,
        dir_mode: u32,
    ) -> Result<()> {
        let (fs, dir, path) = (&*self.env.fs, self.layout.indexes(), self.layout.index(worktree));
        ensure_dir(fs, &dir, DIR_MODE).doing("create", &dir)?;
        let temp = atomic::temp_name(&self.env, &self.layout.tmp());
        let mode = 0o600 | (dir_mode & 0o044);
        fs.write_new(&temp, index.encode().as_bytes(), mode, Durability::Lazy).doing("write", &temp)?;
        fs.rename(&temp, &path).doing("write", &path)
    }
}

/// Whether the last change is at least a step of the file clock before `started_at`.
fn is_settled(print: &Fingerprint, started_at: UnixMs) -> bool {
    [print.changed, print.modified].iter().all(|(seconds, nanos)| {
        let ms = seconds.saturating_mul(1000) + i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX);
        ms < started_at.0 - STEP_MS
    })
}

/// Longer than the step of file times on any local filesystem; on filesystems with a longer one the start of
/// the snapshot has the same step.
const STEP_MS: i64 = 25;

impl IndexedPrint {
    fn of(print: &Fingerprint) -> Self {
        let Fingerprint { inode, mode, owner, size, modified, changed, .. } = *print;
        Self { inode, size, mode, owner, modified, changed }
    }
}

impl fmt::Display for IndexedPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inode, size, mode, owner, modified, changed } = self;
        write!(f, "{inode} {size} {mode:o} {} {} ", owner.0, owner.1)?;
        write!(f, "{}.{:09} {}.{:09}", modified.0, modified.1, changed.0, changed.1)
    }
}

/// The positions of the names of every file that has several, by the inode that they share.
pub(crate) fn hard_links(items: &[Item]) -> BTreeMap<u64, Vec<usize>> {
    let mut names: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let is_file = |item: &Item| matches!(item.shape, Shape::File | Shape::HardLink { .. });
    for (at, item) in items.iter().enumerate().filter(|(_, item)| item.print.has_links && is_file(item)) {
        names.entry(item.print.inode).or_default().push(at);
    }
    names.retain(|_, names| names.len() > 1);
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::unescape;

    fn item(name: &str, changed_ms: i64) -> Item {
        let time = (changed_ms / 1000, u64::try_from(changed_ms % 1000).expect("positive") * 1_000_000);
        let print = Fingerprint {
            device: 1,
            inode: 7,
            has_links: false,
            mode: 0o644,
            owner: (0, 0),
            size: 3,
            blocks: 8,
            modified: time,
            changed: time,
        };
        Item { path: RelPath::ROOT.join(&unescape(name)), shape: Shape::File, print, layer: 0 }
    }

    fn index() -> FileIndex {
        let id = "20261116t002902483z-ef0d6e14".parse().expect("an id");
        FileIndex::new(id, UnixMs(10_000), &[item("a%20b", 9_000), item("fresh", 9_980)], |_| true)
    }

    fn has(index: &FileIndex, item: &Item) -> bool {
        index.unchanged(std::slice::from_ref(item)) == [true]
    }

    #[test]
    fn names_are_found_among_others_that_came_and_went() {
        let before = ["a", "b", "b%20", "b%c3%a9", "d"].map(|name| item(name, 9_000));
        let id = "20261116t002902483z-ef0d6e14".parse().expect("an id");
        let index = FileIndex::new(id, UnixMs(10_000), &before, |path| *path != before[3].path);
        let now = ["a", "a-new", "b%20", "b%c3%a9", "d", "e"].map(|name| item(name, 9_000));
        assert_eq!(index.unchanged(&now), [true, false, true, false, true, false]);
    }

    /// Earlier versions wrote the lines in the order of the escaped paths, in which `%` is before `-`.
    #[test]
    fn an_index_in_the_order_of_escaped_paths_is_read() {
        let before = ["a-b", "a%c3%a9"].map(|name| item(name, 9_000));
        let id = "20261116t002902483z-ef0d6e14".parse().expect("an id");
        let index = FileIndex::new(id, UnixMs(10_000), &before, |_| true);
        let text = index.encode();
        let lines: Vec<&str> = text.lines().collect();
        let body = format!("{}\n{}\n{}\n", lines[0], lines[2], lines[1]);
        let turned = format!("{body}end {}\n", Digest::of(body.as_bytes()));
        assert_eq!(FileIndex::decode(&turned), Some(index));
    }

    #[test]
    fn a_file_is_unchanged_only_with_the_same_metadata_from_before_the_snapshot() {
        let index = index();
        assert!(has(&index, &item("a%20b", 9_000)));
        assert!(!has(&index, &item("a%20b", 9_001)), "another time");
        assert!(!has(&index, &item("fresh", 9_980)), "changed within a step of the start");
        assert!(!has(&index, &item("other", 9_000)));
        let mut same = item("a%20b", 9_000);
        same.print.blocks = 16;
        same.print.device = 2;
        assert!(has(&index, &same), "writeback and a new mount change nothing");
        for change in [
            |print: &mut Fingerprint| print.inode = 8,
            |print: &mut Fingerprint| print.size = 4,
            |print: &mut Fingerprint| print.modified.1 += 1,
            |print: &mut Fingerprint| print.changed.1 += 1,
            |print: &mut Fingerprint| print.mode = 0o600,
            |print: &mut Fingerprint| print.owner.0 = 1,
        ] {
            let mut other = item("a%20b", 9_000);
            change(&mut other.print);
            assert!(!has(&index, &other), "{other:?}");
        }
    }

    #[test]
    fn an_index_survives_its_text_and_no_other_text_is_one() {
        let text = index().encode();
        assert_eq!(FileIndex::decode(&text), Some(index()));
        for cut in 0..text.len() {
            assert_eq!(FileIndex::decode(&text[..cut]), None, "cut at {cut}");
        }
        assert_eq!(FileIndex::decode(&text.replace("644", "600")), None);
    }
}
