//! `lockc`: leases and documents by hand. What it holds is kept between calls, in a context.
//!
//! What is asked of servers, and how it is printed, is `lockd client`'s ([`cli::remote`]); exit codes are too. The modules
//! in reading order: `args` is the command line; `entry` is a lease that is held, `context` the file of them; `leases`,
//! `state` and `edit` are the commands; `format` is JSON or YAML.

mod args;
mod entry;
mod context;
mod leases;
mod state;
mod edit;
mod format;

use std::io::Write;
use std::process::ExitCode;

use cli::remote::{Done, failed, spoil};
use cli::stderr;

use crate::args::{Args, Command, StateCommand};
use crate::context::Store;

fn main() -> ExitCode {
    let args = Args::get();
    let spoils = args.command.fills_a_pipe();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, what)) => {
            if spoils {
                spoil("get", &what);
            }
            say(&what);
            ExitCode::from(code)
        }
    }
}

fn run(args: Args) -> Done {
    match &args.command {
        Command::Completions(completions) => {
            let script = completions.script(Args::described());
            return std::io::stdout()
                .write_all(&script)
                .map_err(|error| failed("writing completions", &error));
        }
        Command::Man(man) => return man.write(Args::described()).map_err(|what| (1, what)),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("starting the runtime", &error))?;
    let store = Store::open(&args.context)?;
    let done = runtime.block_on(command(&store, args));
    // A thread that still waits for a person to answer is not waited for.
    runtime.shutdown_background();
    done
}

async fn command(store: &Store, args: Args) -> Done {
    let output = args.output;
    match args.command {
        Command::Acquire(acquire) => leases::acquire(store, output, *acquire).await,
        Command::Keepalive { key, ttl } => leases::keepalive(store, output, key.as_deref(), ttl).await,
        Command::Release { key } => leases::release(store, output, key.as_deref()).await,
        Command::State { command: StateCommand::Get(get) } => state::get(store, output, &get).await,
        Command::State { command: StateCommand::Update(update) } => {
            state::update(store, output, &update).await
        }
        Command::Edit(edit) => edit::edit(store, output, &edit).await,
        Command::List => leases::list(store, output),
        Command::Use { key } => leases::choose(store, output, &key),
        Command::Completions(_) | Command::Man(_) => unreachable!("they need no context"),
    }
}

/// One line for people.
fn say(what: &str) {
    stderr::say("lockc", what);
}
