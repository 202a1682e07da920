//! Progress of large uploads and downloads, for progress bars.

use std::sync::Arc;

/// Bodies up to this size are not reported, in bytes.
const SMALL_BYTES: u64 = 64 << 10;

/// Receives the progress of documents that are sent or received.
pub trait TransferProgress: Send + Sync {
    /// A body of `bytes` bytes begins. A retry begins again.
    fn begin(&self, bytes: u64);
    /// A body begins whose length is not known: a stream.
    fn begin_unknown(&self) {}
    /// `bytes` more bytes of it were sent or received.
    fn moved(&self, bytes: u64);
    /// The end of a body whose length was not known.
    fn end(&self) {}
}

/// The receiver of progress, if there is one.
pub(crate) type ProgressSink = Option<Arc<dyn TransferProgress>>;

/// Whether the progress of a body of this length is reported.
pub(crate) fn is_large(bytes: u64) -> bool {
    bytes > SMALL_BYTES
}
