//! One client thread: it acquires leases, some through the wait queue while it makes other calls, and uses them even
//! after they end, so that refusals are checked too.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use engine::{Decision, Engine, Reply, ReplyTo, Submission, Wait, WaiterConnection};
use kernel::{
    Action, Bundle, Command, Commit, Etag, Granted, Identity, LeaseId, LeaseRequest, LeaseView, Location,
    Lsn, Outcome, Rejection, Renewal, Response, Shard, Span, State, Time, Version, Write,
};
use sim::fixture::{default_namespace, grant, held, identity};
use sim::linearizability::key::{Holder, Op};
use sim::rng::Rng;

use super::record::Recorder;
use crate::deadline::DEADLINE;

/// The TTLs to choose from.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) ttls: &'static [Span],
}

/// Timeout of a waiting request: a revoking lease may block it until a client reclaims that lease.
const WAIT_MAX: Span = Span(20);
/// Maximum number of leases, active or ended, that a client keeps using.
const LEASES_MAX: usize = 4;

pub(crate) struct Client<'a> {
    engine: &'a Engine,
    recorder: Arc<Recorder>,
    workload: Workload,
    identity: Identity,
    rng: Rng,
    leases: Vec<(usize, Granted)>,
    /// The acquire that waits in the queue.
    pending: Option<Receiver<Option<(usize, Granted)>>>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        recorder: Arc<Recorder>,
        workload: Workload,
        seed: u64,
    ) -> Client<'a> {
        let identity = identity(&format!("client-{seed}"));
        Client {
            engine,
            recorder,
            workload,
            identity,
            rng: Rng::new(seed),
            leases: Vec::new(),
            pending: None,
        }
    }

    pub(crate) fn run(&mut self, calls: u32) {
        for _ in 0..calls {
            self.collect();
            self.one_call();
        }
        // Other clients may be waiting for these leases.
        while let Some((key, lease)) = self.leases.pop() {
            self.release(key, &lease);
        }
        let pending = self.pending.take();
        let granted = pending.and_then(|pending| pending.recv_timeout(DEADLINE).expect("a reply"));
        if let Some((key, lease)) = granted {
            self.release(key, &lease);
        }
        // These reads return kernel time: leases reported as ended before them must be past their deadlines.
        (0..self.recorder.keys()).for_each(|key| self.read(key));
    }

    fn one_call(&mut self) {
        let key = self.number(self.recorder.keys());
        let index = self.number(LEASES_MAX);
        let lease = self.leases.get(index).copied();
        match (self.rng.below(12), lease) {
            (0..=1, _) => self.acquire(key),
            (2, _) if self.pending.is_none() => self.acquire_waiting(key),
            (3..=4, Some((key, lease))) => self.renew(key, &lease),
            (5, Some((key, lease))) => self.release(key, &lease),
            (6..=8, Some((key, lease))) => self.commit(key, &lease),
            (9, _) => self.revoke_or_reclaim(key),
            (10, Some((key, lease))) => self.read_lease(key, lease.lease),
            _ => self.read(key),
        }
    }

    fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.rng.below(below as u64)).expect("below a length")
    }

    fn request(&mut self, key: usize) -> Command {
        let bundle = Bundle::of_key(self.recorder.name(key).clone());
        let request: LeaseRequest = grant(bundle, *self.rng.pick(self.workload.ttls));
        Command::by(&self.identity, Action::Acquire(request))
    }

    fn remember(&mut self, granted: Option<(usize, Granted)>) {
        self.leases.extend(granted);
        if self.leases.len() > LEASES_MAX {
            let (key, lease) = self.leases.remove(0);
            self.release(key, &lease);
        }
    }

    fn acquire(&mut self, key: usize) {
        let command = self.request(key);
        let invoked = self.recorder.count();
        let reply = self.engine.sequencer().call(command, 1, None, None);
        let granted = record_acquire(&self.recorder, key, invoked, reply.expect("running"));
        self.remember(granted);
    }

    /// Submits an acquire that may wait, and returns at once.
    fn acquire_waiting(&mut self, key: usize) {
        let command = self.request(key);
        let (send, pending) = channel();
        let (recorder, invoked) = (Arc::clone(&self.recorder), self.recorder.count());
        let to: ReplyTo = Box::new(move |reply, delivery| {
            delivery.settle(send.send(record_acquire(&recorder, key, invoked, reply)).is_ok());
        });
        let wait = Some(Wait { most: WAIT_MAX, connection: WaiterConnection::default() });
        self.engine.sequencer().submit(Submission {
            command,
            correlation: 2,
            document: None,
            wait,
            on_decided: None,
            to,
        });
        self.pending = Some(pending);
    }

    fn collect(&mut self) {
        let Some(pending) = &self.pending else { return };
        if let Ok(granted) = pending.try_recv() {
            self.pending = None;
            self.remember(granted);
        }
    }

    /// Calls the engine, and records the outcome as `read` translates it.
    fn call(&self, key: usize, action: Action, document: Option<Vec<u8>>, read: impl FnOnce(Outcome) -> Op) {
        let command = Command::by(&self.identity, action);
        let invoked = self.recorder.count();
        let reply = self.engine.sequencer().call(command, 3, document, None).expect("running");
        let returned = self.recorder.count();
        match reply.expect("accepted") {
            Decision::Outcome(outcome) => self.recorder.record(key, invoked, returned, read(outcome)),
            Decision::Blocked(blocked) => panic!("not a request for a lease: {blocked:?}"),
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

    /// The document consists of its ETag, repeated.
    fn commit(&mut self, key: usize, granted: &Granted) {
        let lease = granted.lease.lsn;
        let mut etag = [self.rng.small(255); 32];
        etag[..8].copy_from_slice(&self.rng.number().to_le_bytes());
        let (etag, document) = (Etag(etag), etag.repeat(self.number(40)));
        let if_version = self.rng.one_in(2).then(|| Version(self.rng.below(8)));
        let release = self.rng.one_in(6);
        let name = self.recorder.name(key).clone();
        let write = Write { held: held(granted), key: name, token: None, if_version, if_etag: None, release };
        let commit = Commit { write, etag, bytes: document.len() as u64, location: Location::default() };
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

    /// An operator revokes or reclaims the lease that was granted last.
    fn revoke_or_reclaim(&mut self, key: usize) {
        let Some(lease) = self.recorder.last_granted(key) else { return };
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
        let (name, (send, result)) = (self.recorder.name(key).clone(), channel());
        let invoked = self.recorder.count();
        let query = self.engine.sequencer().query(Box::new(move |shard| {
            let (kernel, at) = (shard.kernel(), shard.now());
            let view = kernel.key(&default_namespace(), &name);
            let holders: Vec<LeaseView> = kernel.holders(&default_namespace(), &name, at).collect();
            Box::new(move || drop(send.send((at, view, holders))))
        }));
        query.expect("running");
        let (at, view, holders) = result.recv_timeout(DEADLINE).expect("running");
        let returned = self.recorder.count();
        assert!(holders.len() <= 1, "two holders: {holders:?}");
        let holder = holders.first().map(|view| (holder_of(view), view.token));
        let document = view.and_then(|view| view.document);
        let version = view.map_or(Version(0), |view| view.version);
        let found = (version, document.map(|document| document.etag));
        self.recorder.record(key, invoked, returned, Op::Read { at, found, holder });
        if let Some(document) = document {
            self.read_bytes(document);
        }
    }

    /// The document may have been deleted by now; if not, it has the committed bytes.
    fn read_bytes(&self, document: kernel::Document) {
        if let Ok(bytes) = self.engine.read_document(document.location, 0, 1 << 20) {
            assert_eq!(bytes.len() as u64, document.bytes);
            assert!(bytes.chunks(32).all(|part| part == document.etag.0), "not what was committed");
        }
    }

    fn read_lease(&self, key: usize, id: LeaseId) {
        let (send, result) = channel();
        let invoked = self.recorder.count();
        let query = self.engine.sequencer().query(Box::new(move |shard| {
            let at: Time = shard.now();
            let state = shard.kernel().lease(id, at).map(|view| view.state);
            Box::new(move || drop(send.send((at, state))))
        }));
        query.expect("running");
        let (at, state) = result.recv_timeout(DEADLINE).expect("running");
        let returned = self.recorder.count();
        let state = state.expect("the history is long enough");
        self.recorder.record(key, invoked, returned, Op::ReadLease { at, lease: id.lsn, state });
    }
}

fn holder_of(view: &LeaseView) -> Holder {
    let revoking = match view.state {
        State::Active => false,
        State::Revoking => true,
        other => panic!("the lease of a holder has ended: {other:?}"),
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

/// Records the reply to an acquire.
fn record_acquire(recorder: &Recorder, key: usize, invoked: u64, reply: Reply) -> Option<(usize, Granted)> {
    let returned = recorder.count();
    let (op, granted) = match reply.expect("accepted") {
        Decision::Outcome(Outcome::Applied(Response::Granted(granted), _)) => {
            let Granted { lease, token, granted_at, deadline, .. } = granted;
            (Op::Granted { lease: lease.lsn, token, at: granted_at, deadline }, Some((key, granted)))
        }
        Decision::Blocked(blocked) => (Op::Blocked(blocked.holders.first().map(|lease| lease.lsn)), None),
        Decision::Outcome(other) => panic!("{other:?}"),
    };
    recorder.record(key, invoked, returned, op);
    granted
}
