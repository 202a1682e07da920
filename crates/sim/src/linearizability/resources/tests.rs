//! Correct histories that the specification accepts, and beside each a wrong one that it rejects.

use kernel::{Epoch, Etag, Lsn, Predicate, Span, State, Time, Token, Version};

use super::ResourcesModel;
use crate::linearizability::operation::{
    CallResult, CredentialRefusal, FoundHolder, Held, Members, Op, WriteCall,
};
use crate::linearizability::{Call, explain};

const TTL: Span = Span(1000);
/// The resources of the group.
const A: usize = 0;
const B: usize = 1;

fn write_lock(resource: usize) -> Members {
    vec![(resource, Predicate::Mutates)]
}

fn read_lock(resource: usize) -> Members {
    vec![(resource, Predicate::Consumes)]
}

fn both() -> Members {
    vec![(A, Predicate::Mutates), (B, Predicate::Mutates)]
}

fn granted(lease: u64, at: u64, members: Members) -> CallResult {
    held_after(lease, at, members, None)
}

fn held_after(lease: u64, at: u64, members: Members, hold: Option<u64>) -> CallResult {
    let (deadline, hold) = (Time(at).after(TTL), hold.map(Span));
    CallResult::Granted {
        lease: Lsn(lease),
        token: Token(lease),
        at: Some(Time(at)),
        deadline,
        hold,
        members,
    }
}

fn held(lease: u64) -> Held {
    Held { lease: Lsn(lease), epoch: Epoch(1) }
}

fn blocked(by: u64, members: Members) -> CallResult {
    CallResult::Blocked { members, by: Some(Lsn(by)) }
}

fn write(lease: u64, if_version: Option<u64>) -> WriteCall {
    WriteCall { held: held(lease), resource: A, if_version: if_version.map(Version), release: false }
}

fn committed(lease: u64, if_version: Option<u64>, content: u8, version: u64) -> CallResult {
    let (write, etag) = (write(lease, if_version), Etag([content; 32]));
    CallResult::Committed { write, etag, version: Version(version) }
}

fn removed(lease: u64, removed: bool, version: u64) -> CallResult {
    CallResult::Removed { write: write(lease, None), removed, version: Version(version) }
}

fn read(at: u64, version: u64, content: Option<u8>) -> CallResult {
    let found = Some((Version(version), content.map(|content| Etag([content; 32]))));
    CallResult::Read { at: Some(Time(at)), resource: A, found, holders: None }
}

fn read_holders(at: u64, resource: usize, holders: &[u64]) -> CallResult {
    let holder = |lease: &u64| FoundHolder { lease: Lsn(*lease), token: Token(*lease), state: State::Active };
    let holders = Some(holders.iter().map(holder).collect());
    CallResult::Read { at: Some(Time(at)), resource, found: Some((Version(0), None)), holders }
}

fn refused(lease: u64, why: CredentialRefusal) -> CallResult {
    CallResult::Refused { held: held(lease), written: None, why }
}

/// A rebind of the first epoch, at this time.
fn rebound(lease: u64, token: u64, at: u64) -> CallResult {
    let (token, deadline) = (Token(token), Time(at).after(TTL));
    CallResult::Rebound { held: held(lease), epoch: Epoch(3), token, ttl: TTL, deadline }
}

fn plain(result: CallResult) -> Op {
    Op { request: None, result }
}

fn under(request: u64, result: CallResult) -> Op {
    Op { request: Some(request), result }
}

/// Checks calls that do not overlap.
fn sequential_ops(ops: Vec<Op>) -> bool {
    let numbered = ops.into_iter().zip((0..).step_by(2));
    concurrent(numbered.map(|(op, n)| (n, n + 1, op)).collect())
}

fn sequential(results: Vec<CallResult>) -> bool {
    sequential_ops(results.into_iter().map(plain).collect())
}

fn concurrent(calls: Vec<(u64, u64, Op)>) -> bool {
    let calls = calls.into_iter().map(|(invoked, returned, op)| Call { op, invoked, returned });
    explain(&ResourcesModel { resources: 2 }, calls.collect()).is_ok()
}

#[test]
fn a_valid_history_is_linearizable() {
    assert!(sequential(vec![
        CallResult::Read { at: Some(Time(0)), resource: A, found: None, holders: Some(Vec::new()) },
        granted(5, 0, write_lock(A)),
        blocked(5, write_lock(A)),
        committed(5, Some(0), 1, 1),
        CallResult::VersionConflict { write: write(5, Some(0)), found: (Version(1), Some(Etag([1; 32]))) },
        CallResult::Renewed { held: held(5), ttl: TTL, deadline: Time(1007) },
        CallResult::Revoking(Lsn(5)),
        refused(5, CredentialRefusal::Revoked),
        CallResult::NothingToRelease(held(5)),
        blocked(5, both()),
        CallResult::NotRevoked(Lsn(5), State::Revoking),
        CallResult::Reclaimed(Lsn(5)),
        CallResult::NotReclaimed(Lsn(5), State::Revoked),
        granted(9, 7, both()),
        CallResult::Released(held(9)),
        CallResult::NothingToRelease(held(9)),
        refused(9, CredentialRefusal::NotHeld),
        read(8, 1, Some(1)),
    ]));
}

#[test]
fn a_stale_read_is_not_linearizable() {
    let until = |reading| {
        vec![granted(5, 0, write_lock(A)), committed(5, None, 1, 1), CallResult::Released(held(5)), reading]
    };
    assert!(sequential(until(read(3, 1, Some(1)))));
    assert!(!sequential(until(read(3, 0, None))), "an old version");
    assert!(!sequential(until(read(3, 1, Some(2)))), "another document");
    assert!(!sequential(until(read_holders(3, A, &[5]))), "a holder that has released");
}

#[test]
fn two_exclusive_holders_are_not_linearizable() {
    assert!(!sequential(vec![granted(5, 0, write_lock(A)), granted(6, 1, write_lock(A))]));
    let at_once =
        vec![(0, 3, plain(granted(5, 0, write_lock(A)))), (1, 2, plain(granted(6, 1, write_lock(A))))];
    assert!(!concurrent(at_once), "not even at once");
    let reclaimed = vec![
        granted(5, 0, write_lock(A)),
        CallResult::Revoking(Lsn(5)),
        granted(6, 1, write_lock(A)),
        CallResult::Reclaimed(Lsn(5)),
    ];
    assert!(!sequential(reclaimed), "a revoke frees nothing");
    let overlapping = vec![
        (0, 1, plain(granted(5, 0, write_lock(A)))),
        (2, 5, plain(granted(6, 1, write_lock(A)))),
        (3, 4, plain(CallResult::Released(held(5)))),
    ];
    assert!(concurrent(overlapping), "a waiter is granted the key when it is released");
}

#[test]
fn readers_share_and_a_writer_among_them_is_not_linearizable() {
    let readers = |then| vec![granted(5, 0, read_lock(A)), granted(6, 1, read_lock(A)), then];
    assert!(sequential(readers(read_holders(2, A, &[5, 6]))));
    assert!(!sequential(readers(granted(7, 2, write_lock(A)))), "a writer among readers");
    assert!(!sequential(readers(read_holders(2, A, &[6]))), "a reader that vanished");
    assert!(!sequential(readers(blocked(5, read_lock(A)))), "a reader does not block a reader");
    let providers =
        |second| vec![granted(5, 0, vec![(A, Predicate::Provides)]), granted(6, 1, vec![(A, second)])];
    assert!(sequential(providers(Predicate::DependsOn)));
    assert!(!sequential(providers(Predicate::Provides)), "two providers");
}

#[test]
fn a_bundle_granted_in_part_is_not_linearizable() {
    let before_both = |first| vec![granted(5, 0, first), granted(6, 1, both())];
    assert!(!sequential(before_both(write_lock(B))), "its second member is held by another lease");
    assert!(!sequential(before_both(read_lock(A))), "its first member is read by another lease");
    let then = |reading| vec![granted(5, 0, both()), reading];
    assert!(sequential(then(read_holders(1, B, &[5]))));
    assert!(!sequential(then(read_holders(1, B, &[]))), "it holds only one of its members");
    assert!(!sequential(vec![
        granted(5, 0, both()),
        CallResult::Released(held(5)),
        blocked(5, write_lock(B))
    ]));
}

#[test]
fn a_lost_update_is_not_linearizable() {
    let both = |second| vec![granted(5, 0, write_lock(A)), committed(5, Some(0), 1, 1), second];
    assert!(!sequential(both(committed(5, Some(0), 2, 1))));
    assert!(!sequential(both(committed(5, None, 2, 1))), "the same version twice");
    assert!(sequential(both(committed(5, Some(1), 2, 2))));
}

#[test]
fn a_removed_document_that_is_read_again_is_not_linearizable() {
    let after =
        |then| vec![granted(5, 0, write_lock(A)), committed(5, None, 1, 1), removed(5, true, 2), then];
    assert!(sequential(after(read(1, 2, None))));
    assert!(sequential(after(removed(5, false, 2))));
    assert!(!sequential(after(read(1, 1, Some(1)))), "the removed document");
    assert!(!sequential(after(read(1, 2, Some(1)))), "its content under the new version");
    assert!(!sequential(after(removed(5, true, 3))), "removed twice");
    assert!(!sequential(after(committed(5, None, 2, 2))), "the version of the removal used again");
    assert!(!sequential(vec![granted(5, 0, write_lock(A)), removed(5, true, 1)]), "there was none");
}

/// Without an entry, the version continues at the namespace's floor: higher or equal, never lower.
#[test]
fn a_version_that_goes_back_after_a_removal_is_not_linearizable() {
    let again = |version| {
        vec![
            granted(5, 0, write_lock(A)),
            committed(5, None, 1, 7),
            removed(5, true, 8),
            CallResult::Released(held(5)),
            granted(6, 1, write_lock(A)),
            committed(6, None, 2, version),
        ]
    };
    assert!(sequential(again(9)) && sequential(again(12)));
    assert!(!sequential(again(8)) && !sequential(again(1)));
}

#[test]
fn a_decreasing_token_is_not_linearizable() {
    let then =
        |lease| vec![granted(5, 0, both()), CallResult::Released(held(5)), granted(lease, 1, write_lock(B))];
    assert!(sequential(then(6)));
    assert!(!sequential(then(4)) && !sequential(then(5)));
}

#[test]
fn a_write_without_authority_is_not_linearizable() {
    for end in [CallResult::Released(held(5)), CallResult::Revoking(Lsn(5))] {
        let until = |then| vec![granted(5, 0, write_lock(A)), end.clone(), then];
        assert!(!sequential(until(committed(5, None, 1, 1))));
        assert!(!sequential(until(removed(5, false, 0))));
        assert!(!sequential(until(refused(5, CredentialRefusal::Expired))));
    }
    assert!(!sequential(vec![granted(5, 0, read_lock(A)), committed(5, None, 1, 1)]), "a reader");
    assert!(!sequential(vec![granted(5, 0, write_lock(B)), committed(5, None, 1, 1)]), "of another key");
    let active = vec![granted(5, 0, write_lock(A)), refused(5, CredentialRefusal::NotHeld)];
    assert!(!sequential(active), "it is still active");
    assert!(!sequential(vec![CallResult::Blocked { members: both(), by: None }]), "all is free");
}

#[test]
fn a_lease_ends_after_its_deadline_and_not_before() {
    assert!(sequential(vec![granted(5, 0, write_lock(A)), granted(6, 1001, write_lock(A))]));
    assert!(!sequential(vec![granted(5, 0, write_lock(A)), granted(6, 1000, write_lock(A))]));
    let refused = |then| vec![granted(5, 0, write_lock(A)), refused(5, CredentialRefusal::Expired), then];
    let read = |at| CallResult::ReadLease { at: Time(at), lease: Lsn(5), state: State::Expired };
    assert!(sequential(refused(read(1001))));
    assert!(!sequential(refused(read(1000))), "the earlier refusal shows that it had expired");
    assert!(!sequential(refused(committed(5, None, 1, 1))), "it stays expired");
    let late = CallResult::Renewed { held: held(5), ttl: TTL, deadline: Time(2001) };
    assert!(!sequential(vec![granted(5, 0, write_lock(A)), late]), "renewed after it expired");
    let shorter = CallResult::Renewed { held: held(5), ttl: Span(10), deadline: Time(900) };
    assert!(!sequential(vec![granted(5, 0, write_lock(A)), shorter]), "a renewal that shortens");
}

#[test]
fn a_resource_on_hold_that_is_granted_again_is_not_linearizable() {
    let on_hold = |then| vec![held_after(5, 0, write_lock(A), Some(500)), then];
    assert!(sequential(on_hold(granted(6, 1501, write_lock(A)))));
    assert!(!sequential(on_hold(granted(6, 1500, write_lock(A)))), "in the last millisecond of the hold");
    let read = |state| CallResult::ReadLease { at: Time(1200), lease: Lsn(5), state };
    assert!(sequential(on_hold(read(State::Revoking))));
    assert!(!sequential(on_hold(read(State::Active))) && !sequential(on_hold(read(State::Expired))));
    let manual = |then| vec![held_after(5, 0, write_lock(A), Some(u64::MAX)), read(State::Revoking), then];
    assert!(!sequential(manual(granted(6, 99_999_999, write_lock(A)))), "a manual hold does not end by time");
    assert!(sequential(manual(CallResult::Reclaimed(Lsn(5)))));
    let freed = vec![
        held_after(5, 0, write_lock(A), Some(500)),
        read(State::Revoking),
        CallResult::Released(held(5)),
    ];
    assert!(sequential([freed.clone(), vec![granted(6, 1201, write_lock(A))]].concat()));
    assert!(!sequential([freed, vec![blocked(5, write_lock(A))]].concat()), "its release frees the resource");
}

#[test]
fn a_second_rebind_of_one_hold_is_not_linearizable() {
    let once = || vec![held_after(5, 0, write_lock(A), Some(500)), rebound(5, 8, 1200)];
    assert!(sequential(once()));
    assert!(!sequential([once(), vec![rebound(5, 9, 1300)]].concat()), "the credential was used");
    assert!(sequential(
        [once(), vec![CallResult::NotRebound(held(5), CredentialRefusal::StaleEpoch)]].concat()
    ));
    assert!(!sequential([once(), vec![committed(5, None, 1, 1)]].concat()), "the old epoch writes");
    assert!(sequential([once(), vec![refused(5, CredentialRefusal::StaleEpoch)]].concat()));
    let early = vec![held_after(5, 0, write_lock(A), Some(500)), rebound(5, 8, 900)];
    assert!(!sequential(early), "a lease that has not expired");
    let late = vec![held_after(5, 0, write_lock(A), Some(500)), rebound(5, 8, 1501)];
    assert!(!sequential(late), "after the hold");
    assert!(
        !sequential(vec![held_after(5, 0, write_lock(A), Some(500)), rebound(5, 5, 1200)]),
        "the old token"
    );
    assert!(!sequential(vec![granted(5, 0, write_lock(A)), rebound(5, 8, 1200)]), "without a hold");
}

#[test]
fn a_rebind_after_a_revoke_is_not_linearizable() {
    let revoked = |then| {
        let on_hold = CallResult::ReadLease { at: Time(1200), lease: Lsn(5), state: State::Revoking };
        vec![held_after(5, 0, write_lock(A), Some(500)), on_hold, CallResult::Revoking(Lsn(5)), then]
    };
    assert!(!sequential(revoked(rebound(5, 8, 1300))));
    assert!(sequential(revoked(CallResult::NotRebound(held(5), CredentialRefusal::Revoked))));
    assert!(!sequential(revoked(granted(6, 9999, write_lock(A)))), "a revoke does not end by time");
    let reclaimed = CallResult::ReadLease { at: Time(1300), lease: Lsn(5), state: State::Revoked };
    assert!(sequential([revoked(CallResult::Reclaimed(Lsn(5))), vec![reclaimed]].concat()));
}

#[test]
fn a_retry_that_was_granted_twice_is_not_linearizable() {
    let first = || under(1, granted(5, 0, read_lock(A)));
    let twice = |again| sequential_ops(vec![first(), under(1, again)]);
    assert!(twice(granted(5, 0, read_lock(A))), "a replay");
    assert!(!twice(granted(6, 1, read_lock(A))), "a second lease");
    assert!(sequential_ops(vec![first(), under(2, granted(6, 1, read_lock(A)))]), "another request");
    let concurrently = vec![(0, 3, first()), (1, 2, under(1, granted(6, 1, read_lock(A))))];
    assert!(!concurrent(concurrently), "not even at once");
    let mut longer = granted(5, 0, read_lock(A));
    if let CallResult::Granted { deadline, .. } = &mut longer {
        *deadline = Time(1500);
    }
    assert!(!twice(longer), "a replay does not renew");
    let released = |then| sequential_ops(vec![first(), plain(CallResult::Released(held(5))), under(1, then)]);
    assert!(released(CallResult::ReplayRefused(CredentialRefusal::Expired)));
    assert!(!released(granted(5, 0, read_lock(A))), "a replay of a lease that has ended");
    assert!(!released(granted(6, 1, read_lock(A))), "a stored request is not applied again");
    assert!(!sequential_ops(vec![under(1, CallResult::ReplayRefused(CredentialRefusal::Expired))]));
}

#[test]
fn a_retry_that_was_written_twice_is_not_linearizable() {
    let twice = |again| {
        let first = under(1, committed(5, None, 1, 1));
        sequential_ops(vec![plain(granted(5, 0, write_lock(A))), first, under(1, again)])
    };
    assert!(twice(committed(5, None, 1, 1)), "a replay shows the first version");
    assert!(!twice(committed(5, None, 1, 2)), "committed twice");
    assert!(twice(CallResult::RequestMismatch));
    assert!(!sequential_ops(vec![under(1, CallResult::RequestMismatch)]), "the key is unused");
    let removals = |again| {
        let setup = vec![plain(granted(5, 0, write_lock(A))), plain(committed(5, None, 1, 1))];
        sequential_ops([setup, vec![under(1, removed(5, true, 2)), under(1, again)]].concat())
    };
    assert!(removals(removed(5, true, 2)));
    assert!(!removals(removed(5, false, 2)), "the retry was applied again");
}
