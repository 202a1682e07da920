//! `lockd auth list`: the issued certificates, with revoked and expired ones marked.

use std::path::PathBuf;

use clap::Args;
use cli::output::{Column, Output as OutputFormat, print_rows};
use identity::{Denylist, IssuedCertificate, UnixTime};
use serde_json::{Value, json};

use super::args::{Output, RecordSource};
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
    let row = |one: IssuedCertificate| Row { status: status(&one, &denylist, now), one };
    let rows: Vec<Row> = issued.into_iter().map(row).collect();
    let output = if args.json { OutputFormat::Json } else { args.output.output };
    let listed: Vec<Value> = rows.iter().map(Row::json).collect();
    print_rows(output, &json!({"issued": listed}), &COLUMNS, &rows).map_err(|failure| failure.message)
}

fn status(one: &IssuedCertificate, denylist: &Denylist, now: UnixTime) -> &'static str {
    match () {
        () if denylist.contains(one.serial) => "revoked",
        () if now > one.not_after => "expired",
        () => "valid",
    }
}

struct Row {
    one: IssuedCertificate,
    status: &'static str,
}

impl Row {
    fn namespaces(&self) -> Vec<String> {
        self.one.rights.iter().map(|rights| rights.to_string()).collect()
    }

    fn json(&self) -> Value {
        let one = &self.one;
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
}

const COLUMNS: [Column<Row>; 8] = [
    Column::new("SERIAL", |row| row.one.serial.to_string()),
    Column::new("CN", |row| row.one.name.to_string()),
    Column::new("KIND", |row| row.one.kind.as_str().into()),
    Column::new("ROLE", |row| row.one.role.to_string()),
    Column::new("NAMESPACES", |row| row.namespaces().join(",")),
    Column::new("NOT AFTER", |row| rfc3339(row.one.not_after)),
    Column::wide("CA", |row| row.one.ca.to_string()),
    Column::new("STATUS", |row| row.status.into()),
];
