//! One client thread: it acquires leases, some through the wait queue while it makes other calls, uses them even after
//! they end, so that refusals are checked too, and retries requests under their idempotency keys, at once or later.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use engine::waiters::{Wait, WaiterConnection};
use engine::{Engine, ReplyTo, Submission};
use kernel::{
    Action, Bundle, Command, Commit, Etag, Identity, LeaseRequest, LeaseView, Location, Member, OnExpiry,
    Predicate, Removal, Renewal, Span, Version, Write,
};
use sim::fixture::{default_namespace, grant, identity};
use sim::linearizability::operation::{
    CallResult, FoundHolder, Held, Members, Op, ResourceNumber, WriteCall,
};
use sim::rng::Rng;

use super::record::{GroupNumber, Recorder};
use super::request::{Intent, Request, credential, is_stored, lease_id};
use crate::deadline::DEADLINE;

/// The TTLs and policies to choose from.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) ttls: &'static [Span],
    pub(crate) on_expiry: &'static [OnExpiry],
}

/// Timeout of a waiting request: a revoking lease may block it until a client reclaims that lease.
const WAIT_MAX: Span = Span(20);
/// Maximum number of leases, active or ended, that a client keeps using.
const LEASES_MAX: usize = 4;
/// Maximum number of stored requests that a client keeps retrying.
const STORED_MAX: usize = 3;

/// A lease that the client holds or has held.
#[derive(Clone)]
struct KnownLease {
    group: GroupNumber,
    held: Held,
    ttl: Span,
    members: Members,
}

/// What the client learns from a reply: a new credential, or a request that is stored.
type Learned = (Option<KnownLease>, Option<Request>);

pub(crate) struct Client<'a> {
    engine: &'a Engine,
    recorder: Arc<Recorder>,
    workload: Workload,
    identity: Identity,
    rng: Rng,
    next_request: u64,
    leases: Vec<KnownLease>,
    stored: Vec<Request>,
    /// The acquire that waits in the queue.
    pending: Option<Receiver<Learned>>,
    /// The first try of a pending request that was sent again: its reply is recorded, so it must count as delivered.
    /// A grant whose reply is lost is undone, and a retry that is decided after that gets another lease.
    first_try: Option<Receiver<Learned>>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        recorder: Arc<Recorder>,
        workload: Workload,
        seed: u64,
    ) -> Client<'a> {
        Client {
            engine,
            recorder,
            workload,
            identity: identity(&format!("client-{seed}")),
            rng: Rng::new(seed),
            next_request: seed << 16,
            leases: Vec::new(),
            stored: Vec::new(),
            pending: None,
            first_try: None,
        }
    }

    pub(crate) fn run(&mut self, calls: u32) {
        for _ in 0..calls {
            self.collect();
            self.one_call();
        }
        // Other clients may be waiting for these leases.
        let pending = self.pending.take();
        let learned = pending.map(|pending| pending.recv_timeout(DEADLINE).expect("a reply"));
        self.leases.extend(learned.and_then(|(lease, _)| lease));
        while let Some(lease) = self.leases.pop() {
            self.release(&lease);
        }
        // These reads return kernel time: leases reported as ended before them must be past their deadlines.
        for group in 0..self.recorder.groups() {
            (0..self.recorder.keys()).for_each(|key| self.read(group, key));
        }
    }

    fn one_call(&mut self) {
        let (group, index) = (self.number(self.recorder.groups()), self.number(LEASES_MAX));
        let lease = self.leases.get(index).cloned();
        match (self.rng.below(18), lease) {
            (0..=2, _) => self.acquire(group),
            (3, _) if self.pending.is_none() => self.acquire_waiting(group),
            (4..=5, Some(lease)) => self.renew(&lease),
            (6, Some(lease)) => self.release(&lease),
            (7..=8, Some(lease)) => self.rebind(&lease),
            (9..=11, Some(lease)) => self.write(&lease, false),
            (12, Some(lease)) => self.write(&lease, true),
            (13, _) => self.revoke_or_reclaim(group),
            (14, Some(lease)) => self.read_lease(lease.group, lease.held),
            (15, _) => self.retry_stored(),
            _ => {
                let key = self.number(self.recorder.keys());
                self.read(group, key);
            }
        }
    }

    fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.rng.below(below as u64)).expect("below a length")
    }

    /// Sends a request, possibly under an idempotency key and then possibly twice at once.
    fn send(&mut self, group: GroupNumber, action: Action, document: Option<Vec<u8>>, intent: Intent) {
        let command = Command::by(&self.identity, action);
        let request = Request { group, number: None, command, document, intent };
        let learned = match self.rng.below(4) {
            0 => {
                let request = request.keyed(self.request_number());
                let replies = [self.submit(request.clone(), None), self.submit(request, None)];
                replies.map(|reply| reply.recv_timeout(DEADLINE).expect("a reply")).to_vec()
            }
            1 => {
                let request = request.keyed(self.request_number());
                vec![self.call(&request)]
            }
            _ => vec![self.call(&request)],
        };
        for learned in learned {
            self.learn(learned);
        }
    }

    fn request_number(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// Calls the engine, and records the result.
    fn call(&self, request: &Request) -> Learned {
        let (command, document) = (request.command.clone(), request.document.clone());
        let invoked = self.recorder.count();
        let reply = self.engine.sequencer().call(command, 1, document, None).expect("running");
        observe(&self.recorder, request, invoked, request.result(&reply))
    }

    /// Submits a request, which the engine's threads answer. The result is recorded when the reply arrives.
    fn submit(&self, request: Request, wait: Option<Wait>) -> Receiver<Learned> {
        let (send, pending) = channel();
        let (command, document) = (request.command.clone(), request.document.clone());
        let (recorder, invoked) = (Arc::clone(&self.recorder), self.recorder.count());
        let to: ReplyTo = Box::new(move |reply, delivery| {
            let learned = observe(&recorder, &request, invoked, request.result(&reply));
            delivery.settle(send.send(learned).is_ok());
        });
        let submission = Submission { origin: 2.into(), document, wait, ..Submission::new(command, to) };
        self.engine.sequencer().submit(submission);
        pending
    }

    fn learn(&mut self, (lease, stored): Learned) {
        self.stored.extend(stored);
        if self.stored.len() > STORED_MAX {
            self.stored.remove(0);
        }
        let Some(mut lease) = lease.filter(|new| self.leases.iter().all(|known| known.held != new.held))
        else {
            return;
        };
        if lease.members.is_empty() {
            let known = self.leases.iter().find(|known| known.held.lease == lease.held.lease);
            let Some(known) = known else { return };
            lease.members.clone_from(&known.members);
        }
        self.leases.push(lease);
        if self.leases.len() > LEASES_MAX {
            let oldest = self.leases.remove(0);
            self.release(&oldest);
        }
    }

    /// Half of the leases are over one key, exclusive; the others share, or cover several keys.
    fn members(&mut self) -> Members {
        let keys = self.recorder.keys();
        let first = self.number(keys);
        let count = if self.rng.one_in(2) { 1 } else { 1 + self.number(keys) };
        let predicate = |rng: &mut Rng| {
            if rng.one_in(2) { Predicate::Mutates } else { *rng.pick(&Predicate::ALL) }
        };
        (first..first + count).map(|key| (key % keys, predicate(&mut self.rng))).collect()
    }

    fn lease_request(&mut self, group: GroupNumber) -> (Action, Intent) {
        let members = self.members();
        let member = |(key, predicate): &(ResourceNumber, Predicate)| Member {
            resource: self.recorder.name(group, *key).clone(),
            predicate: *predicate,
        };
        let bundle = Bundle::new(members.iter().map(member).collect()).expect("each key once");
        let on_expiry = *self.rng.pick(self.workload.on_expiry);
        let request = LeaseRequest { on_expiry, ..grant(bundle, *self.rng.pick(self.workload.ttls)) };
        let hold = match on_expiry {
            OnExpiry::Free => None,
            OnExpiry::Hold(span) => Some(span),
            OnExpiry::Manual => Some(Span(u64::MAX)),
        };
        (Action::Acquire(request), Intent::Acquire { members, hold })
    }

    fn acquire(&mut self, group: GroupNumber) {
        let (action, intent) = self.lease_request(group);
        self.send(group, action, None, intent);
    }

    /// Submits an acquire that may wait, and returns at once. A retry may take the place of the first.
    fn acquire_waiting(&mut self, group: GroupNumber) {
        let (action, intent) = self.lease_request(group);
        let command = Command::by(&self.identity, action);
        let mut request = Request { group, number: None, command, document: None, intent };
        let wait = || Some(Wait { timeout: WAIT_MAX, connection: WaiterConnection::default() });
        if self.rng.one_in(2) {
            request = request.keyed(self.request_number());
        }
        let first = self.submit(request.clone(), wait());
        if request.number.is_some() && self.rng.one_in(2) {
            self.pending = Some(self.submit(request, wait()));
            self.first_try = Some(first);
        } else {
            self.pending = Some(first);
        }
    }

    fn collect(&mut self) {
        let Some(pending) = &self.pending else { return };
        if let Ok(learned) = pending.try_recv() {
            (self.pending, self.first_try) = (None, None);
            self.learn(learned);
        }
    }

    /// Repeats a request that was accepted earlier, or sends another one under its idempotency key.
    fn retry_stored(&mut self) {
        if self.stored.is_empty() {
            return;
        }
        let request = self.rng.pick(&self.stored).clone();
        let request = if self.rng.one_in(4) { request.altered() } else { request };
        let (lease, _) = self.call(&request);
        self.learn((lease, None));
    }

    fn renew(&mut self, lease: &KnownLease) {
        let (held, ttl) = (lease.held, lease.ttl);
        let action = Action::Renew(vec![Renewal { held: credential(held), ttl: None }]);
        self.send(lease.group, action, None, Intent::Renew { held, ttl });
    }

    fn release(&mut self, lease: &KnownLease) {
        let held = lease.held;
        self.send(lease.group, Action::Release(credential(held)), None, Intent::Release { held });
    }

    fn rebind(&mut self, lease: &KnownLease) {
        let held = lease.held;
        self.send(lease.group, Action::Rebind(credential(held)), None, Intent::Rebind { held });
    }

    /// Commits or removes a document. A document consists of its ETag, repeated.
    fn write(&mut self, lease: &KnownLease, removes: bool) {
        let resource = self.rng.pick(&lease.members).0;
        let if_version = self.rng.one_in(2).then(|| Version(self.rng.below(8)));
        let (held, release) = (lease.held, self.rng.one_in(6));
        let key = self.recorder.name(lease.group, resource).clone();
        let call = WriteCall { held, resource, if_version, release };
        let write = Write { held: credential(held), key, token: None, if_version, if_etag: None, release };
        if removes {
            let action = Action::Remove(Removal { write });
            return self.send(lease.group, action, None, Intent::Remove { write: call });
        }
        let mut etag = [self.rng.small(255); 32];
        etag[..8].copy_from_slice(&self.rng.number().to_le_bytes());
        let (etag, document) = (Etag(etag), etag.repeat(self.number(40)));
        let commit = Commit { write, etag, bytes: document.len() as u64, location: Location::default() };
        let intent = Intent::Commit { write: call, etag };
        self.send(lease.group, Action::Commit(commit), Some(document), intent);
    }

    /// An operator revokes or reclaims the lease that was granted last.
    fn revoke_or_reclaim(&mut self, group: GroupNumber) {
        let Some(lease) = self.recorder.last_granted(group) else { return };
        let (action, intent) = if self.rng.one_in(3) {
            (Action::Revoke(lease_id(lease)), Intent::Revoke(lease))
        } else {
            (Action::Reclaim(lease_id(lease)), Intent::Reclaim(lease))
        };
        let command = Command::by(&self.identity, action);
        self.call(&Request { group, number: None, command, document: None, intent });
    }

    fn read(&self, group: GroupNumber, resource: ResourceNumber) {
        let (name, (send, result)) = (self.recorder.name(group, resource).clone(), channel());
        let invoked = self.recorder.count();
        let query = self.engine.sequencer().query(Box::new(move |shard| {
            let (kernel, at) = (shard.kernel(), shard.now());
            let view = kernel.key(&default_namespace(), &name);
            let holders: Vec<LeaseView> = kernel.holders(&default_namespace(), &name, at);
            Box::new(move || drop(send.send((at, view, holders))))
        }));
        query.expect("running");
        let (at, view, holders) = result.recv_timeout(DEADLINE).expect("running");
        let returned = self.recorder.count();
        let shown =
            |view: &LeaseView| FoundHolder { lease: view.id.lsn, token: view.token, state: view.state };
        let mut holders: Vec<FoundHolder> = holders.iter().map(shown).collect();
        holders.sort_unstable();
        let document = view.and_then(|view| view.document);
        let found = view.map(|view| (view.version, document.map(|document| document.etag)));
        let result = CallResult::Read { at: Some(at), resource, found, holders: Some(holders) };
        self.recorder.record(group, invoked, returned, Op { request: None, result });
        if let Some(document) = document {
            self.read_bytes(document);
        }
    }

    /// The document may have been deleted by now; if not, it has the committed bytes.
    fn read_bytes(&self, document: kernel::Document) {
        if let Ok(bytes) = self.engine.read_document(&document, 0, 1 << 20) {
            assert_eq!(bytes.len() as u64, document.bytes);
            assert!(bytes.chunks(32).all(|part| part == document.etag.0), "not what was committed");
        }
    }

    fn read_lease(&self, group: GroupNumber, held: Held) {
        let (lease, (send, result)) = (held.lease, channel());
        let invoked = self.recorder.count();
        let query = self.engine.sequencer().query(Box::new(move |shard| {
            let at = shard.now();
            let state = shard.kernel().lease(lease_id(lease), at).map(|view| view.state);
            Box::new(move || drop(send.send((at, state))))
        }));
        query.expect("running");
        let (at, state) = result.recv_timeout(DEADLINE).expect("running");
        let returned = self.recorder.count();
        let result = CallResult::ReadLease { at, lease, state: state.expect("the history is long enough") };
        self.recorder.record(group, invoked, returned, Op { request: None, result });
    }
}

/// Records a result, and returns what the client learns from it.
fn observe(recorder: &Recorder, request: &Request, invoked: u64, result: Option<CallResult>) -> Learned {
    let returned = recorder.count();
    let Some(result) = result else { return (None, None) };
    let lease = match (&result, &request.command.action, &request.intent) {
        (CallResult::Granted { lease, .. }, Action::Acquire(wanted), Intent::Acquire { members, .. }) => {
            let held = Held { lease: *lease, epoch: kernel::Epoch::FIRST };
            Some(KnownLease { group: request.group, held, ttl: wanted.ttl, members: members.clone() })
        }
        (CallResult::Rebound { held, epoch, ttl, .. }, ..) => {
            let held = Held { epoch: *epoch, ..*held };
            // The client knows the members from the grant.
            Some(KnownLease { group: request.group, held, ttl: *ttl, members: Vec::new() })
        }
        _ => None,
    };
    let stored = (request.number.is_some() && is_stored(&result)).then(|| request.clone());
    recorder.record(request.group, invoked, returned, Op { request: request.number, result });
    (lease, stored)
}
