//! The sequence of a worktree: numbered entries, each created once, none ever changed or reused.
//!
//! **Invariant.** Names are dense from 1 and never disappear, except for numbers that a `resume` entry declares
//! lost. The newest entry is found by listing the directory, and is believed only if no number below it is
//! missing and no trace names a later one (`traces`). A writer that slept through any number of others still
//! meets `EEXIST`. Folding preserves this: it writes many lines to one file and makes each old name a hard link
//! *to that file*, so disk space is freed and no number ever becomes free.
//!
//! **What would break it.** Deleting folded entries: A reads that 5 is the newest and pauses before
//! `link(6)`; other writers append 6 to 300 and fold 1 to 299 away; A resumes, `link(6)` succeeds, and A
//! believes that it holds the lock. Or finding the end by bisection: A holds the lock by entry 8, an operator
//! removes entry 4, B takes 3 for the newest, and `link(4)` grants B the lock with a smaller token.
//!
//! Or an entry that is lost while another process is between its read and its `link`: A reads that 3 is the
//! newest and pauses; B appends 4 and 5; an operator removes 4; A's `link(4)` succeeds. So an append is
//! confirmed: it counts only if it is still there, the next entry, where there is one, carries its hash, and no
//! trace named its number before (`Sequence::confirm`). And the copy of the lock must name the lock that the
//! entry of its number granted.
//!
//! A listing is no snapshot of a directory: it may show entry 10 and not 9 if both are created while it is
//! read. So a number that it lacks counts as missing only if `stat` does not find it either.
//!
//! Left out: the meaning of an entry (`record`), and when it may be appended (`lock`).

use std::ffi::OsString;
use std::path::PathBuf;

use crate::atomic::{self, CreateOutcome};
use crate::clock::Millis;
use crate::env::Env;
use crate::error::{Error, ErrorContext, Result};
use crate::fs::{Durability, absent_is_none};
use crate::ids::{Digest, EntryNumber, FencingToken, NumberRange, WorktreeId};
use crate::layout::Layout;
use crate::record::{Entry, EntryEvent, FORMAT, LockRecord};

/// Entries per folded file: an entry needs a quarter of a disk block, and a file of its own a whole one. A larger
/// number would leave more entries unfolded, and each read of an entry reads its whole block.
pub const FOLD: u64 = 16;

/// Longer than JuiceFS caches names by default (one second).
const NAME_CACHE_MS: Millis = 2_000;
const NAME_CACHE_STEP_MS: Millis = 50;

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
pub(crate) enum AppendOutcome {
    /// The entry is in the sequence, durably.
    Appended,
    /// Another writer used the number first.
    NumberTaken,
}

/// The numbers that a sequence has, damaged or not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// The existing numbers, ascending.
    pub(crate) numbers: Vec<u64>,
    /// The largest token that the copy of the lock or the name of a renewal carries.
    pub(crate) traced: Option<FencingToken>,
    /// The copy of the lock.
    pub(crate) copy: Option<LockRecord>,
}

impl Survey {
    /// The largest existing number.
    pub(crate) fn newest(&self) -> Option<EntryNumber> {
        self.numbers.last().copied().map(EntryNumber)
    }

    /// The numbers below the newest that are missing.
    pub(crate) fn gaps(&self) -> Vec<NumberRange> {
        let mut gaps = Vec::new();
        let mut expected = 1;
        for n in &self.numbers {
            if *n > expected {
                gaps.push(NumberRange { first: expected, last: n - 1 });
            }
            expected = n + 1;
        }
        gaps
    }
}

impl<'a> Sequence<'a> {
    /// The sequence of `worktree`.
    pub fn new(env: &'a Env, layout: &'a Layout, worktree: &'a WorktreeId) -> Self {
        Self { env, layout, worktree }
    }

    /// The newest entry of a sequence that is whole; none if the sequence was never begun. Refuses a sequence
    /// with a hole or a lost end.
    pub fn end(&self) -> Result<Option<StoredEntry>> {
        let survey = self.survey()?;
        let Some(newest) = survey.newest() else {
            return match survey.traced {
                None => Ok(None),
                Some(token) => Err(self.tail_lost(EntryNumber(0), token)),
            };
        };
        let stored = self.read_listed(newest)?;
        let lost = &stored.entry.state.lost;
        let is_declared = |gap: &NumberRange| lost.iter().any(|range| range.contains(*gap));
        if let Some(gap) = survey.gaps().iter().find(|gap| !is_declared(gap)) {
            return Err(self.hole(*gap));
        }
        if let Some(token) = survey.traced.filter(|token| token.entry() > newest) {
            return Err(self.tail_lost(newest, token));
        }
        match self.replaced_grant(&survey, lost) {
            None => Ok(Some(stored)),
            Some(n) => Err(self.wrong_entry(n, OTHER_LOCK)),
        }
    }

    /// The entry that grants another lock than the copy of the lock names for its number.
    pub(crate) fn replaced_grant(&self, survey: &Survey, lost: &[NumberRange]) -> Option<EntryNumber> {
        let copy = survey.copy.as_ref()?;
        let n = copy.fencing_token.entry();
        if lost.iter().any(|range| range.has(n.0)) {
            return None;
        }
        let entry = self.read(n).ok()?.entry;
        let is_same = match entry.event {
            EntryEvent::Acquire { lock } | EntryEvent::Steal { lock, .. } => lock.lock_id == copy.lock_id,
            _ => false,
        };
        (!is_same).then_some(n)
    }

    /// The numbers that exist, and the traces of others. Traces are read before the entries, because an entry
    /// is durable before its traces are written.
    pub(crate) fn survey(&self) -> Result<Survey> {
        let copy = self.lock_copy()?;
        let dir = self.layout.sequence(self.worktree);
        let names = absent_is_none(self.env.fs.list(&dir)).doing("list", &dir)?.unwrap_or_default();
        let mut numbers: Vec<u64> = names.iter().filter_map(number_in).collect();
        numbers.sort_unstable();
        // A name that is replaced while the directory is read may be listed twice.
        numbers.dedup();
        let renewed = names.iter().filter_map(renewed_token).max();
        let traced = copy.as_ref().map(|copy| copy.fencing_token).max(renewed);
        let mut survey = Survey { numbers, traced, copy };
        self.add_unlisted(&mut survey)?;
        Ok(survey)
    }

    /// The largest number with an entry that can be read: for tools that have to work on a damaged sequence.
    pub(crate) fn last_readable(&self) -> Result<Option<StoredEntry>> {
        let survey = self.survey()?;
        Ok(survey.numbers.iter().rev().find_map(|n| self.read(EntryNumber(*n)).ok()))
    }

    /// Entry `n`, folded or not.
    pub fn read(&self, n: EntryNumber) -> Result<StoredEntry> {
        Ok(self.read_line(n)?.0)
    }

    /// Entry `n`, which a listing shows. A client that caches names cannot open one that another host has just folded,
    /// until its cache expires: so this waits before it calls the entry missing.
    pub(crate) fn read_listed(&self, n: EntryNumber) -> Result<StoredEntry> {
        for _ in 0..NAME_CACHE_MS / NAME_CACHE_STEP_MS {
            if let Some((stored, _)) = self.try_read_line(n)? {
                return Ok(stored);
            }
            self.env.clock.wait(NAME_CACHE_STEP_MS);
        }
        self.read(n)
    }

    /// Makes the existing names durable. Called before an append, because the previous writer may have died
    /// between its link and its sync: if a power cut lost that entry and kept the new one, the numbers would
    /// have a hole.
    pub(crate) fn sync(&self) -> Result<()> {
        let dir = self.layout.sequence(self.worktree);
        self.env.fs.sync_dir(&dir).doing("sync", &dir)
    }

    /// Appends `entry` unless its number is taken; all entries before it must be durable. After an error that
    /// is marked as indeterminate the entry may exist.
    pub(crate) fn append(&self, entry: &Entry) -> Result<AppendOutcome> {
        let path = self.path(entry.n);
        let line = encode(entry);
        let prepared = atomic::prepare(self.env, &self.layout.tmp(), &line)
            .doing("write entry, so nothing was committed,", &path)?;
        match prepared.create(self.env, &path) {
            Ok(CreateOutcome::Created) => Ok(AppendOutcome::Appended),
            Ok(CreateOutcome::NameTaken) => Ok(AppendOutcome::NumberTaken),
            Err(failed) => {
                let error = Error::io("append entry", &path, &failed.cause);
                Err(if failed.indeterminate { error.with("indeterminate", true) } else { error })
            }
        }
    }

    /// Refuses if the appended `entry` took the place of one that was lost, or is lost already: it must be there,
    /// no trace may name its number before the caller writes one, and the next entry, where there is one, must
    /// carry its hash.
    pub(crate) fn confirm(&self, entry: &Entry) -> Result<()> {
        // The trace before the next entry, which is older than any trace of it.
        let dir = self.layout.sequence(self.worktree);
        let names = self.env.fs.list(&dir).doing("list", &dir)?;
        let copied = self.lock_copy()?.map(|copy| copy.fencing_token);
        let traced = names.iter().filter_map(renewed_token).max().max(copied).map(FencingToken::entry);
        let next = entry.n.next();
        let digest = Digest::of(&encode(entry));
        let is_next = if self.exists(next.0)? {
            self.read(next)?.entry.prev == digest && traced != Some(entry.n)
        } else {
            traced < Some(entry.n)
        };
        if is_next && self.read(entry.n)?.digest == digest {
            return Ok(());
        }
        let cause = "another entry of this number was lost while this one was appended";
        Err(self.wrong_entry(entry.n, cause).with("indeterminate", true))
    }

    /// Folds the full blocks of entries below `newest`, back to the first one that is folded already.
    pub fn fold_below(&self, newest: EntryNumber) -> Result<()> {
        // The newest entry stays a file of its own, so a block is full only once the next entry exists.
        let full_blocks = newest.0.saturating_sub(1) / FOLD;
        for block in (0..full_blocks).rev() {
            let (first, last) = (block * FOLD + 1, (block + 1) * FOLD);
            if self.is_folded(EntryNumber(last))? {
                break;
            }
            self.fold_block(first, last)?;
        }
        Ok(())
    }

    fn fold_block(&self, first: u64, last: u64) -> Result<()> {
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

    /// Adds numbers that exist and were not listed: entries appended while the directory was read.
    fn add_unlisted(&self, survey: &mut Survey) -> Result<()> {
        let mut unlisted = Vec::new();
        for gap in survey.gaps() {
            // Appends are recent, so the search begins at the end of a gap and stops at the first miss.
            for n in (gap.first..=gap.last).rev() {
                if !self.exists(n)? {
                    break;
                }
                unlisted.push(n);
            }
        }
        let mut next = survey.newest().map_or(1, |newest| newest.next().0);
        while self.exists(next)? {
            unlisted.push(next);
            next += 1;
        }
        if !unlisted.is_empty() {
            survey.numbers.extend(unlisted);
            survey.numbers.sort_unstable();
        }
        Ok(())
    }

    /// The copy of the lock, which is written after its entry is durable.
    fn lock_copy(&self) -> Result<Option<LockRecord>> {
        let path = self.layout.lock_copy(self.worktree);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// The entry and its bytes, which folding does not change.
    fn read_line(&self, n: EntryNumber) -> Result<(StoredEntry, Vec<u8>)> {
        self.try_read_line(n)?.ok_or_else(|| {
            let cause = format!("entry {n} is missing, or this mount caches names and does not show it yet");
            Error::damaged(&self.path(n), cause)
        })
    }

    fn try_read_line(&self, n: EntryNumber) -> Result<Option<(StoredEntry, Vec<u8>)>> {
        let path = self.path(n);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read entry", &path)?;
        let Some(bytes) = bytes else { return Ok(None) };
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
        Ok(Some((StoredEntry { entry, digest: Digest::of(line) }, line.to_vec())))
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

    /// The error of an entry that can be read and is not what it should be.
    pub(crate) fn wrong_entry(&self, n: EntryNumber, cause: &str) -> Error {
        Error::damaged(&self.path(n), format!("entry {n} is wrong: {cause}"))
    }

    fn hole(&self, gap: NumberRange) -> Error {
        let path = self.path(EntryNumber(gap.first));
        Error::damaged(&path, format!("entries are missing from the sequence: missing={gap}"))
            .with("missing", gap)
    }

    /// The error of a sequence that lacks the entry that granted `token`.
    pub(crate) fn tail_lost(&self, newest: EntryNumber, token: FencingToken) -> Error {
        let cause = format!(
            "the sequence has lost its end, because a file names a token after the newest entry: \
             newest={newest} token={token}"
        );
        Error::damaged(&self.layout.sequence(self.worktree), cause).with("token", token)
    }
}

/// The fault of an entry that took the place of a lost one.
pub(crate) const OTHER_LOCK: &str = "it grants another lock than the copy of the lock names for this number";

/// The number of an entry's file; none for names that jvs would not write.
fn number_in(name: &OsString) -> Option<u64> {
    let n: u64 = name.to_str()?.parse().ok()?;
    (n > 0 && n.to_string().as_str() == name).then_some(n)
}

/// The token that `<token>.renew` carries.
pub(crate) fn renewed_token(name: &OsString) -> Option<FencingToken> {
    name.to_str()?.strip_suffix(".renew")?.parse().ok().map(FencingToken)
}

/// One line of JSON, newline included; the next entry carries the hash of exactly these bytes.
pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
    let mut line = serde_json::to_vec(entry).expect("an entry is plain data");
    line.push(b'\n');
    line
}
