//! The sequence of a worktree: numbered entries, each created once, none ever changed or reused.
//!
//! **Invariant.** Names are dense from 1 and never disappear. So the newest entry can be found by bisection,
//! without listing the directory; and a writer that slept through any number of others still meets
//! `EEXIST`. Folding preserves this: it writes many lines to one file and makes each old name a hard link *to
//! that file*, so disk space is freed and no number ever becomes free.
//!
//! **What would break it.** Deleting folded entries: A reads that 5 is the newest and pauses before
//! `link(6)`; other writers append 6 to 300 and fold 1 to 299 away; A resumes, `link(6)` succeeds, and A
//! believes that it holds the lock.
//!
//! Left out: the meaning of an entry (`record`), and when it may be appended (`lock`).

use std::ffi::OsString;
use std::path::PathBuf;

use crate::atomic::{self, CreateOutcome};
use crate::env::Env;
use crate::error::{Error, ErrorContext, Result};
use crate::fs::{Durability, absent_is_none};
use crate::ids::{Digest, EntryNumber, WorktreeId};
use crate::layout::Layout;
use crate::record::{Entry, FORMAT};

/// Entries per folded file.
pub const FOLD: u64 = 256;

/// The entries of one worktree.
pub struct Sequence<'a> {
    env: &'a Env,
    layout: &'a Layout,
    worktree: &'a WorktreeId,
}

/// An entry as it is stored.
#[derive(Clone, Debug)]
pub struct StoredEntry {
    /// The entry.
    pub entry: Entry,
    /// The hash of its line, which the next entry carries.
    pub digest: Digest,
}

/// The outcome of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The entry is in the sequence, durably.
    Appended,
    /// Another writer used the number first.
    NumberTaken,
}

impl<'a> Sequence<'a> {
    /// The sequence of `worktree`.
    pub fn new(env: &'a Env, layout: &'a Layout, worktree: &'a WorktreeId) -> Self {
        Self { env, layout, worktree }
    }

    /// The number of the newest entry.
    pub fn newest(&self) -> Result<Option<EntryNumber>> {
        if !self.exists(1)? {
            return Ok(None);
        }
        let (mut there, mut absent) = (1, 2);
        while self.exists(absent)? {
            there = absent;
            absent = absent.saturating_mul(2);
        }
        while absent - there > 1 {
            let middle = there + (absent - there) / 2;
            *(if self.exists(middle)? { &mut there } else { &mut absent }) = middle;
        }
        Ok(Some(EntryNumber(there)))
    }

    /// The largest number that the directory lists. Unlike bisection this also sees entries behind a hole; in
    /// a whole sequence it is at most what [`Sequence::newest`] returns after it.
    pub(crate) fn last_listed(&self) -> Result<Option<EntryNumber>> {
        let dir = self.layout.sequence(self.worktree);
        let names = absent_is_none(self.env.fs.list(&dir)).doing("list", &dir)?.unwrap_or_default();
        let number_of = |name: &OsString| {
            let n: u64 = name.to_str()?.parse().ok()?;
            (n.to_string().as_str() == name).then_some(EntryNumber(n))
        };
        Ok(names.iter().filter_map(number_of).max())
    }

    /// Entry `n`, folded or not.
    pub fn read(&self, n: EntryNumber) -> Result<StoredEntry> {
        Ok(self.read_line(n)?.0)
    }

    /// Makes the existing names durable. Called before an append, because the previous writer may have died
    /// between its link and its sync: if a power cut lost that entry and kept the new one, the numbers would
    /// have a hole.
    pub fn sync(&self) -> Result<()> {
        let dir = self.layout.sequence(self.worktree);
        self.env.fs.sync_dir(&dir).doing("sync", &dir)
    }

    /// Appends `entry` unless its number is taken; all entries before it must be durable.
    pub fn append(&self, entry: &Entry) -> Result<AppendOutcome> {
        let path = self.path(entry.n);
        let created = atomic::create(self.env, &self.layout.tmp(), &path, &encode(entry))
            .doing("append entry", &path)
            .map_err(|error| error.with("indeterminate", true))?;
        Ok(match created {
            CreateOutcome::Created => AppendOutcome::Appended,
            CreateOutcome::NameTaken => AppendOutcome::NumberTaken,
        })
    }

    /// Folds the last full block of entries below `newest`, unless it is folded already.
    pub fn fold_below(&self, newest: EntryNumber) -> Result<()> {
        // The newest entry stays a file of its own, so a block is full only once the next entry exists.
        let Some(block) = (newest.0.saturating_sub(1) / FOLD).checked_sub(1) else { return Ok(()) };
        let (first, last) = (block * FOLD + 1, (block + 1) * FOLD);
        if self.is_folded(EntryNumber(last))? {
            return Ok(());
        }
        let mut lines = Vec::new();
        for n in first..=last {
            lines.extend_from_slice(&self.read_line(EntryNumber(n))?.1);
        }
        let folded = atomic::temp_name(self.env, &self.layout.tmp());
        let (fs, tmp) = (&self.env.fs, self.layout.tmp());
        fs.write_new(&folded, &lines, atomic::FILE_MODE, Durability::Synced).doing("fold into", &folded)?;
        for n in first..=last {
            let name = atomic::temp_name(self.env, &tmp);
            fs.link(&folded, &name).doing("fold", &name)?;
            fs.rename(&name, &self.path(EntryNumber(n))).doing("fold", &name)?;
        }
        fs.remove_file(&folded).doing("remove", &folded)?;
        self.sync()
    }

    /// The entry and its bytes, which folding does not change.
    fn read_line(&self, n: EntryNumber) -> Result<(StoredEntry, Vec<u8>)> {
        let path = self.path(n);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read entry", &path)?;
        let bytes = bytes.ok_or_else(|| Error::damaged(&path, format!("entry {n} is missing")))?;
        let lines = || bytes.split_inclusive(|byte| *byte == b'\n');
        let parse =
            |line: &[u8]| serde_json::from_slice::<Entry>(line).map_err(|cause| Error::damaged(&path, cause));
        // A folded block holds consecutive entries, so the first gives the position of all others.
        let first = parse(lines().next().unwrap_or_default())?;
        let offset = n.0.checked_sub(first.n.0).and_then(|offset| usize::try_from(offset).ok());
        let line = offset.and_then(|offset| lines().nth(offset)).unwrap_or_default();
        let entry = if first.n == n { first } else { parse(line)? };
        if entry.v != FORMAT {
            let cause = format!("written by another version of jvs: format={}", entry.v);
            return Err(Error::damaged(&path, cause));
        }
        if entry.n != n {
            return Err(Error::damaged(&path, format!("the file does not hold entry {n}")));
        }
        Ok((StoredEntry { entry, digest: Digest::of(line) }, line.to_vec()))
    }

    fn is_folded(&self, n: EntryNumber) -> Result<bool> {
        let path = self.path(n);
        let bytes = self.env.fs.read(&path).doing("read entry", &path)?;
        Ok(bytes.split_inclusive(|byte| *byte == b'\n').nth(1).is_some())
    }

    fn exists(&self, n: u64) -> Result<bool> {
        let path = self.path(EntryNumber(n));
        Ok(absent_is_none(self.env.fs.meta(&path)).doing("stat entry", &path)?.is_some())
    }

    fn path(&self, n: EntryNumber) -> PathBuf {
        self.layout.entry(self.worktree, n)
    }
}

/// One line of JSON, newline included; the next entry carries the hash of exactly these bytes.
fn encode(entry: &Entry) -> Vec<u8> {
    let mut line = serde_json::to_vec(entry).expect("an entry is plain data");
    line.push(b'\n');
    line
}
