//! Code that the programs of this package share.
//!
//! [`remote`] implements `lockd client`, and the parts of it that `lockc`, `lockd run` and `lockd mcp` use; [`child`] runs
//! commands under a lock; [`exit_codes`] lists the exit codes; [`man_pages`] generates shell completions and man pages;
//! [`progress`] and [`stderr`] write to the terminal; [`untrusted`] makes the text of others safe to show.

pub mod remote;
pub mod child;
pub mod exit_codes;
pub mod man_pages;
pub mod progress;
pub mod stderr;
pub mod untrusted;
