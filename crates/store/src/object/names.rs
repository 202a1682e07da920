//! The names of a store's objects: the one place that knows them.
//!
//! **Invariant.** Numbers have sixteen hexadecimal digits, so the order of names is the order of numbers.
//!
//! **What would break it.** A number in two spellings: two writers would each make "the" object of a batch.

use crate::port::{BlobName, Seq};

/// Before the names of all blobs.
pub(super) const BLOBS: &str = "blob/";

/// Before the names of a log's batches.
pub(super) fn batches(shard: u32) -> String {
    format!("log/{shard}/")
}

/// Before the names of a log's floors.
pub(super) fn floors(shard: u32) -> String {
    format!("floor/{shard}/")
}

/// The object of a batch.
pub(super) fn batch(shard: u32, seq: Seq) -> String {
    format!("log/{shard}/{:016x}", seq.0)
}

/// The object that says: what is below this batch is gone.
pub(super) fn floor(shard: u32, seq: Seq) -> String {
    format!("floor/{shard}/{:016x}", seq.0)
}

/// The object of a blob.
pub(super) fn blob(name: &BlobName) -> String {
    format!("{BLOBS}{name}")
}

/// The number in a name below `prefix`, if it is one of ours.
pub(super) fn number(prefix: &str, name: &str) -> Option<Seq> {
    let digits = name.strip_prefix(prefix)?;
    let plain = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let ours = digits.len() == 16 && digits.bytes().all(plain);
    ours.then(|| Seq(u64::from_str_radix(digits, 16).expect("sixteen digits")))
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
