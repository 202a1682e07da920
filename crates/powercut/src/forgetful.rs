//! A disk that loses unflushed writes: a FUSE filesystem with one file, `image`. Writes stay in memory until they are
//! flushed; killing the process cuts the power.
//!
//! **Invariant.** When a flush returns, all earlier writes are in the underlying image. Of later writes each sector is in
//! the image or not, at random: a real disk writes in any order.
//!
//! It is meant for a loop device, which turns every flush of its filesystem into an `fsync` here. The page cache is
//! bypassed (direct I/O): otherwise lost writes could reappear.

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

/// The arguments of the disk process.
#[derive(Args)]
pub(crate) struct DiskArgs {
    /// The durable contents of the disk
    #[arg(long)]
    image: PathBuf,
    /// Mount point, in which the file `image` appears
    #[arg(long)]
    mount: PathBuf,
    #[arg(long)]
    seed: u64,
}

/// The unit of an atomic write, in bytes.
const SECTOR: usize = 512;
const IMAGE: INodeNo = INodeNo(2);
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3600);

struct ForgetfulDisk {
    length: u64,
    cache: Mutex<Cache>,
}

struct Cache {
    image: File,
    /// Unflushed sectors, by their offset.
    unflushed: BTreeMap<u64, [u8; SECTOR]>,
    rng: Rng,
    /// Of eight sectors, the number written through before a flush.
    write_through: u64,
}

/// Serves until it is killed.
pub(crate) fn serve(disk: &DiskArgs) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let image = File::options().read(true).write(true).open(&disk.image).map_err(text)?;
    let length = image.metadata().map_err(text)?.len();
    let mut rng = Rng::new(disk.seed);
    let write_through = *rng.pick(&[0, 0, 2, 6]);
    let cache = Mutex::new(Cache { image, unflushed: BTreeMap::new(), rng, write_through });
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("forgetful".into())];
    let session = fuser::spawn_mount(ForgetfulDisk { length, cache }, &disk.mount, &config).map_err(text)?;
    println!("ready");
    session.join().map_err(text)
}

impl Cache {
    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.image.read_exact_at(&mut bytes, offset)?;
        for (position, sector) in self.unflushed.range(offset..offset + length as u64) {
            let at = usize::try_from(position - offset).expect("within the range");
            bytes[at..at + SECTOR].copy_from_slice(sector);
        }
        Ok(bytes)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (sector, position) in bytes.chunks_exact(SECTOR).zip((offset..).step_by(SECTOR)) {
            if self.rng.below(8) < self.write_through {
                self.unflushed.remove(&position);
                self.image.write_all_at(sector, position)?;
            } else {
                self.unflushed.insert(position, sector.try_into().expect("a whole sector"));
            }
        }
        Ok(())
    }

    /// The order does not matter: the flush returns after the last write.
    fn flush(&mut self) -> io::Result<()> {
        for (position, sector) in std::mem::take(&mut self.unflushed) {
            self.image.write_all_at(&sector, position)?;
        }
        Ok(())
    }
}

impl ForgetfulDisk {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the range is within the disk and consists of whole sectors, as a loop device requests.
    fn is_valid_range(&self, offset: u64, length: usize) -> bool {
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

impl Filesystem for ForgetfulDisk {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(IMAGE).filter(|_| parent == INodeNo::ROOT && name == "image") {
            Some(attributes) => reply.entry(&ATTRIBUTE_TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&ATTRIBUTE_TTL, &attributes),
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
        if !self.is_valid_range(offset, length) {
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
        if !self.is_valid_range(offset, data.len()) {
            return reply.error(Errno::EINVAL);
        }
        match self.cache().write(offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).expect("a FUSE write is small")),
            Err(error) => reply.error(error.into()),
        }
    }

    /// FUSE `flush` is a close, not a sync.
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

    fn cache(write_through: u64) -> Cache {
        let image = tempfile::tempfile().expect("a file");
        image.set_len(8 * SECTOR as u64).expect("there is space");
        Cache { image, unflushed: BTreeMap::new(), rng: Rng::new(1), write_through }
    }

    fn on_disk(cache: &Cache) -> Vec<u8> {
        let mut bytes = vec![0; 8 * SECTOR];
        cache.image.read_exact_at(&mut bytes, 0).expect("there");
        bytes
    }

    #[test]
    fn unflushed_writes_are_read_back_but_not_in_the_image() {
        let mut cache = cache(0);
        cache.write(SECTOR as u64, &[7; 2 * SECTOR]).expect("written");
        let expected = [vec![0; SECTOR], vec![7; 2 * SECTOR], vec![0; 5 * SECTOR]].concat();
        assert_eq!(cache.read(0, 8 * SECTOR).expect("there"), expected);
        assert_eq!(on_disk(&cache), vec![0; 8 * SECTOR]);
        cache.flush().expect("written");
        assert_eq!(on_disk(&cache), expected);
    }

    /// A newer write-through must replace an older cached sector, which a flush would otherwise write over it.
    #[test]
    fn a_flush_does_not_overwrite_a_newer_write_through() {
        let mut cache = cache(0);
        cache.write(0, &[1; SECTOR]).expect("written");
        cache.write_through = 8;
        cache.write(0, &[2; SECTOR]).expect("written");
        cache.flush().expect("written");
        assert_eq!(on_disk(&cache)[..SECTOR], [2; SECTOR]);
    }
}
