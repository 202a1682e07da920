//! Deliberate faults in kernel, store and engine, one of which can be switched on at run time: what the suite
//! does not notice then, it would not notice if somebody made the mistake in earnest.
//!
//! **What is absent.** Anything that a product has in it: the crates depend on this one only with their feature
//! `planted`, and without it `planted!(Name)` is the word `false`.
//!
//! `LOCKD_PLANTED=<name>` chooses the fault. `cargo run --release -p sim --features planted -- planted` tries
//! all of them.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

/// The variable that chooses the fault.
pub const VARIABLE: &str = "LOCKD_PLANTED";

/// Is this the fault that was chosen? The environment is read once.
pub fn is(fault: Fault) -> bool {
    static CHOSEN: LazyLock<Option<Fault>> = LazyLock::new(chosen);
    *CHOSEN == Some(fault)
}

/// A name that is no fault's would let everything pass, and look like a hole.
fn chosen() -> Option<Fault> {
    let name = std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())?;
    let fault = Fault::named(&name);
    assert!(fault.is_some(), "no such fault: {VARIABLE}={name}");
    fault
}

macro_rules! faults {
    ($($(#[doc = $what:literal])+ $fault:ident = $name:literal in $place:literal,)+) => {
        /// One deliberate fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[doc = $what])+ $fault,)+
        }

        impl Fault {
            /// All of them, from the inside out.
            pub const ALL: &[Fault] = &[$(Fault::$fault,)+];

            /// What the variable says for it.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$fault => $name,)+ }
            }

            /// What it does.
            pub fn what(self) -> &'static str {
                match self { $(Fault::$fault => concat!($($what,)+).trim_ascii(),)+ }
            }

            /// The file that it is in.
            pub fn place(self) -> &'static str {
                match self { $(Fault::$fault => concat!("crates/", $place),)+ }
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
    /// Authority ends one millisecond after the deadline.
    ExpireLate = "expire-late" in "kernel/src/expiry.rs",
    /// Authority ends at the deadline, one millisecond early.
    ExpireEarly = "expire-early" in "kernel/src/expiry.rs",
    /// A tick passes by the first lease that is due.
    TickSkipsOne = "tick-skips-one" in "kernel/src/expiry.rs",
    /// A grant's token counts the leases there are, so one that is over gives its number back.
    TokenReused = "token-reused" in "kernel/src/grant.rs",
    /// A rebind keeps the token that the lease had before it ran out.
    TokenKept = "token-kept" in "kernel/src/holder_commands.rs",
    /// A revoke leaves the epoch as it is.
    EpochKept = "epoch-kept" in "kernel/src/operator_commands.rs",
    /// A release frees whoever's lease it names.
    ReleaseAnothers = "release-anothers" in "kernel/src/holder_commands.rs",
    /// A commit or removal is taken under an older epoch.
    CommitStaleEpoch = "commit-stale-epoch" in "kernel/src/documents.rs",
    /// A key that is made anew does not go on from the versions it had.
    VersionReused = "version-reused" in "kernel/src/lifecycle.rs",
    /// A document is said to have moved, though it was replaced meanwhile.
    RelocateAnyVersion = "relocate-any-version" in "kernel/src/documents.rs",
    /// A refusal is kept as the answer to its idempotency key.
    RefusalKept = "refusal-kept" in "kernel/src/kernel.rs",
    /// A refusal moves the kernel's time.
    RefusalMovesTime = "refusal-moves-time" in "kernel/src/kernel.rs",
    /// A refused grant counts towards its identity's quota.
    RefusalCounts = "refusal-counts" in "kernel/src/kernel.rs",
    /// A key that was used for something else answers all the same.
    FingerprintIgnored = "fingerprint-ignored" in "kernel/src/kernel.rs",
    /// A grant is undone although its holder has used it.
    RetractUsed = "retract-used" in "kernel/src/holder_commands.rs",
    /// Wait-die looks at holders, and not at those who wait.
    WaitDieHoldersOnly = "wait-die-holders-only" in "kernel/src/waitdie.rs",

    /// A new segment's name is not synced.
    SegmentNameUnsynced = "segment-name-unsynced" in "store/src/disk/log.rs",
    /// A new segment gets its name before its header is durable.
    SegmentHeaderUnsynced = "segment-header-unsynced" in "store/src/disk/log.rs",
    /// An append is not synced.
    AppendUnsynced = "append-unsynced" in "store/src/disk/log.rs",
    /// An append is synced before it is written.
    SyncBeforeWrite = "sync-before-write" in "store/src/disk/log.rs",
    /// A floor gets its name before it is durable.
    FloorUnsynced = "floor-unsynced" in "store/src/disk/log.rs",
    /// The LSNs are outside the frame's checksum.
    LsnUnchecked = "lsn-unchecked" in "store/src/frame.rs",
    /// Nobody compares a frame with the checksum of the one before it.
    ChainUnchecked = "chain-unchecked" in "store/src/disk/tail.rs",
    /// A torn tail stays where it is.
    TornTailKept = "torn-tail-kept" in "store/src/disk/log.rs",
    /// Damage in the middle of the log is cut off like a torn tail.
    DamageCut = "damage-cut" in "store/src/disk/tail.rs",
    /// A blob gets its name before it is durable.
    BlobUnsynced = "blob-unsynced" in "store/src/disk/blobs.rs",
    /// A blob's name is not synced.
    BlobNameUnsynced = "blob-name-unsynced" in "store/src/disk/blobs.rs",
    /// An undecided append is tried again in other bytes.
    ObjectReformed = "object-reformed" in "store/src/object/log.rs",
    /// A name in use counts as another's, though an earlier try of our own may have made it.
    ObjectNotReadBack = "object-not-read-back" in "store/src/object/log.rs",
    /// Nobody looks at the floors after a takeover.
    FloorsUnlisted = "floors-unlisted" in "store/src/object/log.rs",
    /// A survey does not look at the floors again after it has read.
    SurveyTrusting = "survey-trusting" in "store/src/object/shard_objects.rs",
    /// A writer believes that it still has the log.
    ConfirmBlindly = "confirm-blindly" in "store/src/object/log.rs",
    /// Objects that begin a tenure are deleted like others.
    TenureDeleted = "tenure-deleted" in "store/src/object/truncate.rs",
    /// Batches are deleted before the floor above them is made.
    DeleteBeforeFloor = "delete-before-floor" in "store/src/object/truncate.rs",

    /// The boot clock counts across a reboot.
    ForeignBootClock = "foreign-boot-clock" in "engine/src/clock.rs",
    /// After a reboot the wall clock says how much has passed.
    WallClock = "wall-clock" in "engine/src/clock.rs",
    /// A log is opened at the wall clock's time, though its last record may be above that.
    OpeningLsnBack = "opening-lsn-back" in "engine/src/clock.rs",
    /// What a tick does is not logged.
    TickUnlogged = "tick-unlogged" in "engine/src/decider.rs",
    /// Whoever asks is served before those who wait.
    Barge = "barge" in "engine/src/decider.rs",
    /// Those who wait are served the last first.
    Lifo = "lifo" in "engine/src/waiters.rs",
    /// One who waited long enough stays in the queue, and is granted in the end.
    TiredStillGranted = "tired-still-granted" in "engine/src/decider.rs",
    /// One whom nobody listens to any more is served in its turn.
    GoneStillServed = "gone-still-served" in "engine/src/waiters.rs",
    /// An attempt stays behind a holder that is older.
    YoungerStays = "younger-stays" in "engine/src/decider.rs",
    /// An attempt waits for whoever is in its way, and nobody looks for rings.
    AttemptsAlwaysWait = "attempts-always-wait" in "engine/src/decider.rs",
    /// An attempt that comes again is as young as its last try.
    AttemptAgesAnew = "attempt-ages-anew" in "engine/src/decider.rs",
    /// A lease that runs out frees its resources, and nobody who waits is told.
    ExpiryWakesNobody = "expiry-wakes-nobody" in "engine/src/decider.rs",
    /// One who waits is never told that its time is over.
    WaitUnbounded = "wait-unbounded" in "engine/src/shard.rs",
    /// The search for rings looks at holders, and not at those who wait.
    RingsHoldersOnly = "rings-holders-only" in "engine/src/deadlock.rs",
    /// A retry of a request that waits becomes a second waiter.
    RetryQueuesTwice = "retry-queues-twice" in "engine/src/shard.rs",
    /// A grant that reached nobody stands.
    UndeliveredStands = "undelivered-stands" in "engine/src/shard.rs",
    /// A grant that reached its holder is undone, since a later answer with it did not.
    DeliveredUndone = "delivered-undone" in "engine/src/shard.rs",
    /// Without room for it, new work is taken all the same.
    NoSpaceIgnored = "no-space-ignored" in "engine/src/shard.rs",
    /// Answers go out before the append.
    AnswerEarly = "answer-early" in "engine/src/sequencer.rs",
    /// Refusals go out at once.
    RefuseEarly = "refuse-early" in "engine/src/sequencer.rs",
    /// What has happened is told before the append: a blob goes before its successor is durable.
    FollowerEarly = "follower-early" in "engine/src/sequencer.rs",
    /// What was only looked at is told without asking whether the log is still ours.
    LookUnconfirmed = "look-unconfirmed" in "engine/src/sequencer.rs",
    /// After an append that failed everything goes on.
    FailureIgnored = "failure-ignored" in "engine/src/sequencer.rs",
    /// A snapshot leaves out the kept answers.
    SnapshotForgetsRequests = "snapshot-forgets-requests" in "engine/src/checkpoint.rs",
    /// A snapshot lacks the last batch that it claims, and is not compared.
    SnapshotShort = "snapshot-short" in "engine/src/checkpoint.rs",
    /// A snapshot is not compared with the live state.
    SnapshotUncompared = "snapshot-uncompared" in "engine/src/checkpoint.rs",
    /// The last snapshot goes before the next one is durable.
    SnapshotGoesFirst = "snapshot-goes-first" in "engine/src/checkpoint.rs",
    /// The floor rises past documents that nobody carried forward.
    FloorWithoutMoves = "floor-without-moves" in "engine/src/checkpoint.rs",
    /// The floor rises before the documents that were carried forward are durable.
    FloorBeforeMoves = "floor-before-moves" in "engine/src/engine/maintenance.rs",
    /// A sweep does not look at the pins.
    PinsIgnored = "pins-ignored" in "engine/src/uploads.rs",
    /// A sweep looks at the pins after the state.
    PinsLate = "pins-late" in "engine/src/uploads.rs",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        for fault in Fault::ALL {
            assert_eq!(Fault::named(fault.name()), Some(*fault));
            assert!(fault.what().ends_with('.') && !fault.what().contains('|'), "{fault:?}");
        }
        assert_eq!(Fault::named("none"), None);
    }
}
