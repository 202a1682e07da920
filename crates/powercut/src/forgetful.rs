//! A disk that forgets: one file, `image`, in a filesystem of its own. What is written stays in memory until it is
//! flushed; to kill the process is to cut the power.
//!
//! **Invariant.** What was written before a flush is in the image beneath when the flush returns. Of what was
//! written since, each sector is in the image or not, as chance has it: a real disk writes in what order it likes.
//!
//! It is meant for a loop device, which turns every flush of its filesystem into an `fsync` here. The kernel
//! caches nothing of it: what was forgotten would come back.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};
use sim::rng::Rng;

/// What it is started with.
#[derive(Args)]
pub(crate) struct Disk {
    /// What is on the disk for good
    #[arg(long)]
    image: PathBuf,
    /// Where it appears, as `image`
    #[arg(long)]
    mount: PathBuf,
    #[arg(long)]
    seed: u64,
}

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;
const IMAGE: INodeNo = INodeNo(2);
const FOR_GOOD: Duration = Duration::from_secs(3600);

struct Forgetful {
    length: u64,
    cache: Mutex<Cache>,
}

struct Cache {
    image: File,
    /// By their place in the disk: what is not in the image.
    unflushed: BTreeMap<u64, [u8; SECTOR]>,
    rng: Rng,
    /// Of eight sectors so many are written before anybody asks for it.
    eager: u64,
}

/// Serves until it is killed.
pub(crate) fn serve(disk: &Disk) -> Result<(), String> {
    let said = |error: io::Error| error.to_string();
    let image = File::options().read(true).write(true).open(&disk.image).map_err(said)?;
    let length = image.metadata().map_err(said)?.len();
    let mut rng = Rng::new(disk.seed);
    let eager = *rng.pick(&[0, 0, 2, 6]);
    let cache = Mutex::new(Cache { image, unflushed: BTreeMap::new(), rng, eager });
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("forgetful".into())];
    let session = fuser::spawn_mount(Forgetful { length, cache }, &disk.mount, &config).map_err(said)?;
    println!("ready");
    session.join().map_err(said)
}

impl Cache {
    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.image.read_exact_at(&mut bytes, offset)?;
        for (place, sector) in self.unflushed.range(offset..offset + length as u64) {
            let at = usize::try_from(place - offset).expect("it is within what is read");
            bytes[at..at + SECTOR].copy_from_slice(sector);
        }
        Ok(bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (sector, place) in bytes.chunks_exact(SECTOR).zip((offset..).step_by(SECTOR)) {
            if self.rng.below(8) < self.eager {
                self.unflushed.remove(&place);
                self.image.write_all_at(sector, place)?;
            } else {
                self.unflushed.insert(place, sector.try_into().expect("a whole sector"));
            }
        }
        Ok(())
    }

    /// Any order will do: nobody is told anything before all of it is written.
    fn flush(&mut self) -> io::Result<()> {
        for (place, sector) in std::mem::take(&mut self.unflushed) {
            self.image.write_all_at(&sector, place)?;
        }
        Ok(())
    }
}

impl Forgetful {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whole sectors of the disk, as a loop device asks for.
    fn holds(&self, offset: u64, length: usize) -> bool {
        let whole = offset.is_multiple_of(SECTOR as u64) && length.is_multiple_of(SECTOR);
        whole && offset.saturating_add(length as u64) <= self.length
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0),
            IMAGE => (FileType::RegularFile, self.length),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / SECTOR as u64,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

impl Filesystem for Forgetful {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(IMAGE).filter(|_| parent == INodeNo::ROOT && name == "image") {
            Some(attributes) => reply.entry(&FOR_GOOD, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&FOR_GOOD, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = left.min(size as usize);
        if !self.holds(offset, length) {
            return reply.error(Errno::EINVAL);
        }
        match self.cache().read(offset, length) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if !self.holds(offset, data.len()) {
            return reply.error(Errno::EINVAL);
        }
        match self.cache().write(offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).expect("it came as one")),
            Err(error) => reply.error(error.into()),
        }
    }

    /// A closed file is not a flushed disk.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.cache().flush() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(eager: u64) -> Cache {
        let image = tempfile::tempfile().expect("a file");
        image.set_len(8 * SECTOR as u64).expect("room");
        Cache { image, unflushed: BTreeMap::new(), rng: Rng::new(1), eager }
    }

    fn on_disk(cache: &Cache) -> Vec<u8> {
        let mut bytes = vec![0; 8 * SECTOR];
        cache.image.read_exact_at(&mut bytes, 0).expect("there");
        bytes
    }

    #[test]
    fn what_was_not_flushed_is_read_and_not_there() {
        let mut cache = cache(0);
        cache.write(SECTOR as u64, &[7; 2 * SECTOR]).expect("written");
        let expected = [vec![0; SECTOR], vec![7; 2 * SECTOR], vec![0; 5 * SECTOR]].concat();
        assert_eq!(cache.read(0, 8 * SECTOR).expect("there"), expected);
        assert_eq!(on_disk(&cache), vec![0; 8 * SECTOR]);
        cache.flush().expect("written");
        assert_eq!(on_disk(&cache), expected);
    }

    /// An older sector that waits must not come after a newer one that did not.
    #[test]
    fn what_is_written_early_is_not_overwritten_by_what_was_there_before() {
        let mut cache = cache(0);
        cache.write(0, &[1; SECTOR]).expect("written");
        cache.eager = 8;
        cache.write(0, &[2; SECTOR]).expect("written");
        cache.flush().expect("written");
        assert_eq!(on_disk(&cache)[..SECTOR], [2; SECTOR]);
    }
}
