//! [`FencedFile`]: a file on a local filesystem that is replaced under its token.
//!
//! **Invariant.** The crate's, and: after a crash or a power cut at any moment the file is the old version or the new
//! one, content and token together; every state that a result reveals is durable before the call returns.
//!
//! How: under an exclusive lock, read and compare the token; write the new version to a temporary file; sync it; rename
//! it over the file; sync the directory; return.
//!
//! **What would break it.** Without the lock, another write may come between compare and rename. With a lock on the file
//! itself, a waiter locks the inode that the rename has just replaced, and writes concurrently with the next writer. With
//! the token in a second file, a crash between two renames leaves a token with other content. With the rename before the
//! sync, a power cut leaves an empty file under the name.
//!
//! **What is not covered.**
//! - Programs that write, rename or remove the file or its lock file by other means. Deleting the file loses its token;
//!   [`FencedFile::remove`] keeps it.
//! - Network filesystems: a lock can be lost without its holder noticing. Known ones are refused; a FUSE filesystem
//!   cannot be distinguished from a local one.
//! - A writer that is stopped (SIGSTOP) in the middle: other writers get [`Error::Unavailable`] until it continues or is
//!   killed. Its lock is never stolen, since it could resume right before its rename.
//! - Other hard links to the file keep the old version. Permissions are kept, owner, ACLs and attributes are not.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::token::Token;
use crate::version::{Change, Version};

mod local;
#[cfg(test)]
mod tests;

use local::LocalDir;

/// A file that only the newest holder can replace.
///
/// The calls block: in async code, use a blocking task.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use lockd_fence::{Error, FencedFile, Token};
///
/// let file = FencedFile::open(dir.path().join("checkpoint"))?;
/// let (ours, newer) = (Token(41), Token(42)); // `Token(lease.fencing_token())`
/// file.write(ours, b"page 1")?;
/// // A new holder takes over: its claim fences off all earlier ones.
/// assert_eq!(file.claim(newer)?.as_deref(), Some(b"page 1".as_slice()));
/// assert_eq!(file.write(ours, b"page 2"), Err(Error::Stale { current: Some(newer) }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedFile {
    dir: LocalDir,
}

impl FencedFile {
    /// Opens the directory of `path`, which must exist; the file itself may not. The directory is kept open, so it may be
    /// moved. Next to `name` it creates `.name.fence-lock`, and `.name.fence-temp` during writes.
    pub fn open(path: impl AsRef<Path>) -> Result<FencedFile, Error> {
        Ok(FencedFile { dir: LocalDir::open(path.as_ref())? })
    }

    /// Timeout for waiting on other writers. 10 s by default.
    #[must_use]
    pub fn lock_timeout(mut self, span: Duration) -> FencedFile {
        self.dir.lock_timeout = span;
        self
    }

    /// Replaces the content, unless a newer token has written or claimed.
    pub fn write(&self, token: Token, content: &[u8]) -> Result<(), Error> {
        change(&self.dir, token, Change::Write(content)).map(drop)
    }

    /// Raises the token and reads, in one atomic step: the content stays as returned until this token or a newer one
    /// writes.
    pub fn claim(&self, token: Token) -> Result<Option<Vec<u8>>, Error> {
        change(&self.dir, token, Change::Claim).map(|version| version.content)
    }

    /// Removes the content and keeps the token, unless a newer token has written or claimed.
    pub fn remove(&self, token: Token) -> Result<(), Error> {
        change(&self.dir, token, Change::Remove).map(drop)
    }

    /// The current version; `None` if there was never a write or a claim. It may be replaced at any time: before a write
    /// that depends on it, use [`FencedFile::claim`].
    pub fn read(&self) -> Result<Option<Version>, Error> {
        read_version(&self.dir)
    }
}

/// The filesystem calls of a replacement. A trait, so that tests can interrupt between any two of them.
trait FileOps {
    /// Exclusive: at most one exists at a time.
    type WriteLock;
    /// The open temporary file.
    type Temp;

    /// Waits for the write lock.
    fn lock(&self) -> Result<Self::WriteLock, Error>;
    /// The bytes of the file, if it exists.
    fn read(&self) -> Result<Option<Vec<u8>>, Error>;
    /// Writes the temporary file, replacing one that a crash left.
    fn write_temp(&self, bytes: &[u8]) -> io::Result<Self::Temp>;
    /// Makes its bytes durable.
    fn sync_temp(&self, temp: &Self::Temp) -> io::Result<()>;
    /// Renames the temporary file over the file.
    fn rename_temp(&self) -> io::Result<()>;
    /// Makes the rename durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Removes the temporary file; fails if it does not exist.
    fn remove_temp(&self) -> io::Result<()>;
}

fn change<O: FileOps>(ops: &O, token: Token, change: Change<'_>) -> Result<Version, Error> {
    let _lock = ops.lock()?;
    let current = ops.read()?.map(Version::parse).transpose()?;
    let next = Version::next(current, token, change);
    match &next {
        Ok(next) => replace(ops, &next.to_bytes())?,
        // The error reveals a newer write, whose process may have been killed before its last sync.
        Err(_) => ops.sync_dir().map_err(|cause| unavailable("sync the directory", &cause))?,
    }
    next
}

fn replace<O: FileOps>(ops: &O, bytes: &[u8]) -> Result<(), Error> {
    let written = ops.write_temp(bytes).and_then(|temp| ops.sync_temp(&temp));
    if let Err(cause) = written {
        // A leftover is replaced by the next write.
        let _ = ops.remove_temp();
        return Err(unavailable("write the temporary file", &cause));
    }
    if let Err(cause) = ops.rename_temp() {
        let doing = "rename the temporary file over the file";
        // If the temporary file can still be removed, it was not renamed.
        let renamed = ops.remove_temp().is_err();
        return Err(if renamed { indeterminate(doing, &cause) } else { unavailable(doing, &cause) });
    }
    ops.sync_dir().map_err(|cause| indeterminate("sync the directory", &cause))
}

fn read_version<O: FileOps>(ops: &O) -> Result<Option<Version>, Error> {
    let Some(bytes) = ops.read()? else { return Ok(None) };
    ops.sync_dir().map_err(|cause| unavailable("sync the directory", &cause))?;
    Version::parse(bytes).map(Some)
}

fn unavailable(doing: &str, cause: &io::Error) -> Error {
    Error::Unavailable(format!("cannot {doing}: cause={cause}"))
}

fn indeterminate(doing: &str, cause: &io::Error) -> Error {
    Error::Indeterminate(format!("failed to {doing}: cause={cause}"))
}
