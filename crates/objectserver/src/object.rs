//! A stored object: immutable bytes with metadata.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::HeaderValue;

/// An object: its bytes, and the metadata that responses show.
#[derive(Debug, Clone)]
pub struct Object {
    /// The content; shared, never copied.
    pub body: Bytes,
    /// The metadata.
    pub head: ObjectHead,
}

/// The metadata of an object.
#[derive(Debug, Clone)]
pub struct ObjectHead {
    /// The size in bytes.
    pub size: u64,
    /// The etag with its quotes. Derived from the generation, not from the content: equal objects differ in it.
    pub etag: Arc<str>,
    /// Counts the writes of the whole server, from 1.
    pub generation: u64,
    /// The time of the write, since the Unix epoch.
    pub modified: Duration,
    pub(crate) content_type: Option<HeaderValue>,
}

impl Object {
    pub(crate) fn new(
        body: Bytes,
        content_type: Option<HeaderValue>,
        generation: u64,
        modified: Duration,
    ) -> Self {
        let etag = etag_of(generation);
        let head = ObjectHead { size: body.len() as u64, etag, generation, modified, content_type };
        Self { body, head }
    }
}

/// A quoted etag that no other generation has.
pub(crate) fn etag_of(generation: u64) -> Arc<str> {
    Arc::from(format!("\"0x{generation:016X}\""))
}
