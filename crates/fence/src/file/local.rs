//! [`FileOps`] on a directory of a local filesystem.
//!
//! **Invariant.** At most one [`FlockGuard`] of a file exists at a time: it is an exclusive `flock` on the file that
//! currently has the lock's name. Every call goes through the directory's descriptor, so lock, file and temporary file
//! are in one directory even if the path is moved.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{FileOps, unavailable};
use crate::error::Error;
use crate::version::VERSION_MAX;

/// Delay between two attempts to take the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The mode of new files, before the umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

#[derive(Debug)]
pub(super) struct LocalDir {
    dir: File,
    name: OsString,
    lock: OsString,
    temp: OsString,
    pub(super) lock_timeout: Duration,
}

/// Holds the lock; unlocks on drop.
#[derive(Debug)]
pub(super) struct FlockGuard(File);

impl Drop for FlockGuard {
    fn drop(&mut self) {
        // Closing is not enough: a child forked in the meantime may have inherited the descriptor.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl LocalDir {
    pub(super) fn open(path: &Path) -> Result<LocalDir, Error> {
        let invalid = |what: &str| Error::Invalid(format!("{what}: path={}", path.display()));
        // `file_name` ignores a trailing slash or dot.
        let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next().map(OsStr::from_bytes);
        let name = path.file_name().filter(|name| Some(*name) == last);
        let name = name.ok_or_else(|| invalid("the path must end with the name of a file"))?;
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|cause| failed("open the directory of", name, cause))?;
        let kind =
            rustix::fs::fstatfs(&dir).map_err(|cause| failed("determine the filesystem of", name, cause))?;
        if is_network_filesystem(i128::from(kind.f_type)) {
            return Err(invalid("locks on a network filesystem can be lost unnoticed; use a local one"));
        }
        let hidden = |suffix: &str| {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(suffix);
            hidden
        };
        Ok(LocalDir {
            dir: File::from(dir),
            name: name.to_os_string(),
            lock: hidden(".fence-lock"),
            temp: hidden(".fence-temp"),
            lock_timeout: Duration::from_secs(10),
        })
    }

    /// Opens the lock file, creating it if it is missing. An existing one is opened without `O_CREAT`, which Linux refuses
    /// for another user's file in a world-writable sticky directory such as `/tmp`.
    pub(super) fn open_lock(&self) -> rustix::io::Result<File> {
        let existing = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            match rustix::fs::openat(&self.dir, &self.lock, existing, Mode::empty()) {
                Err(Errno::NOENT) => {}
                opened => return opened.map(File::from),
            }
            match rustix::fs::openat(&self.dir, &self.lock, existing | OFlags::CREATE | OFlags::EXCL, MODE) {
                Err(Errno::EXIST) => {}
                opened => return opened.map(File::from),
            }
        }
    }

    /// Whether `file` still has the lock's name. It may have been removed while this process waited for it.
    fn is_lock_file(&self, file: &File) -> rustix::io::Result<bool> {
        let ours = rustix::fs::fstat(file)?;
        match rustix::fs::statat(&self.dir, &self.lock, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(cause) => Err(cause),
        }
    }

    /// `None` if another process has the lock, or `file` is no longer the lock file.
    pub(super) fn try_lock(&self, file: File) -> rustix::io::Result<Option<FlockGuard>> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(cause) => return Err(cause),
        }
        let guard = FlockGuard(file);
        Ok(self.is_lock_file(&guard.0)?.then_some(guard))
    }

    /// The permissions of the current version, for the next one.
    fn mode(&self) -> rustix::io::Result<Option<Mode>> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Mode::from_raw_mode(stat.st_mode & 0o777))),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

impl FileOps for LocalDir {
    type WriteLock = FlockGuard;
    type Temp = File;

    fn lock(&self) -> Result<FlockGuard, Error> {
        let mut waited = Duration::ZERO;
        loop {
            let locked = self.open_lock().and_then(|file| self.try_lock(file));
            if let Some(guard) = locked.map_err(|cause| failed("lock", &self.lock, cause))? {
                return Ok(guard);
            }
            if waited >= self.lock_timeout {
                let lock = self.lock.display();
                return Err(Error::Unavailable(format!("timed out waiting for other writers: lock={lock}")));
            }
            sleep(POLL_INTERVAL);
            waited += POLL_INTERVAL;
        }
    }

    fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        // Without O_NONBLOCK, opening a FIFO of that name would block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let invalid = |what: &str| Error::Invalid(format!("{what}: name={}", self.name.display()));
        let file = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => {
                return Err(invalid("it is a symbolic link; use the path of the file itself"));
            }
            Err(cause) => return Err(failed("open", &self.name, cause)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|cause| failed("stat", &self.name, cause))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        let read = file.take(VERSION_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|cause| unavailable("read the file", &cause))?;
        if bytes.len() > VERSION_MAX {
            return Err(invalid("it is too long for fenced content"));
        }
        Ok(Some(bytes))
    }

    fn write_temp(&self, bytes: &[u8]) -> io::Result<File> {
        match self.remove_temp() {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.dir, &self.temp, flags, MODE)?);
        if let Some(mode) = self.mode()? {
            rustix::fs::fchmod(&file, mode)?;
        }
        file.write_all(bytes)?;
        Ok(file)
    }

    fn sync_temp(&self, temp: &File) -> io::Result<()> {
        temp.sync_all()
    }

    fn rename_temp(&self) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, &self.temp, &self.dir, &self.name)?)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn remove_temp(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, &self.temp, AtFlags::empty())?)
    }
}

/// By Linux's magic numbers: NFS, SMB, CIFS, SMB 2, 9p, Ceph, AFS, Coda, Lustre.
pub(super) fn is_network_filesystem(kind: i128) -> bool {
    const MAGIC: [i128; 9] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x00c3_6400,
        0x5346_414f,
        0x7375_7245,
        0x0bd0_0bd0,
    ];
    // On some architectures the number is a signed 32-bit integer.
    MAGIC.contains(&(kind & 0xffff_ffff))
}

#[expect(clippy::disallowed_methods, reason = "a contended lock is polled until the lock timeout")]
fn sleep(span: Duration) {
    std::thread::sleep(span);
}

fn failed(doing: &str, name: &OsStr, cause: Errno) -> Error {
    unavailable(&format!("{doing} {}", name.display()), &cause.into())
}
