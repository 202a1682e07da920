//! The output of a command: one JSON object, the same as YAML or as a table, or a few lines of text.

use std::io::Write;
use std::process::ExitCode;

use cli::output::{Output, rendered};
use cli::untrusted::escape_lines;
use serde::Serialize;
use serde_json::{Value, json};
use worktree::error::Error;
use worktree::history::DamagedRecord;
use worktree::record::with_rfc3339;

/// The result of a command.
pub(crate) struct CommandOutput {
    data: Value,
    text: String,
    exit_code: u8,
}

impl CommandOutput {
    /// `data` for programs, with RFC 3339 text added for every time, and `text` for people.
    pub(crate) fn new(data: impl Serialize, text: impl Into<String>) -> Self {
        let data = serde_json::to_value(data).expect("results are plain data");
        Self { data: with_rfc3339(data), text: text.into(), exit_code: 0 }
    }

    /// The same with another exit code.
    pub(crate) fn with_exit_code(mut self, exit_code: u8) -> Self {
        self.exit_code = exit_code;
        self
    }

    /// The same with the records that could not be read: a list in the data, a line each, and exit code 1.
    pub(crate) fn with_damaged(mut self, damaged: &[DamagedRecord]) -> Self {
        if damaged.is_empty() {
            return self;
        }
        let entry = |one: &DamagedRecord| json!({"subject": one.subject, "class": one.error.class().name(), "detail": one.error.detail()});
        self.data["damaged"] = damaged.iter().map(entry).collect();
        for one in damaged {
            let line = format!("\ndamaged {}: {}", one.subject, one.error);
            self.text = self.text.trim_end().to_owned() + &line;
        }
        self.exit_code = 1;
        self
    }

    /// Prints the result; returns the exit code.
    pub(crate) fn print(&self, output: Output) -> ExitCode {
        let line = match output {
            Output::Text => escape_lines(&self.text),
            Output::Table | Output::Wide if self.data.is_null() => String::new(),
            Output::Table | Output::Wide => rendered(output, &self.data, String::new),
            Output::Json | Output::Yaml => {
                rendered(output, &json!({"ok": true, "data": self.data}), String::new)
            }
        };
        if !line.is_empty() {
            // A closed pipe does not make a completed command fail.
            drop(writeln!(std::io::stdout(), "{}", line.trim_end_matches('\n')));
        }
        ExitCode::from(self.exit_code)
    }
}

/// Prints an error: as an object on standard output, or as a line on standard error.
pub(crate) fn print_error(error: &Error, output: Output, exit_code: u8) -> ExitCode {
    if output.is_parsed() {
        let mut fields = error.facts().clone();
        fields.insert("class".into(), error.class().name().into());
        fields.insert("detail".into(), error.detail().into());
        let response = json!({"ok": false, "error": with_rfc3339(Value::Object(fields))});
        drop(std::io::stdout().write_all(rendered(output, &response, String::new).as_bytes()));
    } else {
        drop(writeln!(std::io::stderr(), "jvs: {}", escape_lines(&error.to_string())));
    }
    ExitCode::from(exit_code)
}
