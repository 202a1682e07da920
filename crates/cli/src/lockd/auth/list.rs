//! `lockd auth list`: the issued certificates, with revoked and expired ones marked.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use cli::untrusted::{escape, escape_lines};
use identity::{Denylist, IssuedCertificate, UnixTime};
use serde_json::{Value, json};

use super::args::{Output, OutputFormat, RecordSource};
use super::view::rfc3339;
use super::{now, read_denylist, read_server, record};

#[derive(Args)]
#[command(after_help = "Example:\n  \
                        lockd auth list --server-in server.pem\n  \
                        lockd auth list --ca-in ~/lockd-ca/ca.pem --json | jq -r '.issued[] | select(.status == \"valid\") | .cn'")]
pub(crate) struct List {
    /// Identity file of a server: its denylist marks revoked certificates, and the record is looked for next to it.
    #[arg(long, value_name = "FILE")]
    server_in: Option<PathBuf>,
    #[command(flatten)]
    record: RecordSource,
    /// Additional denylist: one serial per line, # starts a comment.
    #[arg(long, value_name = "FILE")]
    denylist_path: Option<PathBuf>,
    /// Print one JSON object; the same as --output json.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: Output,
}

impl List {
    /// Checks that there is a place to look in.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.server_in.is_none() && self.record.ca_in.is_none() && self.record.issued.is_none() {
            return Err("pass --server-in server.pem, --ca-in ca.pem or --issued FILE");
        }
        Ok(())
    }
}

pub(crate) fn list(args: &List) -> Result<(), String> {
    let server = args.server_in.as_deref().map(read_server).transpose()?;
    let mut denylist = read_denylist(args.denylist_path.as_deref())?;
    if let Some(server) = &server {
        denylist = denylist.union(server.denylist());
    }
    let anchors = server.as_ref().map(identity::ServerBundle::anchors);
    let issued = record::read(&args.record, args.server_in.as_deref(), anchors)?;
    let now = now();
    let rows: Vec<Row> = issued.iter().map(|one| Row { one, status: status(one, &denylist, now) }).collect();
    let text = match args.output.output {
        OutputFormat::Text if !args.json => table(&rows),
        _ => {
            let issued: Vec<Value> = rows.iter().map(Row::json).collect();
            escape_lines(&json!({"issued": issued}).to_string()) + "\n"
        }
    };
    // A closed pipe is no failure.
    drop(std::io::stdout().write_all(text.as_bytes()));
    Ok(())
}

fn status(one: &IssuedCertificate, denylist: &Denylist, now: UnixTime) -> &'static str {
    match () {
        () if denylist.contains(one.serial) => "revoked",
        () if now > one.not_after => "expired",
        () => "valid",
    }
}

struct Row<'a> {
    one: &'a IssuedCertificate,
    status: &'static str,
}

impl Row<'_> {
    fn namespaces(&self) -> Vec<String> {
        self.one.rights.iter().map(|rights| rights.to_string()).collect()
    }

    fn json(&self) -> Value {
        let one = self.one;
        json!({
            "serial": one.serial.to_string(),
            "cn": one.name.as_str(),
            "kind": one.kind.as_str(),
            "role": one.role.as_str(),
            "namespaces": self.namespaces(),
            "not_after": rfc3339(one.not_after),
            "not_after_unix": one.not_after.as_secs(),
            "ca": one.ca.to_string(),
            "status": self.status,
        })
    }

    fn columns(&self) -> [String; 7] {
        let one = self.one;
        [
            one.serial.to_string(),
            one.name.to_string(),
            one.kind.as_str().into(),
            one.role.to_string(),
            Some(self.namespaces().join(",")).filter(|list| !list.is_empty()).unwrap_or_else(|| "-".into()),
            rfc3339(one.not_after),
            self.status.into(),
        ]
    }
}

/// A table with a header; each column is as wide as its widest value.
fn table(rows: &[Row<'_>]) -> String {
    let header = ["SERIAL", "CN", "KIND", "ROLE", "NAMESPACES", "NOT AFTER", "STATUS"].map(String::from);
    let lines: Vec<[String; 7]> = [header].into_iter().chain(rows.iter().map(Row::columns)).collect();
    let width =
        |column: usize| lines.iter().map(|line| escape(&line[column]).chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let padded = |line: &[String; 7]| {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{:width$}", escape(cell)));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    lines.iter().map(padded).collect()
}
