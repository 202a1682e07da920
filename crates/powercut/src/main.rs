//! Kills a running engine hundreds of times on one store, and checks after each kill that no acknowledged write is
//! lost.
//!
//! **What is absent.** Product code: no crate depends on this one. It kills only processes that it started, by their
//! handles.
//!
//! The modules in reading order: [`message`] is the worker's report before and after each call; [`worker`] is the
//! process that is killed; [`expected`] is the expected contents of the store, from the messages; [`check`] recovers the
//! store and compares; [`power`] is the unit of failure: the process alone, or the disk beneath it too; [`run`] is the
//! sequence of kills. `forgetful`, if it is built in, is a disk that loses unflushed writes.

mod message;
mod worker;
mod expected;
mod check;
mod power;
mod run;
#[cfg(feature = "forgetful")]
mod forgetful;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Kills a running engine repeatedly, and checks that no acknowledged write is lost
#[derive(Parser)]
#[command(after_help = "Examples:
  powercut                              200 kills, on a store in a temporary directory
  powercut --kills 1000 --seed 7        1,000 kills with another seed
  powercut --forgetful --kills 100      as root, built with --features forgetful: the disk loses unflushed
                                        writes, as in a real power cut

The seed decides the requests and the time of each kill; the progress of each call by then depends on the machine.")]
struct Args {
    #[command(flatten)]
    run: run::RunArgs,
    #[command(subcommand)]
    process: Option<Subprocess>,
}

/// Processes that the run starts
#[derive(Subcommand)]
enum Subprocess {
    /// The process that is killed
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// The disk that loses unflushed writes
    #[cfg(feature = "forgetful")]
    #[command(hide = true)]
    Forgetful(forgetful::DiskArgs),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.process {
        Some(Subprocess::Worker(args)) => worker::work(&args),
        #[cfg(feature = "forgetful")]
        Some(Subprocess::Forgetful(args)) => forgetful::serve(&args),
        None => run::run(&args.run).map(|summary| println!("{summary}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

/// The directories of the log and of the blobs of a store.
fn store_in(dir: &std::path::Path) -> (PathBuf, PathBuf) {
    (dir.join("log"), dir.join("blob"))
}
