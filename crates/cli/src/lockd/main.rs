//! `lockd`: the lease authority's own program: it serves, asks, runs commands under leases, makes
//! identities, and looks at stores.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage; a client's others are in [`client`](mod@client). Results go to
//! standard output, everything else to standard error.

mod args;
mod auth;
mod client;
mod dump;
mod line;
mod logs;
mod run;
mod serve;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory};
use cli::child::become_command;

use crate::args::{Args, Command, Show, StoreCommand};

fn main() -> ExitCode {
    if let Some(code) = become_command("lockd") {
        return ExitCode::from(code);
    }
    let (args, matches) = Args::get();
    let given = || matches.subcommand().expect("a command is required").1;
    let failed = |what| (1, what);
    let done = match &args.command {
        Command::Auth { command } => auth::run(command).map_err(failed).map(|()| 0),
        Command::Client(args) => client::run(args).map(|()| 0),
        Command::Config(show) => config(given(), show).map(|()| 0),
        Command::Completions(completions) => {
            let script = completions.script(Args::command());
            let written = std::io::stdout().write_all(&script);
            written.map_err(|error| (1, format!("writing completions: {error}"))).map(|()| 0)
        }
        Command::Man(man) => man.write(Args::command()).map_err(failed).map(|()| 0),
        Command::Run(args) => run::run(args),
        Command::Serve(_) => serve::run(given()).map(|()| 0),
        Command::Store { command: StoreCommand::Dump(dump) } => dump::dump(dump).map_err(failed).map(|()| 0),
    };
    let code = done.unwrap_or_else(|(code, what)| {
        say(&what);
        code
    });
    ExitCode::from(code)
}

fn config(matches: &ArgMatches, show: &Show) -> Result<(), (u8, String)> {
    let text = serve::show(matches, show.output)?;
    // A reader that has gone away has had enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// One line for people.
fn say(what: &str) {
    // If nobody listens, the exit code has to do.
    drop(writeln!(std::io::stderr(), "lockd: {what}"));
}

/// Where everything is kept that is not put elsewhere; `None` if there is no home.
fn data_folder() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    base.or_else(home).map(|base| base.join("lockd"))
}
