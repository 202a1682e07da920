//! Copying and hashing the files of a tree, several at a time.
//!
//! The hash is that of the bytes written: they go through one buffer or, where the filesystem shares blocks,
//! are read back from the copy. So a manifest always describes the copy, even if the source changed while it
//! was read; a change is detected by comparing metadata before and after.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid, chownat, fchmod, fchown, fstat,
    ftruncate, futimens, ioctl_ficlone, linkat, mkdirat, openat, seek, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, read, write};

use super::attributes;
use super::large;
use super::layers::TreeSource;
use super::scan::{Fingerprint, Item, Shape};
use super::{ManifestLine, NodeContent, Progress, RelPath, Root};
use crate::error::{Error, ErrorClass, Result};
use crate::fs::Fs;
use crate::ids::Digest;

/// How to treat a file that changes while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// Refuse.
    Strict,
    /// Keep the bytes that were read, and list the file.
    BestEffort,
}

/// The result of copying or hashing a tree.
#[derive(Debug)]
pub(crate) struct CopyResult {
    /// The copy, sorted by path.
    pub(crate) records: Vec<ManifestLine>,
    /// The files that changed or vanished while they were read.
    pub(crate) changed: Vec<RelPath>,
    /// The paths whose copy lacks some of the permission bits that were read, and those bits.
    weakened: Vec<(RelPath, u32)>,
}

/// Copies `items` from `source` into the empty directory `target`.
pub(crate) fn copy(
    fs: &dyn Fs,
    source: &dyn TreeSource,
    target: &Root,
    items: &[Item],
    reading: ReadMode,
    progress: &dyn Progress,
) -> Result<CopyResult> {
    copy_with(fs, source, target, items, reading, progress, TargetState::Empty)
}

/// The same into a clone of the directory that has layer 0 of `items`: bytes that are there already are only hashed.
pub(crate) fn copy_over_clone(
    fs: &dyn Fs,
    source: &dyn TreeSource,
    target: &Root,
    items: &[Item],
    reading: ReadMode,
    progress: &dyn Progress,
) -> Result<CopyResult> {
    copy_with(fs, source, target, items, reading, progress, TargetState::Clone)
}

/// What the target of a copy has before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetState {
    Empty,
    Clone,
}

fn copy_with(
    fs: &dyn Fs,
    source: &dyn TreeSource,
    target: &Root,
    items: &[Item],
    reading: ReadMode,
    progress: &dyn Progress,
    state: TargetState,
) -> Result<CopyResult> {
    for item in items.iter().filter(|item| item.shape == Shape::Dir && item.path != RelPath::ROOT) {
        step(fs, &item.path)?;
        match mkdirat(target, item.path.as_bytes(), Mode::RWXU) {
            Err(Errno::EXIST) if state == TargetState::Clone => {}
            other => other.map_err(|cause| failed(&item.path, "create", cause))?,
        }
    }
    let shares_blocks = AtomicBool::new(true);
    let job = CopyJob { fs, source, target: Some(target), state, reading, progress, shares_blocks };
    let mut copied = job.run(items)?;
    finish_links(fs, target, items, &copied)?;
    finish_dirs(fs, source, target, items, &mut copied)?;
    Ok(copied)
}

/// Hashes `items` below `source`.
pub(crate) fn hash(
    fs: &dyn Fs,
    source: &dyn TreeSource,
    items: &[Item],
    reading: ReadMode,
    progress: &dyn Progress,
) -> Result<CopyResult> {
    let (state, shares_blocks) = (TargetState::Empty, AtomicBool::new(false));
    CopyJob { fs, source, target: None, state, reading, progress, shares_blocks }.run(items)
}

struct CopyJob<'a> {
    fs: &'a dyn Fs,
    source: &'a dyn TreeSource,
    target: Option<&'a Root>,
    state: TargetState,
    reading: ReadMode,
    progress: &'a dyn Progress,
    shares_blocks: AtomicBool,
}

/// The result of reading one file.
struct FileResult {
    size: u64,
    digest: Digest,
    /// The permission bits when it was opened, which may differ from those of the scan.
    mode_read: u32,
    /// The permission bits of the copy.
    mode: u32,
    unchanged: bool,
}

impl CopyJob<'_> {
    fn run(&self, items: &[Item]) -> Result<CopyResult> {
        let files: Vec<usize> = (0..items.len()).filter(|i| items[*i].shape == Shape::File).collect();
        let bytes = files.iter().map(|i| items[*i].print.size).sum();
        self.progress.begin(files.len() as u64, bytes);
        let mut done = self.read_all(items, &files)?;
        done.sort_unstable_by_key(|(index, _)| *index);
        let mut done = done.into_iter().peekable();
        let mut copied = CopyResult {
            records: Vec::with_capacity(items.len()),
            changed: Vec::new(),
            weakened: Vec::new(),
        };
        for (index, item) in items.iter().enumerate() {
            let file = done.next_if(|(at, _)| *at == index).and_then(|(_, file)| file);
            copied.take(item, file);
        }
        Ok(copied)
    }

    /// Reads the files with as many threads as there are cores; the first failure stops them all.
    fn read_all(&self, items: &[Item], files: &[usize]) -> Result<Vec<(usize, Option<FileResult>)>> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            let mut buffer = vec![0; BUFFER];
            let mut done = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let Some(index) = files.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                let file = self.read_one(&items[*index], &mut buffer);
                stop.fetch_or(file.is_err(), Ordering::Relaxed);
                done.push((*index, file?));
            }
            Ok(done)
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let results: Vec<Result<Vec<_>>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
        });
        let mut all = Vec::with_capacity(files.len());
        for result in results {
            all.extend(result?);
        }
        Ok(all)
    }

    /// `None` if the file has gone away, which only a best-effort reading allows.
    fn read_one(&self, item: &Item, buffer: &mut [u8]) -> Result<Option<FileResult>> {
        // A pipe put in the file's place must not hang the reader.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = match self.source.root_of(item).open_at(&item.path, flags) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return self.changed(item).map(|()| None),
            other => other.map_err(|cause| failed(&item.path, "open", cause))?,
        };
        let before = fingerprint(&file, &item.path)?;
        if before.inode != item.print.inode {
            return self.changed(item).map(|()| None);
        }
        let ((size, digest), mode) = match self.target {
            Some(target) => self.copy_one(&file, target, item, &before, buffer)?,
            None => (hash_data(&file, &item.path, buffer)?, before.mode),
        };
        let unchanged = fingerprint(&file, &item.path)?.same(&before) && before.same(&item.print);
        if !unchanged {
            self.changed(item)?;
        }
        self.progress.file_done(size);
        Ok(Some(FileResult { size, digest, mode_read: before.mode, mode, unchanged }))
    }

    fn changed(&self, item: &Item) -> Result<()> {
        match self.reading {
            ReadMode::BestEffort => Ok(()),
            ReadMode::Strict => Err(changed_underneath(&item.path)),
        }
    }

    fn copy_one(
        &self,
        file: &OwnedFd,
        target: &Root,
        item: &Item,
        before: &Fingerprint,
        buffer: &mut [u8],
    ) -> Result<((u64, Digest), u32)> {
        let path = &item.path;
        step(self.fs, path)?;
        if let Some(clone) = self.cloned(target, item, before)? {
            let written = hash_data(&clone, path, buffer)?;
            step(self.fs, path)?;
            let mode = finish(file, &clone, before, CopiedKind::File)
                .map_err(|cause| failed(path, "set the mode of", cause))?;
            return Ok((written, mode));
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = openat(target, path.as_bytes(), flags, Mode::RUSR | Mode::WUSR)
            .map_err(|cause| failed(path, "create", cause))?;
        step(self.fs, path)?;
        let written = if before.size > 0 && self.share_blocks(&copy, file) {
            hash_data(&copy, path, buffer)
        } else if before.blocks * 512 < before.size {
            copy_sparse(file, &copy, path, buffer)
        } else if before.size >= large::LARGE {
            large::copy(file, &copy, path, buffer)
        } else {
            copy_dense(file, &copy, path, buffer)
        }?;
        step(self.fs, path)?;
        let mode = finish(file, &copy, before, CopiedKind::File)
            .map_err(|cause| failed(path, "set the mode of", cause))?;
        Ok((written, mode))
    }

    /// The file of a clone, if it is as long as the source; one that is not is removed.
    fn cloned(&self, target: &Root, item: &Item, before: &Fingerprint) -> Result<Option<OwnedFd>> {
        if self.state == TargetState::Empty || item.layer != 0 {
            return Ok(None);
        }
        let path = &item.path;
        let clone = match target.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(|cause| failed(path, "open the clone of", cause))?,
        };
        if fingerprint(&clone, path)?.size == before.size {
            return Ok(Some(clone));
        }
        unlinkat(target, path.as_bytes(), AtFlags::empty())
            .map_err(|cause| failed(path, "remove the clone of", cause))?;
        Ok(None)
    }

    /// Tries to share the source's blocks. Once the filesystem turns out not to support it, no file is tried again; a
    /// file that cannot be shared by itself (without copy-on-write, or in use as swap) does not count.
    fn share_blocks(&self, copy: &OwnedFd, file: &OwnedFd) -> bool {
        if !self.shares_blocks.load(Ordering::Relaxed) {
            return false;
        }
        let shared = ioctl_ficlone(copy, file);
        if matches!(shared, Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::XDEV)) {
            self.shares_blocks.store(false, Ordering::Relaxed);
        }
        shared.is_ok()
    }
}

impl CopyResult {
    /// The records with the permission bits that were read, even where the copy could not get them.
    pub(crate) fn as_read(&self) -> Vec<ManifestLine> {
        let mut records = self.records.clone();
        for (path, mode) in &self.weakened {
            if let Ok(at) = records.binary_search_by(|record| record.path.cmp(path)) {
                records[at].mode = *mode;
            }
        }
        records
    }

    fn take(&mut self, item: &Item, file: Option<FileResult>) {
        let modes =
            file.as_ref().map_or((item.print.mode, item.print.mode), |done| (done.mode_read, done.mode));
        let content = match &item.shape {
            Shape::Dir => NodeContent::Dir,
            Shape::Symlink { target } => NodeContent::Symlink { target: target.clone() },
            Shape::HardLink { first } if self.changed.contains(first) && !self.has(first) => {
                return self.changed.push(item.path.clone());
            }
            Shape::HardLink { first } => NodeContent::HardLink { first: first.clone() },
            Shape::File => {
                let Some(done) = file else { return self.changed.push(item.path.clone()) };
                if !done.unchanged {
                    self.changed.push(item.path.clone());
                }
                NodeContent::File { size: done.size, digest: done.digest }
            }
        };
        self.records.push(ManifestLine { path: item.path.clone(), mode: modes.0, content });
        self.note_mode(&item.path, modes.1);
    }

    /// Records the permission bits of the copy of `path`.
    fn note_mode(&mut self, path: &RelPath, mode: u32) {
        let Ok(at) = self.records.binary_search_by(|record| record.path.cmp(path)) else { return };
        let read = std::mem::replace(&mut self.records[at].mode, mode);
        if read != mode {
            self.weakened.push((path.clone(), read));
        }
    }

    fn has(&self, path: &RelPath) -> bool {
        self.records.binary_search_by(|record| record.path.cmp(path)).is_ok()
    }
}

/// Large enough to amortize system calls, small enough for a core's cache.
const BUFFER: usize = 256 * 1024;
/// With more threads the disk is the bottleneck.
const MOST_THREADS: usize = 8;

/// The error of a quiesced read.
pub(crate) fn changed_underneath(path: &RelPath) -> Error {
    Error::new(
        ErrorClass::ConsistencyUnavailable,
        format!(
            "the tree changed while it was read, so the snapshot is not quiesced; stop its writers and \
             retry, or use --consistency best_effort: path={path}"
        ),
    )
    .with("path", path.to_string())
}

fn hash_data(file: &OwnedFd, path: &RelPath, buffer: &mut [u8]) -> Result<(u64, Digest)> {
    copy_data(file, path, buffer, |_| Ok(()))
}

pub(super) fn copy_dense(
    file: &OwnedFd,
    copy: &OwnedFd,
    path: &RelPath,
    buffer: &mut [u8],
) -> Result<(u64, Digest)> {
    copy_data(file, path, buffer, |bytes| write_all(copy, bytes, path))
}

fn copy_data(
    file: &OwnedFd,
    path: &RelPath,
    buffer: &mut [u8],
    mut sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<(u64, Digest)> {
    let mut hasher = blake3::Hasher::new();
    loop {
        let len = read_some(file, path, buffer)?;
        if len == 0 {
            return Ok((hasher.count(), hasher.finalize().into()));
        }
        hasher.update(&buffer[..len]);
        sink(&buffer[..len])?;
    }
}

/// Copies data and keeps holes; the hash is that of the bytes a reader sees.
fn copy_sparse(file: &OwnedFd, copy: &OwnedFd, path: &RelPath, buffer: &mut [u8]) -> Result<(u64, Digest)> {
    let size = fingerprint(file, path)?.size;
    let mut hasher = blake3::Hasher::new();
    while hasher.count() < size {
        let at = hasher.count();
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            Err(Errno::NXIO) => size,
            Err(cause) => return Err(failed(path, "find the data of", cause)),
        };
        hash_zeros(&mut hasher, data - at);
        let end = if data < size {
            seek(file, SeekFrom::Hole(data))
                .map_err(|cause| failed(path, "find the holes of", cause))?
                .min(size)
        } else {
            size
        };
        for fd in [file, copy] {
            seek(fd, SeekFrom::Start(data)).map_err(|cause| failed(path, "seek in", cause))?;
        }
        while hasher.count() < end {
            let want = usize::try_from(end - hasher.count()).unwrap_or(BUFFER).min(buffer.len());
            let len = read_some(file, path, &mut buffer[..want])?;
            if len == 0 {
                // Truncated since: the metadata shows it, and the caller decides.
                return finish_sparse(copy, path, &hasher);
            }
            hasher.update(&buffer[..len]);
            write_all(copy, &buffer[..len], path)?;
        }
    }
    finish_sparse(copy, path, &hasher)
}

fn finish_sparse(copy: &OwnedFd, path: &RelPath, hasher: &blake3::Hasher) -> Result<(u64, Digest)> {
    ftruncate(copy, hasher.count()).map_err(|cause| failed(path, "set the length of", cause))?;
    Ok((hasher.count(), hasher.finalize().into()))
}

fn hash_zeros(hasher: &mut blake3::Hasher, mut count: u64) {
    const ZEROS: &[u8] = &[0; 64 * 1024];
    while count > 0 {
        let len = count.min(ZEROS.len() as u64);
        hasher.update(&ZEROS[..usize::try_from(len).expect("at most the length of a slice")]);
        count -= len;
    }
}

fn read_some(file: &OwnedFd, path: &RelPath, buffer: &mut [u8]) -> Result<usize> {
    loop {
        match read(file, &mut *buffer) {
            Err(Errno::INTR) => {}
            other => return other.map_err(|cause| failed(path, "read", cause)),
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], path: &RelPath) -> Result<()> {
    while !bytes.is_empty() {
        match write(file, bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(Errno::INTR) => {}
            Err(cause) => return Err(failed(path, "write", cause)),
        }
    }
    Ok(())
}

/// Owner before attributes and mode, because changing the owner clears capabilities and set-user-id; attributes before
/// the mode, because a list changes it. Returns the resulting mode.
fn finish(
    source: &OwnedFd,
    copy: &OwnedFd,
    print: &Fingerprint,
    kind: CopiedKind,
) -> rustix::io::Result<u32> {
    let (uid, gid) = print.owner;
    let mut owner = Fingerprint::of(&fstat(copy)?).owner;
    if owner != print.owner {
        ignore_refusal(fchown(copy, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))?;
        owner = Fingerprint::of(&fstat(copy)?).owner;
    }
    // A set-user-id program with another owner would run with that owner's rights: it is kept exactly or
    // refused.
    if kind == CopiedKind::File && owner != print.owner && print.mode & RUNS_AS_OWNER != 0 {
        return Err(Errno::PERM);
    }
    let mode = attributes::copy(source, copy, print.mode)?;
    fchmod(copy, Mode::from_raw_mode(mode))?;
    futimens(copy, &times(print))?;
    Ok(Fingerprint::of(&fstat(copy)?).mode)
}

/// The kind of file: on a directory, set-group-id grants no rights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopiedKind {
    File,
    Directory,
}

/// Set-user-id and set-group-id.
const RUNS_AS_OWNER: u32 = 0o6000;

fn finish_links(fs: &dyn Fs, target: &Root, items: &[Item], copied: &CopyResult) -> Result<()> {
    for item in items {
        let path = &item.path;
        match &item.shape {
            Shape::HardLink { first } if copied.has(path) => {
                step(fs, path)?;
                linkat(target, first.as_bytes(), target, path.as_bytes(), AtFlags::empty())
                    .map_err(|cause| failed(path, "link", cause))?;
            }
            Shape::Symlink { target: to } => {
                step(fs, path)?;
                symlinkat(&to[..], target, path.as_bytes())
                    .and_then(|()| finish_symlink(target, item))
                    .map_err(|cause| failed(path, "create the link", cause))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn finish_symlink(target: &Root, item: &Item) -> rustix::io::Result<()> {
    let (uid, gid) = item.print.owner;
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    ignore_refusal(chownat(target, item.path.as_bytes(), owner.0, owner.1, flags))?;
    utimensat(target, item.path.as_bytes(), &times(&item.print), flags)
}

/// Innermost first: creating a name changes the directory's time, and its final mode may forbid creating
/// names.
fn finish_dirs(
    fs: &dyn Fs,
    source: &dyn TreeSource,
    target: &Root,
    items: &[Item],
    copied: &mut CopyResult,
) -> Result<()> {
    for item in items.iter().rev().filter(|item| item.shape == Shape::Dir) {
        step(fs, &item.path)?;
        let dir = target
            .open_at(&item.path, super::beneath::DIRECTORY)
            .map_err(|cause| failed(&item.path, "open", cause))?;
        // A directory that was removed since, which only a best-effort copy allows, has no attributes to copy.
        let read = source.root_of(item).open_at(&item.path, super::beneath::DIRECTORY);
        let mode = finish(read.as_ref().unwrap_or(&dir), &dir, &item.print, CopiedKind::Directory)
            .map_err(|cause| failed(&item.path, "set the mode of", cause))?;
        copied.note_mode(&item.path, mode);
    }
    Ok(())
}

/// Only root may change owners, and some filesystems have none.
fn ignore_refusal(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        other => other,
    }
}

fn times(print: &Fingerprint) -> Timestamps {
    let modified = Timespec {
        tv_sec: print.modified.0,
        tv_nsec: i64::try_from(print.modified.1).expect("nanoseconds of a second"),
    };
    Timestamps { last_access: modified, last_modification: modified }
}

fn fingerprint(file: impl AsFd, path: &RelPath) -> Result<Fingerprint> {
    fstat(file).map(|stat| Fingerprint::of(&stat)).map_err(|cause| failed(path, "stat", cause))
}

fn step(fs: &dyn Fs, path: &RelPath) -> Result<()> {
    fs.step().map_err(|cause| Error::io("change", path.to_string().as_ref(), &cause))
}

pub(super) fn failed(path: &RelPath, action: &str, cause: Errno) -> Error {
    Error::io(action, path.to_string().as_ref(), &cause.into())
}
