//! Writes the day of the sources into the crate: a wall clock before it is certainly wrong.
//!
//! It is the day of `SOURCE_DATE_EPOCH`, the seconds since 1970 that reproducible builds set; without it, of the last
//! commit; without git, of [`RELEASE_DAY`]. So the same sources give the same bytes on every machine.
//!
//! The script runs again only if it or the variable changes, not with every commit: that would recompile the engine each
//! time. The day of an incremental build may lag behind, which weakens the check and refuses no right clock.

use std::env;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// 2026-11-16, in days since 1970. A release sets its own day.
pub(crate) const RELEASE_DAY: u64 = 20_773;

const DAY_SECONDS: u64 = 86_400;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let day = build_day(env::var(VARIABLE).ok().as_deref(), last_commit(), now());
    let day = day.unwrap_or_else(|error| panic!("{error}"));
    println!("cargo::rustc-env=LOCKD_BUILD_DAY={day}");
}

/// The day in days since 1970, of the variable, or of the last commit unless that is in the future.
pub(crate) fn build_day(variable: Option<&str>, commit: Option<u64>, now: u64) -> Result<u64, String> {
    if let Some(text) = variable {
        let seconds: Result<u64, _> = text.trim().parse();
        return seconds
            .map(|seconds| seconds / DAY_SECONDS)
            .map_err(|_| format!("not a number of seconds: {VARIABLE}={text}"));
    }
    // The committer's clock may be wrong, and the server would refuse to start.
    Ok(commit.filter(|commit| *commit <= now).map_or(RELEASE_DAY, |commit| commit / DAY_SECONDS))
}

/// The time of the last commit, in seconds since 1970; `None` if git or its repository is missing.
fn last_commit() -> Option<u64> {
    let directory = env::var_os("CARGO_MANIFEST_DIR")?;
    let git =
        Command::new("git").arg("-C").arg(directory).args(["log", "-1", "--format=%ct"]).output().ok()?;
    String::from_utf8(git.stdout).ok()?.trim().parse().ok().filter(|_| git.status.success())
}

#[expect(clippy::disallowed_methods, reason = "a commit in the future is not believed")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
