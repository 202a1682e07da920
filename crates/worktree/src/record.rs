//! Records on disk: the entries of a sequence, the lock they grant, and its renewals.
//!
//! Each entry carries the state that holds after it, so that a reader needs the newest entry and never the
//! history. Only [`WorktreeState::after`] decides which event may follow which; writers call it before they append,
//! and `doctor` calls it again for every stored entry.
//!
//! Every name that ends in `_at` is Unix time in milliseconds by the filesystem's clock.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::clock::{BootId, BootMs, UnixMs};
use crate::holder::HolderId;
use crate::ids::{
    Digest, EntryNumber, FencingToken, LockId, NumberRange, RestoreId, SessionId, SnapshotId, WorktreeId,
};
use crate::policy::LockPolicy;

/// The version of everything under `.jvs`.
pub const FORMAT: u32 = 1;

/// Snapshots that one `forget` entry names at most.
pub(crate) const FORGET_MAX: usize = 500;

/// Refuses a record of another version, whose fields may mean something else.
pub(crate) fn known_format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        FORMAT => Ok(FORMAT),
        other => Err(D::Error::custom(format!(
            "the record needs another version of jvs; use that version: format={other} known={FORMAT}"
        ))),
    }
}

/// One entry of a sequence, which is also the audit log: an event, and the state after it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The version of this shape.
    pub v: u32,
    /// Its number, which is also its name.
    pub n: EntryNumber,
    /// The hash of the previous entry's line.
    pub prev: Digest,
    /// When it was written.
    pub at: UnixMs,
    /// The process that wrote it.
    pub by: HolderId,
    /// Random, so that no other writer produces the same bytes: an NFS server may answer a retransmitted
    /// `link` with `EEXIST`.
    pub attempt: String,
    /// The state after this entry.
    pub state: WorktreeState,
    /// The event.
    #[serde(flatten)]
    pub event: EntryEvent,
}

/// The state of a worktree after an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorktreeState {
    /// Whether the worktree exists.
    pub open: bool,
    /// The number of acquires and steals.
    pub acquire_seq: u64,
    /// The token of the current lock, even if its lease has expired.
    pub held: Option<FencingToken>,
    /// The snapshot that the worktree last published or restored.
    pub head: Option<SnapshotId>,
    /// The newest publish; `previous` links it to all earlier ones.
    pub last_publish: Option<EntryNumber>,
    /// The newest restore, which may not have been finished, or the entry that undid it.
    pub last_restore: Option<EntryNumber>,
    /// Numbers whose entries were declared lost; sorted, at most [`LOST_RANGES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<NumberRange>,
    /// The newest removal of snapshots; `previous` links it to all earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_forget: Option<EntryNumber>,
}

/// Ranges of lost numbers that an entry lists at most; beyond that, neighbouring ranges are merged.
pub const LOST_RANGES_MAX: usize = 64;

/// The event of an entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EntryEvent {
    /// The worktree was added.
    Create,
    /// A free lock was acquired.
    Acquire {
        /// The lock as it was granted.
        lock: LockRecord,
    },
    /// A lock whose lease had expired was stolen from its holder.
    Steal {
        /// The lock as it was granted.
        lock: LockRecord,
        /// The token that this one fences.
        stolen_from: FencingToken,
        /// The holder that lost it.
        stolen_from_holder: HolderId,
    },
    /// The holder released the lock.
    Release {
        /// The released token.
        fencing_token: FencingToken,
    },
    /// A snapshot became visible.
    Publish {
        /// The token it was committed under; none in a shared worktree, or if published without the lock.
        fencing_token: Option<FencingToken>,
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// Its content hash.
        content_hash: Digest,
        /// Whether it became the worktree's head.
        moves_head: bool,
        /// The publish before this one.
        previous: Option<EntryNumber>,
    },
    /// The worktree's files are to become those of a snapshot.
    Restore {
        /// The token it was committed under; none in a shared worktree.
        fencing_token: Option<FencingToken>,
        /// The snapshot.
        snapshot_id: SnapshotId,
        /// Names the staged copy that is to be swapped in.
        restore_id: RestoreId,
    },
    /// A restore was undone, because its files could not be swapped in.
    UndoRestore {
        /// The entry of the restore.
        restore: EntryNumber,
        /// The head before that restore.
        head: Option<SnapshotId>,
    },
    /// The loss of entries was accepted, and the sequence goes on after every number that may have been used.
    Resume {
        /// The entry before this one; none if no entry was left.
        follows: Option<EntryNumber>,
        /// Numbers whose entries are missing or wrong.
        lost: Vec<NumberRange>,
    },
    /// Snapshots were removed.
    Forget {
        /// The snapshots, which this worktree published; at most `FORGET_MAX`.
        snapshot_ids: Vec<SnapshotId>,
        /// The removal before this one.
        previous: Option<EntryNumber>,
    },
    /// The worktree was removed.
    Remove,
}

impl WorktreeState {
    /// The state after `event` as entry `n`, or why the event is not allowed here.
    pub fn after(&self, n: EntryNumber, event: &EntryEvent) -> Result<Self, &'static str> {
        let mut next = self.clone();
        if let EntryEvent::Create = event {
            require(!self.open, "the worktree exists already")?;
            return Ok(Self { open: true, ..self.closed() });
        }
        if let EntryEvent::Resume { follows, lost } = event {
            return self.resumed(n, *follows, lost);
        }
        require(self.open, "the worktree does not exist")?;
        match event {
            EntryEvent::Create | EntryEvent::Resume { .. } => unreachable!("handled above"),
            EntryEvent::Acquire { lock } => {
                require(self.held.is_none(), "the lock is not free")?;
                next.grant(n, lock)?;
            }
            EntryEvent::Steal { lock, stolen_from, .. } => {
                require(self.held == Some(*stolen_from), "the lock that was to be stolen is gone")?;
                next.grant(n, lock)?;
            }
            EntryEvent::Release { fencing_token } => {
                require(self.held == Some(*fencing_token), "another tenure holds the lock")?;
                next.held = None;
            }
            EntryEvent::Publish { fencing_token, snapshot_id, moves_head, previous, .. } => {
                self.require_current(*fencing_token)?;
                require(*previous == self.last_publish, "the publish before it is another")?;
                next.last_publish = Some(n);
                if *moves_head {
                    next.head = Some(snapshot_id.clone());
                }
            }
            EntryEvent::Restore { fencing_token, snapshot_id, .. } => {
                self.require_current(*fencing_token)?;
                next.last_restore = Some(n);
                next.head = Some(snapshot_id.clone());
            }
            EntryEvent::UndoRestore { restore, head } => {
                require(self.last_restore == Some(*restore), "the restore to undo is not the newest")?;
                next.last_restore = Some(n);
                next.head.clone_from(head);
            }
            EntryEvent::Forget { snapshot_ids, previous } => {
                require(*previous == self.last_forget, "the removal before it is another")?;
                let head = self.head.as_ref();
                require(!snapshot_ids.iter().any(|id| Some(id) == head), "the head cannot be removed")?;
                next.last_forget = Some(n);
            }
            EntryEvent::Remove => {
                require(self.held.is_none(), "the worktree is locked")?;
                next = self.closed();
            }
        }
        Ok(next)
    }

    /// The fields that outlive the worktree: the counter, and the link to its snapshots.
    fn closed(&self) -> Self {
        Self {
            acquire_seq: self.acquire_seq,
            last_publish: self.last_publish,
            last_forget: self.last_forget,
            lost: self.lost.clone(),
            ..Self::default()
        }
    }

    /// The state after a loss. If entries after `follows` are lost, an unknown tenure may have begun and ended:
    /// the lock is free, and every number that may have granted it counts as an acquire.
    fn resumed(
        &self,
        n: EntryNumber,
        follows: Option<EntryNumber>,
        lost: &[NumberRange],
    ) -> Result<Self, &'static str> {
        require(!lost.is_empty(), "no entry is lost")?;
        require(lost.iter().all(|range| range.last < n.0), "a lost entry comes after this one")?;
        let mut next = self.clone();
        next.lost = NumberRange::merged([&self.lost[..], lost].concat(), LOST_RANGES_MAX);
        let before = n.0 - 1 - follows.map_or(0, |follows| follows.0);
        if before > 0 {
            next.held = None;
            next.acquire_seq += before;
            next.open |= follows.is_none();
        }
        Ok(next)
    }

    fn grant(&mut self, n: EntryNumber, lock: &LockRecord) -> Result<(), &'static str> {
        self.acquire_seq += 1;
        require(lock.acquire_seq == self.acquire_seq, "acquire_seq does not count up by one")?;
        require(lock.fencing_token.entry() == n, "the fencing token is not the entry's number")?;
        self.held = Some(lock.fencing_token);
        Ok(())
    }

    fn require_current(&self, fencing_token: Option<FencingToken>) -> Result<(), &'static str> {
        require(fencing_token.is_none() || self.held == fencing_token, "the fencing token is stale")
    }
}

fn require(condition: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(otherwise) }
}

/// A lock: every field of the specification, and its times by the boot clock as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRecord {
    /// Identifies this acquire or steal.
    pub lock_id: LockId,
    /// The locked worktree.
    pub worktree_id: WorktreeId,
    /// The process that holds it.
    pub holder_id: HolderId,
    /// The hash of the holder's secret.
    pub holder_nonce: Digest,
    /// The holder's tenure.
    pub session_id: SessionId,
    /// The number of acquires and steals, this one included.
    pub acquire_seq: u64,
    /// When it was granted.
    pub created_at: UnixMs,
    /// When it was last renewed.
    pub last_renewed_at: UnixMs,
    /// Durations that govern renewal and stealing.
    #[serde(flatten)]
    pub policy: LockPolicy,
    /// When the lease expires unless it is renewed.
    pub lease_expires_at: UnixMs,
    /// The number of the entry that granted it.
    pub fencing_token: FencingToken,
    /// The last renewal and its expiry by the holder's boot clock.
    pub boot: BootStamp,
}

impl LockRecord {
    /// The lock as of `renewal`.
    #[must_use]
    pub fn renewed(mut self, renewal: RenewalRecord) -> Self {
        self.last_renewed_at = renewal.last_renewed_at;
        self.lease_expires_at = renewal.lease_expires_at;
        self.boot = renewal.boot;
        self
    }
}

/// The time of a renewal and its expiry, by the boot clock of the machine that renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootStamp {
    /// The boot that both times count from.
    pub boot_id: BootId,
    /// When the lease was renewed.
    pub renewed_boot_ms: BootMs,
    /// When it expires.
    pub expires_boot_ms: BootMs,
}

/// The content of `<token>.renew`: the latest renewal of the lock that entry `<token>` granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewalRecord {
    /// The renewed lock.
    pub fencing_token: FencingToken,
    /// The hash of the holder's secret.
    pub holder_nonce: Digest,
    /// When it was renewed.
    pub last_renewed_at: UnixMs,
    /// When the lease expires.
    pub lease_expires_at: UnixMs,
    /// The same by the boot clock.
    pub boot: BootStamp,
}

/// Adds RFC 3339 text for every time in `value`: `created_at` gets `created_at_rfc3339`.
pub fn with_rfc3339(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(fields_with_rfc3339(fields)),
        Value::Array(items) => Value::Array(items.into_iter().map(with_rfc3339).collect()),
        other => other,
    }
}

fn fields_with_rfc3339(fields: Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, value) in fields {
        let time = value.as_i64().filter(|_| name == "at" || name.ends_with("_at"));
        out.insert(name.clone(), with_rfc3339(value));
        if let Some(ms) = time {
            out.insert(format!("{name}_rfc3339"), UnixMs(ms).rfc3339().into());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_worktree_accepts_nothing_but_being_added_again() {
        let gone = WorktreeState { acquire_seq: 4, ..WorktreeState::default() };
        assert!(gone.after(EntryNumber(9), &EntryEvent::Remove).is_err());
        let release = EntryEvent::Release { fencing_token: FencingToken(3) };
        assert!(gone.after(EntryNumber(9), &release).is_err());
        let back = gone.after(EntryNumber(9), &EntryEvent::Create).expect("it may be added again");
        assert_eq!(back.acquire_seq, 4, "counting goes on, so that no number comes back");
        assert!(back.after(EntryNumber(10), &EntryEvent::Create).is_err());
    }

    #[test]
    fn a_stale_token_changes_nothing() {
        let held = WorktreeState {
            open: true,
            acquire_seq: 2,
            held: Some(FencingToken(5)),
            ..WorktreeState::default()
        };
        let publish = |token| EntryEvent::Publish {
            fencing_token: Some(FencingToken(token)),
            snapshot_id: S1.parse().expect("a valid id"),
            content_hash: Digest::NONE,
            moves_head: true,
            previous: None,
        };
        assert_eq!(held.after(EntryNumber(7), &publish(4)), Err("the fencing token is stale"));
        let after = held.after(EntryNumber(7), &publish(5)).expect("the current token");
        assert_eq!(after.head.map(String::from), Some(S1.to_owned()));
        let free = WorktreeState { held: None, ..held };
        assert!(free.after(EntryNumber(7), &publish(5)).is_err(), "a released token is stale too");
    }

    const S1: &str = "20261116t002902483z-ef0d6e14";

    #[test]
    fn a_lost_tail_frees_the_lock_and_a_lost_middle_does_not() {
        let range = |first, last| NumberRange { first, last };
        let held = WorktreeState {
            open: true,
            acquire_seq: 2,
            held: Some(FencingToken(5)),
            ..WorktreeState::default()
        };
        let resume = |follows, lost: &[NumberRange]| EntryEvent::Resume {
            follows: Some(follows),
            lost: lost.to_vec(),
        };
        let middle = held.after(EntryNumber(6), &resume(EntryNumber(5), &[range(3, 3)])).expect("allowed");
        assert_eq!((middle.held, middle.acquire_seq), (Some(FencingToken(5)), 2));
        let tail = held.after(EntryNumber(20), &resume(EntryNumber(5), &[range(6, 19)])).expect("allowed");
        assert_eq!((tail.held, tail.acquire_seq), (None, 16), "no count is used twice");
        assert_eq!(tail.lost, [range(6, 19)]);
        assert!(held.after(EntryNumber(6), &resume(EntryNumber(5), &[])).is_err(), "nothing is lost");
        let gone = WorktreeState::default();
        let all = EntryEvent::Resume { follows: None, lost: vec![range(1, 8)] };
        assert!(gone.after(EntryNumber(9), &all).expect("allowed").open);
    }

    #[test]
    fn only_the_newest_restore_is_undone_and_once() {
        let restored = WorktreeState {
            open: true,
            head: Some(S1.parse().expect("a valid id")),
            last_restore: Some(EntryNumber(4)),
            ..WorktreeState::default()
        };
        let undo = |restore| EntryEvent::UndoRestore { restore: EntryNumber(restore), head: None };
        let undone = restored.after(EntryNumber(5), &undo(4)).expect("the newest");
        assert_eq!((undone.head.clone(), undone.last_restore), (None, Some(EntryNumber(5))));
        assert!(undone.after(EntryNumber(6), &undo(4)).is_err(), "it is undone already");
        assert!(restored.after(EntryNumber(5), &undo(3)).is_err(), "a later one stands");
    }

    /// The bytes of these entries are a public format.
    #[test]
    fn entries_that_undo_and_resume_are_written_as_documented() {
        let json = |event: EntryEvent| serde_json::to_string(&event).expect("plain data");
        let undo = EntryEvent::UndoRestore { restore: EntryNumber(4), head: None };
        assert_eq!(json(undo), r#"{"event":"undo_restore","restore":4,"head":null}"#);
        let lost = vec![NumberRange { first: 3, last: 5 }];
        let resume = EntryEvent::Resume { follows: Some(EntryNumber(2)), lost: lost.clone() };
        assert_eq!(json(resume), r#"{"event":"resume","follows":2,"lost":[[3,5]]}"#);
        let state =
            |lost| serde_json::to_string(&WorktreeState { lost, ..WorktreeState::default() }).expect("plain");
        let before = r#"{"open":false,"acquire_seq":0,"held":null,"head":null,"last_publish":null,"last_restore":null"#;
        assert_eq!(state(Vec::new()), format!("{before}}}"), "a whole sequence is written as before");
        assert_eq!(state(lost), format!("{before},\"lost\":[[3,5]]}}"));
    }

    #[test]
    fn times_get_readable_text_beside_them_at_any_depth() {
        let value = serde_json::json!({"at": 0, "locks": [{"created_at": 1, "n": 2}], "head": null});
        let expected = serde_json::json!({
            "at": 0, "at_rfc3339": "1970-01-01T00:00:00.000Z", "head": null,
            "locks": [{"created_at": 1, "created_at_rfc3339": "1970-01-01T00:00:00.001Z", "n": 2}],
        });
        assert_eq!(with_rfc3339(value), expected);
    }
}
