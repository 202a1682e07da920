//! Generates random commands: mostly valid, often at a limit, sometimes hostile.
//!
//! The generator learns from outcomes which leases exist, and often steps time exactly to a deadline or one
//! millisecond around it.

use kernel::{
    Action, Age, AgentAnnouncement, AgentName, Bundle, ClockReading, Close, Command, Commit, Credential,
    Epoch, Etag, IdempotencyKey, Identity, Kernel, LeaseId, LeaseRequest, Limits, Location, Lsn, Member,
    Metadata, Namespace, OnExpiry, Open, Outcome, Owner, Party, Pause, Paused, Predicate, Quota, Reason,
    Relocation, Removal, Renewal, RequestKey, ResourceName, Response, Retraction, Scope, SessionName,
    SetQuota, Shard, Slot, Slots, Span, Store, Time, Token, Version, Write,
};

use crate::Step;
use crate::rng::Rng;

/// A generator of steps.
pub struct CommandGenerator {
    rng: Rng,
    lsn: u64,
    now: u64,
    term: u64,
    /// Issued credentials, the newest last.
    issued: Vec<Issued>,
    /// Issued credentials of leases that have not ended.
    live: Vec<Issued>,
}

/// A credential, its holder, and a key that its lease covers.
#[derive(Clone)]
struct Issued {
    held: Credential,
    identity: Identity,
    key: Option<ResourceName>,
}

/// Limits small enough to be reached often.
fn tight(rng: &mut Rng) -> Limits {
    Limits {
        ttl_max: Span(if rng.one_in(4) { 150 } else { 1000 }),
        hold_max: Span(2000),
        leases_max: 6 + u32::from(rng.small(8)),
        leases_per_identity_max: 3 + u32::from(rng.small(4)),
        namespaces_max: 2,
        nodes_max: 10 + u32::from(rng.small(40)),
        documents_max: 2,
        agents_max: 3,
        agents_per_identity_max: 2,
        policies_max: 3,
        history_max: u32::from(rng.small(8)),
        history_members_max: u32::from(rng.small(12)),
        history_window: Span(rng.below(600)),
        requests_max: 6,
        requests_per_identity_max: 3,
        request_window: Span(rng.below(2000)),
        // Small steps, so that expiries are often overdue.
        step_max: if rng.one_in(4) { 256 } else { 1 + u32::from(rng.small(4)) },
    }
}

/// Nothing but an `open` is applied.
fn is_closed(kernel: &Kernel) -> bool {
    kernel.tenure().is_none_or(|tenure| tenure.closed.is_some())
}

/// A writable key of the bundle.
fn key_of(bundle: &Bundle) -> Option<ResourceName> {
    let may_write = |member: &&Member| member.resource.is_key() && member.predicate.may_write();
    bundle.members().iter().find(may_write).map(|member| member.resource.clone())
}

const FILES: [&str; 10] = ["/a", "/a/b", "/a/b/c", "/a/*", "/a/b/*", "/*", "/", "/d/e", "/d/*", "/ab"];

impl CommandGenerator {
    /// All steps follow from this seed.
    pub fn new(seed: u64) -> CommandGenerator {
        // Late enough for attempts older than one hour.
        CommandGenerator {
            rng: Rng::new(seed),
            lsn: 100,
            now: 10_000_000,
            term: 0,
            issued: Vec::new(),
            live: Vec::new(),
        }
    }

    /// The next step, chosen with the state of the kernel that it will be applied to.
    pub fn step(&mut self, kernel: &Kernel) -> Step {
        self.pass_time(kernel);
        self.refresh_live(kernel);
        let action = if is_closed(kernel) && !self.rng.one_in(20) { self.open() } else { self.action() };
        let internal = action.is_internal();
        let identity = (!internal && !self.rng.one_in(200)).then(|| self.caller(&action));
        let request = self.rng.one_in(4).then(|| self.request());
        let command = Command { identity, request, action };
        self.lsn += 1 + self.rng.below(3);
        self.misplace(kernel, Step { lsn: Lsn(self.lsn), now: Time(self.now), command })
    }

    /// Records the credential that the step issued, if any.
    pub fn observe(&mut self, step: &Step, outcome: &Outcome) {
        let Some(identity) = step.command.identity.clone() else { return };
        if let Outcome::Applied(Response::Granted(granted), _) = outcome {
            let held = Credential { lease: granted.lease, epoch: granted.epoch };
            let before = self.issued.iter().find(|issued| issued.held.lease == held.lease);
            let key = match &step.command.action {
                Action::Acquire(grant) | Action::Reserve(grant) => key_of(&grant.bundle),
                _ => before.and_then(|issued| issued.key.clone()),
            };
            self.issued.push(Issued { held, identity, key });
            if self.issued.len() > 24 {
                self.issued.remove(0);
            }
        }
    }

    fn refresh_live(&mut self, kernel: &Kernel) {
        let now = Time(self.now.max(kernel.now().0));
        let is_live =
            |issued: &&Issued| kernel.lease(issued.held.lease, now).is_ok_and(|view| view.ended.is_none());
        self.live = self.issued.iter().filter(is_live).cloned().collect();
    }

    /// Mostly by a little; often exactly to the next deadline, or just before or after it.
    fn pass_time(&mut self, kernel: &Kernel) {
        let due = kernel.next_due().filter(|due| due.0 >= self.now).map(|due| due.0);
        self.now = match (self.rng.below(200), due) {
            (0..120, _) => self.now,
            (120..160, _) => self.now + self.rng.below(20),
            (160..166, Some(due)) => due - 1,
            (166..173, Some(due)) => due,
            (173..180, Some(due)) => due + self.rng.below(3),
            (180, _) => self.now + 14_990 + self.rng.below(20),
            (181, _) if self.rng.one_in(4) => self.now + 299_999 + self.rng.below(4),
            _ => self.now + self.rng.below(100),
        }
        .max(self.now);
    }

    /// Occasionally gives the step an invalid LSN or time stamp.
    fn misplace(&mut self, kernel: &Kernel, mut step: Step) -> Step {
        match self.rng.below(300) {
            0 => step.lsn = kernel.last_lsn(),
            1 => step.lsn = Lsn(self.rng.number()),
            2 => step.now = Time(kernel.now().0.saturating_sub(1 + self.rng.below(1000))),
            3 => step.now = Time(Time::MAX.0 + 1 + self.rng.below(5)),
            _ => {}
        }
        step
    }

    fn action(&mut self) -> Action {
        match self.rng.below(100) {
            0..30 => Action::Acquire(self.grant()),
            30..34 => Action::Reserve(self.grant()),
            34..37 => Action::Activate(self.held()),
            37..46 => Action::Renew(self.renewals()),
            46..53 => Action::Release(self.held()),
            53..59 => Action::Rebind(self.held()),
            59..62 => Action::Touch(self.held()),
            62..76 => Action::Commit(self.commit()),
            76..81 => Action::Remove(Removal { write: self.write() }),
            81..83 => Action::Relocate(self.relocation()),
            83..85 => Action::Revoke(self.held().lease),
            85 if self.rng.one_in(3) => Action::RevokeAll(self.party()),
            85..89 => Action::Reclaim(self.held().lease),
            89 if self.rng.one_in(3) => Action::DropNamespace(self.namespace()),
            89 => Action::Pause(self.pause()),
            90..92 => Action::SetQuota(SetQuota { scope: self.scope(), quota: self.quota() }),
            92..95 => Action::Agent(self.news()),
            95..97 => {
                Action::Retract(Retraction { lease: self.held().lease, request: Some(self.request().key) })
            }
            97 if self.rng.one_in(4) => self.open(),
            97 if self.rng.one_in(8) => Action::Close(Close { to: self.rng.one_in(2).then_some(3) }),
            _ => Action::Tick,
        }
    }

    fn open(&mut self) -> Action {
        self.term += self.rng.below(8).min(1);
        let limits = if self.rng.one_in(20) {
            Limits { ttl_max: Span(self.rng.below(2) << 33), ..Limits::default() }
        } else {
            tight(&mut self.rng)
        };
        let shard = Shard(if self.rng.one_in(30) { 7 } else { 1 });
        Action::Open(Open {
            store: Store {
                shard,
                shards: if self.rng.one_in(40) { 8 } else { 4 },
                hash_seed: if self.rng.one_in(40) { 6 } else { 5 },
            },
            writer: u128::from(self.rng.below(3)),
            term: self.term,
            clocks: ClockReading { boot: 9, boot_clock: Span(self.now), unix_ms: self.rng.below(3) },
            kernel_version: match self.rng.below(30) {
                0 => 4 * u32::from(self.rng.small(2)),
                1 => 1,
                2 => 2,
                _ => 3,
            },
            limits,
            slots: self.slots(),
        })
    }

    /// Mostly all slots; sometimes all but that of one namespace.
    fn slots(&mut self) -> Slots {
        if !self.rng.one_in(6) {
            return Slots::ALL;
        }
        let left_out = Slot::of(&self.namespace());
        Slot::all().filter(|slot| *slot != left_out).collect()
    }

    fn location(&mut self) -> Location {
        let term = self.rng.below(2) * self.rng.number();
        let random = if term == 0 { 0 } else { self.rng.number() };
        Location { shard: Shard(1), term, number: self.rng.below(9999), random }
    }

    fn grant(&mut self) -> LeaseRequest {
        LeaseRequest {
            namespace: self.namespace(),
            bundle: self.bundle(),
            ttl: match self.rng.below(40) {
                0 => Span(0),
                1 => Span(u64::MAX),
                2 => Span(1001),
                _ => Span(1 + self.rng.below(400)),
            },
            on_expiry: match self.rng.below(12) {
                0 => OnExpiry::Manual,
                1..4 => OnExpiry::Hold(Span(self.rng.below(300))),
                4 if self.rng.one_in(4) => OnExpiry::Hold(Span(u64::MAX)),
                _ => OnExpiry::Free,
            },
            owner: self.rng.one_in(5).then(|| Owner::new("owner").expect("a valid name")),
            agent: self.rng.one_in(5).then(|| self.agent()),
            session: self.rng.one_in(3).then(|| self.session()),
            attempt: self.rng.one_in(3).then(|| self.attempt()),
            reason: self.rng.one_in(9).then(|| Reason::new("because").expect("a valid text")),
            metadata: self.rng.one_in(9).then(|| Metadata::new(b"{}").expect("short enough")),
        }
    }

    fn bundle(&mut self) -> Bundle {
        let size = [1, 1, 1, 2, 3][usize::from(self.rng.small(5))];
        let members = (0..size).map(|_| self.member()).collect();
        Bundle::merged(members).expect("one to three members")
    }

    fn member(&mut self) -> Member {
        let resource = match self.rng.below(5) {
            0..3 => self.key(),
            3 if self.rng.one_in(3) => ResourceName::new("TABLE", "users"),
            _ => ResourceName::new("FILE", self.rng.pick::<&str>(&FILES)),
        };
        let predicate = match self.rng.below(3) {
            0 => Predicate::Mutates,
            _ => *self.rng.pick(&Predicate::ALL),
        };
        Member { resource: resource.expect("a valid name"), predicate }
    }

    fn key(&mut self) -> Result<ResourceName, kernel::ResourceError> {
        ResourceName::key(self.rng.pick::<&str>(&["k1", "k2", "k3"]))
    }

    fn attempt(&mut self) -> Age {
        let back = if self.rng.one_in(5) { 3_599_999 + self.rng.below(4) } else { self.rng.below(2000) };
        let at = if self.rng.one_in(20) { self.now + 1 } else { self.now - back.min(self.now) };
        Age { at: Time(at), tie: self.rng.below(3) }
    }

    /// A credential: mostly of a live lease, sometimes of an ended one, sometimes invalid.
    fn held(&mut self) -> Credential {
        self.issued_one().held
    }

    fn issued_one(&mut self) -> Issued {
        let stale = self.rng.one_in(8);
        let choices = if stale || self.live.is_empty() { &self.issued } else { &self.live };
        let mut issued = match choices.last() {
            Some(last) if self.rng.one_in(3) => last.clone(),
            Some(_) => self.rng.pick(choices).clone(),
            None => {
                let lease = LeaseId { shard: Shard(1), lsn: Lsn(self.lsn) };
                Issued { held: Credential { lease, epoch: Epoch(1) }, identity: self.identity(), key: None }
            }
        };
        let held = &mut issued.held;
        match self.rng.below(60) {
            0 => held.epoch = Epoch(self.rng.below(5)),
            1 => held.lease.lsn = Lsn(self.lsn - self.rng.below(60).min(self.lsn)),
            2 => held.lease.shard = Shard(2),
            3 => held.lease.lsn = Lsn(self.lsn + 1 + self.rng.below(4)),
            _ => {}
        }
        issued
    }

    /// Mostly the holder of the lease that the action names.
    fn caller(&mut self, action: &Action) -> Identity {
        let held = match action {
            Action::Activate(held) | Action::Release(held) | Action::Rebind(held) | Action::Touch(held) => {
                Some(*held)
            }
            Action::Renew(renewals) => renewals.first().map(|renewal| renewal.held),
            Action::Commit(Commit { write, .. }) | Action::Remove(Removal { write }) => Some(write.held),
            _ => None,
        };
        let issued_for =
            |held: Credential| self.issued.iter().rev().find(|issued| issued.held.lease == held.lease);
        let owner = held.and_then(issued_for).map(|issued| issued.identity.clone());
        match owner {
            Some(owner) if !self.rng.one_in(12) => owner,
            _ => self.identity(),
        }
    }

    fn renewals(&mut self) -> Vec<Renewal> {
        let count = match self.rng.below(60) {
            0 => 0,
            1 => 257,
            2..10 => 1 + self.rng.below(4),
            _ => 1,
        };
        (0..count).map(|_| self.renewal()).collect()
    }

    fn renewal(&mut self) -> Renewal {
        let ttl = match self.rng.below(12) {
            0 => Some(Span(self.rng.below(1100))),
            1 => Some(Span(u64::MAX)),
            2..5 => Some(Span(1 + self.rng.below(300))),
            _ => None,
        };
        Renewal { held: self.held(), ttl }
    }

    fn commit(&mut self) -> Commit {
        let etag = self.etag();
        let (bytes, location) = (self.rng.below(9999), self.location());
        Commit { write: self.write(), etag, bytes, location }
    }

    fn write(&mut self) -> Write {
        let Issued { held, key, .. } = self.issued_one();
        let key = match (self.rng.below(20), key) {
            (0, _) => ResourceName::new("FILE", "/a"),
            (2.., Some(key)) => Ok(key),
            _ => self.key(),
        };
        let etag = self.etag();
        Write {
            held,
            key: key.expect("a valid name"),
            token: self.rng.one_in(4).then(|| Token(held.lease.lsn.0 + u64::from(self.rng.one_in(6)))),
            if_version: self.rng.one_in(4).then(|| Version(self.rng.below(6))),
            if_etag: self.rng.one_in(6).then(|| self.rng.one_in(2).then_some(etag)),
            release: self.rng.one_in(4),
        }
    }

    fn relocation(&mut self) -> Relocation {
        Relocation {
            namespace: self.namespace(),
            key: self.key().expect("a valid name"),
            version: Version(self.rng.below(6)),
            location: self.location(),
        }
    }

    fn party(&mut self) -> Party {
        let namespace = self.namespace();
        if self.rng.one_in(2) {
            Party::Identity(namespace, self.identity())
        } else {
            Party::Agent(namespace, self.agent())
        }
    }

    fn pause(&mut self) -> Pause {
        let whom = if self.rng.one_in(2) {
            Paused::Agent(self.namespace(), self.agent())
        } else {
            Paused::Scope(self.scope())
        };
        Pause { whom, paused: self.rng.one_in(7) }
    }

    fn scope(&mut self) -> Scope {
        Scope {
            namespace: self.rng.one_in(2).then(|| self.namespace()),
            identity: self.rng.one_in(2).then(|| self.identity()),
        }
    }

    fn quota(&mut self) -> Quota {
        Quota {
            leases_max: self.rng.one_in(6).then(|| u32::from(self.rng.small(5))),
            total_max: self.rng.one_in(5).then(|| Span(self.rng.below(500))),
            idle_max: self.rng.one_in(5).then(|| Span(self.rng.below(300))),
            acquires_per_second: self.rng.one_in(9).then(|| u32::from(self.rng.small(9))),
        }
    }

    fn news(&mut self) -> AgentAnnouncement {
        AgentAnnouncement {
            namespace: self.namespace(),
            agent: self.agent(),
            restarting: !self.rng.one_in(3),
            operator: self.rng.one_in(3),
        }
    }

    fn request(&mut self) -> IdempotencyKey {
        IdempotencyKey { key: RequestKey([self.rng.small(5); 16]), fingerprint: [self.rng.small(2); 16] }
    }

    fn etag(&mut self) -> Etag {
        Etag([self.rng.small(3); 32])
    }

    fn namespace(&mut self) -> Namespace {
        let name = if self.rng.one_in(9) { *self.rng.pick(&["other", "third"]) } else { "default" };
        Namespace::new(name).expect("a valid name")
    }

    fn identity(&mut self) -> Identity {
        Identity::new(self.rng.pick::<&str>(&["ada", "bob", "eve"])).expect("a valid name")
    }

    fn agent(&mut self) -> AgentName {
        AgentName::new(self.rng.pick::<&str>(&["a1", "a2", "a3", "a4"])).expect("a valid name")
    }

    fn session(&mut self) -> SessionName {
        SessionName::new(self.rng.pick::<&str>(&["s1", "s2"])).expect("a valid name")
    }
}
