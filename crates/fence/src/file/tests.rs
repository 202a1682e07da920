//! A fenced file, stopped between any two calls: by an error, a kill, a pause, a power cut, and by others.

mod power;
mod processes;
mod refusals;
mod steps;

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::{FencedFile, LocalPlace, Place, change};
use crate::error::Error;
use crate::token::Token;
use crate::version::{Change, Version};

fn file(dir: &Path) -> FencedFile {
    // Longer than any disk takes.
    FencedFile::open(dir.join("state")).expect("a directory").patience(Duration::from_secs(600))
}

fn version(token: u64, revision: u64, content: &[u8]) -> Version {
    Version { token: Token(token), revision, content: Some(content.to_vec()) }
}

fn write<P: Place>(place: &P, token: u64, content: &[u8]) -> Result<Version, Error> {
    change(place, Token(token), Change::Write(content))
}

/// A place that asks before each call whether to go on.
struct Watched<'a, F> {
    place: &'a LocalPlace,
    calls: Cell<usize>,
    before: F,
}

impl<'a, F: Fn(usize) -> io::Result<()>> Watched<'a, F> {
    fn new(place: &'a LocalPlace, before: F) -> Watched<'a, F> {
        Watched { place, calls: Cell::new(0), before }
    }

    fn call(&self) -> io::Result<()> {
        let number = self.calls.get();
        self.calls.set(number + 1);
        (self.before)(number)
    }

    fn asked(&self) -> Result<(), Error> {
        self.call().map_err(|cause| super::unavailable("go on", &cause))
    }
}

impl<F: Fn(usize) -> io::Result<()>> Place for Watched<'_, F> {
    type Turn = <LocalPlace as Place>::Turn;
    type Beside = <LocalPlace as Place>::Beside;

    fn take_turn(&self) -> Result<Self::Turn, Error> {
        self.asked()?;
        self.place.take_turn()
    }

    fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        self.asked()?;
        self.place.read()
    }

    fn write_beside(&self, bytes: &[u8]) -> io::Result<Self::Beside> {
        self.call()?;
        self.place.write_beside(bytes)
    }

    fn sync_beside(&self, beside: &Self::Beside) -> io::Result<()> {
        self.call()?;
        self.place.sync_beside(beside)
    }

    fn swap_in(&self) -> io::Result<()> {
        self.call()?;
        self.place.swap_in()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.call()?;
        self.place.sync_names()
    }

    fn discard(&self) -> io::Result<()> {
        self.place.discard()
    }
}
