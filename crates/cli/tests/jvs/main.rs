//! The real binary, as a user has it: what it prints, what it exits with, and what it promises.

mod commands;
mod errors;
mod pages;
mod run;
#[path = "../shared/running.rs"]
mod running;
mod support;
