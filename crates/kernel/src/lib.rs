//! The lease state machine of lockd.
//!
//! One entry point, [`Kernel::apply`], decides one command after the other; queries read; a
//! [`Snapshot`] holds the whole state as plain data. The same log gives the same state, always.
//!
//! **What is absent.** No I/O, no clock, no randomness, no threads, no floats, and nothing that
//! depends on the order of a hash table. Time and LSNs come with each command. There are no secrets
//! here: credentials are verified before a command is made of them. There are no waiters either: the
//! kernel says who is in the way, and others decide who waits.
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
mod command;
mod outcome;

// The state machine: decide, begin, write.
mod kernel;
mod expiry;
mod conflict;
mod grant;
mod authority;
mod holder;
mod documents;
mod operator;
mod namespaces;
mod parties;
mod lifecycle;
mod waitdie;

// What it keeps.
mod lease;
mod history;
mod node;
mod holders;
mod timers;
mod party;
mod requests;
mod chain;
mod whereabouts;
mod table;
mod slab;
mod statehash;

// Looking at it.
mod view;
mod snapshot;
pub mod invariants;

pub use bundle::{Bundle, BundleError, Member};
pub use command::{
    Action, AgentNews, Command, Commit, Grant, Held, OnExpiry, Open, Party, Pause, Paused, Relocation,
    Removal, Renewal, Request, RequestKey, Retraction, Scope, SetQuota, Store, Write,
};
pub use history::{Details, End};
pub use kernel::{KERNEL_VERSION, Kernel, Tenure};
pub use lease::Phase;
pub use limits::{Limits, Quota};
pub use node::Document;
pub use outcome::{
    Answer, Bounded, Conflict, DocumentTag, Event, Granted, Live, Misplaced, Outcome, Rejection, State,
};
pub use party::{Policy, Restart};
pub use predicate::Predicate;
pub use requests::Entry;
pub use resource::{Part, ResourceError, ResourceName};
pub use snapshot::{AgentData, KeyData, LeaseData, NamespaceData, PastData, RestoreError, Snapshot};
pub use text::{AgentName, Identity, Metadata, Namespace, Owner, Reason, SessionName, TextError};
pub use units::{Age, Epoch, Etag, LeaseId, Location, Lsn, Shard, Span, Time, Token, Version};
pub use view::{AgentState, AgentView, Counts, Cursor, Ended, KeyView, LeaseView};
pub use waitdie::{Verdict, judge};
