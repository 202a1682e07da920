//! The page: tables and plots in one file, without scripts or requests to anywhere.

use super::svg::{Line, Plot, escape};
use super::{cases, cell, columns, conditions};
use crate::results::{Outcome, Run, Status};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1f2328}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .7rem;border-bottom:1px solid #d0d7de;text-align:right}th:first-child,td:first-child,td.text{text-align:left}\
thead th{border-bottom:2px solid #57606a}tr.lockd td{font-weight:600;background:#fff4f4}tr.weaker td{color:#57606a;font-style:italic}\
td.word{color:#9a6700;text-align:left}svg{width:100%;max-width:860px;height:auto;display:block;margin:1rem 0}\
.title{font:600 15px system-ui}.tick{font:12px system-ui;fill:#57606a}.middle{text-anchor:middle}.end{text-anchor:end}\
.grid{stroke:#eaeef2}polyline{fill:none;stroke-width:2}code{background:#f6f8fa;padding:.1rem .3rem}";

/// The whole page.
pub fn render(run: &Run) -> String {
    let mut body = format!(
        "<h1>lockd beside other systems</h1><p><code>{}</code></p><p>{}</p>{}",
        escape(&run.command),
        escape(&conditions(run)),
        systems(run)
    );
    for plot in plots(run) {
        body += &plot.render();
    }
    for (workload, parameter, outcomes) in cases(run) {
        body += &format!(
            "<h2>{}, {}</h2>{}",
            escape(workload),
            escape(parameter),
            table(run, workload, &outcomes)
        );
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>lockd-bench</title>\
         <style>{STYLE}</style></head><body>{body}</body></html>\n"
    )
}

fn systems(run: &Run) -> String {
    let mut html = String::from(
        "<table><thead><tr><th>system</th><th>confirms</th><th>flushes per cycle, 1 client</th><th>version</th>\
         <th>a lease is</th></tr></thead>",
    );
    for system in &run.systems {
        let version = system.missing.as_ref().map(|why| format!("missing: {why}"));
        let version = version.or(system.version.clone()).unwrap_or_default();
        html += &format!(
            "<tr><td>{}</td><td class=\"text\">{}</td><td>{}</td><td class=\"text\">{}</td><td class=\"text\">{}</td></tr>",
            escape(&system.name),
            system.durability.label(),
            system.flushes_per_cycle.map_or("–".into(), |count| format!("{count:.2}")),
            escape(&version),
            escape(&system.about)
        );
    }
    html + "</table>"
}

fn table(run: &Run, workload: &str, outcomes: &[&Outcome]) -> String {
    let columns = columns(workload);
    let headings: String = columns.iter().map(|column| format!("<th>{}</th>", column.1)).collect();
    let mut html = format!("<table><thead><tr><th>system</th>{headings}</tr></thead>");
    for outcome in outcomes {
        let weaker = run
            .systems
            .iter()
            .any(|system| system.name == outcome.system && system.durability.label().starts_with("weaker"));
        let class = if weaker { "weaker" } else { &outcome.system };
        html += &format!("<tr class=\"{class}\"><td>{}</td>", escape(&outcome.system));
        if outcome.status == Status::Measured {
            for (at, column) in columns.iter().enumerate() {
                html += &format!("<td>{}</td>", cell(outcome, column.0, at == 0));
            }
        } else {
            let reason = escape(outcome.status.reason().unwrap_or_default());
            html += &format!(
                "<td class=\"word\" colspan=\"{}\">{}: {reason}</td>",
                columns.len(),
                outcome.status.word()
            );
        }
        html += "</tr>";
    }
    html + "</table>"
}

/// The plots for which the run has points.
fn plots(run: &Run) -> Vec<Plot> {
    let mut plots = vec![
        by_size(
            run,
            "acquire-release",
            "per_second",
            "Throughput: acquire + release",
            ("clients", "cycles per second"),
        ),
        distribution(run),
        by_size(run, "idle", "memory_mb", "Memory against leases", ("leases", "resident memory, MB")),
        over_time(run),
    ];
    plots.retain(|plot| plot.lines.iter().any(|line| !line.points.is_empty()));
    plots
}

fn lines(run: &Run, points: impl Fn(&str) -> Vec<(f64, f64)>) -> Vec<Line> {
    let all =
        run.systems.iter().map(|system| Line { name: system.name.clone(), points: points(&system.name) });
    all.collect()
}

fn by_size(run: &Run, workload: &str, figure: &str, title: &str, axes: (&'static str, &'static str)) -> Plot {
    let points = |system: &str| {
        let own =
            run.outcomes.iter().filter(|outcome| outcome.system == system && outcome.workload == workload);
        own.filter_map(|outcome| Some((outcome.size, outcome.median(figure)?))).collect()
    };
    Plot { title: title.into(), axes, logarithmic: (true, true), lines: lines(run, points) }
}

/// Of the largest number of clients up to 64.
fn distribution(run: &Run) -> Plot {
    let cycles = || run.outcomes.iter().filter(|outcome| outcome.workload == "acquire-release");
    let clients = cycles().map(|outcome| outcome.size).filter(|size| *size <= 64.0).fold(0.0, f64::max);
    let points = |system: &str| {
        let own = cycles().find(|outcome| outcome.system == system && (outcome.size - clients).abs() < 0.5);
        own.map(|outcome| outcome.cdf.clone()).unwrap_or_default()
    };
    Plot {
        title: format!("Latency of a cycle, cumulative, {clients} clients"),
        axes: ("microseconds", "share of cycles"),
        logarithmic: (true, false),
        lines: lines(run, points),
    }
}

fn over_time(run: &Run) -> Plot {
    let points = |system: &str| {
        let own = run.outcomes.iter().find(|outcome| outcome.system == system && outcome.workload == "mixed");
        own.map(|outcome| outcome.series.clone()).unwrap_or_default()
    };
    Plot {
        title: "Mixed load: p99.9 over time".into(),
        axes: ("seconds", "p99.9, microseconds"),
        logarithmic: (false, true),
        lines: lines(run, points),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_self_contained_and_escaped() {
        let page = render(&crate::report::samples::run());
        assert!(page.contains("cannot &lt;do&gt; it") && page.contains("a &lt;system&gt;"));
        for outside in ["http:", "https:", "<script", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 2, "throughput and distribution have points");
        assert!(!page.contains("NaN"));
    }
}
