//! Wrong observations that each property rejects, beside the right ones that it accepts.

use engine::waiters::WaiterConnection;
use engine::{Decision, Reply};
use kernel::{
    Action, Bundle, Command, Credential, Epoch, Etag, Granted, IdempotencyKey, LeaseId, Limits, Live,
    Location, Lsn, Outcome, Rejection, Renewal, RequestKey, Response, Shard, Span, Time, Token, Version,
    Write,
};

use super::{ClientProperties, ResponseTime};
use crate::fixture::{grant, identity, key};
use crate::servers::clock::TrueTime;
use crate::servers::server::RequestNumber;

const TTL: Span = Span(10_000);

/// Clients and a server whose kernel time is the true time.
struct Observed {
    properties: ClientProperties,
    next: RequestNumber,
}

impl Observed {
    fn new() -> Observed {
        Observed { properties: ClientProperties::new(&Limits::default()), next: 0 }
    }

    fn sends(&mut self, at: u64, command: &Command, waits: bool) -> RequestNumber {
        self.next += 1;
        let connection = waits.then(WaiterConnection::default);
        self.properties.arrived(self.next, command, connection, TrueTime(at));
        self.next
    }

    fn receives(&mut self, at: u64, number: RequestNumber, reply: &Reply) -> Result<(), String> {
        let written = ResponseTime { at: TrueTime(at), now: Time(at) };
        self.properties.responded(number, reply, true, written)?;
        self.properties.check_order()
    }

    /// A request with its response, at once.
    fn calls(&mut self, at: u64, command: &Command, reply: &Reply) -> Result<(), String> {
        let number = self.sends(at, command, false);
        self.receives(at, number, reply)
    }

    fn is_granted(&mut self, at: u64, who: &str, name: &str, lease: u64) -> Result<(), String> {
        self.calls(at, &acquire(who, key(name)), &granted(lease, 1, lease, at + TTL.0))
    }

    /// The first client is granted the key at 0.
    fn with_holder() -> Observed {
        let mut observed = Observed::new();
        observed.is_granted(0, "a", "k", 5).expect("the first grant");
        observed
    }
}

fn acquire(who: &str, bundle: Bundle) -> Command {
    Command::by(&identity(who), Action::Acquire(grant(bundle, TTL)))
}

fn keyed(command: Command) -> Command {
    command.with_request(IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [7; 16] })
}

fn id(lease: u64) -> LeaseId {
    LeaseId { shard: Shard(0), lsn: Lsn(lease) }
}

fn held(lease: u64) -> Credential {
    Credential { lease: id(lease), epoch: Epoch(1) }
}

#[expect(clippy::unnecessary_wraps, reason = "what a server replies is a `Reply`")]
fn applied(response: Response) -> Reply {
    Ok(Decision::Outcome(Outcome::Applied(response, Vec::new())))
}

#[expect(clippy::unnecessary_wraps, reason = "what a server replies is a `Reply`")]
fn rejected(rejection: Rejection) -> Reply {
    Ok(Decision::Outcome(Outcome::Rejected(rejection)))
}

fn granted(lease: u64, epoch: u64, token: u64, deadline: u64) -> Reply {
    applied(Response::Granted(Granted {
        lease: id(lease),
        epoch: Epoch(epoch),
        token: Token(token),
        granted_at: Time(0),
        deadline: Time(deadline),
        ttl: TTL,
    }))
}

fn renew(who: &str, lease: u64) -> Command {
    Command::by(&identity(who), Action::Renew(vec![Renewal { held: held(lease), ttl: None }]))
}

fn renewed(lease: u64, deadline: u64) -> Reply {
    let live = Live { lease: id(lease), epoch: Epoch(1), deadline: Time(deadline) };
    applied(Response::Renewed(vec![Ok(live)]))
}

fn release(who: &str, lease: u64) -> Command {
    Command::by(&identity(who), Action::Release(held(lease)))
}

fn commit(who: &str, lease: u64, release: bool) -> Command {
    let key = kernel::ResourceName::key("k").expect("a valid key");
    let write = Write { held: held(lease), key, token: None, if_version: None, if_etag: None, release };
    let commit = kernel::Commit { write, etag: Etag([1; 32]), bytes: 1, location: Location::default() };
    Command::by(&identity(who), Action::Commit(commit))
}

#[test]
fn a_second_holder_before_the_reported_expiry_is_a_violation() {
    assert!(Observed::with_holder().is_granted(9000, "b", "k", 6).is_err());
    assert!(Observed::with_holder().is_granted(10_100, "b", "k", 6).is_ok(), "it has expired");
    assert!(Observed::with_holder().is_granted(9000, "b", "other", 6).is_ok(), "another key");
    let mut released = Observed::with_holder();
    released.sends(100, &release("a", 5), false);
    assert!(
        released.is_granted(9000, "b", "k", 6).is_ok(),
        "a release without a response may have been applied"
    );
}

#[test]
fn a_delivered_lease_that_is_refused_is_a_violation() {
    for refusal in [Rejection::NotHeld, Rejection::LeaseExpired, Rejection::Retired] {
        let reply = applied(Response::Renewed(vec![Err(refusal.clone())]));
        assert!(Observed::with_holder().calls(9000, &renew("a", 5), &reply).is_err(), "{refusal:?}");
        assert!(
            Observed::with_holder().calls(9000, &commit("a", 5, false), &rejected(refusal.clone())).is_err()
        );
        assert!(Observed::with_holder().calls(10_100, &renew("a", 5), &reply).is_ok(), "after its expiry");
        assert!(Observed::with_holder().calls(9000, &renew("b", 5), &reply).is_ok(), "of another client");
    }
}

#[test]
fn a_lost_commit_is_a_violation() {
    let mut observed = Observed::with_holder();
    let committed = |version| applied(Response::Committed(Version(version)));
    observed.calls(1, &commit("a", 5, false), &committed(7)).expect("the first version");
    assert!(observed.calls(2, &commit("a", 5, false), &committed(7)).is_err(), "the same version again");
    assert!(observed.calls(3, &commit("a", 5, false), &committed(8)).is_ok());
}

#[test]
fn two_leases_for_one_idempotency_key_are_a_violation() {
    let shared = || keyed(acquire("a", crate::fixture::one(kernel::Predicate::Consumes, "KEY:k")));
    let mut observed = Observed::new();
    observed.calls(0, &shared(), &granted(5, 1, 5, TTL.0)).expect("the grant");
    assert!(observed.calls(1, &shared(), &granted(5, 1, 5, TTL.0)).is_ok(), "a replay");
    assert!(observed.calls(2, &shared(), &granted(6, 1, 6, TTL.0)).is_err());
    let mut late = Observed::new();
    late.calls(0, &shared(), &granted(5, 1, 5, TTL.0)).expect("the grant");
    assert!(late.calls(61_000, &shared(), &granted(6, 1, 6, 61_000 + TTL.0)).is_ok(), "the entry has lapsed");
}

#[test]
fn success_after_the_end_is_a_violation() {
    let committed = applied(Response::Committed(Version(1)));
    assert!(Observed::with_holder().calls(9900, &commit("a", 5, false), &committed).is_ok());
    assert!(Observed::with_holder().calls(10_100, &commit("a", 5, false), &committed).is_err(), "it expired");
    assert!(Observed::with_holder().calls(10_100, &renew("a", 5), &renewed(5, 20_100)).is_err());
    let mut restarted = Observed::with_holder();
    restarted.properties.disconnected();
    assert!(restarted.calls(10_100, &commit("a", 5, false), &committed).is_ok(), "time stood still");
    let mut released = Observed::with_holder();
    released.calls(1, &release("a", 5), &applied(Response::Released)).expect("a release");
    assert!(released.calls(2, &commit("a", 5, false), &committed).is_err(), "it was released");
    let mut expired = Observed::with_holder();
    let refused = applied(Response::Renewed(vec![Err(Rejection::LeaseExpired)]));
    expired.calls(10_100, &renew("a", 5), &refused).expect("it has expired");
    assert!(expired.calls(10_101, &renew("a", 5), &renewed(5, 20_101)).is_err(), "it never revives");
}

#[test]
fn a_replay_after_the_release_that_shows_a_live_lease_is_a_violation() {
    let mut observed = Observed::new();
    observed.calls(0, &keyed(acquire("a", key("k"))), &granted(5, 1, 5, TTL.0)).expect("the grant");
    observed.calls(1, &release("a", 5), &applied(Response::Released)).expect("a release");
    assert!(observed.calls(2, &keyed(acquire("a", key("k"))), &granted(5, 1, 5, TTL.0)).is_err());
}

#[test]
fn a_token_that_does_not_increase_is_a_violation() {
    let second = |token| {
        let mut observed = Observed::with_holder();
        observed.calls(1, &release("a", 5), &applied(Response::Released)).expect("a release");
        observed.calls(2, &acquire("b", key("k")), &granted(6, 1, token, 2 + TTL.0))
    };
    assert!(second(6).is_ok());
    assert!(second(4).is_err() && second(5).is_err());
}

#[test]
fn remaining_time_that_grows_without_a_renewal_is_a_violation() {
    let mut observed = Observed::new();
    observed.calls(0, &keyed(acquire("a", key("k"))), &granted(5, 1, 5, TTL.0)).expect("the grant");
    assert!(
        observed.calls(4000, &keyed(acquire("a", key("k"))), &granted(5, 1, 5, 4000 + TTL.0)).is_err(),
        "a replay does not renew"
    );
    let mut renewals = Observed::with_holder();
    renewals.calls(4000, &renew("a", 5), &renewed(5, 4000 + TTL.0)).expect("a renewal");
    assert!(renewals.calls(4001, &renew("a", 5), &renewed(5, 99_000)).is_err(), "more than the TTL");
}

#[test]
fn a_grant_past_an_earlier_waiter_is_a_violation() {
    let mut observed = Observed::new();
    observed.is_granted(0, "a", "k", 5).expect("the first grant");
    let waiter = observed.sends(1, &acquire("b", key("k")), true);
    let newcomer = observed.sends(2, &acquire("c", key("k")), true);
    observed.calls(3, &release("a", 5), &applied(Response::Released)).expect("a release");
    assert!(observed.receives(4, newcomer, &granted(7, 1, 7, 4 + TTL.0)).is_err(), "it overtook the waiter");
    let mut fair = Observed::new();
    fair.is_granted(0, "a", "k", 5).expect("the first grant");
    let first = fair.sends(1, &acquire("b", key("k")), true);
    fair.sends(2, &acquire("c", key("k")), true);
    fair.calls(3, &release("a", 5), &applied(Response::Released)).expect("a release");
    assert!(fair.receives(4, first, &granted(6, 1, 6, 4 + TTL.0)).is_ok());
    assert_eq!(waiter, first, "the same order in both");
}

#[test]
fn a_grant_over_a_hold_or_a_revoked_lease_is_a_violation() {
    let with_hold = |on_expiry| {
        let mut observed = Observed::new();
        let wanted = kernel::LeaseRequest { on_expiry, ..grant(key("k"), TTL) };
        let command = Command::by(&identity("a"), Action::Acquire(wanted));
        observed.calls(0, &command, &granted(5, 1, 5, TTL.0)).expect("the first grant");
        observed
    };
    let hold = kernel::OnExpiry::Hold(Span(5000));
    assert!(with_hold(hold).is_granted(14_000, "b", "k", 6).is_err(), "it is on hold");
    assert!(with_hold(hold).is_granted(15_100, "b", "k", 6).is_ok(), "the hold is over");
    assert!(
        with_hold(kernel::OnExpiry::Manual).is_granted(999_000, "b", "k", 6).is_err(),
        "only a reclaim ends it"
    );
    let revoke = Command::by(&identity("operator"), Action::Revoke(id(5)));
    let mut revoked = Observed::with_holder();
    revoked.calls(1, &revoke, &applied(Response::Revoking(id(5)))).expect("a revoke");
    assert!(revoked.is_granted(20_000, "b", "k", 6).is_err(), "a revoke frees nothing");
    revoked.sends(21_000, &Command::by(&identity("operator"), Action::Reclaim(id(5))), false);
    assert!(revoked.is_granted(22_000, "b", "k", 7).is_ok());
}

/// The grant was undone because no response was delivered; its retry must not be refused with the old entry.
#[test]
fn a_retry_refused_because_of_a_lease_that_no_client_has_seen_is_a_violation() {
    let expired = rejected(Rejection::LeaseExpired);
    let mut observed = Observed::new();
    observed.sends(0, &keyed(acquire("a", key("k"))), false);
    assert!(observed.calls(5000, &keyed(acquire("a", key("k"))), &expired).is_err());
    assert!(observed.calls(10_100, &keyed(acquire("a", key("k"))), &expired).is_ok(), "it may have expired");
}
