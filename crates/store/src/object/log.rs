//! One shard's log in an object store: an object for each batch, and no clock.
//!
//! **Invariant.** Whoever makes the object of the next number has the log. A writer's first object begins its
//! tenure and is never deleted. So the number at which a deposed writer goes on is in use for ever, and
//! its next append fails however long it slept and whatever was truncated since. The bytes for a
//! number are formed once: a number that seems free is tried again with the same bytes or not at all.
//!
//! **What would break it.**
//! - To take a time-out for a failure: the put lands later, and a writer that meanwhile formed another batch
//!   for that number has answered its clients from bytes that are not in the log.
//! - To go on after the first put without a look at the floors: a stand-by reads up to 6 and sleeps; the owner
//!   appends 7 to 20 and truncates below 15, and 7 is free again; the stand-by's 7 succeeds. There is
//!   a floor above it, made before 7 was deleted, so it stands down.
//! - To delete an object that begins a tenure: a writer deposed at 7 wakes, and its own 7 succeeds.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::format::{OBJECT_HEADER, ObjectHeader};
use super::index::{Entry, SharedIndex};
use super::names;
use super::port::{Answer, Objects, Patience};
use super::reader::ObjectReader;
use super::shard_objects::{ObjectOptions, ShardObjects};
use crate::frame::{FrameHeader, PAYLOAD_MAX, encode_frame};
use crate::port::{Bounds, ErrorKind, Extent, LogReader, LogStore, Lsns, Room, Seq, StoreError};

/// The log.
pub struct ObjectLog {
    pub(super) shard: ShardObjects,
    pub(super) index: SharedIndex,
    standing: Standing,
    undecided: Option<Undecided>,
    /// Batches below the floor that are still to be deleted.
    pub(super) dead: BTreeSet<Seq>,
    /// What others left below the floor has been looked for.
    pub(super) swept: bool,
}

/// What this writer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has read the log; its first append takes the log over.
    Reader,
    /// Another made the object that it wanted to begin with: it has to read on.
    Behind,
    /// The log was its own when it last looked.
    Owner,
    /// Another has the log, or had it: open it again.
    Deposed,
}

/// A batch that may or may not be in the log.
struct Undecided {
    seq: Seq,
    bytes: Vec<u8>,
    entry: Entry,
}

/// Whose a number is, as far as one try could tell.
enum Whose {
    Ours,
    Another(String),
    Unknown(String),
}

impl ObjectLog {
    /// Reads the log up to its end. Nothing is written: the first append takes the log over.
    pub fn open(
        objects: Arc<dyn Objects>,
        options: ObjectOptions,
        patience: Patience,
    ) -> Result<ObjectLog, StoreError> {
        let shard = ShardObjects { objects, options, patience };
        let index = SharedIndex::new(shard.survey()?);
        let (standing, undecided) = (Standing::Reader, None);
        Ok(ObjectLog { shard, index, standing, undecided, dead: BTreeSet::new(), swept: false })
    }

    /// What this writer may do.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Reads what others have appended since, for a writer that does not have the log: a stand-by, or one
    /// whose first append was [`ErrorKind::Taken`].
    ///
    /// [`ErrorKind::Gone`] if the log was truncated beyond what was read: it has to be opened again.
    pub fn read_on(&mut self) -> Result<Bounds, StoreError> {
        if !matches!(self.standing, Standing::Reader | Standing::Behind) || self.undecided.is_some() {
            return Err(StoreError::new(ErrorKind::Refused, "only who does not have the log reads on"));
        }
        let (next, chain) = (self.bounds().next, self.index.lock().last_crc());
        let (entries, floor) = self.shard.survey_on(next, chain)?;
        let mut index = self.index.lock();
        for entry in entries {
            index.push(entry);
        }
        index.raise(floor);
        self.standing = Standing::Reader;
        Ok(index.bounds())
    }

    pub(super) fn check_standing(&self) -> Result<(), StoreError> {
        match self.standing {
            Standing::Deposed => {
                Err(StoreError::new(ErrorKind::Taken, "another has the log; open it again to follow it"))
            }
            _ => Ok(()),
        }
    }

    fn depose(&mut self, kind: ErrorKind, why: impl Into<String>) -> StoreError {
        self.standing = Standing::Deposed;
        self.undecided = None;
        StoreError::new(kind, why)
    }

    /// The batch as it is tried, for the first time or again: never in other bytes.
    fn form(&mut self, seq: Seq, lsns: Lsns, payload: &[u8]) -> Result<Undecided, StoreError> {
        let formed = self.encode(seq, lsns, payload);
        match self.undecided.take() {
            None => Ok(formed),
            Some(_) if planted!(ObjectReformed) => Ok(formed),
            Some(tried) if tried.bytes == formed.bytes => Ok(tried),
            Some(tried) => {
                let what = "an append is undecided, and only the same bytes may be tried again";
                let error = StoreError::new(ErrorKind::Refused, format!("{what}: seq={}", tried.seq.0));
                self.undecided = Some(tried);
                Err(error)
            }
        }
    }

    fn encode(&self, seq: Seq, lsns: Lsns, payload: &[u8]) -> Undecided {
        let ObjectOptions { shard, store_id, writer } = self.shard.options;
        let begins_tenure = self.standing != Standing::Owner;
        let header = ObjectHeader { shard, store_id, writer, begins_tenure };
        let (frame, _) = encode_frame(seq, lsns, payload, self.index.lock().last_crc());
        let bytes = header.encode(&frame);
        let frame = FrameHeader::decode(&bytes[OBJECT_HEADER..]).expect("it was just encoded");
        Undecided { seq, bytes, entry: Entry::new(&header, &frame) }
    }

    /// Tries until the number is ours or another's, or patience is at its end.
    fn decide(&mut self, tried: Undecided) -> Result<(), StoreError> {
        let mut failed = 0;
        loop {
            let why = match self.try_once(&tried) {
                Whose::Ours => return self.won(tried),
                Whose::Another(who) => return Err(self.lost(tried.seq, &who)),
                Whose::Unknown(why) => why,
            };
            failed += 1;
            if !self.shard.patience.again(failed) {
                let what = "nobody knows whether the batch is in the log; append the same again";
                let what = format!("{what}: seq={} {why}", tried.seq.0);
                self.undecided = Some(tried);
                return Err(StoreError::new(ErrorKind::Io, what));
            }
        }
    }

    fn try_once(&self, tried: &Undecided) -> Whose {
        let name = names::batch(self.shard.options.shard, tried.seq);
        match self.shard.objects.put_if_absent(&name, &tried.bytes) {
            Ok(()) => Whose::Ours,
            Err(error) if error.answer == Answer::Taken && planted!(ObjectNotReadBack) => {
                Whose::Another("somebody".into())
            }
            Err(error) if matches!(error.answer, Answer::Taken | Answer::TimedOut) => {
                self.read_back(&name, tried)
            }
            Err(error) => Whose::Unknown(error.to_string()),
        }
    }

    /// Who made the object: our own try that seemed to fail, or another. What cannot be read proves nothing.
    fn read_back(&self, name: &str, tried: &Undecided) -> Whose {
        let bytes = match self.shard.objects.get(name) {
            Ok(bytes) if bytes == tried.bytes => return Whose::Ours,
            Ok(bytes) => bytes,
            Err(error) => return Whose::Unknown(error.to_string()),
        };
        match self.shard.judge(tried.seq, &bytes) {
            Ok((entry, _)) => Whose::Another(format!("{:032x}", entry.writer.0)),
            Err(error) => Whose::Unknown(error.to_string()),
        }
    }

    fn won(&mut self, tried: Undecided) -> Result<(), StoreError> {
        if tried.entry.begins_tenure && !planted!(FloorsUnlisted) {
            match self.shard.highest_floor() {
                Ok(floor) if floor > tried.seq => {
                    let what = "the log went on and was truncated while it was taken over; open it again";
                    let what = format!("{what}: seq={} floor={}", tried.seq.0, floor.0);
                    return Err(self.depose(ErrorKind::Refused, what));
                }
                Ok(floor) => drop(self.index.lock().raise(floor)),
                Err(error) => {
                    self.undecided = Some(tried);
                    return Err(StoreError::new(ErrorKind::Io, error.what));
                }
            }
        }
        self.index.lock().push(tried.entry);
        self.standing = Standing::Owner;
        Ok(())
    }

    fn lost(&mut self, seq: Seq, who: &str) -> StoreError {
        let what = format!("another writer has the number: seq={} writer={who}", seq.0);
        match self.standing {
            Standing::Reader => {
                self.standing = Standing::Behind;
                StoreError::new(ErrorKind::Taken, what)
            }
            _ => self.depose(ErrorKind::Taken, what),
        }
    }
}

impl LogStore for ObjectLog {
    fn bounds(&self) -> Bounds {
        self.index.lock().bounds()
    }

    /// After [`ErrorKind::Io`] the batch may be in the log: append it again as it was, in the same bytes.
    /// Any other batch is [`ErrorKind::Refused`] until that one is decided.
    ///
    /// [`ErrorKind::Taken`] at the first append: another was quicker, [`ObjectLog::read_on`]. At a later
    /// one, another has taken the log over. [`ErrorKind::Refused`] at the first append: what was read of
    /// the log has been truncated since, open it again.
    fn append(&mut self, seq: Seq, lsns: Lsns, payload: &[u8]) -> Result<(), StoreError> {
        self.check_standing()?;
        let next = self.bounds().next;
        if seq != next || self.standing == Standing::Behind {
            let what = format!("the next batch is another one: seq={} next={}", seq.0, next.0);
            return Err(StoreError::new(ErrorKind::Taken, what));
        }
        if payload.len() > PAYLOAD_MAX {
            let what = format!("batch too large: bytes={}", payload.len());
            return Err(StoreError::new(ErrorKind::TooLarge, what));
        }
        let tried = self.form(seq, lsns, payload)?;
        self.decide(tried)
    }

    /// A bucket has room.
    fn reserve(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn room(&self) -> Room {
        Room { bytes: PAYLOAD_MAX as u64, spare: true }
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.truncate(floor)
    }

    /// Every batch is a piece.
    fn extents(&self) -> Vec<Extent> {
        self.index.lock().iter().map(|(first, entry)| Extent { first, bytes: entry.bytes }).collect()
    }

    fn confirm(&mut self) -> Result<(), StoreError> {
        self.check_standing()?;
        if self.undecided.is_some() {
            return Err(StoreError::new(ErrorKind::Io, "an append has to be decided first"));
        }
        if self.standing != Standing::Owner {
            return Err(StoreError::new(ErrorKind::Refused, "only who has the log can confirm it"));
        }
        if planted!(ConfirmBlindly) {
            return Ok(());
        }
        let name = names::batch(self.shard.options.shard, self.bounds().next);
        match self.shard.patience.keep_trying(|| self.shard.objects.head(&name)) {
            Ok(_) => Err(self.depose(ErrorKind::Taken, "another has taken the log over")),
            Err(error) if error.answer == Answer::NotFound => Ok(()),
            Err(error) => Err(error.while_doing(format!("looking for {name}"))),
        }
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(ObjectReader::new(self.shard.clone(), self.index.clone()))
    }
}

#[cfg(test)]
mod tests;
