//! What was left half done: temporary files, unfinished snapshots and restores, sessions that are over.

use super::{Checkup, shown};
use crate::atomic;
use crate::error::{Context, Result};
use crate::fs::absent_is_none;
use crate::ids::{FencingToken, SnapshotId, WorktreeId};
use crate::lease::{self, Standing};
use crate::probe;
use crate::repo::Repo;
use crate::session::Session;
use crate::snapshot::Intent;
use crate::view::View;
use crate::worktree::{Mode, Worktree};

impl Checkup<'_> {
    /// Looks for everything that only takes up room.
    pub(super) fn look_for_litter(&mut self, worktrees: &[Worktree]) -> Result<()> {
        self.look_for_orphans()?;
        for id in self.repo.known_snapshots()? {
            self.look_at_unpublished(&id)?;
        }
        for worktree in worktrees {
            self.look_at_stages(worktree)?;
        }
        self.look_at_sessions()
    }

    fn look_for_orphans(&mut self) -> Result<()> {
        let (repo, dir) = (self.repo, self.repo.layout.tmp());
        for name in repo.env.fs.list(&dir).doing("list", &dir)? {
            let path = dir.join(&name);
            let gone = name.to_str().and_then(|name| atomic::maker_is_gone(&repo.env, name));
            let meta = absent_is_none(repo.env.fs.meta(&path)).doing("look at", &path)?;
            let Some(meta) = meta else { continue };
            if gone.unwrap_or_else(|| self.is_ancient(meta.modified)) {
                let detail = "a temporary file was left by a command that did not finish";
                self.note_or_mend("orphan_temp", shown(&path), detail, |repo| {
                    absent_is_none(repo.env.fs.remove_file(&path)).doing("remove", &path).map(drop)
                });
            }
        }
        Ok(())
    }

    fn look_at_unpublished(&mut self, id: &SnapshotId) -> Result<()> {
        let repo = self.repo;
        // The intent is read before the sequence: it goes only after the publish is there.
        let path = repo.layout.intent(id);
        let bytes = absent_is_none(repo.env.fs.read(&path)).doing("read", &path)?;
        let intent = bytes.as_deref().and_then(|bytes| serde_json::from_slice::<Intent>(bytes).ok());
        // Whether it is over is asked before the sequence too: a snapshot that nobody is taking any more can
        // only have been published before, while one that is not published yet may be by its live maker.
        let over = intent.as_ref().is_none_or(|intent| self.is_over(intent));
        let worktree = match &intent {
            Some(intent) => Some(intent.worktree_id.clone()),
            None => repo.ready(id).ok().map(|descriptor| descriptor.worktree_id),
        };
        let published = match &worktree {
            Some(worktree) => repo.is_published(worktree, id)?,
            None => repo.is_published_anywhere(id)?,
        };
        if published && bytes.is_some() {
            let detail = "the snapshot was published, and only its intent is left";
            self.note_or_mend("intent_left", id.as_str(), detail, |repo| {
                absent_is_none(repo.env.fs.remove_file(&path)).doing("remove", &path).map(drop)
            });
        } else if !published && over {
            let detail = "the snapshot was begun and never published; it is hidden and takes up room";
            self.note_or_mend("partial_snapshot", id.as_str(), detail, |repo| repo.discard_snapshot(id));
        }
        Ok(())
    }

    /// Whether nobody can be taking this snapshot any more.
    fn is_over(&self, intent: &Intent) -> bool {
        if let Some(gone) = atomic::maker_is_gone(&self.repo.env, &intent.maker) {
            return gone;
        }
        let fenced =
            intent.fencing_token.is_some_and(|token| !is_current(self.repo, &intent.worktree_id, token));
        fenced || self.is_ancient(intent.created_at)
    }

    /// A restore under a live lock is under way; any other whose maker is gone is left over.
    fn look_at_stages(&mut self, worktree: &Worktree) -> Result<()> {
        let repo = self.repo;
        if !repo.has_stages(worktree)? {
            return Ok(());
        }
        let under_way = match worktree.mode {
            Mode::Exclusive => {
                let now = probe::read(&repo.env, &repo.layout)?.now;
                let view = View::look(&repo.env, &repo.layout, &worktree.worktree_id)?;
                view.lock.is_some_and(|lock| lease::standing(&lock, &now) == Standing::Live)
            }
            // Only stages whose maker is gone are looked at in the first place.
            Mode::Shared => false,
        };
        if under_way {
            return Ok(());
        }
        let path = repo.layout.restores(&worktree.worktree_id);
        let detail = "a restore was left unfinished; the next acquire finishes it too";
        self.note_or_mend("restore_left", shown(&path), detail, |repo| repo.settle(worktree));
        Ok(())
    }

    /// Sessions of this user whose lock has passed to others, or was never granted.
    fn look_at_sessions(&mut self) -> Result<()> {
        let sessions = &self.repo.env.sessions;
        for id in sessions.ids()? {
            let Ok(session) = sessions.load(&id) else { continue };
            let ours = session.repo_id == self.repo.record.repo_id;
            // In this order: once nobody can be granted a lock for it any more, one look at the lock decides.
            if ours && self.has_its_answer(&session)? && !stands(self.repo, &session) {
                let detail = "the session's lock is gone, and its secret is of no more use";
                self.note_or_mend("session_left", id.as_str(), detail, |repo| repo.env.sessions.remove(&id));
            }
        }
        Ok(())
    }

    /// Whether the acquire that made the session is over. Until it has written the token down, it may be
    /// about to be granted the lock, or have been a moment ago.
    fn has_its_answer(&self, session: &Session) -> Result<bool> {
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

/// Whether `token` holds the worktree's lock; what cannot be read counts as current, so that it is left alone.
fn is_current(repo: &Repo, worktree: &WorktreeId, token: FencingToken) -> bool {
    View::look(&repo.env, &repo.layout, worktree).map_or(true, |view| view.state().held == Some(token))
}

/// Whether the session's lock stands. By its name, because its token may not be written down yet.
fn stands(repo: &Repo, session: &Session) -> bool {
    View::look(&repo.env, &repo.layout, &session.worktree_id)
        .map_or(true, |view| view.lock.is_some_and(|lock| lock.session_id == session.session_id))
}
