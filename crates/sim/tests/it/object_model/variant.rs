//! The protocol, and the protocols without one of its safeguards.

/// Which safeguard is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// None: the protocol of `store::object`, and of the hand-over.
    Correct,
    /// The object store ignores the condition of a put.
    PutOverwrites,
    /// A candidate whose `open` was created owns the log at once, without listing the floors.
    FloorsNotListed,
    /// A candidate lists the floors before its put, and not after it.
    FloorsListedBeforePut,
    /// The object that began a tenure is deleted like any other below the floor.
    TenureDeleted,
    /// The floor is created after the batches below it were deleted.
    FloorAfterDeletion,
    /// The old floor is deleted before the new one is created.
    OldFloorDeletedFirst,
    /// A follower or an opening server takes what it reads for the log, without listing the floors afterwards.
    FloorsNotListedAfterRead,
    /// A read is served from memory, without a confirmation.
    ReadUnconfirmed,
    /// A HEAD also serves requests that arrived after it began.
    HeadServesLaterRequest,
    /// An append also serves requests that arrived after it began.
    AppendServesLaterRequest,
    /// While an append is undecided, a HEAD of the number after it confirms.
    HeadWhileUndecided,
    /// A HEAD that was denied (403) counts as "no such object".
    DeniedConfirms,
    /// An append without a response is repeated with another batch for the same number.
    BatchReformed,
    /// The same, and an object of the own writer counts as the own batch.
    BatchReformedSameWriter,
    /// A timeout counts as a failure: its commands did not happen.
    TimeoutIsFailure,
    /// 409 counts as "another writer has this number".
    ConflictIsTaken,
    /// 412 counts as "another writer has this number", without reading the object.
    ExistsIsAnothers,
    /// 412 counts as the own success, without reading the object.
    ExistsIsOwn,
    /// An object of another writer counts, although there is a floor above it.
    AnothersBelowFloor,
    /// A writer stands down on the news of a newer owner, although its append is undecided.
    StandsDownUndecided,
    /// A deposed writer follows the new owner without discarding its state.
    StateKept,
    /// The first batch of a tenure contains a command, acknowledged as soon as the batch is created.
    OpenWithCommand,
    /// An owner names its successor in a message instead of the log.
    HandOverWithoutRecord,
    /// A closing owner appends a command that arrived behind its `close`.
    DecidesBehindClose,
    /// An owner whose successor does not open goes on without a new `open`.
    HandOverTakenBack,
    /// Garbage collection deletes unreferenced blobs of every term.
    NewerTermCollected,
    /// Garbage collection deletes blobs whose commit is undecided.
    PinsIgnored,
    /// A client that was refused commits the blob of its first attempt in a newer term.
    OlderTermCommitted,
}
