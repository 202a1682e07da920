//! Code that the programs of this package share.
//!
//! [`remote`] implements `lockd client`, and the parts of it that `lockc`, `lockd run` and `lockd mcp` use; [`child`] runs
//! commands under a lock; [`exit_codes`] lists the exit codes, and [`failure`] is what has one; [`man_pages`] generates shell completions and man pages;
//! [`output`] has the formats of the output; [`progress`], [`wait_notices`] and [`stderr`] write to the terminal;
//! [`untrusted`] makes the text of others safe to show;
//! [`times`] writes times; [`usage`] has tips for invalid command lines.

pub mod remote;
pub mod child;
pub mod exit_codes;
pub mod failure;
pub mod man_pages;
pub mod output;
pub mod progress;
pub mod stderr;
pub mod wait_notices;
pub mod times;
pub mod untrusted;
pub mod usage;
