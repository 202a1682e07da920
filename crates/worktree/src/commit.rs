//! Appending an event to a sequence: read, decide, append, and retry when another writer was first.
//!
//! **Invariant.** An event is appended only as the entry right after the state that it was decided on.
//!
//! Left out: who may append what (`lock`, `restore`, `snapshot`), and the rules of states (`record`).

use crate::env::Env;
use crate::error::{Error, ErrorClass, Result};
use crate::ids::{EntryNumber, FencingToken, WorktreeId, random_hex};
use crate::layout::Layout;
use crate::probe;
use crate::record::{Entry, EntryEvent, FORMAT, WorktreeState};
use crate::sequence::{AppendOutcome, Sequence};
use crate::view::View;

/// Attempts of one append. Each failed attempt means that another writer made progress.
const ATTEMPTS: u32 = 1000;

/// An accepted entry.
#[derive(Clone, Debug)]
pub struct CommittedEntry {
    /// The entry's number.
    pub n: EntryNumber,
    /// The state after it.
    pub state: WorktreeState,
}

/// Appends the event that `decide` returns for the newest state of an existing worktree. `own` is the token of
/// the caller's own entry, which is known to be durable.
pub(crate) fn commit(
    env: &Env,
    layout: &Layout,
    worktree: &WorktreeId,
    own: Option<FencingToken>,
    mut decide: impl FnMut(&View) -> Result<EntryEvent>,
) -> Result<CommittedEntry> {
    let sequence = Sequence::new(env, layout, worktree);
    for _ in 0..ATTEMPTS {
        let view = View::of_existing(env, layout, worktree)?;
        let event = decide(&view)?;
        let entry = entry_after(env, layout, &view, event)?;
        if own.map(FencingToken::entry) != Some(view.newest.n) {
            sequence.sync()?;
        }
        if sequence.append(&entry)? == AppendOutcome::Appended {
            // The entry stands, whatever fails now.
            sequence.confirm(&entry).map_err(|error| error.with("indeterminate", true))?;
            return Ok(CommittedEntry { n: entry.n, state: entry.state });
        }
    }
    Err(Error::new(
        ErrorClass::LockConflict,
        format!("other writers kept appending to this worktree's sequence; retry: attempts={ATTEMPTS}"),
    ))
}

fn entry_after(env: &Env, layout: &Layout, view: &View, event: EntryEvent) -> Result<Entry> {
    let n = view.next();
    let state = view.state().after(n, &event).map_err(|reason| Error::invalid(reason.to_owned()))?;
    let at = match &event {
        EntryEvent::Acquire { lock } | EntryEvent::Steal { lock, .. } => lock.created_at,
        _ => probe::read(env, layout)?.now.fs,
    };
    let attempt = random_hex(&*env.entropy, 8);
    Ok(Entry { v: FORMAT, n, prev: view.digest, at, by: env.process.clone(), attempt, state, event })
}
