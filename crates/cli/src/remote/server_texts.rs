//! `metrics` and `openapi`: texts that the server makes for programs, in the format of the output.

use std::collections::BTreeMap;

use lockd_client::Client;
use serde::Serialize;
use serde_json::Value;

use super::args::Common;
use super::{CommandResult, Output, client_failure, failed, print, print_bytes};
use crate::output::{Column, print_rows};

/// Prints the metrics: as the server sends them, or its samples.
pub(crate) async fn metrics(client: &Client, common: &Common) -> CommandResult {
    let text = client.metrics().await.map_err(client_failure)?;
    if common.output == Output::Text {
        return print_bytes(text.as_bytes());
    }
    let samples = Samples { samples: text.lines().filter_map(Sample::parse).collect() };
    print_rows(common.output, &samples, &SAMPLE_COLUMNS, &samples.samples)
}

/// Prints the description of the API.
pub(crate) async fn openapi(client: &Client, common: &Common) -> CommandResult {
    let text = client.openapi().await.map_err(client_failure)?;
    if matches!(common.output, Output::Text | Output::Json) {
        return print_bytes(text.as_bytes());
    }
    let document: Value =
        serde_json::from_str(&text).map_err(|error| failed("reading the server's description", &error))?;
    print(common.output, &document, String::new)
}

/// The samples of all metrics. The JSON form is stable: fields are added, never renamed.
#[derive(Serialize)]
struct Samples {
    samples: Vec<Sample>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    /// A number; a text for the values that JSON has no number for, as `+Inf`.
    value: Value,
}

const SAMPLE_COLUMNS: [Column<Sample>; 3] = [
    Column::new("NAME", |sample| sample.name.clone()),
    Column::new("LABELS", |sample| {
        sample.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join(",")
    }),
    Column::new("VALUE", |sample| {
        sample.value.as_str().map_or_else(|| sample.value.to_string(), str::to_string)
    }),
];

impl Sample {
    /// Parses a line of OpenMetrics; `None` for comments.
    fn parse(line: &str) -> Option<Sample> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (name, rest) = line.split_at(line.find(['{', ' '])?);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (BTreeMap::new(), rest),
        };
        let text = rest.split_whitespace().next()?;
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
        Some(Sample { name: name.to_string(), labels, value })
    }
}

/// Parses `name="value",…}`, with `\\`, `\"` and `\n` in values. Returns the rest of the line.
fn labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let (mut labels, mut rest) = (BTreeMap::new(), text);
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), quoted.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_string(), value);
        rest = &quoted[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_openmetrics_is_a_sample() {
        let sample = |labels: &[(&str, &str)], value: Value| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string()));
            Some(Sample { name: "x_total".into(), labels: labels.collect(), value })
        };
        assert_eq!(Sample::parse("x_total 5"), sample(&[], 5.into()));
        assert_eq!(
            Sample::parse(r#"x_total{a="1,}",b="q\"\\\n"} 0.5 1794966000"#),
            sample(&[("a", "1,}"), ("b", "q\"\\\n")], 0.5.into())
        );
        assert_eq!(Sample::parse(r#"x_total{le="+Inf"} +Inf"#), sample(&[("le", "+Inf")], "+Inf".into()));
        for line in ["# HELP x_total Text", "", "# EOF", "x_total{a=\"1", "x_total"] {
            assert_eq!(Sample::parse(line), None, "{line}");
        }
    }
}
