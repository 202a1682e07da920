//! Blobs behind a bad network: what was finished is there, whole, and nobody is told that its own is another's.

use std::sync::Arc;

use sim::objects::{SimObjects, Weather};
use sim::rng::Rng;
use store::object::{ObjectBlobs, Patience};
use store::{BlobName, BlobStore, ErrorKind, StoreError};

fn put(blobs: &ObjectBlobs, name: &BlobName, bytes: &[u8]) -> Result<u64, StoreError> {
    let mut writer = blobs.create(name)?;
    bytes.chunks(10).try_for_each(|part| writer.write(part))?;
    writer.finish()
}

/// A put is done and its answer lost; the next try finds the name in use, by itself.
#[test]
fn a_finished_blob_is_there_and_a_name_of_ones_own_is_never_anothers() {
    let (mut finished, mut unknown) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let objects = SimObjects::new(rng.number(), Weather { trouble: 50, late_max: 30 });
        let blobs = |tries| ObjectBlobs::new(Arc::new(objects.handle()), Patience::without_pause(tries), 100);
        let names = (0..20).map(|n| BlobName::new(&format!("doc/{n}")).expect("a name"));
        let written: Vec<_> = names
            .map(|name| {
                let bytes = vec![rng.small(250); usize::from(rng.small(60))];
                let told = put(&blobs(4), &name, &bytes);
                (name, bytes, told)
            })
            .collect();
        objects.calm();
        for (name, bytes, told) in written {
            match told {
                Ok(length) => {
                    finished += 1;
                    assert_eq!(length, bytes.len() as u64, "seed {seed}");
                    assert_eq!(blobs(1).read(&name, 0, 100).expect("there"), bytes, "seed {seed}");
                    assert_eq!(
                        put(&blobs(1), &name, b"another").expect_err("in use").kind,
                        ErrorKind::Taken,
                        "seed {seed}"
                    );
                }
                Err(error) => {
                    unknown += 1;
                    assert_eq!(error.kind, ErrorKind::Io, "seed {seed}: {error}");
                }
            }
        }
    }
    assert!(finished > 3000 && unknown > 50, "finished {finished}, unknown {unknown}");
}
