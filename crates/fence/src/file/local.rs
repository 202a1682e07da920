//! A directory of a local filesystem, with a fenced file in it.
//!
//! **Invariant.** Of all who have a [`Turn`] of one file there is one at a time: they hold an exclusive `flock` of the
//! file that has the lock's name. Every call goes through the directory's descriptor, so that lock, file and what is
//! beside it are in one directory, whatever becomes of the path.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Place, unavailable};
use crate::error::Error;
use crate::version::VERSION_MAX;

/// How long to wait between two looks at a lock.
const LOOK: Duration = Duration::from_millis(5);
/// Before the user's umask.
const MODE: Mode = Mode::from_raw_mode(0o666);

#[derive(Debug)]
pub(super) struct LocalPlace {
    dir: File,
    name: OsString,
    lock: OsString,
    temp: OsString,
    pub(super) patience: Duration,
}

/// The lock, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(File);

impl Drop for Turn {
    fn drop(&mut self) {
        // To close it would not do: a child that was forked meanwhile may have it open too.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl LocalPlace {
    pub(super) fn open(path: &Path) -> Result<LocalPlace, Error> {
        let invalid = |what: &str| Error::Invalid(format!("{what}: path={}", path.display()));
        // `file_name` looks past a slash or a dot in the end.
        let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next().map(OsStr::from_bytes);
        let name = path.file_name().filter(|name| Some(*name) == last);
        let name = name.ok_or_else(|| invalid("the path does not end with the name of a file"))?;
        let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|cause| failed("open the directory of", name, cause))?;
        let kind =
            rustix::fs::fstatfs(&dir).map_err(|cause| failed("look at the filesystem of", name, cause))?;
        if is_of_a_network(i128::from(kind.f_type)) {
            return Err(invalid("locks of a network's filesystem can be lost unnoticed; use a local one"));
        }
        let beside = |end: &str| {
            let mut beside = OsString::from(".");
            beside.push(name);
            beside.push(end);
            beside
        };
        Ok(LocalPlace {
            dir: File::from(dir),
            name: name.to_os_string(),
            lock: beside(".fence-lock"),
            temp: beside(".fence-temp"),
            patience: Duration::from_secs(10),
        })
    }

    /// Opens the lock's file, making it if it is missing. One that another made is not opened as if to make it: where
    /// everybody may write (a sticky `/tmp`) that is refused.
    pub(super) fn open_lock(&self) -> rustix::io::Result<File> {
        let there = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            match rustix::fs::openat(&self.dir, &self.lock, there, Mode::empty()) {
                Err(Errno::NOENT) => {}
                opened => return opened.map(File::from),
            }
            match rustix::fs::openat(&self.dir, &self.lock, there | OFlags::CREATE | OFlags::EXCL, MODE) {
                Err(Errno::EXIST) => {}
                opened => return opened.map(File::from),
            }
        }
    }

    /// Is this still the file that has the lock's name? Others may have removed it while it was waited for.
    fn is_the_lock(&self, file: &File) -> rustix::io::Result<bool> {
        let ours = rustix::fs::fstat(file)?;
        match rustix::fs::statat(&self.dir, &self.lock, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(cause) => Err(cause),
        }
    }

    /// Nothing if another has it, or this is not the lock any more.
    pub(super) fn lock(&self, file: File) -> rustix::io::Result<Option<Turn>> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(cause) => return Err(cause),
        }
        let turn = Turn(file);
        Ok(self.is_the_lock(&turn.0)?.then_some(turn))
    }

    /// Permissions for the next version: those of the one that is there.
    fn mode(&self) -> rustix::io::Result<Option<Mode>> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Mode::from_raw_mode(stat.st_mode & 0o777))),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

impl Place for LocalPlace {
    type Turn = Turn;
    type Beside = File;

    fn take_turn(&self) -> Result<Turn, Error> {
        let mut waited = Duration::ZERO;
        loop {
            let locked = self.open_lock().and_then(|file| self.lock(file));
            if let Some(turn) = locked.map_err(|cause| failed("lock", &self.lock, cause))? {
                return Ok(turn);
            }
            if waited >= self.patience {
                let lock = self.lock.display();
                return Err(Error::Unavailable(format!("others are writing for too long: lock={lock}")));
            }
            pause(LOOK);
            waited += LOOK;
        }
    }

    fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        // A pipe of that name must not keep us waiting.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let invalid = |what: &str| Error::Invalid(format!("{what}: name={}", self.name.display()));
        let file = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(invalid("it is a symbolic link; name the file itself")),
            Err(cause) => return Err(failed("open", &self.name, cause)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|cause| failed("look at", &self.name, cause))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid("it is not a file"));
        }
        let mut bytes = Vec::new();
        let read = file.take(VERSION_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|cause| unavailable("read the file", &cause))?;
        if bytes.len() > VERSION_MAX {
            return Err(invalid("it is longer than fenced content can be"));
        }
        Ok(Some(bytes))
    }

    fn write_beside(&self, bytes: &[u8]) -> io::Result<File> {
        match self.discard() {
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

    fn sync_beside(&self, beside: &File) -> io::Result<()> {
        beside.sync_all()
    }

    fn swap_in(&self) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, &self.temp, &self.dir, &self.name)?)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn discard(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.dir, &self.temp, AtFlags::empty())?)
    }
}

/// By the numbers that Linux gives them: NFS, SMB, CIFS, SMB 2, 9p, Ceph, AFS, Coda, Lustre.
pub(super) fn is_of_a_network(kind: i128) -> bool {
    const KINDS: [i128; 9] = [
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
    // On some machines the number is signed, and 32 bits long.
    KINDS.contains(&(kind & 0xffff_ffff))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a lock that others hold is looked at again, until patience ends"
)]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

fn failed(doing: &str, name: &OsStr, cause: Errno) -> Error {
    unavailable(&format!("{doing} {}", name.display()), &cause.into())
}
