//! The conformance suite for store implementations. Their tests call these functions with their own stores.
//!
//! Each function panics at the first violation of the [port](crate::port).

use crate::port::{
    BATCH_MAX, Batch, BlobName, BlobStore, ErrorKind, LogStore, Lsn, LsnRange, Seq, StoreError,
};

/// The suite's batch at `seq`: varied in length, different for each sequence number.
pub fn batch(seq: Seq) -> Batch {
    let length = usize::try_from(seq.0 * 37 % 300).expect("small");
    let first = u8::try_from(seq.0 % 251).expect("below 251");
    let payload = (0..length).map(|n| first.wrapping_add(u8::try_from(n % 256).expect("a byte"))).collect();
    Batch { seq, lsns: LsnRange::new(seq.0 * 10, seq.0 * 10 + 9), payload }
}

/// Appends the next batch.
pub fn append_next(log: &mut dyn LogStore) -> Result<(), StoreError> {
    let Batch { seq, lsns, payload } = batch(log.bounds().next);
    log.reserve()?;
    log.append(seq, lsns, &payload)
}

fn kind<T>(result: Result<T, StoreError>) -> ErrorKind {
    result.err().expect("it must fail").kind
}

/// Appends batches until `to` is the next sequence number.
pub fn fill(log: &mut dyn LogStore, to: u64) {
    while log.bounds().next < Seq(to) {
        append_next(log).expect("capacity for the next batch");
    }
}

/// Checks that exactly the batches within the bounds can be read: forwards, backwards and in jumps.
pub fn check(log: &dyn LogStore) {
    let bounds = log.bounds();
    let mut reader = log.reader();
    let forwards = bounds.floor.0..bounds.next.0;
    let backwards = forwards.clone().rev();
    let hopping = forwards.clone().step_by(7).chain(forwards.clone().step_by(3));
    for seq in forwards.clone().chain(backwards).chain(hopping) {
        let read = reader.read(Seq(seq)).unwrap_or_else(|error| panic!("batch {seq}: {error}"));
        assert_eq!(read, batch(Seq(seq)));
        let lsn = Lsn(read.lsns.first.0 + seq % 10);
        assert_eq!(reader.read_lsn(lsn).unwrap_or_else(|error| panic!("lsn {lsn}: {error}")), read);
    }
    assert_eq!(kind(reader.read_lsn(batch(bounds.next).lsns.first)), ErrorKind::Gone);
    assert_eq!(kind(reader.read(bounds.next)), ErrorKind::Gone);
    if bounds.floor > Seq(0) {
        assert_eq!(kind(reader.read_lsn(batch(Seq(bounds.floor.0 - 1)).lsns.last)), ErrorKind::Gone);
        assert_eq!(kind(reader.read(Seq(bounds.floor.0 - 1))), ErrorKind::Gone);
    }
}

/// Tests a log, starting empty. `reopen` closes and reopens it.
pub fn log<L: LogStore>(mut log: L, mut reopen: impl FnMut(L) -> L) {
    assert_eq!(log.bounds().next, Seq(0), "a new log is empty");
    for wrong in [1, 7] {
        assert_eq!(kind(log.append(Seq(wrong), LsnRange::default(), b"x")), ErrorKind::Taken);
    }
    fill(&mut log, 100);
    check(&log);
    assert_eq!(
        kind(log.append(Seq(99), LsnRange::default(), b"x")),
        ErrorKind::Taken,
        "a sequence number is used once"
    );
    let huge = vec![0; BATCH_MAX + 1];
    assert_eq!(kind(log.append(Seq(100), LsnRange::default(), &huge)), ErrorKind::TooLarge);
    fill(&mut log, 101);

    let mut log = reopen(log);
    assert_eq!(log.bounds().next, Seq(101));
    check(&log);

    log.raise_floor(Seq(60)).expect("within the log");
    assert_eq!(log.bounds().floor, Seq(60));
    log.raise_floor(Seq(10)).expect("it never decreases");
    assert_eq!(log.bounds().floor, Seq(60));
    assert_eq!(kind(log.raise_floor(Seq(102))), ErrorKind::Refused);
    check(&log);

    let mut log = reopen(log);
    assert_eq!(log.bounds(), crate::port::Bounds { floor: Seq(60), next: Seq(101) });
    fill(&mut log, 200);
    check(&log);
    log.raise_floor(Seq(200)).expect("all of it");
    let mut log = reopen(log);
    assert_eq!(log.bounds(), crate::port::Bounds { floor: Seq(200), next: Seq(200) });
    fill(&mut log, 210);
    check(&log);
}

/// A reader sees batches appended after its creation.
pub fn reads_while_appending(mut log: impl LogStore) {
    fill(&mut log, 5);
    let mut reader = log.reader();
    for seq in 0..300 {
        fill(&mut log, seq + 1);
        assert_eq!(reader.read(Seq(seq)).expect("durable"), batch(Seq(seq)));
    }
}

/// Raising the floor frees extents one by one, from the front.
pub fn raising_the_floor_frees_extents(mut log: impl LogStore) {
    assert_eq!(log.extents(), [], "an empty log has no extents");
    fill(&mut log, 300);
    check_extents(&log);
    let extents = log.extents();
    assert!(extents.len() > 3, "{extents:?}");
    for (freed, extent) in extents.iter().enumerate() {
        if extent.first > Seq(0) {
            log.raise_floor(Seq(extent.first.0 - 1)).expect("within the log");
            check_extents(&log);
            assert_eq!(
                log.extents().first(),
                Some(&extents[freed - 1]),
                "an extent with a batch above the floor stays"
            );
        }
        log.raise_floor(extent.first).expect("within the log");
        check_extents(&log);
        assert_eq!(log.extents(), extents[freed..], "exactly the extents before it are freed");
    }
    log.raise_floor(Seq(300)).expect("all of it");
    assert!(log.extents().len() <= 1, "only the extent being appended to is left");
}

/// Extents are sorted, not empty, and cover the floor.
fn check_extents(log: &dyn LogStore) {
    let (extents, bounds) = (log.extents(), log.bounds());
    assert!(extents.iter().all(|extent| extent.bytes > 0), "{extents:?}");
    assert!(extents.is_sorted_by(|one, other| one.first < other.first), "{extents:?}");
    assert!(extents.first().is_some_and(|extent| extent.first <= bounds.floor), "{extents:?} {bounds:?}");
    assert!(extents.last().is_some_and(|extent| extent.first <= bounds.next), "{extents:?} {bounds:?}");
}

/// Tests blobs, starting with an empty store.
pub fn blobs(blobs: &dyn BlobStore) {
    let name = |text: &str| BlobName::new(text).expect("a valid name");
    let (one, two) = (name("doc/7-1"), name("doc/7-2"));
    assert_eq!(kind(blobs.len(&one)), ErrorKind::Gone);
    assert_eq!(kind(blobs.read(&one, 0, 10)), ErrorKind::Gone);
    blobs.delete(&one).expect("deleting a missing blob succeeds");

    let mut writer = blobs.create(&one).expect("a new blob");
    writer.write(b"hello ").expect("writable");
    assert_eq!(kind(blobs.len(&one)), ErrorKind::Gone, "invisible until it is finished");
    writer.write(b"world").expect("writable");
    assert_eq!(writer.finish().expect("a free name"), 11);
    assert_eq!(blobs.len(&one).expect("there"), 11);
    assert_eq!(blobs.read(&one, 0, 100).expect("there"), b"hello world");
    assert_eq!(blobs.read(&one, 6, 3).expect("there"), b"wor");
    assert_eq!(blobs.read(&one, 11, 3).expect("there"), b"");
    assert_eq!(blobs.read(&one, 99, 3).expect("there"), b"");

    let mut again = blobs.create(&one).expect("begun");
    again.write(b"other").expect("writable");
    assert_eq!(kind(again.finish()), ErrorKind::Taken, "blobs are written once");
    assert_eq!(blobs.read(&one, 0, 100).expect("there"), b"hello world");

    let mut dropped = blobs.create(&two).expect("begun");
    dropped.write(b"never finished").expect("writable");
    drop(dropped);
    assert_eq!(kind(blobs.len(&two)), ErrorKind::Gone);
    assert_eq!(blobs.create(&two).expect("begun").finish().expect("an empty blob"), 0);
    blobs.create(&name("snapshot/0/1")).expect("begun").finish().expect("a free name");

    assert_eq!(blobs.list("doc/").expect("a list"), [one.clone(), two.clone()]);
    assert_eq!(blobs.list("").expect("a list").len(), 3);
    assert_eq!(blobs.list("none").expect("a list"), []);
    blobs.delete(&one).expect("there");
    assert_eq!(blobs.list("doc/").expect("a list"), [two]);
}
