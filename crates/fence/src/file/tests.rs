//! A fenced file, interrupted between any two calls: by an error, a kill, a pause, a power cut, a concurrent writer.

mod power;
mod processes;
mod refusals;
mod steps;

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::{FencedFile, FileOps, LocalDir, change};
use crate::error::Error;
use crate::token::Token;
use crate::version::{Change, Version};

fn file(dir: &Path) -> FencedFile {
    // Longer than the slowest disk needs.
    FencedFile::open(dir.join("state")).expect("a directory").lock_timeout(Duration::from_secs(600))
}

fn version(token: u64, revision: u64, content: &[u8]) -> Version {
    Version { token: Token(token), revision, content: Some(content.to_vec()) }
}

fn write<O: FileOps>(ops: &O, token: u64, content: &[u8]) -> Result<Version, Error> {
    change(ops, Token(token), Change::Write(content))
}

/// A directory with a hook before each call, which may fail it.
struct HookedDir<'a, F> {
    dir: &'a LocalDir,
    calls: Cell<usize>,
    before: F,
}

impl<'a, F: Fn(usize) -> io::Result<()>> HookedDir<'a, F> {
    fn new(dir: &'a LocalDir, before: F) -> HookedDir<'a, F> {
        HookedDir { dir, calls: Cell::new(0), before }
    }

    fn call(&self) -> io::Result<()> {
        let number = self.calls.get();
        self.calls.set(number + 1);
        (self.before)(number)
    }

    fn hook(&self) -> Result<(), Error> {
        self.call().map_err(|cause| super::unavailable("run the hook", &cause))
    }
}

impl<F: Fn(usize) -> io::Result<()>> FileOps for HookedDir<'_, F> {
    type WriteLock = <LocalDir as FileOps>::WriteLock;
    type Temp = <LocalDir as FileOps>::Temp;

    fn lock(&self) -> Result<Self::WriteLock, Error> {
        self.hook()?;
        self.dir.lock()
    }

    fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        self.hook()?;
        self.dir.read()
    }

    fn write_temp(&self, bytes: &[u8]) -> io::Result<Self::Temp> {
        self.call()?;
        self.dir.write_temp(bytes)
    }

    fn sync_temp(&self, temp: &Self::Temp) -> io::Result<()> {
        self.call()?;
        self.dir.sync_temp(temp)
    }

    fn rename_temp(&self) -> io::Result<()> {
        self.call()?;
        self.dir.rename_temp()
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.call()?;
        self.dir.sync_dir()
    }

    fn remove_temp(&self) -> io::Result<()> {
        self.dir.remove_temp()
    }
}
