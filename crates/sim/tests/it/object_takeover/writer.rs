//! A writer that opens the log, uses it at random and ends, several times.

use std::sync::Arc;

use sim::objects::SimObjects;
use sim::rng::Rng;
use store::object::{ObjectLog, ObjectOptions, RetryPolicy, WriterId, WriterRole};
use store::{Batch, ErrorKind, LogStore, LsnRange, Seq, StoreError};

use super::history::{OPTIONS, Shared};
use super::scheduler::{ExitGuard, ScheduledObjects, Scheduler};

/// Events that must occur in the runs.
pub(crate) const COUNTED: [&str; 14] = [
    "opened",
    "acknowledged",
    "taken over",
    "lost the race",
    "caught up",
    "too late to catch up",
    "deposed",
    "stood down",
    "outcome unknown",
    "outcome known later",
    "floor raised",
    "maintained",
    "confirmed",
    "read",
];

const SESSIONS: u64 = 5;

pub(crate) struct WriterThread {
    name: usize,
    rng: Rng,
    objects: SimObjects,
    connection: ScheduledObjects,
    history: Shared,
    _exit_guard: ExitGuard,
}

impl WriterThread {
    pub(crate) fn new(
        name: usize,
        seed: u64,
        objects: &SimObjects,
        scheduler: &Scheduler,
        history: &Shared,
    ) -> WriterThread {
        let connection = ScheduledObjects { scheduler: scheduler.clone(), name, handle: objects.handle() };
        let (objects, history) = (objects.clone(), history.clone());
        WriterThread {
            name,
            rng: Rng::new(seed),
            objects,
            connection,
            history,
            _exit_guard: ExitGuard(scheduler.clone(), name),
        }
    }

    pub(crate) fn run(mut self) {
        for session in 0..SESSIONS {
            self.connection.scheduler.pass(self.name);
            let writer = WriterId(u128::from(session + 1) << 64 | self.name as u128);
            let retries = RetryPolicy::without_pause(1 + u32::from(self.rng.small(4)));
            let options = ObjectOptions { writer, ..OPTIONS };
            match ObjectLog::open(Arc::new(self.connection.clone()), options, retries) {
                Ok(log) => {
                    self.count("opened");
                    LogSession { thread: &mut self, log, writer }.run();
                }
                Err(error) => assert_eq!(error.kind, ErrorKind::Io, "{error}"),
            }
        }
    }

    fn count(&self, what: &'static str) {
        self.history.lock().count(what);
    }
}

/// One session with the log, from opening to end.
struct LogSession<'a> {
    thread: &'a mut WriterThread,
    log: ObjectLog,
    writer: WriterId,
}

impl LogSession<'_> {
    fn run(mut self) {
        for _ in 0..self.thread.rng.below(40) {
            match self.thread.rng.below(12) {
                0 => self.raise_floor(),
                1 if self.thread.rng.one_in(2) => self.maintain(),
                1 => self.confirm(),
                2 | 3 => self.read(),
                _ => self.append(),
            }
            if self.log.role() == WriterRole::Behind && !self.catch_up() {
                return;
            }
            // A deposed writer continues for a while: none of its appends may succeed.
            if self.log.role() == WriterRole::Deposed && self.thread.rng.one_in(3) {
                return;
            }
        }
    }

    fn payload(&mut self) -> Vec<u8> {
        if self.thread.rng.one_in(3) {
            return b"the same for all".to_vec();
        }
        self.thread.rng.number().to_le_bytes()[..self.thread.rng.small(9).into()].to_vec()
    }

    /// Appends, and records the acknowledgement, or that the batch is not in the log.
    fn offer(&mut self, seq: Seq, payload: &[u8]) -> Result<(), StoreError> {
        let lsns = LsnRange::new(seq.0 * 10, seq.0 * 10 + 9);
        let role = self.log.role();
        let appended = self.log.append(seq, lsns, payload);
        let batch = Batch { seq, lsns, payload: payload.to_vec() };
        let mut history = self.thread.history.lock();
        match &appended {
            Ok(()) => {
                history.count(if role == WriterRole::Reader { "taken over" } else { "acknowledged" });
                history.acknowledged(self.writer, batch);
            }
            Err(error) if error.kind == ErrorKind::Taken && role == WriterRole::Owner => {
                history.refused(self.writer, batch);
            }
            Err(_) => {}
        }
        appended
    }

    fn append(&mut self) {
        let (seq, payload) = (self.log.bounds().next, self.payload());
        match self.offer(seq, &payload) {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::Undecided => self.resolve_outcome(seq, &payload),
            Err(error) => self.count_lost(&error),
        }
    }

    /// Retries an append of unknown outcome, while other writers run. A different batch must be refused. May give up.
    fn resolve_outcome(&mut self, seq: Seq, payload: &[u8]) {
        self.thread.count("outcome unknown");
        for _ in 0..self.thread.rng.below(12) {
            if self.thread.rng.one_in(4) {
                let another = [payload, b"!"].concat();
                if let Err(error) = self.offer(seq, &another) {
                    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
                }
            }
            match self.offer(seq, payload) {
                Ok(()) => return self.thread.count("outcome known later"),
                Err(error) if error.kind == ErrorKind::Undecided => {}
                Err(error) => return self.count_lost(&error),
            }
        }
    }

    fn count_lost(&self, error: &StoreError) {
        match (error.kind, self.log.role()) {
            (ErrorKind::Taken, WriterRole::Behind) => self.thread.count("lost the race"),
            // A tenure that began below the floor.
            (ErrorKind::Gone, WriterRole::Deposed) if error.what.contains("during the takeover") => {
                self.thread.count("stood down");
            }
            // Another writer's object above the floor, or below it.
            (ErrorKind::Taken | ErrorKind::Gone, WriterRole::Deposed) => self.thread.count("deposed"),
            // It gave up on a batch of unknown outcome, and now has another.
            (ErrorKind::Refused, _) if error.what.contains("outcome of an append is unknown") => {}
            other => panic!("{other:?}: {error}"),
        }
    }

    /// False if the log has to be reopened.
    fn catch_up(&mut self) -> bool {
        match self.log.catch_up().map_err(|error| error.kind) {
            Ok(_) => self.thread.count("caught up"),
            Err(ErrorKind::Io) => {}
            Err(ErrorKind::Gone) => {
                self.thread.count("too late to catch up");
                return false;
            }
            Err(other) => panic!("{other:?}"),
        }
        true
    }

    fn raise_floor(&mut self) {
        let bounds = self.log.bounds();
        let floor = Seq(bounds.floor.0 + self.thread.rng.below(bounds.next.0 - bounds.floor.0 + 1));
        match self.log.raise_floor(floor).map_err(|error| error.kind) {
            Ok(()) => {
                self.thread.count("floor raised");
                self.maintain();
            }
            Err(kind) => assert!(matches!(kind, ErrorKind::Io | ErrorKind::Taken), "{kind:?}"),
        }
    }

    /// Creates index objects, and deletes what is below the floor.
    fn maintain(&mut self) {
        let Some(work) = self.log.preparation() else { return };
        match work().map_err(|error| error.kind) {
            Ok(()) => self.thread.count("maintained"),
            Err(kind) => assert_eq!(kind, ErrorKind::Io),
        }
    }

    fn confirm(&mut self) {
        let changes_count = self.thread.objects.changes_count();
        if self.log.confirm().is_ok() {
            let mut history = self.thread.history.lock();
            history.count("confirmed");
            history.confirmed(self.writer, changes_count);
        }
    }

    fn read(&mut self) {
        let bounds = self.log.bounds();
        if bounds.floor == bounds.next {
            return;
        }
        let seq = Seq(bounds.floor.0 + self.thread.rng.below(bounds.next.0 - bounds.floor.0));
        match self.log.reader().read(seq) {
            Ok(batch) => {
                let mut history = self.thread.history.lock();
                history.count("read");
                history.read(batch);
            }
            Err(error) => assert!(matches!(error.kind, ErrorKind::Io | ErrorKind::Gone), "{error}"),
        }
    }
}
