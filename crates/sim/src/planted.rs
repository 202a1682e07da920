//! Proves that the test suite catches every planted fault: switches them on one at a time, and runs parts of the
//! suite, each in a process of its own, until one fails.
//!
//! The whole suite runs without a fault first: a part that fails then proves nothing. Nor does a part that exceeds
//! its time limit.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ::planted::parts::{PARTS, SuitePart};
use ::planted::{Fault, VARIABLE};

/// The time limit of one part.
const LIMIT: Duration = Duration::from_secs(120);

/// The result of one part.
enum Verdict {
    Passed,
    /// The seed or the test that failed.
    Failed(String),
    TimedOut,
}

/// The result of one fault.
struct FaultReport {
    fault: Fault,
    caught: Option<(SuitePart, String)>,
    took: Duration,
}

/// Tries the faults of these names, or all of them, and writes the table to a file if one is given.
pub(crate) fn run(names: &[String], table: Option<&Path>) -> Result<String, String> {
    let faults = selected(names)?;
    // Before anything is built.
    if let Some(fault) = faults.iter().find(|fault| SuitePart::named(fault.caught_by()).is_none()) {
        return Err(format!("no such part: {}", fault.caught_by()));
    }
    let (started, suite) = (now(), Suite::build()?);
    suite.check_passes()?;
    println!("all {} parts pass without a fault, {:.0?}", PARTS.len(), started.elapsed());
    let reports: Vec<FaultReport> =
        faults.into_iter().map(|fault| suite.catch(fault)).collect::<Result<_, String>>()?;
    if let Some(table) = table {
        std::fs::write(table, page(&reports)).map_err(|error| format!("{}: {error}", table.display()))?;
    }
    let missed: Vec<&str> =
        reports.iter().filter(|report| report.caught.is_none()).map(|report| report.fault.name()).collect();
    if missed.is_empty() {
        Ok(format!("{} faults, all caught, {:.0?}", reports.len(), started.elapsed()))
    } else {
        Err(format!("{} of {} faults were not caught: {}", missed.len(), reports.len(), missed.join(", ")))
    }
}

fn selected(names: &[String]) -> Result<Vec<Fault>, String> {
    if names.is_empty() {
        return Ok(Fault::ALL.to_vec());
    }
    names.iter().map(|name| Fault::named(name).ok_or_else(|| format!("no such fault: {name}"))).collect()
}

/// The executables of all parts.
struct Suite {
    sim: PathBuf,
    /// By crate and target.
    tests: BTreeMap<(String, String), PathBuf>,
}

impl Suite {
    fn build() -> Result<Suite, String> {
        let sim = std::env::current_exe().map_err(|error| format!("cannot locate this program: {error}"))?;
        let packages =
            ["kernel", "store", "engine", "backup", "sim", "server"].map(|name| format!("lockd-{name}"));
        let mut arguments = vec!["--features", "planted"];
        arguments.extend(packages.iter().flat_map(|package| ["-p", package]));
        let mut tests = build_tests(&arguments)?;
        // A build of its own: under this feature the engine runs on a model checker's scheduler only.
        let shuttle = ["--features", "planted,shuttle", "-p", "lockd-engine", "--test", "shuttle"];
        tests.extend(build_tests(&shuttle)?);
        Ok(Suite { sim, tests })
    }

    fn check_passes(&self) -> Result<(), String> {
        for &part in PARTS {
            let started = now();
            match self.run(part, None)? {
                Verdict::Passed => println!("{:8.1?}  {part}", started.elapsed()),
                Verdict::Failed(what) => return Err(format!("{part} fails without any fault: {what}")),
                Verdict::TimedOut => return Err(format!("{part} exceeds its time limit: limit={LIMIT:?}")),
            }
        }
        Ok(())
    }

    /// Runs the part that the table names, and then the others, until one fails.
    fn catch(&self, fault: Fault) -> Result<FaultReport, String> {
        let started = now();
        let named = SuitePart::named(fault.caught_by());
        let named = named.ok_or_else(|| format!("no such part: {}", fault.caught_by()))?;
        let others = PARTS.iter().copied().filter(|part| *part != named);
        let mut report = FaultReport { fault, caught: None, took: Duration::ZERO };
        for part in std::iter::once(named).chain(others) {
            match self.run(part, Some(fault))? {
                Verdict::Passed => {}
                Verdict::TimedOut => println!("          {part} does not end with {}", fault.name()),
                Verdict::Failed(what) => {
                    report.caught = Some((part, what));
                    break;
                }
            }
        }
        report.took = started.elapsed();
        println!("{report}");
        Ok(report)
    }

    fn run(&self, part: SuitePart, fault: Option<Fault>) -> Result<Verdict, String> {
        let mut command = self.command(part)?;
        command.env_remove(VARIABLE).envs(fault.map(|fault| (VARIABLE, fault.name())));
        command.env("LOCKD_LONG", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{part}: {error}"))?;
        watch(child).map_err(|error| format!("{part}: {error}"))
    }

    fn command(&self, part: SuitePart) -> Result<Command, String> {
        let SuitePart::Tests(package, module) = part else {
            let mut command = Command::new(&self.sim);
            command.args(part.arguments());
            return Ok(command);
        };
        let binary = |target: &str| self.tests.get(&(package.to_string(), target.to_string()));
        let mut command = match (binary(module), binary("it")) {
            (Some(own), _) => Command::new(own),
            (None, Some(shared)) => {
                let mut command = Command::new(shared);
                command.arg(format!("{module}::"));
                command
            }
            (None, None) => return Err(format!("no test binary for {part}")),
        };
        // One thread, so that the same test fails first in every run.
        command.current_dir(crate_dir(package)).arg("--test-threads=1");
        Ok(command)
    }
}

/// Builds test binaries; returns them by crate and target.
fn build_tests(arguments: &[&str]) -> Result<BTreeMap<(String, String), PathBuf>, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--no-run", "--message-format", "json"]).args(arguments);
    command.current_dir(crate_dir("..")).env_remove(VARIABLE).stderr(Stdio::inherit());
    let built = command.output().map_err(|error| format!("cannot build the tests: {error}"))?;
    if !built.status.success() {
        return Err("the tests do not build".into());
    }
    Ok(String::from_utf8_lossy(&built.stdout).lines().filter_map(test_binary).collect())
}

/// A line of cargo's JSON output, if it describes a test binary: its crate, its target and its path.
fn test_binary(line: &str) -> Option<((String, String), PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let binary = message.get("executable")?.as_str()?;
    let package = Path::new(message.get("manifest_path")?.as_str()?).parent()?.file_name()?;
    let target = message.get("target")?;
    let name = match target.get("kind")?.get(0)?.as_str()? {
        "lib" => "lib",
        "test" => target.get("name")?.as_str()?,
        _ => return None,
    };
    Some(((package.to_string_lossy().into_owned(), name.to_string()), binary.into()))
}

fn crate_dir(package: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(package)
}

/// Reads a process's output until it ends, prints a failure, or exceeds the time limit.
fn watch(mut child: Child) -> Result<Verdict, String> {
    let (send, lines) = channel();
    forward_lines(child.stdout.take().expect("stdout is piped"), send.clone());
    forward_lines(child.stderr.take().expect("stderr is piped"), send);
    let verdict = first_failure(&lines, now() + LIMIT);
    if !matches!(verdict, Verdict::Passed) {
        // Fails if the process has already ended.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match verdict {
        Verdict::Passed if !status.success() => Ok(Verdict::Failed(format!("ended with {status}"))),
        verdict => Ok(verdict),
    }
}

fn forward_lines(from: impl Read + Send + 'static, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}

fn first_failure(lines: &Receiver<String>, deadline: Instant) -> Verdict {
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(now())) {
            Ok(line) => {
                if let Some(what) = failure(&line) {
                    return Verdict::Failed(what);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Verdict::Passed,
            Err(RecvTimeoutError::Timeout) => return Verdict::TimedOut,
        }
    }
}

/// The test or the seed that failed, if this line of output names one.
fn failure(line: &str) -> Option<String> {
    if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
        return Some(format!("`{test}`"));
    }
    if line == "running 0 tests" {
        return Some("no test of that module".into());
    }
    let (_, rest) = line.split_once("cargo run ")?.1.split_once("--seed ")?;
    rest.split_whitespace().next().map(|seed| format!("seed {seed}"))
}

#[expect(clippy::disallowed_methods, reason = "durations are reported, and a part has a time limit")]
fn now() -> Instant {
    Instant::now()
}

impl std::fmt::Display for FaultReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, took) = (self.fault.name(), self.took);
        match &self.caught {
            Some((part, what)) => write!(f, "{took:8.1?}  {name:26}  {part}: {what}"),
            None => write!(f, "{took:8.1?}  {name:26}  NOT CAUGHT"),
        }
    }
}

/// The table as a Markdown page.
fn page(reports: &[FaultReport]) -> String {
    let mut text = String::from(PREFACE);
    for FaultReport { fault, caught, .. } in reports {
        let (part, what) = caught
            .as_ref()
            .map_or(("nothing".into(), ""), |(part, what)| (format!("`{part}`"), what.as_str()));
        let (name, effect, file) = (fault.name(), fault.effect(), fault.file());
        writeln!(text, "| `{name}` | {effect} | [`{}`](../../{file}) | {part} | {what} |", short(file))
            .expect("writing to a string");
    }
    text
}

fn short(file: &str) -> String {
    file.trim_start_matches("crates/").replace("src/", "")
}

const PREFACE: &str = "# Planted bugs

Deliberate faults, switched on one at a time, to prove that the tests catch them. They are in the sources, each marked
`planted!(Name)`, and are compiled only with the feature `planted`; without it the macro is the literal `false`. The
table of faults is [`crates/planted/src/faults.rs`](../../crates/planted/src/faults.rs); this page is generated from it.

```sh
cargo run --release -p lockd-sim --features planted -- planted                     # all faults, after a run without any
cargo run --release -p lockd-sim --features planted -- planted barge lifo          # these two
cargo run --release -p lockd-sim --features planted -- planted --table docs/internals/planted-bugs.md
```

For each fault the parts of the test suite run with `LOCKD_PLANTED=<name>`, and with `LOCKD_LONG=1`, until one fails: the
table names the first part that failed, with its seed or its test. Other parts may catch the fault too. The command fails
if a fault is not caught, or if a test fails without any. To reproduce a row, set `LOCKD_PLANTED` and run the command of
the column *caught by* with `--features planted`.

| fault | effect | file | caught by | seed or test |
|---|---|---|---|---|
";
