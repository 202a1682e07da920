//! Integration tests of `identity`: identity files, encryption of the CA key, and attacks on the handshake.

mod bundles;
mod files;
mod foreign;
mod handshake;
mod sealing;
mod support;
