//! The run: a life, its end, a look at what is left, and so on over the same store.
//!
//! A life ends after a number of answers that the seed says, and a moment more. Every few times the next one ends
//! too before it has got anywhere: recovery is cut off, and has to be done again.

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::Args;
use sim::rng::Rng;

use crate::check::check;
use crate::ledger::{Ledger, Tally};
use crate::line::Line;
use crate::power::{Device, Power, Processes};

/// What to do.
#[derive(Args)]
pub(crate) struct Run {
    /// How often the worker is killed
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// What is asked, and when it ends
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the store is made; kept if something is lost [default: a new directory, below the system's for such]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// How many clients ask at a time
    #[arg(long, default_value_t = 6)]
    clients: u32,
    /// The most answers in one life
    #[arg(long, default_value_t = 400)]
    answers: u64,
    /// Put the store on a disk that forgets what was not flushed: needs root, and a build with that feature
    #[arg(long)]
    forgetful: bool,
    /// How that disk is mounted
    #[arg(long, default_value = "noatime")]
    mount_options: String,
}

/// The longest that an end is put off after the last answer, in microseconds.
const JITTER: u64 = 4000;
/// The longest that a life without clients lasts.
const STILLBORN: u64 = 40_000;

struct World {
    power: Box<dyn Power>,
    rng: Rng,
    ledger: Ledger,
    clients: u32,
    /// How many workers were started.
    lives: u64,
}

/// Says what was seen, or what was lost.
pub(crate) fn run(run: &Run) -> Result<String, String> {
    let fresh = std::env::temp_dir().join(format!("powercut-{}", std::process::id()));
    let dir = run.dir.clone().unwrap_or(fresh);
    if dir.exists() && std::fs::read_dir(&dir).is_ok_and(|mut found| found.next().is_some()) {
        return Err(format!("there is something already in {}", dir.display()));
    }
    let tally = in_dir(run, &dir).map_err(|(kills, why)| {
        let again = format!(
            "powercut --seed {} --kills {} --clients {} --answers {}",
            run.seed, run.kills, run.clients, run.answers
        );
        let forgetful = if run.forgetful { " --forgetful" } else { "" };
        format!(
            "after {kills} kills, seed {}: {why}\nthe store is in {}\nto try again: {again}{forgetful}",
            run.seed,
            dir.display()
        )
    })?;
    std::fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(summary(run.kills, &tally))
}

fn in_dir(run: &Run, dir: &Path) -> Result<Tally, (u64, String)> {
    let power: Box<dyn Power> = if run.forgetful {
        Box::new(Device::make(dir, &run.mount_options).map_err(|why| (0, why))?)
    } else {
        Box::new(Processes(dir.to_path_buf()))
    };
    let (rng, ledger) = (Rng::new(run.seed), Ledger::default());
    let mut world = World { power, rng, ledger, clients: run.clients, lives: 0 };
    for kill in 0..run.kills {
        world.one_life(run.answers).map_err(|why| (kill + 1, why))?;
        show_progress(kill + 1, run.kills, &world.ledger.tally);
    }
    Ok(world.ledger.tally)
}

impl World {
    fn one_life(&mut self, answers_max: u64) -> Result<(), String> {
        let answers = self.rng.below(answers_max.max(1));
        let mut worker = self.start(self.clients)?;
        let heard = self.listen(&mut worker, answers);
        if heard.is_err() {
            // Whatever is said of it, it does not outlive this run.
            let _ = worker.kill().and_then(|()| worker.wait());
        }
        heard?;
        while self.rng.one_in(4) {
            let mut stillborn = self.start(0)?;
            let moment = self.rng.below(STILLBORN);
            pause(moment);
            self.end(&mut stillborn)?;
        }
        let seed = self.rng.number();
        self.power.on(seed)?;
        check(self.power.store(), &mut self.ledger, self.clients, self.lives)
    }

    fn start(&mut self, clients: u32) -> Result<Child, String> {
        let seed = self.rng.number();
        self.power.on(seed)?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("worker").arg("--dir").arg(self.power.store());
        command.args(["--clients", &clients.to_string(), "--seed", &seed.to_string()]);
        self.lives += 1;
        if clients == 0 {
            // It is killed while it opens the store, and what it says of that is of no use.
            command.stderr(Stdio::null());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())
    }

    /// Follows a life until so many answers were given, ends it, and hears what was said until then.
    fn listen(&mut self, worker: &mut Child, answers: u64) -> Result<(), String> {
        let mut lines = BufReader::new(worker.stdout.take().expect("it is piped"));
        let last = self.ledger.tally.answers + answers;
        while self.ledger.tally.answers < last {
            let Some(line) = next(&mut lines)? else { return Err(ended_alone(worker)) };
            self.ledger.note(line, false)?;
        }
        let moment = self.rng.below(JITTER);
        pause(moment);
        self.end(worker)?;
        while let Some(line) = next(&mut lines)? {
            self.ledger.note(line, true)?;
        }
        Ok(())
    }

    fn end(&mut self, worker: &mut Child) -> Result<(), String> {
        self.power.cut(worker)?;
        worker.wait().map(drop).map_err(|error| error.to_string())
    }
}

fn ended_alone(worker: &mut Child) -> String {
    match worker.wait() {
        Ok(status) => format!("a worker ended without being killed: {status}"),
        Err(error) => error.to_string(),
    }
}

fn next(lines: &mut impl BufRead) -> Result<Option<Line>, String> {
    let mut text = String::new();
    lines.read_line(&mut text).map_err(|error| error.to_string())?;
    Line::parse(&text)
}

#[expect(clippy::disallowed_methods, reason = "an end must come at any moment, not only between two calls")]
fn pause(micros: u64) {
    std::thread::sleep(Duration::from_micros(micros));
}

fn show_progress(kills: u64, of: u64, tally: &Tally) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{kills} of {of} kills, {} answers checked ", tally.answers);
        if kills == of {
            eprintln!();
        }
    }
}

fn summary(kills: u64, tally: &Tally) -> String {
    let Tally { answers, snapshots, moved, swept, happened, vanished, torn, documents_read } = tally;
    format!(
        "{kills} kills, {answers} acknowledged answers, none lost; {documents_read} documents read back; calls \
         under way: {happened} had happened, {vanished} had not; {snapshots} snapshots, {moved} documents carried \
         forward, {swept} blobs swept, {torn} torn tails"
    )
}
