//! Looks into the segments of a log on a simulated disk.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use sim::disk::SimFs;
use store::frame::{SEGMENT_HEADER, decode_frame, frame_len};
use store::fs::{File, Fs};

/// The paths of the segments, in order.
pub(crate) fn segments(fs: &SimFs, log: &Path) -> Vec<PathBuf> {
    let names = fs.list(log).expect("a directory");
    let is_segment = |path: &PathBuf| path.extension() == Some(OsStr::new("seg"));
    names.iter().map(|name| log.join(name)).filter(is_segment).collect()
}

/// The last frame in the last segment: its file and its bytes.
pub(crate) fn last_frame(fs: &SimFs, log: &Path) -> Option<(PathBuf, Range<usize>)> {
    let path = segments(fs, log).pop()?;
    let file = fs.open(&path).expect("there");
    let mut bytes = vec![0; usize::try_from(file.length().expect("readable")).expect("small")];
    file.read_at(&mut bytes, 0).expect("readable");
    let (mut at, mut last) = (SEGMENT_HEADER, None);
    while let Some((header, _)) = decode_frame(&bytes[at..]) {
        let end = at + frame_len(header.length);
        last = Some((path.clone(), at..end));
        at = end;
    }
    last
}
