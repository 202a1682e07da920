//! lockd over HTTP: authenticates, turns requests into commands, and the engine's answers into responses.
//!
//! **What is absent.** No rule about leases: the kernel decides. No command line. No TLS of its own making.
//!
//! The modules in reading order: [`credential`] is the text that a holder gets; [`peer`] is who is asking, and what it
//! may; [`boot`] opens a store; [`app`] is its shards, and how they are asked; `refuse` says no in the words of the API; `read`
//! takes requests apart; then the calls: `acquire`, `holder`, `state`, `views`, `operator`, `health`; [`router`] puts
//! them together; [`serve`] listens; [`testing`] is all of it in memory.

pub mod credential;
pub mod peer;
pub mod boot;
pub mod app;
mod refuse;
mod read;
mod deliver;
mod acquire;
mod holder;
mod state;
mod views;
mod operator;
mod health;
pub mod router;
pub mod serve;
pub mod testing;
