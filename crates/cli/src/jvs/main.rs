//! `jvs`: locks and snapshots for worktrees on a shared filesystem, with no server.
//!
//! The `worktree` crate makes all decisions. This binary parses arguments, constructs components and prints
//! results: as text, or with `--output` and `--json` as described in `docs/guide/worktrees.md`. An error's class determines the
//! exit code.

mod output;
mod args;
mod commands;
mod compare;
mod context;
mod copies;
mod names;
mod policy_args;
mod restoring;
mod retention;
mod run;
mod snapshot_args;
mod waiting;

use std::io::Write;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches};
use cli::child::become_command;
use cli::output::requested;
use cli::usage::with_tips;
use worktree::error::{Error, ErrorClass};

use crate::args::{JvsArgs, JvsCommand};
use crate::context::RepoContext;
use crate::output::CommandOutput;
use crate::snapshot_args::SnapshotCommand;

fn main() -> ExitCode {
    if let Some(code) = become_command("jvs") {
        return ExitCode::from(code);
    }
    let args = match parse() {
        Ok(args) => args,
        Err(refusal) => return refuse_arguments(&refusal),
    };
    match dispatch(&args) {
        Ok(output) => output.print(args.format()),
        // Exit code 2: distinguishes an examination that failed from one with findings.
        Err(error) if matches!(args.command, JvsCommand::Doctor(_)) => {
            output::print_error(&error, args.format(), 2)
        }
        Err(error) => output::print_error(&error, args.format(), error.class().exit_code()),
    }
}

/// Parses the command line, with environment variables as defaults.
fn parse() -> Result<JvsArgs, clap::Error> {
    let mut command = without_empty_env(JvsArgs::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = matches.and_then(|mut matches| {
        JvsArgs::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    });
    parsed.map_err(|refusal| {
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        if refusal.use_stderr() { with_tips(refusal, JvsArgs::command(), &words) } else { refusal }
    })
}

/// An empty variable counts as unset: `JVS_SESSION_ID= jvs …` is how a shell user unsets one for a command.
fn without_empty_env(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        if value.is_some_and(|value| value.is_empty()) { arg.env(Resettable::Reset) } else { arg }
    });
    command.mut_subcommands(without_empty_env)
}

fn dispatch(args: &JvsArgs) -> Result<CommandOutput, Error> {
    match &args.command {
        JvsCommand::Init(init) => return commands::init(init),
        JvsCommand::Completions(completions) => {
            let script = completions.script(JvsArgs::command());
            if args.format().is_parsed() {
                let script = String::from_utf8_lossy(&script);
                return Ok(CommandOutput::new(serde_json::json!({ "script": script }), ""));
            }
            let written = std::io::stdout().write_all(&script);
            written.map_err(|cause| Error::io("write", "standard output".as_ref(), &cause))?;
            return Ok(CommandOutput::new((), ""));
        }
        JvsCommand::Man(man) => {
            man.write(JvsArgs::command()).map_err(|what| Error::new(ErrorClass::Io, what))?;
            return Ok(CommandOutput::new((), ""));
        }
        _ => {}
    }
    let context = RepoContext::open(args)?;
    match &args.command {
        JvsCommand::Init(_) | JvsCommand::Completions(_) | JvsCommand::Man(_) => {
            unreachable!("handled above")
        }
        JvsCommand::Worktree { command } => commands::worktree(&context, command),
        JvsCommand::Lock { command } => commands::lock(&context, command),
        JvsCommand::Run(run) => run::run(&context, run),
        JvsCommand::Snapshot(snapshot) => match &snapshot.command {
            Some(SnapshotCommand::Rm(args)) => retention::remove(&context, args),
            None => commands::snapshot(&context, snapshot),
        },
        JvsCommand::Fork(fork) => copies::fork(&context, fork),
        JvsCommand::Clone(clone) => copies::clone(&context, clone),
        JvsCommand::Gc(gc) => retention::gc(&context, gc),
        JvsCommand::History(history) => commands::history(&context, history),
        JvsCommand::Diff(diff) => compare::diff(&context, diff),
        JvsCommand::Status(status) => compare::status(&context, status),
        JvsCommand::Show(show) => compare::show(&context, show),
        JvsCommand::Tag { command } => names::tag(&context, command),
        JvsCommand::Pin { command } => names::pin(&context, command),
        JvsCommand::Info { target, snapshot } => commands::info(&context, target, snapshot),
        JvsCommand::Restore(restore) => restoring::restore(&context, restore),
        JvsCommand::Verify { target, snapshot, all } => commands::verify(&context, target, snapshot, *all),
        JvsCommand::Doctor(doctor) => commands::doctor(&context, doctor),
    }
}

fn refuse_arguments(refusal: &clap::Error) -> ExitCode {
    // An invalid command line may still request a format.
    let output = requested(&std::env::args_os().collect::<Vec<_>>(), None);
    if !refusal.use_stderr() || !output.is_parsed() {
        refusal.exit();
    }
    let text = refusal.render().to_string();
    let detail = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    output::print_error(&Error::invalid(detail.trim_start_matches("error: ")), output, 2)
}
