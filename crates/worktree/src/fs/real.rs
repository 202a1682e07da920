//! The real filesystem: a thin layer over system calls.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat, fstat, fsync, linkat, lstat, mkdirat, open,
    renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::{Durability, FileKind, Fs, Meta, mounts};
use crate::clock::UnixMs;

/// The filesystem of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

impl Fs for RealFs {
    fn write_new(&self, path: &Path, bytes: &[u8], mode: u32, durability: Durability) -> io::Result<Meta> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(open(path, flags, Mode::from_raw_mode(mode))?);
        file.write_all(bytes)?;
        if durability == Durability::Synced {
            fsync(&file)?;
        }
        Ok(meta_of(&fstat(&file)?))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut bytes = Vec::new();
        File::from(open(path, flags, Mode::empty())?).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn meta(&self, path: &Path) -> io::Result<Meta> {
        Ok(meta_of(&lstat(path)?))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut names = Vec::new();
        for entry in Dir::new(open(path, flags, Mode::empty())?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(linkat(CWD, from, CWD, to, AtFlags::empty())?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(renameat(CWD, from, CWD, to)?)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
            other => Ok(other?),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Ok(unlinkat(CWD, path, AtFlags::empty())?)
    }

    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        Ok(mkdirat(CWD, path, Mode::from_raw_mode(mode))?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Ok(unlinkat(CWD, path, AtFlags::REMOVEDIR)?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fsync(open(path, flags, Mode::empty())?)?)
    }

    fn clone_command(&self, path: &Path) -> Option<PathBuf> {
        let device = lstat(path).ok()?.st_dev;
        let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounts::has_type(&table, device, "fuse.juicefs").then(|| PathBuf::from("juicefs"))
    }
}

fn meta_of(stat: &Stat) -> Meta {
    Meta {
        kind: kind_of(stat),
        device: stat.st_dev,
        inode: stat.st_ino,
        modified: UnixMs(
            stat.st_mtime * 1000 + i64::try_from(stat.st_mtime_nsec / 1_000_000).expect("under 1000"),
        ),
    }
}

/// The type of the file that `stat` describes.
pub(crate) fn kind_of(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}
