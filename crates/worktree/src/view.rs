//! A snapshot read of a worktree's sequence: the newest entry, and the current lock.
//!
//! A view may be outdated as soon as it is read. It is still safe to decide by, because an append uses the
//! number after [`View::newest`]: if the sequence has changed since, the append meets `EEXIST` and the caller
//! reads again.

use crate::clock::BootId;
use crate::env::Env;
use crate::error::{Error, ErrorContext, Result};
use crate::fs::absent_is_none;
use crate::ids::{Digest, EntryNumber, FencingToken, WorktreeId};
use crate::layout::Layout;
use crate::record::{Entry, EntryEvent, LockRecord, RenewalRecord, WorktreeState};
use crate::sequence::{Sequence, StoredEntry};

/// The state of a sequence at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// The newest entry.
    pub newest: Entry,
    /// The hash of its line.
    pub digest: Digest,
    /// The current lock, as of its latest renewal.
    pub lock: Option<LockRecord>,
}

impl View {
    /// Reads the sequence of `worktree`.
    pub fn read(env: &Env, layout: &Layout, worktree: &WorktreeId) -> Result<Self> {
        let sequence = Sequence::new(env, layout, worktree);
        let newest = sequence
            .end()?
            .ok_or_else(|| Error::damaged(&layout.sequence(worktree), "the worktree's sequence is gone"))?;
        let StoredEntry { entry, digest } = newest;
        let lock = match entry.state.held {
            Some(token) => Some(current_lock(env, layout, worktree, &sequence, token)?),
            None => None,
        };
        Ok(Self { newest: entry, digest, lock })
    }

    /// The same; refused if the worktree was removed.
    pub fn of_existing(env: &Env, layout: &Layout, worktree: &WorktreeId) -> Result<Self> {
        let view = Self::read(env, layout, worktree)?;
        if !view.state().open {
            return Err(Error::not_found(format!(
                "the worktree was removed; `jvs worktree list` lists the others: worktree={worktree}"
            )));
        }
        Ok(view)
    }

    /// The state after the newest entry.
    pub fn state(&self) -> &WorktreeState {
        &self.newest.state
    }

    /// The number of the next entry.
    pub fn next(&self) -> EntryNumber {
        self.newest.n.next()
    }
}

fn current_lock(
    env: &Env,
    layout: &Layout,
    worktree: &WorktreeId,
    sequence: &Sequence<'_>,
    token: FencingToken,
) -> Result<LockRecord> {
    let granted = sequence.read_listed(token.entry())?;
    let (EntryEvent::Acquire { lock } | EntryEvent::Steal { lock, .. }) = granted.entry.event else {
        let path = layout.entry(worktree, token.entry());
        return Err(Error::damaged(&path, "the entry should grant the lock, and does not"));
    };
    let path = layout.renewal(worktree, token);
    let Some(bytes) = absent_is_none(env.fs.read(&path)).doing("read the renewal", &path)? else {
        return Ok(lock);
    };
    match serde_json::from_slice::<RenewalRecord>(&bytes) {
        Ok(renewal) if renewal.holder_nonce == lock.holder_nonce => Ok(lock.renewed(renewal)),
        // The lock was renewed, and the disk lost the content: trust the file's time and no boot clock, so
        // that a stealer has to watch the lock first.
        _ => {
            let modified = env.fs.meta(&path).doing("stat the renewal", &path)?.modified;
            let mut lock = lock;
            lock.last_renewed_at = modified;
            lock.lease_expires_at = modified.plus(lock.policy.lease_duration_ms());
            lock.boot.boot_id = BootId::unknown();
            Ok(lock)
        }
    }
}
