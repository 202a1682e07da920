//! Tests of the real `lockd` and `lockc` binaries: their output and exit codes.

mod actions;
mod attacks;
mod auth;
mod check;
mod client;
mod curl;
mod cut;
mod discovery;
mod dump;
mod exit_codes;
mod lockc;
mod mcp;
mod modes;
mod pages;
mod progress;
mod reload;
mod restarts;
mod revocation;
mod connection_limits;
mod run;
mod serve;
mod server;
mod settings;
mod support;
mod watch;
