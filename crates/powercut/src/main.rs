//! Kills a working engine hundreds of times over one store, and checks after each time that nothing is lost that
//! it had acknowledged.
//!
//! **What is absent.** Anything that lockd is made of: nothing depends on this crate. It ends only processes that it
//! started, by their handles.
//!
//! The modules in reading order: [`mod@line`] is what a worker tells before and after each call; [`worker`] is the
//! process that is killed; [`ledger`] is what must be in the store, as far as the lines tell; [`check`] recovers
//! the store and compares; [`power`] is what can be switched off: a process, or the disk beneath it too; [`lives`]
//! is the run. `forgetful`, where it is built in, is a disk that drops what was not flushed.

mod line;
mod worker;
mod ledger;
mod check;
mod power;
mod lives;
#[cfg(feature = "forgetful")]
mod forgetful;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ends a working engine without warning, again and again, and checks what it had acknowledged
#[derive(Parser)]
#[command(after_help = "Examples:
  powercut                              200 kills in a directory of their own
  powercut --kills 1000 --seed 7        more of them, and others
  powercut --forgetful --kills 100      as root, built with --features forgetful: the disk loses what was not
                                        flushed, as in a real power cut

The seed decides what is asked and when it ends; the machine decides how far each call has come by then.")]
struct Args {
    #[command(flatten)]
    run: lives::Run,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What the run starts as processes of their own
#[derive(Subcommand)]
enum Part {
    /// The process that is killed
    #[command(hide = true)]
    Worker(worker::Job),
    /// The disk that forgets
    #[cfg(feature = "forgetful")]
    #[command(hide = true)]
    Forgetful(forgetful::Disk),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.part {
        Some(Part::Worker(job)) => worker::work(&job),
        #[cfg(feature = "forgetful")]
        Some(Part::Forgetful(disk)) => forgetful::serve(&disk),
        None => lives::run(&args.run).map(|said| println!("{said}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

/// Where the store is, below the directory that is given.
fn store_in(dir: &std::path::Path) -> (PathBuf, PathBuf) {
    (dir.join("log"), dir.join("blob"))
}
