//! Whether the client of a command may still act.
//!
//! **Invariant.** Once [`Authorization::withdraw`] and then [`Engine::pass_turn`](crate::Engine::pass_turn) have
//! returned, no command that carries this authorization is decided: it is granted nothing, renews nothing and commits
//! nothing.
//!
//! **What would break it.** To check when a request begins: a request that waits, an upload and a command of many parts
//! are decided long after. To check in the turn, and not wait for the turn that runs: it may have checked just before the
//! authorization was withdrawn, and decide just after the caller has reported that it is withdrawn. So the check is where
//! a command is decided, under the lock of the shard, and the withdrawing thread takes that lock once. To keep the
//! authorization with a waiter whose place a retry takes: the retry may come from another client of the same identity.

use std::sync::Arc;

use crate::sync::{AtomicBool, Ordering};

/// The authorization of a client. Clones are the same authorization; the default one is never withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Authorization(Option<Arc<AtomicBool>>);

impl Authorization {
    /// An authorization that can be withdrawn.
    pub fn new() -> Authorization {
        Authorization(Some(Arc::default()))
    }

    /// Withdraws it, for good.
    pub fn withdraw(&self) {
        if let Some(withdrawn) = &self.0 {
            withdrawn.store(true, Ordering::Release);
        }
    }

    /// Whether it was withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        self.0.as_ref().is_some_and(|withdrawn| withdrawn.load(Ordering::Acquire))
    }
}
