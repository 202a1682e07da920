//! The real binary, as an operator has it: what it prints, and what it exits with.

mod actions;
mod auth;
mod client;
mod discovery;
mod dump;
mod lockc;
mod mcp;
mod modes;
mod pages;
mod progress;
mod reload;
mod run;
#[path = "../shared/running.rs"]
mod running;
mod serve;
mod server;
mod settings;
mod support;
mod watch;
