//! The formats of the output: text for people, JSON and YAML for programs, tables for both.
//!
//! **Invariant.** With `json` and `yaml` a command prints one document, or one for each event, also if it fails: the
//! server's refusal and the exit code. Text of other clients is escaped in every format.

use std::ffi::OsString;
use std::io::{self, Write};

use api::Refusal;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::exit_codes;
use crate::failure::{CommandResult, Failure, failed};
use crate::stderr::notice;
use crate::untrusted::{escape, escape_lines};

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Human-readable text; of `lockd client acquire`, exports for the shell.
    Text,
    /// One JSON object; a failure too, with its `exit_code`.
    Json,
    /// The same object as YAML.
    Yaml,
    /// Columns with a header for lists, otherwise one line for each field.
    Table,
    /// A table with every column.
    Wide,
}

impl Output {
    /// Whether programs parse it, so that failures are printed in the same format.
    pub fn is_parsed(self) -> bool {
        matches!(self, Output::Json | Output::Yaml)
    }
}

/// Prints a response in a format; `text` is the one for people.
pub fn print(output: Output, response: &impl Serialize, text: impl FnOnce() -> String) -> CommandResult {
    print_bytes(rendered(output, response, text).as_bytes())
}

/// Prints a list: its columns as a table, for people too.
pub fn print_rows<R>(
    output: Output,
    response: &impl Serialize,
    columns: &[Column<R>],
    rows: &[R],
) -> CommandResult {
    let text = match output {
        Output::Text | Output::Table => table(columns, rows, false),
        Output::Wide => table(columns, rows, true),
        Output::Json | Output::Yaml => document(output, response),
    };
    print_bytes(text.as_bytes())
}

/// Prints a response whose text for people has tables in it: the same in all formats for people. `text` is told whether
/// tables are wide.
pub fn print_text(
    output: Output,
    response: &impl Serialize,
    text: impl FnOnce(bool) -> String,
) -> CommandResult {
    match output {
        Output::Json | Output::Yaml => print_bytes(document(output, response).as_bytes()),
        _ => print_bytes(text(output == Output::Wide).as_bytes()),
    }
}

/// A response in a format.
pub fn rendered(output: Output, response: &impl Serialize, text: impl FnOnce() -> String) -> String {
    match output {
        Output::Text => text(),
        Output::Json | Output::Yaml => document(output, response),
        Output::Table | Output::Wide => fields(response),
    }
}

/// One of several documents in the output: a line, or a YAML document of its own. Tables are lines as well: their columns
/// would not be aligned.
pub fn event_text(output: Output, event: &impl Serialize, text: impl FnOnce() -> String) -> String {
    match output {
        Output::Text | Output::Table | Output::Wide => text(),
        Output::Json => document(output, event),
        Output::Yaml => format!("---\n{}", document(output, event)),
    }
}

/// The format that a command line asks for, also if it is invalid; `variable` is looked at if no flag does.
pub fn requested(words: &[OsString], variable: Option<&str>) -> Output {
    let words: Vec<_> =
        words.iter().take_while(|word| *word != "--").map(|word| word.to_string_lossy()).collect();
    let after = |at: usize| words.get(at + 1).map(ToString::to_string);
    let given = words.iter().enumerate().find_map(|(at, word)| match word.as_ref() {
        "--output" => after(at),
        "--json" => Some("json".to_string()),
        word => word.strip_prefix("--output=").map(str::to_string),
    });
    let given = given.or_else(|| variable.and_then(|name| std::env::var(name).ok()));
    given.and_then(|name| Output::from_str(&name, false).ok()).unwrap_or(Output::Text)
}

fn document(output: Output, response: &impl Serialize) -> String {
    let json = serde_json::to_string(response).expect("plain data");
    match output {
        Output::Yaml => {
            // Escaped before the conversion and after it: YAML has no escapes outside of quotes.
            let yaml = yamljson::from_json(json.as_bytes()).unwrap_or_else(|_| escape_lines(&json) + "\n");
            escape_lines(&yaml)
        }
        _ => escape_lines(&json) + "\n",
    }
}

/// A column of a table.
pub struct Column<R> {
    header: &'static str,
    value: fn(&R) -> String,
    /// Only in wide tables.
    is_wide: bool,
}

impl<R> Column<R> {
    /// A column of every table.
    pub const fn new(header: &'static str, value: fn(&R) -> String) -> Column<R> {
        Column { header, value, is_wide: false }
    }

    /// A column of wide tables.
    pub const fn wide(header: &'static str, value: fn(&R) -> String) -> Column<R> {
        Column { header, value, is_wide: true }
    }
}

/// Aligned columns with a header. An empty value is shown as `-`.
pub fn table<R>(columns: &[Column<R>], rows: &[R], is_wide: bool) -> String {
    let columns: Vec<&Column<R>> = columns.iter().filter(|column| is_wide || !column.is_wide).collect();
    let header = columns.iter().map(|column| column.header.to_string()).collect();
    let cell = |column: &&Column<R>, row: &R| {
        let text = escape(&(column.value)(row));
        if text.is_empty() { "-".to_string() } else { text }
    };
    let rows = rows.iter().map(|row| columns.iter().map(|column| cell(column, row)).collect());
    aligned(&std::iter::once(header).chain(rows).collect::<Vec<Vec<String>>>())
}

fn aligned(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// One line for each value of an object; a value within is named by its path, as `leases[0].holder`.
fn fields(response: &impl Serialize) -> String {
    let mut rows = Vec::new();
    add_rows("", serde_json::to_value(response).expect("plain data"), &mut rows);
    aligned(&rows)
}

fn add_rows(path: &str, value: Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                add_rows(&path, value, rows);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (index, item) in items.into_iter().enumerate() {
                add_rows(&format!("{path}[{index}]"), item, rows);
            }
        }
        value => rows.push(vec![escape(path), escape(&cell(&value))]),
    }
}

/// A value that is shown on one line. Nothing is shown as `-`.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() => text.clone(),
        Value::Array(items) if !items.is_empty() => items.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::String(_) | Value::Array(_) | Value::Object(_) | Value::Null => "-".to_string(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Where a failure is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FailureStream {
    /// Standard output is the command's own.
    Stdout,
    /// Standard output belongs to a document or to another command.
    Stderr,
}

/// Reports a failure: a line on standard error, or a document in the format of the output.
pub fn report(program: &str, failure: &Failure, output: Output, stream: FailureStream) {
    if failure.is_shown {
        return;
    }
    if !output.is_parsed() {
        return notice(program, &failure.message);
    }
    let text = document(output, &FailureDocument::new(failure));
    // With the stream closed, the exit code is all that is left to report with.
    drop(match stream {
        FailureStream::Stdout => print_bytes(text.as_bytes()),
        FailureStream::Stderr => {
            io::stderr().write_all(text.as_bytes()).map_err(|error| failed("writing the failure", &error))
        }
    });
}

/// A failure for programs: the server's refusal with the exit code; for other failures an object of the same shape.
#[derive(Serialize)]
#[serde(untagged)]
enum FailureDocument<'a> {
    Refused {
        #[serde(flatten)]
        refusal: &'a Refusal,
        exit_code: u8,
    },
    Local {
        error: &'static str,
        detail: &'a str,
        exit_code: u8,
    },
}

impl FailureDocument<'_> {
    fn new(failure: &Failure) -> FailureDocument<'_> {
        let Failure { code, message, refusal, .. } = failure;
        match refusal {
            Some(refusal) => FailureDocument::Refused { refusal, exit_code: *code },
            None => {
                FailureDocument::Local { error: exit_codes::word(*code), detail: message, exit_code: *code }
            }
        }
    }
}

/// Writes to standard output. A closed pipe is no failure.
pub fn print_bytes(bytes: &[u8]) -> CommandResult {
    write_stdout(bytes).map(drop)
}

/// Writes to standard output and flushes; false if the reader has closed the pipe.
pub fn write_stdout(bytes: &[u8]) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed("writing the output", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_values_are_visible() {
        let columns = [
            Column::<(&str, &str)>::new("KEY", |row| row.0.to_string()),
            Column::wide("OWNER", |row| row.1.to_string()),
        ];
        let rows = [("orders", ""), ("a", "b\u{1b}")];
        assert_eq!(table(&columns, &rows, true), "KEY     OWNER\norders  -\na       b\\u001b\n");
        assert_eq!(table(&columns, &rows, false), "KEY\norders\na\n");
    }

    #[test]
    fn a_failure_has_one_shape_with_or_without_a_refusal() {
        let value =
            |failure: &Failure| serde_json::to_value(FailureDocument::new(failure)).expect("plain data");
        let local = value(&Failure::new(13, "the server cannot be reached"));
        let expected = serde_json::json!({
            "error": "unavailable", "detail": "the server cannot be reached", "exit_code": 13});
        assert_eq!(local, expected);
        let refusal =
            api::Refusal::new(api::Code::Waiting, "blocked").with(|hints| hints.holder = Some("ada".into()));
        let failure = Failure { refusal: Some(Box::new(refusal)), ..Failure::new(10, "not granted") };
        let expected = serde_json::json!({
            "error": "waiting", "detail": "blocked", "holder": "ada", "exit_code": 10});
        assert_eq!(value(&failure), expected);
    }

    #[test]
    fn an_object_is_a_table_of_its_fields() {
        let object = serde_json::json!({
            "key": "orders", "etag": "", "lease": {"n": 1}, "ids": ["a", "b"], "none": [], "no": null,
            "leases": [{"holder": "ada\u{1b}"}, {"holder": "bob"}]});
        assert_eq!(
            rendered(Output::Table, &object, String::new),
            "etag              -\nids               a,b\nkey               orders\nlease.n           1\n\
             leases[0].holder  ada\\u001b\nleases[1].holder  bob\nno                -\nnone              -\n"
        );
    }
}
