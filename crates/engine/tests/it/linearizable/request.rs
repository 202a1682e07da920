//! A request of a client, and the meaning of its reply in a history.

use engine::{Decision, Reply, Unavailable};
use kernel::{
    Command, Credential, Etag, Granted, IdempotencyKey, LeaseId, Lsn, Outcome, Rejection, RequestKey,
    Response, Shard, Span, State,
};
use sim::linearizability::operation::{CallResult, CredentialRefusal, Held, Members, WriteCall};

use super::record::GroupNumber;

/// A request, which can be sent again.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) group: GroupNumber,
    /// The number of its idempotency key.
    pub(crate) number: Option<u64>,
    pub(crate) command: Command,
    pub(crate) document: Option<Vec<u8>>,
    pub(crate) intent: Intent,
}

/// The request, in terms of the history.
#[derive(Clone)]
pub(crate) enum Intent {
    Acquire { members: Members, hold: Option<Span> },
    Rebind { held: Held },
    Renew { held: Held, ttl: Span },
    Release { held: Held },
    Commit { write: WriteCall, etag: Etag },
    Remove { write: WriteCall },
    Revoke(Lsn),
    Reclaim(Lsn),
}

impl Request {
    /// The same request under an idempotency key.
    pub(crate) fn keyed(self, number: u64) -> Request {
        let command = self.command.with_request(key(number, 0));
        Request { number: Some(number), command, ..self }
    }

    /// Another request under the same idempotency key.
    pub(crate) fn altered(self) -> Request {
        let number = self.number.expect("it has an idempotency key");
        Request { command: self.command.with_request(key(number, 1)), ..self }
    }

    /// The result of the call; `None` if the specification cannot judge the reply: a retry took the waiter's place,
    /// or an earlier waiter is the only conflict.
    pub(crate) fn result(&self, reply: &Reply) -> Option<CallResult> {
        let outcome = match reply {
            Err(Unavailable::Replaced) => return None,
            Err(other) => panic!("the engine accepts all requests: {other:?}"),
            Ok(Decision::Outcome(outcome)) => outcome,
            Ok(Decision::Blocked(blocked)) => {
                let Intent::Acquire { members, .. } = &self.intent else { panic!("{blocked:?}") };
                let by = blocked.holders.first().map(|lease| lease.lsn);
                let judged = by.is_some() || blocked.position == 0;
                return judged.then(|| CallResult::Blocked { members: members.clone(), by });
            }
        };
        Some(match outcome {
            Outcome::Rejected(Rejection::RequestMismatch) => CallResult::RequestMismatch,
            Outcome::Rejected(rejection) => self.rejected(rejection),
            Outcome::Applied(response, _) => self.accepted(response, true),
            Outcome::Unchanged(response) => self.accepted(response, false),
        })
    }

    fn accepted(&self, response: &Response, applied: bool) -> CallResult {
        match (&self.intent, response) {
            (Intent::Acquire { members, hold }, Response::Granted(granted)) => {
                let Granted { lease, token, granted_at, deadline, .. } = *granted;
                let (at, members, hold) = (Some(granted_at), members.clone(), *hold);
                CallResult::Granted { lease: lease.lsn, token, at, deadline, hold, members }
            }
            (Intent::Rebind { held }, Response::Granted(granted)) => {
                let Granted { epoch, token, ttl, deadline, .. } = *granted;
                CallResult::Rebound { held: *held, epoch, token, ttl, deadline }
            }
            (Intent::Renew { held, ttl }, Response::Renewed(results)) => match &results[..] {
                [Ok(live)] => CallResult::Renewed { held: *held, ttl: *ttl, deadline: live.deadline },
                [Err(rejection)] => self.rejected(rejection),
                other => panic!("one renewal, one result: {other:?}"),
            },
            (Intent::Release { held }, Response::Released) if applied => CallResult::Released(*held),
            (Intent::Release { held }, Response::Released) => CallResult::NothingToRelease(*held),
            (Intent::Commit { write, etag }, Response::Committed(version)) => {
                CallResult::Committed { write: *write, etag: *etag, version: *version }
            }
            (Intent::Remove { write }, Response::Removed { removed, version }) => {
                CallResult::Removed { write: *write, removed: *removed, version: *version }
            }
            (Intent::Revoke(lease), Response::Revoking(_)) => CallResult::Revoking(*lease),
            (Intent::Reclaim(lease), Response::Reclaimed(_)) => CallResult::Reclaimed(*lease),
            (_, other) => panic!("not a response to {:?}: {other:?}", self.command),
        }
    }

    fn rejected(&self, rejection: &Rejection) -> CallResult {
        match (&self.intent, rejection) {
            (Intent::Revoke(lease), Rejection::InvalidState(state)) => CallResult::NotRevoked(*lease, *state),
            (Intent::Reclaim(lease), Rejection::InvalidState(state)) => {
                CallResult::NotReclaimed(*lease, *state)
            }
            (Intent::Acquire { .. }, rejection) => CallResult::ReplayRefused(refusal(rejection)),
            (Intent::Rebind { held }, rejection) => CallResult::NotRebound(*held, refusal(rejection)),
            (Intent::Release { held }, rejection) => CallResult::NotReleased(*held, refusal(rejection)),
            (Intent::Commit { write, .. } | Intent::Remove { write }, Rejection::VersionConflict(tag)) => {
                CallResult::VersionConflict { write: *write, found: (tag.version, tag.etag) }
            }
            (Intent::Commit { write, .. } | Intent::Remove { write }, rejection) => {
                let written = Some(write.resource);
                CallResult::Refused { held: write.held, written, why: refusal(rejection) }
            }
            (Intent::Renew { held, .. }, rejection) => {
                CallResult::Refused { held: *held, written: None, why: refusal(rejection) }
            }
            (_, other) => panic!("not a response to {:?}: {other:?}", self.command),
        }
    }
}

/// Whether a result is stored under its idempotency key.
pub(crate) fn is_stored(result: &CallResult) -> bool {
    match result {
        CallResult::Granted { .. } | CallResult::Rebound { .. } | CallResult::Committed { .. } => true,
        CallResult::Removed { removed, write, .. } => *removed || write.release,
        _ => false,
    }
}

pub(crate) fn credential(held: Held) -> Credential {
    Credential { lease: lease_id(held.lease), epoch: held.epoch }
}

pub(crate) fn lease_id(lsn: Lsn) -> LeaseId {
    LeaseId { shard: Shard(0), lsn }
}

fn key(number: u64, variant: u8) -> IdempotencyKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    IdempotencyKey { key: RequestKey(key), fingerprint: [variant; 16] }
}

fn refusal(rejection: &Rejection) -> CredentialRefusal {
    match rejection {
        Rejection::NotHeld => CredentialRefusal::NotHeld,
        Rejection::LeaseRevoked => CredentialRefusal::Revoked,
        Rejection::LeaseExpired => CredentialRefusal::Expired,
        Rejection::StaleEpoch { .. } => CredentialRefusal::StaleEpoch,
        Rejection::InvalidState(State::Active) => CredentialRefusal::Live,
        other => panic!("{other:?}"),
    }
}
