//! The real binary, as a user has it: output, exit codes and guarantees.

mod commands;
mod compare;
mod copies;
mod errors;
mod pages;
mod retention;
mod run;
mod support;
mod waiting;
