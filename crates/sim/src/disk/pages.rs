//! One file of the simulated disk: the page cache above, the device below.
//!
//! **Invariant.** A read returns the cached bytes. The device holds the bytes of the last successful sync, and of any
//! sector that is listed as unsynced either these, or one of the versions that were written since.
//!
//! **What would break it.** A failed sync that leaves its sectors dirty: a retry would appear to save them. So it marks
//! them clean, as Linux does: the cache still returns them, no later sync writes them, and a power cut may lose them.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The unit that survives a power cut in whole or not at all, in bytes: the sector of a disk.
pub const SECTOR: usize = 512;

/// The contents of a file: cached, and on the device.
#[derive(Clone, Default)]
pub(super) struct CachedFile {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// By sector number.
    unsynced: BTreeMap<usize, UnsyncedSector>,
    /// An unsynced truncation to this length.
    truncation: Option<usize>,
}

/// A sector whose cached contents may differ from the device.
#[derive(Clone, Default)]
struct UnsyncedSector {
    /// The contents before the latest write, oldest first, without those of the last successful sync. Any of them may
    /// have reached the device.
    earlier: Vec<Arc<[u8]>>,
    /// A sync of it failed, and it was not written since: no later sync writes it.
    is_clean: bool,
}

/// What a power cut leaves of an unsynced change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Survival {
    /// The contents of the last successful sync.
    Lost,
    /// The latest contents.
    Latest,
    /// Earlier unsynced contents, by number modulo their count; the latest if there are none.
    Earlier(usize),
}

impl CachedFile {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.cached
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        for number in offset / SECTOR..end.div_ceil(SECTOR) {
            let current = sector(&self.cached, number);
            let unsynced =
                self.unsynced.entry(number).and_modify(|sector| sector.earlier.push(current.into()));
            unsynced.or_default().is_clean = false;
        }
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[offset..end].copy_from_slice(bytes);
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.cached.truncate(length);
        self.unsynced.retain(|number, _| number * SECTOR < length);
        self.truncation = Some(length);
    }

    pub(super) fn sync(&mut self) {
        if let Some(length) = self.truncation.take() {
            self.durable.truncate(length);
        }
        let (clean, dirty): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.unsynced).into_iter().partition(|(_, sector)| sector.is_clean);
        for number in dirty.into_keys() {
            put(&mut self.durable, number, sector(&self.cached, number));
        }
        self.unsynced = clean;
    }

    /// A sync that failed: whether any sector was written is unknown, and no later sync writes it.
    pub(super) fn fail_sync(&mut self) {
        self.unsynced.values_mut().for_each(|sector| sector.is_clean = true);
    }

    /// The number of changes that a power cut may lose.
    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len() + usize::from(self.truncation.is_some())
    }

    /// Loses the cache. `survives` decides for each unsynced change, in order.
    pub(super) fn cut_power(&mut self, survives: &mut dyn FnMut() -> Survival) {
        if let Some(length) = self.truncation.take().filter(|_| survives() != Survival::Lost) {
            self.durable.truncate(length);
        }
        for (number, UnsyncedSector { earlier, .. }) in std::mem::take(&mut self.unsynced) {
            let latest = sector(&self.cached, number);
            match survives() {
                Survival::Lost => {}
                Survival::Earlier(version) if !earlier.is_empty() => {
                    put(&mut self.durable, number, &earlier[version % earlier.len()]);
                }
                Survival::Latest | Survival::Earlier(_) => put(&mut self.durable, number, latest),
            }
        }
        self.cached = self.durable.clone();
    }

    /// Flips a bit on the device and in the cache.
    pub(super) fn flip_bit(&mut self, bit: usize) {
        for bytes in [&mut self.cached, &mut self.durable] {
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }
}

fn sector(bytes: &[u8], number: usize) -> &[u8] {
    let end = bytes.len().min((number + 1) * SECTOR);
    &bytes[end.min(number * SECTOR)..end]
}

fn put(bytes: &mut Vec<u8>, number: usize, contents: &[u8]) {
    let end = number * SECTOR + contents.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[number * SECTOR..end].copy_from_slice(contents);
}
