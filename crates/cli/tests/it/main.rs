//! The tests of the real binaries, in one test binary.

mod running;
mod terminal;
mod help_pages;
mod jvs;
mod lockd;
