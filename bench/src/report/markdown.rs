//! The generated section of a Markdown page, between two markers.

use super::{cases, cell, columns, conditions};
use crate::results::{Run, Status};

/// The line before the generated section.
pub const BEGIN: &str = "<!-- lockd-bench: begin -->";
/// The line after it.
pub const END: &str = "<!-- lockd-bench: end -->";

/// The section, without its markers.
pub fn render(run: &Run) -> String {
    let mut text = String::from("## Beside other systems\n\n");
    text += &format!(
        "Generated from the JSON of `{}` by `lockd-bench report --markdown` ([`bench/`](../../bench/README.md)).\n{}.\n",
        run.command,
        conditions(run)
    );
    text +=
        "Medians over interleaved rounds, with least and most of the first figure. CPU is per operation.\n\n";
    text +=
        "| system | confirms | flushes per cycle, 1 client | version | a lease is |\n|---|---|---|---|---|\n";
    for system in &run.systems {
        let flushes = system.flushes_per_cycle.map_or("–".to_string(), |count| format!("{count:.2}"));
        let version = match (&system.version, &system.missing) {
            (_, Some(why)) => format!("missing: {why}"),
            (version, None) => version.clone().unwrap_or_default(),
        };
        let cells = [&system.name, system.durability.label(), &flushes, &version, &system.about];
        text += &row(cells.map(str::to_string).as_slice());
    }
    for (workload, parameter, outcomes) in cases(run) {
        text += &format!("\n### {workload}, {parameter}\n\n");
        let mut heading = vec!["system".to_string()];
        heading.extend(columns(workload).iter().map(|column| column.1.to_string()));
        text += &row(&heading);
        text += &format!("|{}\n", "---|".repeat(heading.len()));
        for outcome in outcomes {
            let mut cells = vec![outcome.system.clone()];
            for (at, column) in columns(workload).iter().enumerate() {
                cells.push(match outcome.status {
                    Status::Measured => cell(outcome, column.0, at == 0),
                    _ if at == 0 => outcome.status.word().to_string(),
                    _ => String::new(),
                });
            }
            text += &row(&cells);
        }
    }
    text
}

fn row(cells: &[String]) -> String {
    let escaped: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} |\n", escaped.join(" | "))
}

/// Replaces the generated section of a page; a page without markers gets it at its end.
pub fn insert(page: &str, section: &str) -> String {
    let generated = format!("{BEGIN}\n{section}{END}\n");
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    match parts {
        Some((before, after)) => format!("{before}{generated}{}", after.strip_prefix('\n').unwrap_or(after)),
        None => format!("{}\n\n{generated}", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_page_stays() {
        let page = "# Page\n\ntext\n";
        let once = insert(page, "one\n");
        assert_eq!(once, format!("# Page\n\ntext\n\n{BEGIN}\none\n{END}\n"));
        let with_more = format!("{once}\n## After\n");
        let twice = insert(&with_more, "two\n");
        assert_eq!(twice, format!("# Page\n\ntext\n\n{BEGIN}\ntwo\n{END}\n\n## After\n"));
        assert_eq!(insert(&twice, "two\n"), twice);
    }

    #[test]
    fn every_row_has_as_many_cells_as_its_heading() {
        let text = render(&crate::report::samples::run());
        let mut expected = 0;
        for line in text.lines().filter(|line| line.starts_with('|')) {
            let cells = line.matches('|').count();
            if line.starts_with("| system") {
                expected = cells;
            }
            assert_eq!(cells, expected, "{line}");
        }
        assert!(text.contains("| other | unsupported |"), "{text}");
    }
}
