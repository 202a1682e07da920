//! Tests of the real `lockd` and `lockc` binaries: their output and exit codes.

mod actions;
mod auth;
mod certificate_errors;
mod check;
mod client;
mod curl;
mod cut;
mod discovery;
mod dump;
mod exit_codes;
mod expiry;
mod first_start;
mod identities;
mod lockc;
mod mcp;
mod modes;
mod pages;
mod progress;
mod reload;
mod restarts;
mod run;
mod serve;
mod server;
mod settings;
mod support;
mod watch;
