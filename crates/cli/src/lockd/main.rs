//! `lockd`: the lease authority: the server, the client for shells and AI agents, `run` for commands under a lease, identity
//! management, and store inspection.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage; the client's others are in [`cli::remote`]. Results go to standard output,
//! everything else to standard error.

mod args;
mod auth;
mod check;
mod cut;
mod dump;
mod health;
mod audit_line;
mod logs;
mod mcp;
mod reload;
mod run;
mod serve;

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory};
use cli::child::become_command;
use cli::remote;

use crate::args::{ConfigArgs, LockdArgs, LockdCommand, StoreCommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(code) = become_command("lockd") {
        return ExitCode::from(code);
    }
    let (args, matches) = LockdArgs::get();
    let submatches = || matches.subcommand().expect("a command is required").1;
    let failed = |what| (1, what);
    let done = match &args.command {
        LockdCommand::Auth { command } => auth::run(command).map_err(failed).map(|()| 0),
        LockdCommand::Client(args) => remote::run(args).map(|()| 0),
        LockdCommand::Config(show) => config(submatches(), show).map(|()| 0),
        LockdCommand::Completions(completions) => {
            let script = completions.script(LockdArgs::command());
            let written = std::io::stdout().write_all(&script);
            written.map_err(|error| (1, format!("writing completions: {error}"))).map(|()| 0)
        }
        LockdCommand::Health(health) => health::run(health).map(|()| 0),
        LockdCommand::Man(man) => man.write(LockdArgs::command()).map_err(failed).map(|()| 0),
        LockdCommand::Mcp(args) => mcp::run(args).map(|()| 0),
        LockdCommand::Reload(args) => reload::run(args).map(|()| 0),
        LockdCommand::Run(args) => run::run(args),
        LockdCommand::Serve(_) => serve::run(submatches()).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Check(args) } => check::check(args),
        LockdCommand::Store { command: StoreCommand::Dump(dump) } => {
            dump::dump(dump).map_err(failed).map(|()| 0)
        }
        LockdCommand::Store { command: StoreCommand::Cut(cut) } => cut::cut(cut).map(|()| 0),
    };
    let code = done.unwrap_or_else(|(code, what)| {
        notice(&what);
        code
    });
    ExitCode::from(code)
}

fn config(matches: &ArgMatches, show: &ConfigArgs) -> Result<(), (u8, String)> {
    let text = serve::show(matches, show.output)?;
    // A closed pipe is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Prints one line to standard error.
fn notice(what: &str) {
    cli::stderr::notice("lockd", what);
}
