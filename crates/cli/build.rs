//! Packs the relative relocations of the programs, where the C library can read them.
//!
//! A position-independent program of this size has about 40,000 relative relocations: a megabyte of the file that the loader
//! reads at each start, and that counts as memory of every command. Packed (`DT_RELR`), they are a few kilobytes. Programs
//! with packed relocations need glibc 2.36 when they run. So it is done for builds on a machine that has it.

use std::process::Command;

/// The first glibc that reads packed relocations.
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let is_native = variable("HOST") == variable("TARGET");
    let is_gnu = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    if is_native && is_gnu && glibc_version().is_some_and(|version| version >= GLIBC_MIN) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this machine's glibc, from a line such as `glibc 2.36`.
fn glibc_version() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
