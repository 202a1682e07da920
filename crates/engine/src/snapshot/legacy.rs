//! The header of a snapshot of format 1, read-only: the present one without the clocks.
//!
//! ```text
//!  0 68  like the present header, with format version 1
//! 68  4  CRC32C of the preceding 68 bytes
//! 72     chunks back to back
//! ```

/// The version of the format.
pub(super) const SNAPSHOT_VERSION: u32 = 1;
/// The length of the header in bytes.
pub(super) const HEADER_BYTES: usize = 72;
