//! The run: start a worker, kill it, check the store, and repeat on the same store.
//!
//! The worker is killed a random time after a random number of responses. Sometimes the next workers are killed during
//! recovery too, which then has to be repeated.

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use sim::rng::Rng;

use crate::check::check;
use crate::expected::{ExpectedState, RunStats};
use crate::message::WorkerMessage;
use crate::power::{DiskPower, Power, ProcessPower};

/// The arguments of a run.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Number of kills
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// Seed of the requests and of the times of the kills
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the store; kept after a failure [default: a new one below the system's temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 6)]
    clients: u32,
    /// Maximum number of responses between two kills
    #[arg(long, default_value_t = 400)]
    answers: u64,
    /// Put the store on a disk that loses unflushed writes: needs root, and a build with the feature forgetful
    #[arg(long)]
    forgetful: bool,
    /// Mount options of that disk
    #[arg(long, default_value = "noatime")]
    mount_options: String,
}

/// Maximum delay of a kill after the last response, in microseconds.
const KILL_DELAY_MICROS: u64 = 4000;
/// Maximum time until a worker without clients is killed, in microseconds.
const RECOVERY_MICROS: u64 = 40_000;

struct Runner {
    power: Box<dyn Power>,
    rng: Rng,
    expected: ExpectedState,
    clients: u32,
    /// Number of workers started.
    workers: u64,
}

/// Returns a summary, or the first loss.
pub(crate) fn run(run: &RunArgs) -> Result<String, String> {
    let fresh = std::env::temp_dir().join(format!("powercut-{}", std::process::id()));
    let dir = run.dir.clone().unwrap_or(fresh);
    if dir.exists() && std::fs::read_dir(&dir).is_ok_and(|mut found| found.next().is_some()) {
        return Err(format!("directory is not empty: {}", dir.display()));
    }
    let stats = in_dir(run, &dir).map_err(|(kills, why)| {
        let again = format!(
            "powercut --seed {} --kills {} --clients {} --answers {}",
            run.seed, run.kills, run.clients, run.answers
        );
        let forgetful = if run.forgetful { " --forgetful" } else { "" };
        format!(
            "after {kills} kills, seed {}: {why}\nthe store is in {}\nto reproduce: {again}{forgetful}",
            run.seed,
            dir.display()
        )
    })?;
    std::fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(summary(run.kills, &stats))
}

fn in_dir(run: &RunArgs, dir: &Path) -> Result<RunStats, (u64, String)> {
    let power: Box<dyn Power> = if run.forgetful {
        Box::new(DiskPower::make(dir, &run.mount_options).map_err(|why| (0, why))?)
    } else {
        Box::new(ProcessPower(dir.to_path_buf()))
    };
    let (rng, expected) = (Rng::new(run.seed), ExpectedState::default());
    let mut runner = Runner { power, rng, expected, clients: run.clients, workers: 0 };
    for kill in 0..run.kills {
        runner.kill_once(run.answers).map_err(|why| (kill + 1, why))?;
        show_progress(kill + 1, run.kills, &runner.expected.stats);
    }
    Ok(runner.expected.stats)
}

impl Runner {
    fn kill_once(&mut self, responses_max: u64) -> Result<(), String> {
        let responses = self.rng.below(responses_max.max(1));
        let mut worker = self.start(self.clients)?;
        let result = self.listen(&mut worker, responses);
        if result.is_err() {
            // The worker must not outlive this run.
            let _ = worker.kill().and_then(|()| worker.wait());
        }
        result?;
        while self.rng.one_in(4) {
            let mut recovering = self.start(0)?;
            let micros = self.rng.below(RECOVERY_MICROS);
            pause(micros);
            self.end(&mut recovering)?;
        }
        let seed = self.rng.number();
        self.power.on(seed)?;
        check(self.power.store(), &mut self.expected, self.clients, self.workers)
    }

    fn start(&mut self, clients: u32) -> Result<Child, String> {
        let seed = self.rng.number();
        self.power.on(seed)?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("worker").arg("--dir").arg(self.power.store());
        command.args(["--clients", &clients.to_string(), "--seed", &seed.to_string()]);
        self.workers += 1;
        if clients == 0 {
            // It is killed while it opens the store; its error messages are of no use.
            command.stderr(Stdio::null());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())
    }

    /// Reads the worker's messages until it has sent `responses` responses, kills it, and reads the rest.
    fn listen(&mut self, worker: &mut Child, responses: u64) -> Result<(), String> {
        let mut messages = BufReader::new(worker.stdout.take().expect("stdout is piped"));
        let last = self.expected.stats.responses + responses;
        while self.expected.stats.responses < last {
            let Some(message) = next(&mut messages)? else { return Err(ended_early(worker)) };
            self.expected.record(message, false)?;
        }
        let micros = self.rng.below(KILL_DELAY_MICROS);
        pause(micros);
        self.end(worker)?;
        while let Some(message) = next(&mut messages)? {
            self.expected.record(message, true)?;
        }
        Ok(())
    }

    fn end(&mut self, worker: &mut Child) -> Result<(), String> {
        self.power.cut(worker)?;
        worker.wait().map(drop).map_err(|error| error.to_string())
    }
}

fn ended_early(worker: &mut Child) -> String {
    match worker.wait() {
        Ok(status) => format!("a worker ended before it was killed: {status}"),
        Err(error) => error.to_string(),
    }
}

fn next(messages: &mut impl BufRead) -> Result<Option<WorkerMessage>, String> {
    let mut text = String::new();
    messages.read_line(&mut text).map_err(|error| error.to_string())?;
    WorkerMessage::parse(&text)
}

#[expect(clippy::disallowed_methods, reason = "kills must happen at any time, not only between two calls")]
fn pause(micros: u64) {
    std::thread::sleep(Duration::from_micros(micros));
}

fn show_progress(kills: u64, of: u64, stats: &RunStats) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{kills} of {of} kills, {} responses checked ", stats.responses);
        if kills == of {
            eprintln!();
        }
    }
}

fn summary(kills: u64, stats: &RunStats) -> String {
    let RunStats { responses, snapshots, moved, swept, took_effect, had_no_effect, torn, documents_read } =
        stats;
    format!(
        "{kills} kills, {responses} acknowledged responses, none lost; {documents_read} documents read back; pending calls: \
         {took_effect} had taken effect, {had_no_effect} had not; {snapshots} snapshots, {moved} documents relocated, {swept} \
         blobs garbage-collected, {torn} torn tails"
    )
}
