//! What happened to a resource, and what the server knows about the caller.

use api::history::{Caller, History, HistoryEntry, HistoryLimit};
use lockd_client::Client;

use super::args::Common;
use super::views::{ResourceArg, resource_text};
use crate::failure::{CommandResult, client_failure};
use crate::output::{Column, print_text, table};
use crate::times::unix_ms_text;
use crate::untrusted::{escape, word};

/// Prints the history of a resource, oldest entry first.
pub(crate) async fn history(client: &Client, common: &Common, args: &ResourceArg) -> CommandResult {
    let history = client.history(&args.resource, common.connection.namespace.as_deref()).await;
    let history: History = history.map_err(client_failure)?;
    print_text(common.output, &history, |is_wide| {
        let name = resource_text(&history.kind, &history.name);
        let limit = match history.limited_by {
            HistoryLimit::Age => "one hour",
            HistoryLimit::Start => "the start of the server",
            HistoryLimit::Size => "its maximum size",
        };
        let since = unix_ms_text(history.since_unix_ms);
        let head = format!("{name} namespace={} since={since}: {limit}", word(&history.namespace));
        let rows = if history.entries.is_empty() {
            "nothing has happened\n".to_string()
        } else {
            table(&COLUMNS, &history.entries, is_wide)
        };
        escape(&head) + "\n" + &rows
    })
}

const COLUMNS: [Column<HistoryEntry>; 7] = [
    Column::new("AT", |entry| unix_ms_text(entry.at_unix_ms)),
    Column::new("EVENT", |entry| match &entry.how {
        Some(how) => format!("{}:{how}", entry.event),
        None => entry.event.clone(),
    }),
    Column::new("HOLDER", |entry| word(&entry.holder)),
    Column::new("FENCING TOKEN", |entry| {
        entry.fencing_token.map(|token| token.to_string()).unwrap_or_default()
    }),
    Column::new("VERSION", |entry| entry.version.map(|version| version.to_string()).unwrap_or_default()),
    Column::wide("PUBLIC ID", |entry| entry.public_id.clone().unwrap_or_default()),
    Column::wide("AGENT", |entry| entry.agent_id.as_deref().map(word).unwrap_or_default()),
];

/// Prints the caller as the server knows it.
pub(crate) async fn whoami(client: &Client, common: &Common) -> CommandResult {
    let caller: Caller = client.whoami().await.map_err(client_failure)?;
    print_text(common.output, &caller, |_| {
        let rights: Vec<String> =
            caller.rights.iter().map(|row| format!("{}:{}", word(&row.namespace), row.rights)).collect();
        let line = format!(
            "{} role={} rights={} server_version={}",
            word(&caller.identity),
            caller.role,
            rights.join(","),
            caller.version
        );
        escape(&line) + "\n"
    })
}
