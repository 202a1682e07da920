//! Helpers that look into segment files, and damage them.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use store::frame::{SEGMENT_HEADER, decode_frame, frame_len};

/// The offsets of a segment's frames, and of their end.
pub(crate) fn frame_offsets(segment: &Path) -> Vec<usize> {
    let bytes = std::fs::read(segment).expect("readable");
    let mut at = SEGMENT_HEADER;
    let mut offsets = vec![at];
    while let Some((header, _)) = decode_frame(&bytes[at..]) {
        at += frame_len(header.length);
        offsets.push(at);
    }
    offsets
}

pub(crate) fn overwrite(file: &Path, offset: usize, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(file).expect("it exists");
    file.write_all_at(bytes, offset as u64).expect("writable");
}

/// The last frame of a segment, split at the boundaries of sectors: each part as `(from, to)`.
pub(crate) fn sectors_of_last_frame(segment: &Path) -> Vec<(usize, usize)> {
    const SECTOR: usize = 512;
    let offsets = frame_offsets(segment);
    let (last, end) = (offsets[offsets.len() - 2], offsets[offsets.len() - 1]);
    let bounds = (last / SECTOR..end.div_ceil(SECTOR)).map(|sector| (sector * SECTOR, (sector + 1) * SECTOR));
    bounds.map(|(from, to)| (from.max(last), to.min(end))).collect()
}

/// Zeroes a part of a file, as if it had never been written.
pub(crate) fn erase(file: &Path, (from, to): (usize, usize)) {
    overwrite(file, from, &vec![0; to - from]);
}
