//! A budget of bytes that many requests share: in all, and for each identity.
//!
//! **Invariant.** The bytes taken and not returned are at most the share. A guard returns its bytes when it is dropped.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use engine::limits::{ExceededLimit, LimitUsage};
use http_body::{Frame, SizeHint};
use kernel::Identity;

use crate::backend::memory_plan::Share;

/// A budget. Clones share it.
#[derive(Clone)]
pub(crate) struct ByteBudget(Arc<BudgetState>);

struct BudgetState {
    /// The names of the limit in all and of the limit per identity.
    names: (&'static str, &'static str),
    share: Share,
    taken: Mutex<TakenBytes>,
}

#[derive(Default)]
struct TakenBytes {
    all: u64,
    identities: BTreeMap<Identity, u64>,
}

/// Bytes taken from a budget until it is dropped.
pub(crate) struct TakenGuard {
    budget: ByteBudget,
    identity: Identity,
    bytes: u64,
}

impl ByteBudget {
    pub(crate) fn new(names: (&'static str, &'static str), share: Share) -> ByteBudget {
        ByteBudget(Arc::new(BudgetState { names, share, taken: Mutex::default() }))
    }

    /// Takes bytes, unless that would exceed the share, of all or of the identity. A single request may take more than
    /// its identity's share if it is the only one: no limit makes a document unreadable.
    pub(crate) fn take(&self, identity: &Identity, bytes: u64) -> Result<TakenGuard, ExceededLimit> {
        let mut guard = self.nothing(identity);
        guard.grow(bytes)?;
        Ok(guard)
    }

    /// A guard that may grow.
    pub(crate) fn nothing(&self, identity: &Identity) -> TakenGuard {
        TakenGuard { budget: self.clone(), identity: identity.clone(), bytes: 0 }
    }

    /// The name of the limit in all, the bytes taken by all, and the limit.
    pub(crate) fn usage(&self) -> LimitUsage {
        LimitUsage { name: self.0.names.0, used: self.taken().all, max: self.0.share.all }
    }

    /// The bytes taken by all.
    #[cfg(test)]
    fn in_use(&self) -> u64 {
        self.taken().all
    }

    fn taken(&self) -> MutexGuard<'_, TakenBytes> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenGuard {
    /// Takes more bytes, as [`ByteBudget::take`] does.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), ExceededLimit> {
        let BudgetState { names, share, .. } = &*self.budget.0;
        let mut taken = self.budget.taken();
        let mine = taken.identities.get(&self.identity).copied().unwrap_or_default();
        let share =
            if planted!(BudgetUnlimited) { &Share { all: u64::MAX, per_identity: u64::MAX } } else { share };
        if mine > self.bytes && mine + bytes > share.per_identity {
            return Err(ExceededLimit { name: names.1, max: share.per_identity, is_own: true });
        }
        if taken.all > self.bytes && taken.all + bytes > share.all {
            return Err(ExceededLimit { name: names.0, max: share.all, is_own: false });
        }
        taken.all += bytes;
        // An entry has at least one byte: it is removed with the last.
        if bytes > 0 {
            *taken.identities.entry(self.identity.clone()).or_default() += bytes;
        }
        drop(taken);
        self.bytes += bytes;
        Ok(())
    }
}

impl TakenGuard {
    /// Returns some of the bytes.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.bytes -= bytes;
        let mut taken = self.budget.taken();
        taken.all -= bytes;
        let mine = taken.identities.get_mut(&self.identity).expect("a guard's identity is counted");
        *mine -= bytes;
        if *mine == 0 {
            taken.identities.remove(&self.identity);
        }
    }
}

impl Drop for TakenGuard {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// A body whose bytes are counted until it is dropped.
pub(crate) struct CountedBody {
    body: Body,
    _taken: TakenGuard,
}

impl CountedBody {
    pub(crate) fn new(body: Body, taken: TakenGuard) -> CountedBody {
        CountedBody { body, _taken: taken }
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str) -> Identity {
        Identity::new(name).expect("a name")
    }

    #[test]
    fn an_identity_is_refused_beyond_its_part_and_all_beyond_the_share() {
        let budget = ByteBudget::new(("all", "mine"), Share { all: 100, per_identity: 40 });
        let (ada, bob) = (identity("ada"), identity("bob"));
        let first = budget.take(&ada, 40).expect("within");
        let refused = budget.take(&ada, 1).err().expect("beyond");
        assert_eq!(refused, ExceededLimit { name: "mine", max: 40, is_own: true });
        let _bob = budget.take(&bob, 40).expect("within");
        let carol = budget.take(&identity("carol"), 20).expect("within");
        let refused = budget.take(&identity("dave"), 1).err().expect("beyond");
        assert_eq!(refused, ExceededLimit { name: "all", max: 100, is_own: false });
        drop((first, carol));
        assert_eq!(budget.in_use(), 40);
        assert!(budget.take(&ada, 30).is_ok());
    }

    /// Short requests take nothing. The first of two that ended removed the entry of their identity, and the second panicked.
    #[test]
    fn guards_of_nothing_are_dropped_in_any_order() {
        let budget = ByteBudget::new(("all", "mine"), Share { all: 100, per_identity: 40 });
        let ada = identity("ada");
        let (first, second) =
            (budget.take(&ada, 0).expect("nothing"), budget.take(&ada, 0).expect("nothing"));
        let some = budget.take(&ada, 10).expect("within");
        drop(first);
        drop(some);
        drop(second);
        assert_eq!(budget.in_use(), 0);
    }

    /// Two bodies that grow share the part of their identity; the first alone may exceed it.
    #[test]
    fn a_guard_grows_as_if_it_had_been_taken_at_once() {
        let budget = ByteBudget::new(("all", "mine"), Share { all: 100, per_identity: 40 });
        let ada = identity("ada");
        let (mut first, mut second) = (budget.nothing(&ada), budget.nothing(&ada));
        first.grow(50).expect("alone");
        let refused = second.grow(1).expect_err("beyond");
        assert_eq!(refused, ExceededLimit { name: "mine", max: 40, is_own: true });
        drop(first);
        second.grow(40).expect("within");
        assert_eq!(budget.in_use(), 40);
        drop(second);
        assert_eq!(budget.in_use(), 0);
    }

    /// A document longer than the share could never be read.
    #[test]
    fn a_single_request_may_take_more_than_the_share() {
        let budget = ByteBudget::new(("all", "mine"), Share { all: 100, per_identity: 40 });
        let whole = budget.take(&identity("ada"), 1000).expect("alone");
        assert!(budget.take(&identity("bob"), 1).is_err());
        drop(whole);
        assert_eq!(budget.in_use(), 0);
    }
}
