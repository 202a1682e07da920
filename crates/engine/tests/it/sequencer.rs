//! The threads of a shard: replies are durable, failures are fatal, full queues and logs refuse.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::internals::checkpoint::Mark;
use engine::internals::decider::Decider;
use engine::internals::record::decode_batch;
use engine::internals::recovery::replay;
use engine::internals::sequencer::{BatchObserver, Ended, QUEUE_MAX, Sequencer};
use engine::internals::shard::Shard;
use engine::observe::{AuditEntry, AuditedFact, Measure};
use engine::waiters::{Wait, WaiterConnection};
use engine::{Decision, Delivery, MachineClock, Reply, ReplyTo, Submission, Unavailable};
use kernel::{
    Action, Close, Command, Event, Granted, IdempotencyKey, Kernel, Lsn, Outcome, RequestKey, Response, Span,
};
use sim::fixture::{grant, held, identity, key};
use store::disk::{DiskLog, LogOptions};
use store::faulty::{Call, Fault, Faulty};
use store::fs::RealFs;
use store::memory::MemoryLog;
use store::{Bounds, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange, Seq, StoreError};

use crate::deadline::{DEADLINE, eventually};
use crate::fixture::{TENURE, executor};

pub(crate) type ReplyReceiver = Receiver<Reply>;

fn decider(kernel: Kernel, next: Seq) -> Decider {
    let clock = MachineClock::new().expect("Linux");
    Decider::open(kernel, next, Box::new(clock), &TENURE).expect("a valid clock")
}

pub(crate) fn start(log: impl LogStore + 'static) -> Sequencer {
    start_observed(log, Box::new(()))
}

fn start_observed(log: impl LogStore + 'static, observer: Box<dyn BatchObserver>) -> Sequencer {
    let next = log.bounds().next;
    Sequencer::start(
        Shard::new(decider(Kernel::new(), next)),
        Box::new(log),
        observer,
        u64::MAX,
        Box::new(|why| panic!("{why:?}")),
        &executor(),
    )
}

fn error_of(why: Ended) -> StoreError {
    match why {
        Ended::Failed(error) | Ended::Deposed(error) => error,
    }
}

pub(crate) fn submit(sequencer: &Sequencer, name: &str, action: Action) -> ReplyReceiver {
    submit_waiting(sequencer, name, action, None)
}

fn submit_waiting(sequencer: &Sequencer, name: &str, action: Action, wait: Option<Wait>) -> ReplyReceiver {
    let (send, receive) = channel();
    let command = Command::by(&identity(name), action);
    // The test may have dropped the receiver.
    let to = Box::new(move |reply, delivery: Delivery| delivery.settle(send.send(reply).is_ok()));
    sequencer.submit(Submission { wait, ..Submission::new(command, to as ReplyTo) });
    receive
}

fn wait(ms: u64) -> Wait {
    Wait { timeout: Span(ms), connection: WaiterConnection::default() }
}

pub(crate) fn acquire(name: &str) -> Action {
    Action::Acquire(grant(key(name), Span(60_000)))
}

/// The reply, or why there is none.
pub(crate) fn reply(receiver: &ReplyReceiver) -> Result<Reply, RecvTimeoutError> {
    receiver.recv_timeout(DEADLINE)
}

pub(crate) fn granted(receiver: &ReplyReceiver) -> Granted {
    match reply(receiver).expect("a reply") {
        Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn acknowledged_decisions_of_many_callers_are_in_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };
    let open = || DiskLog::open(RealFs, &dir.path().join("log"), options).expect("a sound log").0;
    run_callers(start(open()));
    assert_replays(&open());
}

/// In memory, each calling thread decides and appends batches for all.
#[test]
fn acknowledged_decisions_of_many_callers_are_in_memory() {
    let log = MemoryLog::default();
    run_callers(start(log.clone()));
    assert_replays(&log);
}

/// 8 callers acquire 50 leases each and release every other.
fn run_callers(sequencer: Sequencer) {
    let sequencer = Arc::new(sequencer);
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let sequencer = Arc::clone(&sequencer);
            std::thread::spawn(move || {
                let name = format!("caller-{caller}");
                for n in 0..50 {
                    let lease = granted(&submit(&sequencer, &name, acquire(&format!("{name}-{n}"))));
                    if n % 2 == 0 {
                        let released = submit(&sequencer, &name, Action::Release(held(&lease)));
                        assert!(matches!(
                            reply(&released),
                            Ok(Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))))
                        ));
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("every caller got its replies");
    }
}

fn assert_replays(log: &dyn LogStore) {
    let mut kernel = Kernel::new();
    replay(&mut kernel, &mut *log.reader(), Seq(0), log.bounds().next).expect("the log replays");
    assert_eq!(kernel.counts().leases, 8 * 25);
    kernel::invariants::check(&kernel).expect("all invariants hold");
}

/// A log each of whose appends waits for a permit from the test.
pub(crate) struct GatedLog {
    inner: MemoryLog,
    arrived: SyncSender<()>,
    permits: Mutex<Receiver<()>>,
}

impl LogStore for GatedLog {
    fn bounds(&self) -> Bounds {
        self.inner.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        self.arrived.send(()).expect("the test listens");
        self.permits.lock().expect("not poisoned").recv_timeout(DEADLINE).expect("a permit");
        self.inner.append(seq, lsns, payload)
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        self.inner.reserve()
    }

    fn capacity(&self) -> LogCapacity {
        self.inner.capacity()
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.inner.raise_floor(floor)
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.extents()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        self.inner.reader()
    }
}

pub(crate) fn gated_log() -> (GatedLog, Receiver<()>, SyncSender<()>) {
    let (arrived, has_arrived) = sync_channel(100);
    let (permit, permits) = sync_channel(100);
    (GatedLog { inner: MemoryLog::default(), arrived, permits: Mutex::new(permits) }, has_arrived, permit)
}

/// "Held by ada" was the reply while ada's grant was not on disk: the power failed, and there had never been a grant.
#[test]
fn a_refusal_waits_for_the_state_that_it_reveals() {
    // A batch of one command, and one of several.
    for commands in [1, 2] {
        let (log, arrived, permit) = gated_log();
        let sequencer = start(log);
        arrived.recv_timeout(DEADLINE).expect("the open");
        let request = |n| submit(&sequencer, "ada", acquire(&format!("k{n}")));
        let grants: Vec<ReplyReceiver> = (0..commands).map(request).collect();
        permit.send(()).expect("the log waits");
        arrived.recv_timeout(DEADLINE).expect("the grants are being appended");
        let refusal = submit(&sequencer, "bob", acquire("k0"));
        let early =
            [refusal.recv_timeout(Duration::from_millis(200)), grants[0].recv_timeout(Duration::ZERO)];
        // Before any assertion: dropping a sequencer waits for its appends.
        permit.send(()).expect("the log waits");
        assert!(early.iter().all(Result::is_err), "replied before it is durable: {early:?}");
        for grant in &grants {
            granted(grant);
        }
        assert!(matches!(reply(&refusal), Ok(Ok(Decision::Blocked(_)))));
    }
}

/// The events observed so far.
#[derive(Clone, Default)]
struct EventLog(Arc<Mutex<Vec<Event>>>);

impl BatchObserver for EventLog {
    fn audited(&mut self, _: Vec<AuditEntry>) {}

    fn durable(&mut self, events: &[(Lsn, Vec<Event>)]) {
        let mut observed = self.0.lock().expect("not poisoned");
        observed.extend(events.iter().flat_map(|(_, events)| events.clone()));
    }

    fn marked(&mut self, _: Mark) {}
}

/// An observer deletes the blob of a document that was replaced. It saw the event while the commit was being
/// appended; the power failed, the old document was the current one again, and its blob was gone.
#[test]
fn events_are_published_when_they_are_durable() {
    let (log, arrived, permit) = gated_log();
    let observed = EventLog::default();
    let sequencer = start_observed(log, Box::new(observed.clone()));
    arrived.recv_timeout(DEADLINE).expect("the open");
    permit.send(()).expect("the log waits");
    let grant = submit(&sequencer, "ada", acquire("k"));
    arrived.recv_timeout(DEADLINE).expect("the grant is being appended");
    let early = observed.0.lock().expect("not poisoned").clone();
    permit.send(()).expect("the log waits");
    assert_eq!(early, [], "published before it is durable");
    let lease = granted(&grant);
    assert_eq!(*observed.0.lock().expect("not poisoned"), [Event::Granted(lease.lease, lease.token)]);
}

/// The audit entries observed so far.
#[derive(Clone, Default)]
struct AuditTrail(Arc<Mutex<Vec<AuditEntry>>>);

impl BatchObserver for AuditTrail {
    fn durable(&mut self, _: &[(Lsn, Vec<Event>)]) {}

    fn marked(&mut self, _: Mark) {}

    fn audited(&mut self, entries: Vec<AuditEntry>) {
        self.0.lock().expect("not poisoned").extend(entries);
    }
}

/// An auditor must not read of a lease that a power failure undoes.
#[test]
fn audit_entries_are_published_when_they_are_durable() {
    let (log, arrived, permit) = gated_log();
    let trail = AuditTrail::default();
    let mut shard = Shard::new(decider(Kernel::new(), Seq(0)));
    shard.set_audited();
    let on_end = Box::new(|why: Ended| panic!("{why:?}"));
    let observer = Box::new(trail.clone());
    let sequencer = Sequencer::start(shard, Box::new(log), observer, u64::MAX, on_end, &executor());
    arrived.recv_timeout(DEADLINE).expect("the open");
    permit.send(()).expect("the log waits");
    let grant = submit(&sequencer, "ada", acquire("k"));
    arrived.recv_timeout(DEADLINE).expect("the grant is being appended");
    let early = trail.0.lock().expect("not poisoned").len();
    permit.send(()).expect("the log waits");
    assert_eq!(early, 0, "published before it is durable");
    let lease = granted(&grant);
    let entries = trail.0.lock().expect("not poisoned").clone();
    let [AuditEntry { identity, action: "acquire", fact: AuditedFact::Change(change), .. }] = &entries[..]
    else {
        panic!("{entries:?}")
    };
    assert_eq!(identity.as_ref().map(kernel::Identity::as_str), Some("ada"));
    assert_eq!(change.event, Event::Granted(lease.lease, lease.token));
    assert_eq!(change.lease.as_ref().map(|view| view.members.len()), Some(1));
}

/// Another writer had taken over the log. The old writer appended nothing, so it did not notice, and answered queries
/// and refused requests from a stale state.
#[test]
fn a_writer_that_lost_its_log_reveals_no_state() {
    let log = Faulty::new(
        MemoryLog::default(),
        Box::new(|call| match call {
            Call::Confirm => Fault::Before(ErrorKind::Taken),
            _ => Fault::None,
        }),
    );
    let (send, failed) = channel();
    let fatal = Box::new(move |why| send.send(error_of(why).kind).expect("the test listens"));
    let sequencer = Sequencer::start(
        Shard::new(decider(Kernel::new(), Seq(0))),
        Box::new(log),
        Box::new(()),
        u64::MAX,
        fatal,
        &executor(),
    );
    granted(&submit(&sequencer, "ada", acquire("k")));
    let refusal = submit(&sequencer, "bob", acquire("k"));
    let reply = reply(&refusal);
    assert!(matches!(reply, Ok(Err(Unavailable::Deposed))), "a refusal may be stale: {reply:?}");
    assert_eq!(failed.recv_timeout(DEADLINE), Ok(ErrorKind::Taken));
    let (send, result) = channel();
    let query =
        sequencer.query(Box::new(move |_| Box::new(move || send.send(()).expect("the test listens"))));
    assert!(query.is_err() || result.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Disconnected));
}

/// The names of all commands in a log.
fn logged(log: &MemoryLog) -> Vec<&'static str> {
    let mut reader = log.reader();
    let batches = (0..log.bounds().next.0).map(|seq| reader.read(Seq(seq)).expect("in the log"));
    let records =
        |batch: store::Batch| decode_batch(&batch.payload, kernel::Shard(0)).expect("valid").records;
    batches.flat_map(records).map(|record| record.command.action.name()).collect()
}

#[test]
fn a_hand_over_decides_what_was_accepted_dismisses_waiters_and_is_the_last_record() {
    let log = MemoryLog::default();
    let sequencer = start(log.clone());
    let lease = granted(&submit(&sequencer, "ada", acquire("k")));
    let waiter = submit_waiting(&sequencer, "bob", acquire("k"), Some(wait(60_000)));
    assert!(sequencer.hand_over(Close { to: Some(0xab) }));
    sequencer.wait_until_ended();
    assert!(matches!(reply(&waiter), Ok(Err(Unavailable::Dismissed(_)))), "a retry keeps its place");
    let late = submit(&sequencer, "ada", Action::Release(held(&lease)));
    assert_eq!(reply(&late), Ok(Err(Unavailable::Moved(Some(0xab)))));
    assert!(sequencer.query(Box::new(|_| Box::new(|| ()))).is_err());
    assert!(!sequencer.hand_over(Close { to: None }), "a hand-over is not taken back");
    let logged = logged(&log);
    assert_eq!(logged.last(), Some(&"close"), "{logged:?}");
    let mut kernel = Kernel::new();
    replay(&mut kernel, &mut *log.reader(), Seq(0), log.bounds().next).expect("the log is valid");
    assert_eq!(kernel.tenure().and_then(|tenure| tenure.closed), Some(Close { to: Some(0xab) }));
    drop(sequencer);
    // The next tenure goes on, with the lease.
    let next = log.bounds().next;
    let decider = decider(kernel, next);
    let on_end = Box::new(|why| panic!("{why:?}"));
    let successor =
        Sequencer::start(Shard::new(decider), Box::new(log), Box::new(()), u64::MAX, on_end, &executor());
    let released = submit(&successor, "ada", Action::Release(held(&lease)));
    assert!(matches!(reply(&released), Ok(Ok(_))));
}

/// An expiry that was due while the last record was on its way was decided behind it, and the process ended by a panic.
#[test]
fn nothing_is_decided_behind_a_hand_over_even_if_its_append_takes_long() {
    let (log, arrived, permit) = gated_log();
    let memory = log.inner.clone();
    let sequencer = start(log);
    arrived.recv_timeout(DEADLINE).expect("the open");
    permit.send(()).expect("the log waits");
    let lease = submit(&sequencer, "ada", Action::Acquire(grant(key("k"), Span(30))));
    arrived.recv_timeout(DEADLINE).expect("the grant");
    permit.send(()).expect("the log waits");
    granted(&lease);
    sequencer.hand_over(Close { to: None });
    arrived.recv_timeout(DEADLINE).expect("the last record");
    // The lease expires meanwhile, and its timer is due.
    eventually("the lease is past its deadline", || sequencer.inspect(|shard| shard.now().0 > 200));
    permit.send(()).expect("the log waits");
    sequencer.wait_until_ended();
    assert_eq!(logged(&memory).last(), Some(&"close"));
}

/// A log whose second append has no known outcome for some tries.
fn undecided_log(memory: &MemoryLog) -> impl LogStore + use<> {
    let mut appends = 0;
    let plan = move |call| {
        appends += usize::from(call == Call::Append);
        if call == Call::Append && (2..5).contains(&appends) {
            Fault::Before(ErrorKind::Undecided)
        } else {
            Fault::None
        }
    };
    Faulty::new(memory.clone(), Box::new(plan))
}

/// The network failed when a server handed its log over. The record was not sent again: the server believed that it had
/// ended its tenure, and no other server could open before the silence.
#[test]
fn the_record_of_a_hand_over_is_repeated_until_its_outcome_is_known() {
    let memory = MemoryLog::default();
    let sequencer = start(undecided_log(&memory));
    eventually("the tenure is open", || memory.bounds().next == Seq(1));
    assert!(sequencer.hand_over(Close { to: None }));
    sequencer.wait_until_ended();
    assert_eq!(logged(&memory).last(), Some(&"close"));
    drop(sequencer);
}

/// The same for a server that stopped: the callers of its last batch got no reply, though the store was back.
#[test]
fn a_close_repeats_an_undecided_append_until_its_callers_have_their_replies() {
    let memory = MemoryLog::default();
    let sequencer = start(undecided_log(&memory));
    eventually("the tenure is open", || memory.bounds().next == Seq(1));
    let grant = submit(&sequencer, "ada", acquire("k"));
    eventually("its outcome is not known", || sequencer.health().is_undecided);
    sequencer.close();
    granted(&grant);
    sequencer.wait_until_ended();
    assert_eq!(logged(&memory).last(), Some(&"acquire"));
    drop(sequencer);
}

/// The append landed, its response was lost, and another server truncated the log past it. Its callers were told that
/// their commands did not happen.
#[test]
fn callers_of_an_append_that_may_be_in_the_log_get_no_reply() {
    let log = Remote(Faulty::new(
        MemoryLog::default(),
        Box::new({
            let mut appends = 0;
            move |call| {
                appends += usize::from(call == Call::Append);
                if call == Call::Append && appends > 1 { Fault::Before(ErrorKind::Gone) } else { Fault::None }
            }
        }),
    ));
    let (send, ended) = channel();
    let on_end = Box::new(move |why| send.send(matches!(why, Ended::Deposed(_))).expect("the test listens"));
    let shard = Shard::new(decider(Kernel::new(), Seq(0)));
    let sequencer = Sequencer::start(shard, Box::new(log), Box::new(()), u64::MAX, on_end, &executor());
    let (send, opened) = channel();
    let query =
        Box::new(move |_: &Shard<ReplyTo>| Box::new(move || send.send(()).expect("the test listens")) as _);
    sequencer.query(query).expect("it runs");
    opened.recv_timeout(DEADLINE).expect("the first append succeeds");
    let lost = submit(&sequencer, "ada", acquire("k"));
    assert_eq!(reply(&lost), Err(RecvTimeoutError::Disconnected), "it may have happened");
    assert_eq!(ended.recv_timeout(DEADLINE), Ok(true), "the process goes on");
}

/// A log on another machine.
struct Remote<L>(L);

impl<L: LogStore> LogStore for Remote<L> {
    fn bounds(&self) -> Bounds {
        self.0.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        self.0.append(seq, lsns, payload)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        self.0.reserve()
    }

    fn capacity(&self) -> LogCapacity {
        self.0.capacity()
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.0.raise_floor(floor)
    }

    fn extents(&self) -> Vec<Extent> {
        self.0.extents()
    }

    fn reader(&self) -> Box<dyn LogReader> {
        self.0.reader()
    }
}

#[test]
fn commands_submitted_during_an_append_form_one_batch() {
    let (log, arrived, permit) = gated_log();
    let reader = log.inner.clone();
    let sequencer = start(log);
    arrived.recv_timeout(DEADLINE).expect("the open");
    let receivers: Vec<_> = (0..100).map(|n| submit(&sequencer, "ada", acquire(&format!("k{n}")))).collect();
    // The first may have been decided alone; the rest is queued by now.
    for _ in 0..100 {
        permit.send(()).expect("the log waits");
    }
    for receiver in &receivers {
        granted(receiver);
    }
    assert!(reader.bounds().next <= Seq(4), "{:?}", reader.bounds());
}

#[test]
fn a_failed_append_is_fatal_and_its_commands_get_no_reply() {
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let now = Arc::clone(&fails);
    let plan = move |call| {
        let fault = call == Call::Append && now.load(std::sync::atomic::Ordering::Relaxed);
        if fault { Fault::After(ErrorKind::Io) } else { Fault::None }
    };
    let log = Faulty::new(MemoryLog::default(), Box::new(plan));
    let (send, failed) = channel();
    let fatal = Box::new(move |why| send.send(error_of(why).kind).expect("the test listens"));
    let sequencer = Sequencer::start(
        Shard::new(decider(Kernel::new(), Seq(0))),
        Box::new(log),
        Box::new(()),
        u64::MAX,
        fatal,
        &executor(),
    );
    granted(&submit(&sequencer, "ada", acquire("before")));
    let waits = submit_waiting(&sequencer, "bob", acquire("before"), Some(wait(60_000)));
    fails.store(true, std::sync::atomic::Ordering::Relaxed);
    let indeterminate = submit(&sequencer, "ada", acquire("k"));
    let end = reply(&indeterminate).expect_err("the append may or may not be durable");
    assert_eq!(end, RecvTimeoutError::Disconnected);
    assert_eq!(failed.recv_timeout(DEADLINE), Ok(ErrorKind::Io));
    // The waiter's reply channel was kept, and its client waited for ever.
    let end = reply(&waits).expect_err("the waiter gets no reply");
    assert_eq!(end, RecvTimeoutError::Disconnected);
    eventually("requests are refused", || {
        matches!(reply(&submit(&sequencer, "ada", acquire("k"))), Ok(Err(Unavailable::Stopped)))
    });
}

#[test]
fn a_full_log_accepts_only_releases_until_space_is_free_again() {
    let full = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_full = Arc::clone(&full);
    let plan = move |call| {
        let full = call == Call::Reserve && is_full.load(std::sync::atomic::Ordering::Relaxed);
        if full { Fault::Before(ErrorKind::NoSpace) } else { Fault::None }
    };
    let sequencer = start(Faulty::new(MemoryLog::default(), Box::new(plan)));
    let lease = granted(&submit(&sequencer, "ada", acquire("k")));
    full.store(true, std::sync::atomic::Ordering::Relaxed);
    let (mut requests, mut refused) = (0, None);
    eventually("the full log is noticed", || {
        requests += 1;
        let request = submit(&sequencer, "ada", acquire(&format!("more-{requests}")));
        refused = reply(&request).expect("a reply").err();
        refused.is_some()
    });
    assert_eq!(refused, Some(Unavailable::NoSpace));
    let released = submit(&sequencer, "ada", Action::Release(held(&lease)));
    assert!(matches!(reply(&released), Ok(Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))))));
    full.store(false, std::sync::atomic::Ordering::Relaxed);
    eventually("requests are accepted again", || {
        reply(&submit(&sequencer, "ada", acquire("again"))).expect("a reply").is_ok()
    });
}

#[test]
fn a_full_queue_refuses_at_once() {
    let (log, arrived, permit) = gated_log();
    let sequencer = start(log);
    arrived.recv_timeout(DEADLINE).expect("the open is being appended");
    let receivers: Vec<_> =
        (0..3 * QUEUE_MAX).map(|n| submit(&sequencer, "ada", acquire(&format!("k{n}")))).collect();
    let busy =
        receivers.iter().filter(|receiver| matches!(receiver.try_recv(), Ok(Err(Unavailable::Busy)))).count();
    assert!(busy >= QUEUE_MAX / 2, "{busy}");
    // All accepted requests still get their replies.
    for _ in 0..100 {
        permit.send(()).expect("the log waits");
    }
    let accepted = receivers.len() - busy;
    assert_eq!(receivers.iter().filter(|receiver| matches!(reply(receiver), Ok(Ok(_)))).count(), accepted);
}

/// A panic in the middle of a batch, on a caller's thread, left a state that was in no log, and the next caller
/// continued from it.
#[test]
fn a_panic_in_the_middle_of_a_batch_is_fatal() {
    for instant in [false, true] {
        let log: Box<dyn LogStore> = if instant {
            Box::new(MemoryLog::default())
        } else {
            Box::new(Faulty::new(MemoryLog::default(), Box::new(|_| Fault::None)))
        };
        let (send, failed) = channel();
        let fatal = Box::new(move |why| send.send(error_of(why).what).expect("the test listens"));
        let shard = Shard::new(decider(Kernel::new(), Seq(0)));
        let sequencer = Sequencer::start(shard, log, Box::new(()), u64::MAX, fatal, &executor());
        granted(&submit(&sequencer, "ada", acquire("k")));
        panic_in_a_batch(&sequencer);
        let why = failed.recv_timeout(DEADLINE).expect("it is reported");
        assert!(why.contains("panic"), "instant={instant}: {why}");
        let refused = reply(&submit(&sequencer, "bob", acquire("m")));
        assert!(matches!(refused, Ok(Err(Unavailable::Stopped))), "{refused:?}");
    }
}

/// A batch panicked while the one before it was being appended. That append succeeded and its replies were sent,
/// after the failure had been reported to the owner as final.
#[test]
fn no_reply_is_sent_after_a_panic_in_a_batch() {
    let (log, arrived, permit) = gated_log();
    let (send, failed) = channel();
    let fatal = Box::new(move |why| send.send(error_of(why).what).expect("the test listens"));
    let shard = Shard::new(decider(Kernel::new(), Seq(0)));
    let sequencer = Sequencer::start(shard, Box::new(log), Box::new(()), u64::MAX, fatal, &executor());
    arrived.recv_timeout(DEADLINE).expect("the open");
    permit.send(()).expect("the log waits");
    let grant = submit(&sequencer, "ada", acquire("k"));
    arrived.recv_timeout(DEADLINE).expect("the grant is being appended");
    panic_in_a_batch(&sequencer);
    let why = failed.recv_timeout(DEADLINE);
    permit.send(()).expect("the log waits");
    assert!(why.expect("it is reported").contains("panic"));
    assert_eq!(reply(&grant).expect_err("no reply is sent"), RecvTimeoutError::Disconnected);
}

/// On this thread or on the deciding thread.
fn panic_in_a_batch(sequencer: &Sequencer) {
    let on_decided: engine::OnDecided = Box::new(|_, _, _| panic!("halfway"));
    let command = Command::by(&identity("ada"), acquire("l"));
    let submission = Submission {
        on_decided: Some(on_decided),
        ..Submission::new(command, Box::new(|_, delivery: Delivery| delivery.confirm()) as ReplyTo)
    };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sequencer.submit(submission)));
}

/// The deciding thread raised the floor only when the log was idle. On a busy server it never was: the log grew
/// without bound despite its snapshots.
#[test]
fn the_floor_of_a_log_that_is_never_idle_is_raised() {
    let (log, arrived, permit) = gated_log();
    let reader = log.inner.clone();
    let sequencer = start(log);
    arrived.recv_timeout(DEADLINE).expect("the open is being appended");
    let grant = submit(&sequencer, "ada", acquire("k"));
    sequencer.raise_floor(Seq(1));
    permit.send(()).expect("the log waits");
    arrived.recv_timeout(DEADLINE).expect("the grant is being appended");
    let floor = reader.bounds().floor;
    permit.send(()).expect("the log waits");
    granted(&grant);
    assert_eq!(floor, Seq(1));
}

/// A server was restarted on a full disk. It did not check for free space before its first commands, decided them,
/// could not append them, and ended; and so at each further restart.
#[test]
fn a_full_log_is_detected_before_the_first_command() {
    let plan = |call| if call == Call::Reserve { Fault::Before(ErrorKind::NoSpace) } else { Fault::None };
    for _ in 0..50 {
        let sequencer = start(Faulty::new(MemoryLog::default(), Box::new(plan)));
        let refused = reply(&submit(&sequencer, "ada", acquire("k")));
        assert!(matches!(refused, Ok(Err(Unavailable::NoSpace))), "{refused:?}");
    }
}

/// The first command was decided on its caller's thread before the deciding thread had started: that thread then had
/// no log to append the tenure's open record to.
#[test]
fn the_first_command_may_precede_the_start_of_the_threads() {
    for _ in 0..200 {
        let dir = tempfile::tempdir().expect("a directory");
        let options = LogOptions { shard: 0, store_id: 1, segment_bytes: 1 << 20 };
        let log = DiskLog::open(RealFs, &dir.path().join("log"), options).expect("a sound log").0;
        granted(&submit(&start(log), "ada", acquire("k")));
    }
}

/// In memory, a reply is sent on the submitting thread, under the lock that keeps replies in order. A callback that
/// submitted the next command deadlocked.
#[test]
fn a_reply_callback_may_submit_the_next_command() {
    let sequencer = Arc::new(start(MemoryLog::default()));
    let (send, receive) = channel();
    let next = Arc::clone(&sequencer);
    let to: ReplyTo = Box::new(move |reply, delivery| {
        let Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) = reply else { return };
        delivery.confirm();
        let release = Command::by(&identity("ada"), Action::Release(held(&granted)));
        next.submit(Submission::new(
            release,
            Box::new(move |reply, delivery: Delivery| delivery.settle(send.send(reply).is_ok())),
        ));
    });
    sequencer.submit(Submission::new(Command::by(&identity("ada"), acquire("k")), to));
    let released = reply(&receive).expect("a reply").expect("accepted");
    assert!(matches!(released, Decision::Outcome(Outcome::Applied(Response::Released, _))), "{released:?}");
}

#[derive(Clone, Default)]
struct MeasureLog(Arc<Mutex<Vec<Measure>>>);

impl BatchObserver for MeasureLog {
    fn audited(&mut self, _: Vec<AuditEntry>) {}

    fn durable(&mut self, _: &[(Lsn, Vec<Event>)]) {}

    fn marked(&mut self, _: Mark) {}

    fn measured(&mut self, measure: Measure) {
        self.0.lock().expect("not poisoned").push(measure);
    }
}

#[test]
fn appends_and_hand_offs_are_measured() {
    let measured = MeasureLog::default();
    let sequencer = start_observed(MemoryLog::default(), Box::new(measured.clone()));
    let first = granted(&submit(&sequencer, "ada", acquire("k")));
    let second = submit_waiting(&sequencer, "bob", acquire("k"), Some(wait(60_000)));
    reply(&submit(&sequencer, "ada", Action::Release(held(&first)))).expect("a reply").expect("accepted");
    granted(&second);
    drop(sequencer);
    let (mut bytes, mut next, mut handed_off) = (0, Seq(0), 0);
    for measure in measured.0.lock().expect("not poisoned").drain(..) {
        match measure {
            Measure::Append { bytes: more, bounds, .. } => (bytes, next) = (bytes + more, bounds.next),
            Measure::HandOff { waiters, .. } => handed_off += waiters,
        }
    }
    // The open record of the tenure and the first grant may share a batch.
    assert!(
        bytes > 0 && (Seq(2)..=Seq(3)).contains(&next) && handed_off == 1,
        "{bytes} {next:?} {handed_off}"
    );
}

#[test]
fn a_lease_is_handed_off_to_the_next_waiter_and_waiters_time_out() {
    let sequencer = start(MemoryLog::default());
    let first = granted(&submit(&sequencer, "ada", acquire("k")));
    let second = submit_waiting(&sequencer, "bob", acquire("k"), Some(wait(60_000)));
    let timed_out = submit_waiting(&sequencer, "eve", acquire("k"), Some(wait(50)));
    assert!(matches!(reply(&timed_out), Ok(Ok(Decision::Blocked(_)))));
    assert!(second.try_recv().is_err(), "its timeout is 60 s");
    reply(&submit(&sequencer, "ada", Action::Release(held(&first)))).expect("a reply").expect("accepted");
    let second = granted(&second);
    assert!(second.token > first.token);

    // An expiring lease is handed off too, without any request.
    let short = Action::Acquire(grant(key("short"), Span(50)));
    granted(&submit(&sequencer, "ada", short));
    granted(&submit_waiting(&sequencer, "bob", acquire("short"), Some(wait(60_000))));
}

/// The reply was in its channel when the receiver was dropped: no response was sent, and a client that did not know it
/// held the key until the TTL ended.
#[test]
fn a_grant_whose_reply_is_dropped_unread_is_undone_unless_a_replay_is_on_its_way() {
    let sequencer = start(MemoryLog::default());
    let request = IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [1; 16] };
    let request_lease = || {
        let (send, receive) = channel();
        let command = Command::by(&identity("ada"), acquire("k")).with_request(request);
        let to: ReplyTo = Box::new(move |reply, delivery| drop(send.send((reply, delivery))));
        sequencer.submit(Submission::new(command, to));
        receive.recv_timeout(DEADLINE).expect("a reply")
    };
    let leases = || {
        let (send, receive) = channel();
        let query = move |shard: &Shard<ReplyTo>| {
            let leases = shard.kernel().counts().leases;
            Box::new(move || send.send(leases).expect("the test listens")) as Box<dyn FnOnce() + Send>
        };
        sequencer.query(Box::new(query)).expect("running");
        receive.recv_timeout(DEADLINE).expect("a count")
    };
    let (first, replay) = (request_lease(), request_lease());
    drop(first);
    assert_eq!(leases(), 1, "the replay may still be delivered");
    drop(replay);
    // The report of the failure comes before the query in the inbox.
    assert_eq!(leases(), 0, "no response will carry it");
    let (first, replay) = (request_lease(), request_lease());
    replay.1.confirm();
    drop(first);
    assert_eq!(leases(), 1);
}
