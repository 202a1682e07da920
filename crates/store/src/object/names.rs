//! The object names of a store, all in this file.
//!
//! **Invariant.** Sequence numbers have sixteen lower-case hexadecimal digits, so names sort like numbers.
//!
//! **What would break it.** Two spellings of one number: two writers could both create the object of a batch.

use crate::port::{BlobName, Seq};

/// The prefix of all blobs.
pub(super) const BLOBS: &str = "blob/";

/// The prefix of a log's batches.
pub(super) fn batches(shard: u32) -> String {
    format!("log/{shard}/")
}

/// The prefix of a log's floors.
pub(super) fn floors(shard: u32) -> String {
    format!("floor/{shard}/")
}

/// The object of a batch.
pub(super) fn batch(shard: u32, seq: Seq) -> String {
    format!("log/{shard}/{:016x}", seq.0)
}

/// The object that declares all batches below `seq` dropped.
pub(super) fn floor(shard: u32, seq: Seq) -> String {
    format!("floor/{shard}/{:016x}", seq.0)
}

/// The prefix of a log's index objects.
pub(super) fn index_pages(shard: u32) -> String {
    format!("index/{shard}/")
}

/// The index object whose first batch is `seq`.
pub(super) fn index_page(shard: u32, seq: Seq) -> String {
    format!("index/{shard}/{:016x}", seq.0)
}

/// The parameters of the store.
pub(super) const STORE: &str = "store";

/// The key of the store, unless it is kept outside.
pub(super) const STORE_KEY: &str = "store.key";

/// Marks a copy into this store that is not complete. Created first, deleted after [`STORE`] was created.
pub(super) const COPYING: &str = "copying";

/// The prefix of the maps of slots.
pub(super) const MAPS: &str = "map/";

/// A map of slots.
pub(super) fn map(number: u64) -> String {
    format!("{MAPS}{number:016x}")
}

/// The object of a blob.
pub(super) fn blob(name: &BlobName) -> String {
    format!("{BLOBS}{name}")
}

/// Parses the sequence number in a name; `None` if the name is not `prefix` and sixteen digits.
pub(super) fn number(prefix: &str, name: &str) -> Option<Seq> {
    let digits = name.strip_prefix(prefix)?;
    let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let valid = digits.len() == 16 && digits.bytes().all(lower_hex);
    valid.then(|| Seq(u64::from_str_radix(digits, 16).expect("sixteen digits")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_spelling() {
        assert_eq!(batch(7, Seq(0x1f)), "log/7/000000000000001f");
        assert_eq!(number("log/7/", "log/7/000000000000001f"), Some(Seq(0x1f)));
        assert_eq!(number("floor/7/", &floor(7, Seq(u64::MAX))), Some(Seq(u64::MAX)));
        for other in
            ["log/7/1f", "log/7/000000000000001F", "log/7/+00000000000001f", "log/70/000000000000001f"]
        {
            assert_eq!(number("log/7/", other), None, "{other}");
        }
    }
}
