//! The command `sim`: runs seeded simulations of the kernel and of whole servers, and replays transcripts.

#[cfg(feature = "planted")]
mod planted;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// Deterministic simulation of the lease kernel and of whole servers with their clients: every run follows from its seed.
#[derive(Parser)]
#[command(after_help = "Examples:
  sim                            run 200 seeds, from seed 1
  sim --seed 42                  run seed 42 alone, to reproduce a failure
  sim --seed 42 --hours 1        simulate servers for one hour
  sim --seed 42 --trace          print every response
  sim --seed 1000 --seeds 5000   run 5,000 seeds, from seed 1,000
  sim transcripts                replay the transcripts of the documentation
  sim transcripts --update       replace their output by what the kernel does now")]
struct Args {
    /// First seed; without --seeds, the only one
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds to run [default: 1 with --seed, 200 without]
    #[arg(long)]
    seeds: Option<u64>,
    /// Number of random kernel commands per seed
    #[arg(long, default_value_t = 500)]
    steps: u64,
    /// Simulated hours of server time per seed
    #[arg(long, default_value_t = 0.02)]
    hours: f64,
    /// Number of agent rounds per seed, each a faulty and a fault-free period
    #[arg(long, default_value_t = 2)]
    rounds: u64,
    /// Print every response of simulated servers
    #[arg(long)]
    trace: bool,
    #[command(subcommand)]
    command: Option<Subcommand>,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    /// Replay transcripts, and show where the kernel differs
    Transcripts {
        /// Files to replay [default: all in crates/kernel/tests/transcripts]
        files: Vec<PathBuf>,
        /// Replace the output in the files by what the kernel does now
        #[arg(long)]
        update: bool,
    },
    /// Switch on planted faults, one at a time, and show which test catches each
    #[cfg(feature = "planted")]
    Planted {
        /// Names of faults [default: all]
        names: Vec<String>,
        /// Write the table of faults and the tests that caught them to this file
        #[arg(long)]
        table: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Subcommand::Transcripts { files, update }) => replay_all(files, *update),
        #[cfg(feature = "planted")]
        Some(Subcommand::Planted { names, table }) => planted::run(names, table.as_deref()),
        None => try_seeds(&args),
    };
    match result {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn try_seeds(args: &Args) -> Result<String, String> {
    let first = args.seed.unwrap_or(1);
    let count = args.seeds.unwrap_or(if args.seed.is_some() { 1 } else { 200 });
    let (mut trials, mut servers) = (sim::trial::TrialStats::default(), sim::servers::ServerStats::default());
    let mut agents = sim::agents::AgentStats::default();
    for seed in first..first.saturating_add(count) {
        trials.add(&sim::trial::run(seed, args.steps)?);
        servers.add(&simulate_servers(args, seed)?);
        agents.add(&simulate_agents(args, seed)?);
    }
    let unreached = engine::internals::reach::unreached();
    let reach = if unreached.is_empty() { "none".into() } else { unreached.join(", ") };
    Ok(format!(
        "{count} seeds\n{trials}\n{servers}\n{agents}\nfunctions of the sequencer never reached: {reach}"
    ))
}

fn simulate_agents(args: &Args, seed: u64) -> Result<sim::agents::AgentStats, String> {
    let mut trace = |line: String| {
        if args.trace {
            println!("{line}");
        }
    };
    sim::agents::run(seed, args.rounds, &mut trace).map_err(|what| {
        format!(
            "{what}\nto reproduce: cargo run --release -p lockd-sim -- --seed {seed} --rounds {}",
            args.rounds
        )
    })
}

fn simulate_servers(args: &Args, seed: u64) -> Result<sim::servers::ServerStats, String> {
    let ms = Duration::try_from_secs_f64(args.hours * 3600.0).map_err(|error| format!("--hours: {error}"))?;
    let ms = u64::try_from(ms.as_millis()).map_err(|error| format!("--hours: {error}"))?;
    let mut trace = |line: String| {
        if args.trace {
            println!("{line}");
        }
    };
    sim::servers::run(seed, ms, &mut trace).map_err(|what| {
        format!(
            "{what}\nto reproduce: cargo run --release -p lockd-sim -- --seed {seed} --hours {}",
            args.hours
        )
    })
}

fn replay_all(files: &[PathBuf], update: bool) -> Result<String, String> {
    let files = if files.is_empty() { all_transcripts()? } else { files.to_vec() };
    for file in &files {
        let shown = file.file_stem().unwrap_or_default().to_string_lossy();
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let again = sim::transcript::rerun(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        if update && again != text {
            std::fs::write(file, &again).map_err(|error| format!("{}: {error}", file.display()))?;
            println!("written   {shown}");
        } else if again == text {
            println!("matches   {shown}");
        } else {
            return Err(format!(
                "{}: the kernel differs from the transcript\n{}",
                file.display(),
                difference(&text, &again)
            ));
        }
    }
    Ok(format!("{} transcripts replayed", files.len()))
}

fn all_transcripts() -> Result<Vec<PathBuf>, String> {
    let dir = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernel/tests/transcripts"));
    let listed = std::fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut files: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

/// The first line that differs.
fn difference(expected: &str, actual: &str) -> String {
    let mut pairs = expected.lines().zip(actual.lines()).enumerate();
    match pairs.find(|(_, (expected, actual))| expected != actual) {
        Some((n, (expected, actual))) => format!("line {}: expected {expected:?}, got {actual:?}", n + 1),
        None => "the number of lines differs".into(),
    }
}
