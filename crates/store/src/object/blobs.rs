//! One object per blob.
//!
//! **Invariant.** A blob is put completely, under a name that was free.
//!
//! **What would break it.** Taking "the name is in use" for another blob after an attempt that timed out: the
//! object may be this blob itself. So the bytes are compared. A put that timed out may also arrive after the
//! blob was abandoned or deleted: like any unreferenced blob, it is left to garbage collection.
//!
//! **What is absent.** Multipart uploads: they come with a real client. Until then a blob is buffered in
//! memory while it is written, up to a limit.

use std::sync::Arc;

use super::names;
use super::port::{Objects, ObjectsError, RetryPolicy};
use crate::port::{BlobName, BlobStore, BlobWriter, ErrorKind, StoreError};

/// Blobs in an object store.
#[derive(Clone)]
pub struct ObjectBlobs {
    objects: Arc<dyn Objects>,
    policy: RetryPolicy,
    bytes_max: usize,
}

impl ObjectBlobs {
    /// Blobs of at most `bytes_max` bytes each.
    pub fn new(objects: Arc<dyn Objects>, policy: RetryPolicy, bytes_max: usize) -> ObjectBlobs {
        ObjectBlobs { objects, policy, bytes_max }
    }

    fn request<T>(
        &self,
        doing: &str,
        name: &BlobName,
        mut request: impl FnMut(&str) -> Result<T, ObjectsError>,
    ) -> Result<T, StoreError> {
        let object = names::blob(name);
        self.policy.retry(|| request(&object)).map_err(|error| error.into_store_error(doing, &object))
    }

    /// Puts the blob. If the name is in use after a retry, checks whether an earlier attempt put it.
    fn put(&self, name: &BlobName, bytes: &[u8]) -> Result<(), StoreError> {
        let mut attempts = 0;
        let put = self.request("finishing a blob", name, |object| {
            attempts += 1;
            self.objects.put_if_absent(object, bytes)
        });
        match put {
            Err(error) if error.kind == ErrorKind::Taken && attempts > 1 => {
                let existing =
                    self.request("reading back a blob", name, |object| self.objects.get(object))?;
                if existing == bytes { Ok(()) } else { Err(error) }
            }
            decided => decided,
        }
    }
}

impl BlobStore for ObjectBlobs {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        Ok(Box::new(ObjectWriter { blobs: self.clone(), name: name.clone(), bytes: Vec::new() }))
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        self.request("reading a blob", name, |object| self.objects.head(object))
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.request("reading a blob", name, |object| self.objects.get_range(object, offset, length))
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        self.request("deleting a blob", name, |object| self.objects.delete(object))
    }

    fn list(&self, prefix: &str) -> Result<Vec<BlobName>, StoreError> {
        let prefix = format!("{}{prefix}", names::BLOBS);
        let (mut blobs, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.policy.retry(|| self.objects.list(&prefix, &after));
            let page = page.map_err(|error| error.into_store_error("listing blobs", &prefix))?;
            let names = page.names.iter().filter_map(|name| name.strip_prefix(names::BLOBS));
            blobs.extend(names.filter_map(BlobName::new));
            match page.names.into_iter().next_back() {
                Some(last) if page.more => after = last,
                _ => return Ok(blobs),
            }
        }
    }
}

struct ObjectWriter {
    blobs: ObjectBlobs,
    name: BlobName,
    bytes: Vec<u8>,
}

impl BlobWriter for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if self.bytes.len() + bytes.len() > self.blobs.bytes_max {
            let what = format!("blob too large: name={} bytes_max={}", self.name, self.blobs.bytes_max);
            return Err(StoreError::new(ErrorKind::TooLarge, what));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64, StoreError> {
        self.blobs.put(&self.name, &self.bytes)?;
        Ok(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::MemoryObjects;

    #[test]
    fn a_blob_over_the_limit_is_refused_and_leaves_nothing_behind() {
        let blobs = ObjectBlobs::new(Arc::new(MemoryObjects::default()), RetryPolicy::without_pause(1), 8);
        let name = BlobName::new("doc/1").expect("a name");
        let mut writer = blobs.create(&name).expect("begun");
        writer.write(b"12345678").expect("at the limit");
        assert_eq!(writer.write(b"9").expect_err("one too many").kind, ErrorKind::TooLarge);
        drop(writer);
        assert_eq!(blobs.len(&name).expect_err("not finished").kind, ErrorKind::Gone);
    }
}
