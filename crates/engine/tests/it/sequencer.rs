//! The threads of a shard: what is answered is durable, what fails is fatal, what is full says so.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::internals::checkpoint::Mark;
use engine::internals::decider::Decider;
use engine::internals::recovery::replay;
use engine::internals::sequencer::{BatchObserver, QUEUE_MAX, Sequencer};
use engine::internals::shard::Shard;
use engine::{
    Decision, Delivery, MachineClock, Measure, Reply, ReplyTo, Submission, TenureConfig, Unavailable, Wait,
};
use kernel::{
    Action, Command, Event, Granted, IdempotencyKey, Kernel, Limits, Lsn, Outcome, RequestKey, Response,
    Span, Store,
};
use sim::fixture::{grant, held, identity, key};
use store::disk::{DiskLog, LogOptions};
use store::faulty::{Call, Fault, Faulty};
use store::fs::RealFs;
use store::memory::MemoryLog;
use store::{Bounds, ErrorKind, Extent, LogCapacity, LogReader, LogStore, LsnRange, Seq, StoreError};

type Answered = Receiver<Reply>;

const OPENING: TenureConfig = TenureConfig {
    store: Store { shard: kernel::Shard(0), shards: 1, hash_seed: 1 },
    writer: 1,
    limits: Limits {
        ttl_max: Span(300_000),
        hold_max: Span(300_000),
        leases_max: 100_000,
        leases_per_identity_max: 100_000,
        namespaces_max: 10,
        nodes_max: 100_000,
        documents_max: 1000,
        agents_max: 100,
        agents_per_identity_max: 100,
        policies_max: 100,
        history_max: 1000,
        history_members_max: 1000,
        history_window: Span(60_000),
        requests_max: 1000,
        requests_per_identity_max: 1000,
        request_window: Span(60_000),
        step_max: 256,
    },
};

fn decider(kernel: Kernel, next: Seq) -> Decider {
    let clock = MachineClock::new().expect("Linux");
    Decider::open(kernel, next, Box::new(clock), &OPENING).expect("a clock that is right")
}

fn start(log: impl LogStore + 'static) -> Sequencer {
    start_following(log, Box::new(()))
}

fn start_following(log: impl LogStore + 'static, follower: Box<dyn BatchObserver>) -> Sequencer {
    let next = log.bounds().next;
    Sequencer::start(
        Shard::new(decider(Kernel::new(), next)),
        Box::new(log),
        follower,
        u64::MAX,
        Box::new(|error| panic!("{error}")),
    )
}

fn submit(sequencer: &Sequencer, who: &str, action: Action) -> Answered {
    submit_waiting(sequencer, who, action, None)
}

fn submit_waiting(sequencer: &Sequencer, who: &str, action: Action, wait: Option<Wait>) -> Answered {
    let (send, receive) = channel();
    let command = Command::by(&identity(who), action);
    // Nobody may be listening any more.
    let to = Box::new(move |reply, delivery: Delivery| delivery.settle(send.send(reply).is_ok()));
    sequencer.submit(Submission { command, correlation: 0, document: None, wait, on_decided: None, to });
    receive
}

fn wait(ms: u64) -> Wait {
    Wait { most: Span(ms), gone: Arc::default() }
}

fn acquire(name: &str) -> Action {
    Action::Acquire(grant(key(name), Span(60_000)))
}

fn granted(answered: &Answered) -> Granted {
    match answered.recv().expect("an answer") {
        Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))) => granted,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn whatever_many_callers_were_told_is_in_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { shard: 0, store_id: 1, segment_bytes: 8 << 20 };
    let open = || DiskLog::open(RealFs, &dir.path().join("log"), options).expect("a sound log").0;
    tell_many(start(open()));
    has_what_they_were_told(&open());
}

/// Each does the turns of all.
#[test]
fn whatever_many_callers_were_told_is_in_memory() {
    let log = MemoryLog::default();
    tell_many(start(log.clone()));
    has_what_they_were_told(&log);
}

fn tell_many(sequencer: Sequencer) {
    let sequencer = Arc::new(sequencer);
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let sequencer = Arc::clone(&sequencer);
            std::thread::spawn(move || {
                let who = format!("caller-{caller}");
                for n in 0..50 {
                    let lease = granted(&submit(&sequencer, &who, acquire(&format!("{who}-{n}"))));
                    if n % 2 == 0 {
                        let released = submit(&sequencer, &who, Action::Release(held(&lease)));
                        assert!(matches!(
                            released.recv(),
                            Ok(Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))))
                        ));
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.join().expect("every caller was answered");
    }
}

fn has_what_they_were_told(log: &dyn LogStore) {
    let mut kernel = Kernel::new();
    replay(&mut kernel, &mut *log.reader(), Seq(0), log.bounds().next).expect("what was written replays");
    assert_eq!(kernel.counts().leases, 8 * 25);
    kernel::invariants::check(&kernel).expect("all invariants hold");
}

/// A log whose appends wait until the test lets them go.
struct Gate {
    inner: MemoryLog,
    arrived: SyncSender<()>,
    open: Mutex<Receiver<()>>,
}

impl LogStore for Gate {
    fn bounds(&self) -> Bounds {
        self.inner.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        self.arrived.send(()).expect("the test listens");
        self.open.lock().expect("one at a time").recv().expect("the test lets it go");
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

fn gate() -> (Gate, Receiver<()>, SyncSender<()>) {
    let (arrived, has_arrived) = sync_channel(100);
    let (let_go, open) = sync_channel(100);
    (Gate { inner: MemoryLog::default(), arrived, open: Mutex::new(open) }, has_arrived, let_go)
}

/// "Held by ada", said while ada's grant was not on disk: the power failed, and it had never been.
#[test]
fn a_refusal_waits_for_the_state_that_it_reveals() {
    // Alone, and several that are one batch.
    for commands in [1, 2] {
        let (log, arrived, let_go) = gate();
        let sequencer = start(log);
        arrived.recv().expect("the open");
        let ask = |n| submit(&sequencer, "ada", acquire(&format!("k{n}")));
        let grants: Vec<Answered> = (0..commands).map(ask).collect();
        let_go.send(()).expect("open");
        arrived.recv().expect("the grants are being appended");
        let refusal = submit(&sequencer, "bob", acquire("k0"));
        let early =
            [refusal.recv_timeout(Duration::from_millis(200)), grants[0].recv_timeout(Duration::ZERO)];
        // Before anything can fail: a sequencer ends when its appends have.
        let_go.send(()).expect("open");
        assert!(early.iter().all(Result::is_err), "told before it is durable: {early:?}");
        for grant in &grants {
            granted(grant);
        }
        assert!(matches!(refusal.recv(), Ok(Ok(Decision::Blocked(_)))));
    }
}

/// Keeps what it is told.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Event>>>);

impl BatchObserver for Heard {
    fn landed(&mut self, events: &[(Lsn, Vec<Event>)]) {
        let mut heard = self.0.lock().expect("one at a time");
        heard.extend(events.iter().flat_map(|(_, events)| events.clone()));
    }

    fn marked(&mut self, _: Mark) {}
}

/// Whoever follows deletes the bytes of a document that was replaced. It was told while the commit was on its way
/// to the disk; the power failed, the old document was the current one again, and its bytes were gone.
#[test]
fn what_has_happened_is_told_when_it_is_durable() {
    let (log, arrived, let_go) = gate();
    let heard = Heard::default();
    let sequencer = start_following(log, Box::new(heard.clone()));
    arrived.recv().expect("the open");
    let_go.send(()).expect("open");
    let grant = submit(&sequencer, "ada", acquire("k"));
    arrived.recv().expect("the grant is being appended");
    let early = heard.0.lock().expect("one at a time").clone();
    let_go.send(()).expect("open");
    assert_eq!(early, [], "told before it is durable");
    let lease = granted(&grant);
    assert_eq!(*heard.0.lock().expect("one at a time"), [Event::Granted(lease.lease, lease.token)]);
}

/// Another had taken the log over. The old writer appended nothing any more, and so did not notice; to whoever only
/// asked, or was refused, it told what had long been otherwise.
#[test]
fn nothing_is_told_of_a_state_that_may_be_anothers() {
    let log = Faulty::new(
        MemoryLog::default(),
        Box::new(|call| match call {
            Call::Confirm => Fault::Before(ErrorKind::Taken),
            _ => Fault::None,
        }),
    );
    let (send, failed) = channel();
    let fatal = Box::new(move |error: StoreError| send.send(error.kind).expect("the test listens"));
    let sequencer = Sequencer::start(
        Shard::new(decider(Kernel::new(), Seq(0))),
        Box::new(log),
        Box::new(()),
        u64::MAX,
        fatal,
    );
    granted(&submit(&sequencer, "ada", acquire("k")));
    let refusal = submit(&sequencer, "bob", acquire("k"));
    assert!(refusal.recv().is_err(), "nobody knows whether it is so");
    assert_eq!(failed.recv(), Ok(ErrorKind::Taken));
    let (send, told) = channel();
    let look = sequencer.query(Box::new(move |_| Box::new(move || send.send(()).expect("the test listens"))));
    assert!(look.is_err() || told.recv().is_err());
}

#[test]
fn what_comes_in_during_an_append_is_one_batch_together() {
    let (log, arrived, let_go) = gate();
    let reader = log.inner.clone();
    let sequencer = start(log);
    arrived.recv().expect("the open");
    let answers: Vec<_> = (0..100).map(|n| submit(&sequencer, "ada", acquire(&format!("k{n}")))).collect();
    // The first of them may have been decided alone; the rest is waiting by now.
    for _ in 0..100 {
        let_go.send(()).expect("open");
    }
    for answer in &answers {
        granted(answer);
    }
    assert!(reader.bounds().next <= Seq(4), "{:?}", reader.bounds());
}

#[test]
fn a_failed_append_is_fatal_and_answers_nobody() {
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let now = Arc::clone(&fails);
    let plan = move |call| {
        let fault = call == Call::Append && now.load(std::sync::atomic::Ordering::Relaxed);
        if fault { Fault::After(ErrorKind::Io) } else { Fault::None }
    };
    let log = Faulty::new(MemoryLog::default(), Box::new(plan));
    let (send, failed) = channel();
    let fatal = Box::new(move |error: StoreError| send.send(error.kind).expect("the test listens"));
    let sequencer = Sequencer::start(
        Shard::new(decider(Kernel::new(), Seq(0))),
        Box::new(log),
        Box::new(()),
        u64::MAX,
        fatal,
    );
    granted(&submit(&sequencer, "ada", acquire("before")));
    let waits = submit_waiting(&sequencer, "bob", acquire("before"), Some(wait(60_000)));
    fails.store(true, std::sync::atomic::Ordering::Relaxed);
    let answer = submit(&sequencer, "ada", acquire("k"));
    assert!(answer.recv().is_err(), "it may have happened: nobody is told that it did, or did not");
    assert_eq!(failed.recv(), Ok(ErrorKind::Io));
    // It was kept, and whoever waited for it waited for ever.
    let end = waits.recv_timeout(Duration::from_secs(60));
    assert_eq!(end.expect_err("nobody will answer any more"), RecvTimeoutError::Disconnected);
    // From here on there is nobody to decide.
    while !matches!(submit(&sequencer, "ada", acquire("k")).recv(), Ok(Err(Unavailable::Stopped))) {
        std::thread::yield_now();
    }
}

#[test]
fn without_room_nothing_new_is_taken_and_what_gives_back_is_until_there_is_room_again() {
    let full = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_full = Arc::clone(&full);
    let plan = move |call| {
        let full = call == Call::Reserve && is_full.load(std::sync::atomic::Ordering::Relaxed);
        if full { Fault::Before(ErrorKind::NoSpace) } else { Fault::None }
    };
    let sequencer = start(Faulty::new(MemoryLog::default(), Box::new(plan)));
    let lease = granted(&submit(&sequencer, "ada", acquire("k")));
    full.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut tried = 0;
    let refused = loop {
        match submit(&sequencer, "ada", acquire(&format!("more-{tried}"))).recv().expect("an answer") {
            Ok(_) => tried += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, Unavailable::NoSpace);
    let released = submit(&sequencer, "ada", Action::Release(held(&lease)));
    assert!(matches!(released.recv(), Ok(Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))))));
    full.store(false, std::sync::atomic::Ordering::Relaxed);
    while submit(&sequencer, "ada", acquire("again")).recv().expect("an answer").is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn a_full_queue_says_so_at_once() {
    let (log, arrived, let_go) = gate();
    let sequencer = start(log);
    arrived.recv().expect("the open, which waits");
    let answers: Vec<_> =
        (0..3 * QUEUE_MAX).map(|n| submit(&sequencer, "ada", acquire(&format!("k{n}")))).collect();
    let busy =
        answers.iter().filter(|answer| matches!(answer.try_recv(), Ok(Err(Unavailable::Busy)))).count();
    assert!(busy >= QUEUE_MAX / 2, "{busy}");
    // All that was taken is still answered.
    for _ in 0..100 {
        let_go.send(()).expect("open");
    }
    let taken = answers.len() - busy;
    assert_eq!(answers.iter().filter(|answer| matches!(answer.recv(), Ok(Ok(_)))).count(), taken);
}

/// A panic in the middle of a turn, on the thread of a caller, left a state that was in no log, and the next caller went on
/// with it.
#[test]
fn a_turn_that_is_left_halfway_is_fatal() {
    for instant in [false, true] {
        let log: Box<dyn LogStore> = if instant {
            Box::new(MemoryLog::default())
        } else {
            Box::new(Faulty::new(MemoryLog::default(), Box::new(|_| Fault::None)))
        };
        let (send, failed) = channel();
        let fatal = Box::new(move |error: StoreError| send.send(error.what).expect("the test listens"));
        let shard = Shard::new(decider(Kernel::new(), Seq(0)));
        let sequencer = Sequencer::start(shard, log, Box::new(()), u64::MAX, fatal);
        granted(&submit(&sequencer, "ada", acquire("k")));
        leave_halfway(&sequencer);
        let why = failed.recv_timeout(Duration::from_secs(60)).expect("it is told");
        assert!(why.contains("halfway"), "instant={instant}: {why}");
        let refused = submit(&sequencer, "bob", acquire("m")).recv();
        assert!(matches!(refused, Ok(Err(Unavailable::Stopped))), "{refused:?}");
    }
}

/// A turn was left halfway while the one before it was being appended. That append went well, and its answers were given: by
/// then the owner had been told that nothing would be said any more.
#[test]
fn nothing_is_said_after_a_turn_that_was_left_halfway() {
    let (log, arrived, let_go) = gate();
    let (send, failed) = channel();
    let fatal = Box::new(move |error: StoreError| send.send(error.what).expect("the test listens"));
    let shard = Shard::new(decider(Kernel::new(), Seq(0)));
    let sequencer = Sequencer::start(shard, Box::new(log), Box::new(()), u64::MAX, fatal);
    arrived.recv().expect("the open");
    let_go.send(()).expect("open");
    let grant = submit(&sequencer, "ada", acquire("k"));
    arrived.recv().expect("the grant is being appended");
    leave_halfway(&sequencer);
    let why = failed.recv_timeout(Duration::from_secs(60));
    let_go.send(()).expect("open");
    assert!(why.expect("it is told").contains("halfway"));
    let end = grant.recv_timeout(Duration::from_secs(60));
    assert_eq!(end.expect_err("nothing is said"), RecvTimeoutError::Disconnected);
}

/// Here, or on the deciding thread.
fn leave_halfway(sequencer: &Sequencer) {
    let on_decided: engine::OnDecided = Box::new(|_, _, _| panic!("halfway"));
    let command = Command::by(&identity("ada"), acquire("l"));
    let submission = Submission {
        on_decided: Some(on_decided),
        ..Submission::new(command, Box::new(|_, delivery: Delivery| delivery.confirm()) as ReplyTo)
    };
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sequencer.submit(submission)));
}

/// The floor was raised by the deciding thread, when the log was at hand. As long as there was always more to append it never
/// was: the log of a busy server grew without end, for all its snapshots.
#[test]
fn a_log_that_is_never_idle_gets_its_floor_raised() {
    let (log, arrived, let_go) = gate();
    let reader = log.inner.clone();
    let sequencer = start(log);
    arrived.recv().expect("the open is being appended");
    let grant = submit(&sequencer, "ada", acquire("k"));
    sequencer.raise_floor(Seq(1));
    let_go.send(()).expect("open");
    arrived.recv().expect("the grant is being appended");
    let floor = reader.bounds().floor;
    let_go.send(()).expect("open");
    granted(&grant);
    assert_eq!(floor, Seq(1));
}

/// A server was started again on a disk that had become full meanwhile. It had not looked for room before its first commands,
/// decided them, could not append them, and ended; and so it did when it was started once more.
#[test]
fn a_log_without_room_is_found_out_before_the_first_command() {
    let plan = |call| if call == Call::Reserve { Fault::Before(ErrorKind::NoSpace) } else { Fault::None };
    for _ in 0..50 {
        let sequencer = start(Faulty::new(MemoryLog::default(), Box::new(plan)));
        let refused = submit(&sequencer, "ada", acquire("k")).recv();
        assert!(matches!(refused, Ok(Err(Unavailable::NoSpace))), "{refused:?}");
    }
}

/// The first command was decided by its caller before the deciding thread had begun: that one wanted to append the record that
/// opens the tenure, and found no log.
#[test]
fn the_first_command_may_come_before_the_threads_have_begun() {
    for _ in 0..200 {
        let dir = tempfile::tempdir().expect("a directory");
        let options = LogOptions { shard: 0, store_id: 1, segment_bytes: 1 << 20 };
        let log = DiskLog::open(RealFs, &dir.path().join("log"), options).expect("a sound log").0;
        granted(&submit(&start(log), "ada", acquire("k")));
    }
}

/// In memory a reply is given on the thread that handed its command in, under the lock that keeps replies in order. One that
/// handed in the next command from there would have waited for itself.
#[test]
fn a_reply_may_hand_in_the_next_command() {
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
    let released = receive.recv().expect("an answer").expect("taken");
    assert!(matches!(released, Decision::Outcome(Outcome::Applied(Response::Released, _))), "{released:?}");
}

#[derive(Clone, Default)]
struct Measured(Arc<Mutex<Vec<Measure>>>);

impl BatchObserver for Measured {
    fn landed(&mut self, _: &[(Lsn, Vec<Event>)]) {}

    fn marked(&mut self, _: Mark) {}

    fn measured(&mut self, measure: Measure) {
        self.0.lock().expect("one at a time").push(measure);
    }
}

#[test]
fn appends_and_hand_offs_are_measured() {
    let measured = Measured::default();
    let sequencer = start_following(MemoryLog::default(), Box::new(measured.clone()));
    let first = granted(&submit(&sequencer, "ada", acquire("k")));
    let second = submit_waiting(&sequencer, "bob", acquire("k"), Some(wait(60_000)));
    submit(&sequencer, "ada", Action::Release(held(&first))).recv().expect("an answer").expect("taken");
    granted(&second);
    drop(sequencer);
    let (mut bytes, mut next, mut handed) = (0, Seq(0), 0);
    for measure in measured.0.lock().expect("one at a time").drain(..) {
        match measure {
            Measure::Append { bytes: more, bounds, .. } => (bytes, next) = (bytes + more, bounds.next),
            Measure::HandOff { waiters, .. } => handed += waiters,
        }
    }
    // What opens the tenure and the first grant may go together.
    assert!(bytes > 0 && (Seq(2)..=Seq(3)).contains(&next) && handed == 1, "{bytes} {next:?} {handed}");
}

#[test]
fn a_lease_is_handed_to_the_next_who_waits_and_the_last_gives_up_in_time() {
    let sequencer = start(MemoryLog::default());
    let first = granted(&submit(&sequencer, "ada", acquire("k")));
    let second = submit_waiting(&sequencer, "bob", acquire("k"), Some(wait(60_000)));
    let tired = submit_waiting(&sequencer, "eve", acquire("k"), Some(wait(50)));
    assert!(matches!(tired.recv(), Ok(Ok(Decision::Blocked(_)))), "it has waited long enough");
    assert!(second.try_recv().is_err(), "it has not");
    submit(&sequencer, "ada", Action::Release(held(&first))).recv().expect("an answer").expect("taken");
    let second = granted(&second);
    assert!(second.token > first.token);

    // A lease that runs out is handed on too, though nobody asks for anything.
    let short = Action::Acquire(grant(key("short"), Span(50)));
    granted(&submit(&sequencer, "ada", short));
    granted(&submit_waiting(&sequencer, "bob", acquire("short"), Some(wait(60_000))));
}

/// The reply was in its channel when the receiving end was dropped: no response was ever made, and the key was held by
/// a client that did not know, until the TTL.
#[test]
fn a_grant_whose_reply_is_dropped_unread_is_undone_unless_a_replay_is_on_its_way() {
    let sequencer = start(MemoryLog::default());
    let request = IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [1; 16] };
    let ask = || {
        let (send, receive) = channel();
        let command = Command::by(&identity("ada"), acquire("k")).with_request(request);
        let to: ReplyTo = Box::new(move |reply, delivery| drop(send.send((reply, delivery))));
        sequencer.submit(Submission::new(command, to));
        receive.recv().expect("a reply")
    };
    let leases = || {
        let (send, receive) = channel();
        let look = move |shard: &Shard<ReplyTo>| {
            let leases = shard.kernel().counts().leases;
            Box::new(move || send.send(leases).expect("the test listens")) as Box<dyn FnOnce() + Send>
        };
        sequencer.query(Box::new(look)).expect("it runs");
        receive.recv().expect("a count")
    };
    let (first, replay) = (ask(), ask());
    drop(first);
    assert_eq!(leases(), 1, "the replay may still be delivered");
    drop(replay);
    // The report of the failure comes before the query in the inbox.
    assert_eq!(leases(), 0, "no response carries it any more");
    let (first, replay) = (ask(), ask());
    replay.1.confirm();
    drop(first);
    assert_eq!(leases(), 1);
}
