//! Identity files, what they promise, and every way in which a stranger might try to pass for somebody.

mod bundles;
mod files;
mod handshake;
mod sealing;
mod support;
