//! A batch stays below the bound of every log, however much one command frees and however many long commands run.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};

use engine::internals::decider::Decider;
use engine::internals::sequencer::Sequencer;
use engine::internals::shard::{LogSpace, Shard};
use engine::waiters::{Wait, WaiterConnection};
use engine::{Decision, Delivery, MachineClock, Reply, ReplyTo, Submission};
use kernel::{
    Action, Bundle, Command, Granted, IdempotencyKey, Kernel, LeaseRequest, Metadata, Outcome, Predicate,
    Renewal, RequestKey, Response, Span,
};
use sim::fixture::{grant, held, identity, key, member, one};
use store::disk::{DiskLog, LogOptions};
use store::fs::RealFs;
use store::{BATCH_MAX, LogStore, Seq};

use crate::deadline::DEADLINE;
use crate::fixture::{TENURE, TestClock, executor};

/// A shard whose callers are numbers. Every sealed batch is compared with the bound.
struct Driver {
    shard: Shard<u32>,
    clock: TestClock,
    batches: Vec<usize>,
}

impl Driver {
    fn new() -> Driver {
        let clock = TestClock::default();
        let decider = Decider::open(Kernel::new(), Seq(0), Box::new(clock.clone()), &TENURE);
        let mut driver =
            Driver { shard: Shard::new(decider.expect("a valid clock")), clock, batches: vec![] };
        driver.turn();
        driver
    }

    fn turn(&mut self) -> Vec<(u32, Reply)> {
        self.shard.housekeep();
        self.end_turn()
    }

    fn end_turn(&mut self) -> Vec<(u32, Reply)> {
        let turn = self.shard.end_turn();
        if let Some(sealed) = turn.sealed {
            assert!(sealed.payload.len() <= BATCH_MAX, "a batch of {} bytes", sealed.payload.len());
            self.batches.push(sealed.payload.len());
        }
        turn.replies.into_iter().map(|(to, reply, _)| (to, reply)).collect()
    }

    fn submit(&mut self, to: u32, action: Action, wait: bool) {
        let command = Command::by(&identity("ada"), action);
        let wait = wait.then(|| Wait { timeout: Span(60_000), connection: WaiterConnection::default() });
        self.shard.submit(Submission { wait, ..Submission::new(command, to) });
    }

    /// Runs turns while work is due now.
    fn settle(&mut self) -> Vec<(u32, Reply)> {
        let mut replies = self.turn();
        for _ in 0..1000 {
            if self.shard.until_due() != Some(Span(0)) {
                return replies;
            }
            replies.extend(self.turn());
        }
        panic!("there is work after 1000 batches");
    }
}

fn granted(reply: &Reply) -> Option<Granted> {
    match reply {
        Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => Some(*granted),
        _ => None,
    }
}

fn granted_to(replies: &[(u32, Reply)]) -> Vec<u32> {
    replies.iter().filter(|(_, reply)| granted(reply).is_some()).map(|(to, _)| *to).collect()
}

/// 128 shared members, `KEY:hot` and 127 names of 503 bytes: about 65 KB in the log.
fn large_reader(n: u32) -> LeaseRequest {
    let name = |i: u32| format!("KEY:{}", format!("{n}-{i}-").repeat(503).split_at(503).0);
    let mut members = vec![member(Predicate::Consumes, "KEY:hot")];
    members.extend((1..128).map(|i| member(Predicate::Consumes, &name(i))));
    grant(Bundle::new(members).expect("distinct members"), Span(60_000))
}

fn small_reader() -> LeaseRequest {
    let metadata = Metadata::new(&[b'm'; 1024]).expect("1 KiB");
    LeaseRequest { metadata: Some(metadata), ..grant(one(Predicate::Consumes, "KEY:hot"), Span(60_000)) }
}

/// A holder of one key released it, and 80 readers of 128 long names each were granted in the same batch: 5 MB, more
/// than any log takes at once. The append was refused, the state was ahead of the log, and the process ended. After
/// the restart the holder's lease expired, the readers were back, and it ended again.
#[test]
fn a_hand_off_larger_than_a_batch_continues_in_the_next_in_order() {
    let mut driver = Driver::new();
    driver.submit(0, Action::Acquire(grant(key("hot"), Span(60_000))), false);
    let holder = granted(&driver.turn()[0].1).expect("free");
    for n in 1..=80 {
        driver.submit(n, Action::Acquire(large_reader(n)), true);
    }
    assert!(driver.settle().is_empty(), "all of them wait");
    driver.submit(0, Action::Release(held(&holder)), false);
    let replies = driver.settle();
    assert_eq!(granted_to(&replies), (1..=80).collect::<Vec<u32>>(), "first come, first served");
    assert!(driver.batches.len() > 5, "{:?}", driver.batches);
}

/// The same after an expiry instead of a release.
#[test]
fn an_expiry_that_serves_more_than_a_batch_continues_in_the_next() {
    let mut driver = Driver::new();
    driver.submit(0, Action::Acquire(grant(key("hot"), Span(4000))), false);
    driver.turn();
    for n in 1..=4500 {
        driver.submit(n, Action::Acquire(small_reader()), true);
    }
    driver.settle();
    driver.clock.0.fetch_add(4001, Ordering::Relaxed);
    assert_eq!(granted_to(&driver.settle()), (1..=4500).collect::<Vec<u32>>());
}

/// During a large hand-off, a new request queues behind the waiters that have not been tried yet, and a waiter that times
/// out is still granted the resources that had been freed for it. Other commands are decided in the same batches.
#[test]
fn a_long_hand_off_is_neither_overtaken_nor_timed_out_and_does_not_block_other_commands() {
    let mut driver = Driver::new();
    driver.submit(0, Action::Acquire(grant(key("hot"), Span(60_000))), false);
    driver.submit(0, Action::Acquire(grant(key("other"), Span(60_000))), false);
    let holders: Vec<Granted> = driver.turn().iter().filter_map(|(_, reply)| granted(reply)).collect();
    for n in 1..=80 {
        driver.submit(n, Action::Acquire(large_reader(n)), true);
    }
    driver.settle();
    driver.submit(0, Action::Release(held(&holders[0])), false);
    let mut replies = driver.end_turn();
    assert!(granted_to(&replies).len() < 80, "more than fits into a batch");
    driver.clock.0.fetch_add(60_001 - 1000, Ordering::Relaxed);
    driver.submit(100, Action::Acquire(grant(key("hot"), Span(60_000))), true);
    driver.clock.0.fetch_add(1000, Ordering::Relaxed);
    driver.shard.housekeep();
    driver.submit(101, Action::Renew(vec![renewal(&holders[1])]), false);
    let second = driver.end_turn();
    assert!(second.iter().any(|(to, reply)| *to == 101 && reply.is_ok()), "a renewal is decided at once");
    replies.extend(second);
    replies.extend(driver.settle());
    assert_eq!(granted_to(&replies), (1..=80).collect::<Vec<u32>>());
    assert!(replies.iter().all(|(to, _)| *to != 100), "the newcomer waits behind them");
}

/// A waiter timed out while the log had no free space, and the waiter behind it was granted a lease: a record was
/// logged where none could be.
#[test]
fn without_log_space_waiters_are_served_once_there_is_space_again() {
    let mut driver = Driver::new();
    driver.submit(0, Action::Acquire(grant(one(Predicate::Consumes, "KEY:hot"), Span(300_000))), false);
    driver.turn();
    let wait = |ms| Some(Wait { timeout: Span(ms), connection: WaiterConnection::default() });
    let writer = Command::by(&identity("bob"), Action::Acquire(grant(key("hot"), Span(60_000))));
    driver.shard.submit(Submission { wait: wait(1000), ..Submission::new(writer, 1) });
    driver.submit(2, Action::Acquire(small_reader()), true);
    driver.settle();
    driver.shard.set_space(LogSpace::Nothing);
    driver.clock.0.fetch_add(1001, Ordering::Relaxed);
    let batches = driver.batches.len();
    let replies = driver.settle();
    assert!(matches!(replies.as_slice(), [(1, Ok(Decision::Blocked(_)))]), "{replies:?}");
    assert_eq!(driver.batches.len(), batches, "nothing is logged");
    driver.shard.set_space(LogSpace::Plenty);
    assert_eq!(granted_to(&driver.settle()), [2]);
}

/// A client disconnected while the log had no free space, and the waiter behind it was granted a lease: a record was logged
/// where none could be. With the reserve left, a release handed the reserve to a new grant.
#[test]
fn without_log_space_neither_a_disconnect_nor_a_release_grants_a_lease() {
    let mut driver = Driver::new();
    driver.submit(0, Action::Acquire(grant(one(Predicate::Consumes, "KEY:hot"), Span(300_000))), false);
    driver.submit(0, Action::Acquire(grant(key("other"), Span(300_000))), false);
    let holders: Vec<Granted> = driver.turn().iter().filter_map(|(_, reply)| granted(reply)).collect();
    let connection = WaiterConnection::default();
    let wait = Some(Wait { timeout: Span(60_000), connection: connection.clone() });
    let writer = Command::by(&identity("bob"), Action::Acquire(grant(key("hot"), Span(60_000))));
    driver.shard.submit(Submission { wait, ..Submission::new(writer, 1) });
    driver.submit(2, Action::Acquire(small_reader()), true);
    driver.submit(3, Action::Acquire(grant(key("other"), Span(60_000))), true);
    driver.settle();
    let batches = driver.batches.len();
    driver.shard.set_space(LogSpace::Nothing);
    driver.shard.disconnect(&connection);
    assert!(driver.settle().is_empty() && driver.batches.len() == batches, "nothing is logged");
    driver.shard.set_space(LogSpace::Reserve);
    driver.submit(4, Action::Release(held(&holders[1])), false);
    let replies = driver.settle();
    assert_eq!((granted_to(&replies), driver.batches.len()), (vec![], batches + 1), "the release only");
    assert!(!driver.shard.is_handing_off(), "there is no space for grants");
    driver.shard.set_space(LogSpace::Plenty);
    assert!(driver.shard.is_handing_off());
    assert_eq!(granted_to(&driver.settle()), [2, 3]);
}

/// Thousands of responses fail at once: their grants are undone over several batches, and one that is replayed meanwhile
/// is not undone.
#[test]
fn undelivered_grants_are_undone_within_the_bound_of_a_batch_and_once_there_is_space() {
    let mut driver = Driver::new();
    let request = |n: u8| IdempotencyKey { key: RequestKey([n; 16]), fingerprint: [n; 16] };
    let acquire = |n: u8| {
        let action = Action::Acquire(grant(key(&format!("k{n}")), Span(60_000)));
        Command::by(&identity("ada"), action).with_request(request(n))
    };
    for n in 0..3 {
        driver.shard.submit(Submission::new(acquire(n), u32::from(n)));
    }
    let leases: Vec<Granted> = driver.turn().iter().filter_map(|(_, reply)| granted(reply)).collect();
    driver.shard.set_space(LogSpace::Nothing);
    for lease in &leases {
        driver.shard.delivered(lease.lease, false);
    }
    assert_eq!(driver.shard.kernel().counts().leases, 3, "nothing may be logged");
    assert_ne!(driver.shard.until_due(), Some(Span(0)));
    driver.shard.set_space(LogSpace::Plenty);
    // A replay is decided before the grants are undone: it may deliver the lease.
    driver.shard.submit(Submission::new(acquire(1), 9));
    assert_eq!(driver.shard.until_due(), Some(Span(0)));
    driver.settle();
    assert_eq!(driver.shard.kernel().counts().leases, 1);
    driver.shard.delivered(leases[1].lease, false);
    assert_eq!(driver.shard.kernel().counts().leases, 0, "the replay failed too");
}

/// A batch that is full takes neither retractions nor parts of long commands.
#[test]
fn nothing_is_added_to_a_full_batch() {
    let mut driver = Driver::new();
    driver.submit(0, Action::Acquire(grant(key("k"), Span(60_000))), false);
    driver.submit(1, Action::Acquire(grant(key("lost"), Span(60_000))), false);
    let leases: Vec<Granted> = driver.turn().iter().filter_map(|(_, reply)| granted(reply)).collect();
    driver.submit(2, Action::Renew(vec![renewal(&leases[0]); 10_000]), false);
    let mut n = 100;
    while !driver.shard.is_full() {
        driver.submit(n, Action::Acquire(large_reader(n)), false);
        n += 1;
    }
    let bytes = driver.shard.load().0;
    driver.shard.delivered(leases[1].lease, false);
    driver.clock.0.fetch_add(60_001, Ordering::Relaxed);
    for _ in 0..10 {
        driver.shard.housekeep();
    }
    driver.submit(3, Action::Renew(vec![renewal(&leases[0]); 10_000]), false);
    assert_eq!(driver.shard.load().0, bytes);
    driver.settle();
    let lost = driver.shard.kernel().lease(leases[1].lease, driver.shard.now());
    assert!(!lost.is_ok_and(|view| view.ended.is_none()), "undone in a later batch");
}

fn renewal(granted: &Granted) -> Renewal {
    Renewal { held: held(granted), ttl: Some(Span(60_000)) }
}

/// While the previous append was slow, each wake-up of the deciding thread added a part of every long command to a full
/// batch: 9.7 MB, refused by the log, fatal.
#[test]
fn long_commands_add_nothing_to_a_full_batch() {
    let mut driver = Driver::new();
    driver.submit(0, Action::Acquire(grant(key("k"), Span(60_000))), false);
    let lease = granted(&driver.turn()[0].1).expect("free");
    for n in 0..150 {
        driver.submit(n, Action::Renew(vec![renewal(&lease); 10_000]), false);
    }
    for _ in 0..200 {
        driver.shard.housekeep();
    }
    let replies = driver.settle();
    assert_eq!(replies.len(), 150, "all of them complete");
    assert!(replies.iter().all(|(_, reply)| reply.is_ok()));
}

fn submit(sequencer: &Sequencer, action: Action, wait: bool) -> Receiver<Reply> {
    let (send, receive) = channel();
    let wait = wait.then(|| Wait { timeout: Span(60_000), connection: WaiterConnection::default() });
    let command = Command::by(&identity("ada"), action);
    let to = Box::new(move |reply, delivery: Delivery| delivery.settle(send.send(reply).is_ok()));
    sequencer.submit(Submission { wait, ..Submission::new(command, to as ReplyTo) });
    receive
}

/// The first test, with the sequencer's threads and a log on disk.
#[test]
fn a_sequencer_on_disk_survives_a_hand_off_larger_than_a_batch() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };
    let log = DiskLog::open(RealFs, &dir.path().join("log"), options).expect("a sound log").0;
    let clock = MachineClock::new().expect("Linux");
    let next = log.bounds().next;
    let decider = Decider::open(Kernel::new(), next, Box::new(clock), &TENURE).expect("a valid clock");
    let fatal = Box::new(|why| panic!("{why:?}"));
    let sequencer =
        Sequencer::start(Shard::new(decider), Box::new(log), Box::new(()), u64::MAX, fatal, &executor());
    let free = submit(&sequencer, Action::Acquire(grant(key("hot"), Span(60_000))), false);
    let holder = granted(&free.recv_timeout(DEADLINE).expect("a reply")).expect("free");
    let waiting: Vec<Receiver<Reply>> =
        (1..=80).map(|n| submit(&sequencer, Action::Acquire(large_reader(n)), true)).collect();
    drop(submit(&sequencer, Action::Release(held(&holder)), false));
    let mut tokens = Vec::new();
    for reply in &waiting {
        tokens.push(granted(&reply.recv_timeout(DEADLINE).expect("a reply")).expect("granted").token);
    }
    assert!(tokens.is_sorted(), "first come, first served");
}
