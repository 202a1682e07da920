//! The real binary, as a user has it: output, exit codes and guarantees.

mod commands;
mod errors;
mod pages;
mod run;
mod support;
