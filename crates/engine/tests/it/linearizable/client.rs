//! One thread's part: it asks for leases, some of them while it goes on with others, and uses those that it has
//! or had, so that refusals are judged too.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};

use engine::{Decision, Engine, Reply, ReplyTo, Submission, Wait};
use kernel::{
    Action, Bundle, Command, Commit, Etag, Granted, Identity, LeaseId, LeaseRequest, LeaseView, Location,
    Lsn, Outcome, Rejection, Renewal, Response, Shard, Span, State, Time, Version, Write,
};
use sim::fixture::{default_namespace, grant, held, identity};
use sim::linearizability::key::{Holder, Op};
use sim::rng::Rng;

use super::record::Recorder;

/// How long leases last, and how long a request may wait for one.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    pub(crate) ttls: &'static [Span],
}

/// So long a request waits at the most: a lease that is revoked stays in its way until somebody reclaims it.
const PATIENCE: Span = Span(20);
/// How many leases a client remembers, live or not.
const REMEMBERED: usize = 4;

pub(crate) struct Client<'a> {
    engine: &'a Engine,
    recorder: Arc<Recorder>,
    habits: Habits,
    me: Identity,
    rng: Rng,
    leases: Vec<(usize, Granted)>,
    /// The request that waits, if one does.
    parked: Option<Receiver<Option<(usize, Granted)>>>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(engine: &'a Engine, recorder: Arc<Recorder>, habits: Habits, seed: u64) -> Client<'a> {
        let me = identity(&format!("client-{seed}"));
        Client { engine, recorder, habits, me, rng: Rng::new(seed), leases: Vec::new(), parked: None }
    }

    pub(crate) fn run(&mut self, calls: u32) {
        for _ in 0..calls {
            self.collect();
            self.one_call();
        }
        // What this one holds may be what the others wait for.
        while let Some((key, lease)) = self.leases.pop() {
            self.release(key, &lease);
        }
        let granted = self.parked.take().and_then(|parked| parked.recv().ok()).flatten();
        if let Some((key, lease)) = granted {
            self.release(key, &lease);
        }
        // This tells the time: whatever was said to be over before it must have been.
        (0..self.recorder.keys()).for_each(|key| self.read(key));
    }

    fn one_call(&mut self) {
        let key = self.number(self.recorder.keys());
        let one = self.number(REMEMBERED);
        let mine = self.leases.get(one).copied();
        match (self.rng.below(12), mine) {
            (0..=1, _) => self.acquire(key),
            (2, _) if self.parked.is_none() => self.park(key),
            (3..=4, Some((key, lease))) => self.renew(key, &lease),
            (5, Some((key, lease))) => self.release(key, &lease),
            (6..=8, Some((key, lease))) => self.commit(key, &lease),
            (9, _) => self.withdraw(key),
            (10, Some((key, lease))) => self.read_lease(key, lease.lease),
            _ => self.read(key),
        }
    }

    fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.rng.below(below as u64)).expect("it is below a length")
    }

    fn request(&mut self, key: usize) -> Command {
        let bundle = Bundle::of_key(self.recorder.name(key).clone());
        let request: LeaseRequest = grant(bundle, *self.rng.pick(self.habits.ttls));
        Command::by(&self.me, Action::Acquire(request))
    }

    fn remember(&mut self, granted: Option<(usize, Granted)>) {
        self.leases.extend(granted);
        if self.leases.len() > REMEMBERED {
            let (key, lease) = self.leases.remove(0);
            self.release(key, &lease);
        }
    }

    fn acquire(&mut self, key: usize) {
        let command = self.request(key);
        let asked = self.recorder.count();
        let reply = self.engine.sequencer().call(command, 1, None, None);
        let granted = note_asked(&self.recorder, key, asked, reply.expect("it lives"));
        self.remember(granted);
    }

    /// Asks, and goes on meanwhile.
    fn park(&mut self, key: usize) {
        let command = self.request(key);
        let (send, parked) = channel();
        let (recorder, asked) = (Arc::clone(&self.recorder), self.recorder.count());
        let to: ReplyTo = Box::new(move |reply, delivery| {
            delivery.settle(send.send(note_asked(&recorder, key, asked, reply)).is_ok());
        });
        let wait = Some(Wait { most: PATIENCE, gone: Arc::new(AtomicBool::new(false)) });
        self.engine.sequencer().submit(Submission {
            command,
            correlation: 2,
            document: None,
            wait,
            on_decided: None,
            to,
        });
        self.parked = Some(parked);
    }

    fn collect(&mut self) {
        let Some(parked) = &self.parked else { return };
        if let Ok(granted) = parked.try_recv() {
            self.parked = None;
            self.remember(granted);
        }
    }

    /// Does it, and records what `read` makes of the outcome.
    fn call(&self, key: usize, action: Action, document: Option<Vec<u8>>, read: impl FnOnce(Outcome) -> Op) {
        let command = Command::by(&self.me, action);
        let asked = self.recorder.count();
        let reply = self.engine.sequencer().call(command, 3, document, None).expect("it lives");
        let answered = self.recorder.count();
        match reply.expect("there is room") {
            Decision::Outcome(outcome) => self.recorder.record(key, asked, answered, read(outcome)),
            Decision::Blocked(blocked) => panic!("nobody asked for a lease: {blocked:?}"),
        }
    }

    fn renew(&self, key: usize, granted: &Granted) {
        let (lease, ttl) = (granted.lease.lsn, granted.ttl);
        let action = Action::Renew(vec![Renewal { held: held(granted), ttl: None }]);
        self.call(key, action, None, |outcome| match outcome {
            Outcome::Applied(Response::Renewed(results), _)
            | Outcome::Unchanged(Response::Renewed(results)) => match &results[..] {
                [Ok(live)] => Op::Renewed { lease, ttl, deadline: live.deadline },
                [Err(rejection)] => refused(lease, rejection),
                other => panic!("one renewal, one result: {other:?}"),
            },
            other => panic!("{other:?}"),
        });
    }

    fn release(&self, key: usize, granted: &Granted) {
        let lease = granted.lease.lsn;
        self.call(key, Action::Release(held(granted)), None, |outcome| match outcome {
            Outcome::Applied(Response::Released, _) => Op::Released(lease),
            Outcome::Unchanged(Response::Released) => Op::NothingToRelease(lease),
            other => panic!("{other:?}"),
        });
    }

    /// The document is what its hash says, over and over.
    fn commit(&mut self, key: usize, granted: &Granted) {
        let lease = granted.lease.lsn;
        let mut etag = [self.rng.small(255); 32];
        etag[..8].copy_from_slice(&self.rng.number().to_le_bytes());
        let (etag, document) = (Etag(etag), etag.repeat(self.number(40)));
        let if_version = self.rng.one_in(2).then(|| Version(self.rng.below(8)));
        let release = self.rng.one_in(6);
        let name = self.recorder.name(key).clone();
        let write = Write { held: held(granted), key: name, token: None, if_version, if_etag: None, release };
        let commit = Commit { write, etag, bytes: document.len() as u64, location: Location(0) };
        self.call(key, Action::Commit(commit), Some(document), |outcome| match outcome {
            Outcome::Applied(Response::Committed(version), _) => {
                Op::Committed { lease, if_version, etag, version, release }
            }
            Outcome::Rejected(Rejection::VersionConflict(tag)) => {
                let if_version = if_version.expect("there was a condition");
                Op::VersionConflict { lease, if_version, found: (tag.version, tag.etag) }
            }
            Outcome::Rejected(rejection) => refused(lease, &rejection),
            other => panic!("{other:?}"),
        });
    }

    /// An operator revokes whatever lease was granted last, or reclaims it.
    fn withdraw(&mut self, key: usize) {
        let Some(lease) = self.recorder.last(key) else { return };
        let id = LeaseId { shard: Shard(0), lsn: lease };
        let reclaims = !self.rng.one_in(3);
        let action = if reclaims { Action::Reclaim(id) } else { Action::Revoke(id) };
        self.call(key, action, None, |outcome| match outcome {
            Outcome::Applied(Response::Revoking(_), _) => Op::Revoking(lease),
            Outcome::Applied(Response::Reclaimed(_), _) => Op::Reclaimed(lease),
            Outcome::Rejected(Rejection::InvalidState(state)) if reclaims => Op::NotReclaimed(lease, state),
            Outcome::Rejected(Rejection::InvalidState(state)) => Op::NotRevoked(lease, state),
            other => panic!("{other:?}"),
        });
    }

    fn read(&self, key: usize) {
        let (name, (send, seen)) = (self.recorder.name(key).clone(), channel());
        let asked = self.recorder.count();
        let look = self.engine.sequencer().query(Box::new(move |shard| {
            let (kernel, at) = (shard.kernel(), shard.now());
            let view = kernel.key(&default_namespace(), &name);
            let holders: Vec<LeaseView> = kernel.holders(&default_namespace(), &name, at).collect();
            Box::new(move || drop(send.send((at, view, holders))))
        }));
        look.expect("it lives");
        let (at, view, holders) = seen.recv().expect("it lives");
        let answered = self.recorder.count();
        assert!(holders.len() <= 1, "two holders: {holders:?}");
        let holder = holders.first().map(|view| (holder_of(view), view.token));
        let document = view.and_then(|view| view.document);
        let version = view.map_or(Version(0), |view| view.version);
        let found = (version, document.map(|document| document.etag));
        self.recorder.record(key, asked, answered, Op::Read { at, found, holder });
        if let Some(document) = document {
            self.read_bytes(document);
        }
    }

    /// They may be gone by now; if not, they are those that were committed.
    fn read_bytes(&self, document: kernel::Document) {
        if let Ok(bytes) = self.engine.read_document(Shard(0), document.location, 0, 1 << 20) {
            assert_eq!(bytes.len() as u64, document.bytes);
            assert!(bytes.chunks(32).all(|part| part == document.etag.0), "not what was committed");
        }
    }

    fn read_lease(&self, key: usize, id: LeaseId) {
        let (send, seen) = channel();
        let asked = self.recorder.count();
        let look = self.engine.sequencer().query(Box::new(move |shard| {
            let at: Time = shard.now();
            let state = shard.kernel().lease(id, at).map(|view| view.state);
            Box::new(move || drop(send.send((at, state))))
        }));
        look.expect("it lives");
        let (at, state) = seen.recv().expect("it lives");
        let answered = self.recorder.count();
        let state = state.expect("history is long enough");
        self.recorder.record(key, asked, answered, Op::ReadLease { at, lease: id.lsn, state });
    }
}

fn holder_of(view: &LeaseView) -> Holder {
    let revoking = match view.state {
        State::Active => false,
        State::Revoking => true,
        other => panic!("a holder that holds nothing: {other:?}"),
    };
    Holder { lease: view.id.lsn, deadline: view.deadline, revoking }
}

fn refused(lease: Lsn, rejection: &Rejection) -> Op {
    let state = match rejection {
        Rejection::NotHeld => State::Released,
        Rejection::LeaseRevoked => State::Revoked,
        Rejection::LeaseExpired => State::Expired,
        other => panic!("{other:?}"),
    };
    Op::Refused(lease, state)
}

/// Records the answer to a request for a lease.
fn note_asked(recorder: &Recorder, key: usize, asked: u64, reply: Reply) -> Option<(usize, Granted)> {
    let answered = recorder.count();
    let (op, granted) = match reply.expect("there is room") {
        Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)) => {
            let Granted { lease, token, granted_at, deadline, .. } = granted;
            (Op::Granted { lease: lease.lsn, token, at: granted_at, deadline }, Some((key, granted)))
        }
        Decision::Blocked(blocked) => (Op::Blocked(blocked.holders.first().map(|lease| lease.lsn)), None),
        Decision::Outcome(other) => panic!("{other:?}"),
    };
    recorder.record(key, asked, answered, op);
    granted
}
