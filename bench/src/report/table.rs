//! The table for the terminal.

use super::{cases, cell, columns, conditions};
use crate::results::{Run, Status};

/// All cases as text.
pub fn render(run: &Run) -> String {
    let mut text = format!("{}\n\n", conditions(run));
    for system in &run.systems {
        let version = system.version.clone().or(system.missing.as_ref().map(|why| format!("missing: {why}")));
        let flushes =
            system.flushes_per_cycle.map_or("not counted".to_string(), |count| format!("{count:.2}"));
        text += &format!(
            "{:<21} {:<29} flushes/cycle {flushes:<12} {}\n",
            system.name,
            system.durability.label(),
            version.unwrap_or_default()
        );
    }
    for (workload, parameter, outcomes) in cases(run) {
        let mut rows = vec![vec![format!("{workload}, {parameter}")]];
        rows[0].extend(columns(workload).iter().map(|column| column.1.to_string()));
        for outcome in outcomes {
            let mut row = vec![outcome.system.clone()];
            if outcome.status == Status::Measured {
                let cells = columns(workload).iter().enumerate();
                row.extend(cells.map(|(at, column)| cell(outcome, column.0, at == 0)));
            } else {
                let reason = outcome.status.reason().unwrap_or_default();
                row.push(format!("{}: {reason}", outcome.status.word()));
            }
            rows.push(row);
        }
        text += &format!("\n{}", align(&rows));
    }
    text
}

/// Columns beside each other; the last cell of a short row may be longer than its column.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let full = rows.iter().filter(|row| row.len() == columns);
    let width = |column: usize| full.clone().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..columns).map(width).collect();
    if let Some(first) = widths.first_mut() {
        *first = (*first).max(21);
    }
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.chars().count()))));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_word_and_never_a_number() {
        let text = render(&crate::report::samples::run());
        assert!(text.contains("unsupported: cannot <do> it"), "{text}");
        let line = text.lines().find(|line| line.contains("cannot")).expect("a line");
        assert!(!line.contains(|c: char| c.is_ascii_digit()), "{line}");
    }
}
