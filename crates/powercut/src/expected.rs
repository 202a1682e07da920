//! The expected contents of the store, derived from the worker's messages.
//!
//! **Invariant.** Acknowledged changes are durable. A request without a response took effect completely or not at all;
//! nothing else changed.
//!
//! A client has one request at a time, on its own keys. So a recovered store may show one of two states of it: before
//! the pending request, or after.

use std::collections::{BTreeMap, VecDeque};

use kernel::State;

use crate::message::{ClientId, Content, KeyIndex, LeaseLsn, WorkerMessage, WorkerRequest, WorkerResponse};

/// The number of ended leases of each client that are checked.
const ENDED_MAX: usize = 16;

/// The leases and documents of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientState {
    pub(crate) leases: BTreeMap<LeaseLsn, LeaseTerms>,
    pub(crate) documents: BTreeMap<KeyIndex, (u64, Content)>,
}

/// The terms of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    pub(crate) keys: Vec<KeyIndex>,
    /// 0 if it is revoked: then it is the moment of the revoke, which no response reports.
    pub(crate) deadline: u64,
    pub(crate) revoked: bool,
}

/// The expected state of one client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpectedClient {
    pub(crate) state: ClientState,
    /// Its last ended leases, with their final states.
    pub(crate) ended: VecDeque<(LeaseLsn, State)>,
    /// The last token of each key.
    tokens: BTreeMap<KeyIndex, LeaseLsn>,
    pending: Option<WorkerRequest>,
}

/// The expected state of all clients.
#[derive(Debug, Default)]
pub(crate) struct ExpectedState {
    pub(crate) clients: BTreeMap<ClientId, ExpectedClient>,
    /// The last acknowledged term.
    pub(crate) term: u64,
    pub(crate) stats: RunStats,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunStats {
    pub(crate) responses: u64,
    pub(crate) snapshots: u64,
    pub(crate) moved: usize,
    pub(crate) swept: usize,
    /// Pending requests that took effect.
    pub(crate) took_effect: u64,
    /// Pending requests that had no effect.
    pub(crate) had_no_effect: u64,
    pub(crate) torn: u64,
    pub(crate) documents_read: u64,
}

impl ExpectedState {
    /// Records a message. Once the power is `off`, the store may fail.
    pub(crate) fn record(&mut self, message: WorkerMessage, off: bool) -> Result<(), String> {
        match message {
            WorkerMessage::Opened { term } if term > self.term => self.term = term,
            WorkerMessage::Opened { term } => {
                return Err(format!("terms do not grow: {term} after {}", self.term));
            }
            WorkerMessage::Request(client, request) => {
                self.clients.entry(client).or_default().pending = Some(request);
            }
            WorkerMessage::Response(client, response) => {
                self.stats.responses += 1;
                let expected = self.clients.entry(client).or_default();
                let request = expected.pending.take().ok_or("a response without a request")?;
                expected.apply(&request, response).map_err(|why| format!("client {}: {why}", client.0))?;
            }
            WorkerMessage::Snapshot { moved } => {
                self.stats.snapshots += 1;
                self.stats.moved += moved;
            }
            WorkerMessage::Swept(blobs) => self.stats.swept += blobs,
            WorkerMessage::StoreFailed(what) if !off => return Err(format!("the store failed: {what}")),
            WorkerMessage::StoreFailed(_) => {}
            WorkerMessage::Violation(what) => return Err(what),
        }
        Ok(())
    }

    /// Compares with the recovered state, which becomes the expected one.
    pub(crate) fn check_recovered(&mut self, client: ClientId, found: &ClientState) -> Result<(), String> {
        let expected = self.clients.entry(client).or_default();
        let request = expected.pending.take();
        if expected.state == *found {
            self.stats.had_no_effect += u64::from(request.is_some());
            return Ok(());
        }
        let mut after = expected.clone();
        let took_effect = request.as_ref().and_then(|request| {
            let response = expected.response_from(request, found)?;
            after.apply(request, response).ok()?;
            (after.state == *found).then_some(())
        });
        if took_effect.is_none() {
            let what = difference(&expected.state, found);
            return Err(format!("client {}: {what}; the pending request was {request:?}", client.0));
        }
        *expected = after;
        self.stats.took_effect += 1;
        Ok(())
    }
}

impl ExpectedClient {
    /// The response that the request would have got, if it led to `found`.
    fn response_from(&self, request: &WorkerRequest, found: &ClientState) -> Option<WorkerResponse> {
        Some(match request {
            WorkerRequest::Acquire(_) => {
                let (lease, terms) =
                    found.leases.iter().find(|(lease, _)| !self.state.leases.contains_key(lease))?;
                WorkerResponse::Granted { lease: *lease, deadline: terms.deadline }
            }
            WorkerRequest::Renew(lease) => {
                WorkerResponse::Renewed { deadline: found.leases.get(lease)?.deadline }
            }
            WorkerRequest::Commit { key, .. } => {
                WorkerResponse::Committed { version: found.documents.get(key)?.0 }
            }
            WorkerRequest::Release(_) | WorkerRequest::Revoke(_) | WorkerRequest::Reclaim(_) => {
                WorkerResponse::Done
            }
        })
    }

    fn apply(&mut self, request: &WorkerRequest, response: WorkerResponse) -> Result<(), String> {
        match (request, response) {
            (WorkerRequest::Acquire(keys), WorkerResponse::Granted { lease, deadline }) => {
                self.grant(keys, lease, deadline)
            }
            (WorkerRequest::Renew(lease), WorkerResponse::Renewed { deadline }) => {
                let terms = self.terms(*lease)?;
                let before = std::mem::replace(&mut terms.deadline, deadline);
                ensure(deadline >= before, || {
                    format!("a renewal shortened the deadline: {deadline} after {before}")
                })
            }
            (WorkerRequest::Release(lease), WorkerResponse::Done) => self.end(*lease, State::Released),
            (WorkerRequest::Reclaim(lease), WorkerResponse::Done) => self.end(*lease, State::Revoked),
            (WorkerRequest::Revoke(lease), WorkerResponse::Done) => {
                let terms = self.terms(*lease)?;
                (terms.revoked, terms.deadline) = (true, 0);
                Ok(())
            }
            (
                WorkerRequest::Commit { lease, key, content, release },
                WorkerResponse::Committed { version },
            ) => {
                let before =
                    self.state.documents.insert(*key, (version, *content)).map_or(0, |(version, _)| version);
                ensure(version == before + 1, || format!("version {version} after {before} of {key:?}"))?;
                if *release { self.end(*lease, State::Released) } else { Ok(()) }
            }
            (request, response) => Err(format!("unexpected response {response:?} to {request:?}")),
        }
    }

    fn grant(&mut self, keys: &[KeyIndex], lease: LeaseLsn, deadline: u64) -> Result<(), String> {
        for key in keys {
            let before = self.tokens.insert(*key, lease);
            ensure(before.is_none_or(|before| before < lease), || {
                format!("tokens do not grow: {lease:?} after {before:?} for {key:?}")
            })?;
        }
        self.state.leases.insert(lease, LeaseTerms { keys: keys.to_vec(), deadline, revoked: false });
        Ok(())
    }

    fn end(&mut self, lease: LeaseLsn, how: State) -> Result<(), String> {
        self.terms(lease)?;
        self.state.leases.remove(&lease);
        self.ended.push_back((lease, how));
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
        Ok(())
    }

    fn terms(&mut self, lease: LeaseLsn) -> Result<&mut LeaseTerms, String> {
        self.state.leases.get_mut(&lease).ok_or_else(|| format!("no such lease: {lease:?}"))
    }
}

fn ensure(state: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if state { Ok(()) } else { Err(what()) }
}

/// Lost or unexpected leases and documents.
fn difference(known: &ClientState, found: &ClientState) -> String {
    let leases = known.leases.iter().filter(|(lease, terms)| found.leases.get(lease) != Some(terms));
    let lost = leases.map(|(lease, terms)| {
        format!("{lease:?} was acknowledged as {terms:?} and is {:?}", found.leases.get(lease))
    });
    let documents =
        known.documents.iter().filter(|(key, document)| found.documents.get(key) != Some(document));
    let stale = documents.map(|(key, document)| {
        format!("{key:?} was acknowledged as {document:?} and is {:?}", found.documents.get(key))
    });
    let unknown = found.leases.keys().filter(|lease| !known.leases.contains_key(lease));
    let unexpected = unknown.map(|lease| format!("{lease:?} is live"));
    let all: Vec<String> = lost.chain(stale).chain(unexpected).collect();
    if all.is_empty() { "unexpected documents".into() } else { all.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: ClientId = ClientId(0);
    const DOCUMENT: Content = Content { id: 1, bytes: 10 };

    fn expected(messages: Vec<WorkerMessage>) -> ExpectedState {
        let mut expected = ExpectedState::default();
        for message in messages {
            expected.record(message, false).expect("a valid message");
        }
        expected
    }

    fn granted() -> Vec<WorkerMessage> {
        let response = WorkerResponse::Granted { lease: LeaseLsn(7), deadline: 100 };
        vec![
            WorkerMessage::Request(ADA, WorkerRequest::Acquire(vec![KeyIndex(0)])),
            WorkerMessage::Response(ADA, response),
        ]
    }

    fn held(lease: u64) -> ClientState {
        let terms = LeaseTerms { keys: vec![KeyIndex(0)], deadline: 100, revoked: false };
        ClientState { leases: [(LeaseLsn(lease), terms)].into(), documents: BTreeMap::new() }
    }

    fn with_request(mut messages: Vec<WorkerMessage>, request: WorkerRequest) -> Vec<WorkerMessage> {
        messages.push(WorkerMessage::Request(ADA, request));
        messages
    }

    #[test]
    fn acknowledged_leases_must_be_there() {
        expected(granted()).check_recovered(ADA, &held(7)).expect("it is there");
        expected(granted()).check_recovered(ADA, &ClientState::default()).expect_err("a grant is lost");
        expected(granted()).check_recovered(ADA, &held(8)).expect_err("another lease");
        expected(vec![]).check_recovered(ADA, &held(7)).expect_err("it was not requested");
    }

    #[test]
    fn a_pending_request_may_have_taken_effect_or_not() {
        let releases = || expected(with_request(granted(), WorkerRequest::Release(LeaseLsn(7))));
        releases().check_recovered(ADA, &held(7)).expect("not yet");
        releases().check_recovered(ADA, &ClientState::default()).expect("it did");
        let mut changed = held(7);
        let terms = changed.leases.get_mut(&LeaseLsn(7)).expect("held");
        (terms.revoked, terms.deadline) = (true, 0);
        releases().check_recovered(ADA, &changed).expect_err("another change");
    }

    #[test]
    fn a_document_has_the_committed_contents() {
        let commit =
            WorkerRequest::Commit { lease: LeaseLsn(7), key: KeyIndex(0), content: DOCUMENT, release: false };
        let commits = || expected(with_request(granted(), commit.clone()));
        let with = |version, content| ClientState {
            documents: [(KeyIndex(0), (version, content))].into(),
            ..held(7)
        };
        commits().check_recovered(ADA, &held(7)).expect("not yet");
        commits().check_recovered(ADA, &with(1, DOCUMENT)).expect("it did");
        commits().check_recovered(ADA, &with(2, DOCUMENT)).expect_err("a version is missing");
        commits().check_recovered(ADA, &with(1, Content { id: 2, bytes: 10 })).expect_err("another document");
    }

    #[test]
    fn tokens_versions_and_terms_only_grow() {
        let mut known = expected(granted());
        known.record(WorkerMessage::Opened { term: 2 }, false).expect("new");
        known.record(WorkerMessage::Opened { term: 2 }, false).expect_err("not new");
        let messages = with_request(granted(), WorkerRequest::Release(LeaseLsn(7)));
        let mut known = expected(messages);
        known.record(WorkerMessage::Response(ADA, WorkerResponse::Done), false).expect("released");
        known
            .record(WorkerMessage::Request(ADA, WorkerRequest::Acquire(vec![KeyIndex(0)])), false)
            .expect("requested");
        let back = WorkerResponse::Granted { lease: LeaseLsn(6), deadline: 100 };
        known.record(WorkerMessage::Response(ADA, back), false).expect_err("a decreasing token");
    }
}
