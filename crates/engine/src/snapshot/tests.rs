//! Malformed snapshots are refused, with wrong checksums and with right ones.

use kernel::{
    Action, IdempotencyKey, Kernel, LeaseRequest, Limits, Metadata, Outcome, Pause, Paused, RequestKey,
    Scope, Span, Time,
};
use sim::fixture::{TestKernel, grant, held, key};
use sim::rng::Rng;

use super::chunk::{self, ChunkWriter};
use super::encode::tag;
use super::*;

/// A little of everything that fits into one chunk.
fn small() -> Snapshot {
    let mut world = TestKernel::new(Limits::default());
    let metadata = Some(Metadata::new(b"mine").expect("valid"));
    let first = LeaseRequest { metadata, ..grant(key("a"), Span(500)) };
    let request = IdempotencyKey { key: RequestKey([7; 16]), fingerprint: [8; 16] };
    let command =
        kernel::Command::by(&sim::fixture::identity("ada"), Action::Acquire(first)).with_request(request);
    assert!(matches!(world.apply(&command), Outcome::Applied(..)));
    world.now = Time(40);
    let released = world.acquire("bob", key("b"), Span(500)).expect("free");
    world.by("bob", Action::Release(held(&released)));
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

/// Splits a snapshot of one chunk into header and payload.
fn split(bytes: &[u8]) -> ([u8; Header::BYTES], Vec<u8>) {
    let header = *bytes.first_chunk().expect("a header");
    assert_eq!(u32_at(bytes, Header::BYTES + 8) as usize, bytes.len() - Header::BYTES - chunk::HEADER);
    (header, bytes[Header::BYTES + chunk::HEADER..].to_vec())
}

/// Assembles a snapshot, with right checksums.
fn sealed(mut header: [u8; Header::BYTES], payloads: &[&[u8]]) -> Vec<u8> {
    let crc = crc32c::crc32c(&header[..104]);
    header[104..].copy_from_slice(&crc.to_le_bytes());
    let mut bytes = header.to_vec();
    let mut chain = crc;
    for payload in payloads {
        let mut chunk = Vec::new();
        let mut out = |piece: &[u8]| {
            chunk = piece.to_vec();
            Ok(())
        };
        // A header with the checksum that the chunk must be chained to.
        let mut previous = [0; Header::BYTES];
        previous[104..].copy_from_slice(&chain.to_le_bytes());
        let mut chunks = ChunkWriter::begin(&previous, &mut out).expect("nothing fails");
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
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_snapshot_decodes_with_the_batch_at_which_the_log_continues() {
    let snapshot = small();
    assert_eq!(read_from(&written(&snapshot)).expect("sound"), (snapshot, Seq(77)));
    let nothing = Kernel::new().snapshot();
    assert_eq!(read_from(&written(&nothing)).expect("sound"), (nothing, Seq(77)));
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    let bytes = written(&small());
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        refusal(&flipped);
    }
}

#[test]
fn a_snapshot_cut_short_or_with_trailing_bytes_is_refused() {
    let bytes = written(&small());
    for cut in 0..bytes.len() {
        let what = refusal(&bytes[..cut]);
        assert_eq!(what, "unexpected end", "cut at {cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(refusal(&longer), "trailing bytes after the end");
}

/// A chunk of another snapshot of the same log, or a repeated chunk, is valid by itself.
#[test]
fn chunks_that_do_not_follow_each_other_are_refused() {
    let (header, payload) = split(&written(&small()));
    let (front, back) = payload.split_at(first_lease(&payload));
    let whole = sealed(header, &[front, back]);
    assert_eq!(read_from(&whole).expect("chunks may begin at any entry").0, small());
    let second = Header::BYTES + chunk::HEADER + front.len();
    let without_first = [&whole[..Header::BYTES], &whole[second..]].concat();
    assert_eq!(refusal(&without_first), "a chunk does not follow its predecessor");
    let twice = [&whole[..second], &whole[Header::BYTES..]].concat();
    assert_eq!(refusal(&twice), "a chunk does not follow its predecessor");
}

/// The offset of the only lease of `small`, after the tenure, the namespace, the policy and a key.
fn first_lease(payload: &[u8]) -> usize {
    let lease = [tag::LEASE];
    let mut text = lease.to_vec();
    crate::wire::Writer::new(&mut text).number(small().leases[0].lsn.0);
    payload.windows(text.len()).position(|part| part == text).expect("it is in there")
}

#[test]
fn malformed_entries_are_refused_despite_right_checksums() {
    let (header, payload) = split(&written(&small()));
    let end = payload.iter().rposition(|byte| *byte == tag::END).expect("an end");
    let lease = first_lease(&payload);
    let refused = |payloads: &[&[u8]]| refusal(&sealed(header, payloads));

    let mut newer = header;
    newer[8] = 3;
    assert_eq!(
        refusal(&sealed(newer, &[&payload])),
        "snapshot format not supported by this build: version=3"
    );
    let mut elsewhere = header;
    elsewhere[16] = 9;
    let what = refusal(&sealed(elsewhere, &[&payload]));
    assert_eq!(what, "the header and the tenure belong to different stores");

    let mut counts = payload.clone();
    counts[end + 6] += 1;
    assert!(refused(&[&counts]).contains("kind=6 expected=2 found=1"));
    let mut unknown = payload.clone();
    unknown[end] = 99;
    assert!(refused(&[&unknown]).contains("kind=99"));
    let trailing = [&payload[..], &payload[end..]].concat();
    assert_eq!(refused(&[&trailing]), "trailing bytes");
    let trailing_chunk = sealed(header, &[&payload, &payload[end..]]);
    assert_eq!(refusal(&trailing_chunk), "trailing bytes after the end");
    assert_eq!(refused(&[&payload[..end]]), "unexpected end");

    let no_tenure = &payload[lease..];
    assert_eq!(refused(&[no_tenure]), "an entry without a tenure");
    let lease_twice = [&payload[..end], &payload[lease..]].concat();
    assert!(refused(&[&lease_twice]).contains("out of order"));
    let tenure_twice = [&payload[..lease], &payload[..]].concat();
    assert!(refused(&[&tenure_twice]).contains("out of order"));
}

/// In practice a checksum protects the decoder, but a decoder that panics would be a way to take a server
/// down.
#[test]
fn damage_with_right_checksums_is_refused_or_canonical_and_never_panics() {
    let (header, payload) = split(&written(&small()));
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
                assert_eq!(written(&snapshot), bytes, "a snapshot that decodes is canonical");
                // The kernel decides whether the state is valid, without a panic.
                let _ = Kernel::restore(&snapshot);
            }
        }
    }
    assert!(refused > 1000 && read > 1000, "{refused} refused, {read} read");
}

#[test]
fn a_store_failure_is_not_reported_as_damage() {
    let broken = || StoreError::new(store::ErrorKind::Io, "the disk is gone");
    let failed = write(&small(), Seq(0), &mut |_| Err(broken()));
    assert_eq!(failed.expect_err("nothing was written").what, "the disk is gone");
    let failed = read(&mut |_, _| Err(broken())).expect_err("nothing was read");
    assert!(matches!(failed, SnapshotError::Store(_)), "{failed}");
}
