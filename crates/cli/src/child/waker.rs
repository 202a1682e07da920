//! A pipe through which another thread interrupts the supervising thread's `poll`.

use std::io::{self, PipeReader, PipeWriter, Write};

/// The end to poll: readable after a wakeup, and once every [`Waker`] is dropped.
pub type WakeReader = PipeReader;

/// The end that interrupts the wait. Dropping it wakes too.
pub struct Waker(PipeWriter);

impl Waker {
    /// Interrupts the wait; fails if the reader is gone.
    pub fn wake(&mut self) -> io::Result<()> {
        self.0.write_all(b".")
    }
}

/// Creates both ends.
pub fn waker() -> io::Result<(WakeReader, Waker)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader, Waker(writer)))
}
