//! One server of the cluster: what it does is drawn at random, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{Decision, Follower, Unavailable};
use kernel::{Action, Command, Granted, Limits, Outcome, Response, Span, Version};
use sim::fixture::{grant, held, identity, key};
use sim::objects::SimObjects;
use sim::rng::Rng;
use sim::servers::clock::{Machine, TrueTime};
use sim::servers::ledger::Ledger;
use sim::servers::server::{Backend, LIMITS, RequestNumber, Server, ServerError, ServerRequest, WorldSize};
use store::object::{Objects, WriterId};
use store::{ErrorKind, Seq};

use super::history::History;
use crate::object_takeover::scheduler::{ExitGuard, ScheduledObjects, Scheduler};

/// Events that must occur in the runs.
pub(super) const COUNTED: [&str; 19] = [
    "followed",
    "kept up",
    "opened again",
    "took over",
    "lost the race",
    "granted",
    "released",
    "refused",
    "without a reply",
    "read",
    "undecided",
    "deposed",
    "follows after it was deposed",
    "truncated",
    "handed over to any",
    "handed over to a live server",
    "handed over to a dead server",
    "went on after its own hand-over",
    "killed",
];

/// Steps of one server.
const STEPS: u32 = 150;

/// Leases last: what was granted is in the last state.
const LIMITS_LARGE: Limits = Limits {
    ttl_max: Span(1 << 31),
    leases_max: 1 << 16,
    leases_per_identity_max: 1 << 16,
    nodes_max: 1 << 20,
    history_max: 1 << 16,
    history_members_max: 1 << 20,
    history_window: Span(1 << 31),
    ..LIMITS
};
const SIZE: WorldSize = WorldSize { limits: LIMITS_LARGE, segment_bytes: 16_000, tries: 3 };

/// A process: a new one follows each that was killed.
pub(super) struct Member {
    name: usize,
    rng: Rng,
    objects: ScheduledObjects,
    store: SimObjects,
    history: History,
    machine: Machine,
    now: TrueTime,
    processes: u128,
    next_request: RequestNumber,
    /// Requests without a response.
    pending: BTreeMap<RequestNumber, Pending>,
    granted: Vec<Granted>,
    closed: bool,
}

enum Pending {
    Acquire(String),
    Release(Granted),
}

/// What the process does with the log.
enum State {
    Idle,
    Following(Box<Follower>),
    /// With what it records for itself: no other server may confuse it.
    Serving(Box<(Server, Ledger)>),
}

impl Member {
    pub(super) fn new(
        name: usize,
        seed: u64,
        store: &SimObjects,
        scheduler: &Scheduler,
        history: &History,
    ) -> Member {
        let objects = ScheduledObjects { scheduler: scheduler.clone(), name, handle: store.handle() };
        let machine = Machine::new(TrueTime(0), name as u128 + 1, 0);
        // Wall clocks differ by more than a run takes.
        machine.jump(i64::try_from(name).expect("few") * 1_000_000_000);
        Member {
            name,
            rng: Rng::new(seed),
            objects,
            store: store.clone(),
            history: history.clone(),
            machine,
            now: TrueTime(0),
            processes: 0,
            next_request: 0,
            pending: BTreeMap::new(),
            granted: Vec::new(),
            closed: false,
        }
    }

    pub(super) fn run(mut self) {
        let _exit = ExitGuard(self.objects.scheduler.clone(), self.name);
        self.objects.scheduler.pass(self.name);
        let mut state = State::Idle;
        for _ in 0..STEPS {
            self.now.0 += self.rng.below(400);
            self.machine.set(self.now);
            state = self.step(state);
        }
    }

    fn count(&self, what: &'static str) {
        self.history.count(what);
    }

    /// The id of this process, and of the writer that it is.
    fn id(&self) -> u128 {
        (self.name as u128 + 1) * 1000 + self.processes
    }

    fn backend(&self) -> Backend {
        let objects: Arc<dyn Objects> = Arc::new(self.objects.clone());
        Backend::Objects(objects, WriterId(self.id()))
    }

    fn step(&mut self, state: State) -> State {
        if self.rng.one_in(60) {
            return self.killed(state);
        }
        match state {
            State::Idle => self.follow(),
            State::Following(follower) => self.keep_up(follower),
            State::Serving(mut serving) => {
                let (server, ledger) = &mut *serving;
                match self.serve(server, ledger) {
                    Ok(()) if server.has_ended() => self.ended(*serving),
                    Ok(()) => State::Serving(serving),
                    Err(ServerError::Store(error)) => {
                        let taken = matches!(error.kind, ErrorKind::Taken | ErrorKind::Gone);
                        assert!(taken, "a sequencer ended by {error}");
                        self.count(if server.is_open() { "deposed" } else { "lost the race" });
                        self.ended(*serving)
                    }
                    Err(ServerError::Violation(what)) => panic!("{what}"),
                }
            }
        }
    }

    /// The process ends: its requests get no response. The next one is another writer.
    fn killed(&mut self, state: State) -> State {
        self.count("killed");
        drop(state);
        self.pending.clear();
        self.processes += 1;
        self.closed = false;
        State::Idle
    }

    fn follow(&mut self) -> State {
        // Each opening is another writer: what the last one left in flight is not its own.
        self.processes += 1;
        self.history.lives(self.name, self.id());
        match Server::follow(&SIZE, &self.backend(), &self.machine) {
            Ok(follower) => {
                self.count("followed");
                self.history.state(follower.kernel());
                State::Following(Box::new(follower))
            }
            // The log was truncated while it was read, the network failed, or the store denied it.
            Err(ServerError::Store(error)) => {
                let kinds = [
                    ErrorKind::Gone,
                    ErrorKind::Io,
                    ErrorKind::Undecided,
                    ErrorKind::Taken,
                    ErrorKind::Refused,
                ];
                assert!(kinds.contains(&error.kind), "{error}");
                self.count("opened again");
                State::Idle
            }
            Err(ServerError::Violation(what)) => panic!("{what}"),
        }
    }

    fn keep_up(&mut self, mut follower: Box<Follower>) -> State {
        let tries = self.rng.one_in(6);
        // As a server that tries reads to the end before.
        match follower.poll(tries || self.rng.one_in(4)) {
            Ok(has_grown) => {
                if has_grown {
                    self.count("kept up");
                    self.history.state(follower.kernel());
                }
            }
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                self.count("opened again");
                return State::Idle;
            }
        }
        if !tries {
            return State::Following(follower);
        }
        if follower.closed().is_some() && self.closed {
            self.count("went on after its own hand-over");
        }
        self.closed = false;
        let (backend, mut ledger) = (self.backend(), Ledger::default());
        match Server::take_over(*follower, &SIZE, &backend, &self.machine, self.id(), &mut ledger) {
            Ok(server) => State::Serving(Box::new((server, ledger))),
            Err(error) => panic!("{error:?}"),
        }
    }

    /// The sequencer has ended. Its state is dropped; the server recovers, and follows.
    fn ended(&mut self, (server, _): (Server, Ledger)) -> State {
        self.collect(&server);
        if server.is_open() && !self.closed {
            self.count("follows after it was deposed");
        }
        drop(server);
        // They were dropped without a reply.
        for _ in std::mem::take(&mut self.pending) {
            self.count("without a reply");
        }
        State::Idle
    }

    fn serve(&mut self, server: &mut Server, ledger: &mut Ledger) -> Result<(), ServerError> {
        let was_open = server.is_open();
        for _ in 0..self.rng.below(4) {
            self.submit(server, ledger)?;
        }
        if self.rng.one_in(3) {
            // The number of changes so far identifies the request, and its moment.
            let arrived = Version(self.store.changes_count() as u64);
            let _ = server.read_versions(vec![("KEY:a", Some(arrived))]);
        }
        for _ in 0..self.rng.below(5) {
            let stepped = server.step(&mut self.rng, ledger);
            self.collect(server);
            if !stepped? {
                break;
            }
        }
        if !was_open && server.is_open() {
            self.count("took over");
        }
        if server.health().is_undecided {
            self.count("undecided");
        }
        if !server.is_open() || self.closed {
            return Ok(());
        }
        if self.rng.one_in(8) {
            self.truncate(server)?;
        }
        if self.rng.one_in(40) {
            self.hand_over(server);
        }
        Ok(())
    }

    fn submit(&mut self, server: &mut Server, ledger: &mut Ledger) -> Result<(), ServerError> {
        self.next_request += 1;
        let number = (self.name as u64 + 1) << 32 | self.next_request;
        let release = self.granted.pop().filter(|_| self.rng.one_in(3));
        let (action, pending) = if let Some(granted) = release {
            (Action::Release(held(&granted)), Pending::Release(granted))
        } else {
            let name = format!("key-{number}");
            let action = Action::Acquire(grant(key(&name), Span(1 << 30)));
            (action, Pending::Acquire(name))
        };
        self.pending.insert(number, pending);
        let command = Command::by(&identity("ada"), action);
        let request = ServerRequest { number, command, document: None, wait: None, attempt: None };
        let submitted = server.submit(request, ledger);
        self.collect(server);
        submitted
    }

    /// Takes a snapshot, and truncates the log below it.
    fn truncate(&mut self, server: &mut Server) -> Result<(), ServerError> {
        match server.checkpoint(0) {
            Ok(Some(plan)) => {
                assert!(plan.moves.is_empty(), "there are no documents");
                if plan.floor > Seq(0) {
                    self.count("truncated");
                }
                server.raise_floor(plan.floor);
                Ok(())
            }
            // A deposed owner that does not know it, or a network failure: a later one succeeds.
            Ok(None) | Err(ServerError::Store(_)) => Ok(()),
            Err(violation) => Err(violation),
        }
    }

    fn hand_over(&mut self, server: &Server) {
        let id = self.id();
        let (to, what) = self.history.hand_over_target(&mut self.rng, id);
        server.hand_over(to);
        self.closed = true;
        self.count(what);
    }

    /// Takes note of responses.
    fn collect(&mut self, server: &Server) {
        let changes = self.store.changes_count();
        for read in server.take_reads() {
            self.count("read");
            let arrived = read.known.map_or(0, |version| version.0);
            self.history.read(read.lsn, usize::try_from(arrived).expect("few"), changes);
        }
        for published in server.take_replies() {
            // A grant whose response is lost is released again.
            published.delivery.confirm();
            let pending = self.pending.remove(&published.number).expect("it was sent once");
            match (pending, published.reply) {
                (
                    Pending::Acquire(name),
                    Ok(Decision::Outcome(Outcome::Applied(Response::Granted(granted), _))),
                ) => {
                    self.count("granted");
                    self.history.granted(name, &granted, changes);
                    self.granted.push(granted);
                }
                (
                    Pending::Release(granted),
                    Ok(Decision::Outcome(Outcome::Applied(Response::Released, _))),
                ) => {
                    self.count("released");
                    self.history.released(granted.lease);
                }
                // The process before has released it, without a response.
                (Pending::Release(_), Ok(_)) => {}
                (Pending::Acquire(name), Err(why)) => {
                    let moved =
                        matches!(why, Unavailable::Deposed | Unavailable::Moved(_) | Unavailable::Stopped);
                    assert!(moved, "{why:?}");
                    self.count("refused");
                    self.history.refused(name);
                }
                (Pending::Release(granted), Err(_)) => self.history.not_released(granted.lease),
                (Pending::Acquire(name), Ok(other)) => panic!("{name}: {other:?}"),
            }
        }
    }
}
