//! Fault injection: wraps any store and makes chosen calls fail, to test how callers react.
//!
//! A [`Plan`] decides which call fails and how, so a run can be repeated. A plan that blocks delays the call.
//! Which unsynced writes survive a crash is not decided here but in the layer below, by a simulated
//! [`Fs`](crate::fs::Fs).

use std::sync::{Arc, Mutex, PoisonError};

use crate::port::{
    Batch, BlobName, BlobStore, BlobWriter, Bounds, ErrorKind, Extent, LogCapacity, LogReader, LogStore, Lsn,
    LsnRange, Preparation, Seq, StoreError,
};

/// The call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// [`LogStore::append`].
    Append,
    /// [`LogStore::reserve`].
    Reserve,
    /// [`LogStore::raise_floor`].
    RaiseFloor,
    /// [`LogStore::confirm`].
    Confirm,
    /// [`LogStore::mark_clean_stop`].
    MarkCleanStop,
    /// [`LogReader::read`] or [`LogReader::read_lsn`].
    ReadBatch,
    /// [`BlobStore::create`].
    CreateBlob,
    /// [`BlobWriter::write`].
    WriteBlob,
    /// [`BlobWriter::finish`].
    FinishBlob,
    /// [`BlobStore::read`].
    ReadBlob,
    /// [`BlobStore::delete`].
    DeleteBlob,
    /// [`BlobStore::list`].
    ListBlobs,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call works.
    None,
    /// The call has no effect and returns this error.
    Before(ErrorKind),
    /// The call takes effect but returns this error.
    After(ErrorKind),
    /// One bit of the bytes read or written is flipped: the bit of this number, modulo the length.
    Flip(usize),
    /// Only this many bytes are read or written, and the call reports success.
    Torn(usize),
    /// The call has no effect and reports success. Only for appends and blob writes; other calls work.
    Lost,
}

/// Decides how each call fails, if at all.
pub type Plan = Box<dyn FnMut(Call) -> Fault + Send>;

/// A store with injected faults.
pub struct Faulty<S> {
    inner: S,
    plan: SharedPlan,
}

#[derive(Clone)]
struct SharedPlan(Arc<Mutex<Plan>>);

impl SharedPlan {
    fn next(&self, call: Call) -> Fault {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner))(call)
    }

    fn run<T>(&self, call: Call, act: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.next(call) {
            Fault::None | Fault::Flip(_) | Fault::Torn(_) | Fault::Lost => act(),
            Fault::Before(kind) => Err(StoreError::new(kind, format!("planned to fail before {call:?}"))),
            Fault::After(kind) => {
                act()?;
                Err(StoreError::new(kind, format!("planned to fail after {call:?}")))
            }
        }
    }

    fn read(
        &self,
        call: Call,
        act: impl FnOnce() -> Result<Vec<u8>, StoreError>,
    ) -> Result<Vec<u8>, StoreError> {
        let fault = self.next(call);
        let failed = |kind| Err(StoreError::new(kind, format!("planned to fail at {call:?}")));
        match fault {
            Fault::Before(kind) | Fault::After(kind) => failed(kind),
            Fault::None | Fault::Lost => act(),
            Fault::Flip(bit) => act().map(|bytes| flipped(bytes, bit)),
            Fault::Torn(length) => act().map(|bytes| torn(&bytes, length).to_vec()),
        }
    }

    fn write(
        &self,
        call: Call,
        bytes: &[u8],
        act: impl FnOnce(&[u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match self.next(call) {
            Fault::None => act(bytes),
            Fault::Lost => Ok(()),
            Fault::Flip(bit) => act(&flipped(bytes.to_vec(), bit)),
            Fault::Torn(length) => act(torn(bytes, length)),
            Fault::Before(kind) => Err(StoreError::new(kind, format!("planned to fail before {call:?}"))),
            Fault::After(kind) => {
                act(bytes)?;
                Err(StoreError::new(kind, format!("planned to fail after {call:?}")))
            }
        }
    }

    fn read_batch(&self, act: impl FnOnce() -> Result<Batch, StoreError>) -> Result<Batch, StoreError> {
        let mut batch = None;
        let payload = self.read(Call::ReadBatch, || {
            let read = act()?;
            let payload = read.payload.clone();
            batch = Some(read);
            Ok(payload)
        })?;
        let batch = batch.expect("a payload comes with its batch");
        Ok(Batch { payload, ..batch })
    }
}

fn torn(bytes: &[u8], length: usize) -> &[u8] {
    &bytes[..length.min(bytes.len())]
}

fn flipped(mut bytes: Vec<u8>, bit: usize) -> Vec<u8> {
    if !bytes.is_empty() {
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

impl<S> Faulty<S> {
    /// Wraps a store.
    pub fn new(inner: S, plan: Plan) -> Faulty<S> {
        Faulty { inner, plan: SharedPlan(Arc::new(Mutex::new(plan))) }
    }
}

impl<S: LogStore> LogStore for Faulty<S> {
    fn bounds(&self) -> Bounds {
        self.inner.bounds()
    }

    fn append(&mut self, seq: Seq, lsns: LsnRange, payload: &[u8]) -> Result<(), StoreError> {
        let inner = &mut self.inner;
        self.plan.write(Call::Append, payload, |payload| inner.append(seq, lsns, payload))
    }

    fn reserve(&mut self) -> Result<(), StoreError> {
        self.plan.run(Call::Reserve, || self.inner.reserve())
    }

    fn preparation(&mut self) -> Option<Preparation> {
        self.inner.preparation()
    }

    fn capacity(&self) -> LogCapacity {
        self.inner.capacity()
    }

    fn raise_floor(&mut self, floor: Seq) -> Result<(), StoreError> {
        self.plan.run(Call::RaiseFloor, || self.inner.raise_floor(floor))
    }

    fn extents(&self) -> Vec<Extent> {
        self.inner.extents()
    }

    fn confirm(&mut self) -> Result<(), StoreError> {
        self.plan.run(Call::Confirm, || self.inner.confirm())
    }

    fn mark_clean_stop(&mut self) -> Result<(), StoreError> {
        self.plan.run(Call::MarkCleanStop, || self.inner.mark_clean_stop())
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(FaultyReader { inner: self.inner.reader(), plan: self.plan.clone() })
    }
}

struct FaultyReader {
    inner: Box<dyn LogReader>,
    plan: SharedPlan,
}

impl LogReader for FaultyReader {
    fn read(&mut self, seq: Seq) -> Result<Batch, StoreError> {
        let inner = &mut self.inner;
        self.plan.read_batch(|| inner.read(seq))
    }

    fn read_lsn(&mut self, lsn: Lsn) -> Result<Batch, StoreError> {
        let inner = &mut self.inner;
        self.plan.read_batch(|| inner.read_lsn(lsn))
    }
}

impl<S: BlobStore> BlobStore for Faulty<S> {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        let inner = self.plan.run(Call::CreateBlob, || self.inner.create(name))?;
        Ok(Box::new(FaultyWriter { inner, plan: self.plan.clone() }))
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        self.inner.len(name)
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.plan.read(Call::ReadBlob, || self.inner.read(name, offset, length))
    }

    fn evict(&self, name: &BlobName) {
        self.inner.evict(name);
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        self.plan.run(Call::DeleteBlob, || self.inner.delete(name))
    }

    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError> {
        self.plan.run(Call::ListBlobs, || self.inner.list(prefix))
    }
}

struct FaultyWriter {
    inner: Box<dyn BlobWriter>,
    plan: SharedPlan,
}

impl BlobWriter for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let inner = &mut self.inner;
        self.plan.write(Call::WriteBlob, bytes, |bytes| inner.write(bytes))
    }

    fn finish(self: Box<Self>) -> Result<u64, StoreError> {
        let FaultyWriter { inner, plan } = *self;
        plan.run(Call::FinishBlob, || inner.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBlobs, MemoryLog};

    fn once(at: Call, fault: Fault) -> Plan {
        let mut left = Some(fault);
        Box::new(move |call| if call == at { left.take().unwrap_or(Fault::None) } else { Fault::None })
    }

    #[test]
    fn a_fault_before_an_append_loses_the_batch_and_one_after_it_does_not() {
        for (fault, next) in [(Fault::Before(ErrorKind::Io), 0), (Fault::After(ErrorKind::Io), 1)] {
            let mut log = Faulty::new(MemoryLog::default(), once(Call::Append, fault));
            let failed = log.append(Seq(0), LsnRange::default(), b"batch").expect_err("as planned");
            assert_eq!(failed.kind, ErrorKind::Io);
            assert_eq!(log.bounds().next, Seq(next));
        }
    }

    #[test]
    fn a_planned_bit_is_flipped_once() {
        let mut log = Faulty::new(MemoryLog::default(), once(Call::ReadBatch, Fault::Flip(9)));
        log.append(Seq(0), LsnRange::default(), &[0, 0]).expect("nothing planned");
        assert_eq!(log.reader().read(Seq(0)).expect("there").payload, [0, 2]);
        assert_eq!(log.reader().read(Seq(0)).expect("there").payload, [0, 0]);
    }

    #[test]
    fn an_append_may_be_lost_torn_or_flipped_and_still_report_success() {
        for (fault, left) in [(Fault::Lost, None), (Fault::Torn(2), Some(2)), (Fault::Flip(0), Some(5))] {
            let mut log = Faulty::new(MemoryLog::default(), once(Call::Append, fault));
            log.append(Seq(0), LsnRange::default(), b"batch").expect("it reports success");
            let found = log.reader().read(Seq(0)).ok().map(|batch| batch.payload);
            assert_eq!(found.as_ref().map(Vec::len), left, "{fault:?}");
            assert_ne!(found.as_deref(), Some(&b"batch"[..]), "{fault:?}");
        }
    }

    #[test]
    fn a_blob_whose_finish_reports_failure_may_exist() {
        let blobs = Faulty::new(MemoryBlobs::default(), once(Call::FinishBlob, Fault::After(ErrorKind::Io)));
        let name = BlobName::new("doc/1").expect("a name");
        let mut writer = blobs.create(&name).expect("nothing planned");
        writer.write(b"bytes").expect("nothing planned");
        assert!(writer.finish().is_err());
        assert_eq!(blobs.read(&name, 0, 9).expect("there").len(), 5);
    }
}
