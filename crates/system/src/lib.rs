//! What several crates need from the machine: durable file replacement, the exposure of files, randomness, hexadecimal
//! text, XDG directories, the host name, the identity of a boot, the memory that a process may use, the service manager that started it.
//!
//! **What is absent.** Any other crate of ours; clocks; policy: callers decide what to store, where and for whom. `store`
//! and `worktree` replace files through ports of their own, so that their simulators can cut the power between any two
//! calls.
#![forbid(unsafe_code)]

pub mod boot;
pub mod exposure;
pub mod file;
pub mod hex;
pub mod memory;
pub mod random;
pub mod service_manager;
pub mod xdg;

/// The machine's host name; empty if it is not UTF-8.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_str().unwrap_or_default().to_string()
}
