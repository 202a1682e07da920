//! Turns: the expensive steps of one identity run one at a time.
//!
//! **Invariant.** At most one turn of an identity is taken at a time. Its requests get their turns in the order in which
//! they asked for them. An identity without requests has no entry.
//!
//! **What would break it.** A limit on the number of requests alone: each of eight requests keeps a thread of the server
//! busy with its next step, and the requests of all other clients wait behind eight steps instead of one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel::Identity;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns of all identities. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<BTreeMap<Identity, Arc<Semaphore>>>>);

/// The turn of an identity, until it is dropped.
pub(crate) struct Turn {
    // Dropped before the ticket, which counts the references to the semaphore.
    _permit: OwnedSemaphorePermit,
    _ticket: Ticket,
}

/// A place in the queue of an identity.
struct Ticket {
    turns: Turns,
    identity: Identity,
    semaphore: Arc<Semaphore>,
}

impl Turns {
    /// Waits for the turn of an identity. Steps are short, and a request that is dropped leaves the queue.
    pub(crate) async fn take(&self, identity: &Identity) -> Turn {
        let ticket = self.ticket(identity);
        let permit = Arc::clone(&ticket.semaphore).acquire_owned().await;
        Turn { _permit: permit.expect("never closed"), _ticket: ticket }
    }

    fn ticket(&self, identity: &Identity) -> Ticket {
        let mut identities = self.identities();
        let semaphore =
            identities.entry(identity.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone();
        Ticket { turns: self.clone(), identity: identity.clone(), semaphore }
    }

    fn identities(&self) -> MutexGuard<'_, BTreeMap<Identity, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut identities = self.turns.identities();
        // The entry and this ticket: references are added under the lock only.
        if Arc::strong_count(&self.semaphore) == 2 {
            identities.remove(&self.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn identity(name: &str) -> Identity {
        Identity::new(name).expect("a name")
    }

    /// Whether the turn can be taken at once.
    async fn is_taken(turns: &Turns, name: &str) -> bool {
        tokio::time::timeout(Duration::ZERO, turns.take(&identity(name))).await.is_ok()
    }

    #[tokio::test]
    async fn turns_of_one_identity_are_taken_one_at_a_time_and_others_do_not_wait() {
        let turns = Turns::default();
        let first = turns.take(&identity("ada")).await;
        assert!(!is_taken(&turns, "ada").await, "the first is not over");
        assert!(is_taken(&turns, "bob").await, "another identity");
        drop(first);
        assert!(is_taken(&turns, "ada").await);
    }

    #[tokio::test]
    async fn an_identity_without_requests_has_no_entry() {
        let turns = Turns::default();
        let first = turns.take(&identity("ada")).await;
        // A request that is dropped while it waits.
        assert!(!is_taken(&turns, "ada").await);
        assert_eq!(turns.identities().len(), 1);
        drop(first);
        assert!(turns.identities().is_empty());
    }
}
