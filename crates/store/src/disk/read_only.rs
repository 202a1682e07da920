//! The operating system's filesystem without its writing calls: for views of a store that another process may have open.
//!
//! **Invariant.** Files are opened for reading only, and every call that would change something fails.

use std::io;
use std::path::Path;

use crate::fs::{Fs, RealDir, RealFs};

/// A filesystem that is only read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOnlyFs;

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Fs for ReadOnlyFs {
    type File = std::fs::File;
    type Dir = RealDir;

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFs.list(dir)
    }

    fn open(&self, path: &Path) -> io::Result<Self::File> {
        std::fs::File::open(path)
    }

    fn create(&self, _: &Path) -> io::Result<Self::File> {
        refused()
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn link(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn open_dir(&self, path: &Path) -> io::Result<RealDir> {
        RealFs.open_dir(path)
    }
}
