//! Leases with the number of their waiters.

use std::collections::BTreeMap;

use api::responses::Lease;
use cli::times::ms_text;
use lockd_client::{Client, Error};
use serde::Serialize;

/// The most leases that are read.
const LEASES_MAX: usize = 10_000;

/// One resource of a lease. The JSON form is stable: fields are added, never renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TopRow {
    pub(super) namespace: String,
    /// A key by its name, any other resource as `KIND:name`.
    pub(super) resource: String,
    pub(super) holder: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_id: Option<String>,
    pub(super) state: String,
    pub(super) acquired_at_unix_ms: u64,
    pub(super) expires_at_unix_ms: u64,
    /// Number of waiters for the resource, among the first 100 of all.
    pub(super) waiters: u64,
    pub(super) fencing_token: u64,
    pub(super) public_id: String,
}

impl TopRow {
    /// The agent, or else the identity.
    pub(super) fn party(&self) -> &str {
        self.agent_id.as_deref().unwrap_or(&self.holder)
    }

    /// The time until its deadline.
    pub(super) fn remaining(&self, now_unix_ms: u64) -> String {
        match self.expires_at_unix_ms.saturating_sub(now_unix_ms) {
            0 => "over".to_string(),
            ms => ms_text(ms),
        }
    }
}

/// The leases at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) rows: Vec<TopRow>,
    /// There are leases that were not read.
    pub(super) more: bool,
    pub(super) waiters: usize,
}

impl Snapshot {
    pub(super) async fn read(client: &Client, namespace: Option<&str>) -> Result<Snapshot, Error> {
        let (mut leases, mut cursor): (Vec<Lease>, _) = (Vec::new(), None::<String>);
        loop {
            let page = client.leases(namespace, cursor.as_deref()).await?;
            leases.extend(page.leases);
            cursor = page.cursor;
            if cursor.is_none() || leases.len() >= LEASES_MAX {
                break;
            }
        }
        let contention = client.contention(namespace).await?;
        let mut waiters: BTreeMap<(String, String), u64> = BTreeMap::new();
        for waiting in &contention.waiting {
            for resource in &waiting.resources {
                let key = (waiting.namespace.clone(), text(&resource.kind, &resource.name));
                *waiters.entry(key).or_default() += 1;
            }
        }
        let rows = leases.into_iter().flat_map(|lease| rows_of(&lease, &waiters)).collect();
        Ok(Snapshot { rows, more: cursor.is_some(), waiters: contention.waiting.len() })
    }
}

fn rows_of(lease: &Lease, waiters: &BTreeMap<(String, String), u64>) -> Vec<TopRow> {
    let row = |member: &api::responses::Member| {
        let resource = text(&member.kind, &member.name);
        let waiting = waiters.get(&(lease.namespace.clone(), resource.clone()));
        TopRow {
            namespace: lease.namespace.clone(),
            resource,
            holder: lease.holder.clone(),
            agent_id: lease.agent_id.clone(),
            state: lease.state.clone(),
            acquired_at_unix_ms: lease.acquired_at_unix_ms,
            expires_at_unix_ms: lease.expires_at_unix_ms,
            waiters: waiting.copied().unwrap_or_default(),
            fencing_token: lease.fencing_token,
            public_id: lease.public_id.clone(),
        }
    };
    lease.resources.iter().map(row).collect()
}

fn text(kind: &str, name: &str) -> String {
    if kind == "KEY" { name.to_string() } else { format!("{kind}:{name}") }
}
