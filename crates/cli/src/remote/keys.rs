//! `keys`: the keys that have a document, are held, or are waited for.
//!
//! The list is made of three: leases, waiters and documents, read one after the other. It is not the state at one moment.

use std::collections::BTreeMap;

use api::responses::{Lease, StoredKey};
use lockd_client::Client;
use serde::Serialize;

use super::args::Common;
use super::operators::all_namespaces;
use super::views::all_leases;
use super::{CommandResult, Failure, client_failure};
use crate::output::{Column, print_rows};
use crate::times::{ms_text, unix_ms_text};
use crate::untrusted::{quote, word};

#[derive(clap::Args)]
#[command(
    after_help = "Without --namespace, the keys of all namespaces are listed in which the identity has the right `r`.\n\n\
                        Example:\n  lockd client keys\n  lockd client keys orders/ --namespace team\n  \
                        lockd client keys orders/ --output json | jq -r .keys[].key"
)]
pub(crate) struct KeysArgs {
    /// Only keys that begin with this.
    prefix: Option<String>,
}

impl KeysArgs {
    fn includes(&self, name: &str) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| name.starts_with(prefix.as_str()))
    }
}

#[derive(Default, Serialize)]
struct ListedKey {
    key: String,
    namespace: String,
    /// `held`, `revoking`, `waited_for` if there are waiters and no lease, or `free`.
    state: String,
    holder: Option<String>,
    owner: Option<String>,
    public_id: Option<String>,
    remaining_ms: Option<u64>,
    waiters: u64,
    /// This and the fields below: of the document, if there is one.
    version: Option<u64>,
    state_etag: Option<String>,
    state_bytes: Option<u64>,
    updated_at: Option<String>,
}

#[derive(Serialize)]
struct ListedKeys {
    keys: Vec<ListedKey>,
}

/// By namespace and name.
#[derive(Default)]
struct KeyTable(BTreeMap<(String, String), ListedKey>);

impl KeyTable {
    /// The row of a key; a new one has this state.
    fn row(&mut self, namespace: &str, key: &str, state: &str) -> &mut ListedKey {
        let (namespace, key) = (namespace.to_string(), key.to_string());
        self.0.entry((namespace.clone(), key.clone())).or_insert_with(|| ListedKey {
            key,
            namespace,
            state: state.to_string(),
            ..ListedKey::default()
        })
    }

    fn add_lease(&mut self, lease: &Lease, key: &str) {
        let Some(state) = key_state(lease) else { return };
        let row = self.row(&lease.namespace, key, state);
        row.state = state.to_string();
        row.holder = Some(lease.holder.clone());
        row.owner = Some(lease.owner.clone());
        row.public_id = Some(lease.public_id.clone());
        row.remaining_ms = Some(lease.remaining_ms);
    }

    fn add_document(&mut self, namespace: &str, stored: StoredKey) {
        let row = self.row(namespace, &stored.key, "free");
        row.version = Some(stored.version);
        row.state_etag = Some(stored.state_etag);
        row.state_bytes = Some(stored.state_bytes);
        row.updated_at = Some(unix_ms_text(stored.updated_at_unix.saturating_mul(1000)));
    }
}

/// `None` if the lease no longer covers its resources.
fn key_state(lease: &Lease) -> Option<&'static str> {
    match lease.state.as_str() {
        "reserved" | "active" => Some("held"),
        "revoking" => Some("revoking"),
        _ => None,
    }
}

pub(crate) async fn keys(client: &Client, common: &Common, args: &KeysArgs) -> CommandResult {
    let mut table = KeyTable::default();
    let namespace = common.connection.namespace.as_deref();
    for lease in all_leases(client, common).await? {
        let members = lease.resources.iter();
        for member in members.filter(|member| member.kind == "KEY" && args.includes(&member.name)) {
            table.add_lease(&lease, &member.name);
        }
    }
    for waiting in client.contention(namespace).await.map_err(client_failure)?.waiting {
        let resources = waiting.resources.iter();
        for resource in resources.filter(|resource| resource.kind == "KEY" && args.includes(&resource.name)) {
            table.row(&waiting.namespace, &resource.name, "waited_for").waiters += 1;
        }
    }
    let namespaces = match namespace {
        Some(namespace) => vec![namespace.to_string()],
        None => all_namespaces(client).await?.namespaces,
    };
    for namespace in &namespaces {
        add_documents(client, &mut table, namespace, args.prefix.as_deref()).await?;
    }
    let keys = ListedKeys { keys: table.0.into_values().collect() };
    print_rows(common.output, &keys, &KEY_COLUMNS, &keys.keys)
}

async fn add_documents(
    client: &Client,
    table: &mut KeyTable,
    namespace: &str,
    prefix: Option<&str>,
) -> Result<(), Failure> {
    let mut cursor: Option<String> = None;
    loop {
        let page = client.keys(Some(namespace), prefix, cursor.as_deref()).await.map_err(client_failure)?;
        page.keys.into_iter().for_each(|stored| table.add_document(namespace, stored));
        cursor = page.cursor;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

const KEY_COLUMNS: [Column<ListedKey>; 11] = [
    Column::new("KEY", |key| word(&key.key)),
    Column::new("NAMESPACE", |key| word(&key.namespace)),
    Column::new("STATE", |key| key.state.clone()),
    Column::new("HOLDER", |key| key.holder.as_deref().map(word).unwrap_or_default()),
    Column::new("OWNER", |key| key.owner.as_deref().map(quote).unwrap_or_default()),
    Column::new("ENDS IN", |key| key.remaining_ms.filter(|ms| *ms > 0).map(ms_text).unwrap_or_default()),
    Column::new("WAITERS", |key| key.waiters.to_string()),
    Column::new("VERSION", |key| key.version.map(|version| version.to_string()).unwrap_or_default()),
    Column::new("BYTES", |key| key.state_bytes.map(|bytes| bytes.to_string()).unwrap_or_default()),
    Column::wide("UPDATED", |key| key.updated_at.clone().unwrap_or_default()),
    Column::wide("PUBLIC ID", |key| key.public_id.clone().unwrap_or_default()),
];
