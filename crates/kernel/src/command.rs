//! Commands: the content of the log's records.
//!
//! A command is self-contained: its outcome depends only on the command, its LSN, its stamp and the state
//! before it. Its parts are valid by construction; conditions that depend on the state or on the limits in
//! force are checked when it is applied.

use alloc::vec::Vec;

use crate::bundle::Bundle;
use crate::limits::{Limits, Quota};
use crate::resource::ResourceName;
use crate::slots::Slots;
use crate::text::{AgentName, Identity, Metadata, Namespace, Owner, Reason, SessionName};
use crate::units::{Age, Epoch, Etag, LeaseId, Location, Shard, Span, Token, Version};

/// One record: the identity, the idempotency key and the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The client's identity; `None` for the engine's own commands (open, close, tick, relocate,
    /// retract).
    pub identity: Option<Identity>,
    /// Set if the client may retry, so that the command is applied once.
    pub request: Option<IdempotencyKey>,
    /// The action to carry out.
    pub action: Action,
}

impl Command {
    /// A command issued by the engine itself.
    pub fn internal(action: Action) -> Command {
        Command { identity: None, request: None, action }
    }

    /// A command issued by `identity`, without an idempotency key.
    pub fn by(identity: &Identity, action: Action) -> Command {
        Command { identity: Some(identity.clone()), request: None, action }
    }

    /// The same command under an idempotency key.
    #[must_use]
    pub fn with_request(self, request: IdempotencyKey) -> Command {
        Command { request: Some(request), ..self }
    }
}

/// An idempotency key. Both halves are digests computed at the edge, so that an entry has a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdempotencyKey {
    /// Digest of the key that the client sent.
    pub key: RequestKey,
    /// Digest of the rest of the request: the same key with another fingerprint is rejected.
    pub fingerprint: [u8; 16],
}

/// Identifies a request among those of one identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(pub [u8; 16]);

/// An action. Operators' rights and holders' secrets have been verified before it reaches the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begins a tenure over the log: the first record of the log and of every start or takeover.
    Open(Open),
    /// Ends a tenure: nothing but the next `open` is applied after it.
    Close(Close),
    /// Advances time: ends overdue leases, a bounded number at a time.
    Tick,

    /// Reserve and activate in one step.
    Acquire(LeaseRequest),
    /// Grants a lease that must be activated before it is used.
    Reserve(LeaseRequest),
    /// Reserved → active.
    Activate(Credential),
    /// Extends leases, up to [`Action::MAX_BATCH`], each with its own result.
    Renew(Vec<Renewal>),
    /// Ends a lease on behalf of its holder.
    Release(Credential),
    /// Restores the authority of a holder whose expired lease is still on hold for it.
    Rebind(Credential),
    /// Records that the holder used the resource: restarts the idle clock.
    Touch(Credential),

    /// Installs a new version of a key's document.
    Commit(Commit),
    /// Removes a key's document.
    Remove(Removal),
    /// Records a new location for a document's bytes; ignored if that version is no longer current.
    Relocate(Relocation),

    /// Withdraws a holder's authority; the resources stay covered. Operators only.
    Revoke(LeaseId),
    /// Revokes a party's leases, up to [`Action::MAX_BATCH`] at a time. Operators only.
    RevokeAll(Party),
    /// Frees the resources of a lease whose holder no longer has authority. Operators only.
    Reclaim(LeaseId),
    /// Pauses or resumes new grants for a party. Operators only.
    Pause(Pause),
    /// Sets the quota of a scope, replacing the previous one. Operators only.
    SetQuota(SetQuota),

    /// Deletes a namespace and everything in it, a bounded part at a time. Operators only.
    DropNamespace(Namespace),

    /// Announces that an agent restarts or has returned.
    Agent(AgentAnnouncement),
    /// Undoes a grant whose response could not be delivered, unless the lease has been used since.
    Retract(Retraction),
}

impl Action {
    /// The maximum number of entries in one command that takes several.
    pub const MAX_BATCH: usize = 256;

    /// The name of the action: in the audit trail, in fingerprints of requests and in transcripts.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Open(_) => "open",
            Action::Close(_) => "close",
            Action::Tick => "tick",
            Action::Acquire(_) => "acquire",
            Action::Reserve(_) => "reserve",
            Action::Activate(_) => "activate",
            Action::Renew(_) => "renew",
            Action::Release(_) => "release",
            Action::Rebind(_) => "rebind",
            Action::Touch(_) => "touch",
            Action::Commit(_) => "commit",
            Action::Remove(_) => "remove",
            Action::Relocate(_) => "relocate",
            Action::Revoke(_) => "revoke",
            Action::RevokeAll(_) => "revoke_all",
            Action::Reclaim(_) => "reclaim",
            Action::Pause(_) => "pause",
            Action::SetQuota(_) => "set_quota",
            Action::DropNamespace(_) => "drop_namespace",
            Action::Agent(_) => "agent",
            Action::Retract(_) => "retract",
        }
    }

    /// Whether only the engine issues this action. All others are logged with the identity that issued
    /// them.
    pub fn is_internal(&self) -> bool {
        matches!(
            self,
            Action::Open(_) | Action::Close(_) | Action::Tick | Action::Relocate(_) | Action::Retract(_)
        )
    }
}

/// The beginning of a tenure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The store that the log belongs to: the same in every `open` of a log.
    pub store: Store,
    /// The id of the process that writes the log from here on.
    pub writer: u128,
    /// Increases with every tenure.
    pub term: u64,
    /// The writer's clocks at this record.
    pub clocks: ClockReading,
    /// The version of the rules that decide this and all later records.
    pub kernel_version: u32,
    /// The limits in force until the next `open`.
    pub limits: Limits,
    /// The slots that the log owns until the next `open`: commands for namespaces in other slots are rejected.
    pub slots: Slots,
}

/// The clocks of a machine at one moment. They let the next writer of a log compute how much time has certainly
/// passed. The kernel stores them and interprets none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    /// Identifies one boot of one machine: the boot clocks of two readings can be compared if it is the same.
    pub boot: u128,
    /// The time since boot.
    pub boot_clock: Span,
    /// The wall clock, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// The end of a tenure: its writer hands the log over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The id of the server that may open the log at once; `None`: any server may.
    pub to: Option<u128>,
}

/// Properties of a store that never change after its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// The shard whose log this is.
    pub shard: Shard,
    /// How many shards the store has.
    pub shards: u32,
    /// The seed of every hash index: random, so that clients cannot choose names that collide.
    pub hash_seed: u64,
}

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The namespace of the resources.
    pub namespace: Namespace,
    /// The resources to cover.
    pub bundle: Bundle,
    /// How long the lease lasts without a renewal.
    pub ttl: Span,
    /// When the resources become free after the lease has expired.
    pub on_expiry: OnExpiry,
    /// The owner shown to people; the identity if missing.
    pub owner: Option<Owner>,
    /// The agent that will use the lease.
    pub agent: Option<AgentName>,
    /// The client session that sends the request.
    pub session: Option<SessionName>,
    /// The age of the attempt that it is a try of; if missing, the lease is as old as its grant.
    pub attempt: Option<Age>,
    /// The reason shown to waiters.
    pub reason: Option<Reason>,
    /// Opaque data of the holder.
    pub metadata: Option<Metadata>,
}

impl LeaseRequest {
    /// Whether wait-die decides if it may wait: it is an attempt of an agent.
    pub fn is_wait_die(&self) -> bool {
        self.agent.is_some() && self.attempt.is_some()
    }
}

/// When the resources of an expired lease become free. The holder's authority ends at the deadline in
/// every case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnExpiry {
    /// Immediately.
    #[default]
    Free,
    /// This long after the deadline; until then the holder may rebind the lease.
    Hold(Span),
    /// When an operator reclaims the lease.
    Manual,
}

/// A credential without its secret, which is verified at the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Credential {
    /// The lease.
    pub lease: LeaseId,
    /// The epoch for which the credential was issued.
    pub epoch: Epoch,
}

/// One lease to extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The holder's credential.
    pub held: Credential,
    /// The new TTL, from now; the lease's own TTL if missing.
    pub ttl: Option<Span>,
}

/// A new version of a key's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The authority and the conditions of the write.
    pub write: Write,
    /// The hash of the new content.
    pub etag: Etag,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where the content is stored.
    pub location: Location,
}

/// The removal of a key's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The authority and the conditions of the write.
    pub write: Write,
}

/// The authority and the conditions of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The holder's credential.
    pub held: Credential,
    /// The key whose document is written: a member of the lease, with a predicate that permits writes.
    pub key: ResourceName,
    /// Reject unless this is the lease's fencing token.
    pub token: Option<Token>,
    /// Reject unless this is the key's version.
    pub if_version: Option<Version>,
    /// Reject unless this is the document's hash; `Some(None)`: reject unless there is no document.
    pub if_etag: Option<Option<Etag>>,
    /// Release the lease in the same record.
    pub release: bool,
}

/// A new location for a document's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The namespace of the key.
    pub namespace: Namespace,
    /// The key of the document.
    pub key: ResourceName,
    /// The version that was moved.
    pub version: Version,
    /// The new location.
    pub location: Location,
}

/// The party to which an operator's command applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// An identity in one namespace.
    Identity(Namespace, Identity),
    /// An agent in one namespace.
    Agent(Namespace, AgentName),
}

/// An administrative pause of new grants. Existing leases are unaffected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The party to pause or resume.
    pub whom: Paused,
    /// `true` pauses, `false` resumes.
    pub paused: bool,
}

/// The target of a pause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paused {
    /// All grants in a scope.
    Scope(Scope),
    /// One agent.
    Agent(Namespace, AgentName),
}

/// The holders to which a quota or a pause applies; a missing part means all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Only in this namespace.
    pub namespace: Option<Namespace>,
    /// Only this identity.
    pub identity: Option<Identity>,
}

/// A quota for each identity in a scope, per namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetQuota {
    /// The holders to which it applies.
    pub scope: Scope,
    /// The new quota; missing values fall back to the wider scopes.
    pub quota: Quota,
}

/// A status announcement by an agent or its supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAnnouncement {
    /// The namespace of the agent.
    pub namespace: Namespace,
    /// The agent's name.
    pub agent: AgentName,
    /// `true`: the agent restarts, and its leases are put on hold when they expire. `false`: it has
    /// returned.
    pub restarting: bool,
    /// Sent by an operator, who may announce for every agent.
    pub operator: bool,
}

/// A grant whose response could not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retraction {
    /// The lease.
    pub lease: LeaseId,
    /// The idempotency key of the grant: its entry is removed too, so that a retry starts over.
    pub request: Option<RequestKey>,
}
