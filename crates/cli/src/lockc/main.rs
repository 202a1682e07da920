//! `lockc`: interactive use of leases and documents. Held leases are stored between calls, in a context file.
//!
//! Requests, output and exit codes are those of `lockd client` ([`cli::remote`]). The modules in reading order: `args` is
//! the command line; `entry` is one held lease, `context` the file of them; `leases`, `state` and `edit` are the commands;
//! `format` converts between JSON and YAML; `console` is the proxy for the web console, `top` a live view in the terminal.

mod args;
mod entry;
mod context;
mod leases;
mod state;
mod edit;
mod format;
mod console;
mod top;

use std::io::Write;
use std::process::ExitCode;

use cli::output::{FailureStream, Output, report, requested};
use cli::remote::{CommandResult, Failure, failed, poison_output, stdout_is_stderr};
use cli::stderr;

use crate::args::{LockcArgs, LockcCommand, StateCommand};
use crate::context::ContextStore;

fn main() -> ExitCode {
    let args = match LockcArgs::get() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let poisons = args.command.pipes_a_document();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(mut failure) => {
            if poisons {
                poison_output("lockc state get", &failure.message);
            }
            failure.is_shown = poisons && stdout_is_stderr();
            let (output, stream) = requested_output();
            report("lockc", &failure, output, stream);
            ExitCode::from(failure.code)
        }
    }
}

/// The format of failures, and where they go: the standard output of `state get` is a document.
pub(crate) fn requested_output() -> (Output, FailureStream) {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let has_document = words.iter().any(|word| word == "state") && words.iter().any(|word| word == "get");
    let stream = if has_document { FailureStream::Stderr } else { FailureStream::Stdout };
    (requested(&words, Some("LOCKD_CLIENT_OUTPUT")), stream)
}

fn run(args: LockcArgs) -> CommandResult {
    match &args.command {
        LockcCommand::Completions(completions) => {
            let script = completions.script(LockcArgs::described());
            return std::io::stdout()
                .write_all(&script)
                .map_err(|error| failed("writing completions", &error));
        }
        LockcCommand::Man(man) => {
            return man.write(LockcArgs::described()).map_err(|what| Failure::new(1, what));
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let store = ContextStore::open(&args.context)?;
    let done = runtime.block_on(command(&store, args));
    // Does not wait for a thread that is blocked on a prompt.
    runtime.shutdown_background();
    done
}

async fn command(store: &ContextStore, args: LockcArgs) -> CommandResult {
    let output = args.output;
    match args.command {
        LockcCommand::Acquire(acquire) => leases::acquire(store, output, *acquire).await,
        LockcCommand::Keepalive { key, ttl } => leases::keepalive(store, output, key.as_deref(), ttl).await,
        LockcCommand::Release { key } => leases::release(store, output, key.as_deref()).await,
        LockcCommand::State { command: StateCommand::Get(get) } => state::get(store, output, &get).await,
        LockcCommand::State { command: StateCommand::Update(update) } => {
            state::update(store, output, &update).await
        }
        LockcCommand::Edit(edit) => edit::edit(store, output, &edit).await,
        LockcCommand::Console(args) => console::console(output, &args).await,
        LockcCommand::Top(args) => top::top(output, &args).await,
        LockcCommand::List => leases::list(store, output),
        LockcCommand::Use { key } => leases::choose(store, output, &key),
        LockcCommand::Completions(_) | LockcCommand::Man(_) => unreachable!("handled above"),
    }
}

/// Prints one line to standard error.
fn notice(what: &str) {
    stderr::notice("lockc", what);
}
