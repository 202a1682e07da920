//! The Grafana dashboard in `packaging/monitoring`: a panel for every metric in the table.

use serde_json::{Value, json};

use super::{MetricFamily, families};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring/lockd-dashboard.json");

/// Panels side by side, of a width that adds up to Grafana's 24 columns.
const COLUMNS: usize = 3;
const WIDTH: usize = 24 / COLUMNS;
const HEIGHT: usize = 7;

/// The rows of the dashboard, each with the beginnings of its metrics' names. The last takes the rest.
const ROWS: [(&str, &[&str]); 6] = [
    ("State", &["lockd_ready", "lockd_start", "lockd_build", "lockd_limit", "lockd_disk"]),
    (
        "Leases",
        &[
            "lockd_leases",
            "lockd_waiters",
            "lockd_oldest",
            "lockd_grants",
            "lockd_lease_ends",
            "lockd_handoff",
        ],
    ),
    (
        "Requests",
        &[
            "lockd_http",
            "lockd_refusals",
            "lockd_conn",
            "lockd_handshakes",
            "lockd_certificate",
            "lockd_reloads",
        ],
    ),
    ("Log and store", &["lockd_log", "lockd_snapshots", "lockd_upkeep", "lockd_blobs"]),
    ("Audit log", &["lockd_audit"]),
    ("Tables and process", &[""]),
];

fn dashboard() -> String {
    let families = families();
    let row_of = |name: &str| {
        let is_of = |(_, starts): &(&str, &[&str])| starts.iter().any(|start| name.starts_with(start));
        ROWS.iter().position(is_of).expect("the last row takes all")
    };
    let (mut panels, mut top) = (Vec::new(), 0);
    for (row, (title, _)) in ROWS.iter().enumerate() {
        panels.push(json!({
            "id": panels.len() + 1, "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        }));
        top += 1;
        let of_row: Vec<_> = families.iter().filter(|(name, _)| row_of(name) == row).collect();
        for (at, (name, family)) in of_row.iter().enumerate() {
            let (x, y) = (at % COLUMNS * WIDTH, top + at / COLUMNS * HEIGHT);
            panels.push(panel(panels.len() + 1, name, family, (x, y)));
        }
        top += of_row.len().div_ceil(COLUMNS) * HEIGHT;
    }
    let variable = |name: &str, more: Value| {
        let mut variable = json!({"name": name, "label": name, "hide": 0});
        variable.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        variable
    };
    let instance = json!({
        "type": "query", "query": "label_values(lockd_ready, instance)", "refresh": 2, "includeAll": true, "multi": true,
        "datasource": {"type": "prometheus", "uid": "${datasource}"}, "current": {"text": "All", "value": "$__all"},
    });
    let document = json!({
        "uid": "lockd", "title": "lockd", "tags": ["lockd"], "schemaVersion": 39, "editable": true,
        "time": {"from": "now-6h", "to": "now"}, "refresh": "30s", "panels": panels,
        "templating": {"list": [
            variable("datasource", json!({"type": "datasource", "query": "prometheus"})),
            variable("instance", instance),
        ]},
    });
    serde_json::to_string_pretty(&document).expect("plain data") + "\n"
}

fn panel(id: usize, name: &str, family: &MetricFamily, (x, y): (usize, usize)) -> Value {
    let targets: Vec<Value> = queries(name, family)
        .into_iter()
        .zip(["A", "B"])
        .map(
            |((query, legend), reference)| json!({"refId": reference, "expr": query, "legendFormat": legend}),
        )
        .collect();
    let unit = match name {
        _ if name.contains("start_time") => "dateTimeFromNow",
        _ if family.kind == "counter" => "cps",
        _ if name.ends_with("_seconds") => "s",
        _ if name.ends_with("_bytes") => "bytes",
        _ => "short",
    };
    json!({
        "id": id, "type": "timeseries", "title": name, "description": family.help,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    })
}

/// The queries of a metric with their legends: its value, its rate, or two quantiles.
fn queries(name: &str, family: &MetricFamily) -> Vec<(String, String)> {
    let chosen = r#"{instance=~"$instance"}"#;
    let labels: Vec<&str> =
        std::iter::once("instance").chain(family.labels.iter().map(String::as_str)).collect();
    let legend = labels.iter().map(|label| format!("{{{{{label}}}}}")).collect::<Vec<_>>().join(" ");
    let by = labels.join(", ");
    match family.kind.as_str() {
        "counter" => vec![(format!("sum by ({by}) (rate({name}_total{chosen}[5m]))"), legend)],
        "histogram" => [("0.5", "p50"), ("0.99", "p99")]
            .map(|(quantile, shown)| {
                let rates = format!("sum by (le, {by}) (rate({name}_bucket{chosen}[5m]))");
                (format!("histogram_quantile({quantile}, {rates})"), format!("{shown} {legend}"))
            })
            .to_vec(),
        "info" => vec![(format!("{name}_info{chosen}"), legend)],
        _ => vec![(format!("{name}{chosen}"), legend)],
    }
}

#[test]
fn the_dashboard_has_a_panel_for_every_metric_and_is_current() {
    let made = dashboard();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(FILE, &made).expect("the file is writable");
    }
    let written = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        written == made,
        "packaging/monitoring/lockd-dashboard.json is stale: run UPDATE_DOCS=1 cargo test -p lockd-server metrics"
    );
    let document: Value = serde_json::from_str(&made).expect("JSON");
    let panels = document["panels"].as_array().expect("panels");
    let titles: Vec<_> = panels.iter().filter_map(|panel| panel["title"].as_str()).collect();
    for name in families().keys() {
        assert!(titles.contains(&name.as_str()), "{name}");
    }
    let places: std::collections::BTreeSet<String> =
        panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
    assert_eq!(places.len(), panels.len(), "two panels at one place");
}
