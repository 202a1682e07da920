//! A file that is replaced under its token, on a local filesystem.
//!
//! **Invariant.** The crate's, and: after a crash or a power cut at any moment the file is the old version or the new
//! one, content and token together; whatever an answer reveals is durable before it is given.
//!
//! How: under an exclusive lock, read the token and compare; write the whole version beside the file; sync it; rename
//! it over the file; sync the directory; answer.
//!
//! **What would break it.** Leave out the lock, and another write comes between compare and rename. Lock the file
//! itself, and whoever waits for it locks a file that the rename has put away, and goes on beside the next writer. Keep
//! the token in a second file, and a crash between two renames leaves a token that belongs to other content. Rename
//! before the sync, and a power cut leaves a name with nothing behind it.
//!
//! **What is not covered.**
//! - Whoever writes, renames or removes the file, or the lock beside it, by other means. To remove the file forgets its
//!   token: [`FencedFile::remove`] keeps it.
//! - Filesystems of a network: a lock there can be lost while its holder does not know. The known ones are refused;
//!   one in user space (FUSE) cannot be told from a local one.
//! - A writer that is stopped (SIGSTOP) in the middle: others are told [`Error::Unavailable`] until it goes on or is
//!   killed. Nobody takes its lock away, since it could wake at its rename.
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

use local::LocalPlace;

/// A file that only its newest holder can replace.
///
/// The calls block: in an async program, make them where that is fine.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use fence::{Error, FencedFile, Token};
///
/// let file = FencedFile::open(dir.path().join("checkpoint"))?;
/// let (ours, newer) = (Token(41), Token(42)); // `Token(lease.fencing_token())`
/// file.write(ours, b"page 1")?;
/// // Another takes over: from its claim on, whoever came before is refused.
/// assert_eq!(file.claim(newer)?.as_deref(), Some(b"page 1".as_slice()));
/// assert_eq!(file.write(ours, b"page 2"), Err(Error::Stale { current: Some(newer) }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedFile {
    place: LocalPlace,
}

impl FencedFile {
    /// A file that may be there or not, in a directory that is. It is found by the directory from now on, wherever that
    /// is moved. Beside `name` there will be `.name.fence-lock`, and `.name.fence-temp` while it is written.
    pub fn open(path: impl AsRef<Path>) -> Result<FencedFile, Error> {
        Ok(FencedFile { place: LocalPlace::open(path.as_ref())? })
    }

    /// How long to wait for other writers. 10 s by default.
    #[must_use]
    pub fn patience(mut self, span: Duration) -> FencedFile {
        self.place.patience = span;
        self
    }

    /// Replaces the content, unless a newer token has been here.
    pub fn write(&self, token: Token, content: &[u8]) -> Result<(), Error> {
        change(&self.place, token, Change::Write(content)).map(drop)
    }

    /// Raises the token and reads, in one step: what comes back stays, until this token or a newer one writes.
    pub fn claim(&self, token: Token) -> Result<Option<Vec<u8>>, Error> {
        change(&self.place, token, Change::Claim).map(|version| version.content)
    }

    /// Removes the content, and keeps the token, unless a newer one has been here.
    pub fn remove(&self, token: Token) -> Result<(), Error> {
        change(&self.place, token, Change::Remove).map(drop)
    }

    /// What is there now; `None` if nobody ever wrote or claimed. It may be replaced the moment after: whoever is to
    /// write begins with [`FencedFile::claim`].
    pub fn read(&self) -> Result<Option<Version>, Error> {
        look(&self.place)
    }
}

/// The calls to a filesystem that a replacement is made of: a port, so that tests can stop between any two of them.
trait Place {
    /// As long as it lives, nobody else has one.
    type Turn;
    /// A version beside the file, open.
    type Beside;

    /// Waits for its turn to write.
    fn take_turn(&self) -> Result<Self::Turn, Error>;
    /// The bytes of the file, if there is one.
    fn read(&self) -> Result<Option<Vec<u8>>, Error>;
    /// Writes a version beside the file, in place of what a crash left there.
    fn write_beside(&self, bytes: &[u8]) -> io::Result<Self::Beside>;
    /// Makes its bytes durable.
    fn sync_beside(&self, beside: &Self::Beside) -> io::Result<()>;
    /// Renames it over the file.
    fn swap_in(&self) -> io::Result<()>;
    /// Makes the rename durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Removes what is beside the file; fails if there is nothing.
    fn discard(&self) -> io::Result<()>;
}

fn change<P: Place>(place: &P, token: Token, change: Change<'_>) -> Result<Version, Error> {
    let _turn = place.take_turn()?;
    let current = place.read()?.map(Version::parse).transpose()?;
    let next = Version::next(current, token, change);
    match &next {
        Ok(next) => replace(place, &next.to_bytes())?,
        // It tells of a newer write, which may have been killed before its last sync.
        Err(_) => place.sync_names().map_err(|cause| unavailable("sync the directory", &cause))?,
    }
    next
}

fn replace<P: Place>(place: &P, bytes: &[u8]) -> Result<(), Error> {
    let written = place.write_beside(bytes).and_then(|beside| place.sync_beside(&beside));
    if let Err(cause) = written {
        // What stays is replaced by the next write.
        let _ = place.discard();
        return Err(unavailable("write the new version beside the file", &cause));
    }
    if let Err(cause) = place.swap_in() {
        let doing = "rename the new version over the file";
        // What can still be removed was not renamed.
        let renamed = place.discard().is_err();
        return Err(if renamed { indeterminate(doing, &cause) } else { unavailable(doing, &cause) });
    }
    place.sync_names().map_err(|cause| indeterminate("sync the directory", &cause))
}

fn look<P: Place>(place: &P) -> Result<Option<Version>, Error> {
    let Some(bytes) = place.read()? else { return Ok(None) };
    place.sync_names().map_err(|cause| unavailable("sync the directory", &cause))?;
    Version::parse(bytes).map(Some)
}

fn unavailable(doing: &str, cause: &io::Error) -> Error {
    Error::Unavailable(format!("cannot {doing}: cause={cause}"))
}

fn indeterminate(doing: &str, cause: &io::Error) -> Error {
    Error::Indeterminate(format!("failed to {doing}: cause={cause}"))
}
