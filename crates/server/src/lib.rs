//! lockd over HTTP: authenticates clients, turns requests into commands, and decisions into responses.
//!
//! **What is absent.** Rules about leases: the kernel decides. The command line. TLS verification: `identity` does it.
//!
//! [`Server`] is the whole of it, configured by a [`Config`]; for `lockd serve`, or embedded in another program.
//!
//! The modules in reading order: [`settings`] has the columns of the table of settings, [`config`] its rows
//! and the configuration that is built from them; [`peer`] is the authenticated client and its
//! rights; `act_target` is what an operator's act is about, for the log; [`backend`] opens the store, submits commands to its shards, and keeps events and metrics; `parse` is
//! everything about a request that can be malformed; `present` turns decisions into responses; `handlers` has a
//! function for each call; [`http`] listens, routes and observes; [`server`](mod@server) runs all of it; [`testing`] runs
//! it in memory.

// `planted!(Fault)`: whether a deliberate fault is switched on; `false` without the feature `planted`.
#[macro_use]
extern crate planted;

pub mod settings;
pub mod config;
pub mod peer;
mod act_target;
pub mod backend;
mod parse;
mod present;
mod handlers;
pub mod http;
pub mod server;
pub mod testing;

pub use config::{Config, ConfigError};
pub use server::{CloseTimeout, Server, StartError};
