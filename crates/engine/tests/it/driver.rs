//! A shard that a test drives by hand: it decides, appends, and takes checkpoints, in one thread.

use std::sync::Arc;

use engine::Origin;
use engine::internals::checkpoint::{CheckpointError, Mark, plan, take};
use engine::internals::decider::Decider;
use engine::internals::recovery::{DamagedSnapshot, RecoveryError, recover, snapshots};
use engine::internals::shard::StateDigest;
use kernel::{Action, Command, Kernel, Span};
use sim::fixture::{grant, identity, key};
use store::memory::{MemoryBlobs, MemoryLog};
use store::{BlobName, BlobStore, LogStore, StoreError};

use crate::fixture::{TENURE, TestClock};

/// Leases that each batch grants; their names make a batch about 3 KiB.
const LEASES: usize = 8;

pub(crate) struct Driver {
    pub(crate) decider: Decider,
    pub(crate) log: Box<dyn LogStore>,
    pub(crate) blobs: Arc<dyn BlobStore>,
}

impl Driver {
    /// Recovers and opens a shard. Fails with the names of damaged snapshots if there are any.
    pub(crate) fn open(log: Box<dyn LogStore>, blobs: Arc<dyn BlobStore>) -> Result<Driver, RecoveryError> {
        let (kernel, damaged) = recovered(&*log, &*blobs)?;
        assert!(damaged.is_empty(), "{damaged:?}");
        let clock = Box::new(TestClock::default());
        let decider = Decider::open(kernel, log.bounds().next, clock, &TENURE).expect("a valid clock");
        Ok(Driver { decider, log, blobs })
    }

    /// A new shard in memory.
    pub(crate) fn in_memory(log: &MemoryLog, blobs: &MemoryBlobs) -> Driver {
        Driver::open(Box::new(log.clone()), Arc::new(blobs.clone())).expect("an empty store")
    }

    /// Grants some leases, and appends them as the next batch.
    pub(crate) fn batch(&mut self) -> Result<Mark, StoreError> {
        let seq = self.log.bounds().next.0;
        for n in 0..LEASES {
            let name = format!("{:0>400}", format!("{seq}-{n}"));
            let acquire = Action::Acquire(grant(key(&name), Span(300_000)));
            self.decider.decide(&Command::by(&identity("ada"), acquire), &Origin::default(), None);
        }
        let sealed = self.decider.seal().expect("something was decided");
        self.log.reserve()?;
        self.log.append(sealed.seq, sealed.lsns, &sealed.payload)?;
        let kernel = self.decider.kernel();
        let state = StateDigest { lsn: kernel.last_lsn(), hash: kernel.state_hash() };
        Ok(Mark { next: sealed.seq.next(), state, extents: self.log.extents() })
    }

    /// Takes a snapshot and raises the floor as far as it may. Returns the damaged snapshots that were found.
    pub(crate) fn checkpoint(&mut self, mark: &Mark) -> Result<Vec<DamagedSnapshot>, CheckpointError> {
        let (mut reader, mut damaged) = (self.log.reader(), Vec::new());
        let mut on_damage = |snapshot| damaged.push(snapshot);
        let taken = take(&*self.blobs, &mut *reader, TENURE.store.shard, mark, 0, &mut on_damage)?;
        if let Some(plan) = plan(&taken, &mut *reader, mark, 0)? {
            assert_eq!(plan.moves, [], "there are no documents");
            self.log.raise_floor(plan.floor)?;
        }
        Ok(damaged)
    }

    /// Two batches and a checkpoint, several times.
    pub(crate) fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.batch().expect("writable");
            let mark = self.batch().expect("writable");
            assert!(self.checkpoint(&mark).expect("a checkpoint").is_empty());
        }
    }
}

/// Recovers a state, with the damaged snapshots that were passed over.
pub(crate) fn recovered(
    log: &dyn LogStore,
    blobs: &dyn BlobStore,
) -> Result<(Kernel, Vec<DamagedSnapshot>), RecoveryError> {
    let mut damaged = Vec::new();
    let kernel = recover(log, blobs, TENURE.store.shard, &mut |snapshot| damaged.push(snapshot))?;
    Ok((kernel, damaged))
}

/// The names of the snapshots, oldest first.
pub(crate) fn snapshot_names(blobs: &dyn BlobStore) -> Vec<BlobName> {
    let all = snapshots(blobs, TENURE.store.shard).expect("a list");
    all.into_iter().map(|(name, _)| name).collect()
}

/// All bytes of a blob.
pub(crate) fn bytes_of(blobs: &dyn BlobStore, name: &BlobName) -> Vec<u8> {
    blobs.read(name, 0, 1 << 24).expect("there")
}

/// Replaces a blob.
pub(crate) fn replace(blobs: &dyn BlobStore, name: &BlobName, bytes: &[u8]) {
    blobs.delete(name).expect("deletable");
    let mut writer = blobs.create(name).expect("writable");
    writer.write(bytes).expect("writable");
    writer.finish().expect("durable");
}

/// Flips one bit of a blob.
pub(crate) fn flip(blobs: &dyn BlobStore, name: &BlobName, at: usize) {
    let mut bytes = bytes_of(blobs, name);
    bytes[at] ^= 0x10;
    replace(blobs, name, &bytes);
}
