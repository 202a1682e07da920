//! Directories that only lockd may enter.

use std::path::Path;

use store::private::{self, Access};

use crate::backend::boot_error::BootError;

/// Creates a directory with mode 0700. An existing one is restricted to that, unless it has other uses: other
/// subdirectories than these, another owner, or the sticky bit.
pub(crate) fn private_dir(path: &Path, subdirectories: &[&str]) -> Result<(), BootError> {
    let access = private::create_dir(path).and_then(|()| private::tighten(path, subdirectories));
    if access.map_err(|error| BootError::Io(path.to_path_buf(), error))? == Access::Open {
        tracing::warn!(path = %path.display(), "other users may enter the directory; use one for lockd alone, with mode 0700");
    }
    Ok(())
}
