//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// lockd beside other systems, on one machine, at equal durability.
#[derive(Parser)]
#[command(version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Measure; print a table, and write JSON and a page.
    Run(RunArguments),
    /// Make reports from the JSON of a run.
    Report(ReportArguments),
    /// List systems and workloads.
    List,
    /// The empty HTTP handler, which the bench starts by itself.
    #[command(hide = true, name = crate::systems::empty::SUBCOMMAND)]
    ServeEmpty {
        /// Port on loopback.
        port: u16,
    },
    /// The ceiling of protocols, which the bench starts by itself.
    #[command(hide = true, name = crate::systems::frames::SUBCOMMAND)]
    ServeFrames {
        /// Port on loopback.
        port: u16,
        /// Folder of the log.
        folder: PathBuf,
    },
}

/// What to measure.
#[derive(Args)]
pub struct RunArguments {
    /// Smaller cases and shorter rounds: at most ten minutes instead of 90.
    #[arg(long)]
    pub quick: bool,
    /// Systems to measure; all by default.
    #[arg(long = "system", value_delimiter = ',', value_name = "NAME")]
    pub systems: Vec<String>,
    /// Workloads to run; all by default.
    #[arg(long = "workload", value_delimiter = ',', value_name = "NAME")]
    pub workloads: Vec<String>,
    /// Run only the cases with these sizes, as 64 clients.
    #[arg(long = "size", value_delimiter = ',', value_name = "N")]
    pub sizes: Vec<usize>,
    /// Rounds of each case, interleaved over systems.
    #[arg(long)]
    pub rounds: Option<usize>,
    /// Measured seconds of a round.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Open loop: operations per second of all clients of the workloads acquire-release, update-4k, bundles and documents.
    #[arg(long)]
    pub rate: Option<f64>,
    /// The program lockd, built with `cargo build --profile dist -p lockd-cli --bin lockd`.
    #[arg(long, env = "LOCKD_BENCH_LOCKD", default_value = "target/dist/lockd")]
    pub lockd: PathBuf,
    /// Folder for the servers' data, on the disk to measure.
    #[arg(long, default_value = "/var/tmp")]
    pub data: PathBuf,
    /// Folder for results.json and results.html.
    #[arg(long, default_value = "bench/results")]
    pub output: PathBuf,
    /// Do not count flushes with strace.
    #[arg(long)]
    pub no_flushes: bool,
}

/// Which reports to make.
#[derive(Args)]
pub struct ReportArguments {
    /// The JSON of a run.
    #[arg(long, default_value = "bench/results/results.json")]
    pub json: PathBuf,
    /// Print the generated section as Markdown, or replace it in `--page`.
    #[arg(long)]
    pub markdown: bool,
    /// The page whose generated section is replaced.
    #[arg(long, requires = "markdown")]
    pub page: Option<PathBuf>,
    /// Write the page with plots to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
