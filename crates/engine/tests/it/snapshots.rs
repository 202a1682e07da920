//! Snapshots of random kernel states: they decode exactly, and a kernel restored from one behaves like the
//! original.

use engine::internals::snapshot::{PIECE_MAX, RANGE_BYTES, read, write};
use kernel::{
    Action, Bundle, Kernel, LeaseRequest, Limits, Member, Metadata, Outcome, Owner, Predicate, Reason,
    ResourceName, Snapshot, Span,
};
use sim::fixture::{TestKernel, grant};
use sim::generator::CommandGenerator;
use store::memory::MemoryBlobs;
use store::{BlobName, BlobStore, Seq};

/// Writes a snapshot to a blob and reads it back, as the engine does.
fn through_a_blob(snapshot: &Snapshot, next: Seq) -> (Snapshot, Seq) {
    let (blobs, name) = (MemoryBlobs::default(), BlobName::new("snapshot/0/1").expect("a name"));
    let mut blob = blobs.create(&name).expect("a new name");
    let length = write(snapshot, next, &mut |piece| blob.write(piece)).expect("memory does not fail");
    assert_eq!(blob.finish().expect("a new name"), length);
    read(&mut |offset, length| blobs.read(&name, offset, length)).expect("readable")
}

#[test]
fn a_restored_kernel_behaves_like_the_original() {
    for seed in 0..40 {
        let (mut kernel, mut twin) = (Kernel::new(), Kernel::new());
        let mut generator = CommandGenerator::new(seed);
        for n in 0..1500 {
            let step = generator.step(&kernel);
            let outcome = kernel.apply(step.lsn, step.now, &step.command);
            assert_eq!(twin.apply(step.lsn, step.now, &step.command), outcome, "seed {seed}, step {n}");
            generator.observe(&step, &outcome);
            if n % 16 == 0 {
                let snapshot = kernel.snapshot();
                let (again, next) = through_a_blob(&snapshot, Seq(n));
                assert_eq!((&again, next), (&snapshot, Seq(n)), "seed {seed}, step {n}");
                twin = Kernel::restore(&again).expect("a kernel wrote it");
            }
        }
        assert_eq!(twin.snapshot(), kernel.snapshot(), "seed {seed}");
    }
}

/// A grant with names and a bundle of maximum length: the longest possible entry.
fn longest(n: usize) -> LeaseRequest {
    let text = |length: usize| format!("{n:0length$}");
    let kind = "K".repeat(ResourceName::MAX_KIND_BYTES);
    let member = |m: usize| Member {
        resource: ResourceName::new(&kind, &format!("{n:06}{m:0506}")).expect("valid"),
        predicate: Predicate::Mutates,
    };
    LeaseRequest {
        namespace: kernel::Namespace::new(&text(128)).expect("valid"),
        owner: Some(Owner::new(&text(256)).expect("valid")),
        agent: Some(kernel::AgentName::new(&text(256)).expect("valid")),
        session: Some(kernel::SessionName::new(&text(256)).expect("valid")),
        reason: Some(Reason::new(&text(256)).expect("valid")),
        metadata: Some(Metadata::new(&[9; Metadata::MAX_BYTES]).expect("valid")),
        ..grant(Bundle::new((0..Bundle::MAX_MEMBERS).map(member).collect()).expect("a bundle"), Span(1000))
    }
}

#[test]
fn encoding_and_decoding_use_bounded_memory_for_any_state() {
    let mut world = TestKernel::new(Limits::default());
    for n in 0..40 {
        let granted = world.by(&format!("{n:0256}"), Action::Acquire(longest(n)));
        assert!(matches!(granted, Outcome::Applied(..)), "{granted:?}");
    }
    let snapshot = world.kernel.snapshot();
    let (mut bytes, mut longest_piece) = (Vec::new(), 0);
    write(&snapshot, Seq(1), &mut |piece| {
        longest_piece = longest_piece.max(piece.len());
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .expect("nothing fails");
    assert!(bytes.len() > 2 << 20 && longest_piece <= PIECE_MAX, "{longest_piece} of {}", bytes.len());

    // A short read is fine, as long as it is not empty.
    for most in [RANGE_BYTES, 1000] {
        let again = read(&mut |offset, length| {
            assert!(length <= RANGE_BYTES);
            let from = usize::try_from(offset).expect("small").min(bytes.len());
            Ok(bytes[from..bytes.len().min(from + length.min(most))].to_vec())
        });
        assert_eq!(again.expect("sound"), (snapshot.clone(), Seq(1)));
    }
}
