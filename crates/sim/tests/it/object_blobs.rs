//! Blobs behind an unreliable network: a finished blob is complete, and a writer's own blob never counts as another's.

use std::sync::Arc;

use sim::objects::{NetworkFaults, SimObjects};
use sim::rng::Rng;
use store::object::{ObjectBlobs, RetryPolicy, UploadOptions};
use store::{BlobName, BlobStore, ErrorKind, StoreError};

fn put(blobs: &ObjectBlobs, name: &BlobName, bytes: &[u8]) -> Result<u64, StoreError> {
    let mut writer = blobs.create(name)?;
    bytes.chunks(10).try_for_each(|part| writer.write(part))?;
    writer.finish()
}

/// A put is executed and its response lost; the retry finds the name taken by its own first try.
#[test]
fn a_retried_put_recognises_its_own_blob() {
    let (mut finished, mut unknown) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let objects = SimObjects::new(
            rng.number(),
            NetworkFaults { fault_percent: 50, delay_max: 30, ..NetworkFaults::default() },
        );
        let blobs = |tries| {
            ObjectBlobs::new(
                Arc::new(objects.handle()),
                RetryPolicy::without_pause(tries),
                UploadOptions::parts_of(100),
            )
        };
        let names = (0..20).map(|n| BlobName::new(&format!("doc/{n}")).expect("a name"));
        let written: Vec<_> = names
            .map(|name| {
                let bytes = vec![rng.small(250); usize::from(rng.small(60))];
                let result = put(&blobs(4), &name, &bytes);
                (name, bytes, result)
            })
            .collect();
        objects.heal();
        for (name, bytes, result) in written {
            match result {
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
