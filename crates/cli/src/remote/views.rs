//! `describe`, `why`, `list`, and how leases are shown.

use api::Code;
use api::tell::{Described, Lease, Leases};
use client::{Client, Error};

use super::args::{Common, Named};
use super::{Done, print, told};
use crate::stderr::shown;

pub(crate) async fn describe(client: &Client, common: &Common, args: &Named) -> Done {
    let told_of = client.describe(&args.key, common.connection.namespace.as_deref()).await.map_err(told)?;
    print(common.output, &told_of, || described(&told_of))
}

fn described(key: &Described) -> String {
    let mut lines = vec![
        format!("key={}", key.key),
        format!("namespace={}", key.namespace),
        format!("version={}", key.version),
        format!("etag={}", key.state_etag),
        format!("waiters={}", key.waiters),
    ];
    if let Some(lease) = &key.lease {
        lines.push(format!("public_id={}", lease.lease_id));
        lines.push(format!("owner={}", lease.owner));
        lines.push(format!("expires_at_unix={}", lease.expires_at_unix));
    }
    lines.extend(key.state.as_ref().map(|state| format!("state={state}")));
    lines.extend(key.fencing_token.map(|token| format!("fencing_token={token}")));
    lines.iter().map(|line| shown(line) + "\n").collect()
}

pub(crate) async fn why(client: &Client, common: &Common, args: &Named) -> Done {
    let seen =
        look(client, common, &args.key).await.map_err(told)?.unwrap_or_else(|| unused(common, &args.key));
    print(common.output, &seen, || shown(&because(&seen)) + "\n")
}

/// What is known of a key; nothing if it was never used.
pub(crate) async fn look(client: &Client, common: &Common, key: &str) -> Result<Option<Described>, Error> {
    match client.describe(key, common.connection.namespace.as_deref()).await {
        Err(error) if error.code() == Some(Code::NotFound) => Ok(None),
        seen => seen.map(Some),
    }
}

/// What there is to say of a key that was never used.
pub(crate) fn unused(common: &Common, key: &str) -> Described {
    let namespace = common.connection.namespace.clone().unwrap_or_else(|| api::DEFAULT_NAMESPACE.into());
    Described { key: key.into(), namespace, ..Described::default() }
}

fn because(key: &Described) -> String {
    let Some(lease) = &key.lease else {
        return format!("nobody holds it; acquire would get it: key={} waiters={}", key.key, key.waiters);
    };
    let what = match key.state.as_deref() {
        Some("revoking") => "its lease has ended, and the key stays taken until it is reclaimed",
        _ => "it is held; it is free when its holder releases it, or stops renewing it",
    };
    format!(
        "{what}: key={} owner={} public_id={} expires_at_unix={} waiters={}",
        key.key, lease.owner, lease.lease_id, lease.expires_at_unix, key.waiters
    )
}

pub(crate) async fn list(client: &Client, common: &Common) -> Done {
    let mut all = Leases::default();
    loop {
        let page = client
            .leases(common.connection.namespace.as_deref(), all.cursor.as_deref())
            .await
            .map_err(told)?;
        all.leases.extend(page.leases);
        all.cursor = page.cursor;
        if all.cursor.is_none() {
            break;
        }
    }
    print(common.output, &all, || all.leases.iter().map(line).collect())
}

pub(crate) fn show(common: &Common, lease: &Lease) -> Done {
    print(common.output, lease, || line(lease))
}

fn line(lease: &Lease) -> String {
    let named = lease.resources.iter().map(|member| format!("{}:{}", member.kind, member.name));
    let resources = named.collect::<Vec<_>>().join(",");
    let text = format!(
        "{} {} {} resources={resources} owner={} remaining_ms={} fencing_token={}",
        lease.public_id, lease.state, lease.namespace, lease.owner, lease.remaining_ms, lease.fencing_token
    );
    shown(&text) + "\n"
}
