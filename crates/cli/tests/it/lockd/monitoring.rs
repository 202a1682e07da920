//! The alert rules in `packaging/monitoring`: each has a runbook and two tests, and names metrics that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

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
