//! Requests under an idempotency key: applied once, then replayed.

use kernel::{Epoch, Lsn, Time, Token, Version};

use super::super::operation::{CallResult, CredentialRefusal, Held, Op};
use super::ResourcesState;

/// The stored result of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoredResult {
    /// A grant or a rebind.
    Authority { lease: Lsn, epoch: Epoch },
    /// A commit.
    Committed(Version),
    /// A removal.
    Removed { removed: bool, version: Version },
}

impl ResourcesState {
    /// Stores an accepted result. Refusals, and a removal that found nothing to do, are not stored.
    pub(super) fn store(&mut self, op: &Op) {
        let stored = match &op.result {
            CallResult::Granted { lease, .. } => {
                StoredResult::Authority { lease: *lease, epoch: Epoch::FIRST }
            }
            CallResult::Rebound { held, epoch, .. } => {
                StoredResult::Authority { lease: held.lease, epoch: *epoch }
            }
            CallResult::Committed { version, .. } => StoredResult::Committed(*version),
            CallResult::Removed { write, removed, version } if *removed || write.release => {
                StoredResult::Removed { removed: *removed, version: *version }
            }
            _ => return,
        };
        if let Some(request) = op.request {
            self.requests.insert(request, stored);
        }
    }

    /// Whether a request that was accepted before can have this response now.
    pub(super) fn replays(&self, stored: StoredResult, result: &CallResult) -> bool {
        match (stored, result) {
            (_, CallResult::RequestMismatch) => true,
            (
                StoredResult::Authority { lease, epoch },
                CallResult::Granted { lease: shown, token, deadline, .. },
            ) => lease == *shown && self.shows(Held { lease, epoch }, *token, *deadline),
            (
                StoredResult::Authority { lease, epoch },
                CallResult::Rebound { held, epoch: shown, token, deadline, .. },
            ) => {
                lease == held.lease && epoch == *shown && self.shows(Held { lease, epoch }, *token, *deadline)
            }
            (
                StoredResult::Authority { lease, epoch },
                CallResult::ReplayRefused(why) | CallResult::NotRebound(_, why),
            ) => self.ended_authority(Held { lease, epoch }) == Some(*why),
            (StoredResult::Committed(stored), CallResult::Committed { version, .. }) => stored == *version,
            (
                StoredResult::Removed { removed: stored, version: at },
                CallResult::Removed { removed, version, .. },
            ) => stored == *removed && at == *version,
            _ => false,
        }
    }

    /// Whether a live credential has this token and this deadline.
    fn shows(&self, held: Held, token: Token, deadline: Time) -> bool {
        let live = self.live.get(&held.lease);
        self.authority(held, None).is_ok()
            && live.is_some_and(|lease| lease.token == token && lease.deadline == deadline)
    }

    /// How a replay reports that the authority of a grant has ended: revoked, or else expired.
    fn ended_authority(&self, held: Held) -> Option<CredentialRefusal> {
        self.authority(held, None).err().map(|why| match why {
            CredentialRefusal::Revoked => CredentialRefusal::Revoked,
            _ => CredentialRefusal::Expired,
        })
    }
}
