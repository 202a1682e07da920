//! Writes the day of the build into the crate: a wall clock before it is certainly wrong.
//!
//! With `SOURCE_DATE_EPOCH`, the seconds since 1970 that reproducible builds set, the result is the same on every
//! machine. Without it, it is the day on which this script ran. It runs again only if it or the variable changes.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

const VARIABLE: &str = "SOURCE_DATE_EPOCH";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let seconds = match env::var(VARIABLE) {
        Ok(text) => {
            text.trim().parse().unwrap_or_else(|_| panic!("not a number of seconds: {VARIABLE}={text}"))
        }
        Err(_) => now(),
    };
    println!("cargo::rustc-env=LOCKD_BUILD_DAY={}", seconds / 86_400);
}

#[expect(clippy::disallowed_methods, reason = "the day of the build is the one thing that is read here")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
