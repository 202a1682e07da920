//! The lease state machine of lockd.
//!
//! [`Kernel::apply`] is the only entry point that changes state and decides one command at a time; queries
//! only read; a [`Snapshot`] is the whole state as plain data. Replaying the same log always produces the
//! same state.
//!
//! **What is absent.** No I/O, no clock, no randomness, no threads, no floats, and nothing that depends on
//! the iteration order of a hash table. Time and LSNs come with each command. There are no secrets:
//! credentials are verified before a command is built. There are no waiters: the kernel reports
//! conflicting leases, and the engine decides which request waits.
//!
//! The modules are listed in the order in which a newcomer should read them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

// `planted!(Fault)`: whether a deliberate fault is switched on; `false` without the feature `planted`.
#[macro_use]
extern crate planted;

// The vocabulary.
mod units;
mod text;
mod resource;
mod predicate;
mod bundle;
mod limits;
mod slots;
mod command;
mod outcome;

// The state machine: decide, begin, write.
mod kernel;
mod expiry;
mod conflict;
mod grant;
mod authority;
mod holder_commands;
mod documents;
mod operator_commands;
mod namespaces;
mod party_lifecycle;
mod lifecycle;
mod waitdie;

// State: rows and indexes.
mod lease;
mod history;
mod node;
mod claims;
mod timers;
mod party_rows;
mod requests;
mod chain;
mod lease_index;
mod table;
mod slab;
mod statehash;

// Queries, snapshots and checks.
mod view;
mod pages;
mod wait_graph;
mod footprint;
mod snapshot;
mod content;
pub mod invariants;

pub use bundle::{Bundle, BundleError, Member};
pub use command::{
    Action, AgentAnnouncement, ClockReading, Close, Command, Commit, Credential, IdempotencyKey,
    LeaseRequest, OnExpiry, Open, Party, Pause, Paused, Relocation, Removal, Renewal, RequestKey, Retraction,
    Scope, SetQuota, Store, Write,
};
pub use footprint::{Footprint, IdentityFootprint};
pub use history::{EndReason, LeaseAttributes};
pub use kernel::{KERNEL_VERSION, Kernel, Tenure};
pub use lease::Phase;
pub use limits::{Limits, Quota};
pub use node::Document;
pub use outcome::{
    BoundedTable, Conflict, DocumentTag, Event, Granted, InvalidRecord, Live, Outcome, Rejection, Response,
    State,
};
pub use pages::{PAGE_BYTES, PAGE_ROWS, Page};
pub use party_rows::{Policy, Restart};
pub use predicate::Predicate;
pub use requests::IdempotencyEntry;
pub use resource::{ClaimSetKind, ResourceError, ResourceName};
pub use slots::{Slot, Slots};
pub use snapshot::{AgentData, EndedLeaseData, KeyData, LeaseData, NamespaceData, RestoreError, Snapshot};
pub use text::{AgentName, Identity, Metadata, Namespace, Owner, Reason, SessionName, TextError};
pub use units::{Age, Epoch, Etag, LeaseId, Location, Lsn, Shard, Span, Time, Token, Version};
pub use view::{AgentState, AgentView, Counts, Cursor, KeyView, LeaseEnd, LeaseView};
pub use wait_graph::{ConflictCursor, SearchStep, SessionCursor};
pub use waitdie::{Verdict, judge};
