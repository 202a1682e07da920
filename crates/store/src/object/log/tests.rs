//! The log protocol, one rule per test, over an object store with scripted responses.

use std::sync::Mutex;

use super::*;
use crate::conformance::{append_next, batch, check, fill};
use crate::object::{MemoryObjects, ObjectUpload, ObjectsError, Page, WriterId};
use crate::port::Batch;

/// The result of the next put.
#[derive(Clone, Copy)]
enum PutPlan {
    /// No effect, and this failure.
    Fail(ObjectsErrorKind),
    /// It takes effect, but the response is lost.
    LoseResponse,
}

/// Objects in memory, with scripted failures.
#[derive(Clone, Default)]
struct ScriptedObjects {
    inner: MemoryObjects,
    /// Results of the puts to come, the next one last.
    puts: Arc<Mutex<Vec<PutPlan>>>,
    lists_fail: Arc<Mutex<bool>>,
    /// Gets return damaged bytes.
    gets_damaged: Arc<Mutex<bool>>,
}

impl ScriptedObjects {
    fn plan(&self, puts: &[PutPlan]) {
        *self.puts.lock().expect("not poisoned") = puts.iter().rev().copied().collect();
    }

    fn fail_lists(&self, fail: bool) {
        *self.lists_fail.lock().expect("not poisoned") = fail;
    }

    fn damage_gets(&self, damage: bool) {
        *self.gets_damaged.lock().expect("not poisoned") = damage;
    }

    fn open(&self, writer: u128, attempts: u32) -> ObjectLog {
        let options = ObjectOptions { index_batches: 8, ..ObjectOptions::new(0, 1, WriterId(writer)) };
        ObjectLog::open(Arc::new(self.clone()), options, RetryPolicy::without_pause(attempts))
            .expect("a sound log")
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        self.inner.list(prefix, "").expect("a list").names
    }
}

impl Objects for ScriptedObjects {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        match self.puts.lock().expect("not poisoned").pop() {
            None => self.inner.put_if_absent(name, bytes),
            Some(PutPlan::Fail(kind)) => Err(ObjectsError::new(kind, "planned")),
            Some(PutPlan::LoseResponse) => {
                let _ = self.inner.put_if_absent(name, bytes);
                Err(ObjectsError::new(ObjectsErrorKind::TimedOut, "planned"))
            }
        }
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        let mut bytes = self.inner.get(name)?;
        if *self.gets_damaged.lock().expect("not poisoned") {
            bytes[OBJECT_HEADER] ^= 1;
        }
        Ok(bytes)
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        self.inner.get_range(name, offset, length)
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        self.inner.head(name)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        if *self.lists_fail.lock().expect("not poisoned") {
            return Err(ObjectsError::new(ObjectsErrorKind::Unavailable, "planned"));
        }
        self.inner.list(prefix, after)
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.inner.delete(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        self.inner.put(name, bytes)
    }

    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError> {
        self.inner.begin_upload(name)
    }

    fn abort_old_uploads(&self, prefix: &str) -> Result<usize, ObjectsError> {
        self.inner.abort_old_uploads(prefix)
    }
}

/// Raises the floor, and deletes what is below.
fn truncate(log: &mut ObjectLog, floor: Seq) -> Result<(), StoreError> {
    log.raise_floor(floor)?;
    log.preparation().map_or(Ok(()), |work| work())
}

fn kind<T>(result: Result<T, StoreError>) -> ErrorKind {
    result.err().expect("it must fail").kind
}

#[test]
fn a_put_is_retried_until_its_outcome_is_known() {
    let objects = ScriptedObjects::default();
    let mut log = objects.open(1, 4);
    objects.plan(&[
        PutPlan::Fail(ObjectsErrorKind::Conflict),
        PutPlan::Fail(ObjectsErrorKind::Unavailable),
        PutPlan::LoseResponse,
    ]);
    append_next(&mut log).expect("reading back shows that the third attempt succeeded");
    fill(&mut log, 5);
    check(&log);
}

#[test]
fn a_pending_append_may_be_repeated_but_not_replaced() {
    let objects = ScriptedObjects::default();
    let mut log = objects.open(1, 2);
    fill(&mut log, 3);
    objects.plan(&[PutPlan::Fail(ObjectsErrorKind::TimedOut); 2]);
    assert_eq!(kind(append_next(&mut log)), ErrorKind::Undecided);
    assert_eq!(kind(log.append(Seq(3), batch(Seq(3)).lsns, b"another")), ErrorKind::Refused);
    assert_eq!(kind(log.append(Seq(3), LsnRange::default(), &batch(Seq(3)).payload)), ErrorKind::Refused);
    assert_eq!(kind(log.confirm()), ErrorKind::Io);
    assert_eq!(log.bounds().next, Seq(3));
    append_next(&mut log).expect("the same bytes");
    check(&log);
}

#[test]
fn an_unreadable_object_does_not_decide_an_append() {
    let objects = ScriptedObjects::default();
    let mut log = objects.open(1, 2);
    fill(&mut log, 3);
    objects.plan(&[PutPlan::LoseResponse]);
    objects.damage_gets(true);
    assert_eq!(kind(append_next(&mut log)), ErrorKind::Undecided);
    objects.damage_gets(false);
    append_next(&mut log).expect("it had succeeded");
    check(&log);
}

#[test]
fn equal_payloads_of_two_writers_are_distinguished() {
    let objects = ScriptedObjects::default();
    let (mut one, mut two) = (objects.open(1, 2), objects.open(2, 2));
    append_next(&mut one).expect("the first");
    objects.plan(&[PutPlan::Fail(ObjectsErrorKind::TimedOut)]);
    assert_eq!(kind(append_next(&mut two)), ErrorKind::Taken, "the payload is the same, the writer is not");
    assert_eq!(two.role(), WriterRole::Behind);
    assert_eq!(kind(append_next(&mut two)), ErrorKind::Taken, "it has to catch up");
    assert_eq!(two.catch_up().expect("readable").next, Seq(1));
    append_next(&mut two).expect("the next number");
    assert_eq!(kind(one.confirm()), ErrorKind::Taken);
    assert_eq!((one.role(), kind(append_next(&mut one))), (WriterRole::Deposed, ErrorKind::Taken));
    two.confirm().expect("still the owner");
}

#[test]
fn a_deposed_writer_is_fenced_even_after_a_truncation() {
    let objects = ScriptedObjects::default();
    let mut old = objects.open(1, 1);
    fill(&mut old, 5);
    let mut new = objects.open(2, 1);
    fill(&mut new, 30);
    truncate(&mut new, Seq(30)).expect("all of it");
    let left = ["log/0/0000000000000000", "log/0/0000000000000005"];
    assert_eq!(objects.names("log/"), left, "the objects that begin tenures");
    assert_eq!(objects.names("floor/"), ["floor/0/000000000000001e"]);
    assert_eq!((kind(append_next(&mut old)), old.role()), (ErrorKind::Gone, WriterRole::Deposed));
}

#[test]
fn a_writer_that_slept_through_a_truncation_steps_down() {
    let objects = ScriptedObjects::default();
    let mut owner = objects.open(1, 1);
    fill(&mut owner, 5);
    let (mut taker, mut follower) = (objects.open(2, 1), objects.open(3, 1));
    let mut reader = follower.reader();
    fill(&mut owner, 20);
    truncate(&mut owner, Seq(15)).expect("within the log");

    objects.fail_lists(true);
    assert_eq!(kind(append_next(&mut taker)), ErrorKind::Undecided, "it cannot list the floors");
    objects.fail_lists(false);
    assert_eq!(kind(append_next(&mut taker)), ErrorKind::Gone);
    assert_eq!((taker.role(), kind(append_next(&mut taker))), (WriterRole::Deposed, ErrorKind::Taken));
    assert_eq!(kind(taker.raise_floor(Seq(5))), ErrorKind::Taken);

    fill(&mut owner, 25);
    owner.confirm().expect("the taker's object is below the floor");
    assert_eq!(kind(follower.catch_up()), ErrorKind::Gone, "the taker's object is not part of the log");
    assert_eq!(kind(reader.read(Seq(3))), ErrorKind::Gone);
    let log = objects.open(4, 1);
    assert_eq!(log.bounds(), Bounds { floor: Seq(15), next: Seq(25) });
    check(&log);
}

/// The model of the protocol found this. The owner's append of 2 lands, and its response is lost. A successor reads it, opens
/// at 3, and truncates: 2 is deleted. A standby that has read up to 1 puts its first batch at the free 2, and steps down.
/// The owner then reads the standby's object back, and replied that its commands were not carried out. They were.
#[test]
fn below_a_floor_the_object_of_another_does_not_refuse_an_append() {
    let objects = ScriptedObjects::default();
    let mut owner = objects.open(1, 1);
    fill(&mut owner, 2);
    let mut standby = objects.open(2, 1);
    objects.plan(&[PutPlan::LoseResponse]);
    objects.damage_gets(true);
    let lsns = LsnRange::new(1000, 1000);
    assert_eq!(kind(owner.append(Seq(2), lsns, b"a grant")), ErrorKind::Undecided);
    objects.damage_gets(false);
    let mut successor = objects.open(3, 1);
    assert_eq!(successor.bounds().next, Seq(3), "it has the owner's last batch");
    fill(&mut successor, 5);
    truncate(&mut successor, Seq(4)).expect("within the log");
    assert_eq!(kind(append_next(&mut standby)), ErrorKind::Gone);

    objects.fail_lists(true);
    assert_eq!(kind(owner.append(Seq(2), lsns, b"a grant")), ErrorKind::Undecided, "no floors, no outcome");
    objects.fail_lists(false);
    assert_eq!(kind(owner.append(Seq(2), lsns, b"a grant")), ErrorKind::Gone, "it may have been in the log");
    assert_eq!(owner.role(), WriterRole::Deposed);
}

/// A standby had batch 5 in its index and had not read it. The owner truncated past it, a writer that had
/// been asleep created its own 5 and stepped down, and then the standby read: a complete object with a valid
/// checksum.
#[test]
fn the_object_of_a_late_writer_is_not_read_as_a_batch() {
    let objects = ScriptedObjects::default();
    let mut owner = objects.open(1, 1);
    fill(&mut owner, 5);
    let mut taker = objects.open(2, 1);
    fill(&mut owner, 20);
    let mut reader = objects.open(3, 1).reader();
    truncate(&mut owner, Seq(15)).expect("within the log");
    assert_eq!(kind(append_next(&mut taker)), ErrorKind::Gone);
    assert!(objects.names("log/").contains(&"log/0/0000000000000005".to_string()), "the taker's");
    assert_eq!(kind(reader.read(Seq(5))), ErrorKind::Gone);
    assert_eq!(kind(reader.read_lsn(batch(Seq(5)).lsns.first)), ErrorKind::Gone);
    assert_eq!(reader.read(Seq(15)).expect("above the floor"), batch(Seq(15)));
}

#[test]
fn a_floor_above_a_takers_number_deposes_it_and_a_floor_at_its_number_does_not() {
    for (floor, expected) in [(5, None), (6, Some(ErrorKind::Gone))] {
        let objects = ScriptedObjects::default();
        let mut owner = objects.open(1, 1);
        fill(&mut owner, 5);
        let mut taker = objects.open(2, 1);
        fill(&mut owner, floor);
        truncate(&mut owner, Seq(floor)).expect("all of it");
        assert_eq!(append_next(&mut taker).err().map(|error| error.kind), expected, "floor {floor}");
    }
}

#[test]
fn leftovers_below_the_floor_are_deleted_by_the_next_truncation() {
    let objects = ScriptedObjects::default();
    let mut log = objects.open(1, 1);
    fill(&mut log, 20);
    let left = objects.inner.get("log/0/0000000000000003").expect("there");
    truncate(&mut log, Seq(10)).expect("within the log");
    objects.inner.put_if_absent("log/0/0000000000000003", &left).expect("a late put");
    let mut log = objects.open(2, 1);
    assert_eq!(log.bounds(), Bounds { floor: Seq(10), next: Seq(20) });
    append_next(&mut log).expect("it owns the log now");
    truncate(&mut log, Seq(11)).expect("within the log");
    assert_eq!(objects.names("log/0/000000000000000").len(), 1 + 5, "the first, and 11 to 15");
    assert_eq!(log.extents()[0].first, Seq(11));
    check(&log);
}

/// Opening a log of 100,000 batches read each of them, for half an hour.
#[test]
fn index_objects_are_used_when_a_log_is_opened_and_are_only_derived_data() {
    let objects = ScriptedObjects::default();
    let mut log = objects.open(1, 1);
    fill(&mut log, 21);
    log.preparation().expect("two index objects are due")().expect("created");
    assert!(log.preparation().is_none(), "the next one is not complete");
    assert_eq!(objects.names("index/"), ["index/0/0000000000000000", "index/0/0000000000000008"]);
    truncate(&mut log, Seq(10)).expect("within the log");
    assert_eq!(objects.names("index/"), ["index/0/0000000000000008"], "the other one is below the floor");
    // Batches that index objects describe are not read by an opening: only their absence shows that.
    let hidden = objects.inner.get("log/0/000000000000000c").expect("there");
    objects.inner.delete("log/0/000000000000000c").expect("deleted");
    assert_eq!(objects.open(2, 1).bounds(), Bounds { floor: Seq(10), next: Seq(21) });
    objects.inner.put("log/0/000000000000000c", &hidden).expect("put back");
    check(&objects.open(2, 1));
    let page = objects.inner.get("index/0/0000000000000008").expect("there");
    for damage in [&page[..40], b"", &[&page[..60], &[9], &page[61..]].concat()] {
        objects.inner.put("index/0/0000000000000008", damage).expect("replaced");
        let opened = objects.open(3, 1);
        assert_eq!(opened.bounds(), Bounds { floor: Seq(10), next: Seq(21) });
        check(&opened);
    }
}

#[test]
fn a_hole_in_the_log_is_damage_and_not_its_end() {
    let objects = ScriptedObjects::default();
    let mut log = objects.open(1, 1);
    fill(&mut log, 10);
    let mut reader = log.reader();
    objects.inner.delete("log/0/0000000000000004").expect("there");
    assert_eq!(kind(reader.read(Seq(4))), ErrorKind::Damaged);
    let options = ObjectOptions::new(0, 1, WriterId(9));
    let opened = ObjectLog::open(Arc::new(objects.clone()), options, RetryPolicy::without_pause(1));
    let error = opened.err().expect("refused");
    assert_eq!(error.kind, ErrorKind::Damaged);
    assert!(error.what.contains("log/0/0000000000000004"), "{error}");
}

#[test]
fn a_batch_of_another_store_is_refused() {
    let objects = ScriptedObjects::default();
    append_next(&mut objects.open(1, 1)).expect("the first");
    let options = ObjectOptions::new(0, 2, WriterId(9));
    let opened = ObjectLog::open(Arc::new(objects), options, RetryPolicy::without_pause(1));
    assert_eq!(kind(opened), ErrorKind::Damaged);
}

#[test]
fn a_standby_follows_a_log_whose_floor_rises() {
    let objects = ScriptedObjects::default();
    let (mut owner, mut follower) = (objects.open(1, 1), objects.open(2, 1));
    let mut reader = follower.reader();
    for round in 1..6 {
        fill(&mut owner, round * 10);
        assert_eq!(follower.catch_up().expect("it keeps up").next, Seq(round * 10));
        let Batch { seq, lsns, .. } = batch(Seq(round * 10 - 3));
        assert_eq!(reader.read_lsn(lsns.first).expect("there").seq, seq);
        truncate(&mut owner, Seq(round * 10 - 5)).expect("within the log");
    }
    append_next(&mut follower).expect("it takes over");
    assert_eq!(follower.bounds(), Bounds { floor: Seq(45), next: Seq(51) });
    check(&follower);
}
