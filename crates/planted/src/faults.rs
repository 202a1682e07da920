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
    /// A page of a list visits all rows.
    PageUnbounded = "page-unbounded" in "kernel/src/pages.rs" caught by "kernel/pages",
    /// Wait-die compares with holders only, not with waiters.
    WaitDieHoldersOnly = "wait-die-holders-only" in "kernel/src/waitdie.rs" caught by "servers",
    /// A reserved lease stays reserved after its deadline.
    ReservedOverdue = "reserved-overdue" in "kernel/src/expiry.rs" caught by "trial",
    /// A lease with a hold frees its resources when it expires.
    HoldIgnored = "hold-ignored" in "kernel/src/expiry.rs" caught by "trial",
    /// A manual hold ends by itself after 15 seconds.
    ManualEnds = "manual-ends" in "kernel/src/expiry.rs" caught by "trial",
    /// The leases of a restarting agent get no grace.
    GraceIgnored = "grace-ignored" in "kernel/src/expiry.rs" caught by "trial",
    /// Ended leases are discarded before their window is over.
    HistoryRetiredEarly = "history-retired-early" in "kernel/src/expiry.rs" caught by "trial",
    /// A lease that ended by a quota can be rebound.
    RebindCapped = "rebind-capped" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A rebind succeeds with a credential older than the last one.
    RebindOldEpoch = "rebind-old-epoch" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A paused identity can rebind.
    RebindPaused = "rebind-paused" in "kernel/src/holder_commands.rs" caught by "kernel/regressions",
    /// A release succeeds with a credential older than the last one.
    ReleaseOldEpoch = "release-old-epoch" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A release in an expiry hold frees nothing.
    ReleaseKeepsHold = "release-keeps-hold" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A renewal with a short TTL shortens the lease.
    RenewShortens = "renew-shortens" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A renewal restarts the idle clock.
    RenewCountsAsUse = "renew-counts-as-use" in "kernel/src/holder_commands.rs" caught by "trial",
    /// The undo of a grant keeps its idempotency entry.
    RetractKeepsRequest = "retract-keeps-request" in "kernel/src/holder_commands.rs" caught by "trial",
    /// A reserved lease is renewed, touched and written under.
    ReservedUsed = "reserved-used" in "kernel/src/authority.rs" caught by "trial",
    /// An expired lease is honoured until a tick has ended its row.
    DeadlineIgnored = "deadline-ignored" in "kernel/src/authority.rs" caught by "trial",
    /// A replay shows the stored response, although the lease has changed or ended since.
    ReplayStored = "replay-stored" in "kernel/src/authority.rs" caught by "trial",
    /// A replay reports a whole TTL instead of the time that remains.
    ReplayRestartsTtl = "replay-restarts-ttl" in "kernel/src/authority.rs" caught by "servers",
    /// Accepted requests are not stored: a retry is applied again.
    RequestForgotten = "request-forgotten" in "kernel/src/kernel.rs" caught by "trial",
    /// A revoke frees the resources at once.
    RevokeFrees = "revoke-frees" in "kernel/src/operator_commands.rs" caught by "trial",
    /// A reclaim succeeds on an active lease.
    ReclaimActive = "reclaim-active" in "kernel/src/operator_commands.rs" caught by "trial",
    /// A reclaimed expiry hold ends as revoked.
    ReclaimAsRevoked = "reclaim-as-revoked" in "kernel/src/operator_commands.rs" caught by "trial",
    /// A write succeeds with the token of another lease.
    TokenUnchecked = "token-unchecked" in "kernel/src/documents.rs" caught by "trial",
    /// A lease that may only read a key writes its document.
    ReaderWrites = "reader-writes" in "kernel/src/documents.rs" caught by "engine/linearizable",
    /// The version condition of a write is ignored.
    VersionUnchecked = "version-unchecked" in "kernel/src/documents.rs" caught by "engine/linearizable",
    /// The ETag condition of a write is ignored.
    EtagUnchecked = "etag-unchecked" in "kernel/src/documents.rs" caught by "trial",
    /// A removal keeps the version of the removed document.
    RemovalKeepsVersion = "removal-keeps-version" in "kernel/src/documents.rs" caught by "engine/linearizable",
    /// A namespace that is used again starts below the versions of its last use.
    FloorForgotten = "floor-forgotten" in "kernel/src/party_lifecycle.rs" caught by "trial",
    /// An idempotency entry lapses one millisecond early.
    RequestLapsesEarly = "request-lapses-early" in "kernel/src/requests.rs" caught by "trial",
    /// One identity may fill the whole idempotency table.
    RequestShareIgnored = "request-share-ignored" in "kernel/src/requests.rs" caught by "trial",
    /// An identity may hold one lease more than its quota.
    QuotaOffByOne = "quota-off-by-one" in "kernel/src/grant.rs" caught by "trial",
    /// The quota for the total lifetime of a lease is ignored.
    TotalQuotaIgnored = "total-quota-ignored" in "kernel/src/limits.rs" caught by "trial",
    /// A pause of all namespaces is ignored.
    WidePauseIgnored = "wide-pause-ignored" in "kernel/src/party_rows.rs" caught by "trial",
    /// Two providers of one resource are compatible.
    ProvidersShare = "providers-share" in "kernel/src/predicate.rs" caught by "engine/linearizable",
    /// A lease on a subtree is granted over leases beneath it.
    BeneathUnchecked = "beneath-unchecked" in "kernel/src/conflict.rs" caught by "trial",
    /// A request that its own session blocks gets an ordinary conflict.
    OwnLeaseUnnoticed = "own-lease-unnoticed" in "kernel/src/conflict.rs" caught by "trial",
    /// Two attempts of equal age wait for each other.
    EqualAgeWaits = "equal-age-waits" in "kernel/src/waitdie.rs" caught by "kernel/lib",
    /// A revoked lease keeps the deadline that it had.
    RevokeKeepsDeadline = "revoke-keeps-deadline" in "kernel/src/operator_commands.rs" caught by "trial",
    /// A removal that finds nothing is not stored under its idempotency key.
    EmptyRemovalForgotten = "empty-removal-forgotten" in "kernel/src/documents.rs" caught by "trial",
    /// A log decides commands after its close.
    CloseIgnored = "close-ignored" in "kernel/src/kernel.rs" caught by "trial",
    /// A log takes commands for slots that it does not own.
    SlotsIgnored = "slots-ignored" in "kernel/src/kernel.rs" caught by "trial",

    /// A converted store maps ranges of slots to shards, so that namespaces are looked up in the wrong shard.
    ConvertedToRanges = "converted-to-ranges" in "store/src/slot_map.rs" caught by "store/store_file",
    /// A store opens with any key.
    StoreKeyUnchecked = "store-key-unchecked" in "store/src/disk/store_file.rs" caught by "store/store_file",
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
    /// A restart does not cut the segment that it leaves to the length that is used.
    RemainderKept = "remainder-kept" in "store/src/disk/recovery.rs" caught by "sim/store_recovery",
    /// Every restart after a crash begins a segment, however short the last one is.
    SegmentPerRestart = "segment-per-restart" in "store/src/disk/recovery.rs" caught by "store/damage",
    /// The length in a torn frame's header is trusted, although one bit of it was flipped.
    LengthTrusted = "length-trusted" in "store/src/disk/tail.rs" caught by "sim/store_recovery",
    /// Of a new directory's parents only the first is synced.
    ParentsUnsynced = "parents-unsynced" in "store/src/fs.rs" caught by "sim/store_crashes",
    /// A frame is read from a segment although the next segment supersedes it.
    SupersededRead = "superseded-read" in "store/src/disk/reader.rs" caught by "store/inspect",
    /// A log without the batch that its last clean stop named is opened.
    CleanStopIgnored = "clean-stop-ignored" in "store/src/disk/clean_stop.rs" caught by "store/damage",
    /// An operator's cut is accepted at a place that is not damaged.
    CutAnywhere = "cut-anywhere" in "store/src/disk/cut.rs" caught by "store/cut",
    /// A view names a place to cut below the floor, where a cut is refused.
    CutPlaceBelowFloor = "cut-place-below-floor" in "store/src/disk/cut.rs" caught by "store/cut",
    /// Segments and blobs are deleted while a backup reads them.
    BackupLockIgnored = "backup-lock-ignored" in "store/src/disk/backup_lock.rs" caught by "backup/online",
    /// A backup does not keep the server from deleting what it copies.
    BackupUnheld = "backup-unheld" in "backup/src/take.rs" caught by "backup/online",
    /// A file of a backup is not compared with its hash.
    BackupUnhashed = "backup-unhashed" in "backup/src/verify.rs" caught by "backup/damage",
    /// A backup is restored although the clock is behind the time at which it was taken.
    RestoreClockIgnored = "restore-clock-ignored" in "backup/src/restore.rs" caught by "backup/restored",
    /// The next segment is never prepared ahead: an append waits until it is zeroed.
    PreparationWithheld = "preparation-withheld" in "store/src/disk/spare.rs" caught by "store/preparation",
    /// Damage in the middle of the log is cut off like a torn tail.
    DamageCut = "damage-cut" in "store/src/disk/tail.rs" caught by "store/damage",
    /// A blob is linked under its name before it is durable.
    BlobUnsynced = "blob-unsynced" in "store/src/disk/blobs.rs" caught by "servers",
    /// The directory entry of a blob is not synced.
    BlobNameUnsynced = "blob-name-unsynced" in "store/src/disk/blobs.rs" caught by "servers",
    /// A blob stays in the page cache when it is evicted.
    BlobNotEvicted = "blob-not-evicted" in "store/src/disk/blobs.rs" caught by "store/eviction",
    /// A hand-over ends the tenure without a record: the next owner has to wait for the silence.
    HandOverUnlogged = "hand-over-unlogged" in "engine/src/sequencer/turn.rs" caught by "engine/sequencer",
    /// The callers of an append that may be in the log are told that it did not happen.
    TruncatedAppendRefused = "truncated-append-refused" in "engine/src/sequencer/turn.rs" caught by "engine/sequencer",
    /// A server that has lost its log follows with the state that it had, and does not recover.
    FollowsUnrecovered = "follows-unrecovered" in "engine/src/follower.rs" caught by "engine/follower",
    /// A follower opens a tenure without reading to the end of the log.
    FollowerNotCaughtUp = "follower-not-caught-up" in "engine/src/follower.rs" caught by "engine/follower",
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
    TenureDeleted = "tenure-deleted" in "store/src/object/maintenance.rs" caught by "sim/object_takeover",
    /// Batches are deleted before the floor above them is written.
    DeleteBeforeFloor = "delete-before-floor" in "store/src/object/log.rs" caught by "sim/object_takeover",

    /// The boot clock is compared across a reboot.
    ForeignBootClock = "foreign-boot-clock" in "engine/src/clock.rs" caught by "servers",
    /// After a reboot the elapsed time is taken from the wall clock.
    WallClock = "wall-clock" in "engine/src/clock.rs" caught by "servers",
    /// A log is opened at the wall clock's time, even if its last record is later.
    OpeningLsnBack = "opening-lsn-back" in "engine/src/clock.rs" caught by "servers",
    /// An opening takes the next LSN, which a torn batch may have used.
    OpeningLsnDense = "opening-lsn-dense" in "engine/src/clock.rs" caught by "engine/lib",
    /// The boot clock alone decides how long a server was down.
    BootClockAlone = "boot-clock-alone" in "engine/src/clock.rs" caught by "engine/lib",
    /// The time since the last record was read does not count.
    SilenceIgnored = "silence-ignored" in "engine/src/clock.rs" caught by "engine/lib",
    /// The boot clock is read with the offset of the time namespace.
    TimeNamespaceIgnored = "time-namespace-ignored" in "engine/src/clock/machine.rs" caught by "engine/lib",
    /// Clones of a machine count as the same boot.
    MachineIgnored = "machine-ignored" in "engine/src/clock/machine.rs" caught by "engine/lib",
    /// History is retired by the next command only, not by time.
    IdleHistoryKept = "idle-history-kept" in "engine/src/decider.rs" caught by "engine/shard",
    /// Blobs of one term have names that another writer of that term would use too.
    BlobNameGuessable = "blob-name-guessable" in "engine/src/uploads.rs" caught by "engine/retention",
    /// Ticks are not logged.
    TickUnlogged = "tick-unlogged" in "engine/src/decider.rs" caught by "servers",
    /// A new request is served before the waiters.
    Barge = "barge" in "engine/src/waiting/admission.rs" caught by "servers",
    /// Waiters are served in reverse order.
    Lifo = "lifo" in "engine/src/waiting/attempts.rs" caught by "servers",
    /// A waiter that returns may close a deadlock cycle.
    ReturnClosesCycle = "return-closes-cycle" in "engine/src/waiting/admission.rs" caught by "servers",
    /// Attempts stay behind an older waiter that has overtaken them.
    OvertakenStays = "overtaken-stays" in "engine/src/waiting/departure.rs" caught by "servers",
    /// A token counts although it has lapsed.
    LapsedAttemptCounts = "lapsed-attempt-counts" in "engine/src/waiting/attempts.rs" caught by "engine/attempts",
    /// A token counts after the grant of its attempt.
    GrantedAttemptCounts = "granted-attempt-counts" in "engine/src/waiting/attempts.rs" caught by "servers",
    /// Grants of earlier tenures are forgotten: their tokens count again after a restart.
    GrantsForgottenAtOpen = "grants-forgotten-at-open" in "engine/src/waiting/attempts.rs" caught by "engine/attempts",
    /// A waiter that timed out stays in the queue and is granted later.
    TimedOutStillGranted = "timed-out-still-granted" in "engine/src/waiting/departure.rs" caught by "engine/shard",
    /// A waiter whose client has disconnected is served.
    DisconnectedStillServed = "disconnected-still-served" in "engine/src/waiting/serving.rs" caught by "engine/waiting",
    /// An attempt keeps waiting behind an older holder.
    YoungerStays = "younger-stays" in "engine/src/waiting/departure.rs" caught by "engine/shard",
    /// An attempt waits behind any conflicting lease, and deadlock cycles are not detected.
    AttemptsAlwaysWait = "attempts-always-wait" in "engine/src/waiting/verdict.rs" caught by "sim/agents",
    /// A retried attempt loses its age.
    AttemptAgeReset = "attempt-age-reset" in "engine/src/waiting/verdict.rs" caught by "sim/agents",
    /// An expiry frees its resources without serving the waiters.
    ExpiryWithoutWakeup = "expiry-without-wakeup" in "engine/src/decider.rs" caught by "sim/agents",
    /// A wait never times out.
    WaitUnbounded = "wait-unbounded" in "engine/src/waiting/parked.rs" caught by "sim/agents",
    /// The search for deadlock cycles follows holders only, not waiters.
    CyclesHoldersOnly = "cycles-holders-only" in "engine/src/waiting/deadlock.rs" caught by "servers",
    /// A retry of a waiting request becomes a second waiter.
    RetryQueuesTwice = "retry-queues-twice" in "engine/src/waiting/admission.rs" caught by "servers",
    /// A grant whose response was not delivered is not retracted.
    UndeliveredStands = "undelivered-stands" in "engine/src/shard.rs" caught by "servers",
    /// A delivered grant is retracted because a later copy of its response was not delivered.
    DeliveredUndone = "delivered-undone" in "engine/src/shard.rs" caught by "servers",
    /// A grant is undone when its first response is lost, although a replay may still arrive.
    ReplayIgnored = "replay-ignored" in "engine/src/shard.rs" caught by "engine/shard",
    /// Every waiter that a command frees is granted in the same batch, however large it becomes.
    BatchUnbounded = "batch-unbounded" in "engine/src/waiting/serving.rs" caught by "engine/batch_bound",
    /// Work on waiters ignores the budget of its turn.
    BudgetIgnored = "budget-ignored" in "engine/src/waiting/budget.rs" caught by "engine/waiting_cost",
    /// Each turn offers freed resources to the first waiters again, instead of continuing after the last that was tried.
    CursorRestarted = "cursor-restarted" in "engine/src/waiting/serving.rs" caught by "engine/waiting_cost",
    /// A search for deadlock cycles that exceeds its budget is dropped, and the request waits.
    SearchForgotten = "search-forgotten" in "engine/src/waiting/admission.rs" caught by "engine/deadlock",
    /// The backward search follows a waiter to the waiters ahead of it, instead of those behind it.
    CycleEdgeReversed = "cycle-edge-reversed" in "engine/src/waiting/deadlock.rs" caught by "engine/deadlock",
    /// A search for deadlock cycles reads a node's leases before its wait queues.
    LeasesReadFirst = "leases-read-first" in "engine/src/waiting/deadlock.rs" caught by "engine/deadlock",
    /// A rebind does not restart the reading of holders in a suspended search.
    RebindOverlooked = "rebind-overlooked" in "engine/src/waiting.rs" caught by "engine/deadlock",
    /// A waiter times out although the waiter that blocked it has left in the same turn.
    LastOfferSkipped = "last-offer-skipped" in "engine/src/waiting/serving.rs" caught by "engine/waiting",
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
    /// The callers of queries are not released when the sequencer ends, and wait for ever.
    QueriesKept = "queries-kept" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// A thread continues with the state that a panic left half changed.
    PoisonIgnored = "poison-ignored" in "engine/src/sequencer/turn.rs" caught by "engine/shuttle",
    /// Requests for leases are decided while waiters have not been offered yet what became free.
    RequestsOvertakeHandOff = "requests-overtake-hand-off" in "engine/src/sequencer/turn.rs" caught by "engine/hand_off",
    /// The bytes that earlier tenures logged since the last snapshot do not count towards the next.
    MarksForgotten = "marks-forgotten" in "engine/src/engine.rs" caught by "engine/engine",
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
    CollectionStarves = "collection-starves" in "engine/src/engine/tasks.rs" caught by "engine/lib",
    /// A blob can be held, and its first part read, while it is being deleted.
    HoldWhileDeleting = "hold-while-deleting" in "engine/src/uploads.rs" caught by "engine/retention",
    /// Garbage collection of blobs ignores pins.
    PinsIgnored = "pins-ignored" in "engine/src/uploads.rs" caught by "servers",
    /// Garbage collection of blobs reads the pins after the state.
    PinsLate = "pins-late" in "engine/src/uploads.rs" caught by "engine/retention",
    /// A superseded blob is deleted while it is read.
    ReadHoldIgnored = "read-hold-ignored" in "engine/src/uploads.rs" caught by "engine/retention",
    /// A blob is released for deletion by the first of its readers.
    ReadHoldShared = "read-hold-shared" in "engine/src/uploads.rs" caught by "engine/retention",
    /// Garbage collection of a deposed server deletes the blobs of its successor.
    NewerTermSwept = "newer-term-swept" in "engine/src/uploads.rs" caught by "engine/retention",
    /// Below a floor, another writer's object decides an append whose outcome is unknown.
    AnothersBelowFloor = "anothers-below-floor" in "store/src/object/log.rs" caught by "store/lib",
    /// A commit may name a blob of another term, which garbage collection may have deleted.
    ForeignBlobCommitted = "foreign-blob-committed" in "engine/src/shard.rs" caught by "engine/retention",
    /// An upload is pinned only until its bytes are durable, not until its commit is decided.
    UnpinnedEarly = "unpinned-early" in "engine/src/uploads.rs" caught by "servers",
    /// A relocated document keeps its old location.
    RelocationUnrecorded = "relocation-unrecorded" in "engine/src/decider.rs" caught by "servers",
    /// The rate of requests is counted from the start, not by the second.
    RateNeverResets = "rate-never-resets" in "engine/src/rates.rs" caught by "engine/rates",
    /// A rate quota is not enforced.
    RateIgnored = "rate-ignored" in "engine/src/rates.rs" caught by "engine/rates",
    /// A command is decided although its client's authorization was withdrawn.
    WithdrawnDecided = "withdrawn-decided" in "engine/src/shard.rs" caught by "engine/authorization",
    /// A command of many parts continues after its client's authorization was withdrawn.
    WithdrawnContinues = "withdrawn-continues" in "engine/src/shard.rs" caught by "engine/authorization",
    /// A waiter is granted its lease after its client's authorization was withdrawn.
    WithdrawnWaits = "withdrawn-waits" in "engine/src/waiting/connection.rs" caught by "engine/authorization",
    /// No limit in bytes is enforced.
    MemoryUnlimited = "memory-unlimited" in "engine/src/memory.rs" caught by "engine/memory",
    /// A retry of an accepted request counts towards the rate.
    RetryRateLimited = "retry-rate-limited" in "engine/src/shard.rs" caught by "engine/rates",
    /// A response that was handed to its socket is reported as lost.
    ConfirmedAsLost = "confirmed-as-lost" in "engine/src/sequencer/delivery.rs" caught by "engine/sequencer",

    /// A response shows the time that remained at the decision, however long the sync took.
    RemainingAtDecision = "remaining-at-decision" in "server/src/backend/moment.rs" caught by "server/reported_times",
    /// A response counts as delivered once its request's task could read it.
    ReplyIsDelivery = "reply-is-delivery" in "server/src/backend/shards.rs" caught by "server/dropped_requests",
    /// A long document is stored before its lease is checked.
    UploadUnchecked = "upload-unchecked" in "server/src/backend/upload.rs" caught by "server/memory_limits",
    /// Bodies and responses have no limit in bytes.
    BudgetUnlimited = "budget-unlimited" in "server/src/backend/byte_budget.rs" caught by "server/memory_limits",
    /// The server reports that it is ready in every state.
    ReadyAlways = "ready-always" in "server/src/handlers/health.rs" caught by "server/readiness",
    /// `/readyz` does not show the torn tails that the start cut off.
    TornTailsHidden = "torn-tails-hidden" in "server/src/handlers/health.rs" caught by "server/readiness",
    /// A torn tail that was cut off is not counted.
    TornTailsUncounted = "torn-tails-uncounted" in "server/src/backend/metrics.rs" caught by "server/readiness",
    /// A hold of any length needs no right.
    HoldWithoutRight = "hold-without-right" in "server/src/parse/lease_request.rs" caught by "server/holds",
    /// A forged `attempt_id` counts.
    AttemptForged = "attempt-forged" in "server/src/parse/attempt.rs" caught by "server/lib",
    /// An `attempt_id` counts for another request.
    AttemptOfAnother = "attempt-of-another" in "server/src/parse/attempt.rs" caught by "server/lib",
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
