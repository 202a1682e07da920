//! `lockd`: the lease authority: the server, the client for shells and AI agents, `run` for commands under a lease, identity
//! management, and store inspection.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage; the client's others are in [`cli::remote`]. Results go to standard output,
//! everything else to standard error.

mod args;
mod auth;
mod backup;
mod bucket_flags;
mod check;
mod copy;
mod cost;
mod cut;
mod dump;
mod hand_over;
mod health;
mod audit_line;
mod local_store;
mod log_replay;
mod logs;
mod mcp;
mod outcome_fields;
mod probe;
mod reload;
mod restore;
mod run;
mod serve;
mod transfer;
mod who;

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory};
use cli::child::become_command;
use cli::output::{FailureStream, Output, report, requested};
use cli::remote::{self, Failure};

use crate::args::{ConfigArgs, LockdArgs, LockdCommand, StoreCommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Some(code) = become_command("lockd") {
        return ExitCode::from(code);
    }
    let (args, matches) = match LockdArgs::get() {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let submatches = || matches.subcommand().expect("a command is required").1;
    let failed = |what| Failure::new(1, what);
    let done = match &args.command {
        LockdCommand::Auth { command } => auth::run(command).map_err(failed).map(|()| 0),
        LockdCommand::Backup(args) => backup::run(args).map(|()| 0),
        LockdCommand::Client(args) => remote::run(args).map(|()| 0),
        LockdCommand::Config(show) => config(submatches(), show).map_err(Failure::from).map(|()| 0),
        LockdCommand::Completions(completions) => {
            let script = completions.script(LockdArgs::command());
            let written = std::io::stdout().write_all(&script);
            written.map_err(|error| remote::failed("writing completions", &error)).map(|()| 0)
        }
        LockdCommand::Health(health) => health::run(health).map(|()| 0),
        LockdCommand::Man(man) => man.write(LockdArgs::command()).map_err(failed).map(|()| 0),
        LockdCommand::Mcp(args) => mcp::run(args).map(|()| 0),
        LockdCommand::Reload(args) => reload::run(args).map(|()| 0),
        LockdCommand::Restore(args) => restore::run(args).map(|()| 0),
        LockdCommand::Run(args) => run::run(args),
        LockdCommand::Serve(_) => serve::run(submatches()).map_err(Failure::from).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Check(args) } => {
            check::check(args).map_err(Failure::from)
        }
        LockdCommand::Store { command: StoreCommand::Dump(dump) } => dump::dump(dump).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Who(args) } => who::who(args).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Copy(args) } => copy::run(args).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Probe(args) } => probe::run(args).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Cost(args) } => cost::run(args).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::HandOver(args) } => hand_over::run(args).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Export(args) } => transfer::export(args).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Import(args) } => transfer::import(args).map(|()| 0),
        LockdCommand::Store { command: StoreCommand::Cut(cut) } => cut::cut(cut).map(|()| 0),
    };
    let code = done.unwrap_or_else(|failure| {
        let (output, stream) = requested_output();
        report("lockd", &failure, output, stream);
        failure.code
    });
    ExitCode::from(code)
}

/// The format of failures, and where they go: the standard output of `run` is its command's, that of `get` and `edit` a
/// document.
pub(crate) fn requested_output() -> (Output, FailureStream) {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let is = |at: usize, name: &str| words.get(at).is_some_and(|word| word == name);
    let (is_client, is_run) = (is(0, "client"), is(0, "run"));
    let of_client = is_client || is_run || is(0, "health");
    let has_document = is_client && words.iter().any(|word| word == "get" || word == "edit");
    // `auth verify` has printed its report.
    let has_report = is(0, "auth") && is(1, "verify");
    let stream =
        if is_run || has_document || has_report { FailureStream::Stderr } else { FailureStream::Stdout };
    (requested(&words, of_client.then_some("LOCKD_CLIENT_OUTPUT")), stream)
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
