//! Followers of a log in an object store: keeping up, taking over, and what the old owner may still say.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use engine::internals::recovery::RecoveryError;
use engine::observe::{DamagedSnapshot, EngineObserver, Fatal, MaintenanceEvent, SnapshotDamage};
use engine::{Clock, Engine, Follower, Options, ReplyTo, Submission, TenureConfig, Unavailable};
use kernel::{Action, Close, Command, Shard, Span};
use sim::fixture::{grant, held, identity, key};
use store::memory::MemoryBlobs;
use store::object::{MemoryObjects, ObjectLog, ObjectOptions, Objects, RetryPolicy, WriterId};
use store::{BlobStore, ErrorKind, LogStore as _, LsnRange, Seq, StoreError};

use crate::deadline::{DEADLINE, eventually};
use crate::fixture::{TENURE, TestClock, executor};

/// Reports that an engine was deposed.
struct DeposedObserver(std::sync::mpsc::Sender<StoreError>);

impl EngineObserver for DeposedObserver {
    fn fatal(&self, why: Fatal) {
        panic!("{why}");
    }

    fn deposed(&self, _: Shard, why: StoreError) {
        let _ = self.0.send(why);
    }

    fn maintained(&self, event: MaintenanceEvent) {
        assert!(!matches!(event, MaintenanceEvent::SnapshotDamaged(_)), "{event:?}");
    }
}

/// The clock of one of several machines: they agree on nothing but the rate.
struct ServerClock {
    machine: u128,
    time: TestClock,
}

impl Clock for ServerClock {
    fn boot_clock(&self) -> Span {
        let since_boot = u64::try_from(self.machine).expect("few machines") * 1_000_000;
        Span(self.time.boot_clock().0 + since_boot)
    }

    fn boot_id(&self) -> u128 {
        self.machine
    }

    fn unix_micros(&self) -> u64 {
        self.time.unix_micros()
    }
}

/// A bucket with one log, and the clock of its servers.
struct Bucket {
    objects: Arc<dyn Objects>,
    blobs: Arc<dyn BlobStore>,
    clock: TestClock,
}

impl Bucket {
    fn new() -> Bucket {
        let (objects, blobs) = (Arc::new(MemoryObjects::default()), Arc::new(MemoryBlobs::default()));
        Bucket { objects, blobs, clock: TestClock::default() }
    }

    fn follow(&self, writer: u128) -> Follower {
        let options = ObjectOptions::new(0, 1, WriterId(writer));
        let log = ObjectLog::open(Arc::clone(&self.objects), options, RetryPolicy::without_pause(3));
        let clock = Box::new(ServerClock { machine: writer, time: self.clock.clone() });
        let log = Box::new(log.expect("readable"));
        let (send, _) = channel();
        Follower::open(log, Arc::clone(&self.blobs), clock, Shard(0), &DeposedObserver(send)).expect("valid")
    }

    /// Takes over, and waits until the tenure is durable.
    fn take_over(follower: Follower, writer: u128) -> (Engine, Receiver<StoreError>) {
        let (send, deposed) = channel();
        let tenure = TenureConfig { writer, ..TENURE.clone() };
        let observer = Arc::new(DeposedObserver(send));
        let engine = follower.take_over(&tenure, Options::default(), observer, &executor());
        let engine = engine.expect("a valid clock");
        (engine, deposed)
    }
}

fn submit(engine: &Engine, name: &str, action: Action) -> Receiver<engine::Reply> {
    let (send, receive) = channel();
    let to: ReplyTo = Box::new(move |reply, delivery| delivery.settle(send.send(reply).is_ok()));
    engine.sequencer().submit(Submission::new(Command::by(&identity(name), action), to));
    receive
}

fn acquire(engine: &Engine, name: &str, resource: &str, ttl_ms: u64) -> kernel::Granted {
    let reply = submit(engine, name, Action::Acquire(grant(key(resource), Span(ttl_ms))));
    match reply.recv_timeout(DEADLINE) {
        Ok(Ok(engine::Decision::Outcome(kernel::Outcome::Applied(
            kernel::Response::Granted(granted),
            _,
        )))) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

fn leases(engine: &Engine) -> usize {
    engine.sequencer().inspect(|shard| shard.kernel().counts().leases)
}

#[test]
fn a_follower_keeps_up_and_the_owner_that_it_deposes_reveals_nothing_more() {
    let bucket = Bucket::new();
    let (owner, deposed) = Bucket::take_over(bucket.follow(1), 1);
    let first = acquire(&owner, "ada", "a", 60_000);
    let mut follower = bucket.follow(2);
    let behind = follower.next();
    let second = acquire(&owner, "ada", "b", 60_000);
    assert!(follower.poll(false).expect("readable"), "the log has grown");
    assert!(!follower.poll(false).expect("readable"), "and not again");
    assert!(!follower.poll(true).expect("readable"));
    assert!(follower.next() > behind);
    assert_eq!(follower.tenure().map(|tenure| (tenure.open.term, tenure.open.writer)), Some((1, 1)));
    let (successor, _) = Bucket::take_over(follower, 2);
    let third = acquire(&successor, "bob", "c", 60_000);
    assert!(first.token < second.token && second.token < third.token, "tokens grow across owners");
    assert_eq!(leases(&successor), 3);
    // A refusal and a grant of the old owner: neither is sent.
    let refusal = submit(&owner, "bob", Action::Acquire(grant(key("a"), Span(60_000))));
    assert!(matches!(refusal.recv_timeout(DEADLINE), Ok(Err(Unavailable::Deposed))));
    assert_eq!(deposed.recv_timeout(DEADLINE).map(|error| error.kind), Ok(ErrorKind::Taken));
    let released = submit(&successor, "ada", Action::Release(held(&first)));
    assert!(matches!(released.recv_timeout(DEADLINE), Ok(Ok(_))), "the holder goes on");
}

/// A deposed owner has decided what is not in the log, and lacks what is. It recovers before it follows.
#[test]
fn an_owner_that_follows_again_has_the_state_of_the_log_and_not_its_own() {
    let bucket = Bucket::new();
    let (owner, deposed) = Bucket::take_over(bucket.follow(1), 1);
    acquire(&owner, "ada", "a", 60_000);
    let (successor, _) = Bucket::take_over(bucket.follow(2), 2);
    acquire(&successor, "bob", "b", 60_000);
    acquire(&successor, "bob", "c", 60_000);
    let undecided = submit(&owner, "ada", Action::Acquire(grant(key("d"), Span(60_000))));
    assert!(matches!(undecided.recv_timeout(DEADLINE), Ok(Err(Unavailable::Deposed))));
    assert_eq!(deposed.recv_timeout(DEADLINE).map(|error| error.kind), Ok(ErrorKind::Taken));
    let options = ObjectOptions::new(0, 1, WriterId(3));
    let log = ObjectLog::open(Arc::clone(&bucket.objects), options, RetryPolicy::without_pause(3));
    let clock = Box::new(ServerClock { machine: 1, time: bucket.clock.clone() });
    let (log, (send, _)) = (Box::new(log.expect("readable")), channel());
    let blobs = Arc::clone(&bucket.blobs);
    let again = Follower::open_after(Arc::new(owner), log, blobs, clock, Shard(0), &DeposedObserver(send));
    let (third, _) = Bucket::take_over(again.expect("valid"), 3);
    let replies =
        ["a", "b", "c"].map(|name| submit(&third, "eve", Action::Acquire(grant(key(name), Span(60_000)))));
    for (name, reply) in ["a", "b", "c"].iter().zip(replies) {
        let reply = reply.recv_timeout(DEADLINE);
        let is_blocked = matches!(&reply, Ok(Ok(decision)) if decision.response().is_none());
        assert!(is_blocked, "{name} is held by another: {reply:?}");
    }
    acquire(&third, "eve", "d", 60_000);
}

/// The time for which a follower has watched a silent log has certainly passed: the leases of a dead owner end in time, not
/// late, even though its machine's clock is unknown here.
#[test]
fn watched_silence_counts_as_elapsed_time_and_nothing_before_it_does() {
    let bucket = Bucket::new();
    let (owner, _) = Bucket::take_over(bucket.follow(1), 1);
    acquire(&owner, "ada", "a", 10_000);
    // Time that no other machine has watched: it does not count.
    bucket.clock.0.fetch_add(1_000, std::sync::atomic::Ordering::Relaxed);
    drop(owner);
    let mut foreign = bucket.follow(2);
    foreign.poll(true).expect("readable");
    bucket.clock.0.fetch_add(4_000, std::sync::atomic::Ordering::Relaxed);
    let (successor, _) = Bucket::take_over(foreign, 2);
    eventually("the tenure is open", || leases(&successor) == 1);
    let (now, due) = successor.sequencer().inspect(|shard| {
        (shard.kernel().tenure().expect("open").opened_at, shard.kernel().next_due().expect("a lease"))
    });
    let left = now.until(due).0;
    assert_eq!(left, 6_001, "a millisecond after the deadline, 4,000 of 10,000 later");
}

#[test]
fn a_log_that_was_handed_over_says_to_whom_and_goes_on() {
    let bucket = Bucket::new();
    let (owner, _) = Bucket::take_over(bucket.follow(1), 1);
    let lease = acquire(&owner, "ada", "a", 60_000);
    let mut follower = bucket.follow(2);
    assert_eq!(follower.closed(), None);
    owner.sequencer().hand_over(Close { to: Some(2) });
    owner.sequencer().wait_until_ended();
    assert!(follower.poll(false).expect("readable"));
    assert_eq!(follower.closed(), Some(Close { to: Some(2) }));
    let (successor, _) = Bucket::take_over(follower, 2);
    let released = submit(&successor, "ada", Action::Release(held(&lease)));
    assert!(matches!(released.recv_timeout(DEADLINE), Ok(Ok(_))));
    let late = submit(&owner, "ada", Action::Release(held(&lease)));
    assert!(matches!(late.recv_timeout(DEADLINE), Ok(Err(Unavailable::Moved(Some(2))))));
}

/// Two followers try for the same number. The loser's engine ends, and nothing of it is in the log.
#[test]
fn of_two_followers_that_take_over_one_owns_the_log() {
    let bucket = Bucket::new();
    let (one, two) = (bucket.follow(1), bucket.follow(2));
    let (winner, _) = Bucket::take_over(one, 1);
    acquire(&winner, "ada", "a", 60_000);
    let (loser, deposed) = Bucket::take_over(two, 2);
    assert_eq!(deposed.recv_timeout(DEADLINE).map(|error| error.kind), Ok(ErrorKind::Taken));
    loser.sequencer().wait_until_ended();
    acquire(&winner, "ada", "b", 60_000);
    let mut again = bucket.follow(2);
    assert!(!again.poll(true).expect("readable"));
    assert_eq!(again.tenure().map(|tenure| tenure.open.writer), Some(1));
}

/// A store failed for a moment while a stand-by read the snapshots. It stopped to follow the shard for a minute, as if its own
/// version were too old.
#[test]
fn a_snapshot_that_could_not_be_read_now_can_be_read_later() {
    let unreadable = |damage| {
        let name = store::BlobName::new("snapshot/0/0000000000000008").expect("valid");
        RecoveryError::NoSnapshot { floor: Seq(8), damaged: vec![DamagedSnapshot { name, damage }] }
    };
    let failed = StoreError::new(ErrorKind::Io, "no response");
    assert!(unreadable(SnapshotDamage::Device(failed)).is_transient());
    assert!(!unreadable(SnapshotDamage::Misnamed(Seq(7))).is_transient());
}

/// The bucket denied reads for a moment, as it does while credentials expire or a policy is repaired. A stand-by took that for
/// a log that its version cannot read, and did not look again for a minute.
#[test]
fn a_log_that_was_denied_can_be_read_later() {
    let denied = RecoveryError::Store(StoreError::new(ErrorKind::Refused, "access denied"));
    assert!(denied.is_denied() && denied.is_transient());
    let damaged = RecoveryError::Store(StoreError::new(ErrorKind::Damaged, "bad checksum"));
    assert!(!damaged.is_denied() && !damaged.is_transient());
}

/// An upgrade: the owner writes records that an older follower does not know. It stops following, and opening again does not
/// help: it must not take the log over.
#[test]
fn a_follower_that_meets_a_newer_record_stops_and_says_so() {
    let bucket = Bucket::new();
    let (owner, _) = Bucket::take_over(bucket.follow(1), 1);
    acquire(&owner, "ada", "a", 60_000);
    let mut follower = bucket.follow(2);
    let options = ObjectOptions::new(0, 1, WriterId(9));
    let log = ObjectLog::open(Arc::clone(&bucket.objects), options, RetryPolicy::without_pause(3));
    let mut log = log.expect("readable");
    let next = log.bounds().next;
    let last = log.reader().read(Seq(next.0 - 1)).expect("the grant");
    let mut payload = last.payload.clone();
    // The version of the batch, behind its magic.
    payload[3] += 1;
    let lsn = last.lsns.last.0 + 1;
    log.append(next, LsnRange::new(lsn, lsn), &payload).expect("a free number");
    let error = follower.poll(false).expect_err("it cannot be read");
    assert!(!error.is_transient(), "{error}");
    assert!(error.to_string().contains("version"), "{error}");
    let options = ObjectOptions::new(0, 1, WriterId(2));
    let log = ObjectLog::open(Arc::clone(&bucket.objects), options, RetryPolicy::without_pause(3));
    let clock = Box::new(ServerClock { machine: 2, time: bucket.clock.clone() });
    let (log, (send, _)) = (Box::new(log.expect("readable")), channel());
    let opened = Follower::open(log, Arc::clone(&bucket.blobs), clock, Shard(0), &DeposedObserver(send));
    assert!(opened.is_err_and(|error| !error.is_transient()));
}
