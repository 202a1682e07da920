//! Litter: temporary files, unfinished snapshots and restores, and sessions without a lock.

use super::{Checkup, shown};
use crate::atomic;
use crate::error::{ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{FencingToken, SnapshotId, WorktreeId};
use crate::lease::{self, LeaseState};
use crate::session::LockSession;
use crate::snapshot::SnapshotIntent;
use crate::view::View;
use crate::worktree::{Mode, Worktree};

impl Checkup<'_> {
    /// Looks for files that have no effect and only occupy disk space.
    pub(super) fn check_litter(&mut self, worktrees: &[Worktree]) -> Result<()> {
        self.check_temporary_files()?;
        for id in self.repo.known_snapshots()? {
            self.check_intent(&id)?;
        }
        for worktree in worktrees {
            self.check_stages(worktree)?;
        }
        self.check_rescued()?;
        self.check_sessions()
    }

    fn check_temporary_files(&mut self) -> Result<()> {
        let (repo, dir) = (self.repo, self.repo.layout.tmp());
        for name in repo.env.fs.list(&dir).doing("list", &dir)? {
            let path = dir.join(&name);
            let gone = name.to_str().and_then(|name| atomic::maker_is_gone(&repo.env, name));
            let meta = absent_is_none(repo.env.fs.meta(&path)).doing("stat", &path)?;
            let Some(meta) = meta else { continue };
            if gone.unwrap_or_else(|| self.is_ancient(meta.modified)) {
                let (detail, now) = ("a command that did not finish left this temporary file", self.now);
                self.note_or_repair("orphan_temp", shown(&path), detail, |repo| {
                    repo.move_to_trash(&path, now)
                });
            }
        }
        Ok(())
    }

    /// A snapshot with an intent is unfinished, or its process died after the publish. `audit` checks the
    /// others.
    fn check_intent(&mut self, id: &SnapshotId) -> Result<()> {
        let repo = self.repo;
        // The intent is read before the sequence: it is removed only after the publish.
        let path = repo.layout.intent(id);
        let bytes = absent_is_none(repo.env.fs.read(&path)).doing("read", &path)?;
        let Some(bytes) = bytes else { return Ok(()) };
        let intent =
            serde_json::from_slice::<SnapshotIntent>(&bytes).ok().filter(|intent| intent.snapshot_id == *id);
        let Some(intent) = intent else {
            let detail = "the intent is damaged, so the state of its snapshot is unknown; check the snapshot \
                          and remove the intent";
            self.note("intent_damaged", shown(&path), detail);
            return Ok(());
        };
        // So is the state of the process: once that has ended, the snapshot can no longer become published.
        let abandoned = self.is_abandoned(&intent);
        let published = self.publishes(&intent.worktree_id, id)?;
        if !self.is_whole(&intent.worktree_id) {
            return Ok(());
        }
        if published == Some(true) {
            let (detail, now) = ("the snapshot was published, and only its intent is left", self.now);
            self.note_or_repair("intent_left", id.as_str(), detail, |repo| repo.move_to_trash(&path, now));
        } else if published == Some(false) && abandoned {
            let detail = "the snapshot was begun and never published; it is hidden and occupies disk space";
            let now = self.now;
            self.note_or_repair("partial_snapshot", id.as_str(), detail, |repo| {
                // The intent last: a descriptor without an intent means "published".
                repo.move_to_trash(&repo.layout.snapshot(id), now)?;
                repo.move_to_trash(&path, now)
            });
        }
        Ok(())
    }

    /// Whether no process can be taking this snapshot any more.
    fn is_abandoned(&self, intent: &SnapshotIntent) -> bool {
        if let Some(gone) = atomic::maker_is_gone(&self.repo.env, &intent.maker) {
            return gone;
        }
        let is_ancient = self.is_ancient(intent.created_at);
        intent.fencing_token.map_or(is_ancient, |token| {
            match self.tenure(&intent.worktree_id, token) {
                Tenure::Over => true,
                Tenure::Expired => is_ancient,
                // However long the snapshot takes, its holder publishes it at the end.
                Tenure::Live => false,
            }
        })
    }

    /// The tenure of `token`; an unreadable sequence counts as a live one, so that nothing is removed.
    fn tenure(&self, worktree: &WorktreeId, token: FencingToken) -> Tenure {
        let Ok(view) = View::read(&self.repo.env, &self.repo.layout, worktree) else { return Tenure::Live };
        match view.lock.filter(|lock| lock.fencing_token == token) {
            None => Tenure::Over,
            Some(lock) => match lease::lease_state(&lock, &self.lease_time()) {
                LeaseState::Live | LeaseState::RenewedInFuture { .. } => Tenure::Live,
                LeaseState::Expired | LeaseState::Stealable | LeaseState::StealableAfterWatch { .. } => {
                    Tenure::Expired
                }
            },
        }
    }

    /// A restore under a live lock is in progress; any other whose maker has ended is litter.
    fn check_stages(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        if !self.is_whole(&worktree.worktree_id) || !repo.has_stages(worktree)? {
            return Ok(());
        }
        let in_progress = match worktree.mode {
            Mode::Exclusive => {
                let now = self.lease_time();
                let view = View::read(&repo.env, &repo.layout, &worktree.worktree_id)?;
                view.lock.is_some_and(|lock| lease::lease_state(&lock, &now) == LeaseState::Live)
            }
            // `has_stages` counts only stages whose maker has ended.
            Mode::Shared => false,
        };
        if in_progress {
            return Ok(());
        }
        let path = repo.layout.restores(&worktree.worktree_id);
        let detail = "a restore was interrupted; the next acquire would also settle it";
        self.note_or_repair("restore_left", shown(&path), detail, |repo| repo.settle(worktree).map(drop));
        Ok(())
    }

    /// Files that restores replaced and kept: work that is in no snapshot, so only a person may remove it.
    fn check_rescued(&mut self) -> Result<()> {
        let (fs, all) = (&self.repo.env.fs, self.repo.layout.all_rescued());
        for worktree in absent_is_none(fs.list(&all)).doing("list", &all)?.unwrap_or_default() {
            let dir = all.join(worktree);
            for name in absent_is_none(fs.list(&dir)).doing("list", &dir)?.unwrap_or_default() {
                let detail = "these files changed while a restore replaced them, and are in no snapshot; copy \
                              what is needed, and remove the directory";
                self.note("rescued_files", shown(&dir.join(name)), detail);
            }
        }
        Ok(())
    }

    /// Sessions of this user whose lock was lost, or never granted.
    fn check_sessions(&mut self) -> Result<()> {
        let sessions = &self.repo.env.sessions;
        for id in sessions.ids()? {
            let Ok(session) = sessions.load(&id) else { continue };
            let ours = session.repo_id == self.repo.record.repo_id;
            // In this order: once its acquire has ended, the session cannot be granted a lock after the
            // check.
            if ours && self.acquire_has_ended(&session)? && self.is_lost(&session)? {
                let detail = "the session no longer holds a lock, so its secret is useless";
                self.note_or_repair("session_left", id.as_str(), detail, |repo| {
                    repo.env.sessions.remove(&id)
                });
            }
        }
        Ok(())
    }

    /// Whether a whole sequence shows that the session holds no lock. Compares session ids, because the token
    /// may not be saved yet. A token after the newest entry belongs to another copy of the repository.
    fn is_lost(&mut self, session: &LockSession) -> Result<bool> {
        let (repo, id) = (self.repo, &session.worktree_id);
        let Ok(view) = View::read(&repo.env, &repo.layout, id) else { return Ok(false) };
        self.audit(id)?;
        let stands = view.lock.is_some_and(|lock| lock.session_id == session.session_id);
        Ok(!stands && self.is_whole(id) && session.fencing_token.entry() <= view.newest.n)
    }

    /// Whether the acquire that created the session has ended. Until the token is saved, the lock may be
    /// about to be granted.
    fn acquire_has_ended(&self, session: &LockSession) -> Result<bool> {
        if session.fencing_token != FencingToken(0) {
            return Ok(true);
        }
        if let Some(gone) = atomic::maker_is_gone(&self.repo.env, &session.maker) {
            return Ok(gone);
        }
        let modified = self.repo.env.sessions.modified(&session.session_id)?;
        Ok(modified.is_some_and(|at| self.is_ancient(at)))
    }
}

/// How far the tenure of a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tenure {
    /// Its lease runs.
    Live,
    /// Its lease has expired, and no other session has the lock yet.
    Expired,
    /// It ended: the token is fenced.
    Over,
}
