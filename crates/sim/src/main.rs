//! Tries the kernel and whole servers from seeds, and replays transcripts.

#[cfg(feature = "planted")]
mod planted;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// Runs the lease kernel, and whole servers with their clients, in a world where everything follows from a seed.
#[derive(Parser)]
#[command(after_help = "Examples:
  sim                            try 200 seeds, from 1 on
  sim --seed 42                  try seed 42 alone, as a failure told you to
  sim --seed 42 --hours 1        let its servers live for an hour of their time
  sim --seed 42 --trace          print everything that anybody is told
  sim --seed 1000 --seeds 5000   try 5,000 seeds from 1,000 on
  sim transcripts                replay what the documentation shows
  sim transcripts --update       write down what the kernel does now")]
struct Args {
    /// The first seed; alone, the only one
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds to try [default: 1 with --seed, 200 without]
    #[arg(long)]
    seeds: Option<u64>,
    /// How many commands to try on the kernel from each seed
    #[arg(long, default_value_t = 500)]
    steps: u64,
    /// How long servers live from each seed, in hours of their own time
    #[arg(long, default_value_t = 0.02)]
    hours: f64,
    /// How many rounds of wild and good times agents live through from each seed
    #[arg(long, default_value_t = 2)]
    rounds: u64,
    /// Print everything that anybody is told
    #[arg(long)]
    trace: bool,
    #[command(subcommand)]
    command: Option<Job>,
}

#[derive(clap::Subcommand)]
enum Job {
    /// Replay transcripts, and show where the kernel does otherwise
    Transcripts {
        /// Files to replay [default: all in crates/kernel/tests/transcripts]
        files: Vec<PathBuf>,
        /// Write what comes of each line into the files
        #[arg(long)]
        update: bool,
    },
    /// Switch on planted faults, one at a time, and show what catches each
    #[cfg(feature = "planted")]
    Planted {
        /// Which [default: all]
        names: Vec<String>,
        /// Write a table of what caught them into this file
        #[arg(long)]
        table: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        Some(Job::Transcripts { files, update }) => replay_all(files, *update),
        #[cfg(feature = "planted")]
        Some(Job::Planted { names, table }) => planted::run(names, table.as_deref()),
        None => try_seeds(&args),
    };
    match done {
        Ok(said) => {
            println!("{said}");
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
    let (mut tried, mut lived) = (sim::trial::Tally::default(), sim::life::Tally::default());
    let mut came = sim::agents::Tally::default();
    for seed in first..first.saturating_add(count) {
        tried.add(&sim::trial::run(seed, args.steps)?);
        lived.add(&live(args, seed)?);
        came.add(&come(args, seed)?);
    }
    Ok(format!("{count} seeds\n{tried}\n{lived}\n{came}"))
}

fn come(args: &Args, seed: u64) -> Result<sim::agents::Tally, String> {
    let mut trace = |line: String| {
        if args.trace {
            println!("{line}");
        }
    };
    sim::agents::run(seed, args.rounds, &mut trace).map_err(|what| {
        format!(
            "{what}\nto see it again: cargo run --release -p sim -- --seed {seed} --rounds {}",
            args.rounds
        )
    })
}

fn live(args: &Args, seed: u64) -> Result<sim::life::Tally, String> {
    let ms = Duration::try_from_secs_f64(args.hours * 3600.0).map_err(|error| format!("--hours: {error}"))?;
    let ms = u64::try_from(ms.as_millis()).map_err(|error| format!("--hours: {error}"))?;
    let mut trace = |line: String| {
        if args.trace {
            println!("{line}");
        }
    };
    sim::life::run(seed, ms, &mut trace).map_err(|what| {
        format!("{what}\nto see it again: cargo run --release -p sim -- --seed {seed} --hours {}", args.hours)
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
            println!("as told   {shown}");
        } else {
            return Err(format!(
                "{}: the kernel does otherwise\n{}",
                file.display(),
                difference(&text, &again)
            ));
        }
    }
    Ok(format!("{} transcripts replayed", files.len()))
}

fn all_transcripts() -> Result<Vec<PathBuf>, String> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernel/tests/transcripts"));
    let listed = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

/// The first line that differs.
fn difference(told: &str, done: &str) -> String {
    let mut pairs = told.lines().zip(done.lines()).enumerate();
    match pairs.find(|(_, (told, done))| told != done) {
        Some((n, (told, done))) => format!("line {}: told {told:?}, did {done:?}", n + 1),
        None => "one is longer than the other".into(),
    }
}
