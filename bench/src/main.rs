//! `lockd-bench`: one program, one set of workloads, an adapter for each system.
//!
//! Read `system.rs` first: the trait that adapters implement and workloads drive. Then `workloads/`, `runner.rs`, and
//! the reports that are made from `results.rs`.

mod args;
mod flushes;
mod histogram;
mod report;
mod results;
mod runner;
mod server;
mod system;
mod systems;
mod usage;
mod wire;
mod workloads;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use args::{Arguments, Command, ReportArguments, RunArguments};
use results::{Run, Status};
use runner::Runner;
use system::{Error, Result};

/// The empty handler uses lockd's allocator too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match start(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let text = if let Error::Failed(text) = error { text } else { format!("{error:?}") };
            eprintln!("lockd-bench: {text}");
            ExitCode::FAILURE
        }
    }
}

fn start(command: Command) -> Result<ExitCode> {
    match command {
        Command::List => list(),
        Command::Report(arguments) => make_reports(&arguments)?,
        Command::ServeEmpty { port } => runtime()?.block_on(systems::empty::serve(port))?,
        Command::ServeFrames { port, folder } => systems::frames::serve(port, &folder)?,
        Command::Run(arguments) => {
            raise_file_limit();
            server::adopt_orphans();
            // On this thread: servers end when the thread that started them ends.
            return runtime()?.block_on(measure(&arguments));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Runs until done or interrupted; in both cases all servers have ended when this returns.
async fn measure(arguments: &RunArguments) -> Result<ExitCode> {
    let runner = Runner::new(arguments)?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (load_before, began) = (runner::load_average(), Instant::now());
    let mut run = tokio::select! {
        run = runner.run() => run,
        _ = interrupt.recv() => return interrupted(),
        _ = terminate.recv() => return interrupted(),
    };
    run.command = std::iter::once("lockd-bench".to_string())
        .chain(std::env::args().skip(1))
        .collect::<Vec<_>>()
        .join(" ");
    run.started_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    run.seconds = runner::seconds_since(began);
    run.started_unix -= run.seconds as u64;
    run.machine = runner::machine();
    run.load_before = load_before;
    print!("{}", report::table::render(&run));
    write_results(&run, &arguments.output)?;
    let failed = run.outcomes.iter().filter(|outcome| matches!(outcome.status, Status::Failed(_))).count();
    if failed > 0 {
        eprintln!("lockd-bench: errors in {failed} outcomes: their figures are not valid");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn interrupted() -> Result<ExitCode> {
    Err(Error::failed("interrupted: all servers were ended, nothing was written"))
}

fn write_results(run: &Run, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let json = serde_json::to_string_pretty(run).map_err(Error::failed)?;
    std::fs::write(folder.join("results.json"), json)?;
    std::fs::write(folder.join("results.html"), report::html::render(run))?;
    println!("\nwritten: {0}/results.json, {0}/results.html", folder.display());
    Ok(())
}

fn make_reports(arguments: &ReportArguments) -> Result<()> {
    let text = std::fs::read_to_string(&arguments.json)
        .map_err(|error| Error::Failed(format!("{}: {error}", arguments.json.display())))?;
    let run: Run = serde_json::from_str(&text).map_err(Error::failed)?;
    if let Some(file) = &arguments.html {
        std::fs::write(file, report::html::render(&run))?;
    }
    if !arguments.markdown {
        print!("{}", report::table::render(&run));
        return Ok(());
    }
    let section = report::markdown::render(&run);
    match &arguments.page {
        None => print!("{section}"),
        Some(page) => {
            let whole = report::markdown::insert(&std::fs::read_to_string(page)?, &section);
            std::fs::write(page, whole)?;
        }
    }
    Ok(())
}

fn list() {
    println!("systems:");
    for system in systems::all() {
        println!("  {:<21} {:<29} {}", system.name(), system.durability().label(), system.about());
    }
    println!("workloads:");
    let (all, quick) = (workloads::plan(false), workloads::plan(true));
    for case in &all {
        let also = quick.iter().any(|other| other.workload == case.workload && other.size == case.size);
        println!("  {:<18} {:<22} {}", case.workload, case.parameter, if also { "quick" } else { "" });
    }
}

/// Thousands of connections need as many descriptors, here and in the servers, which inherit the limit.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
