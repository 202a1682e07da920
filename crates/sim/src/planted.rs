//! Shows that the suite catches every planted fault: switches them on one after the other, and runs the parts of
//! the suite that may notice, each as a process of its own, until one of them fails.
//!
//! First everything runs without a fault: a part that fails then proves nothing. A part that does not end within
//! its time has caught nothing either.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ::planted::{Fault, VARIABLE};

/// A part of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// `sim --hours 0`: the kernel against its model.
    Trials,
    /// `sim --steps 0`: whole servers.
    Lives,
    /// A test binary: its crate, and its name or `lib`.
    Test(&'static str, &'static str),
}

const STORE: Part = Part::Test("store", "lib");
const DAMAGE: Part = Part::Test("store", "it");
const STORE_CRASHES: Part = Part::Test("sim", "store_crashes");
const TAKEOVER: Part = Part::Test("sim", "object_takeover");
const AGENTS: Part = Part::Test("sim", "agents");
const CRASH_POINTS: Part = Part::Test("sim", "crash_points");
const ENGINE: Part = Part::Test("engine", "lib");
const SHARD: Part = Part::Test("engine", "shard");
const WAITING: Part = Part::Test("engine", "waiting");
const SEQUENCER: Part = Part::Test("engine", "sequencer");
const LETTING_GO: Part = Part::Test("engine", "letting_go");
const ENGINE_CRASHES: Part = Part::Test("engine", "crashes");
const WHOLE_ENGINE: Part = Part::Test("engine", "engine");
const REGRESSIONS: Part = Part::Test("kernel", "regressions");

/// All parts, the quick ones first.
const PARTS: [Part; 16] = [
    Part::Trials,
    Part::Lives,
    AGENTS,
    REGRESSIONS,
    STORE,
    DAMAGE,
    ENGINE,
    SHARD,
    WAITING,
    SEQUENCER,
    LETTING_GO,
    ENGINE_CRASHES,
    TAKEOVER,
    WHOLE_ENGINE,
    STORE_CRASHES,
    CRASH_POINTS,
];

/// The parts that are the likeliest to notice; all others come after them.
fn likely(fault: Fault) -> &'static [Part] {
    match fault {
        Fault::WaitDieHoldersOnly => &[Part::Lives],
        _ if fault.place().contains("kernel/") => &[Part::Trials],
        Fault::SegmentHeaderUnsynced => &[STORE_CRASHES],
        Fault::LsnUnchecked => &[STORE],
        Fault::ChainUnchecked | Fault::TornTailKept | Fault::DamageCut => &[DAMAGE],
        _ if fault.place().contains("object/") => &[TAKEOVER, STORE],
        Fault::TiredStillGranted | Fault::GoneStillServed => &[WAITING, SHARD],
        Fault::AttemptsAlwaysWait
        | Fault::AttemptAgesAnew
        | Fault::ExpiryWakesNobody
        | Fault::WaitUnbounded => &[AGENTS],
        Fault::YoungerStays | Fault::NoSpaceIgnored => &[SHARD],
        Fault::PinsLate | Fault::FloorBeforeMoves => &[LETTING_GO],
        Fault::SnapshotUncompared => &[ENGINE_CRASHES],
        _ if fault.place().contains("sequencer") => &[SEQUENCER],
        _ => &[Part::Lives],
    }
}

/// How long a part may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What a part of the suite said.
enum Verdict {
    Passed,
    /// Which seed or test, and in how many words it is worth telling.
    Failed(String),
    TooLong,
}

/// What came of one fault.
struct Row {
    fault: Fault,
    caught: Option<(Part, String)>,
    took: Duration,
}

/// Tries the faults of these names, or all of them; writes the table into a file if there is one.
pub(crate) fn run(names: &[String], table: Option<&Path>) -> Result<String, String> {
    let faults = chosen(names)?;
    let (begun, suite) = (now(), Suite::build()?);
    suite.check_passes()?;
    println!("all {} parts pass without a fault, {:.0?}", PARTS.len(), begun.elapsed());
    let rows: Vec<Row> = faults.into_iter().map(|fault| suite.hunt(fault)).collect::<Result<_, String>>()?;
    if let Some(table) = table {
        std::fs::write(table, page(&rows)).map_err(|error| format!("{}: {error}", table.display()))?;
    }
    let missed: Vec<&str> =
        rows.iter().filter(|row| row.caught.is_none()).map(|row| row.fault.name()).collect();
    if missed.is_empty() {
        Ok(format!("{} faults, all caught, {:.0?}", rows.len(), begun.elapsed()))
    } else {
        Err(format!("{} of {} faults were not caught: {}", missed.len(), rows.len(), missed.join(", ")))
    }
}

fn chosen(names: &[String]) -> Result<Vec<Fault>, String> {
    if names.is_empty() {
        return Ok(Fault::ALL.to_vec());
    }
    names.iter().map(|name| Fault::named(name).ok_or_else(|| format!("no such fault: {name}"))).collect()
}

/// The programs that the parts are.
struct Suite {
    sim: PathBuf,
    tests: BTreeMap<(String, String), PathBuf>,
}

impl Suite {
    fn build() -> Result<Suite, String> {
        let sim = std::env::current_exe().map_err(|error| format!("where is this program? {error}"))?;
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["test", "--no-run", "--features", "planted", "--message-format", "json"]);
        command.args(["-p", "kernel", "-p", "store", "-p", "engine", "-p", "sim"]);
        command.current_dir(folder("..")).env_remove(VARIABLE).stderr(Stdio::inherit());
        let built = command.output().map_err(|error| format!("building the tests: {error}"))?;
        if !built.status.success() {
            return Err("the tests do not build".into());
        }
        let tests = String::from_utf8_lossy(&built.stdout).lines().filter_map(test_binary).collect();
        Ok(Suite { sim, tests })
    }

    fn check_passes(&self) -> Result<(), String> {
        for part in PARTS {
            let begun = now();
            match self.run(part, None)? {
                Verdict::Passed => println!("{:8.1?}  {part}", begun.elapsed()),
                Verdict::Failed(what) => return Err(format!("{part} fails without any fault: {what}")),
                Verdict::TooLong => return Err(format!("{part} takes too long")),
            }
        }
        Ok(())
    }

    /// One part after the other, until one notices.
    fn hunt(&self, fault: Fault) -> Result<Row, String> {
        let (begun, likely) = (now(), likely(fault));
        let others = PARTS.iter().filter(|part| !likely.contains(part));
        let mut row = Row { fault, caught: None, took: Duration::ZERO };
        for part in likely.iter().chain(others) {
            match self.run(*part, Some(fault))? {
                Verdict::Passed => {}
                Verdict::TooLong => println!("          {part} does not end with {}", fault.name()),
                Verdict::Failed(what) => {
                    row.caught = Some((*part, what));
                    break;
                }
            }
        }
        row.took = begun.elapsed();
        println!("{row}");
        Ok(row)
    }

    fn run(&self, part: Part, fault: Option<Fault>) -> Result<Verdict, String> {
        let mut command = self.command(part)?;
        command.env_remove(VARIABLE).envs(fault.map(|fault| (VARIABLE, fault.name())));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{part}: {error}"))?;
        watch(child).map_err(|error| format!("{part}: {error}"))
    }

    fn command(&self, part: Part) -> Result<Command, String> {
        let Part::Test(package, target) = part else {
            let mut command = Command::new(&self.sim);
            command.args(part.arguments());
            return Ok(command);
        };
        let binary = self.tests.get(&(package.to_string(), target.to_string()));
        let binary = binary.ok_or_else(|| format!("there is no {part}"))?;
        let mut command = Command::new(binary);
        // One after the other, so that the same test is named every time.
        command.current_dir(folder(package)).arg("--test-threads=1");
        Ok(command)
    }
}

/// A line of what cargo has to say, if it is of a test binary: its crate, its name, and where it is.
fn test_binary(line: &str) -> Option<((String, String), PathBuf)> {
    let said: serde_json::Value = serde_json::from_str(line).ok()?;
    let binary = said.get("executable")?.as_str()?;
    let package = Path::new(said.get("manifest_path")?.as_str()?).parent()?.file_name()?;
    let target = said.get("target")?;
    let name = match target.get("kind")?.get(0)?.as_str()? {
        "lib" => "lib",
        "test" => target.get("name")?.as_str()?,
        _ => return None,
    };
    Some(((package.to_string_lossy().into_owned(), name.to_string()), binary.into()))
}

/// A crate's folder.
fn folder(package: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(package)
}

/// Listens to a process until it ends, says that something failed, or has had its time.
fn watch(mut child: Child) -> Result<Verdict, String> {
    let (send, lines) = channel();
    listen(child.stdout.take().expect("it is piped"), send.clone());
    listen(child.stderr.take().expect("it is piped"), send);
    let heard = hear(&lines, now() + LIMIT);
    if !matches!(heard, Verdict::Passed) {
        // It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match heard {
        Verdict::Passed if !status.success() => Ok(Verdict::Failed(format!("ended with {status}"))),
        heard => Ok(heard),
    }
}

fn listen(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

fn hear(lines: &Receiver<String>, until: Instant) -> Verdict {
    loop {
        match lines.recv_timeout(until.saturating_duration_since(now())) {
            Ok(line) => {
                if let Some(what) = failure(&line) {
                    return Verdict::Failed(what);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Verdict::Passed,
            Err(RecvTimeoutError::Timeout) => return Verdict::TooLong,
        }
    }
}

/// What a line of output says has failed: a test, or a seed.
fn failure(line: &str) -> Option<String> {
    if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
        return Some(format!("`{test}`"));
    }
    let (_, rest) = line.split_once("cargo run ")?.1.split_once("--seed ")?;
    rest.split_whitespace().next().map(|seed| format!("seed {seed}"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "it is told how long things took, and what takes too long is ended"
)]
fn now() -> Instant {
    Instant::now()
}

impl Part {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Part::Trials => &["--seeds", "400", "--hours", "0", "--rounds", "0"],
            Part::Lives => &["--seeds", "400", "--steps", "0", "--hours", "0.05", "--rounds", "0"],
            Part::Test(..) => &[],
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Part::Trials | Part::Lives => write!(f, "sim {}", self.arguments().join(" ")),
            Part::Test(package, "lib") => write!(f, "cargo test -p {package} --lib"),
            Part::Test(package, target) => write!(f, "cargo test -p {package} --test {target}"),
        }
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, took) = (self.fault.name(), self.took);
        match &self.caught {
            Some((part, what)) => write!(f, "{took:8.1?}  {name:26}  {part}: {what}"),
            None => write!(f, "{took:8.1?}  {name:26}  NOT CAUGHT"),
        }
    }
}

/// The table as a page of documentation.
fn page(rows: &[Row]) -> String {
    let mut text = String::from(PREFACE);
    for Row { fault, caught, .. } in rows {
        let (part, what) = caught
            .as_ref()
            .map_or(("nothing".into(), ""), |(part, what)| (format!("`{part}`"), what.as_str()));
        let place = fault.place();
        writeln!(
            text,
            "| `{}` | {} | [`{}`](../../{place}) | {part} | {what} |",
            fault.name(),
            fault.what(),
            short(place)
        )
        .expect("writing to a string");
    }
    text
}

fn short(place: &str) -> String {
    place.trim_start_matches("crates/").replace("src/", "")
}

const PREFACE: &str = "# Planted bugs

Faults that are built in on purpose, one at a time, to see whether the tests notice. They are in the sources
themselves, each marked `planted!(Name)`, and are compiled only with the feature `planted`; without it the macro is the
word `false`.

```sh
cargo run --release -p sim --features planted -- planted                     # all of them, first without any
cargo run --release -p sim --features planted -- planted barge lifo          # these
cargo run --release -p sim --features planted -- planted --table docs/internals/planted-bugs.md
```

For each, the parts of the suite run with `LOCKD_PLANTED=<name>` until one fails: the first that did is in the table,
with its seed or its test. Others may notice too. The command fails if a fault is not caught, or if anything fails
without one. To see a catch by hand, set the variable and run what the table names, with `--features planted`.

| fault | what it does | where | caught by | seed or test |
|---|---|---|---|---|
";
