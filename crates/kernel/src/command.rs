//! What the log's records ask of the kernel.
//!
//! A command is complete: whatever is decided depends on it, its LSN, its stamp and the state before
//! it, and on nothing else. Its parts are valid by construction; what depends on the state or on the
//! limits in force is checked when it is applied.

use alloc::vec::Vec;

use crate::bundle::Bundle;
use crate::limits::{Limits, Quota};
use crate::resource::ResourceName;
use crate::text::{AgentName, Identity, Metadata, Namespace, Owner, Reason, SessionName};
use crate::units::{Age, Epoch, Etag, LeaseId, Location, Shard, Span, Token, Version};

/// One record: who asks, under which idempotency key, for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Who is asking; `None` for what the engine itself does (open, tick, relocate, retract).
    pub identity: Option<Identity>,
    /// Set when the client may retry and must be answered once.
    pub request: Option<Request>,
    /// What is asked.
    pub action: Action,
}

impl Command {
    /// A command of the engine's own.
    pub fn internal(action: Action) -> Command {
        Command { identity: None, request: None, action }
    }

    /// A command of `identity`, without an idempotency key.
    pub fn by(identity: &Identity, action: Action) -> Command {
        Command { identity: Some(identity.clone()), request: None, action }
    }

    /// The same command under an idempotency key.
    #[must_use]
    pub fn with_request(self, request: Request) -> Command {
        Command { request: Some(request), ..self }
    }
}

/// An idempotency key. Both halves are digests, made at the edge, so that an entry has a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// Of the key that the client sent.
    pub key: RequestKey,
    /// Of all the rest that it sent: the same key with another fingerprint is refused.
    pub fingerprint: [u8; 16],
}

/// Names a request among those of one identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub [u8; 16]);

/// What is asked. Operators' rights and holders' secrets have been verified before it gets here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begins a tenure over the log: the first record, and the first of every start or takeover.
    Open(Open),
    /// Time has passed: ends what is due, a bounded number at a time.
    Tick,

    /// Reserve and activate in one step.
    Acquire(Grant),
    /// Grants a lease that must be activated before it is used.
    Reserve(Grant),
    /// Reserved → active.
    Activate(Held),
    /// Extends leases, up to [`Action::MAX_BATCH`], each answered on its own.
    Renew(Vec<Renewal>),
    /// The holder is done.
    Release(Held),
    /// The holder of an expired lease that is still held for it takes it back.
    Rebind(Held),
    /// The holder has used the resource: restarts the idle clock.
    Touch(Held),

    /// Installs a new version of a key's document.
    Commit(Commit),
    /// Removes a key's document.
    Remove(Removal),
    /// The bytes of a document have moved; nothing if that version is no longer current.
    Relocate(Relocation),

    /// An operator withdraws a holder's authority; the resources stay taken.
    Revoke(LeaseId),
    /// An operator withdraws a party's leases, up to [`Action::MAX_BATCH`] at a time.
    RevokeAll(Party),
    /// An operator frees the resources of a lease whose holder has no authority any more.
    Reclaim(LeaseId),
    /// An operator stops or lets go on a party's new grants.
    Pause(Pause),
    /// An operator sets what a scope may use, replacing what was set before.
    SetQuota(SetQuota),

    /// An operator deletes a namespace with all that is in it, a bounded part at a time.
    DropNamespace(Namespace),

    /// An agent says that it restarts, or is back.
    Agent(AgentNews),
    /// The answer to a grant could not be delivered: undoes it, if it was not used since.
    Retract(Retraction),
}

impl Action {
    /// The most entries one command may have, where it takes several.
    pub const MAX_BATCH: usize = 256;

    /// Is it the engine's own doing? Everything else is somebody's, and the log says whose.
    pub fn is_internal(&self) -> bool {
        matches!(self, Action::Open(_) | Action::Tick | Action::Relocate(_) | Action::Retract(_))
    }
}

/// The beginning of a tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The store that the log belongs to: the same in every `open` of a log.
    pub store: Store,
    /// Who writes the log from here on.
    pub writer: u128,
    /// Rises with every tenure.
    pub term: u64,
    /// The boot of the writer's machine, and its clock at this record: for the next writer to tell
    /// how much time has certainly passed. The kernel keeps both and looks at neither.
    pub boot_id: u128,
    /// See `boot_id`.
    pub boot_clock: Span,
    /// The rules by which this and all later records are decided.
    pub kernel_version: u32,
    /// In force until the next `open`.
    pub limits: Limits,
}

/// What is fixed when a store is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// The shard whose log this is.
    pub shard: Shard,
    /// How many shards the store has.
    pub shards: u32,
    /// The seed of every hash index: random, so that nobody can choose names that collide.
    pub hash_seed: u64,
}

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Where the resources are.
    pub namespace: Namespace,
    /// What the lease shall cover.
    pub bundle: Bundle,
    /// How long it lasts without a renewal.
    pub ttl: Span,
    /// When the resources may be granted again after the lease has run out.
    pub on_expiry: OnExpiry,
    /// For people to read; the identity where it is missing.
    pub owner: Option<Owner>,
    /// The agent on whose behalf.
    pub agent: Option<AgentName>,
    /// The run of the program that asks.
    pub session: Option<SessionName>,
    /// The age of a wait-die attempt; without one the lease is as old as its grant.
    pub attempt: Option<Age>,
    /// Shown to those who wait.
    pub reason: Option<Reason>,
    /// The holder's own.
    pub metadata: Option<Metadata>,
}

/// When the resources of a lease that ran out may be granted again. Its authority has ended anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnExpiry {
    /// At once.
    #[default]
    Free,
    /// So long after the deadline; until then the holder may take the lease back.
    Hold(Span),
    /// When an operator reclaims it.
    Manual,
}

/// A credential as the kernel sees it: the secret was checked at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The lease.
    pub lease: LeaseId,
    /// The epoch that the credential was issued for.
    pub epoch: Epoch,
}

/// One lease to extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The holder's credential.
    pub held: Held,
    /// For how long from now; the lease's own TTL where it is missing.
    pub ttl: Option<Span>,
}

/// A new version of a key's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// What it is done under, and on which conditions.
    pub write: Write,
    /// The hash of the new content.
    pub etag: Etag,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it is.
    pub location: Location,
}

/// The removal of a key's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// What it is done under, and on which conditions.
    pub write: Write,
}

/// The authority and the conditions of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The holder's credential.
    pub held: Held,
    /// The key whose document is written: a member of the lease, with a predicate that may write.
    pub key: ResourceName,
    /// Refuse unless this is the lease's fencing token.
    pub token: Option<Token>,
    /// Refuse unless this is the key's version.
    pub if_version: Option<Version>,
    /// Refuse unless this is the document's hash; `Some(None)`: unless there is no document.
    pub if_etag: Option<Option<Etag>>,
    /// Release the lease in the same step.
    pub release: bool,
}

/// Where a document's bytes are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Where the key is.
    pub namespace: Namespace,
    /// Whose document.
    pub key: ResourceName,
    /// Which version of it.
    pub version: Version,
    /// Where it is now.
    pub location: Location,
}

/// Whom an operator means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// An identity in one namespace.
    Identity(Namespace, Identity),
    /// An agent in one namespace.
    Agent(Namespace, AgentName),
}

/// An administrative stop to new grants. Leases that are held go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Whose grants.
    pub whom: Paused,
    /// Stop, or let go on.
    pub paused: bool,
}

/// Whose grants are stopped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paused {
    /// All that fall into a scope.
    Scope(Scope),
    /// One agent.
    Agent(Namespace, AgentName),
}

/// Which holders a quota or a pause is about; a missing part means all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Only in this namespace.
    pub namespace: Option<Namespace>,
    /// Only this identity.
    pub identity: Option<Identity>,
}

/// What each identity in a scope may use, in each namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetQuota {
    /// Whom it is about.
    pub scope: Scope,
    /// What is set; what it leaves out falls back to the wider scopes.
    pub quota: Quota,
}

/// What an agent, or its supervisor, says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentNews {
    /// Where.
    pub namespace: Namespace,
    /// Which agent.
    pub agent: AgentName,
    /// `true`: it restarts, and its leases shall be held for it past their expiry. `false`: it is back.
    pub restarting: bool,
    /// Said by an operator, who may speak for every agent.
    pub operator: bool,
}

/// A grant whose answer reached nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retraction {
    /// The lease.
    pub lease: LeaseId,
    /// The idempotency key it was granted under: forgotten with it, so that a retry starts afresh.
    pub request: Option<RequestKey>,
}
