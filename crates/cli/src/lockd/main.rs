//! `lockd`: the lease authority's own program. So far it serves, makes identities, and looks at stores.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage. Results go to standard output, everything else to standard
//! error.

mod args;
mod auth;
mod dump;
mod line;
mod serve;

use std::io::Write;
use std::process::ExitCode;

use crate::args::{Args, Command, StoreCommand};

fn main() -> ExitCode {
    let args = Args::get();
    let done = match &args.command {
        Command::Auth { command } => auth::run(command),
        Command::Serve(args) => serve::run(args),
        Command::Store { command: StoreCommand::Dump(dump) } => dump::dump(dump),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            say(&what);
            ExitCode::FAILURE
        }
    }
}

/// One line for people.
fn say(what: &str) {
    // If nobody listens, the exit code has to do.
    drop(writeln!(std::io::stderr(), "lockd: {what}"));
}
