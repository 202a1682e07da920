//! The state machine: one entry point, one path.
//!
//! [`Kernel::apply`] checks everything before it writes, so a refusal leaves no trace. The changes of a
//! command are a function of the state, the command, its LSN and its stamp; recovery makes the same calls
//! in the same order.
//!
//! Each kind of command has its own file beside this one, and all have the same shape: *decide* (reads
//! only), then [`Kernel::begin`] (advances time, ends overdue leases), then *write*.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::command::{Action, ClockReading, Close, Command, Open, Party, Pause, Paused, RequestKey, Store};
use crate::footprint::{Footprint, IdentityFootprint};
use crate::history::History;
use crate::lease::{LeaseRef, Leases, Phase};
use crate::lease_index::LeaseIndex;
use crate::limits::Limits;
use crate::node::{ClaimKey, Node};
use crate::outcome::{Event, InvalidRecord, Outcome, Rejection, Response};
use crate::pages::VisitCounter;
use crate::party_rows::{Account, Agent, NamespaceRow, Policies, Session};
use crate::predicate::Class;
use crate::requests::{IdempotencyEntry, IdempotencyTable};
use crate::resource::ClaimSetKind;
use crate::slots::Slot;
use crate::statehash::StateHash;
use crate::table::{RowId, Table};
use crate::text::{Identity, Namespace};
use crate::timers::Timers;
use crate::units::{LeaseId, Lsn, Time, Token, Version};

/// The version of the rules that this build decides by. Older logs are replayed by the version they name.
///
/// | version | change |
/// |---|---|
/// | 1 | |
/// | 2 | a namespace can be deleted |
/// | 3 | a log owns slots, and can be closed |
pub const KERNEL_VERSION: u32 = 3;

/// The first kernel version that can close a log.
const CLOSE_SINCE: u32 = 3;

/// The lease state machine of one shard.
#[derive(Default)]
pub struct Kernel {
    pub(crate) tenure: Option<Tenure>,
    pub(crate) last: Lsn,
    pub(crate) now: Time,
    pub(crate) clocks: Option<ClockReading>,
    pub(crate) hash: StateHash,

    pub(crate) leases: Leases,
    /// Every lease with a readable id: live leases and history.
    pub(crate) index: LeaseIndex,
    pub(crate) timers: Timers,
    pub(crate) history: History,

    pub(crate) namespaces: Table<NamespaceRow>,
    /// At least the version floor of every deleted namespace.
    pub(crate) floor: Version,
    pub(crate) nodes: Table<Node>,
    /// The number of nodes with a document.
    pub(crate) documents: u32,

    pub(crate) accounts: Table<Account>,
    /// The identities of the accounts.
    pub(crate) identities: Table<IdentityFootprint>,
    pub(crate) footprint: Footprint,
    /// Incremented when an account or namespace row is removed: row ids found earlier are valid while this
    /// is unchanged.
    pub(crate) generation: u64,
    pub(crate) agents: Table<Agent>,
    /// When agents without leases are removed.
    pub(crate) agent_timers: BTreeMap<(Time, Lsn), RowId<Agent>>,
    pub(crate) sessions: Table<Session>,
    /// The claims of each session, ordered by session.
    pub(crate) session_claims: BTreeSet<(NonZeroU32, ClaimKey, Lsn)>,
    pub(crate) policies: Policies,
    pub(crate) requests: IdempotencyTable,

    /// The tokens that are not the LSN of their lease's grant, each with that LSN: leases that were rebound.
    pub(crate) rebound: BTreeSet<(Token, Lsn)>,
    /// Rows visited by queries.
    pub(crate) visits: VisitCounter,

    /// The events of the current command so far.
    pub(crate) events: Vec<Event>,
    /// Buffer for one lease's claims, reused to avoid an allocation per command.
    pub(crate) claim_buffer: Vec<(RowId<Node>, ClaimSetKind, Class)>,
}

/// The current writer of the log, with its rules and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The last `open` record.
    pub open: Open,
    /// The LSN of that record.
    pub opened_lsn: Lsn,
    /// The stamp of that record.
    pub opened_at: Time,
    /// The `close` that ended the tenure.
    pub closed: Option<Close>,
}

/// The LSN and time of a record.
#[derive(Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) lsn: Lsn,
    pub(crate) now: Time,
}

/// Why a command was not applied: it needs no change, or it is rejected.
pub(crate) enum NotApplied {
    Unchanged(Response),
    Rejected(Rejection),
}

impl From<Rejection> for NotApplied {
    fn from(rejection: Rejection) -> NotApplied {
        NotApplied::Rejected(rejection)
    }
}

/// The result of a handler. On `Err` nothing has changed.
pub(crate) type CommandResult = Result<Response, NotApplied>;

impl Kernel {
    /// A kernel before the first record of its log. It accepts only an `open`.
    pub fn new() -> Kernel {
        Kernel::default()
    }

    /// Decides one command, and carries it out unless it is rejected.
    ///
    /// Never panics on any input. Only [`Outcome::Applied`] has changed the state.
    pub fn apply(&mut self, lsn: Lsn, now: Time, command: &Command) -> Outcome {
        let stamp = Stamp { lsn, now };
        match self.admit(stamp, command).and_then(|()| self.dispatch(stamp, command)) {
            Ok(answer) => {
                self.store_response(command, &answer);
                let events = core::mem::take(&mut self.events);
                self.hash.record(lsn, now, &events);
                Outcome::Applied(answer, events)
            }
            Err(NotApplied::Unchanged(answer)) => Outcome::Unchanged(answer),
            Err(NotApplied::Rejected(rejection)) => {
                self.plant_refusal_faults(now, command);
                Outcome::Rejected(rejection)
            }
        }
    }

    fn dispatch(&mut self, stamp: Stamp, command: &Command) -> CommandResult {
        let by = || command.identity.as_ref().ok_or(Rejection::InvalidRecord(InvalidRecord::NoIdentity));
        match &command.action {
            Action::Open(open) => self.open(stamp, open),
            Action::Close(close) => self.close(stamp, *close),
            Action::Tick => self.tick(stamp),
            Action::Acquire(request) => self.acquire(stamp, by()?, request, Phase::Active),
            Action::Reserve(request) => self.acquire(stamp, by()?, request, Phase::Reserved),
            Action::Activate(held) => self.activate(stamp, by()?, *held),
            Action::Renew(renewals) => self.renew(stamp, by()?, renewals),
            Action::Release(held) => self.release(stamp, by()?, *held),
            Action::Rebind(held) => self.rebind(stamp, by()?, *held),
            Action::Touch(held) => self.touch(stamp, by()?, *held),
            Action::Commit(commit) => self.commit(stamp, by()?, commit),
            Action::Remove(removal) => self.remove(stamp, by()?, removal, command.request.is_some()),
            Action::Relocate(relocation) => self.relocate(stamp, relocation),
            Action::Revoke(lease) => self.revoke(stamp, *lease),
            Action::RevokeAll(party) => self.revoke_all(stamp, party),
            Action::Reclaim(lease) => self.reclaim(stamp, *lease),
            Action::Pause(pause) => self.pause(stamp, pause),
            Action::SetQuota(set) => self.set_quota(stamp, set),
            Action::DropNamespace(namespace) => self.drop_namespace(stamp, namespace),
            Action::Agent(news) => self.agent_news(stamp, by()?, news),
            Action::Retract(retraction) => self.retract(stamp, *retraction),
        }
    }

    /// Checks common to all commands: position in the log, and idempotency key.
    fn admit(&self, stamp: Stamp, command: &Command) -> Result<(), NotApplied> {
        let misplaced = |why| Err(NotApplied::Rejected(Rejection::InvalidRecord(why)));
        if stamp.lsn <= self.last || stamp.lsn > Lsn::MAX {
            return misplaced(InvalidRecord::Lsn { last: self.last });
        }
        if stamp.now < self.now || stamp.now > Time::MAX {
            return misplaced(InvalidRecord::Time { last: self.now });
        }
        if self.tenure.is_none() && !matches!(command.action, Action::Open(_)) {
            return misplaced(InvalidRecord::NotOpen);
        }
        if command.identity.is_none() && !command.action.is_internal() {
            return misplaced(InvalidRecord::NoIdentity);
        }
        self.admit_tenure(command)?;
        self.admit_request(stamp.now, command)
    }

    /// A closed log takes nothing but the next `open`; an open one takes commands for the slots that it owns.
    fn admit_tenure(&self, command: &Command) -> Result<(), Rejection> {
        let Some(tenure) = self.tenure.as_ref().filter(|_| !matches!(command.action, Action::Open(_))) else {
            return Ok(());
        };
        if let Some(Close { to }) = tenure.closed.filter(|_| !planted!(CloseIgnored)) {
            return Err(Rejection::Moved { to });
        }
        match named_namespace(&command.action) {
            Some(namespace) if !self.owns(namespace) => Err(Rejection::Moved { to: None }),
            _ => Ok(()),
        }
    }

    /// Whether the log owns the slot of a namespace.
    pub fn owns(&self, namespace: &Namespace) -> bool {
        let slots = self.tenure.as_ref().map(|tenure| &tenure.open.slots);
        slots.is_none_or(|slots| {
            slots.is_all() || slots.contains(Slot::of(namespace)) || planted!(SlotsIgnored)
        })
    }

    /// A retry gets its stored response; a new request needs capacity for an entry.
    fn admit_request(&self, now: Time, command: &Command) -> Result<(), NotApplied> {
        let Some((identity, request)) = idempotency_key_of(command) else { return Ok(()) };
        match self.requests.find(identity, request.key, now) {
            Some(entry) if entry.request != *request && !planted!(FingerprintIgnored) => {
                Err(Rejection::RequestMismatch.into())
            }
            Some(entry) => Err(NotApplied::Unchanged(self.replay(now, identity, &entry.answer)?)),
            None => match self.requests.exceeded(identity, self.limits(), now) {
                Some((table, max)) => Err(Rejection::Full { table, max }.into()),
                None => Ok(()),
            },
        }
    }

    /// Whether this command would be answered from its idempotency entry, without being applied again.
    pub fn is_retry(&self, now: Time, command: &Command) -> bool {
        idempotency_key_of(command)
            .is_some_and(|(identity, request)| self.requests.find(identity, request.key, now).is_some())
    }

    /// Whether a response is stored for this identity and key.
    pub fn has_response(&self, now: Time, identity: &Identity, key: RequestKey) -> bool {
        self.requests.find(identity, key, now).is_some()
    }

    /// Stores the response for retries. A partial deletion has no final response yet: the same request
    /// continues it.
    fn store_response(&mut self, command: &Command, answer: &Response) {
        if matches!(answer, Response::Dropped { more: true }) || planted!(RequestForgotten) {
            return;
        }
        let Some((identity, request)) = idempotency_key_of(command) else { return };
        let lapses_at = self.now.after(self.limits().request_window);
        let (identity, answer) = (identity.clone(), answer.clone());
        self.hash.bytes(&request.key.0);
        self.hash.bytes(&request.fingerprint);
        self.hash.word(lapses_at.0);
        let namespace = self.namespace_of_command(&command.action);
        self.requests.insert(IdempotencyEntry { identity, namespace, request: *request, lapses_at, answer });
    }

    /// The point of no return: the command will be carried out.
    ///
    /// Discards old history, idempotency entries and agents, then ends the overdue leases among `touched`,
    /// then other overdue leases: a bounded number of each. History is trimmed first, so that leases ended
    /// by this command can still be read after it.
    pub(crate) fn begin(&mut self, stamp: Stamp, touched: &[LeaseRef]) {
        self.last = stamp.lsn;
        self.now = stamp.now;
        self.retire();
        self.requests.lapse(self.now, self.limits().step_max as usize);
        self.forget_agents();
        for lease in touched {
            self.settle(*lease);
        }
        self.expire_due();
    }

    fn open(&mut self, stamp: Stamp, open: &Open) -> CommandResult {
        let misplaced = |why| Err(NotApplied::Rejected(Rejection::InvalidRecord(why)));
        if stamp.lsn > Lsn::MAX_OPEN {
            return misplaced(InvalidRecord::Lsn { last: self.last });
        }
        if !open.limits.are_valid() {
            return misplaced(InvalidRecord::Limits);
        }
        let oldest = self.tenure.as_ref().map_or(1, |tenure| tenure.open.kernel_version);
        if !(oldest..=KERNEL_VERSION).contains(&open.kernel_version) {
            return misplaced(InvalidRecord::KernelVersion { newest: KERNEL_VERSION });
        }
        match &self.tenure {
            Some(tenure) if tenure.open.store != open.store => return misplaced(InvalidRecord::Store),
            Some(tenure) if tenure.open.term >= open.term => {
                return misplaced(InvalidRecord::Term { last: tenure.open.term });
            }
            Some(_) => {}
            None if open.store.shard.0 >= open.store.shards => return misplaced(InvalidRecord::Store),
            None => self.seed_indexes(open.store),
        }
        let (opened_lsn, opened_at) = (stamp.lsn, stamp.now);
        self.tenure = Some(Tenure { open: open.clone(), opened_lsn, opened_at, closed: None });
        self.begin(stamp, &[]);
        let ClockReading { boot, boot_clock, unix_ms } = open.clocks;
        self.hash.words([open.term, u64::from(open.kernel_version), boot_clock.0, unix_ms]);
        self.hash.bytes(&open.writer.to_le_bytes());
        self.hash.bytes(&boot.to_le_bytes());
        open.slots.words().for_each(|word| self.hash.word(word));
        self.hash.words(open.limits.named().map(|(_, limit)| limit));
        Ok(Response::Opened)
    }

    fn close(&mut self, stamp: Stamp, close: Close) -> CommandResult {
        if !self.follows_rules_since(CLOSE_SINCE) {
            let misplaced = InvalidRecord::KernelVersion { newest: KERNEL_VERSION };
            return Err(Rejection::InvalidRecord(misplaced).into());
        }
        self.begin(stamp, &[]);
        self.tenure.as_mut().expect("it was just looked at").closed = Some(close);
        self.hash.bytes(&close.to.unwrap_or_default().to_le_bytes());
        Ok(Response::Closed)
    }

    /// Whether the log is written by the rules of this kernel version, or of a later one.
    pub(crate) fn follows_rules_since(&self, version: u32) -> bool {
        self.tenure.as_ref().is_some_and(|tenure| tenure.open.kernel_version >= version)
    }

    /// The clocks of the writer when it sealed the last batch; `None` if they are unknown.
    pub fn clocks(&self) -> Option<ClockReading> {
        self.clocks
    }

    /// Records the clocks of the batch that was just applied. They decide nothing: the kernel stores them so that
    /// they are in its snapshots.
    pub fn set_clocks(&mut self, clocks: Option<ClockReading>) {
        self.clocks = clocks;
    }

    /// Must be called while the tables are empty.
    pub(crate) fn seed_indexes(&mut self, store: Store) {
        let seed = store.hash_seed;
        self.index = LeaseIndex::new(seed);
        self.namespaces = Table::new(seed);
        self.nodes = Table::new(seed);
        self.accounts = Table::new(seed);
        self.identities = Table::new(seed);
        self.agents = Table::new(seed);
        self.sessions = Table::new(seed);
    }

    /// Planted faults that let a refusal change the state; does nothing without the `planted` feature.
    fn plant_refusal_faults(&mut self, now: Time, command: &Command) {
        if planted!(RefusalKept) {
            self.store_response(command, &Response::Done);
        }
        if planted!(RefusalMovesTime) {
            self.now = self.now.max(now);
        }
        if planted!(RefusalCounts) {
            self.count_refused_grant(command);
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        static CLOSED: Limits = Limits::NONE;
        self.tenure.as_ref().map_or(&CLOSED, |tenure| &tenure.open.limits)
    }

    /// The namespace of an action that was just applied, named by it or by its lease.
    fn namespace_of_command(&self, action: &Action) -> Option<Namespace> {
        named_namespace(action).cloned().or_else(|| {
            let account = self.account_of(self.index.get(named_lease(action)?.lsn)?);
            Some(self.namespace_of(self.accounts[account].parent))
        })
    }

    pub(crate) fn lease_id(&self, lsn: Lsn) -> LeaseId {
        let shard = self.tenure.as_ref().map(|tenure| tenure.open.store.shard).unwrap_or_default();
        LeaseId { shard, lsn }
    }
}

/// The namespace that an action names; `None` if it names a lease or none.
fn named_namespace(action: &Action) -> Option<&Namespace> {
    match action {
        Action::Acquire(request) | Action::Reserve(request) => Some(&request.namespace),
        Action::Relocate(relocation) => Some(&relocation.namespace),
        Action::RevokeAll(Party::Identity(namespace, _) | Party::Agent(namespace, _))
        | Action::DropNamespace(namespace)
        | Action::Pause(Pause { whom: Paused::Agent(namespace, _), .. }) => Some(namespace),
        Action::Pause(Pause { whom: Paused::Scope(scope), .. }) => scope.namespace.as_ref(),
        Action::SetQuota(set) => set.scope.namespace.as_ref(),
        Action::Agent(news) => Some(&news.namespace),
        Action::Open(_)
        | Action::Close(_)
        | Action::Tick
        | Action::Activate(_)
        | Action::Renew(_)
        | Action::Release(_)
        | Action::Rebind(_)
        | Action::Touch(_)
        | Action::Commit(_)
        | Action::Remove(_)
        | Action::Revoke(_)
        | Action::Reclaim(_)
        | Action::Retract(_) => None,
    }
}

/// The lease that an action names, if it names one.
fn named_lease(action: &Action) -> Option<LeaseId> {
    match action {
        Action::Activate(held) | Action::Release(held) | Action::Rebind(held) | Action::Touch(held) => {
            Some(held.lease)
        }
        Action::Commit(commit) => Some(commit.write.held.lease),
        Action::Remove(removal) => Some(removal.write.held.lease),
        Action::Revoke(lease) | Action::Reclaim(lease) => Some(*lease),
        Action::Retract(retraction) => Some(retraction.lease),
        _ => None,
    }
}

/// The idempotency key of a command. Renewals and releases are safe to repeat and store no response.
fn idempotency_key_of(command: &Command) -> Option<(&Identity, &crate::command::IdempotencyKey)> {
    match command.action {
        Action::Renew(_) | Action::Release(_) => None,
        _ => Some((command.identity.as_ref()?, command.request.as_ref()?)),
    }
}
