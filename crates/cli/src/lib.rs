//! What the programs of this package share.
//!
//! [`remote`] is `lockd client`, and what `lockc` and `lockd run` do like it; [`child`] runs commands under a lock; [`mod@file`]
//! replaces files; [`folders`] says where things are kept; [`man_pages`] makes completions and manual pages; [`progress`] and
//! [`stderr`] are for people.

pub mod child;
pub mod remote;
pub mod file;
pub mod folders;
pub mod man_pages;
pub mod progress;
pub mod stderr;
