//! The protocol, one rule at a time, over an object store that does what it is told to.

use std::sync::Mutex;

use super::*;
use crate::conformance::{append_next, batch, check, fill};
use crate::object::{MemoryObjects, ObjectsError, Page, WriterId};
use crate::port::Batch;

/// What becomes of the next put.
#[derive(Clone, Copy)]
enum Fate {
    /// Nothing, and this is said.
    Not(Answer),
    /// It happens, and no answer comes.
    Unheard,
}

/// Objects in memory, with a fate for the puts to come.
#[derive(Clone, Default)]
struct Planned {
    kept: MemoryObjects,
    puts: Arc<Mutex<Vec<Fate>>>,
    /// Lists fail while this is so.
    deaf: Arc<Mutex<bool>>,
    /// What is got is not what is there while this is so.
    blurred: Arc<Mutex<bool>>,
}

impl Planned {
    fn plan(&self, fates: &[Fate]) {
        *self.puts.lock().expect("not poisoned") = fates.iter().rev().copied().collect();
    }

    fn deafen(&self, deaf: bool) {
        *self.deaf.lock().expect("not poisoned") = deaf;
    }

    fn blur(&self, blurred: bool) {
        *self.blurred.lock().expect("not poisoned") = blurred;
    }

    fn open(&self, writer: u128, tries: u32) -> ObjectLog {
        let options = ObjectOptions { shard: 0, store_id: 1, writer: WriterId(writer) };
        ObjectLog::open(Arc::new(self.clone()), options, Patience::without_pause(tries)).expect("a sound log")
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        self.kept.list(prefix, "").expect("a list").names
    }
}

impl Objects for Planned {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        match self.puts.lock().expect("not poisoned").pop() {
            None => self.kept.put_if_absent(name, bytes),
            Some(Fate::Not(answer)) => Err(ObjectsError::new(answer, "planned")),
            Some(Fate::Unheard) => {
                let _ = self.kept.put_if_absent(name, bytes);
                Err(ObjectsError::new(Answer::TimedOut, "planned"))
            }
        }
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        let mut bytes = self.kept.get(name)?;
        if *self.blurred.lock().expect("not poisoned") {
            bytes[OBJECT_HEADER] ^= 1;
        }
        Ok(bytes)
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        self.kept.get_range(name, offset, length)
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        self.kept.head(name)
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        if *self.deaf.lock().expect("not poisoned") {
            return Err(ObjectsError::new(Answer::Unavailable, "planned"));
        }
        self.kept.list(prefix, after)
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        self.kept.delete(name)
    }
}

fn kind<T>(result: Result<T, StoreError>) -> ErrorKind {
    result.err().expect("it must fail").kind
}

#[test]
fn a_put_is_tried_again_until_it_is_decided() {
    let objects = Planned::default();
    let mut log = objects.open(1, 4);
    objects.plan(&[Fate::Not(Answer::Conflict), Fate::Not(Answer::Unavailable), Fate::Unheard]);
    append_next(&mut log).expect("there at the third try, as reading back shows");
    fill(&mut log, 5);
    check(&log);
}

#[test]
fn an_undecided_append_may_be_repeated_and_nothing_else_may_take_its_number() {
    let objects = Planned::default();
    let mut log = objects.open(1, 2);
    fill(&mut log, 3);
    objects.plan(&[Fate::Not(Answer::TimedOut); 2]);
    assert_eq!(kind(append_next(&mut log)), ErrorKind::Io);
    assert_eq!(kind(log.append(Seq(3), batch(Seq(3)).lsns, b"another")), ErrorKind::Refused);
    assert_eq!(kind(log.append(Seq(3), Lsns::default(), &batch(Seq(3)).payload)), ErrorKind::Refused);
    assert_eq!(kind(log.confirm()), ErrorKind::Io);
    assert_eq!(log.bounds().next, Seq(3));
    append_next(&mut log).expect("the same bytes");
    check(&log);
}

#[test]
fn what_cannot_be_read_back_proves_nothing() {
    let objects = Planned::default();
    let mut log = objects.open(1, 2);
    fill(&mut log, 3);
    objects.plan(&[Fate::Unheard]);
    objects.blur(true);
    assert_eq!(kind(append_next(&mut log)), ErrorKind::Io);
    objects.blur(false);
    append_next(&mut log).expect("it was there all the time");
    check(&log);
}

#[test]
fn equal_payloads_of_two_writers_are_told_apart() {
    let objects = Planned::default();
    let (mut one, mut two) = (objects.open(1, 2), objects.open(2, 2));
    append_next(&mut one).expect("the first");
    objects.plan(&[Fate::Not(Answer::TimedOut)]);
    assert_eq!(kind(append_next(&mut two)), ErrorKind::Taken, "the payload is the same, the writer is not");
    assert_eq!(two.standing(), Standing::Behind);
    assert_eq!(kind(append_next(&mut two)), ErrorKind::Taken, "it has to read on");
    assert_eq!(two.read_on().expect("readable").next, Seq(1));
    append_next(&mut two).expect("the next number");
    assert_eq!(kind(one.confirm()), ErrorKind::Taken);
    assert_eq!((one.standing(), kind(append_next(&mut one))), (Standing::Deposed, ErrorKind::Taken));
    two.confirm().expect("nobody came after it");
}

#[test]
fn a_deposed_writer_collides_whatever_was_truncated() {
    let objects = Planned::default();
    let mut old = objects.open(1, 1);
    fill(&mut old, 5);
    let mut new = objects.open(2, 1);
    fill(&mut new, 30);
    new.raise_floor(Seq(30)).expect("all of it");
    let left = ["log/0/0000000000000000", "log/0/0000000000000005"];
    assert_eq!(objects.names("log/"), left, "where tenures begin");
    assert_eq!(objects.names("floor/"), ["floor/0/000000000000001e"]);
    assert_eq!(kind(append_next(&mut old)), ErrorKind::Taken);
}

#[test]
fn a_taker_that_slept_through_a_truncation_stands_down() {
    let objects = Planned::default();
    let mut owner = objects.open(1, 1);
    fill(&mut owner, 5);
    let (mut taker, mut follower) = (objects.open(2, 1), objects.open(3, 1));
    let mut reader = follower.reader();
    fill(&mut owner, 20);
    owner.raise_floor(Seq(15)).expect("within the log");

    objects.deafen(true);
    assert_eq!(kind(append_next(&mut taker)), ErrorKind::Io, "it cannot see whether there is a floor");
    objects.deafen(false);
    assert_eq!(kind(append_next(&mut taker)), ErrorKind::Refused);
    assert_eq!((taker.standing(), kind(append_next(&mut taker))), (Standing::Deposed, ErrorKind::Taken));
    assert_eq!(kind(taker.raise_floor(Seq(5))), ErrorKind::Taken);

    fill(&mut owner, 25);
    owner.confirm().expect("the taker's object is below the floor");
    assert_eq!(kind(follower.read_on()), ErrorKind::Gone, "the taker's object is not read as the log's");
    assert_eq!(kind(reader.read(Seq(3))), ErrorKind::Gone);
    let log = objects.open(4, 1);
    assert_eq!(log.bounds(), Bounds { floor: Seq(15), next: Seq(25) });
    check(&log);
}

/// A stand-by knew batch 5 and had not read it. The owner truncated beyond it, a taker that had slept made
/// its own 5 and stood down, and then the stand-by read: a whole object with a good checksum.
#[test]
fn what_a_late_taker_left_is_not_read_in_place_of_a_batch() {
    let objects = Planned::default();
    let mut owner = objects.open(1, 1);
    fill(&mut owner, 5);
    let mut taker = objects.open(2, 1);
    fill(&mut owner, 20);
    let mut reader = objects.open(3, 1).reader();
    owner.raise_floor(Seq(15)).expect("within the log");
    assert_eq!(kind(append_next(&mut taker)), ErrorKind::Refused);
    assert!(objects.names("log/").contains(&"log/0/0000000000000005".to_string()), "the taker's");
    assert_eq!(kind(reader.read(Seq(5))), ErrorKind::Gone);
    assert_eq!(kind(reader.holding(batch(Seq(5)).lsns.first)), ErrorKind::Gone);
    assert_eq!(reader.read(Seq(15)).expect("above the floor"), batch(Seq(15)));
}

#[test]
fn a_floor_one_above_the_takers_number_deposes_it_and_one_at_its_number_does_not() {
    for (floor, expected) in [(5, None), (6, Some(ErrorKind::Refused))] {
        let objects = Planned::default();
        let mut owner = objects.open(1, 1);
        fill(&mut owner, 5);
        let mut taker = objects.open(2, 1);
        fill(&mut owner, floor);
        owner.raise_floor(Seq(floor)).expect("all of it");
        assert_eq!(append_next(&mut taker).err().map(|error| error.kind), expected, "floor {floor}");
    }
}

#[test]
fn what_a_crash_left_below_the_floor_goes_with_the_next_truncation() {
    let objects = Planned::default();
    let mut log = objects.open(1, 1);
    fill(&mut log, 20);
    let left = objects.kept.get("log/0/0000000000000003").expect("there");
    log.raise_floor(Seq(10)).expect("within the log");
    objects.kept.put_if_absent("log/0/0000000000000003", &left).expect("it lands once more, late");
    let mut log = objects.open(2, 1);
    assert_eq!(log.bounds(), Bounds { floor: Seq(10), next: Seq(20) });
    log.raise_floor(Seq(11)).expect("within the log");
    assert_eq!(objects.names("log/0/000000000000000").len(), 1 + 5, "the first, and 11 to 15");
    assert_eq!(log.extents()[0].first, Seq(11));
    check(&log);
}

#[test]
fn a_hole_in_the_log_is_damage_and_not_its_end() {
    let objects = Planned::default();
    let mut log = objects.open(1, 1);
    fill(&mut log, 10);
    let mut reader = log.reader();
    objects.kept.delete("log/0/0000000000000004").expect("there");
    assert_eq!(kind(reader.read(Seq(4))), ErrorKind::Damaged);
    let options = ObjectOptions { shard: 0, store_id: 1, writer: WriterId(9) };
    let opened = ObjectLog::open(Arc::new(objects.clone()), options, Patience::without_pause(1));
    let error = opened.err().expect("refused");
    assert_eq!(error.kind, ErrorKind::Damaged);
    assert!(error.what.contains("log/0/0000000000000004"), "{error}");
}

#[test]
fn a_batch_of_another_store_is_refused() {
    let objects = Planned::default();
    append_next(&mut objects.open(1, 1)).expect("the first");
    let options = ObjectOptions { shard: 0, store_id: 2, writer: WriterId(9) };
    let opened = ObjectLog::open(Arc::new(objects), options, Patience::without_pause(1));
    assert_eq!(kind(opened), ErrorKind::Damaged);
}

#[test]
fn a_stand_by_follows_a_log_whose_floor_rises() {
    let objects = Planned::default();
    let (mut owner, mut follower) = (objects.open(1, 1), objects.open(2, 1));
    let mut reader = follower.reader();
    for round in 1..6 {
        fill(&mut owner, round * 10);
        assert_eq!(follower.read_on().expect("it keeps up").next, Seq(round * 10));
        let Batch { seq, lsns, .. } = batch(Seq(round * 10 - 3));
        assert_eq!(reader.holding(lsns.first).expect("there").seq, seq);
        owner.raise_floor(Seq(round * 10 - 5)).expect("within the log");
    }
    append_next(&mut follower).expect("it takes over");
    assert_eq!(follower.bounds(), Bounds { floor: Seq(45), next: Seq(51) });
    check(&follower);
}
