//! A repository: creating and opening one, its worktrees, and acquiring their locks.
//!
//! **Invariant.** A worktree exists while its record in `worktrees/` exists *and* its sequence is open.
//! Adding writes the sequence first and the record last; removing appends `remove` first and deletes the
//! record last. A crash in between leaves a worktree that does not exist, which a repeated `add` or `remove`
//! completes.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode as FileMode, chmod};
use serde::{Deserialize, Serialize};

use crate::atomic::{self, CreateOutcome, DIR_MODE};
use crate::clock::{Millis, UnixMs};
use crate::env::Env;
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::{Durability, FileKind, absent_is_none, ensure_dir};
use crate::history::DamagedRecord;
use crate::ids::{Digest, EntryNumber, FencingToken, RepoId, WorktreeId, random_hex};
use crate::layout::Layout;
use crate::lock::{AcquireRequest, AcquiredLock, Lock};
use crate::policy::LockPolicy;
use crate::probe;
use crate::record::{Entry, EntryEvent, FORMAT, WorktreeState};
use crate::sequence::{self, AppendOutcome, Sequence};
use crate::traces::{self, Traces};
use crate::tree;
use crate::worktree::{Mode, PayloadPath, Worktree};

/// The repository's record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RepoRecord {
    /// The version of everything under `.jvs`.
    pub v: u32,
    /// The repository.
    pub repo_id: RepoId,
    /// When it was created.
    pub created_at: UnixMs,
    /// The default policy of new worktrees.
    #[serde(flatten)]
    pub policy: LockPolicy,
    /// Whether all users of its group may use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// An open repository.
#[derive(Clone)]
pub struct Repo {
    pub(crate) env: Env,
    pub(crate) layout: Layout,
    pub(crate) record: RepoRecord,
}

/// The worktrees of a repository, as far as their records can be read.
#[derive(Clone, Debug)]
pub struct WorktreeListing {
    /// The worktrees, by name.
    pub worktrees: Vec<Worktree>,
    /// The records that could not be read.
    pub damaged: Vec<DamagedRecord>,
}

/// Parameters of a new worktree.
#[derive(Clone, Debug)]
pub struct NewWorktree {
    /// Its name.
    pub worktree_id: WorktreeId,
    /// Its directory, below the repository's root.
    pub path: PayloadPath,
    /// Whether it has one writer.
    pub mode: Mode,
    /// The policy of its locks.
    pub policy: LockPolicy,
}

impl Repo {
    /// Creates a repository in `root`, which must exist.
    pub fn init(env: Env, root: &Path, policy: LockPolicy) -> Result<Self> {
        Self::create(env, root, policy, false)
    }

    /// The same for all users of the group of `root`: new files and directories belong to that group. The caller's
    /// umask must let the group write.
    pub fn init_shared(env: Env, root: &Path, policy: LockPolicy) -> Result<Self> {
        Self::create(env, root, policy, true)
    }

    fn create(env: Env, root: &Path, policy: LockPolicy, shared: bool) -> Result<Self> {
        let layout = Layout::new(root.to_owned());
        if absent_is_none(env.fs.meta(&layout.repo_file())).doing("stat", &layout.repo_file())?.is_some() {
            return Err(Error::invalid(format!(
                "a repository exists here already; nothing was changed: path={}",
                layout.jvs().display()
            )));
        }
        let mut made = Vec::new();
        let record = Self::create_in(&env, &layout, policy, shared, &mut made).inspect_err(|_| {
            // A failed init leaves nothing behind, unless another process has made the repository meanwhile.
            if env.fs.meta(&layout.repo_file()).is_err() {
                made.iter().rev().for_each(|dir| drop(env.fs.remove_dir(dir)));
            }
        })?;
        Ok(Self { env, layout, record })
    }

    /// Adds the directories that it creates to `made`.
    fn create_in(
        env: &Env,
        layout: &Layout,
        policy: LockPolicy,
        shared: bool,
        made: &mut Vec<PathBuf>,
    ) -> Result<RepoRecord> {
        if shared {
            share_with_group(layout.root())?;
        }
        for dir in layout.directories() {
            match env.fs.make_dir(&dir, DIR_MODE) {
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    other.doing("create", &dir)?;
                    made.push(dir.clone());
                }
            }
            if shared {
                share_with_group(&dir)?;
            }
        }
        prove_filesystem(env, layout)?;
        let created_at = probe::read(env, layout)?.within(policy.max_clock_skew_ms())?.now.fs;
        let repo_id = RepoId::random(&*env.entropy);
        let record = RepoRecord { v: FORMAT, repo_id, created_at, policy, shared };
        env.fs.sync_dir(&layout.jvs()).doing("sync", &layout.jvs())?;
        create_json(env, layout, &layout.repo_file(), &record)?;
        env.fs.sync_dir(layout.root()).doing("sync", layout.root())?;
        Ok(record)
    }

    /// Opens the repository in `root`.
    pub fn open(env: Env, root: &Path) -> Result<Self> {
        let layout = Layout::new(root.to_owned());
        let path = layout.repo_file();
        let bytes = absent_is_none(env.fs.read(&path)).doing("read", &path)?;
        let bytes = bytes.ok_or_else(|| {
            Error::not_found(format!("no repository here; run `jvs init`: path={}", root.display()))
        })?;
        let record: RepoRecord =
            serde_json::from_slice(&bytes).map_err(|cause| Error::damaged(&path, cause))?;
        if record.v != FORMAT {
            return Err(Error::invalid(format!(
                "the repository needs another version of jvs; use that version: format={} known={FORMAT}",
                record.v
            )));
        }
        Ok(Self { env, layout, record })
    }

    /// The nearest directory with a repository, from `start` upwards.
    pub fn find_root(start: &Path) -> Option<PathBuf> {
        start.ancestors().find(|dir| dir.join(".jvs/repo.json").is_file()).map(Path::to_owned)
    }

    /// The repository's record.
    pub fn record(&self) -> &RepoRecord {
        &self.record
    }

    /// The repository's paths.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The filesystem, clocks and other components that it uses.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The lock of `worktree`.
    pub fn lock<'a>(&'a self, worktree: &'a Worktree) -> Lock<'a> {
        Lock::new(&self.env, &self.layout, &self.record.repo_id, worktree)
    }

    /// Takes the lock of `worktree`, and finishes or undoes the restores that earlier holders left behind: a
    /// lock on files that an earlier holder may still replace protects nothing. There is no other public way to take
    /// a lock; neither of these compiles outside of this crate:
    ///
    /// ```compile_fail,E0624
    /// fn take(lock: &worktree::lock::Lock<'_>, request: &worktree::lock::AcquireRequest<'_>) {
    ///     let _ = lock.acquire(request);
    /// }
    /// ```
    ///
    /// ```compile_fail,E0624
    /// fn append(sequence: &worktree::sequence::Sequence<'_>, entry: &worktree::record::Entry) {
    ///     let _ = sequence.append(entry);
    /// }
    /// ```
    pub fn acquire(&self, worktree: &Worktree, request: &AcquireRequest<'_>) -> Result<AcquiredLock> {
        let lock = self.lock(worktree);
        let mut acquired = lock.acquire(request)?;
        let session_id = acquired.session.session_id.clone();
        self.settle_as_holder(worktree, &mut acquired).inspect_err(|_| drop(lock.release(&session_id)))?;
        Ok(acquired)
    }

    /// The directory of a worktree's files.
    pub fn payload(&self, worktree: &Worktree) -> PathBuf {
        self.layout.root().join(worktree.path.as_path())
    }

    /// Adds a worktree, and creates its directory unless it exists. Of several that overlap and are added at once, all
    /// may have to withdraw; each then retries after a random delay.
    pub fn add_worktree(&self, new: NewWorktree) -> Result<Worktree> {
        for attempt in 1..ADD_ATTEMPTS {
            match self.try_add_worktree(new.clone()) {
                Err(error) if error.facts().contains_key("withdrawn") => {
                    let mut random = [0];
                    self.env.entropy.fill(&mut random);
                    self.env.clock.wait(Millis::from(random[0]) % 20 * attempt + 1);
                }
                other => return other,
            }
        }
        self.try_add_worktree(new)
    }

    fn try_add_worktree(&self, new: NewWorktree) -> Result<Worktree> {
        self.refuse_name(&new.worktree_id)?;
        self.refuse_overlap(&new.path, |_| false)?;
        self.make_payload(&new.path)?;
        let created_at = probe::read(&self.env, &self.layout)?.now.fs;
        let NewWorktree { worktree_id, path, mode, policy } = new;
        let worktree = Worktree { v: FORMAT, worktree_id, path, mode, policy, created_at };
        self.open_sequence(&worktree.worktree_id, created_at)?;
        let path = self.layout.worktree_file(&worktree.worktree_id);
        create_json(&self.env, &self.layout, &path, &worktree)?;
        // Two concurrent adds may both have missed the other's record: the add that sees both now withdraws.
        match self.refuse_overlap(&worktree.path, |other| *other == worktree.worktree_id) {
            Ok(()) => Ok(worktree),
            Err(error) => self.remove_worktree(&worktree.worktree_id).and(Err(error.with("withdrawn", true))),
        }
    }

    /// The worktree `id`.
    pub fn worktree(&self, id: &WorktreeId) -> Result<Worktree> {
        let path = self.layout.worktree_file(id);
        let bytes = absent_is_none(self.env.fs.read(&path)).doing("read", &path)?;
        let bytes = bytes.ok_or_else(|| {
            Error::not_found(format!("no such worktree; `jvs worktree list` lists them: worktree={id}"))
        })?;
        serde_json::from_slice(&bytes).map_err(|cause| Error::damaged(&path, cause))
    }

    /// All worktrees whose records can be read, by name.
    pub fn worktrees(&self) -> Result<Vec<Worktree>> {
        Ok(self.worktree_listing()?.worktrees)
    }

    /// All worktrees, by name, and the records that could not be read: a damaged one hides only itself.
    pub fn worktree_listing(&self) -> Result<WorktreeListing> {
        let dir = self.layout.worktrees();
        let names = self.env.fs.list(&dir).doing("list", &dir)?;
        let id_of = |name: &std::ffi::OsString| name.to_str()?.strip_suffix(".json")?.parse().ok();
        let mut ids: Vec<WorktreeId> = names.iter().filter_map(id_of).collect();
        ids.sort();
        let mut listing = WorktreeListing { worktrees: Vec::new(), damaged: Vec::new() };
        for id in ids {
            match self.worktree(&id) {
                Ok(worktree) => listing.worktrees.push(worktree),
                // Removed since.
                Err(error) if error.class() == ErrorClass::NotFound => {}
                Err(error) => listing.damaged.push(DamagedRecord { subject: id.to_string(), error }),
            }
        }
        Ok(listing)
    }

    /// All worktrees; refused if a record cannot be read, because that worktree's path is then unknown.
    fn all_worktrees(&self) -> Result<Vec<Worktree>> {
        let listing = self.worktree_listing()?;
        match listing.damaged.into_iter().next() {
            None => Ok(listing.worktrees),
            Some(damaged) => {
                let unknown = format!(
                    "the path of another worktree is unknown, because its record cannot be read; restore the record from \
                     a backup, or move it away, and retry: worktree={}",
                    damaged.subject
                );
                Err(damaged.error.and(&unknown))
            }
        }
    }

    /// Removes a worktree whose lock is free. Its files, snapshots and sequence stay.
    pub fn remove_worktree(&self, id: &WorktreeId) -> Result<Worktree> {
        let worktree = self.worktree(id)?;
        let lock = self.lock(&worktree);
        let removed = lock.commit(None, |view| match &view.lock {
            None => Ok(EntryEvent::Remove),
            Some(held) => Err(Error::new(
                ErrorClass::LockConflict,
                format!("the worktree is locked; release the lock first: holder={}", held.holder_id),
            )),
        });
        match removed {
            // A crash came between the entry and the record, or another process is there now: only the record
            // remains to be removed.
            Err(error) if error.class() == ErrorClass::NotFound => self.remove_worktree_record(&worktree)?,
            Err(error) => return Err(error),
            // No other record can take the place of this one until it is gone.
            Ok(_) => {
                let path = self.layout.worktree_file(id);
                absent_is_none(self.env.fs.remove_file(&path)).doing("remove", &path)?;
            }
        }
        self.env.fs.sync_dir(&self.layout.worktrees()).doing("sync", &self.layout.worktrees())?;
        Ok(worktree)
    }

    /// Removes the record of a removed worktree; refused if another process was first, or added it again.
    fn remove_worktree_record(&self, worktree: &Worktree) -> Result<()> {
        let (id, path) = (&worktree.worktree_id, self.layout.worktree_file(&worktree.worktree_id));
        let is_same = self.worktree(id)?.created_at == worktree.created_at;
        let removed = if is_same { self.env.fs.remove_file(&path) } else { Ok(()) };
        match absent_is_none(removed).doing("remove", &path)? {
            Some(()) if is_same => Ok(()),
            _ => Err(Error::not_found(format!("another process removed the worktree: worktree={id}"))),
        }
    }

    fn refuse_name(&self, new: &WorktreeId) -> Result<()> {
        if self.all_worktrees()?.iter().any(|other| other.worktree_id == *new) {
            return Err(Error::invalid(format!(
                "a worktree of this name exists already; choose another name: worktree={new}"
            )));
        }
        Ok(())
    }

    fn refuse_overlap(&self, path: &PayloadPath, is_self: impl Fn(&WorktreeId) -> bool) -> Result<()> {
        let others = self.all_worktrees()?;
        let overlaps = |other: &&Worktree| !is_self(&other.worktree_id) && other.path.overlaps(path);
        match others.iter().find(overlaps) {
            None => Ok(()),
            Some(other) => Err(Error::invalid(format!(
                "the path overlaps with that of another worktree; choose another path: path={} worktree={}",
                path.as_path().display(),
                other.worktree_id
            ))),
        }
    }

    /// Creates the worktree's directory. Every component must be a real directory on the repository's
    /// filesystem.
    fn make_payload(&self, path: &PayloadPath) -> Result<()> {
        let home = self.env.fs.meta(&self.layout.jvs()).doing("stat", &self.layout.jvs())?;
        let mut dir = self.layout.root().to_owned();
        for part in path.as_path().components() {
            dir.push(part);
            ensure_dir(&*self.env.fs, &dir, DIR_MODE).doing("create", &dir)?;
            let meta = self.env.fs.meta(&dir).doing("stat", &dir)?;
            if meta.kind != FileKind::Dir || meta.device != home.device {
                return Err(Error::invalid(format!(
                    "every component of a worktree's path must be a real directory on the repository's \
                     filesystem, and this one is not: path={}",
                    dir.display()
                )));
            }
        }
        self.refuse_same_directory(path)?;
        let parent = atomic::parent(&dir);
        self.env.fs.sync_dir(parent).doing("sync", parent)
    }

    /// Refuses a directory that a worktree has, contains or is in under another name: some filesystems ignore case.
    fn refuse_same_directory(&self, new: &PayloadPath) -> Result<()> {
        let of_new = self.identities(new)?;
        for other in self.all_worktrees()? {
            if other.path == *new {
                continue;
            }
            let of_other = self.identities(&other.path)?;
            let is_in = |inner: &[FileIdentity], outer: &[FileIdentity], path: &PayloadPath| {
                outer.len() == path.as_path().components().count()
                    && outer.last().is_some_and(|outer| inner.contains(outer))
            };
            if is_in(&of_new, &of_other, &other.path) || is_in(&of_other, &of_new, new) {
                return Err(Error::invalid(format!(
                    "this directory overlaps with that of another worktree under another name; choose another path: \
                     path={} worktree={}",
                    new.as_path().display(),
                    other.worktree_id
                )));
            }
        }
        Ok(())
    }

    /// The directories on the way to a worktree's, and its own, as far as they are there.
    fn identities(&self, path: &PayloadPath) -> Result<Vec<FileIdentity>> {
        let (mut dir, mut found) = (self.layout.root().to_owned(), Vec::new());
        for part in path.as_path().components() {
            dir.push(part);
            let Some(meta) = absent_is_none(self.env.fs.meta(&dir)).doing("stat", &dir)? else { break };
            found.push((meta.device, meta.inode));
        }
        Ok(found)
    }

    /// Refuses to begin a sequence whose tokens would repeat those of an earlier worktree of this name.
    fn require_no_trace_of_lost(&self, id: &WorktreeId, sequence: &Sequence<'_>) -> Result<()> {
        let (env, layout) = (&self.env, &self.layout);
        let traces = Traces { env, layout, repo_id: &self.record.repo_id, worktree: id };
        let in_sessions = traces.of_sessions()?;
        let snapshots = traces.of_snapshots(&traces::snapshot_ids(env, layout)?)?;
        let newest = sequence.end()?.map_or(EntryNumber(0), |newest| newest.entry.n);
        // A snapshot without a token still proves that there was an entry.
        let in_snapshots = snapshots.token.max(snapshots.published.first().map(|_| FencingToken(1)));
        match in_sessions.max(in_snapshots).filter(|token| token.entry() > newest) {
            None => Ok(()),
            Some(token) => Err(sequence.tail_lost(newest, token)),
        }
    }

    fn open_sequence(&self, id: &WorktreeId, at: UnixMs) -> Result<()> {
        let dir = self.layout.sequence(id);
        let sequence = Sequence::new(&self.env, &self.layout, id);
        self.require_no_trace_of_lost(id, &sequence)?;
        if absent_is_none(self.env.fs.meta(&dir)).doing("stat", &dir)?.is_none() {
            self.begin_sequence(&dir, at)?;
        }
        self.env.fs.sync_dir(&self.layout.locks()).doing("sync", &self.layout.locks())?;
        loop {
            let (n, prev, before) = match sequence.end()? {
                None => (EntryNumber(1), Digest::NONE, WorktreeState::default()),
                Some(newest) => (newest.entry.n.next(), newest.digest, newest.entry.state),
            };
            if before.open {
                // It was just begun, or a crash came between the entry and the record, or a concurrent add was
                // first: the record decides.
                return Ok(());
            }
            let entry = self.create_entry(n, prev, &before, at);
            sequence.sync()?;
            if sequence.append(&entry)? == AppendOutcome::Appended {
                return Ok(());
            }
        }
    }

    /// Creates the directory of a sequence together with its first entry. So a directory without entries is never an
    /// interrupted add: it has lost them.
    fn begin_sequence(&self, dir: &Path, at: UnixMs) -> Result<()> {
        let (fs, temp) = (&*self.env.fs, atomic::temp_name(&self.env, &self.layout.tmp()));
        let first = self.create_entry(EntryNumber(1), Digest::NONE, &WorktreeState::default(), at);
        fs.make_dir(&temp, DIR_MODE).doing("create", &temp)?;
        let written = fs
            .write_new(&temp.join("1"), &sequence::encode(&first), atomic::FILE_MODE, Durability::Synced)
            .and_then(|_| fs.sync_dir(&temp))
            .and_then(|()| fs.rename(&temp, dir));
        // A directory that has entries is not replaced: then another process was first.
        let is_there = written.is_ok() || fs.meta(dir).is_ok();
        drop(tree::remove(fs, &temp));
        if is_there { Ok(()) } else { written.doing("create", dir) }
    }

    fn create_entry(&self, n: EntryNumber, prev: Digest, before: &WorktreeState, at: UnixMs) -> Entry {
        let event = EntryEvent::Create;
        let state = before.after(n, &event).expect("a closed sequence can be opened");
        let (by, attempt) = (self.env.process.clone(), random_hex(&*self.env.entropy, 8));
        Entry { v: FORMAT, n, prev, at, by, attempt, state, event }
    }
}

/// Attempts to add a worktree beside others that overlap with it.
const ADD_ATTEMPTS: u64 = 10;

/// Device and inode.
type FileIdentity = (u64, u64);

/// Lets the directory's group write to it, and gives new names in it to that group.
fn share_with_group(dir: &Path) -> Result<()> {
    let doing = "let the group write to, which needs its owner,";
    let mode = rustix::fs::stat(dir).doing("stat", dir)?.st_mode & 0o7777;
    chmod(dir, FileMode::from_raw_mode(mode | 0o2070)).doing(doing, dir)
}

/// Creates a record that must not exist yet.
pub(crate) fn create_json(env: &Env, layout: &Layout, path: &Path, record: &impl Serialize) -> Result<()> {
    let mut bytes = serde_json::to_vec_pretty(record).expect("records are plain data");
    bytes.push(b'\n');
    match atomic::create(env, &layout.tmp(), path, &bytes).doing("create", path)? {
        CreateOutcome::Created => Ok(()),
        CreateOutcome::NameTaken => Err(Error::invalid(format!(
            "another process created this at the same moment; check it and retry: path={}",
            path.display()
        ))),
    }
}

/// Refuses a filesystem on which `link` is not an atomic test-and-set, which the protocol needs.
fn prove_filesystem(env: &Env, layout: &Layout) -> Result<()> {
    let (fs, tmp) = (&env.fs, layout.tmp());
    let [one, two] = [atomic::temp_name(env, &tmp), atomic::temp_name(env, &tmp)];
    fs.write_new(&one, b"", atomic::FILE_MODE, Durability::Lazy).doing("create", &one)?;
    let first = fs.link(&one, &two);
    let second = fs.link(&one, &two);
    let dir = fs.sync_dir(&tmp);
    for path in [&one, &two] {
        absent_is_none(fs.remove_file(path)).doing("remove", path)?;
    }
    first.doing("make a hard link, which locks need,", &two)?;
    dir.doing("sync", &tmp)?;
    match second {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(Error::invalid(format!(
            "link(2) overwrites names on this filesystem, so it cannot arbitrate locks; use another: path={}",
            tmp.display()
        ))),
    }
}
