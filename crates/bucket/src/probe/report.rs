//! The report of a probe: what was checked, how, and the verdict. As text it can be kept.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use super::ProbeDepth;
use super::session::{Finding, Session};

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The URL of the store.
    pub store: String,
    /// The URL of the service, as requests were sent to it.
    pub endpoint: String,
    /// The addresses that were tested.
    pub addresses: Vec<IpAddr>,
    /// Addresses that were not tested, because there are too many.
    pub addresses_untested: usize,
    /// The date, as it was given.
    pub date: String,
    /// The version of lockd.
    pub version: &'static str,
    /// How much was checked.
    pub depth: ProbeDepth,
    /// The checks, in order.
    pub checks: Vec<CheckResult>,
    /// Latencies by operation; none after a short probe.
    pub latencies: Vec<Latency>,
    /// Requests that were sent.
    pub requests: u64,
    /// The time that the checks took.
    pub seconds: f64,
    /// Why objects of the probe may be left in the bucket, if so.
    pub left_behind: Option<String>,
}

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// A HEAD of a missing object is answered with 404.
    MissingObject,
    /// A second creator of an object is refused, and the object stays.
    ConditionalCreate,
    /// Of many creators at once exactly one wins, through all addresses.
    RacingCreators,
    /// What is created through one address is seen through another at once, and refuses a second creator there.
    AddressPairs,
    /// A list shows an object as soon as its creation was confirmed.
    ListAfterPut,
    /// A deleted object is not found.
    HeadAfterDelete,
    /// An upload in parts is completed, and another aborted.
    Multipart,
    /// No rule of the bucket deletes or moves objects of the store.
    Lifecycle,
    /// The bucket does not keep old versions.
    Versioning,
    /// How long requests take.
    Latency,
}

impl CheckName {
    /// All of them, in order.
    pub const ALL: [CheckName; 10] = [
        CheckName::MissingObject,
        CheckName::ConditionalCreate,
        CheckName::RacingCreators,
        CheckName::AddressPairs,
        CheckName::ListAfterPut,
        CheckName::HeadAfterDelete,
        CheckName::Multipart,
        CheckName::Lifecycle,
        CheckName::Versioning,
        CheckName::Latency,
    ];
}

impl fmt::Display for CheckName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CheckName::MissingObject => "missing_object",
            CheckName::ConditionalCreate => "conditional_create",
            CheckName::RacingCreators => "racing_creators",
            CheckName::AddressPairs => "address_pairs",
            CheckName::ListAfterPut => "list_after_put",
            CheckName::HeadAfterDelete => "head_after_delete",
            CheckName::Multipart => "multipart",
            CheckName::Lifecycle => "lifecycle",
            CheckName::Versioning => "versioning",
            CheckName::Latency => "latency",
        })
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should be.
    Passed,
    /// The store can be used, at a price that the text names.
    Warning,
    /// The store cannot be used.
    Failed,
    /// Not checked, for the reason in the text.
    Skipped,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Outcome::Passed => "passed",
            Outcome::Warning => "warning",
            Outcome::Failed => "failed",
            Outcome::Skipped => "skipped",
        })
    }
}

/// A check and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// The check.
    pub name: CheckName,
    /// How it ended.
    pub outcome: Outcome,
    /// A sentence for people.
    pub what: String,
}

/// The latency of one operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// `put`, `get` or `head`.
    pub operation: &'static str,
    /// The median, in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// The number of requests.
    pub samples: usize,
}

impl Report {
    pub(super) fn new(session: &Session, date: &str) -> Report {
        Report {
            store: session.url().to_string(),
            endpoint: session.endpoint().to_string(),
            addresses: session.addresses().to_vec(),
            addresses_untested: session.addresses_untested(),
            date: date.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            depth: session.depth,
            checks: Vec::new(),
            latencies: Vec::new(),
            requests: 0,
            seconds: 0.0,
            left_behind: None,
        }
    }

    pub(super) fn add(&mut self, name: CheckName, finding: Finding) {
        self.checks.push(CheckResult { name, outcome: finding.outcome, what: finding.what });
    }

    /// Whether a server may use the store: no check has failed.
    pub fn is_fit(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The checks that have failed.
    pub fn failed(&self) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(|check| check.outcome == Outcome::Failed)
    }

    /// The checks that ended with a warning.
    pub fn warnings(&self) -> impl Iterator<Item = &CheckResult> {
        self.checks.iter().filter(|check| check.outcome == Outcome::Warning)
    }

    /// `fit`, or `unfit: ` and the reasons.
    pub fn verdict(&self) -> String {
        if self.is_fit() {
            return "fit".to_string();
        }
        let reasons: Vec<String> =
            self.failed().map(|check| format!("{}: {}", check.name, check.what)).collect();
        format!("unfit: {}", reasons.join("; "))
    }

    /// The report as JSON, with the verdict.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        json["fit"] = self.is_fit().into();
        json["verdict"] = self.verdict().into();
        json
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store:     {}", self.store)?;
        writeln!(f, "endpoint:  {}", self.endpoint)?;
        let addresses: Vec<String> = self.addresses.iter().map(IpAddr::to_string).collect();
        write!(f, "addresses: {}", addresses.join(" "))?;
        match self.addresses_untested {
            0 => writeln!(f)?,
            untested => writeln!(f, " (and {untested} that were not tested)")?,
        }
        writeln!(f, "date:      {}", self.date)?;
        writeln!(f, "lockd:     {}", self.version)?;
        for CheckResult { name, outcome, what } in &self.checks {
            writeln!(f, "{outcome:<8} {name:<18} {what}")?;
        }
        for Latency { operation, p50_ms, p99_ms, samples } in &self.latencies {
            writeln!(f, "latency  {operation:<18} p50={p50_ms:.1}ms p99={p99_ms:.1}ms samples={samples}")?;
        }
        if let Some(why) = &self.left_behind {
            writeln!(f, "note:      {why}")?;
        }
        writeln!(f, "requests:  {} in {:.1} s", self.requests, self.seconds)?;
        writeln!(f, "verdict: {}", self.verdict())
    }
}
