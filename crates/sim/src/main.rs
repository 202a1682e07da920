//! Tries the kernel from seeds, and replays transcripts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Runs the lease kernel in a world where everything follows from a seed.
#[derive(Parser)]
#[command(after_help = "Examples:
  sim                            try 200 seeds, from 1 on
  sim --seed 42                  try seed 42 alone, as a failure told you to
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
    /// How many steps to try from each seed
    #[arg(long, default_value_t = 500)]
    steps: u64,
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
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        Some(Job::Transcripts { files, update }) => replay_all(files, *update),
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
    let (mut steps, mut applied, mut rejected) = (0, 0, 0);
    for seed in first..first.saturating_add(count) {
        let tally = sim::trial::run(seed, args.steps)?;
        steps += tally.steps;
        applied += tally.applied;
        rejected += tally.rejected;
    }
    Ok(format!(
        "{count} seeds, {steps} steps: {applied} applied, {rejected} refused; kernel and model agree on all"
    ))
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
