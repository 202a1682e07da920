//! A run: starts the systems, runs each case in interleaved rounds, and collects outcomes.
//!
//! **Invariant.** Round by round every system has its turn, so that a change of the machine's speed meets all of them.
//! Cases that store much get servers of their own, one at a time, whose memory nothing else has touched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::args::RunArguments;
use crate::flushes;
use crate::histogram::Histogram;
use crate::results::{Outcome, Round, Run, Status, SystemInfo};
use crate::server::Server;
use crate::system::{Durability, Environment, Error, Result, System};
use crate::systems;
use crate::workloads::{Case, Timing, plan};

/// The selected systems and cases.
pub struct Runner {
    environment: Environment,
    systems: Vec<Arc<dyn System>>,
    cases: Vec<Case>,
    timing: Timing,
    count_flushes: bool,
    bar: ProgressBar,
}

impl Runner {
    /// Checks the selection and the data folder.
    pub fn new(arguments: &RunArguments) -> Result<Runner> {
        let systems = select(systems::all(), &arguments.systems, |system| system.name())?;
        let mut cases = select(plan(arguments.quick), &arguments.workloads, |case| case.workload)?;
        cases.retain(|case| arguments.sizes.is_empty() || arguments.sizes.contains(&case.size));
        refuse_memory_disk(&arguments.data)?;
        let lockd = arguments.lockd.canonicalize().unwrap_or_else(|_| arguments.lockd.clone());
        let environment = Environment { lockd, data: arguments.data.clone() };
        let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1.0 } else { 2.0 });
        let timing = Timing {
            warm_up: Duration::from_secs_f64(seconds / 3.0),
            measured: Duration::from_secs_f64(seconds),
            rounds: arguments.rounds.unwrap_or(3).max(1),
            deadline: Duration::from_secs(if arguments.quick { 40 } else { 100 }),
            rate: arguments.rate,
        };
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Ok(Runner { environment, systems, cases, timing, count_flushes: !arguments.no_flushes, bar })
    }

    /// Measures everything.
    pub async fn run(&self) -> Run {
        let mut run = Run::default();
        let steps: usize = self.cases.iter().map(|case| self.rounds(case) * self.systems.len()).sum();
        self.bar.set_length(steps as u64);
        let (mut servers, missing) = self.start_all(&mut run).await;
        let (fresh, shared): (Vec<&Case>, Vec<&Case>) =
            self.cases.iter().partition(|case| case.needs_fresh_server());
        for case in shared {
            run.outcomes.extend(self.interleaved(case, &mut servers, &missing).await);
        }
        drop(servers);
        for case in fresh {
            for system in &self.systems {
                run.outcomes.push(self.alone(case, system, &missing).await);
            }
        }
        self.bar.finish_and_clear();
        run
    }

    fn rounds(&self, case: &Case) -> usize {
        if case.needs_fresh_server() { 1 } else { self.timing.rounds }
    }

    /// Starts every system once: shows that it can be started, and counts its flushes.
    async fn start_all(&self, run: &mut Run) -> (Vec<(String, Server)>, BTreeMap<String, String>) {
        let (mut servers, mut missing) = (Vec::new(), BTreeMap::new());
        for system in &self.systems {
            self.bar.set_message(format!("starting {}", system.name()));
            let version = system.version(&self.environment);
            let started = match &version {
                Ok(_) => Server::start(Arc::clone(system), &self.environment).await,
                Err(error) => Err(error.clone()),
            };
            let mut info = SystemInfo {
                name: system.name().into(),
                about: system.about().into(),
                durability: system.durability(),
                version: version.ok(),
                missing: None,
                flushes_per_cycle: None,
            };
            match started {
                Ok(server) => {
                    info.flushes_per_cycle = self.flushes(&server).await;
                    servers.push((system.name().to_string(), server));
                }
                Err(error) => {
                    let why = format!("{error:?}");
                    missing.insert(system.name().to_string(), why.clone());
                    info.missing = Some(why);
                }
            }
            run.systems.push(info);
        }
        (servers, missing)
    }

    async fn flushes(&self, server: &Server) -> Option<f64> {
        if !self.count_flushes || server.system().durability() == Durability::Ceiling {
            return None;
        }
        match flushes::per_cycle(server).await {
            Ok(count) => Some(count),
            Err(error) => {
                self.bar.println(format!("{}: flushes not counted: {error:?}", server.system().name()));
                None
            }
        }
    }

    async fn interleaved(
        &self,
        case: &Case,
        servers: &mut [(String, Server)],
        missing: &BTreeMap<String, String>,
    ) -> Vec<Outcome> {
        let mut rounds: BTreeMap<String, Result<Vec<Round>>> = BTreeMap::new();
        for _ in 0..self.timing.rounds {
            for (name, server) in servers.iter_mut() {
                self.announce(case, name);
                let so_far = rounds.entry(name.clone()).or_insert_with(|| Ok(Vec::new()));
                if let Ok(done) = so_far {
                    match case.run(server, &self.timing).await {
                        Ok(round) => done.push(round),
                        Err(error) => *so_far = Err(error),
                    }
                }
                self.bar.inc(1);
            }
        }
        let outcome = |system: &Arc<dyn System>| {
            let missing = missing.get(system.name()).cloned();
            let measured = rounds.remove(system.name());
            outcome(case, system.name(), missing, measured)
        };
        self.systems.iter().map(outcome).collect()
    }

    async fn alone(
        &self,
        case: &Case,
        system: &Arc<dyn System>,
        missing: &BTreeMap<String, String>,
    ) -> Outcome {
        self.announce(case, system.name());
        let missing = missing.get(system.name()).cloned();
        let mut measured = None;
        if missing.is_none() {
            measured = Some(match Server::start(Arc::clone(system), &self.environment).await {
                Ok(mut server) => case.run(&mut server, &self.timing).await.map(|round| vec![round]),
                Err(error) => Err(error),
            });
        }
        self.bar.inc(1);
        outcome(case, system.name(), missing, measured)
    }

    fn announce(&self, case: &Case, system: &str) {
        self.bar.set_message(format!("{}, {}: {system}", case.workload, case.parameter));
    }
}

fn outcome(
    case: &Case,
    system: &str,
    missing: Option<String>,
    measured: Option<Result<Vec<Round>>>,
) -> Outcome {
    let mut outcome = Outcome {
        workload: case.workload.into(),
        parameter: case.parameter.clone(),
        size: case.size as f64,
        system: system.into(),
        status: Status::Missing(missing.clone().unwrap_or_default()),
        figures: BTreeMap::new(),
        cdf: Vec::new(),
        series: Vec::new(),
    };
    match measured {
        _ if missing.is_some() => {}
        None => {}
        Some(Err(error)) => outcome.status = Status::from(error),
        Some(Ok(rounds)) => {
            outcome.status = Status::Measured;
            let mut latencies = Histogram::default();
            for round in rounds {
                latencies.merge(&round.latencies);
                outcome.series = round.series;
                for (name, value) in round.figures {
                    outcome.figures.entry(name.into()).or_default().push(value);
                }
            }
            outcome.cdf = latencies.cdf();
        }
    }
    outcome
}

fn select<T>(all: Vec<T>, wanted: &[String], name: impl Fn(&T) -> &'static str) -> Result<Vec<T>> {
    if let Some(unknown) = wanted.iter().find(|wanted| !all.iter().any(|item| name(item) == wanted.as_str()))
    {
        let mut known: Vec<&str> = all.iter().map(&name).collect();
        known.dedup();
        return Err(Error::Failed(format!("unknown name={unknown}; known: {}", known.join(", "))));
    }
    Ok(all
        .into_iter()
        .filter(|item| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name(item)))
        .collect())
}

/// Flushes of a disk in memory cost nothing: figures would be wrong for all systems.
fn refuse_memory_disk(folder: &std::path::Path) -> Result<()> {
    const TMPFS: i64 = 0x0102_1994;
    let kind = rustix::fs::statfs(folder)
        .map_err(|error| Error::Failed(format!("{}: {error}", folder.display())))?;
    if kind.f_type == TMPFS {
        return Err(Error::Failed(format!(
            "{} is in memory: name a folder on a disk with --data",
            folder.display()
        )));
    }
    Ok(())
}

/// Processor, cores, memory, filesystem.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_string()).unwrap_or_default()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kb: f64 = field(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
    let kernel = read("/proc/sys/kernel/osrelease");
    let processor = field(&read("/proc/cpuinfo"), "model name");
    format!("{cores} cores ({processor}), {:.0} GB, Linux {}", kb / 1e6, kernel.trim())
}

/// The load average of the last minute.
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|figure| figure.parse().ok()).unwrap_or(0.0)
}

/// Seconds since a moment.
pub fn seconds_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}
