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
mod packaging;
mod pages;
mod progress;
mod reload;
mod restarts;
mod run;
mod serve;
mod server;
mod settings;
mod support;
mod supervised;
mod watch;
