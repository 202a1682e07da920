//! The kernel's integration tests, in one binary: they link once and run in parallel.

mod bounds;
mod edges;
mod namespaces;
mod queries;
mod pages;
mod regressions;
mod snapshots;
mod steps;
mod transcripts;
