//! Ratios to bare system calls.
fn main() {}
