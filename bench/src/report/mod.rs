//! Reports made from the JSON of a run: a table for the terminal, Markdown, and a page with plots.

pub mod html;
pub mod markdown;
pub mod svg;
pub mod table;

use crate::results::{Outcome, Run, spread};

/// A figure of a workload: its name in the JSON, and its heading.
pub type Column = (&'static str, &'static str);

/// The figures that tables show for a workload, the first of which is the one to compare.
pub fn columns(workload: &str) -> &'static [Column] {
    match workload {
        "hand-off" => &[
            ("per_second", "owner changes/s"),
            ("p50_us", "wait p50 µs"),
            ("p99_us", "p99 µs"),
            ("longest_by_mean", "longest ÷ mean"),
            ("server_us", "server CPU µs"),
        ],
        "herd" => &[
            ("per_second", "hand-offs/s"),
            ("seconds", "all served, s"),
            ("server_us", "server CPU µs"),
            ("bytes_per_waiter", "bytes/waiter"),
        ],
        "idle" => &[
            ("bytes_per_lease", "bytes/lease"),
            ("memory_mb", "memory MB"),
            ("granted_per_second", "granted/s"),
            ("renewed_per_second", "renewed/s"),
            ("server_cores", "server cores"),
        ],
        "renewals" => &[
            ("p99_us", "p99 µs"),
            ("p50_us", "p50 µs"),
            ("max_us", "longest µs"),
            ("per_second", "renewals/s"),
            ("server_cores", "server cores"),
        ],
        "expiry-storm" => &[("last_gone_ms", "last gone, ms"), ("server_us", "server CPU µs/lease")],
        "restart" => &[
            ("first_grant_s", "first grant, s"),
            ("ready_s", "first response, s"),
            ("memory_mb", "memory MB"),
        ],
        "mixed" => &[
            ("per_second", "operations/s"),
            ("p50_us", "p50 µs"),
            ("p999_us", "p99.9 µs"),
            ("p999_by_p50", "p99.9 ÷ p50"),
            ("server_us", "server CPU µs"),
        ],
        _ => &[
            ("per_second", "cycles/s"),
            ("p50_us", "p50 µs"),
            ("p99_us", "p99 µs"),
            ("server_us", "server CPU µs"),
            ("client_us", "client CPU µs"),
        ],
    }
}

/// The cases of a run, each with its outcomes, in order.
pub fn cases(run: &Run) -> Vec<(&str, &str, Vec<&Outcome>)> {
    let mut cases: Vec<(&str, &str, Vec<&Outcome>)> = Vec::new();
    for outcome in &run.outcomes {
        match cases.iter_mut().find(|case| case.0 == outcome.workload && case.1 == outcome.parameter) {
            Some(case) => case.2.push(outcome),
            None => cases.push((&outcome.workload, &outcome.parameter, vec![outcome])),
        }
    }
    cases
}

/// A cell: the median, and for the first column the spread over the rounds.
pub fn cell(outcome: &Outcome, figure: &str, with_spread: bool) -> String {
    let Some(median) = outcome.median(figure) else { return "–".to_string() };
    let values = &outcome.figures[figure];
    if !with_spread || values.len() < 2 {
        return number(median);
    }
    let (least, most) = spread(values);
    format!("{} ({} to {})", number(median), number(least), number(most))
}

/// Three significant digits, with thousands apart.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_string();
    }
    match value.abs() {
        large if large >= 1000.0 => {
            let scale = 10f64.powi(large.log10().floor() as i32 - 2);
            crate::workloads::grouped(((value / scale).round() * scale) as usize)
        }
        hundreds if hundreds >= 100.0 => format!("{value:.0}"),
        tens if tens >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// One line about the machine and its load.
pub fn conditions(run: &Run) -> String {
    let busy = if run.load_before > 0.5 { "; the machine was busy with other work" } else { "" };
    format!("{}; load before the run {:.2}{busy}; {:.0} s", run.machine, run.load_before, run.seconds)
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::results::{Status, SystemInfo};
    use crate::system::Durability;

    /// A run with two systems that were measured, and one that refused.
    pub(crate) fn run() -> Run {
        let outcome = |system: &str, size: f64, rate: f64, status: Status| Outcome {
            workload: "acquire-release".into(),
            parameter: format!("{size} clients"),
            size,
            system: system.into(),
            figures: match status {
                Status::Measured => [("per_second".to_string(), vec![rate, rate * 2.0, rate * 1.5])].into(),
                _ => Default::default(),
            },
            status,
            cdf: vec![(10.0, 0.5), (1000.0, 1.0)],
            series: Vec::new(),
        };
        let system = |name: &str| SystemInfo {
            name: name.into(),
            about: "a <system>".into(),
            durability: Durability::Flushed,
            version: Some("1".into()),
            missing: None,
            flushes_per_cycle: Some(2.0),
        };
        Run {
            command: "lockd-bench run".into(),
            machine: "a machine".into(),
            systems: vec![system("lockd"), system("other")],
            outcomes: vec![
                outcome("lockd", 1.0, 1000.0, Status::Measured),
                outcome("other", 1.0, 0.0, Status::Unsupported("cannot <do> it".into())),
                outcome("lockd", 64.0, 12_345.0, Status::Measured),
                outcome("other", 64.0, 7.0, Status::Measured),
            ],
            ..Run::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.123, 12.34, 123.4, 1234.5, 1_234_567.0].map(number);
        assert_eq!(texts, ["0.12", "12.3", "123", "1,230", "1,230,000"]);
    }

    #[test]
    fn outcomes_are_grouped_by_case_and_a_refusal_has_no_number() {
        let run = samples::run();
        let cases = cases(&run);
        assert_eq!(cases.len(), 2);
        assert_eq!(cell(cases[0].2[0], "per_second", true), "1,500 (1,000 to 2,000)");
        assert_eq!(cell(cases[0].2[1], "per_second", true), "–");
    }
}
