//! What the programs of this package share.
//!
//! [`client`] is `lockd client`, and what `lockc` and `lockd run` do like it; [`child`] runs commands under a lock; [`mod@file`]
//! replaces files; [`folders`] says where things are kept; [`pages`] makes completions and manual pages; [`progress`] and
//! [`speak`] are for people.

pub mod child;
pub mod client;
pub mod file;
pub mod folders;
pub mod pages;
pub mod progress;
pub mod speak;
