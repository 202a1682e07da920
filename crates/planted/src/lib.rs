//! Deliberate faults in kernel, store, engine and server. One of them can be switched on at run time, to prove that the tests
//! catch that mistake.
//!
//! **What is absent.** Everything but the macro, in a product build: without the feature `enabled`, which the crates'
//! own feature `planted` turns on, this crate is `no_std`, empty, and `planted!(Name)` is the literal `false`.
//!
//! `LOCKD_PLANTED=<name>` selects the fault. `cargo run --release -p lockd-sim --features planted -- planted` tries each of
//! them in turn. `faults.rs` is the one table that the enum, that command and `docs/internals/planted-bugs.md` are generated from.
#![cfg_attr(not(any(test, feature = "enabled")), no_std)]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "enabled"))]
pub mod faults;
#[cfg(any(test, feature = "enabled"))]
pub mod parts;

#[cfg(any(test, feature = "enabled"))]
pub use faults::{Fault, VARIABLE, is_selected};

/// Whether one of these faults is switched on: `planted!(ExpireLate)`, `planted!(PinsIgnored | PinsLate)`. Always
/// `false` without the feature `enabled`.
#[cfg(feature = "enabled")]
#[macro_export]
macro_rules! planted {
    ($($fault:ident)|+) => {
        [$($crate::Fault::$fault),+].into_iter().any($crate::is_selected)
    };
}

/// Whether one of these faults is switched on: `planted!(ExpireLate)`, `planted!(PinsIgnored | PinsLate)`. Always
/// `false` without the feature `enabled`.
#[cfg(not(feature = "enabled"))]
#[macro_export]
macro_rules! planted {
    ($($fault:ident)|+) => {
        false
    };
}
