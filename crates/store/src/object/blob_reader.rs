//! Reads a blob from beginning to end by one request.
//!
//! **Invariant.** The bytes are those of the object at their offsets, each once. A request that fails is continued by another
//! one, at the first byte that was not read.
//!
//! A blob is never replaced, so the bytes of two requests belong together.

use std::ops::Range;
use std::sync::Arc;

use super::port::{ObjectRange, ObjectStream, Objects, ObjectsError, RetryPolicy};
use crate::port::{BlobReader, StoreError};

/// A range of an object that is being read.
pub(super) struct ObjectReader {
    objects: Arc<dyn Objects>,
    policy: RetryPolicy,
    object: String,
    /// What was not read yet.
    rest: Range<u64>,
    stream: Option<Box<dyn ObjectStream>>,
}

impl ObjectReader {
    /// Sends no request.
    pub(super) fn new(
        objects: Arc<dyn Objects>,
        policy: RetryPolicy,
        object: String,
        range: Range<u64>,
    ) -> ObjectReader {
        ObjectReader { objects, policy, object, rest: range, stream: None }
    }

    /// One attempt. A stream that fails is dropped.
    fn attempt(&mut self, length: usize) -> Result<Vec<u8>, ObjectsError> {
        let opened = match self.stream.take() {
            None => self.objects.open_range(&self.range())?,
            stream => stream,
        };
        let Some(mut stream) = opened else {
            return self.objects.get_range(&self.object, self.rest.start, length);
        };
        let bytes = stream.read(length)?;
        self.stream = Some(stream);
        Ok(bytes)
    }

    fn range(&self) -> ObjectRange {
        ObjectRange { name: self.object.clone(), offset: self.rest.start, length: self.rest_bytes() }
    }

    fn rest_bytes(&self) -> usize {
        usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX)
    }
}

impl BlobReader for ObjectReader {
    fn read(&mut self, length: usize) -> Result<Vec<u8>, StoreError> {
        let (length, policy) = (length.min(self.rest_bytes()), self.policy.clone());
        if length == 0 {
            return Ok(Vec::new());
        }
        let read = policy.retry(|| self.attempt(length));
        let bytes = read.map_err(|error| error.into_store_error("reading a blob", &self.object))?;
        self.rest.start += bytes.len() as u64;
        Ok(bytes)
    }
}
