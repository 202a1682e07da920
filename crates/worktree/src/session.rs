//! The holder's side of a lock: its secret, and the expiry that the holder may rely on.
//!
//! One file per session, mode 0600, in the user's state directory (never in the repository). It holds the
//! nonce, and the expiry of the last renewal that *counted*: a renewal that was written and then found too
//! late must not become the basis of the next one (see `lock`). Other processes go by `<n>.renew`, the holder
//! by this file.
//!
//! Renewals of one session are serialized by `flock`, so that `jvs run` and a command inside it cannot
//! overwrite a newer expiry with an older one. Holder and session are always on the same boot, so a local
//! lock suffices.
//!
//! Nothing here is synced: after a power cut the boot id differs, and the session is useless.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, UnixMs};
use crate::error::{Error, ErrorClass, ErrorContext, Result};
use crate::fs::{Durability, Fs, absent_is_none};
use crate::ids::{Entropy, FencingToken, Nonce, RepoId, SessionId, WorktreeId, random_hex};
use crate::layout::Layout;
use crate::record::BootStamp;

/// A lock that this user acquired.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockSession {
    /// The value of `--session-id`.
    pub session_id: SessionId,
    /// The repository of the worktree.
    pub repo_id: RepoId,
    /// The locked worktree.
    pub worktree_id: WorktreeId,
    /// The holder's secret.
    pub holder_nonce: Nonce,
    /// The fencing token; 0 until the lock is granted.
    pub fencing_token: FencingToken,
    /// The lease, as of the last renewal that counted.
    pub counted: BootStamp,
    /// The process that requested the lock, in the form used in the names of temporary files.
    #[serde(default)]
    pub maker: String,
    /// The directory that the session was created in; none in files of earlier versions.
    #[serde(default)]
    pub repo: Option<RepoInstance>,
}

impl LockSession {
    /// Whether the session was created in this directory, and not in the original of a copy.
    pub(crate) fn is_of(&self, instance: &RepoInstance) -> bool {
        self.repo.as_ref().is_none_or(|repo| repo.may_be(instance))
    }
}

/// A repository's directory. `cp -a` copies a repository with its id, and a session of the original must not be
/// used in the copy: releasing there would leave the original locked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepoInstance {
    root: PathBuf,
    inode: u64,
}

impl RepoInstance {
    pub(crate) fn of(fs: &dyn Fs, layout: &Layout) -> Result<Self> {
        let path = layout.repo_file();
        let inode = fs.meta(&path).doing("stat", &path)?.inode;
        Ok(Self { root: layout.root().to_owned(), inode })
    }

    /// A moved or remounted repository has another path, and some network filesystems give new inode numbers
    /// with each mount; a copy has both.
    fn may_be(&self, other: &Self) -> bool {
        self.root == other.root || self.inode == other.inode
    }
}

/// The sessions of one user.
#[derive(Clone, Debug)]
pub struct SessionStore {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
}

impl SessionStore {
    /// Sessions in `dir`, which is created on the first save.
    pub fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> Self {
        Self { fs, dir }
    }

    /// The directory of the sessions.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a session, replacing its previous version.
    pub fn save(&self, session: &LockSession, entropy: &dyn Entropy) -> Result<()> {
        let path = self.file(&session.session_id);
        let temp = self.dir.join(format!(".{}", random_hex(entropy, 8)));
        let bytes = serde_json::to_vec(session).expect("a session is plain data");
        let write = || self.fs.write_new(&temp, &bytes, 0o600, Durability::Lazy);
        let written = match write() {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => self.make_dir().and_then(|()| write()),
            other => other,
        };
        written.doing("write the session", &temp)?;
        self.fs.rename(&temp, &path).doing("write the session", &path)
    }

    /// The session `id`.
    pub fn load(&self, id: &SessionId) -> Result<LockSession> {
        let path = self.file(id);
        let bytes = absent_is_none(self.fs.read(&path)).doing("read the session", &path)?;
        let bytes = bytes.ok_or_else(|| {
            Error::new(
                ErrorClass::LockNotHeld,
                format!(
                    "no such session of this user; use the session_id that `jvs lock acquire` printed: \
                     session_id={id}"
                ),
            )
        })?;
        serde_json::from_slice(&bytes).map_err(|cause| Error::damaged(&path, cause))
    }

    /// Deletes a session.
    pub fn remove(&self, id: &SessionId) -> Result<()> {
        for path in [self.file(id), self.guard(id)] {
            absent_is_none(self.fs.remove_file(&path)).doing("remove the session", &path)?;
        }
        Ok(())
    }

    /// When a session was last written; none if it does not exist.
    pub(crate) fn modified(&self, id: &SessionId) -> Result<Option<UnixMs>> {
        let path = self.file(id);
        let meta = absent_is_none(self.fs.meta(&path)).doing("stat the session", &path)?;
        Ok(meta.map(|meta| meta.modified))
    }

    /// All sessions of this user.
    pub fn ids(&self) -> Result<Vec<SessionId>> {
        let names = absent_is_none(self.fs.list(&self.dir)).doing("list sessions in", &self.dir)?;
        let id_of = |name: std::ffi::OsString| name.to_str()?.strip_suffix(".json")?.parse().ok();
        Ok(names.unwrap_or_default().into_iter().filter_map(id_of).collect())
    }

    /// Serializes renewals of one session; waits until the lease expires at most.
    pub(crate) fn lock_renewals(&self, session: &LockSession, clock: &dyn Clock) -> Result<RenewalGuard> {
        let path = self.guard(&session.session_id);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(open(&path, flags, Mode::from_raw_mode(0o600)).doing("open", &path)?);
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(RenewalGuard { _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(cause) => return Err(cause).doing("lock", &path),
            }
            if !crate::lease::may_act(&session.counted, &clock.boot_id(), clock.boot()) {
                return Err(Error::new(
                    ErrorClass::LockExpired,
                    "another renewal of this session ran until the lease expired; stop writing now",
                ));
            }
            clock.wait(5);
        }
    }

    fn make_dir(&self) -> io::Result<()> {
        match self.fs.make_dir(&self.dir, 0o700) {
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(self.dir.parent().unwrap_or(Path::new("/")))?;
                self.fs.make_dir(&self.dir, 0o700)
            }
            other => other,
        }
    }

    fn file(&self, id: &SessionId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    fn guard(&self, id: &SessionId) -> PathBuf {
        self.dir.join(format!("{id}.turn"))
    }
}

/// Excludes other renewals of the same session until it is dropped.
#[derive(Debug)]
pub(crate) struct RenewalGuard {
    _file: File,
}
