//! The table of faults: name, file, effect, and the part of the test suite that catches it.

use std::sync::LazyLock;

/// The environment variable that selects the fault.
pub const VARIABLE: &str = "LOCKD_PLANTED";

/// Whether this fault is selected. The environment is read once.
pub fn is_selected(fault: Fault) -> bool {
    static SELECTED: LazyLock<Option<Fault>> = LazyLock::new(selected);
    *SELECTED == Some(fault)
}

/// Panics on an unknown name: otherwise every test would pass, and the fault would look uncaught.
fn selected() -> Option<Fault> {
    let name = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())?;
    let fault = Fault::named(&name);
    assert!(fault.is_some(), "no such fault: {VARIABLE}={name}");
    fault
}

macro_rules! faults {
    ($($(#[doc = $effect:literal])+ $fault:ident = $name:literal in $file:literal caught by $part:literal,)+) => {
        /// One deliberate fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[doc = $effect])+ $fault,)+
        }

        impl Fault {
            /// All faults, in the order kernel, store, engine, server.
            pub const ALL: &[Fault] = &[$(Fault::$fault,)+];

            /// The value of the environment variable that selects it.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$fault => $name,)+ }
            }

            /// What goes wrong, as one sentence.
            pub fn effect(self) -> &'static str {
                match self { $(Fault::$fault => concat!($($effect,)+).trim_ascii(),)+ }
            }

            /// The source file that contains it, from the root of the repository.
            pub fn file(self) -> &'static str {
                match self { $(Fault::$fault => concat!("crates/", $file),)+ }
            }

            /// The part of the test suite that catches it: `trial` (kernel against model), `servers` (simulated
            /// servers), or `crate/module` for a test module.
            pub fn caught_by(self) -> &'static str {
                match self { $(Fault::$fault => $part,)+ }
            }
        }
    };
}

impl Fault {
    /// The fault of this name.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL.iter().copied().find(|fault| fault.name() == name)
    }
}

faults! {
    /// A lease expires one millisecond after its deadline.
    ExpireLate = "expire-late" in "kernel/src/expiry.rs" caught by "trial",
    /// A lease expires at its deadline, one millisecond early.
    ExpireEarly = "expire-early" in "kernel/src/expiry.rs" caught by "trial",
    /// A tick skips the first lease that is due.
    TickSkipsOne = "tick-skips-one" in "kernel/src/expiry.rs" caught by "trial",
    /// A grant takes its token from the number of live leases, so the token of an ended lease is used again.
    TokenReused = "token-reused" in "kernel/src/grant.rs" caught by "trial",
    /// A rebind keeps the token from before the expiry.
    TokenKept = "token-kept" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A revoke does not advance the epoch.
    EpochKept = "epoch-kept" in "kernel/src/operator_commands.rs" caught by "trial",
    /// A release succeeds on another identity's lease.
    ReleaseAnothers = "release-anothers" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A commit or removal succeeds with a stale epoch.
    CommitStaleEpoch = "commit-stale-epoch" in "kernel/src/documents.rs" caught by "trial",
    /// A key that is created again does not continue its version numbers.
    VersionReused = "version-reused" in "kernel/src/lifecycle.rs" caught by "trial",
    /// A relocation applies to a document that was replaced concurrently.
    RelocateAnyVersion = "relocate-any-version" in "kernel/src/documents.rs" caught by "trial",
    /// A rejection is stored as the response to its idempotency key.
    RefusalKept = "refusal-kept" in "kernel/src/kernel.rs" caught by "trial",
    /// A rejection advances the kernel's time.
    RefusalMovesTime = "refusal-moves-time" in "kernel/src/kernel.rs" caught by "trial",
    /// A rejected acquire counts towards its identity's quota.
    RefusalCounts = "refusal-counts" in "kernel/src/kernel.rs" caught by "trial",
    /// An idempotency key replays its response to a different request.
    FingerprintIgnored = "fingerprint-ignored" in "kernel/src/kernel.rs" caught by "trial",
    /// A grant is retracted although its holder has used it.
    RetractUsed = "retract-used" in "kernel/src/holder_commands.rs" caught by "trial",
    /// Wait-die compares with holders only, not with waiters.
    WaitDieHoldersOnly = "wait-die-holders-only" in "kernel/src/waitdie.rs" caught by "servers",

    /// The directory entry of a new segment is not synced.
    SegmentNameUnsynced = "segment-name-unsynced" in "store/src/disk/log.rs" caught by "servers",
    /// A new segment is renamed into place before its header is durable.
    SegmentHeaderUnsynced = "segment-header-unsynced" in "store/src/disk/log.rs" caught by "sim/store_crashes",
    /// An append is not synced.
    AppendUnsynced = "append-unsynced" in "store/src/disk/log.rs" caught by "servers",
    /// An append is synced before it is written.
    SyncBeforeWrite = "sync-before-write" in "store/src/disk/log.rs" caught by "servers",
    /// A floor is renamed into place before it is durable.
    FloorUnsynced = "floor-unsynced" in "store/src/disk/log.rs" caught by "servers",
    /// The frame's checksum does not cover the LSNs.
    LsnUnchecked = "lsn-unchecked" in "store/src/frame.rs" caught by "store/lib",
    /// A frame is not compared with the checksum of its predecessor.
    ChainUnchecked = "chain-unchecked" in "store/src/disk/tail.rs" caught by "store/damage",
    /// A torn tail is not cut off.
    TornTailKept = "torn-tail-kept" in "store/src/disk/recovery.rs" caught by "store/damage",
    /// A restart appends behind a batch that it has only read, and that may not be durable.
    RecoveryUncopied = "recovery-uncopied" in "store/src/disk/recovery.rs" caught by "sim/store_recovery",
    /// A frame is read from a segment although the next segment supersedes it.
    SupersededRead = "superseded-read" in "store/src/disk/reader.rs" caught by "sim/store_recovery",
    /// A log without the batch that its last clean stop named is opened.
    CleanStopIgnored = "clean-stop-ignored" in "store/src/disk/clean_stop.rs" caught by "store/damage",
    /// The next segment is never prepared ahead: an append waits until it is zeroed.
    PreparationWithheld = "preparation-withheld" in "store/src/disk/spare.rs" caught by "store/preparation",
    /// Damage in the middle of the log is cut off like a torn tail.
    DamageCut = "damage-cut" in "store/src/disk/tail.rs" caught by "store/damage",
    /// A blob is linked under its name before it is durable.
    BlobUnsynced = "blob-unsynced" in "store/src/disk/blobs.rs" caught by "servers",
    /// The directory entry of a blob is not synced.
    BlobNameUnsynced = "blob-name-unsynced" in "store/src/disk/blobs.rs" caught by "servers",
    /// An append of unknown outcome is retried with different bytes.
    ObjectReformed = "object-reformed" in "store/src/object/log.rs" caught by "sim/object_takeover",
    /// An existing object counts as another writer's, though an earlier try of this writer may have created it.
    ObjectNotReadBack = "object-not-read-back" in "store/src/object/log.rs" caught by "sim/object_takeover",
    /// The floors are not listed after a takeover.
    FloorsUnlisted = "floors-unlisted" in "store/src/object/log.rs" caught by "sim/object_takeover",
    /// A survey does not list the floors again after reading the batches.
    SurveyTrusting = "survey-trusting" in "store/src/object/shard_objects.rs" caught by "sim/object_takeover",
    /// A writer assumes that it still owns the log.
    ConfirmBlindly = "confirm-blindly" in "store/src/object/log.rs" caught by "sim/object_takeover",
    /// Objects that begin a tenure are deleted like any other.
    TenureDeleted = "tenure-deleted" in "store/src/object/truncate.rs" caught by "sim/object_takeover",
    /// Batches are deleted before the floor above them is written.
    DeleteBeforeFloor = "delete-before-floor" in "store/src/object/truncate.rs" caught by "sim/object_takeover",

    /// The boot clock is compared across a reboot.
    ForeignBootClock = "foreign-boot-clock" in "engine/src/clock.rs" caught by "servers",
    /// After a reboot the elapsed time is taken from the wall clock.
    WallClock = "wall-clock" in "engine/src/clock.rs" caught by "servers",
    /// A log is opened at the wall clock's time, even if its last record is later.
    OpeningLsnBack = "opening-lsn-back" in "engine/src/clock.rs" caught by "servers",
    /// Ticks are not logged.
    TickUnlogged = "tick-unlogged" in "engine/src/decider.rs" caught by "servers",
    /// A new request is served before the waiters.
    Barge = "barge" in "engine/src/decider.rs" caught by "servers",
    /// Waiters are served in reverse order.
    Lifo = "lifo" in "engine/src/waiters.rs" caught by "servers",
    /// A waiter that timed out stays in the queue and is granted later.
    TimedOutStillGranted = "timed-out-still-granted" in "engine/src/decider.rs" caught by "engine/waiting",
    /// A waiter whose client has disconnected is served.
    DisconnectedStillServed = "disconnected-still-served" in "engine/src/waiters.rs" caught by "engine/waiting",
    /// An attempt keeps waiting behind an older holder.
    YoungerStays = "younger-stays" in "engine/src/decider.rs" caught by "engine/shard",
    /// An attempt waits behind any conflicting lease, and deadlock cycles are not detected.
    AttemptsAlwaysWait = "attempts-always-wait" in "engine/src/decider.rs" caught by "sim/agents",
    /// A retried attempt loses its age.
    AttemptAgeReset = "attempt-age-reset" in "engine/src/decider.rs" caught by "sim/agents",
    /// An expiry frees its resources without serving the waiters.
    ExpiryWithoutWakeup = "expiry-without-wakeup" in "engine/src/decider.rs" caught by "sim/agents",
    /// A wait never times out.
    WaitUnbounded = "wait-unbounded" in "engine/src/shard.rs" caught by "sim/agents",
    /// The search for deadlock cycles follows holders only, not waiters.
    CyclesHoldersOnly = "cycles-holders-only" in "engine/src/deadlock.rs" caught by "servers",
    /// A retry of a waiting request becomes a second waiter.
    RetryQueuesTwice = "retry-queues-twice" in "engine/src/shard.rs" caught by "servers",
    /// A grant whose response was not delivered is not retracted.
    UndeliveredStands = "undelivered-stands" in "engine/src/shard.rs" caught by "servers",
    /// A delivered grant is retracted because a later copy of its response was not delivered.
    DeliveredUndone = "delivered-undone" in "engine/src/shard.rs" caught by "servers",
    /// A grant is undone when its first response is lost, although a replay may still arrive.
    ReplayIgnored = "replay-ignored" in "engine/src/shard.rs" caught by "engine/shard",
    /// Every waiter that a command frees is granted in the same batch, however large it becomes.
    BatchUnbounded = "batch-unbounded" in "engine/src/decider.rs" caught by "engine/batch_bound",
    /// A name with many expired shared holders is refused although it is free.
    ExpiredHoldersBlock = "expired-holders-block" in "engine/src/decider.rs" caught by "engine/waiting",
    /// New work is accepted although the log has no space for it.
    NoSpaceIgnored = "no-space-ignored" in "engine/src/shard.rs" caught by "engine/shard",
    /// A full disk refuses releases too: they need as much log space as anything else.
    ReleasesNeedMost = "releases-need-most" in "engine/src/sequencer/turn.rs" caught by "servers",
    /// Two full batches are decided with log space for one: a full disk ends the process.
    FullBatchesInFlight = "full-batches-in-flight" in "engine/src/sequencer/turn.rs" caught by "servers",
    /// An append whose outcome is unknown is not repeated.
    UndecidedForgotten = "undecided-forgotten" in "engine/src/sequencer/turn.rs" caught by "servers",
    /// Responses are sent before the append.
    AnswerEarly = "answer-early" in "engine/src/sequencer/turn.rs" caught by "engine/sequencer",
    /// Rejections are sent before the append.
    RefuseEarly = "refuse-early" in "engine/src/sequencer/turn.rs" caught by "engine/sequencer",
    /// Events are published before the append: a blob is deleted before its successor is durable.
    EventsEarly = "events-early" in "engine/src/sequencer/turn.rs" caught by "engine/sequencer",
    /// A query is answered without confirming that the log is still owned.
    QueryUnconfirmed = "query-unconfirmed" in "engine/src/sequencer/batch.rs" caught by "engine/sequencer",
    /// The engine continues after a failed append.
    FailureIgnored = "failure-ignored" in "engine/src/sequencer/turn.rs" caught by "engine/sequencer",
    /// A thread that decided leaves without another look into the inbox.
    InboxUnchecked = "inbox-unchecked" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// No turn follows when the log is back from an append.
    NoTurnAfterAppend = "no-turn-after-append" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// A submitting thread that reached its limit of turns does not hand the rest to a worker.
    RestForgotten = "rest-forgotten" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// No turn follows when the delivery of a grant fails.
    FailedDeliveryUnnoticed = "failed-delivery-unnoticed" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// A timer that is set stays as it is, although something is due earlier.
    TimerKept = "timer-kept" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// A thread continues with the state that a panic left half changed.
    PoisonIgnored = "poison-ignored" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// Requests for leases are decided while waiters have not been offered yet what became free.
    RequestsOvertakeHandOff = "requests-overtake-hand-off" in "engine/src/sequencer/turn.rs" caught by "engine/sequencer",
    /// A snapshot omits the stored responses to idempotency keys.
    SnapshotForgetsRequests = "snapshot-forgets-requests" in "engine/src/checkpoint.rs" caught by "servers",
    /// A snapshot lacks the last batch that it claims to contain, and is not compared with the live state.
    SnapshotShort = "snapshot-short" in "engine/src/checkpoint.rs" caught by "servers",
    /// A snapshot is not compared with the live state.
    SnapshotUncompared = "snapshot-uncompared" in "engine/src/checkpoint.rs" caught by "engine/crashes",
    /// A snapshot omits one lease.
    SnapshotLosesRow = "snapshot-loses-row" in "engine/src/checkpoint.rs" caught by "engine/checkpointing",
    /// The rows of a new snapshot are not compared with those it was written from.
    ContentUncompared = "content-uncompared" in "engine/src/checkpoint.rs" caught by "engine/checkpointing",
    /// A new snapshot is read back from the page cache, not from the device.
    SnapshotReadFromCache = "snapshot-read-from-cache" in "engine/src/checkpoint.rs" caught by "engine/checkpointing",
    /// Only the newest snapshot is kept.
    OneSnapshot = "one-snapshot" in "engine/src/checkpoint.rs" caught by "engine/damaged_snapshots",
    /// A damaged snapshot is not deleted before its name is used again.
    DamagedNameReused = "damaged-name-reused" in "engine/src/checkpoint.rs" caught by "engine/checkpointing",
    /// The floor rises above the end of the older snapshot.
    FloorAboveOlder = "floor-above-older" in "engine/src/checkpoint.rs" caught by "engine/damaged_snapshots",
    /// Recovery gives up if the newest snapshot cannot be read.
    NewestSnapshotOnly = "newest-snapshot-only" in "engine/src/recovery.rs" caught by "engine/damaged_snapshots",
    /// The previous snapshot is deleted before the next one is durable.
    SnapshotGoesFirst = "snapshot-goes-first" in "engine/src/checkpoint.rs" caught by "servers",
    /// The floor rises above documents that were not relocated.
    FloorWithoutMoves = "floor-without-moves" in "engine/src/checkpoint.rs" caught by "servers",
    /// The floor rises before the relocated documents are durable.
    FloorBeforeMoves = "floor-before-moves" in "engine/src/engine/maintenance.rs" caught by "engine/retention",
    /// Every maintenance task postpones the garbage collection of blobs.
    CollectionStarves = "collection-starves" in "engine/src/engine/maintenance.rs" caught by "engine/lib",
    /// A blob can be held, and its first part read, while it is being deleted.
    HoldWhileDeleting = "hold-while-deleting" in "engine/src/uploads.rs" caught by "engine/retention",
    /// Garbage collection of blobs ignores pins.
    PinsIgnored = "pins-ignored" in "engine/src/uploads.rs" caught by "servers",
    /// Garbage collection of blobs reads the pins after the state.
    PinsLate = "pins-late" in "engine/src/uploads.rs" caught by "engine/retention",

    /// A response shows the time that remained at the decision, however long the sync took.
    RemainingAtDecision = "remaining-at-decision" in "server/src/backend/moment.rs" caught by "server/reported_times",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_are_unique_and_effects_fit_a_table_cell() {
        for fault in Fault::ALL {
            assert_eq!(Fault::named(fault.name()), Some(*fault));
            assert!(fault.effect().ends_with('.') && !fault.effect().contains('|'), "{fault:?}");
        }
        assert_eq!(Fault::named("none"), None);
    }
}
