//! One object per blob.
//!
//! **Invariant.** A blob is created completely, under a name that was free.
//!
//! **What would break it.** Taking "the name is in use" for another blob after an attempt without a response: the object
//! may be this blob itself. So the bytes are compared. A put that timed out may also arrive after the blob was abandoned
//! or deleted: like any unreferenced blob, it is left to garbage collection.
//!
//! A long blob is uploaded in parts, and no object store makes their completion conditional. The names of documents
//! contain random bits, so no other writer has them. Two writers may create the same snapshot: of the same batches, so
//! with the same contents.

use std::ops::Range;
use std::sync::Arc;

use super::blob_reader::ObjectReader;
use super::names;
use super::part::{Part, PartBuffer, Spool};
use super::port::{ObjectUpload, Objects, ObjectsError, RetryPolicy};
use crate::port::{BlobName, BlobReader, BlobStore, BlobWriter, ErrorKind, StoreError};

/// How blobs are uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadOptions {
    /// A blob up to this size is created by one request, in bytes.
    pub single_put_max: usize,
    /// The size of the parts of a larger blob, in bytes. Without a [`Spool`] a writer has one part in memory.
    pub part_bytes: usize,
    /// The maximum size of a blob in bytes.
    pub blob_bytes_max: u64,
}

impl UploadOptions {
    /// Object stores accept this many parts.
    const PARTS_MAX: u64 = 10_000;

    /// Memory of a writer with a [`Spool`], in bytes. A piece of a part is read from its file while the one before is sent.
    pub const SPOOLED_BYTES: usize = PartBuffer::MEMORY_MAX + 2 * Part::PIECE_BYTES;

    /// Memory of a writer without a [`Spool`], in bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.single_put_max.max(self.part_bytes)
    }

    /// Parts and single requests of at most `bytes` bytes.
    pub fn parts_of(bytes: usize) -> UploadOptions {
        let blob_bytes_max = bytes as u64 * UploadOptions::PARTS_MAX;
        UploadOptions { single_put_max: bytes, part_bytes: bytes, blob_bytes_max }
    }
}

/// Blobs in an object store.
#[derive(Clone)]
pub struct ObjectBlobs {
    objects: Arc<dyn Objects>,
    policy: RetryPolicy,
    options: UploadOptions,
    spool: Option<Spool>,
}

/// How much of an object is compared at a time, in bytes.
const COMPARED_BYTES: usize = 1 << 20;

impl ObjectBlobs {
    /// Blobs in these objects.
    pub fn new(objects: Arc<dyn Objects>, policy: RetryPolicy, options: UploadOptions) -> ObjectBlobs {
        ObjectBlobs { objects, policy, options, spool: None }
    }

    /// With a spool, the bytes of a blob wait there until they are sent, and not in memory.
    #[must_use]
    pub fn with_spool(self, spool: Option<Spool>) -> ObjectBlobs {
        ObjectBlobs { spool, ..self }
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

    /// Creates a blob by one request. If the name is in use, checks whether an earlier attempt has created it.
    fn put(&self, name: &BlobName, content: &Part) -> Result<(), StoreError> {
        let mut attempts = 0;
        let put = self.request("finishing a blob", name, |object| {
            attempts += 1;
            self.objects.put_part_if_absent(object, content)
        });
        match put {
            Err(error) if error.kind == ErrorKind::Taken && attempts > 1 => {
                if self.has(name, content)? {
                    Ok(())
                } else {
                    Err(error)
                }
            }
            decided => decided,
        }
    }

    /// Whether the object has this content.
    fn has(&self, name: &BlobName, content: &Part) -> Result<bool, StoreError> {
        let unreadable = |error| StoreError::io(&error, "reading a spooled part");
        if self.len(name)? != content.len() as u64 {
            return Ok(false);
        }
        for offset in (0..content.len()).step_by(COMPARED_BYTES) {
            let expected = content.read(offset, COMPARED_BYTES).map_err(unreadable)?;
            if self.read(name, offset as u64, COMPARED_BYTES)? != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl BlobStore for ObjectBlobs {
    fn create(&self, name: &BlobName) -> Result<Box<dyn BlobWriter>, StoreError> {
        let writer = ObjectWriter {
            blobs: self.clone(),
            name: name.clone(),
            buffer: PartBuffer::new(self.spool.clone()),
            upload: None,
            parts: 0,
            length: 0,
        };
        Ok(Box::new(writer))
    }

    fn writer_memory(&self) -> usize {
        if self.spool.is_some() { UploadOptions::SPOOLED_BYTES } else { self.options.buffered_bytes() }
    }

    fn len(&self, name: &BlobName) -> Result<u64, StoreError> {
        self.request("reading a blob", name, |object| self.objects.head(object))
    }

    fn read(&self, name: &BlobName, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        self.request("reading a blob", name, |object| self.objects.get_range(object, offset, length))
    }

    fn open_range(&self, name: &BlobName, range: Range<u64>) -> Option<Box<dyn BlobReader>> {
        let (objects, policy) = (Arc::clone(&self.objects), self.policy.clone());
        Some(Box::new(ObjectReader::new(objects, policy, names::blob(name), range)))
    }

    fn delete(&self, name: &BlobName) -> Result<(), StoreError> {
        self.request("deleting a blob", name, |object| self.objects.delete(object))
    }

    fn abort_old_uploads(&self) -> Result<usize, StoreError> {
        let aborted = self.policy.retry(|| self.objects.abort_old_uploads(names::BLOBS));
        aborted.map_err(|error| error.into_store_error("aborting old uploads", names::BLOBS))
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

/// A blob being written. An upload that is dropped is aborted by its client.
struct ObjectWriter {
    blobs: ObjectBlobs,
    name: BlobName,
    /// The bytes that were not sent yet.
    buffer: PartBuffer,
    /// The upload in parts, once the blob is too long for one request.
    upload: Option<Box<dyn ObjectUpload>>,
    /// The number of parts that were sent.
    parts: usize,
    length: u64,
}

impl ObjectWriter {
    /// Sends the first bytes of the buffer as a part.
    fn send_part(&mut self, length: usize) -> Result<(), StoreError> {
        let ObjectWriter { blobs, name, upload, .. } = self;
        if upload.is_none() {
            let begun =
                blobs.request("beginning an upload", name, |name| blobs.objects.begin_upload(name))?;
            *upload = Some(begun);
        }
        let upload = upload.as_mut().expect("it has just begun");
        let (number, part) = (self.parts, self.buffer.take(length)?);
        blobs.request("uploading a part", name, |_| upload.put_part(number, &part))?;
        self.buffer.reuse(part);
        self.parts += 1;
        Ok(())
    }

    /// Creates the object from its parts. After a lost response the object itself shows whether that has succeeded.
    fn complete(&mut self) -> Result<(), StoreError> {
        let ObjectWriter { blobs, name, upload, length, .. } = self;
        let upload = upload.as_mut().expect("a long blob has an upload");
        let mut attempts = 0;
        blobs.request("completing an upload", name, |object| {
            attempts += 1;
            if attempts > 1 && blobs.objects.head(object) == Ok(*length) {
                return Ok(());
            }
            match upload.complete() {
                // The upload is gone: it was completed, and the response was lost.
                Err(error) if attempts > 1 && !error.is_transient() => match blobs.objects.head(object) {
                    Ok(found) if found == *length => Ok(()),
                    _ => Err(error),
                },
                other => other,
            }
        })
    }
}

impl BlobWriter for ObjectWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let UploadOptions { single_put_max, part_bytes, blob_bytes_max } = self.blobs.options;
        self.length += bytes.len() as u64;
        if self.length > blob_bytes_max {
            let what = format!("blob too large: name={} bytes_max={blob_bytes_max}", self.name);
            return Err(StoreError::new(ErrorKind::TooLarge, what));
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let limit = if self.upload.is_some() { part_bytes } else { single_put_max.max(part_bytes) };
            let (taken, left) = rest.split_at(rest.len().min(limit - self.buffer.len()));
            self.buffer.append(taken)?;
            rest = left;
            // The last part may be empty for no blob: it is sent when more follows, or at the end.
            while !rest.is_empty() && self.buffer.len() >= part_bytes {
                self.send_part(part_bytes)?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, StoreError> {
        if self.upload.is_none() && self.buffer.len() <= self.blobs.options.single_put_max {
            let content = self.buffer.take(self.buffer.len())?;
            self.blobs.put(&self.name, &content)?;
            return Ok(self.length);
        }
        // Best effort: a name that is in use is used for the same contents.
        match self.blobs.len(&self.name) {
            Err(error) if error.kind == ErrorKind::Gone => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let what = format!("the name is in use: name={}", self.name);
                return Err(StoreError::new(ErrorKind::Taken, what));
            }
        }
        while self.buffer.len() > 0 {
            self.send_part(self.buffer.len().min(self.blobs.options.part_bytes))?;
        }
        self.complete()?;
        Ok(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::MemoryObjects;

    fn blobs(options: UploadOptions) -> (MemoryObjects, ObjectBlobs) {
        let objects = MemoryObjects::default();
        (objects.clone(), ObjectBlobs::new(Arc::new(objects), RetryPolicy::without_pause(1), options))
    }

    #[test]
    fn a_blob_over_the_limit_is_refused_and_leaves_nothing_behind() {
        let options = UploadOptions { blob_bytes_max: 8, ..UploadOptions::parts_of(3) };
        let (_, blobs) = blobs(options);
        let name = BlobName::new("doc/1").expect("a name");
        let mut writer = blobs.create(&name).expect("begun");
        writer.write(b"12345678").expect("at the limit");
        assert_eq!(writer.write(b"9").expect_err("one too many").kind, ErrorKind::TooLarge);
        drop(writer);
        assert_eq!(blobs.len(&name).expect_err("not finished").kind, ErrorKind::Gone);
    }

    #[test]
    fn blobs_of_every_length_are_written_whole_in_one_request_or_in_parts() {
        for (single_put_max, part_bytes) in [(4, 4), (10, 3), (2, 7)] {
            let (_, blobs) =
                blobs(UploadOptions { single_put_max, part_bytes, ..UploadOptions::parts_of(100) });
            for length in 0..40u8 {
                let bytes: Vec<u8> = (0..length).collect();
                for step in [1, 3, 5, 40] {
                    let name = BlobName::new(&format!("doc/{length}-{step}")).expect("a name");
                    let mut writer = blobs.create(&name).expect("begun");
                    bytes.chunks(step).for_each(|part| writer.write(part).expect("below the limit"));
                    assert_eq!(blobs.len(&name).expect_err("invisible").kind, ErrorKind::Gone);
                    assert_eq!(writer.finish().expect("a free name"), u64::from(length));
                    assert_eq!(blobs.read(&name, 0, 100).expect("written"), bytes);
                    let mut again = blobs.create(&name).expect("begun");
                    again.write(&bytes).expect("below the limit");
                    assert_eq!(again.finish().expect_err("in use").kind, ErrorKind::Taken);
                }
            }
        }
    }
}
