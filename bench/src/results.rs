//! What a run found, as it is written to JSON and read by the reports.
//!
//! **Invariant.** An outcome has figures only if its status is `measured`: a system that is missing or refuses a workload
//! never gets a number.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::system::{Durability, Error};

/// A run.
#[derive(Serialize, Deserialize, Default)]
pub struct Run {
    /// The command that was run.
    pub command: String,
    /// Seconds since 1970 at the start, and how long it took.
    pub started_unix: u64,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Processor, cores, memory, kernel.
    pub machine: String,
    /// Load average of one minute before the start: above 0.5, the machine was not idle.
    pub load_before: f64,
    /// All systems that were selected.
    pub systems: Vec<SystemInfo>,
    /// All outcomes, in the order of cases and systems.
    pub outcomes: Vec<Outcome>,
}

/// A system of a run.
#[derive(Serialize, Deserialize, Clone)]
pub struct SystemInfo {
    /// Its name.
    pub name: String,
    /// How leases are made.
    pub about: String,
    /// When it confirms.
    pub durability: Durability,
    /// The version that it printed.
    pub version: Option<String>,
    /// Why it could not be started.
    pub missing: Option<String>,
    /// Flushes (`fsync`, `fdatasync`, …) of its processes per cycle of one client.
    pub flushes_per_cycle: Option<f64>,
}

/// Whether a system has figures in a case.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It has.
    Measured,
    /// The system could not be started.
    Missing(String),
    /// The system cannot do this.
    Unsupported(String),
    /// The deadline passed.
    Unfinished(String),
    /// An error, which fails the run.
    Failed(String),
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        match error {
            Error::Held => Status::Failed("a key that no other client uses is held".into()),
            Error::Unsupported(reason) => Status::Unsupported(reason),
            Error::Unfinished(reason) => Status::Unfinished(reason),
            Error::Failed(reason) => Status::Failed(reason),
        }
    }
}

impl Status {
    /// What a table shows instead of figures.
    pub fn word(&self) -> &'static str {
        match self {
            Status::Measured => "",
            Status::Missing(_) => "missing",
            Status::Unsupported(_) => "unsupported",
            Status::Unfinished(_) => "unfinished",
            Status::Failed(_) => "failed",
        }
    }

    /// Why there are no figures.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Status::Measured => None,
            Status::Missing(reason)
            | Status::Unsupported(reason)
            | Status::Unfinished(reason)
            | Status::Failed(reason) => Some(reason),
        }
    }
}

/// The outcome of one system in one case.
#[derive(Serialize, Deserialize, Clone)]
pub struct Outcome {
    /// The workload's name.
    pub workload: String,
    /// Its parameter, as `64 clients`.
    pub parameter: String,
    /// The parameter as a number, for plots.
    pub size: f64,
    /// The system's name.
    pub system: String,
    /// Whether there are figures.
    pub status: Status,
    /// Figures by name, one for each round.
    pub figures: BTreeMap<String, Vec<f64>>,
    /// Cumulative distribution of latencies of all rounds: microseconds and share.
    pub cdf: Vec<(f64, f64)>,
    /// Seconds since the start, and p99.9 of the window in microseconds.
    pub series: Vec<(f64, f64)>,
}

/// What one round of one system yields.
#[derive(Default)]
pub struct Round {
    /// Figures by name.
    pub figures: BTreeMap<&'static str, f64>,
    /// Latencies, if they are of interest.
    pub latencies: Histogram,
    /// p99.9 over time.
    pub series: Vec<(f64, f64)>,
}

impl Round {
    /// Adds a figure.
    pub fn set(&mut self, name: &'static str, value: f64) {
        self.figures.insert(name, value);
    }

    /// Adds the quantiles of the latencies.
    pub fn set_latencies(&mut self, latencies: Histogram) {
        self.set("p50_us", latencies.quantile_us(0.5));
        self.set("p99_us", latencies.quantile_us(0.99));
        self.set("p999_us", latencies.quantile_us(0.999));
        self.set("max_us", latencies.max_us());
        self.latencies = latencies;
    }
}

/// The median; of an even number the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// Least and most.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let fold = |start, pick: fn(f64, f64) -> f64| values.iter().copied().fold(start, pick);
    (fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max))
}

impl Outcome {
    /// The median of a figure over the rounds.
    pub fn median(&self, figure: &str) -> Option<f64> {
        self.figures.get(figure).filter(|values| !values.is_empty()).map(|values| median(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spread() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 3.0));
    }
}
