//! Tests whether an object store can be trusted with a log: whether of several creators of one name exactly one wins, and
//! whether reads and lists show at once what was written.
//!
//! **Invariant.** The statuses of responses decide, each of a request that was sent once. A race with fewer than two
//! responses proves nothing, and fails. Everything that the probe writes is under a fresh random prefix, `probe/<16 hex
//! digits>/` inside the store's, and is removed at the end, also after a failure.
//!
//! **What would break it.** Creating objects one after the other only: several stores check the condition, and then write
//! without holding it. Testing one address only: a store behind several may hold the condition on some of them.
//!
//! **What is absent.** A proof: a store that passes may lose the condition when a part of it fails. No probe sees
//! asynchronous replication to another region.
//!
//! In reading order: `report` is the result; `session` has the clients and the names; then come the checks: `basics`,
//! `race`, `pairs`, `visibility`, `bucket_rules`, `latency`.

mod report;
mod session;
mod basics;
mod race;
mod pairs;
mod visibility;
mod bucket_rules;
mod latency;

use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::time::Duration;

use store::object::ObjectsError;
use tokio::time::Instant;

use crate::options::BucketOptions;
use crate::url::BucketUrl;

pub use report::{CheckName, CheckResult, Latency, Outcome, Report};
use session::{Finding, Session};

/// The time that all checks have together.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time that the removal of the probe's objects has.
const CLEANUP: Duration = Duration::from_secs(20);
/// The longest time that one request of a probe may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts of a check whose requests fail for a reason that may pass.
const ATTEMPTS: u32 = 3;
/// The pause before the second attempt; then it grows.
const PAUSE: Duration = Duration::from_millis(100);

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeDepth {
    /// At the start of a server whose store exists: less than 200 requests.
    Short,
    /// Before a store is created, by an operator or by the server that creates it: less than 2,000 requests.
    Full,
}

impl ProbeDepth {
    /// Rounds of a race, and creators in each.
    fn race(self) -> (u32, usize) {
        match self {
            ProbeDepth::Short => (4, 16),
            ProbeDepth::Full => (20, 32),
        }
    }

    /// The most addresses of the endpoint that are tested. Every ordered pair of them is.
    fn addresses_max(self) -> usize {
        match self {
            ProbeDepth::Short => 3,
            ProbeDepth::Full => 8,
        }
    }

    fn checks(self) -> &'static [CheckName] {
        match self {
            ProbeDepth::Short => &[
                CheckName::MissingObject,
                CheckName::ConditionalCreate,
                CheckName::RacingCreators,
                CheckName::AddressPairs,
                CheckName::ListAfterPut,
                CheckName::HeadAfterDelete,
                CheckName::Lifecycle,
            ],
            ProbeDepth::Full => &CheckName::ALL,
        }
    }
}

/// How far a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The check that is under way.
    pub check: CheckName,
    /// Requests so far.
    pub requests: u64,
    /// About as many requests will have been sent at the end.
    pub requests_expected: u64,
}

/// Probes a store, and blocks until the report is complete, for a minute and a half at most.
///
/// The checks go through these addresses of the endpoint; without any, through those that its name resolves to. The report
/// shows `date`. `progress` is called from this thread. The error says what is wrong with the options.
pub fn probe(
    url: &BucketUrl,
    options: &BucketOptions,
    addresses: &[IpAddr],
    depth: ProbeDepth,
    date: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, String> {
    probe_within(DEADLINE, url, options, addresses, depth, date, progress)
}

fn probe_within(
    deadline: Duration,
    url: &BucketUrl,
    options: &BucketOptions,
    addresses: &[IpAddr],
    depth: ProbeDepth,
    date: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, String> {
    let timeout = options.timeout.min(REQUEST_TIMEOUT);
    let options = BucketOptions { timeout, address: None, ..options.clone() };
    let (events, received) = channel();
    let session = Session::open(url, &options, addresses, depth, events)?;
    let report = Report::new(&session, date);
    let (send, finished) = channel();
    let runner = session.runner();
    runner.runtime.spawn(async move {
        let report = run(session, report, deadline).await;
        let _ = send.send(report);
    });
    // The task drops the other end when it ends.
    received.iter().for_each(progress);
    finished.recv().map_err(|_| "the probe has ended without a report".to_string())
}

/// All checks, and then the removal of what they have written.
async fn run(session: Session, mut report: Report, deadline: Duration) -> Report {
    let began = Instant::now();
    let mut stopped = None;
    for check in session.depth.checks() {
        session.progress(*check);
        let finding = match stopped {
            Some(failed) => Finding::skipped(format!("the check {failed} has failed")),
            None => limited(&session, *check, began + deadline).await,
        };
        if finding.is_last {
            stopped = Some(*check);
        }
        report.add(*check, finding);
    }
    report.latencies = session.latencies();
    report.seconds = began.elapsed().as_secs_f64();
    if let Err(why) =
        tokio::time::timeout(CLEANUP, session.remove_all()).await.unwrap_or_else(|_| timed_out())
    {
        report.left_behind =
            Some(format!("objects of the probe may be left: {why} prefix={}", session.prefix()));
    }
    report.requests = session.requests();
    report
}

fn timed_out() -> Result<(), String> {
    Err(format!("their removal took longer than {} s", CLEANUP.as_secs()))
}

/// One check, until the deadline of all of them.
async fn limited(session: &Session, check: CheckName, deadline: Instant) -> Finding {
    let late = || Finding::failed("the store is too slow: the probe was not finished in time").last();
    if Instant::now() >= deadline {
        return late();
    }
    tokio::time::timeout_at(deadline, repeated(session, check)).await.unwrap_or_else(|_| late())
}

/// One check, again if its requests fail for a reason that may pass.
async fn repeated(session: &Session, check: CheckName) -> Finding {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match once(session, check, attempt).await {
            Ok(finding) => return finding,
            Err(error) if error.is_transient() && attempt < ATTEMPTS => {
                tokio::time::sleep(PAUSE * attempt).await;
            }
            Err(error) => return Finding::failed(error.to_string()).last(),
        }
    }
}

async fn once(session: &Session, check: CheckName, attempt: u32) -> Result<Finding, ObjectsError> {
    match check {
        CheckName::MissingObject => basics::missing_object(session, attempt).await,
        CheckName::ConditionalCreate => basics::conditional_create(session, attempt).await,
        CheckName::RacingCreators => Ok(race::racing_creators(session).await),
        CheckName::AddressPairs => pairs::address_pairs(session, attempt).await,
        CheckName::ListAfterPut => visibility::list_after_put(session, attempt).await,
        CheckName::HeadAfterDelete => visibility::head_after_delete(session, attempt).await,
        CheckName::Multipart => basics::multipart(session, attempt).await,
        CheckName::Lifecycle => Ok(bucket_rules::lifecycle(session).await),
        CheckName::Versioning => Ok(bucket_rules::versioning(session).await),
        CheckName::Latency => latency::latency(session, attempt).await,
    }
}

#[cfg(test)]
mod tests {
    use objectserver::{Dialect, ObjectServer, ServerOptions};

    use super::*;
    use crate::static_credentials::StaticCredentials;

    /// A store that answers each request after a while: the probe ends, says so, and removes what it has written.
    #[test]
    fn a_probe_ends_at_its_deadline() {
        let latency = Duration::from_millis(100);
        let server = ServerOptions { latency, ..ServerOptions::new(Dialect::S3, "trial") };
        let server = ObjectServer::start(server).expect("a free port");
        let credentials = Some(StaticCredentials::AccessKey {
            id: "any".into(),
            secret: "any".into(),
            session_token: None,
        });
        let options =
            BucketOptions { endpoint: Some(server.endpoint()), credentials, ..BucketOptions::default() };
        let url = BucketUrl::parse("s3://trial/prod").expect("a URL");
        let deadline = Duration::from_millis(450);
        let report = probe_within(deadline, &url, &options, &[], ProbeDepth::Full, "today", &mut |_| {});
        let report = report.expect("valid options");
        assert!(report.verdict().contains("not finished in time"), "{report}");
        assert!(report.checks.iter().any(|check| check.outcome == Outcome::Skipped), "{report}");
        assert_eq!(report.checks.len(), CheckName::ALL.len(), "{report}");
    }
}
