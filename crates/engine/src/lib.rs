//! Makes the kernel's decisions durable: write-ahead log, group commit, wait queues, recovery, snapshots, documents.
//!
//! **What is absent.** No HTTP, no TLS, no command line. Clocks, randomness and stores come in as arguments.
//!
//! The modules in reading order: `correlation` is the client's id of a request, and
//! `origin` all that is known of its client; `record` encodes commands in the log, and `snapshot` a whole state; `clock` stamps;
//! `authorization` is whether a client may still act; `decision` is the decision on a command; `audit` describes
//! what was decided for the audit log; `decider` applies
//! commands and collects them into batches; `waiting` has the wait queues, hand-off and deadlock detection; `rates`
//! limits requests, and `memory` what they may occupy; `documents` locates documents, and `inline_documents`
//! reads those in the log; `shard` is all of that, one batch at a time;
//! `executor` has the threads, and `sequencer` drives a shard with them; `recovery` goes from a store to a state; `checkpoint` does the same beside
//! the live state, to snapshot it and to truncate the log; `uploads` are documents that are too long for the log;
//! `follower` is the state of a log that another process may write, and `engine` a running shard. `stopwatch` is for metrics only, `reach` for the simulator.

// `planted!(Fault)`: whether a deliberate fault is switched on; `false` without the feature `planted`.
#[macro_use]
extern crate planted;

#[macro_use]
mod reach;
mod wire;
mod correlation;
mod origin;
mod record;
mod snapshot;
mod clock;
mod authorization;
mod decision;
mod audit;
mod decider;
mod waiting;
mod rates;
mod memory;
mod documents;
mod inline_documents;
mod shard;
mod sync;
mod executor;
mod sequencer;
mod recovery;
mod checkpoint;
mod uploads;
mod follower;
mod engine;
mod stopwatch;

pub use authorization::Authorization;
pub use clock::{Clock, MachineClock};
pub use correlation::{NO_CORRELATION, correlation_id};
pub use decider::TenureConfig;
pub use decision::{Decision, OnDecided, Reply, Unavailable};
pub use engine::{Engine, OpenError, Options};
pub use executor::{Executor, Workers};
pub use follower::Follower;
pub use origin::Origin;
pub use recovery::RecoveryError;
pub use sequencer::{Delivery, ReplyTo};
pub use shard::{RENEWALS_MAX, Submission};

/// The versions of rules, batches and snapshots that this build writes. It reads a log whose versions are all these or earlier.
pub const LOG_VERSIONS: [u32; 3] =
    [kernel::KERNEL_VERSION, record::BATCH_VERSION as u32, snapshot::SNAPSHOT_VERSION];

/// Requests for leases that wait, and the reasons why others may not.
pub mod waiters {
    pub use crate::decision::{Advice, Blocked};
    pub use crate::waiting::{Arrival, Attempt, Ticket, Wait, Waiter, WaiterConnection, Waiters};
}

/// Limits in bytes.
pub mod limits {
    pub use crate::memory::{ExceededLimit, LimitUsage, MemoryBudget, MemoryLimits};
}

/// Where documents are stored, and the blobs of those that are too long for the log.
pub mod document {
    pub use crate::documents::DocumentLocation;
    pub use crate::uploads::{Pin, ReadHold, Upload};

    /// The longest document that the log can contain, in bytes.
    pub const INLINE_MAX: usize = crate::record::Record::DOCUMENT_MAX;
}

/// What an engine reports about itself: events, failures, durations.
pub mod observe {
    pub use crate::audit::{AuditEntry, AuditedChange, AuditedFact};
    pub use crate::decision::{ContentionEvent, ContentionOutcome};
    pub use crate::engine::{EngineObserver, Fatal, MaintenanceEvent, RecoverySummary};
    pub use crate::recovery::{DamagedSnapshot, SnapshotDamage};
    pub use crate::sequencer::Measure;
    pub use crate::shard::LogSpace;
    pub use crate::stopwatch::Stopwatch;
}

/// The parts of an engine, for the simulator, which drives them step by step, and for tests and tools. Not part of the
/// interface: the server uses none of it.
pub mod internals {
    /// See the module of this name in the sources.
    pub mod record {
        pub use crate::record::*;
    }
    /// See the module of this name in the sources.
    pub mod snapshot {
        pub use crate::snapshot::*;
    }
    /// See the module of this name in the sources.
    pub mod clock {
        pub use crate::clock::*;
    }
    /// See the module of this name in the sources.
    pub mod decider {
        pub use crate::decider::*;
    }
    /// See the module of this name in the sources.
    pub mod waiting {
        pub use crate::waiting::*;
    }
    /// See the module of this name in the sources.
    pub mod documents {
        pub use crate::documents::*;
    }
    /// See the module of this name in the sources.
    pub mod shard {
        pub use crate::shard::*;
    }
    /// See the module of this name in the sources.
    pub mod executor {
        pub use crate::executor::*;
    }
    /// See the module of this name in the sources.
    pub mod sequencer {
        pub use crate::sequencer::*;
    }
    /// See the module of this name in the sources.
    #[cfg(feature = "reach")]
    pub mod reach {
        pub use crate::reach::*;
    }
    /// See the module of this name in the sources.
    pub mod recovery {
        pub use crate::recovery::*;
    }
    /// See the module of this name in the sources.
    pub mod checkpoint {
        pub use crate::checkpoint::*;
    }
    /// See the module of this name in the sources.
    pub mod uploads {
        pub use crate::uploads::*;
    }
    /// See the module of this name in the sources.
    pub mod engine {
        pub use crate::engine::*;
    }
}
