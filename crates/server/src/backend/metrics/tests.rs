//! The reference page lists every metric that is registered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use engine::limits::LimitUsage;
use engine::observe::Measure;
use kernel::Shard;
use store::{Bounds, Seq};

use super::{Metrics, RouteMetrics};
use crate::backend::certificate_dates::{CertificateDate, CertificateUse};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");

mod dashboard;

#[derive(Default)]
struct MetricFamily {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// Every family in the text of `/metrics`, with its labels.
fn rows(text: &str) -> BTreeMap<String, MetricFamily> {
    let mut rows: BTreeMap<String, MetricFamily> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            rows.entry(name.to_string()).or_default().kind = kind.to_string();
        } else if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            rows.entry(name.to_string()).or_default().help = help.trim_end_matches('.').to_string();
        } else if let Some((sample, labels)) = line.split_once('{') {
            let family = |name: &&String| sample.starts_with(name.as_str());
            let name = rows.keys().filter(family).max_by_key(|name| name.len()).cloned().expect("a family");
            let names = labels.split(',').filter_map(|label| label.split_once("=\"")).map(|(name, _)| name);
            let names = names.filter(|name| *name != "le").map(str::to_string);
            rows.get_mut(&name).expect("it was just found").labels.extend(names);
        }
    }
    rows
}

/// Every metric, each with a sample.
fn families() -> BTreeMap<String, MetricFamily> {
    let metrics = Metrics::new();
    RouteMetrics::new("/v1/acquire").responded(&metrics, 200, Duration::from_millis(1));
    let bounds = Bounds { floor: Seq(0), next: Seq(1) };
    metrics.measured(Shard(0), Measure::Append { took: Duration::from_millis(1), bytes: 1, bounds });
    let (name, file) = (String::new(), String::new());
    metrics.certificates(&[CertificateDate { which: CertificateUse::Server, name, not_after: 1, file }], 0);
    metrics.limits(&[LimitUsage { name: "lease_bytes_max", used: 1, max: 2 }]);
    metrics.connection_refused("unix");
    metrics.connection_ended("revoked");
    rows(&metrics.text(&[]))
}

fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\n`GET /metrics`, in the OpenMetrics text format. Names and labels are stable: metrics are added, and not\n\
         renamed. A counter's samples end in `_total`; a histogram's in `_bucket`, `_sum` and `_count`.\n\n\
         This page is generated: `UPDATE_DOCS=1 cargo test -p lockd-server metrics`.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for (name, MetricFamily { kind, help, labels }) in families() {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(page, "| `{name}` | {kind} | {} | {help} |", labels.join(", "))
            .expect("writing to a string");
    }
    page
}

/// A family without a sample is not in the text: two metrics were in neither the page nor the dashboard.
#[test]
fn every_row_of_the_table_is_on_the_page() {
    let families = families();
    for name in Metrics::NAMES {
        let is_row =
            |family: &String| family.strip_prefix("lockd_").is_some_and(|rest| rest.starts_with(name));
        assert!(families.keys().any(is_row), "`families` has no sample of {name}");
    }
    let own = families.keys().filter(|family| family.starts_with("lockd_")).count();
    assert_eq!(own, Metrics::NAMES.len() + 1, "the rows, and the version");
}

#[test]
fn the_reference_page_lists_every_metric() {
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page is writable");
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/metrics.md is stale: run UPDATE_DOCS=1 cargo test -p lockd-server metrics"
    );
}
