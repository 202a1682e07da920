//! Directories and files of secrets, which only lockd may access.
//!
//! **Invariant.** A server does not start with a data directory, a store, a store key or an identity file that every user
//! of the machine may access. It restricts an empty directory of its own, and changes no other mode: a directory with
//! something in it may have other uses, and what is in it was exposed, which an operator must know.

use std::io;
use std::path::Path;

use store::private;
use system::exposure::{self, Exposure};

use crate::backend::boot_error::BootError;

/// Creates a directory with mode 0700, or checks that an existing one is not for every user. An empty one gets mode 0700.
pub(crate) fn private_dir(path: &Path) -> Result<(), BootError> {
    let taken = private::create_dir(path).and_then(|()| private::restrict_empty(path));
    taken.map_err(|error| BootError::Io(path.to_path_buf(), error))?;
    check_private(path)
}

/// Refuses a file or directory that every user may access, and warns of one that a group may. A missing one passes.
pub(crate) fn check_private(path: &Path) -> Result<(), BootError> {
    match exposure::of(path) {
        Ok(Exposure::Private) => Ok(()),
        Ok(Exposure::Group(text)) => {
            tracing::warn!("{text}");
            Ok(())
        }
        Ok(Exposure::World(text)) => Err(BootError::Exposed(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BootError::Io(path.to_path_buf(), error)),
    }
}
