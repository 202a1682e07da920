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
use crate::ids::{Digest, EntryNumber, FencingToken, LockId, RestoreId, SessionId, SnapshotId, WorktreeId};
use crate::policy::LockPolicy;

/// The version of everything under `.jvs`.
pub const FORMAT: u32 = 1;

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
    /// The newest restore, which may not have been finished.
    pub last_restore: Option<EntryNumber>,
}

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
        require(self.open, "the worktree does not exist")?;
        match event {
            EntryEvent::Create => unreachable!("handled above"),
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
            EntryEvent::Remove => {
                require(self.held.is_none(), "the worktree is locked")?;
                next = self.closed();
            }
        }
        Ok(next)
    }

    /// The fields that outlive the worktree: the counter, and the link to its snapshots.
    fn closed(&self) -> Self {
        Self { acquire_seq: self.acquire_seq, last_publish: self.last_publish, ..Self::default() }
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
            snapshot_id: "s1".parse().expect("a valid id"),
            content_hash: Digest::NONE,
            moves_head: true,
            previous: None,
        };
        assert_eq!(held.after(EntryNumber(7), &publish(4)), Err("the fencing token is stale"));
        let after = held.after(EntryNumber(7), &publish(5)).expect("the current token");
        assert_eq!(after.head.map(String::from), Some("s1".to_owned()));
        let free = WorktreeState { held: None, ..held };
        assert!(free.after(EntryNumber(7), &publish(5)).is_err(), "a released token is stale too");
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
