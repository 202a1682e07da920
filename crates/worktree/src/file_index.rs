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
use std::fmt::Write;

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
    /// By escaped path.
    prints: BTreeMap<String, String>,
}

impl FileIndex {
    /// Of `items`, which were scanned after `started_at`, those that `is_stored` accepts.
    pub(crate) fn new(
        snapshot_id: SnapshotId,
        started_at: UnixMs,
        items: &[Item],
        is_stored: impl Fn(&RelPath) -> bool,
    ) -> Self {
        let settled = |item: &&Item| is_settled(&item.print, started_at) && is_stored(&item.path);
        let line = |item: &Item| (item.path.to_string(), print_text(&item.print));
        Self { snapshot_id, started_at, prints: items.iter().filter(settled).map(line).collect() }
    }

    /// Whether the snapshot has the name as it is now.
    pub(crate) fn has(&self, item: &Item) -> bool {
        is_settled(&item.print, self.started_at)
            && self.prints.get(&item.path.to_string()).is_some_and(|print| *print == print_text(&item.print))
    }

    fn encode(&self) -> String {
        let mut text = format!("jvs-index 1 {} {}\n", self.snapshot_id, self.started_at.0);
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
        let pair =
            |line: &str| line.rsplit_once(' ').map(|(print, path)| (path.to_owned(), print.to_owned()));
        Some(Self { snapshot_id, started_at, prints: lines.map(pair).collect::<Option<_>>()? })
    }
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

/// Without the device, whose number may change with each mount, and the blocks, which change with writeback.
fn print_text(print: &Fingerprint) -> String {
    let Fingerprint { inode, mode, owner, size, modified, changed, .. } = print;
    format!(
        "{inode} {size} {mode:o} {} {} {}.{:09} {}.{:09}",
        owner.0, owner.1, modified.0, modified.1, changed.0, changed.1
    )
}

/// The names of every file that has several, by the inode that they share.
pub(crate) fn hard_links(items: &[Item]) -> BTreeMap<u64, Vec<&RelPath>> {
    let mut names: BTreeMap<u64, Vec<&RelPath>> = BTreeMap::new();
    let is_file = |item: &&Item| matches!(item.shape, Shape::File | Shape::HardLink { .. });
    for item in items.iter().filter(is_file).filter(|item| item.print.has_links) {
        names.entry(item.print.inode).or_default().push(&item.path);
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

    #[test]
    fn a_file_is_unchanged_only_with_the_same_metadata_from_before_the_snapshot() {
        let index = index();
        assert!(index.has(&item("a%20b", 9_000)));
        assert!(!index.has(&item("a%20b", 9_001)), "another time");
        assert!(!index.has(&item("fresh", 9_980)), "changed within a step of the start");
        assert!(!index.has(&item("other", 9_000)));
        let mut same = item("a%20b", 9_000);
        same.print.blocks = 16;
        same.print.device = 2;
        assert!(index.has(&same), "writeback and a new mount change nothing");
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
            assert!(!index.has(&other), "{other:?}");
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
