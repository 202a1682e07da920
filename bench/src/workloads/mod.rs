//! The workloads. Each drives any system through its trait, and yields the figures of one round.

use std::time::Duration;

use crate::results::Round;
use crate::server::Server;
use crate::system::{Error, Result};

mod cycles;
mod fill;
mod handoff;
mod idle;
mod load;
mod mixed;
mod renewals;
mod restart;
mod storm;

pub use cycles::Operation;

/// TTL where it does not matter.
const TTL: Duration = Duration::from_secs(60);
/// Session where it does not matter: longer than any case.
const SESSION: Duration = Duration::from_secs(1800);

/// How long and how often cases are run.
#[derive(Clone, Copy)]
pub struct Timing {
    /// Unmeasured time before a round.
    pub warm_up: Duration,
    /// Measured time of a round.
    pub measured: Duration,
    /// Rounds, interleaved over systems.
    pub rounds: usize,
    /// Deadline to lease many keys, or to serve all waiters.
    pub deadline: Duration,
    /// Open loop: cycles per second of all clients together.
    pub rate: Option<f64>,
}

/// A workload with its parameter.
#[derive(Clone)]
pub struct Case {
    /// The workload's name on the command line.
    pub workload: &'static str,
    /// Its parameter, in words.
    pub parameter: String,
    /// Its parameter, as a number.
    pub size: usize,
    /// What is done.
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Cycles { clients: usize, operation: Operation },
    Handoff,
    Herd,
    Idle,
    Renewals { leases: usize },
    Storm,
    Restart,
    Mixed { seconds: u64 },
}

impl Case {
    /// Whether the case starts a server of its own, with nothing stored, once for each system.
    pub fn needs_fresh_server(&self) -> bool {
        !matches!(self.kind, Kind::Cycles { .. } | Kind::Handoff)
    }

    /// Runs one round.
    pub async fn run(&self, server: &mut Server, timing: &Timing) -> Result<Round> {
        match &self.kind {
            Kind::Cycles { clients, operation } => cycles::run(server, *clients, operation, timing).await,
            Kind::Handoff => handoff::run(server, self.size, timing).await,
            Kind::Herd => handoff::herd(server, self.size, timing).await,
            Kind::Idle => idle::run(server, self.size, timing).await,
            Kind::Renewals { leases } => renewals::run(server, self.size, *leases, timing).await,
            Kind::Storm => storm::run(server, self.size, timing).await,
            Kind::Restart => restart::run(server, self.size, timing).await,
            Kind::Mixed { seconds } => {
                // Peers show how they compare; lockd runs long enough for rotations and snapshots.
                let seconds =
                    if server.system().name() == "lockd" { *seconds } else { (*seconds / 10).max(5) };
                mixed::run(server, self.size, Duration::from_secs(seconds), timing).await
            }
        }
    }
}

/// All cases of a run.
pub fn plan(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |workload, unit: &str, sizes: &[usize], kind: &dyn Fn(usize) -> Kind| {
        for size in sizes {
            let parameter = format!("{} {unit}", grouped(*size));
            cases.push(Case { workload, parameter, size: *size, kind: kind(*size) });
        }
    };
    let pick = |all: &'static [usize], few: &'static [usize]| if quick { few } else { all };
    let cycles = |clients, operation| Kind::Cycles { clients, operation };
    add("acquire-release", "clients", pick(&[1, 8, 64, 512], &[1, 8, 64]), &|n| cycles(n, Operation::Cycle));
    add("update-4k", "clients", pick(&[1, 64], &[64]), &|n| cycles(n, Operation::document(4096)));
    add("bundles", "keys", pick(&[2, 8, 64], &[8]), &|n| cycles(16, Operation::Bundle(n)));
    add("documents", "bytes", pick(&[64 << 10, 1 << 20, 100_000_000], &[64 << 10, 1 << 20]), &|n| {
        cycles(if n > 1 << 24 { 1 } else { 4 }, Operation::document(n))
    });
    add("hand-off", "clients", pick(&[16, 64], &[16]), &|_| Kind::Handoff);
    add("herd", "waiters", pick(&[10_000], &[500]), &|_| Kind::Herd);
    add("idle", "leases", pick(&[10_000, 100_000, 1_000_000], &[10_000]), &|_| Kind::Idle);
    add("renewals", "connections", pick(&[1_000], &[1_000]), &|n| Kind::Renewals {
        leases: n * if quick { 10 } else { 130 },
    });
    add("expiry-storm", "leases", pick(&[20_000, 1_000_000], &[20_000]), &|_| Kind::Storm);
    add("restart", "leases", pick(&[1_000_000], &[20_000]), &|_| Kind::Restart);
    add("mixed", "clients", &[64], &|_| Kind::Mixed { seconds: if quick { 20 } else { 600 } });
    cases
}

/// A number with its thousands apart.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Fails after a deadline: no workload waits for ever.
async fn within<T>(deadline: Duration, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(deadline, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Unfinished(format!("{what}: not done after {} s", deadline.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            (grouped(7), grouped(1000), grouped(1_234_567)),
            ("7".into(), "1,000".into(), "1,234,567".into())
        );
    }

    #[test]
    fn quick_has_every_workload_and_no_case_twice() {
        let names = |quick| {
            let mut names: Vec<_> = plan(quick).iter().map(|case| case.workload).collect();
            names.dedup();
            names
        };
        assert_eq!(names(true), names(false));
        let mut cases: Vec<_> = plan(false).iter().map(|case| (case.workload, case.size)).collect();
        let all = cases.len();
        cases.dedup();
        assert_eq!(cases.len(), all);
    }
}
