//! Tests of the real `lockd` and `lockc` binaries: their output and exit codes.

mod actions;
mod auth;
mod client;
mod dump;
mod lockc;
mod mcp;
mod pages;
mod progress;
mod run;
#[path = "../shared/running.rs"]
mod running;
mod serve;
mod server;
mod support;
mod watch;
