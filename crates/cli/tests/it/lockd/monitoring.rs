//! The alert rules in `packaging/monitoring`: each has a runbook and two tests, and names metrics that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lockd::serve::Running;
use crate::running::until;

/// The least number of alerts.
const ALERTS_MIN: usize = 12;

/// The directory of pages with the steps for one problem each.
const RUNBOOKS: &str = "docs/operating/runbooks";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The values of `name: value` lines.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let value =
        |line: &'a str| line.trim_start().trim_start_matches("- ").strip_prefix(name)?.strip_prefix(": ");
    text.lines().filter_map(value).collect()
}

#[test]
fn every_alert_has_a_runbook_that_exists_and_a_test_that_fires_and_one_that_does_not() {
    let (rules, tests) =
        (read("packaging/monitoring/lockd.rules.yml"), read("packaging/monitoring/lockd.rules.test.yml"));
    let (alerts, runbooks) = (values(&rules, "alert"), values(&rules, "runbook"));
    assert!(alerts.len() >= ALERTS_MIN, "{alerts:?}");
    assert_eq!(alerts.len(), runbooks.len());
    let names = values(&tests, "name");
    for alert in &alerts {
        assert!(names.contains(&format!("{alert} fires").as_str()), "{alert}");
        assert!(names.contains(&format!("{alert} stays silent").as_str()), "{alert}");
    }
    for runbook in runbooks {
        let (page, anchor) = runbook.split_once('#').unwrap_or((runbook, ""));
        if page.starts_with(RUNBOOKS) && !root().join(RUNBOOKS).exists() {
            println!("skipped: this tree has no runbooks: {page}");
            continue;
        }
        let text = read(page);
        let is_titled = |line: &str| line.starts_with('#') && line.to_lowercase().contains(anchor);
        assert!(text.lines().any(is_titled), "{runbook}: no such section");
    }
}

/// A metric that was renamed would silence an alert without a trace.
#[test]
fn every_metric_of_an_alert_is_one_that_the_server_has() {
    let (rules, page) = (read("packaging/monitoring/lockd.rules.yml"), read("docs/reference/metrics.md"));
    let known: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(known.len() > 20, "the page has another form");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for expression in values(&rules, "expr") {
        for name in expression.split(|c: char| !is_name(c)).filter(|word| word.starts_with("lockd_")) {
            let family = name.trim_end_matches("_total").trim_end_matches("_bucket");
            assert!(known.contains(family), "{name} in {expression}");
        }
    }
}

#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    let dir = root().join("packaging/monitoring");
    for arguments in [["check", "rules", "lockd.rules.yml"], ["test", "rules", "lockd.rules.test.yml"]] {
        let ran = Command::new("promtool").args(arguments).current_dir(&dir).output();
        let Ok(ran) = ran else {
            println!("skipped: promtool is not installed (Debian package prometheus)");
            return;
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(ran.status.success(), "{arguments:?}: {}{}", text(&ran.stdout), text(&ran.stderr));
    }
}

/// A runbook named a metric that did not exist.
#[test]
fn every_metric_that_a_page_names_is_one_that_the_server_has() {
    let page = read("docs/reference/metrics.md");
    let known: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let list = |dir: &str| {
        let entries =
            std::fs::read_dir(root().join(dir)).expect("pages").map(|entry| entry.expect("readable").path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect::<Vec<_>>()
    };
    // Crates have such names too.
    let is_metric = |word: &&str| word.starts_with("lockd_") && !matches!(*word, "lockd_server" | "lockd_");
    let (mut named, is_name) = (0, |c: char| c.is_ascii_lowercase() || c == '_');
    for path in list("docs/operating").into_iter().chain(list(RUNBOOKS)) {
        let text = std::fs::read_to_string(&path).expect("text");
        for name in text.split(|c: char| !is_name(c)).filter(is_metric) {
            let family = ["_total", "_info", "_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            assert!(
                known.contains(name) || family.is_some_and(|name| known.contains(name)),
                "{name} in {path:?}"
            );
            named += 1;
        }
    }
    assert!(named > 30, "only {named} were found");
}

/// The value of a series in the text of `/metrics`.
fn value(text: &str, series: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in {text}"))
}

#[test]
fn free_disk_space_the_oldest_waiter_the_start_and_every_limit_are_measured() {
    let data = tempfile::tempdir().expect("a directory");
    let before = f64::from(u32::try_from(cli::times::now_unix_ms() / 1000).expect("before 2106"));
    let server = Running::start(data.path(), &[]);
    let client = data.path().join("client.pem");
    let mut connection = server.connect(&client);
    connection.ask("POST", "/v1/acquire", r#"{"key":"taken"}"#).expect("granted");
    assert_eq!(connection.ask("POST", "/v1/acquire", r#"{"key":"taken"}"#).expect("a refusal").0, 409);
    let mut waiting = server.connect(&client);
    waiting.begin("POST", "/v1/acquire", "", r#"{"key":"taken","block_seconds":60}"#).expect("sent");
    let mut text = String::new();
    until("the waiter is seen", || {
        text = connection.ask("GET", "/metrics", "").expect("metrics").1;
        value(&text, "lockd_oldest_waiter_seconds") > 0.0
    });
    assert!((before..before + 600.0).contains(&value(&text, "lockd_start_time_seconds")), "{text}");
    let (free, size) = (value(&text, "lockd_disk_free_bytes"), value(&text, "lockd_disk_size_bytes"));
    assert!(free > 0.0 && free <= size, "{free} {size}");
    assert_eq!(value(&text, "lockd_ready").to_bits(), 1.0_f64.to_bits());
    assert!(value(&text, r#"lockd_http_requests_total{path="/v1/acquire",status="409"}"#) > 0.0);
    assert!(value(&text, r#"lockd_refusals_total{code="waiting"}"#) > 0.0);
    let limits =
        text.lines().filter_map(|line| line.strip_prefix("lockd_limit_bytes{limit=\"")?.split('"').next());
    let limits: Vec<&str> = limits.collect();
    assert_eq!(
        limits.len(),
        8,
        "leases, waiters, names, bodies, responses, requests, refusals, histories: {limits:?}"
    );
    for limit in &limits {
        let used = value(&text, &format!("lockd_limit_used_bytes{{limit=\"{limit}\"}}"));
        assert!(used <= value(&text, &format!("lockd_limit_bytes{{limit=\"{limit}\"}}")), "{limit}");
    }
    for used in ["lease_bytes_max", "waiter_bytes_max"] {
        assert!(value(&text, &format!("lockd_limit_used_bytes{{limit=\"{used}\"}}")) > 0.0, "{used}");
    }
}
