//! `describe`, `list`, `lease`, `resource`, `contention`, and the columns of leases.

use api::Code;
use api::agents::{Contention, ResourceState, Waiting};
use api::responses::{Described, Lease, Leases};
use lockd_client::{Client, Error};
use serde::Serialize;

use super::args::{Common, KeyArg};
use super::{CommandResult, Failure, client_failure, print};
use crate::output::{Column, print_rows, print_text, table};
use crate::times::{ms_text, unix_ms_text};
use crate::untrusted::{escape, quote, word};

#[derive(clap::Args)]
#[command(after_help = "Example:\n  lockd client list\n  lockd client list orders/ --namespace team\n  \
                        lockd client list --output json | jq -r .leases[].holder")]
pub(crate) struct ListArgs {
    /// Only leases over keys that begin with this, or over other resources by KIND:name.
    prefix: Option<String>,
}

#[derive(clap::Args)]
#[command(after_help = "Example:\n  lockd client lease L-0000000000000001000000000000abcd")]
pub(crate) struct LeaseArg {
    /// Public id of the lease.
    public_id: String,
}

#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  lockd client resource FILE:/src/auth.rs\n  lockd client resource 'FILE:/src/*'"
)]
pub(crate) struct ResourceArg {
    /// Resource as KIND:name.
    #[arg(value_parser = resource_name)]
    pub(super) resource: String,
}

/// Checks that a kind is named. The server checks the rest.
fn resource_name(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok(text.to_string()),
        _ => Err(format!("write KIND:name; a key is KEY:name, as in KEY:{text}")),
    }
}

/// A key as the output shows it. The JSON form is stable: fields are added, never renamed.
#[derive(Serialize)]
struct KeyDescription {
    key: String,
    namespace: String,
    version: u64,
    state_etag: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<String>,
    waiters: u64,
    /// The lease over the key, if any.
    lease: Option<Lease>,
}

pub(crate) async fn describe(client: &Client, common: &Common, args: &KeyArg) -> CommandResult {
    let namespace = common.connection.namespace.as_deref();
    let described = client.describe(&args.key, namespace).await.map_err(client_failure)?;
    let lease = match &described.public_id {
        // The lease may have ended between the two calls.
        Some(public_id) => client.lease(public_id).await.ok(),
        None => None,
    };
    let key = KeyDescription {
        updated_at: described.updated_at_unix.map(|seconds| unix_ms_text(seconds.saturating_mul(1000))),
        key: described.key,
        namespace: described.namespace,
        version: described.version,
        state_etag: described.state_etag,
        state_bytes: described.state_bytes,
        waiters: described.waiters,
        lease,
    };
    print(common.output, &key, || described_text(&key))
}

fn described_text(key: &KeyDescription) -> String {
    let mut lines = vec![
        format!("key={}", word(&key.key)),
        format!("namespace={}", word(&key.namespace)),
        format!("version={}", key.version),
        format!("etag={}", key.state_etag),
        format!("waiters={}", key.waiters),
    ];
    lines.extend(key.state_bytes.map(|bytes| format!("bytes={bytes}")));
    lines.extend(key.updated_at.as_ref().map(|time| format!("updated={time}")));
    if let Some(lease) = &key.lease {
        lines.push(format!("public_id={}", lease.public_id));
        lines.push(format!("holder={}", word(&lease.holder)));
        lines.push(format!("owner={}", quote(&lease.owner)));
        lines.push(format!("since={}", unix_ms_text(lease.acquired_at_unix_ms)));
        let left = if lease.remaining_ms == 0 {
            String::new()
        } else {
            format!(" (in {})", ms_text(lease.remaining_ms))
        };
        lines.push(format!("until={}{left}", unix_ms_text(lease.expires_at_unix_ms)));
        lines.push(format!("state={}", lease.state));
        lines.push(format!("fencing_token={}", lease.fencing_token));
    }
    lines.iter().map(|line| escape(line) + "\n").collect()
}

/// The description of a key; `None` if the server has no record of it.
pub(crate) async fn describe_or_none(
    client: &Client,
    common: &Common,
    key: &str,
) -> Result<Option<Described>, Error> {
    match client.describe(key, common.connection.namespace.as_deref()).await {
        Err(error) if error.code() == Some(Code::NotFound) => Ok(None),
        description => description.map(Some),
    }
}

/// The description of a key that the server has no record of.
pub(crate) fn unused_key(common: &Common, key: &str) -> Described {
    let namespace = common.connection.namespace.clone().unwrap_or_else(|| api::DEFAULT_NAMESPACE.into());
    Described { key: key.into(), namespace, ..Described::default() }
}

/// All leases of a namespace, or of all, sorted by their first resource.
pub(crate) async fn all_leases(client: &Client, common: &Common) -> Result<Vec<Lease>, Failure> {
    let mut all = Leases::default();
    loop {
        let page = client.leases(common.connection.namespace.as_deref(), all.cursor.as_deref()).await;
        let page = page.map_err(client_failure)?;
        all.leases.extend(page.leases);
        all.cursor = page.cursor;
        if all.cursor.is_none() {
            break;
        }
    }
    all.leases
        .sort_by_cached_key(|lease| (lease.namespace.clone(), resources(lease), lease.public_id.clone()));
    Ok(all.leases)
}

pub(crate) async fn list(client: &Client, common: &Common, args: &ListArgs) -> CommandResult {
    let mut leases = all_leases(client, common).await?;
    if let Some(prefix) = &args.prefix {
        let begins = |name: &str| name.starts_with(prefix.as_str());
        leases.retain(|lease| {
            lease.resources.iter().any(|member| {
                (member.kind == "KEY" && begins(&member.name))
                    || begins(&format!("{}:{}", member.kind, member.name))
            })
        });
    }
    let leases = Leases { leases, cursor: None };
    print_rows(common.output, &leases, &LEASE_COLUMNS, &leases.leases)
}

pub(crate) async fn lease(client: &Client, common: &Common, args: &LeaseArg) -> CommandResult {
    show(common, &client.lease(&args.public_id).await.map_err(client_failure)?)
}

/// Prints one lease.
pub(crate) fn show(common: &Common, lease: &Lease) -> CommandResult {
    print_rows(common.output, lease, &LEASE_COLUMNS, std::slice::from_ref(lease))
}

const LEASE_COLUMNS: [Column<Lease>; 11] = [
    Column::new("RESOURCES", resources),
    Column::new("NAMESPACE", |lease| word(&lease.namespace)),
    Column::new("STATE", |lease| lease.state.clone()),
    Column::new("HOLDER", |lease| word(&lease.holder)),
    Column::new("OWNER", |lease| quote(&lease.owner)),
    Column::new(
        "ENDS IN",
        |lease| if lease.remaining_ms == 0 { String::new() } else { ms_text(lease.remaining_ms) },
    ),
    Column::new("PUBLIC ID", |lease| lease.public_id.clone()),
    Column::wide("FENCING TOKEN", |lease| lease.fencing_token.to_string()),
    Column::wide("AGENT", |lease| lease.agent_id.as_deref().map(word).unwrap_or_default()),
    Column::wide("SINCE", |lease| unix_ms_text(lease.acquired_at_unix_ms)),
    Column::wide("TTL", |lease| ms_text(lease.ttl_ms)),
];

/// The resources of a lease: keys by their names, others with their kinds.
fn resources(lease: &Lease) -> String {
    let members = lease.resources.iter().map(|member| resource_text(&member.kind, &member.name));
    members.collect::<Vec<_>>().join(",")
}

pub(crate) fn resource_text(kind: &str, name: &str) -> String {
    if kind == "KEY" { word(name) } else { word(&format!("{kind}:{name}")) }
}

pub(crate) async fn resource(client: &Client, common: &Common, args: &ResourceArg) -> CommandResult {
    let state = client.resource(&args.resource, common.connection.namespace.as_deref()).await;
    let state: ResourceState = state.map_err(client_failure)?;
    print_text(common.output, &state, |is_wide| {
        let name = resource_text(&state.kind, &state.name);
        let head =
            format!("{} {name} namespace={} waiters={}", state.state, word(&state.namespace), state.waiters);
        let leases = if state.leases.is_empty() {
            String::new()
        } else {
            table(&LEASE_COLUMNS, &state.leases, is_wide)
        };
        let more = if state.more { "more leases are not listed\n" } else { "" };
        escape(&head) + "\n" + &leases + more
    })
}

pub(crate) async fn contention(client: &Client, common: &Common) -> CommandResult {
    let contention =
        client.contention(common.connection.namespace.as_deref()).await.map_err(client_failure)?;
    print_text(common.output, &contention, |_| contention_text(&contention))
}

fn contention_text(contention: &Contention) -> String {
    let mut text = table(&WAITER_COLUMNS, &contention.waiting, true);
    if contention.more {
        text += "more waiters are not listed\n";
    }
    for spot in &contention.hotspots {
        let name = resource_text(&spot.kind, &spot.name);
        let line = format!(
            "contended recently: {name} namespace={} blocked={} timed_out={}",
            word(&spot.namespace),
            spot.blocked,
            spot.timed_out
        );
        text += &(escape(&line) + "\n");
    }
    for party in &contention.timeouts {
        let agent =
            party.agent_id.as_ref().map(|agent| format!(" agent_id={}", word(agent))).unwrap_or_default();
        let line = format!(
            "timed out recently: identity={}{agent} namespace={} waits={} leases={}",
            word(&party.identity),
            word(&party.namespace),
            party.waits,
            party.leases
        );
        text += &(escape(&line) + "\n");
    }
    text
}

const WAITER_COLUMNS: [Column<Waiting>; 6] = [
    Column::new("WAITS FOR", |waiting| {
        let names = waiting.resources.iter().map(|resource| resource_text(&resource.kind, &resource.name));
        names.collect::<Vec<_>>().join(",")
    }),
    Column::new("NAMESPACE", |waiting| word(&waiting.namespace)),
    Column::new("IDENTITY", |waiting| word(&waiting.identity)),
    Column::new("POSITION", |waiting| waiting.position.to_string()),
    Column::new("AGE", |waiting| ms_text(waiting.age_ms)),
    Column::new("BLOCKED BY", |waiting| {
        waiting.blocked_by.iter().map(|lease| word(&lease.holder)).collect::<Vec<_>>().join(",")
    }),
];
