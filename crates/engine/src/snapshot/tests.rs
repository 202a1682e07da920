//! What is refused, with checksums that are wrong and with checksums that are right.

use kernel::{
    Action, Grant, Kernel, Limits, Metadata, Outcome, Pause, Paused, Request, RequestKey, Scope, Span, Time,
};
use sim::rng::Rng;
use sim::world::{World, grant, held, key};

use super::chunk::{self, ChunkWriter};
use super::encode::tag;
use super::*;

/// A little of everything that fits into one chunk.
fn small() -> Snapshot {
    let mut world = World::new(Limits::default());
    let metadata = Some(Metadata::new(b"mine").expect("valid"));
    let first = Grant { metadata, ..grant(key("a"), Span(500)) };
    let request = Request { key: RequestKey([7; 16]), fingerprint: [8; 16] };
    let asked =
        kernel::Command::by(&sim::world::identity("ada"), Action::Acquire(first)).with_request(request);
    assert!(matches!(world.apply(&asked), Outcome::Applied(..)));
    world.now = Time(40);
    let gone = world.acquire("bob", key("b"), Span(500)).expect("free");
    world.by("bob", Action::Release(held(&gone)));
    world.by("root", Action::Pause(Pause { whom: Paused::Scope(Scope::default()), paused: true }));
    world.kernel.snapshot()
}

fn written(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = write(snapshot, Seq(77), &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    assert_eq!(length.expect("nothing fails"), bytes.len() as u64);
    bytes
}

fn read_from(bytes: &[u8]) -> Result<(Snapshot, Seq), SnapshotError> {
    read(&mut |offset, length| {
        let from = usize::try_from(offset).expect("small").min(bytes.len());
        Ok(bytes[from..bytes.len().min(from + length)].to_vec())
    })
}

/// The header and the payload of a snapshot of one chunk.
fn taken_apart(bytes: &[u8]) -> ([u8; Header::BYTES], Vec<u8>) {
    let header = *bytes.first_chunk().expect("a header");
    assert_eq!(u32_at(bytes, Header::BYTES + 8) as usize, bytes.len() - Header::BYTES - chunk::HEADER);
    (header, bytes[Header::BYTES + chunk::HEADER..].to_vec())
}

/// Put together again, with every checksum right.
fn sealed(mut header: [u8; Header::BYTES], payloads: &[&[u8]]) -> Vec<u8> {
    let crc = crc32c::crc32c(&header[..68]);
    header[68..].copy_from_slice(&crc.to_le_bytes());
    let mut bytes = header.to_vec();
    let mut chain = crc;
    for payload in payloads {
        let mut chunk = Vec::new();
        let mut out = |piece: &[u8]| {
            chunk = piece.to_vec();
            Ok(())
        };
        // Its header carries the checksum that the chunk must be tied to.
        let mut before = [0; Header::BYTES];
        before[68..].copy_from_slice(&chain.to_le_bytes());
        let mut chunks = ChunkWriter::begin(&before, &mut out).expect("nothing fails");
        chunks.entry(|to| to.fixed(payload)).expect("nothing fails");
        chunks.finish().expect("nothing fails");
        chain = u32_at(&chunk, 0);
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    match read_from(bytes) {
        Err(SnapshotError::Damaged { offset, what }) => {
            assert!(offset <= bytes.len() as u64, "{what}: offset={offset}");
            what
        }
        other => panic!("it must be refused: {other:?}"),
    }
}

#[test]
fn a_snapshot_reads_back_and_says_where_the_log_goes_on() {
    let snapshot = small();
    assert_eq!(read_from(&written(&snapshot)).expect("sound"), (snapshot, Seq(77)));
    let nothing = Kernel::new().snapshot();
    assert_eq!(read_from(&written(&nothing)).expect("sound"), (nothing, Seq(77)));
}

#[test]
fn every_bit_matters() {
    let bytes = written(&small());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        refusal(&flipped);
    }
}

#[test]
fn cut_short_anywhere_or_with_something_behind_it_a_snapshot_is_refused() {
    let bytes = written(&small());
    for cut in 0..bytes.len() {
        let what = refusal(&bytes[..cut]);
        assert_eq!(what, "it ends too early", "cut at {cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(refusal(&longer), "bytes behind the end");
}

/// A chunk of another snapshot of the same log, or the same chunk twice, is whole in itself.
#[test]
fn chunks_that_do_not_follow_each_other_are_refused() {
    let (header, payload) = taken_apart(&written(&small()));
    let (front, back) = payload.split_at(first_lease(&payload));
    let whole = sealed(header, &[front, back]);
    assert_eq!(read_from(&whole).expect("entries may be cut into chunks anywhere").0, small());
    let second = Header::BYTES + chunk::HEADER + front.len();
    let without_first = [&whole[..Header::BYTES], &whole[second..]].concat();
    assert_eq!(refusal(&without_first), "a chunk does not follow the one before it");
    let twice = [&whole[..second], &whole[Header::BYTES..]].concat();
    assert_eq!(refusal(&twice), "a chunk does not follow the one before it");
}

/// Where the only lease of `small` begins: before it stand the tenure, the namespace, the policy and a key.
fn first_lease(payload: &[u8]) -> usize {
    let lease = [tag::LEASE];
    let mut text = lease.to_vec();
    crate::wire::Writer::new(&mut text).number(small().leases[0].lsn.0);
    payload.windows(text.len()).position(|part| part == text).expect("it is in there")
}

#[test]
fn what_a_right_checksum_does_not_excuse() {
    let (header, payload) = taken_apart(&written(&small()));
    let end = payload.iter().rposition(|byte| *byte == tag::END).expect("an end");
    let lease = first_lease(&payload);
    let refused = |payloads: &[&[u8]]| refusal(&sealed(header, payloads));

    let mut newer = header;
    newer[8] = 2;
    assert_eq!(refusal(&sealed(newer, &[&payload])), "format version 2 is not known to this build");
    let mut elsewhere = header;
    elsewhere[16] = 9;
    let what = refusal(&sealed(elsewhere, &[&payload]));
    assert_eq!(what, "the header and the tenure are of different stores");

    let mut counts = payload.clone();
    counts[end + 6] += 1;
    assert!(refused(&[&counts]).contains("kind=6 told=2 found=1"));
    let mut unknown = payload.clone();
    unknown[end] = 99;
    assert!(refused(&[&unknown]).contains("kind 99 is not known"));
    let behind = [&payload[..], &payload[end..]].concat();
    assert_eq!(refused(&[&behind]), "bytes that mean nothing");
    let chunk_behind = sealed(header, &[&payload, &payload[end..]]);
    assert_eq!(refusal(&chunk_behind), "bytes behind the end");
    assert_eq!(refused(&[&payload[..end]]), "it ends too early");

    let no_tenure = &payload[lease..];
    assert_eq!(refused(&[no_tenure]), "an entry of a log that was never opened");
    let lease_twice = [&payload[..end], &payload[lease..]].concat();
    assert!(refused(&[&lease_twice]).contains("out of order"));
    let tenure_twice = [&payload[..lease], &payload[..]].concat();
    assert!(refused(&[&tenure_twice]).contains("out of order"));
}

/// A checksum stands before this in practice, but a decoder that panics is a way to take a server down.
#[test]
fn damage_under_a_right_checksum_is_refused_or_has_one_spelling_and_never_panics() {
    let (header, payload) = taken_apart(&written(&small()));
    let mut rng = Rng::new(5);
    let (mut refused, mut read) = (0, 0);
    for _ in 0..20_000 {
        let mut damaged = payload.clone();
        for _ in 0..=rng.below(2) {
            let at = usize::try_from(rng.below(damaged.len() as u64)).expect("an index");
            damaged[at] ^= 1 << rng.small(8);
        }
        let bytes = sealed(header, &[&damaged]);
        match read_from(&bytes) {
            Err(_) => refused += 1,
            Ok((snapshot, _)) => {
                read += 1;
                assert_eq!(written(&snapshot), bytes, "whatever reads is written again as the same bytes");
                // Whether it makes sense is the kernel's to say: it must say something.
                let _ = Kernel::restore(&snapshot);
            }
        }
    }
    assert!(refused > 1000 && read > 1000, "{refused} refused, {read} read");
}

#[test]
fn a_failing_store_is_told_from_damage() {
    let broken = || StoreError::new(store::ErrorKind::Io, "the disk is gone");
    let failed = write(&small(), Seq(0), &mut |_| Err(broken()));
    assert_eq!(failed.expect_err("nothing was written").what, "the disk is gone");
    let failed = read(&mut |_, _| Err(broken())).expect_err("nothing was read");
    assert!(matches!(failed, SnapshotError::Store(_)), "{failed}");
}
