//! The context of a command: repository, sessions of the user, and selected worktree.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;
use rustix::process::umask;
use system::xdg;
use worktree::env::Env;
use worktree::error::{Error, ErrorClass, Result};
use worktree::fs::RealFs;
use worktree::ids::{SessionId, WorktreeId};
use worktree::repo::Repo;
use worktree::session::SessionStore;
use worktree::worktree::Worktree;

use crate::args::{JvsArgs, WorktreeArg};

/// The repository that a command works on.
pub(crate) struct RepoContext {
    pub(crate) repo: Repo,
    pub(crate) json: bool,
    working_dir: PathBuf,
}

impl RepoContext {
    /// Opens the repository of `--repo`, or the nearest one at or above the working directory.
    pub(crate) fn open(args: &JvsArgs) -> Result<Self> {
        let working_dir = working_dir()?;
        let root = match &args.repo {
            Some(root) => named_root(root)?,
            None => Repo::find_root(&working_dir).ok_or_else(|| {
                Error::not_found(format!(
                    "no repository here or above; run `jvs init`, or pass --repo DIR: path={}",
                    working_dir.display()
                ))
            })?,
        };
        let repo = Repo::open(system_env()?, &root)?;
        if repo.record().shared {
            allow_group();
        }
        Ok(Self { repo, json: args.format().is_parsed(), working_dir })
    }

    /// The worktree of `--worktree`, the one that contains the working directory, or `main`.
    pub(crate) fn worktree(&self, target: &WorktreeArg) -> Result<Worktree> {
        if let Some(id) = &target.worktree {
            return self.repo.worktree(id);
        }
        let contains_working_dir =
            |worktree: &Worktree| self.working_dir.starts_with(self.repo.payload(worktree));
        match self.repo.worktrees()?.into_iter().find(contains_working_dir) {
            Some(worktree) => Ok(worktree),
            None => self.repo.worktree(&default_worktree()).map_err(|error| match error.class() {
                ErrorClass::NotFound => Error::invalid(
                    "no worktree selected; pass --worktree, or run jvs inside one; `jvs worktree list` lists \
                     them",
                ),
                _ => error,
            }),
        }
    }
}

/// The components of this machine.
pub(crate) fn system_env() -> Result<Env> {
    let sessions = SessionStore::new(Arc::new(RealFs), state_dir()?.join("sessions"));
    Ok(Env::system(sessions))
}

/// Lets the group write to new files, also to those of a command of `jvs run`.
pub(crate) fn allow_group() {
    umask(Mode::WOTH);
}

/// The worktree that `init` creates, and the default selection.
pub(crate) fn default_worktree() -> WorktreeId {
    "main".parse().expect("a valid name")
}

/// The session of a command that needs one.
pub(crate) fn required(session: Option<&SessionId>) -> Result<&SessionId> {
    session.ok_or_else(|| {
        Error::new(
            ErrorClass::LockNotHeld,
            "no session given; pass --session-id or set JVS_SESSION_ID, as printed by `jvs lock acquire`",
        )
    })
}

/// The directory of `--repo` or `JVS_REPO`.
fn named_root(root: &Path) -> Result<PathBuf> {
    if root.is_dir() {
        return real_path(root);
    }
    Err(Error::not_found(format!(
        "no such directory; pass the one that contains `.jvs` as --repo DIR or JVS_REPO: path={}",
        root.display()
    )))
}

/// An existing path with all symbolic links resolved.
pub(crate) fn real_path(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|cause| Error::io("find", path, &cause))
}

fn working_dir() -> Result<PathBuf> {
    std::env::current_dir()
        .map_err(|cause| Error::io("find the working directory, from", Path::new("."), &cause))
        .and_then(|dir| real_path(&dir))
}

/// `$JVS_STATE_DIR`, else `$XDG_STATE_HOME/jvs`, else `~/.local/state/jvs`.
fn state_dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let dir = set("JVS_STATE_DIR").or_else(|| xdg::state_home().map(|dir| dir.join("jvs")));
    match dir {
        Some(dir) if dir.is_absolute() => Ok(dir),
        Some(dir) => Err(Error::invalid(format!(
            "the directory for sessions must be an absolute path; set JVS_STATE_DIR: dir={}",
            dir.display()
        ))),
        None => Err(Error::invalid("no directory for sessions; set JVS_STATE_DIR or HOME")),
    }
}
