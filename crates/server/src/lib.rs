//! lockd over HTTP: authenticates, turns requests into commands, and the engine's answers into responses.
//!
//! **What is absent.** No rule about leases: the kernel decides. No command line. No TLS of its own making.
//!
//! [`Server`] is all of it, set up by a [`Config`]: for a program of its own, or inside another.
//!
//! The modules in reading order: [`settings`] are the columns of the table of settings, [`config`] its rows
//! and the configuration made of them; [`peer`] is the authenticated client and its
//! rights; [`backend`] opens the store, submits commands to its shards, and keeps events and metrics; `parse` is
//! everything about a request that can be malformed; `present` turns decisions into responses; `handlers` has a
//! function for each call; [`http`] listens, routes and observes; [`server`](mod@server) runs all of it; [`testing`] runs
//! it in memory.

pub mod settings;
pub mod config;
pub mod peer;
pub mod backend;
mod parse;
mod present;
mod handlers;
pub mod http;
pub mod server;
pub mod testing;

pub use config::{Config, ConfigError};
pub use server::{Server, StartError};
