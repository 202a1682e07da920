//! Locks and snapshots for worktrees on a shared filesystem, with no server.
//!
//! A repository is a directory with `.jvs` in it, on any POSIX filesystem that several processes or hosts
//! share. Each worktree has one sequence of entries, and an entry is created by `link(2)`, which fails if
//! the name exists: that is the only arbiter. Acquire, steal, release, publish and restore are all entries
//! of that sequence, so a stale holder cannot commit, even with a wrong clock.
//!
//! This is the JVS locking and consistency specification with its races removed; `docs/guide/worktrees.md`
//! describes the format and the guarantees. Nothing here talks to a server or parses a command line.
//!
//! The modules are listed in the order in which to read them.

// The protocol.
pub mod lock;
pub mod lease;
pub mod record;
pub mod sequence;
mod commit;
mod traces;
mod publishes;
pub mod view;
pub mod session;

// Repositories, worktrees and snapshots.
pub mod repo;
pub mod worktree;
pub mod status;
pub mod waiting;
pub mod snapshot;
pub mod restore;
pub mod fork;
pub mod restore_path;
pub mod cloning;
pub mod history;
pub mod history_filter;
pub mod diff;
pub mod stored;
pub mod tags;
pub mod retention;
pub mod verify;
pub mod doctor;
pub mod trash;
pub mod tree;
pub mod layout;

// Values and ports.
pub mod policy;
pub mod holder;
pub mod ids;
pub mod probe;
pub mod clock;
pub mod fs;
pub mod env;
pub mod error;
mod atomic;

// Storage of snapshots.
mod sharing;
mod file_index;
mod manifest_chain;
mod uses;
mod reclaim;
mod unfinished;
