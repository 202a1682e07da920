//! lockd over HTTP: authenticates, turns requests into commands, and the engine's answers into responses.
//!
//! **What is absent.** No rule about leases: the kernel decides. No command line. No TLS of its own making.
//!
//! [`Server`] is all of it, set up by a [`Config`]: for a program of its own, or inside another.
//!
//! The modules in reading order: [`settings`] are the columns of the table of settings, [`config`] its rows and the configuration made of them; [`credential`] is the text that a holder gets, and
//! `attempt` the one that an agent comes back with; [`peer`] is who is asking, and what it may; [`boot`] opens a store; `watch`
//! hears what happens in it, `metrics` counts, `news` and its `ring` remember the last of it; [`app`] is the store's shards,
//! and how they are asked; `refuse` says no in the words of the API; `read` and `query` take requests apart; then what answers
//! them: `acquire`, `holder`, `agents`, `manifest`, `bulk`, `contention`, `events`, `state`, `fetch`, `views`, `operator`, `health`;
//! `openapi` describes calls, `calls` is all of them, and [`router`] puts them together, with `observe` around each; [`serve`]
//! listens, with `patience`; [`identities`] are who the server is; [`server`](mod@server) is all of it running, on the clock and the
//! chance of a `machine`; [`testing`] is all of it in memory.

pub mod settings;
pub mod config;
pub mod credential;
mod attempt;
pub mod peer;
pub mod boot;
mod metrics;
mod ring;
mod news;
pub mod watch;
pub mod app;
mod refuse;
mod read;
mod query;
mod deliver;
mod acquire;
mod holder;
mod agents;
mod manifest;
mod bulk;
mod contention;
mod events;
mod state;
mod fetch;
mod views;
mod operator;
mod health;
mod observe;
mod openapi;
mod calls;
pub mod router;
mod patience;
pub mod front;
pub mod serve;
pub mod identities;
mod machine;
pub mod server;
pub mod testing;

pub use config::{Config, ConfigError};
pub use server::{Server, StartError};
