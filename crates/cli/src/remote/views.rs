//! `describe`, `why`, `list`, and the text form of leases.

use api::Code;
use api::responses::{Described, Lease, Leases};
use lockd_client::{Client, Error};

use super::args::{Common, KeyArg};
use super::{CommandResult, client_failure, print};
use crate::untrusted::{escape, word};

pub(crate) async fn describe(client: &Client, common: &Common, args: &KeyArg) -> CommandResult {
    let description =
        client.describe(&args.key, common.connection.namespace.as_deref()).await.map_err(client_failure)?;
    print(common.output, &description, || described(&description))
}

fn described(key: &Described) -> String {
    let mut lines = vec![
        format!("key={}", word(&key.key)),
        format!("namespace={}", word(&key.namespace)),
        format!("version={}", key.version),
        format!("etag={}", key.state_etag),
        format!("waiters={}", key.waiters),
    ];
    if let Some(lease) = &key.lease {
        lines.push(format!("public_id={}", lease.lease_id));
        lines.push(format!("owner={}", word(&lease.owner)));
        lines.push(format!("expires_at_unix={}", lease.expires_at_unix));
    }
    lines.extend(key.state.as_ref().map(|state| format!("state={state}")));
    lines.extend(key.fencing_token.map(|token| format!("fencing_token={token}")));
    lines.iter().map(|line| escape(line) + "\n").collect()
}

pub(crate) async fn why(client: &Client, common: &Common, args: &KeyArg) -> CommandResult {
    let description = describe_or_none(client, common, &args.key)
        .await
        .map_err(client_failure)?
        .unwrap_or_else(|| unused_key(common, &args.key));
    print(common.output, &description, || escape(&explanation(&description)) + "\n")
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

fn explanation(key: &Described) -> String {
    let Some(lease) = &key.lease else {
        return format!("free: acquire would be granted: key={} waiters={}", word(&key.key), key.waiters);
    };
    let what = match key.state.as_deref() {
        Some("revoking") => {
            "the lease has ended, but the key stays blocked until it is reclaimed (operators: `lockd client reclaim`)"
        }
        _ => "held: it becomes free when the holder releases it, or the lease expires without renewal",
    };
    format!(
        "{what}: key={} owner={} public_id={} expires_at_unix={} waiters={}",
        word(&key.key),
        word(&lease.owner),
        lease.lease_id,
        lease.expires_at_unix,
        key.waiters
    )
}

pub(crate) async fn list(client: &Client, common: &Common) -> CommandResult {
    let mut all = Leases::default();
    loop {
        let page = client
            .leases(common.connection.namespace.as_deref(), all.cursor.as_deref())
            .await
            .map_err(client_failure)?;
        all.leases.extend(page.leases);
        all.cursor = page.cursor;
        if all.cursor.is_none() {
            break;
        }
    }
    print(common.output, &all, || all.leases.iter().map(line).collect())
}

pub(crate) fn show(common: &Common, lease: &Lease) -> CommandResult {
    print(common.output, lease, || line(lease))
}

fn line(lease: &Lease) -> String {
    let members = lease.resources.iter().map(|member| word(&format!("{}:{}", member.kind, member.name)));
    let resources = members.collect::<Vec<_>>().join(",");
    let text = format!(
        "{} {} {} resources={resources} owner={} remaining_ms={} fencing_token={}",
        lease.public_id,
        lease.state,
        word(&lease.namespace),
        word(&lease.owner),
        lease.remaining_ms,
        lease.fencing_token
    );
    escape(&text) + "\n"
}
